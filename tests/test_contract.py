"""What every method promises: shapes, same seed same weights, also when killed, bias labels without influence."""

import copy
import dataclasses
import sys
from collections.abc import Callable, Container, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from debiaser.data.split import Benchmark, Truth
from debiaser.errors import Misuse, Problem
from debiaser.learn import engine
from debiaser.learn.checkpoint import Checkpoints, read_tensors
from debiaser.learn.forward import find_head, predict
from debiaser.learn.recipe import Recipe
from debiaser.methods import METHODS, find_method
from debiaser.methods.task import Task
from debiaser.paper import experiment
from debiaser.paper.spec import new_spec
from debiaser.progress import listening
from debiaser.report.tables import method_name
from kills import Kill, Killed, same

# Variants with a path of their own are methods of their own here.
VARIANTS = {
    **{name: (name, []) for name in METHODS},
    "pgd joint": ("pgd", ["joint=true"]),
    "pgd reweight": ("pgd", ["use=reweight", "rate=0.2"]),
    "pgd loss": ("pgd", ["score=loss"]),
    "pgd residual": ("pgd", ["score=residual"]),
    "pgd augmented scores": ("pgd", ["score_on=augmented"]),
    "pgd not inherited": ("pgd", ["inherit=false"]),
    "pgd no gce no augmentation": ("pgd", ["alpha=none", "augment=false"]),
    "pgd inf": ("pgd", ["p=inf", "bias=true"]),
    "pgd squared": ("pgd", ["power=2"]),
    "guarded": ("guarded", ["strength=1"]),
    "vanilla double": ("vanilla", ["length=2"]),
    "lff gradient": ("lff", ["score=gradient"]),
    "lff of one average": ("lff", ["score=gradient", "relative=false"]),
    "jtt of the training": ("jtt", ["error_set=train"]),
    "disen late": ("disen", ["swap_from=0.5"]),
    "bpa averaged": ("bpa", ["average=avg", "history=true", "every=2"]),
    "cnc by features": ("cnc", ["slice_by=features"]),
    "cnc in eval mode": ("cnc", ["frozen_statistics=true"]),
    "eiil": ("eiil", ["steps=600", "lr=0.01"]),  # as far as 6,000 steps of 0.001
    "eiil irm": ("eiil", ["steps=600", "lr=0.01", "learner=irm"]),
    "george": ("george", ["reduce=pca", "largest_k=3"]),
    "cells amplified": ("cells", ["amplify=1", "share=0.5", "cells=error"]),
    "george kmeans": ("george", ["reduce=none", "cluster=kmeans", "largest_k=3"]),
}
VECTORS = {"vanilla": set(), "pgd": {"score"}, "lff": {"weight"}, "jtt": {"error"}, "disen": {"weight"}}
VECTORS["guarded"] = {"score", "probability", "trust"}
VECTORS |= {"bpa": {"cluster", "weight"}, "cnc": {"slice", "error"}, "eiil": {"environment"}, "george": {"cluster"}}
VECTORS |= {name: {"score"} for name in ("dpr", "cells", "bam", "groupdro", "rwg")}
VECTORS |= {
    "xrm": {"score", "flip"},
    "ula": {"error"},
    "afr": {"weight"},
    "dfr": {"weight"},
    "neurontune": {"held_out"},
}


@pytest.fixture(autouse=True)
def without_umap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "umap", None)  # slow to start; PCA does


def first_groups(benchmark: Benchmark) -> torch.Tensor:
    """(192,) the groups of the tiny task, which only methods that declare it are given."""
    groups = benchmark.truth["train"].groups(benchmark.train.y)
    assert groups is not None
    return groups[:192]


def method_of(variant: str) -> Any:
    method, changes = VARIANTS[variant]
    return new_spec("digits", method, epochs=1, changes=changes).new_method()


