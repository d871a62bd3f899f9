"""A few marks make groups of all samples, and last layers that make groups equal do what their definitions say."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from debiaser.auditing.candidates import World
from debiaser.auditing.crossval import Job, fit_last_layer
from debiaser.auditing.groups import Propagation, by_shares, column_groups, propagate_marks
from debiaser.auditing.inputs import Material
from debiaser.auditing.marks import choose_to_mark
from debiaser.data.split import Split
from debiaser.errors import Problem
from debiaser.learn.guard import calibrated
from debiaser.learn.last_layer import LogisticFit, equal_groups
from debiaser.learn.recipe import Recipe

N = 600


def biased_data(width: int, agreeing: float = 0.9, seed: int = 0) -> tuple[np.ndarray, ...]:
    """Noise as features (N, width), labels, a shortcut's value that goes with the label in this share, and luck."""
    stream, y = np.random.default_rng(seed), np.arange(N) % 2
    value = np.where(stream.random(N) < agreeing, y, 1 - y)
    return stream.normal(size=(N, width)).astype(np.float32), y, value, stream.random(N)


@pytest.fixture(scope="module")
def shortcut() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features in which the shortcut is easier to see than the label and goes with it in nine of ten samples."""
    features, y, value, _ = biased_data(20)
    features[:, 0] += 1.2 * (2 * y - 1)
    features[:, 1] += 3 * (2 * value - 1)
    return 5 + 2 * features, y, value


def examined_of(features: np.ndarray, y: np.ndarray, value: np.ndarray, held_out: int = 0) -> Any:
    """As much of an examination as marks need: a biased model that answers the shortcut's value."""
    place = np.where(np.arange(N) < N - held_out, np.arange(N), -1)
    material = SimpleNamespace(architecture="mlp")
    biased = SimpleNamespace(probability=np.eye(2)[value] * 0.8 + 0.1)
    return SimpleNamespace(
        trainer=SimpleNamespace(y=y, seed=0, material=material, features=lambda *_: [features]),
        plain=SimpleNamespace(keys=(("one",),)),
        subject=SimpleNamespace(own=SimpleNamespace(classes=("landbird", "waterbird")), whole=False),
        place=place,
        pool=np.flatnonzero(place >= 0),
        biased=biased,
    )


def accuracies(layer: Any, features: np.ndarray, y: np.ndarray, value: np.ndarray) -> np.ndarray:
    right = (features @ layer[0].T + layer[1]).argmax(1) == y
    return np.array([right[(y == a) & (value == b)].mean() for a in (0, 1) for b in (0, 1)])


def test_sixty_marks_are_propagated_to_all_samples(shortcut: Any) -> None:
    _features, _y, value = shortcut
    examined, words = examined_of(*shortcut, held_out=100), np.array(["land", "water"])
    marks = {int(row): str(words[value[row]]) for row in range(0, N, 10)}
    groups = propagate_marks(examined, marks)
    assert groups.values == ("land", "water") and (groups.value == value).mean() > 0.97
    assert groups.known.sum() == 60 and groups.flag == "uses marks"
    told = groups.propagation
    assert told["marked"] == 50, "marks of held-out samples are not learnt from"
    assert told["accuracy"]["low"] < told["accuracy"]["value"] <= 100 and told["accuracy"]["value"] > 90
    assert sum(cell["n"] for cell in told["groups"]) == 500 and len(told["groups"]) == 4
    assert "50 marks (10 more are on held-out samples)" in told["sentence"] and told["curve"][-1][0] == 50


def test_a_value_is_given_to_as_many_samples_as_random_marks_say() -> None:
    """Marks by score abound in what is rare: without the random half a rare value would be given to many samples."""
    features, y, value, luck = biased_data(40, 0.95, seed=3)
    features[:, 1] += 0.8 * (2 * value - 1)
    score = np.where(value == y, 0.0, 1.0) + luck
    examined, words = examined_of(features, y, value), np.array(["land", "water"])
    rows, _ = choose_to_mark(y, score, np.arange(N), (), 60, 0)
    random = propagate_marks(examined, {int(row): str(words[value[row]]) for row in rows}).value
    by_score = np.array([row for row in rows if score[row] >= 1 or row % 3])
    without = Propagation([features], y, {}).values(by_score, value[by_score])
    rare = {"all": random != y, "few": without != y}
    assert (value != y).sum() < rare["all"].sum() < 2.5 * (value != y).sum() < rare["few"].sum()
    precision = {name: (value != y)[each].mean() for name, each in rare.items()}
    assert precision["all"] > 1.5 * precision["few"]


