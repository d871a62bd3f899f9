"""JTT against its definition: the error set, how often a row counts, two independent networks, both edges said."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from debiaser import JTT
from debiaser.data.split import Split
from debiaser.io import derive
from debiaser.learn.recipe import Recipe
from debiaser.learn.sampler import ScoreSampler
from debiaser.methods.task import Task
from kills import Watched, same


@pytest.mark.parametrize("upweight", [0, 0.5, 50])
def test_an_error_counts_one_plus_upweight_times(upweight: float) -> None:
    error = torch.tensor([0, 1, 0, 0, 1, 0, 0])
    sampler = JTT(upweight=upweight).sampler(error, 3)
    assert isinstance(sampler, ScoreSampler) and sampler.seed == 3 and len(sampler) == 7
    copies = [1, 1 + upweight, 1, 1, 1 + upweight, 1, 1]  # the authors' data set with its copies
    assert sampler.probabilities == pytest.approx(np.array(copies) / sum(copies))
    long = ScoreSampler(sampler.probabilities, seed=1, num_samples=70_000).draw(0)
    share = torch.isin(long, torch.tensor([1, 4])).double().mean().item()
    expected = 2 * (1 + upweight) / sum(copies)
    assert share == pytest.approx(expected, abs=5 * (expected * (1 - expected) / 70_000) ** 0.5)


def test_the_error_set_is_what_a_clean_pass_gets_wrong(tiny_task: Callable[..., Task]) -> None:
    task = tiny_task()
    watched = Watched(task)
    model = JTT(upweight=4).fit(task)
    identifier = watched.ends["identification"].eval()
    error = task.journal.vectors["error"]
    assert 0 < error.sum() < 192 and error.dtype == np.int8
    for row in range(192):  # one at a time, clean, in eval mode
        batch = task.train.batch(torch.tensor([row]))
        with torch.no_grad():
            assert error[row] == int(identifier(batch.x).argmax() != batch.y)
    sampler = watched.samplers["final"]
    assert isinstance(sampler, ScoreSampler)
    assert sampler.probabilities == pytest.approx((1 + 4.0 * error) / (1 + 4.0 * error).sum())
    assert watched.samplers["identification"] is None, "the first training is uniform"
    assert model is watched.ends["final"]


def test_the_second_network_is_a_fresh_one(tiny_task: Callable[..., Task]) -> None:
    task = tiny_task()
    watched = Watched(task)
    JTT().fit(task)
    assert same(watched.starts["final"], task.make_model(derive(task.seed, "init", "final")))
    assert not same(watched.starts["final"], watched.starts["identification"])
    assert not same(watched.starts["final"], watched.ends["identification"])


def test_the_error_set_of_training_is_logged_in_its_last_epoch(tiny_task: Callable[..., Task]) -> None:
    """All rows in one batch without augmentation: what is logged is the train-mode prediction before that update."""

    def make(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return nn.Sequential(nn.Flatten(), nn.Linear(3 * 28 * 28, 10), nn.BatchNorm1d(10), nn.Linear(10, 10))

    found = {}
    for name in ("eval", "train"):
        task = tiny_task(make_model=make, recipe=Recipe(epochs=1, batch_size=192, lr=0.05), augment=None)
        watched = Watched(task)
        JTT(error_set=name).fit(task)
        found[name] = task.journal.vectors["error"]
        start, batch = watched.starts["identification"].train(), next(task.train.batches(192))
    assert (found["train"] == (start(batch.x).argmax(1) != batch.y).numpy()).all()
    assert (found["train"] != found["eval"]).any()


class Constant(nn.Module):
    """A network that says the same of everything, and learns nothing that would change it."""

    def __init__(self, prediction: int) -> None:
        super().__init__()
        self.fc = nn.Linear(1, 3)
        self.fc.weight.data = 1e6 * nn.functional.one_hot(torch.tensor([prediction]), 3).float().T

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.fc(torch.ones(len(x), 1))
        return logits


@pytest.mark.parametrize(("prediction", "found", "remedy"), [(0, "none", "shorten"), (1, "all", "lengthen")])
def test_no_error_and_nothing_but_errors_are_said_and_plain_training(
    prediction: int, found: str, remedy: str, tiny_task: Callable[..., Task], caplog: pytest.LogCaptureFixture
) -> None:
    split = Split.of(torch.zeros(20, 1), torch.zeros(20, dtype=torch.long))
    task = tiny_task(train=split, make_model=lambda _: Constant(prediction), augment=None)
    watched = Watched(task)
    JTT().fit(task)
    assert watched.samplers["final"] is None, "every row once an epoch"
    assert f"misclassifies {found} of 20 samples" in caplog.text and f"{remedy} identification=" in caplog.text
    assert (task.journal.vectors["error"] == (prediction != 0)).all()


def test_identification_is_counted_in_lengths_of_the_recipe(tiny_task: Callable[..., Task]) -> None:
    task = tiny_task(recipe=Recipe(epochs=2, batch_size=96, lr=0.05))
    JTT(identification=0.5).fit(task)
    assert [row["stage"] for row in task.journal.history] == ["identification", "final", "final"]
    assert [row["seen"] for row in task.journal.history] == [192] * 3