@pytest.mark.parametrize("variant", VARIANTS)
def test_method(variant: str, tiny_task: Callable[..., Task], benchmark_digits: Benchmark, tmp_path: Path) -> None:
    """What comes out; the same again, also from a run that was killed twice, and something else of another seed."""
    method, count, recipe = method_of(variant), Kill(), Recipe(epochs=2, batch_size=64, lr=0.05)
    tiny_task = partial(tiny_task, groups=first_groups(benchmark_digits))
    task = tiny_task(recipe=recipe)
    with listening(count):
        model = method.fit(task)
    logits = predict(model, benchmark_digits.valid.batches(64))
    assert logits.shape == (130, 10) and torch.isfinite(logits).all()
    assert not model.training
    find_head(model, benchmark_digits.valid.batch(torch.arange(2)).x)
    assert task.journal.seconds and all(seconds > 0 for seconds in task.journal.seconds.values())
    assert {row["stage"] for row in task.journal.history} <= set(task.journal.seconds)
    assert task.journal.vectors.keys() == VECTORS[VARIANTS[variant][0]]
    assert all(len(vector) == 192 for vector in task.journal.vectors.values())
    assert not same(model, method.fit(tiny_task(recipe=recipe, seed=1))), "the seed changes nothing"
    for step in (5, count.steps - 4):  # in the second epoch, then in the last one; an epoch has three steps
        with pytest.raises(Killed), listening(Kill(step)):
            method.fit(tiny_task(recipe=recipe, checkpoints=Checkpoints(tmp_path)))
    rest, again = Kill(), tiny_task(recipe=recipe, checkpoints=Checkpoints(tmp_path))
    with listening(rest):
        assert same(model, method.fit(again)), "a run that was killed and resumed ended with other weights"
    assert rest.steps == 3, "only the epoch that was cut short runs again"
    for name, vector in task.journal.vectors.items():
        assert np.array_equal(vector, again.journal.vectors[name]), name
    told = [[{**row, "seconds": 0} for row in each.journal.history] for each in (task, again)]
    assert told[0] == told[1]


USE_GROUPS = [name for name in METHODS if find_method(name).uses_groups]
# Their promises are those of a method beside them, which is tested always: the long form of the suite has them too.
LONG = {"neurontune", "bam", "dfr"}


def each_method(names: Iterable[str], long: Container[str]) -> list[Any]:
    """Parameters of a test, some of them for the long form of the suite only."""
    return [pytest.param(name, marks=[pytest.mark.long] * (name in long)) for name in names]


def test_methods_that_use_group_labels_say_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, benchmark_digits: Benchmark
) -> None:
    """By their class, in every result and by their name in tables; without bias labels they stop with one line."""
    assert [name for name in METHODS if method_name(name).endswith(" (group labels)")] == USE_GROUPS
    assert method_name("Mine", uses_groups=True) == "Mine (group labels)"
    monkeypatch.setattr(experiment, "load", lambda *_: benchmark_digits)
    assert experiment.run(new_spec("digits", "rwg", epochs=1), tmp_path).result["uses_groups"]
    blind = {part: Truth(t.target, torch.full_like(t.bias, -1)) for part, t in benchmark_digits.truth.items()}
    monkeypatch.setattr(experiment, "load", lambda *_: replace(benchmark_digits, truth=blind))
    for number, name in enumerate(USE_GROUPS):
        with pytest.raises(Problem, match="learns from group labels, and here are none"):
            experiment.run(new_spec("digits", name, epochs=1), tmp_path / str(number))


@pytest.mark.parametrize("method", each_method((name for name in METHODS if name not in USE_GROUPS), LONG))
def test_bias_labels_have_no_influence(
    method: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, benchmark_digits: Benchmark
) -> None:
    """The same run with the true bias labels and with all of them unknown: the same weights, bit for bit."""
    truth = {**benchmark_digits.truth}
    truth["train"] = Truth(truth["train"].target[:128], truth["train"].bias[:128])
    small = replace(benchmark_digits, train=benchmark_digits.train.subset(torch.arange(128)), truth=truth)
    blind = replace(small, truth={part: Truth(t.target, torch.full_like(t.bias, -1)) for part, t in truth.items()})
    found = []
    for number, benchmark in enumerate((small, blind)):
        monkeypatch.setattr(experiment, "load", lambda *_, kept=benchmark: kept)
        done = experiment.run(new_spec("digits", method, epochs=1), tmp_path / str(number))
        found.append(read_tensors(done.folder / "model.safetensors").tensors)
    assert all(torch.equal(found[0][name], tensor) for name, tensor in found[1].items())
    assert done.result["rows"]["conflicting"] is None
    assert "uses_groups" not in done.result