def test_shares_are_met_the_rarest_first() -> None:
    chances = np.array([[0.5, 0.3, 0.2], [0.5, 0.2, 0.3], [0.4, 0.5, 0.1], [0.9, 0.05, 0.05]])
    assert by_shares(chances, np.array([0.5, 0.25, 0.25])).tolist() == [0, 2, 1, 0]
    assert by_shares(chances, np.array([1.0, 0.0, 0.0])).tolist() == [0, 0, 0, 0]


def test_aligned_and_conflicting_are_values_of_the_shortcut(shortcut: Any) -> None:
    _, y, value = shortcut
    marks = {int(row): "aligned" if y[row] == value[row] else "conflicting" for row in range(0, N, 8)}
    groups = propagate_marks(examined_of(*shortcut), {**marks, 1: "mislabelled"})
    assert groups.values == ("as in 'landbird'", "as in 'waterbird'") and (groups.value == value).mean() > 0.97
    assert not groups.known[1]


def test_marks_that_make_no_groups_are_told(shortcut: Any) -> None:
    examined = examined_of(*shortcut)
    with pytest.raises(Problem, match="all 20 say 'water'"):
        propagate_marks(examined, dict.fromkeys(range(20), "water"))
    with pytest.raises(Problem, match="all are on held-out samples"):
        propagate_marks(examined_of(*shortcut, held_out=2), {N - 1: "water", N - 2: "land"})
    with pytest.raises(Problem, match="all say mislabelled"):
        propagate_marks(examined, dict.fromkeys(range(20), "mislabelled"))
    with pytest.raises(Problem, match="they add nothing to the label"):
        propagate_marks(examined, {0: "land", 1: "water", 2: "land", 3: "water"})
    few = {0: "land", 1: "water", 2: "water", 3: "land", 4: "typo"}
    assert "More marks would help" in propagate_marks(examined, few).propagation["more"]
    stream = np.random.default_rng(1)
    anything = {int(row): str(stream.choice(["a", "b"])) for row in range(0, N, 5)}
    with pytest.raises(Problem, match="features barely separate"):
        propagate_marks(examined, anything)


def test_values_are_not_read_off_the_label() -> None:
    """Features that tell the label better than the value: marks of each class x value weigh the same."""
    features, y, value, luck = biased_data(50)
    features[:, :10] += 2.0 * (2 * y - 1)[:, None]
    features[:, 10:13] += 1.0 * (2 * value - 1)[:, None]
    score = np.where(value == y, 0.0, 0.5) + luck
    rows, _ = choose_to_mark(y, score, np.arange(N), (), 60, 0)
    groups = propagate_marks(examined_of(features, y, value), {int(row): "ab"[value[row]] for row in rows})
    assert (groups.value != y)[value != y].mean() > 0.5


def test_groups_of_a_column() -> None:
    known = column_groups(np.array(["b", "a", "b"]), np.array([0, 0, 1]))
    assert known.values == ("a", "b") and known.flag == "uses group labels"
    assert known.of(np.array([0, 0, 1])).tolist() == [1, 0, 3]
    with pytest.raises(Problem, match="one value in every class"):
        column_groups(np.array(["b", "b", "a"]), np.array([0, 0, 1]))


def test_a_weight_is_as_good_as_so_many_copies(shortcut: Any) -> None:
    features, y, _ = shortcut
    copies = 1 + (np.arange(N) % 3 == 0)
    again = np.repeat(np.arange(N), copies)
    fits = LogisticFit(features, y, 2, 0.1)
    weighted = fits.fit(copies.astype(float))
    other = LogisticFit(features, y, 2, 0.1 * N / copies.sum())
    other.x, other.y = other.x[again], y[again]
    for one, two in zip(weighted, other.fit(), strict=True):
        assert np.allclose(one, two, atol=2e-3)
    assert np.allclose(fits.logits(weighted), features @ weighted[0].T + weighted[1], atol=1e-3)
    assert LogisticFit(features, np.zeros(N, int), 3, 1.0).fit()[1].argmax() == 0, "one class alone is always answered"


