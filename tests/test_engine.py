"""The loop: it resumes bit for bit, follows its schedule, and says when it diverges."""

import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from debiaser.data.split import Batch, Split
from debiaser.errors import Misuse, Problem
from debiaser.learn import engine
from debiaser.learn.checkpoint import Checkpoint, read_tensors, write_tensors
from debiaser.learn.engine import Stage, fit, split_rows, steps_in
from debiaser.learn.losses import Supervised
from debiaser.learn.recipe import Recipe, one_cycle
from debiaser.methods import find_method
from debiaser.methods.task import Task
from debiaser.progress import listening
from kills import Kill, Killed, same

STAGES = ("biased", "debiased")


@pytest.mark.parametrize("variant", [{}, {"joint": True}, {"use": "reweight"}])
def test_the_rate_of_the_debiased_stage_alone_is_multiplied(
    variant: dict[str, object], tiny_task: Callable[..., Task]
) -> None:
    told, keys = [], []
    for rate in (1, 0.2):
        task = tiny_task()
        find_method("pgd")(**variant, rate=rate).fit(task)
        told.append({stage: [r["lr"] for r in task.journal.history if r["stage"] == stage] for stage in STAGES})
        keys.append(set(task.journal.stages))
    usual, slow = told
    assert slow["biased"] == usual["biased"]
    assert slow["debiased"] == pytest.approx([0.2 * each for each in usual["debiased"]])
    assert keys[0] != keys[1]


def test_adam_resumes_too(tmp_path: Path) -> None:
    split = Split.of(torch.randn(40, 6), torch.randint(0, 3, (40,)))
    recipe = Recipe(epochs=4, batch_size=16, optimizer="adamw", lr=0.01, schedule="linear", clip=1.0)

    def objective() -> Supervised:
        torch.manual_seed(0)
        return Supervised(nn.Sequential(nn.Linear(6, 8), nn.Dropout(), nn.Linear(8, 3)))

    calm, broken = objective(), objective()
    fit(calm, Stage("s", split, recipe, 1), Checkpoint(None))
    with pytest.raises(Killed), listening(Kill(7)):
        fit(broken, Stage("s", split, recipe, 1), Checkpoint(tmp_path / "state"))
    again = objective()
    history = fit(again, Stage("s", split, recipe, 1), Checkpoint(tmp_path / "state"))
    assert len(history) == 4
    assert same(calm, again)


def test_a_damaged_checkpoint_is_said_and_left(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "state.safetensors"
    write_tensors(path, {"a": torch.arange(1000)}, history=[])
    assert read_tensors(path).plain == {"history": []}
    path.write_bytes(path.read_bytes()[:-100])
    assert Checkpoint(path).load() is None
    assert "damaged" in caplog.text and not path.exists()


def test_nan_stops_with_epoch_and_step() -> None:
    split = Split.of(torch.full((8, 2), 1e38), torch.zeros(8, dtype=torch.long))
    with pytest.raises(Problem, match=r"stage 'biased', epoch \d, step \d.*learning rate"):
        fit(Supervised(nn.Linear(2, 2)), Stage("biased", split, Recipe(epochs=2, lr=1e5), 0), Checkpoint(None))


def test_the_callers_random_state_is_left() -> None:
    split = Split.of(torch.randn(8, 2), torch.zeros(8, dtype=torch.long))
    objective = Supervised(nn.Sequential(nn.Linear(2, 2), nn.Dropout()))
    before = torch.get_rng_state()
    fit(objective, Stage("s", split, Recipe(epochs=1), 0), Checkpoint(None))
    assert torch.equal(before, torch.get_rng_state())


def test_a_last_batch_of_one_joins_the_one_before() -> None:
    assert [len(part) for part in split_rows(torch.arange(129), 64)] == [64, 65]
    assert [len(part) for part in split_rows(torch.arange(130), 64)] == [64, 64, 2]
    assert [len(part) for part in split_rows(torch.arange(1), 64)] == [1]
    assert torch.cat(split_rows(torch.arange(129), 64)).tolist() == list(range(129))
    for rows in range(1, 300):
        assert len(split_rows(torch.arange(rows), 64)) == steps_in(rows, 64)


def test_weights_act_as_repetition() -> None:
    """A weight of 2 on a row is that row twice, as far as the gradient goes."""
    torch.manual_seed(0)
    model, x, y = nn.Linear(3, 2), torch.randn(3, 3), torch.tensor([0, 1, 0])
    weighted = Supervised(model, weights=torch.tensor([2.0, 1.0, 0.0]))(Batch(x, y, torch.arange(3)))
    repeated = Supervised(model)(Batch(x[[0, 0, 1]], y[[0, 0, 1]], torch.arange(3)))
    assert torch.allclose(weighted, repeated)


def test_schedules_match_torch() -> None:
    steps, epochs = 5, 12

    def rates(recipe: Recipe, make: Callable[[torch.optim.Optimizer], object], per_epoch: bool) -> None:
        optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=recipe.lr, momentum=0.9)
        scheduler = make(optimizer)
        for step in range(steps * epochs):
            expected = optimizer.param_groups[0]["lr"]
            assert math.isclose(recipe.learning_rate(step, steps), expected, rel_tol=1e-6, abs_tol=1e-12), step
            optimizer.step()
            if not per_epoch or (step + 1) % steps == 0:
                scheduler.step()

    lr = torch.optim.lr_scheduler
    step = Recipe(epochs=epochs, lr=0.3, schedule="step", decay=0.1, decay_every=4)
    rates(step, lambda o: lr.StepLR(o, 4, 0.1), True)
    rates(Recipe(epochs=epochs, lr=0.3, schedule="cosine"), lambda o: lr.CosineAnnealingLR(o, epochs), True)
    rates(
        Recipe(epochs=epochs, lr=0.3, schedule="one-cycle"),
        lambda o: lr.OneCycleLR(o, 0.3, total_steps=steps * epochs, cycle_momentum=False),
        False,
    )
    linear = Recipe(epochs=epochs, lr=0.3, schedule="linear")
    assert linear.learning_rate(0, steps) == 0.3 and linear.learning_rate(30, steps) == pytest.approx(0.15)
    assert Recipe(schedule="constant", lr=0.3).learning_rate(99, steps) == 0.3
    assert one_cycle(59, 60, 1.0, 0.3) == pytest.approx(1 / 25e4)
    assert all(0 < one_cycle(step, total, 1.0, 0.3) <= 1 for total in range(1, 9) for step in range(total))


