"""What every method promises: shapes, same seed same weights, bias labels without influence, stage times noted."""

import dataclasses
from collections.abc import Callable

import pytest
import torch

from debiaser.data.split import Benchmark, Truth
from debiaser.errors import Misuse
from debiaser.learn.checkpoint import Checkpoints
from debiaser.learn.forward import find_head, predict
from debiaser.learn.recipe import Recipe
from debiaser.methods import METHODS, find_method
from debiaser.methods.task import Task
from debiaser.paper.spec import Spec, new_spec
from debiaser.progress import listening

# Variants of PGD that the paper's studies need are methods of their own here.
VARIANTS = {
    **{name: (name, []) for name in METHODS},
    "pgd joint": ("pgd", ["joint=true"]),
    "pgd reweight": ("pgd", ["use=reweight"]),
    "pgd loss": ("pgd", ["score=loss"]),
    "pgd residual": ("pgd", ["score=residual"]),
    "pgd augmented scores": ("pgd", ["score_on=augmented"]),
    "pgd not inherited": ("pgd", ["inherit=false"]),
    "pgd no gce no augmentation": ("pgd", ["alpha=none", "augment=false"]),
    "pgd inf": ("pgd", ["p=inf", "bias=true"]),
    "pgd squared": ("pgd", ["power=2"]),
    "vanilla double": ("vanilla", ["length=2"]),
}


def spec_of(variant: str) -> Spec:
    method, changes = VARIANTS[variant]
    return new_spec("digits", method, epochs=1, changes=changes)


def weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def same(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> bool:
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


def vectors(task: Task) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(vector) for name, vector in task.journal.vectors.items()}


@pytest.mark.parametrize("variant", VARIANTS)
def test_method(variant: str, tiny_task: Callable[..., Task], benchmark_digits: Benchmark) -> None:
    method = spec_of(variant).new_method()
    task = tiny_task()
    model = method.fit(task)
    logits = predict(model, benchmark_digits.valid.batches(64))
    assert logits.shape == (130, 10) and torch.isfinite(logits).all()
    assert not model.training
    find_head(model, benchmark_digits.valid.batch(torch.arange(2)).x)
    assert task.journal.seconds and all(seconds > 0 for seconds in task.journal.seconds.values())
    assert {row["stage"] for row in task.journal.history} <= set(task.journal.seconds)
    assert all(len(vector) == 192 for vector in task.journal.vectors.values())
    repeated = tiny_task()
    assert same(weights(model), weights(method.fit(repeated))), "the same seed gave other weights"
    assert same(vectors(task), vectors(repeated)), "the same seed gave other vectors"
    other = method.fit(tiny_task(seed=1))
    assert not same(weights(model), weights(other)), "the seed changes nothing"


@pytest.mark.parametrize("method", METHODS)
def test_bias_labels_have_no_influence(
    method: str, monkeypatch: pytest.MonkeyPatch, tmp_path: object, benchmark_digits: Benchmark
) -> None:
    """The same run with the true bias labels and with all of them unknown: the same weights, bit for bit."""
    from dataclasses import replace
    from pathlib import Path

    from debiaser.learn.checkpoint import read_tensors
    from debiaser.paper import experiment

    small = replace(
        benchmark_digits,
        train=benchmark_digits.train.subset(torch.arange(128)),
        truth={
            part: Truth(
                truth.target[:128] if part == "train" else truth.target,
                truth.bias[:128] if part == "train" else truth.bias,
            )
            for part, truth in benchmark_digits.truth.items()
        },
    )
    blind = replace(
        small, truth={part: Truth(t.target, torch.full_like(t.bias, -1)) for part, t in small.truth.items()}
    )
    found = []
    for number, benchmark in enumerate((small, blind)):
        monkeypatch.setattr(experiment, "load", lambda *_, kept=benchmark: kept)
        done = experiment.run(new_spec("digits", method, epochs=1), Path(str(tmp_path)) / str(number))
        found.append(read_tensors(done.folder / "model.safetensors").tensors)
    assert same(*found)
    assert done.result["rows"]["conflicting"] is None


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


@pytest.mark.parametrize("name", METHODS)
def test_augment_off_is_the_task_without_augmentation(name: str, tiny_task: Callable[..., Task]) -> None:
    model = find_method(name)(augment=False).fit(tiny_task())
    assert same(weights(model), weights(find_method(name)().fit(tiny_task(augment=None))))


def test_step_three_starts_from_step_one(tiny_task: Callable[..., Task], benchmark_digits: Benchmark) -> None:
    """The debiased model begins with the biased one's weights and BatchNorm statistics, all else is fresh."""
    from debiaser.learn import engine

    starts: list[tuple[str, dict[str, torch.Tensor], dict[object, object], float]] = []
    original = engine.run_epoch

    def watched(objective, optimizer, stage, sampler, epoch, advance):  # type: ignore[no-untyped-def]
        starts.append((stage.name, weights(objective.model), dict(optimizer.state), stage.recipe.learning_rate(0, 3)))
        row = original(objective, optimizer, stage, sampler, epoch, advance)
        ends[stage.name] = weights(objective.model)
        return row

    ends: dict[str, dict[str, torch.Tensor]] = {}
    engine.run_epoch = watched
    try:
        find_method("pgd")().fit(tiny_task())
    finally:
        engine.run_epoch = original
    (first, _, _, rate), (second, start, state, again) = starts
    assert (first, second) == ("biased", "debiased")
    assert same(start, ends["biased"])
    assert not state and rate == again


def test_a_stage_that_two_runs_share_is_trained_once(tiny_task: Callable[..., Task], tmp_path: object) -> None:
    from pathlib import Path

    stages: list[str] = []

    def count(what: str, _done: int, _total: int | None, step: int, _unit: str) -> None:
        if not step:
            stages.append(what)

    folder = Path(str(tmp_path))
    with listening(count):
        for p in (1, 2):
            find_method("pgd")(p=p).fit(tiny_task(checkpoints=Checkpoints(folder)))
        assert stages == ["biased", "debiased", "debiased"]
        find_method("pgd")(alpha=0.5).fit(tiny_task(checkpoints=Checkpoints(folder)))
    assert stages[3:] == ["biased", "debiased"], "another alpha is another biased model"


def test_the_joint_variant_shares_no_stage(tiny_task: Callable[..., Task], tmp_path: object) -> None:
    """Whatever other runs left in the store, finished or cut short, a joint run ends as it does alone."""
    from pathlib import Path

    from kills import Kill, KillAt

    folder, joint = Path(str(tmp_path)), find_method("pgd")(joint=True)
    recipe = Recipe(epochs=3, batch_size=64, lr=0.05)
    alone = weights(joint.fit(tiny_task(recipe=recipe)))
    find_method("pgd")().fit(tiny_task(recipe=recipe, checkpoints=Checkpoints(folder)))
    with pytest.raises(Kill), listening(KillAt(11)):
        other = tiny_task(recipe=recipe, checkpoints=Checkpoints(folder))
        find_method("pgd")(joint=True, p=1).fit(other)
    task = tiny_task(recipe=recipe, checkpoints=Checkpoints(folder))
    assert same(alone, weights(joint.fit(task)))
    assert all(task.journal.stages.values())