@pytest.mark.parametrize("name", METHODS)
def test_fields_keep_to_their_bounds(name: str) -> None:
    """Just inside is taken, just outside, infinite and not a number are refused in one line that names the field."""
    kind = find_method(name)
    for each in dataclasses.fields(kind):
        limits, choices, inside = each.metadata.get("limits", {}), each.metadata.get("choices", ()), []
        outside = [float("nan"), float("inf")] * bool(limits) + ["other"] * bool(choices)
        for limit, bound in limits.items():
            (inside if limit in ("at_least", "at_most") else outside).append(bound)
            outside.append(bound + (0.5 if limit in ("below", "at_most") else -0.5))
        for value in (each.default, *inside, *choices):
            if (each.name, value) != ("reduce", "none"):
                kind(**{each.name: value})
        for value in outside:
            with pytest.raises(
                Misuse, match=f"^{each.name} must be a finite number|^unknown {each.name} 'other'; known"
            ):
                kind(**{each.name: value})


@pytest.mark.parametrize("change", [{"joint": True, "use": "reweight"}, {"parameters": "all", "bias": True}, {"p": 0}])
def test_variants_of_pgd_that_do_not_go_together(change: dict[str, object]) -> None:
    with pytest.raises(Misuse):
        find_method("pgd")(**change)


@pytest.mark.parametrize("name", each_method(METHODS, {*LONG, "afr", "cells", "dpr", "groupdro", "rwg", "ula", "xrm"}))
def test_augment_off_is_the_task_without_augmentation(
    name: str, tiny_task: Callable[..., Task], benchmark_digits: Benchmark
) -> None:
    groups = first_groups(benchmark_digits)
    model = find_method(name)(augment=False).fit(tiny_task(groups=groups))
    assert same(model, find_method(name)().fit(tiny_task(augment=None, groups=groups)))


def test_step_three_starts_from_step_one(tiny_task: Callable[..., Task], monkeypatch: pytest.MonkeyPatch) -> None:
    """The debiased model begins with the biased one's weights and BatchNorm statistics, all else is fresh."""
    seen: list[tuple[str, nn.Module, bool, float, nn.Module]] = []
    original = engine.run_epoch

    def watched(objective, optimizer, stage, sampler, epoch, advance):  # type: ignore[no-untyped-def]
        start, fresh, rate = copy.deepcopy(objective.model), not optimizer.state, stage.recipe.learning_rate(0, 3)
        row = original(objective, optimizer, stage, sampler, epoch, advance)
        seen.append((stage.name, start, fresh, rate, copy.deepcopy(objective.model)))
        return row

    monkeypatch.setattr(engine, "run_epoch", watched)
    find_method("pgd")().fit(tiny_task())
    (first, _, _, rate, end), (second, start, fresh, again, _) = seen
    assert (first, second) == ("biased", "debiased")
    assert same(start, end) and fresh and rate == again


def test_a_stage_that_two_runs_share_is_trained_once(tiny_task: Callable[..., Task], tmp_path: Path) -> None:
    stages: list[str] = []

    def count(what: str, _done: int, _total: int | None, step: int, _unit: str) -> None:
        stages.extend([what] * (not step))

    with listening(count):
        for change in ({"p": 1}, {"p": 2}, {"alpha": 0.5}):
            find_method("pgd")(**change).fit(tiny_task(checkpoints=Checkpoints(tmp_path)))
    assert stages == ["biased", "debiased", "debiased", "biased", "debiased"], "another alpha, another biased model"


def test_the_joint_variant_shares_no_stage(tiny_task: Callable[..., Task], tmp_path: Path) -> None:
    """Whatever other runs left in the store, finished or cut short, a joint run ends as it does alone."""
    joint, recipe = find_method("pgd")(joint=True), Recipe(epochs=3, batch_size=64, lr=0.05)
    alone = joint.fit(tiny_task(recipe=recipe))
    find_method("pgd")().fit(tiny_task(recipe=recipe, checkpoints=Checkpoints(tmp_path)))
    with pytest.raises(Killed), listening(Kill(11)):
        find_method("pgd")(joint=True, p=1).fit(tiny_task(recipe=recipe, checkpoints=Checkpoints(tmp_path)))
    task = tiny_task(recipe=recipe, checkpoints=Checkpoints(tmp_path))
    assert same(alone, joint.fit(task))
    assert all(task.journal.stages.values())