def test_equal_groups_raise_the_worst_group(shortcut: Any) -> None:
    features, y, value = shortcut
    group, fits = 2 * y + value, LogisticFit(features, y, 2, 0.01)
    weights = equal_groups(group)
    assert np.bincount(group, weights) == pytest.approx(np.full(4, N))
    assert equal_groups(group, np.where(group == 1, 0.0, 1.0))[group == 1].sum() == 0
    vanilla = accuracies(fits.fit(equal_groups(y)), features, y, value).min()
    for layer in (fits.fit(weights), fits.group_dro(group, 0), fits.balanced_subsets(group, 0)):
        assert accuracies(layer, features, y, value).min() > vanilla + 0.15
    assert np.array_equal(fits.balanced_subsets(group, 0)[0], fits.balanced_subsets(group, 0)[0])


def test_groupdro_helps_a_group_that_is_known_by_heart() -> None:
    """With more features than samples of the rare group its own loss is soon 0; out of fold it is not."""
    stream = np.random.default_rng(0)

    def draw(sizes: list[int]) -> tuple[Any, ...]:
        group = np.repeat(np.arange(4), sizes)
        y, value = group // 2, group % 2
        x = stream.standard_normal((len(group), 150))
        x[:, 0] += 2 * y
        x[:, 1] += 3 * value
        return x.astype(np.float32), y, value

    (x, y, value), new = draw([600, 30, 30, 600]), draw([1000] * 4)
    fits = LogisticFit(x, y, 2, 1.0)
    equal, worst_first = fits.fit(equal_groups(2 * y + value)), fits.group_dro(2 * y + value, 0)
    assert accuracies(worst_first, *new).min() > accuracies(equal, *new).min() + 0.05


def test_in_a_null_world_labels_say_what_the_biased_model_says(shortcut: Any) -> None:
    _, y, value = shortcut
    probability = np.eye(2)[value] * 0.9 + 0.05
    probability[-50:] = np.nan
    score = np.where(np.isnan(probability[:, 0]), np.nan, 3 * np.linalg.norm(probability - np.eye(2)[y], axis=1))
    world = World(y, probability, score, np.ones(N))
    inside = world.inside
    chances = calibrated(probability, y, inside)
    expected = (y == value)[inside].mean()
    assert chances[inside].max(1).mean() == pytest.approx(expected, abs=0.02), "as sure as it is right"
    null = world.null(np.random.default_rng(1))
    assert (null.y == value)[inside].mean() == pytest.approx(expected, abs=0.04)
    assert np.array_equal(null.y[-50:], y[-50:]) and np.isnan(null.score[-50:]).all()
    assert null.score[inside] == pytest.approx(3 * np.linalg.norm(probability - np.eye(2)[null.y], axis=1)[inside])
    weight = world.by_confidence(4.0)
    assert weight[-50:].sum() == 0 and weight[(y != value) & inside].mean() > 10 * weight[(y == value) & inside].mean()


@pytest.mark.parametrize("rule", ["GroupDRO", "balanced subsets"])
def test_a_sample_that_is_marked_mislabelled_is_in_no_group(shortcut: Any, tmp_path: Path, rule: str) -> None:
    features, y, value = shortcut
    np.save(tmp_path / "features.npy", features)
    material, rows = Material(tmp_path / "features.npy", ("a", "b"), "test"), np.arange(300)
    split = Split(torch.from_numpy(y), material.read, ("a", "b"))
    weight = np.where(rows % 10 == 3, 1e-8, 1.0)
    job = Job("vanilla", material, y, rows, rows, Recipe(), weight=weight, rule=rule, groups=(2 * y + value)[:300])
    job = replace(job, strength=0.1)
    rest = np.flatnonzero(weight == 1)
    without = replace(job, train=rest, weight=weight[rest], groups=job.groups[rest])
    one, other = (fit_last_layer(each, tmp_path, split).fc.weight for each in (job, without))
    assert torch.equal(one, other)
    assert not torch.equal(one, fit_last_layer(replace(job, weight=np.ones(300)), tmp_path, split).fc.weight)
