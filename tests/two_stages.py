"""What the tests of the methods with two stages share: a fit, the same again, and one that was killed twice."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from debiaser.learn.checkpoint import Checkpoints
from debiaser.learn.forward import predict
from debiaser.learn.recipe import Recipe
from debiaser.methods.task import Journal, Task
from debiaser.progress import listening


class Killed(Exception):
    """What a listener raises to end a run in the middle."""


class Kill:
    """A listener that counts the steps that were taken, and ends the run at one of this stage."""

    def __init__(self, stage: str = "", at: int = 0) -> None:
        self.at, self.steps = (stage, at), 0

    def __call__(self, what: str, done: int, total: int | None, step: int, unit: str) -> None:
        self.steps += step
        if (what, done) == self.at:
            raise Killed


def same(one: torch.nn.Module, two: torch.nn.Module) -> bool:
    pairs = zip(one.state_dict().values(), two.state_dict().values(), strict=True)
    return all(torch.equal(*pair) for pair in pairs)


def check_fit(method: Any, tiny_task: Callable[..., Task], folder: Path) -> Journal:
    """Fit twice, with another seed, and killed in both stages: the journal of the first fit, where all went well."""
    recipe, count = Recipe(epochs=2, batch_size=64, lr=0.05), Kill()
    task = tiny_task(recipe=recipe)
    with listening(count):
        model = method.fit(task)
    assert not model.training
    assert torch.isfinite(predict(model, task.train.batches(64))).all()
    assert [row["stage"] for row in task.journal.history][-2:] == ["debiased", "debiased"]
    assert all(len(vector) == len(task.train) for vector in task.journal.vectors.values())
    assert same(model, method.fit(tiny_task(recipe=recipe))), "the same seed gave other weights"
    assert not same(model, method.fit(tiny_task(recipe=recipe, seed=1))), "the seed changes nothing"

    for kill in (Kill("reference", 2), Kill("debiased", 5)):  # the latter in the second of its two epochs
        with pytest.raises(Killed), listening(kill):
            method.fit(tiny_task(recipe=recipe, checkpoints=Checkpoints(folder)))
    resumed, rest = tiny_task(recipe=recipe, checkpoints=Checkpoints(folder)), Kill()
    with listening(rest):
        assert same(model, method.fit(resumed)), "a run that was killed and resumed ended with other weights"
    assert rest.steps == 3 < count.steps, "only the epoch that was cut short runs again"
    assert resumed.journal.vectors.keys() == task.journal.vectors.keys()
    for name, vector in task.journal.vectors.items():
        assert np.array_equal(vector, resumed.journal.vectors[name]), name
    return task.journal