def test_recipes_are_checked() -> None:
    for wrong in ({"epochs": 0}, {"lr": 0}, {"lr": -1}, {"batch_size": 0}, {"optimizer": "x"}, {"schedule": "x"}):
        with pytest.raises(Misuse):
            Recipe(**wrong)
    with pytest.raises(Misuse, match="rate"):
        Recipe(stages={"biased": {"rate": 1}})
    recipe = Recipe(epochs=10, stages={"biased": {"epochs": 4, "lr": 0.5}})
    assert recipe.of_stage("biased").epochs == 4 and recipe.of_stage("biased").lr == 0.5
    assert recipe.of_stage("biased", rate=0.2).lr == pytest.approx(0.1) and recipe.of_stage("biased", 2).lr == 0.5
    assert recipe.of_stage("debiased").epochs == 10 and recipe.of_stage("vanilla", 2).epochs == 20
    assert recipe.with_epochs(3).of_stage("biased").epochs == 3 and recipe.with_epochs(3).of_stage("biased").lr == 0.5


def test_only_one_loop() -> None:
    """A loss is back-propagated in one file of the package; another writes out what others do, to compare speeds."""
    source = Path(engine.__file__).parents[1]
    users = {str(path.relative_to(source)) for path in source.rglob("*.py") if ".backward()" in path.read_text()}
    assert users == {"learn/engine.py", "paper/speed.py"}


FAULTS = """
import resource, sys
import torch
from debiaser.learn.recipe import keep_freed_memory
if "keep" in sys.argv:
    keep_freed_memory()
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for step in range(12):
    before = faults() if step == 2 else before if step > 2 else 0
    tensors = [torch.ones(3_000_000 // 4) for _ in range(6)]  # as a step of SimConv-1 has them
    del tensors
print(faults() - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc is Linux's: this test did not run")
def test_freed_memory_is_kept_for_the_next_step() -> None:
    """Ten steps that need 18 MB each: without keeping, all of it comes from the system again, page by page.

    Left to itself glibc gives back now this, now that, by what happens to lie above it; here it is told to, always.
    """
    always = {f"MALLOC_{name}_THRESHOLD_": str(1 << 17) for name in ("MMAP", "TRIM")}
    options = {"capture_output": True, "text": True, "check": True, "env": {**os.environ, **always}}
    lines = ([sys.executable, "-c", FAULTS, *words] for words in ([], ["keep"]))
    usual, kept = (int(subprocess.run(line, **options).stdout) for line in lines)
    assert kept < usual / 5, (kept, usual)


def test_an_input_that_is_no_number_is_named(tiny_task: Callable[..., Task]) -> None:
    x, y = torch.randn(40, 6), torch.arange(40) % 3
    x[7, 2] = torch.nan
    task = tiny_task(train=Split.of(x, y), make_model=lambda _: torch.nn.Linear(6, 3), augment=None)
    with pytest.raises(Problem, match="sample 7 is NaN"):
        task.fit(Supervised(task.new_model()), "plain")
