"""Guarded PGD: capped draws, a null world, doubt of labels, the comparison, and input that is too small."""

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from debiaser import PGD, GuardedPGD, Recipe, debias
from debiaser.data.split import Split
from debiaser.errors import DebiasingWarning
from debiaser.integrations.sklearn import DebiasedClassifier
from debiaser.learn.guard import (
    CrossFitted,
    below_chance,
    choose_strength,
    compare,
    guarded_shares,
    mean_cell_gain,
    null_labels,
    trust_in_labels,
)
from debiaser.methods.guarded import halves
from debiaser.methods.task import Task

STREAM = np.random.default_rng
FAST = Recipe(epochs=20, batch_size=64, optimizer="adamw", lr=0.01, weight_decay=1e-4)


def two_features(n: int, noise: float, rho: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    stream = STREAM(seed)
    y = stream.integers(0, 2, n)
    shown = np.where(stream.random(n) < rho, 1 - y, y)
    return np.stack([y + noise * stream.standard_normal(n), shown + 0.1 * stream.standard_normal(n)], 1), y, shown


@pytest.mark.parametrize("strength", [0.0, 0.5, 1.0])
def test_shares_by_their_definition(strength: float) -> None:
    """Classes are drawn alike; of the draws of each of three, misclassified samples get from their own share to 2/3."""
    stream = STREAM(0)
    y, scores = np.repeat([0, 1, 2], [100, 40, 10]), stream.random(150) + 0.1
    misclassified = stream.random(150) < 0.2
    shares = guarded_shares(y, misclassified, scores, strength)
    for label in range(3):
        mine = y == label
        own = misclassified[mine].mean()
        assert np.isclose(shares[mine].sum(), 1 / 3)
        assert np.isclose(3 * shares[mine & misclassified].sum(), own + strength * (2 / 3 - own))
        one, two = np.flatnonzero(mine & ~misclassified)[:2]
        assert np.isclose(shares[one] / shares[two], (scores[one] / scores[two]) ** (strength / 2)), "tempered"


@pytest.mark.parametrize("classes", [2, 10])
def test_at_full_strength_the_biased_model_tells_nothing(classes: int) -> None:
    """Whatever it answers, every label is drawn equally often with it: its errors are spread over all other classes."""
    y, answer = (each.ravel() for each in np.indices((classes, classes)))
    times = np.where(y == answer, 95, 5)
    y, answer = np.repeat(y, times), np.repeat(answer, times)
    shares = guarded_shares(y, y != answer, np.where(y == answer, 0.1, 3.0))
    drawn = np.bincount(classes * answer + y, shares, classes**2)
    assert np.allclose(drawn, 1 / classes**2)


def test_at_most_half_also_where_most_are_misclassified() -> None:
    misclassified = np.arange(10) < 8
    shares = guarded_shares(np.zeros(10, int), misclassified, np.ones(10))
    assert np.isclose(shares[misclassified].sum(), 0.5)


@pytest.mark.parametrize("wrong", [False, True])
def test_a_class_with_none_or_nothing_but_misclassified_samples_is_drawn_evenly(wrong: bool) -> None:
    y = np.repeat([0, 1], 5)
    misclassified = np.where(y == 0, wrong, np.arange(10) == 9)
    shares = guarded_shares(y, misclassified, np.arange(1.0, 11.0))
    assert np.allclose(shares[:5], 0.1) and np.isclose(shares[5:].sum(), 0.5)


def test_samples_of_score_0_are_not_drawn_and_trust_counts() -> None:
    y, scores = np.zeros(6, int), np.array([0.0, 1, 1, 1, 1, 1])
    misclassified = np.array([True, True, True, False, False, False])
    shares = guarded_shares(y, misclassified, scores, trust=np.array([1, 1, 0.05, 1, 1, 1]))
    assert shares[0] == 0 and np.isclose(shares[2] / shares[1], 0.05) and np.isclose(shares.sum(), 1)


def test_tempered_draws_do_not_change_the_rule_of_a_model_that_knows_all() -> None:
    """Weights r^a, a below 1, of a calibrated model multiply its logits by 1 - a: no answer changes; plain PGD's
    leave chance."""
    p = np.linspace(0.01, 0.99, 99)
    for power, slope in ((0.5, 0.5), (1.0, 0.0)):
        odds = p * (1 - p) ** power / ((1 - p) * p**power)
        assert np.allclose(np.log(odds), slope * np.log(p / (1 - p)))


def test_labels_of_a_null_world_come_from_the_calibrated_probabilities() -> None:
    stream = STREAM(0)
    chance = stream.random(20_000)
    y = (stream.random(20_000) < chance).astype(int)
    sharper = 1 / (1 + ((1 - chance) / chance) ** 3)  # three times too sure
    inside = np.arange(20_000) < 19_000
    drawn = null_labels(np.stack([1 - sharper, sharper], 1), y, inside, stream)
    for low in (0.1, 0.5, 0.8):
        part = inside & (chance > low) & (chance < low + 0.1)
        assert abs(drawn[part].mean() - chance[part].mean()) < 0.04
    assert (drawn[~inside] == y[~inside]).all() and (drawn != y).mean() > 0.2


def test_gain_in_mean_cell_accuracy() -> None:
    y, misclassified = np.repeat([0, 1], 50), np.tile(np.arange(50) < 10, 2)
    before, after = ~misclassified, ~misclassified | (np.arange(100) % 2 == 0)
    gain, error = mean_cell_gain(before, after, y, misclassified)
    assert np.isclose(gain, 25) and 0 < error < 10, "half of the misclassified, which are half of the cells"
    assert np.isnan(mean_cell_gain(before, after, y, np.arange(100) < 3)[0]), "three samples tell nothing"
    few = np.isin(np.arange(100), [0, 1, 2, 50, 51, 52])
    assert mean_cell_gain(~few, np.ones(100, bool), y, few)[0] == 50, "cells of a handful are put together"


def crossed(x: np.ndarray, y: np.ndarray, probability: np.ndarray) -> CrossFitted:
    half = np.arange(len(y)) % 2
    asked, learnt = [half != 0, half != 1], [half == 0, half == 1]
    return CrossFitted(y, [x, x], asked, learnt, probability, np.ones(len(y)), np.ones(len(y)))


@pytest.mark.parametrize("core", [True, False])
def test_strength_is_chosen_beyond_the_null_world(core: bool) -> None:
    """The biased model knows the shortcut alone; there is another feature that tells the label, or only noise."""
    x, y, shown = two_features(3000, 0.4, 0.05)
    if not core:
        x[:, 0] = STREAM(1).standard_normal(3000)
    chance = np.where(shown[:, None] == np.arange(2), 0.95, 0.05)
    strength, told = choose_strength(crossed(x, y, chance), STREAM(2))
    assert (strength > 0) == core and "beyond a null world" in told


def test_too_few_misclassified_samples_choose_nothing() -> None:
    x, y, _ = two_features(200, 0.2, 0.0)
    strength, told = choose_strength(crossed(x, y, np.eye(2)[y] * 0.98 + 0.01), STREAM(0))
    assert strength == 0 and "too few" in told


def test_wrong_labels_are_trusted_less_than_conflicting_ones() -> None:
    x, y, shown = two_features(4000, 0.2, 0.05)
    flipped = STREAM(3).random(4000) < 0.05
    labels = np.where(flipped, 1 - y, y)
    biased = np.where(shown[:, None] == np.arange(2), 0.9, 0.1)
    judge = np.where((x[:, :1] > 0.5) == np.arange(2), 0.8, 0.2)  # has learnt the other feature
    trust, wrong = trust_in_labels(judge, biased, labels)
    conflicting, misclassified = (shown != y) & ~flipped, biased.argmax(1) != labels
    assert trust[conflicting].mean() > 0.7 and trust[flipped & (shown == y)].mean() < 0.4
    assert (trust[~misclassified] == 1).all() and trust[misclassified].max() == 1
    assert abs(wrong - flipped[misclassified].mean()) < 0.1
    assert trust_in_labels(judge, np.eye(2)[labels], labels) == (pytest.approx(np.ones(4000)), 0)


def test_a_label_that_is_not_trusted_hardly_counts_in_a_cell() -> None:
    """Weights of ones and zeros are the same as leaving the samples out."""
    y, stream = np.repeat([0, 1], 200), STREAM(4)
    misclassified, before, after, trusted = (stream.random((4, 400)) < [[0.3], [0.5], [0.7], [0.6]]).astype(bool)
    rest = [each[trusted] for each in (before, after, y, misclassified)]
    assert np.allclose(mean_cell_gain(before, after, y, misclassified, trusted.astype(float)), mean_cell_gain(*rest))


def test_the_comparison_says_why_a_model_must_not_be_used() -> None:
    y = np.repeat([0, 1], 50)
    fine = compare(y, y, y, None, 2, 25)
    assert not fine.danger and not fine.helped, "nothing was gained"
    inverted = compare(y, 1 - y, y, None, 2, 25)
    assert inverted.below_chance == (0, 1) and "below chance in class 0 on 100 samples" in inverted.danger
    costly = compare(y, np.where(np.arange(100) % 3, y, 1 - y), y, None, 2, 25)
    assert "loses 34 points" in costly.danger
    assert not compare(1 - y, 1 - y, y, None, 2, 25).danger, "vanilla is no better"
    with pytest.warns(DebiasingWarning, match="vanilla model is used instead") as told:
        inverted.warn()
    assert told[0].message.numbers["cost"] == 100  # type: ignore[union-attr]
    assert below_chance(np.zeros(4, bool), np.zeros(4, int), 2) == (), "four samples tell nothing"


def network() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 2)).double()


def test_what_comes_out_of_debias() -> None:
    """Some samples are held out to compare networks, both of which are kept; scores are of all samples."""
    x, y, shown = two_features(500, 0.9, 0.05)
    data = TensorDataset(torch.tensor(x), torch.tensor(y))
    done = debias(network(), data, GuardedPGD(strength=1), replace(FAST, epochs=10))
    assert done.vanilla is not None and done.decisions and done.scores is not None and done.probabilities is not None
    assert len(done.scores) == len(done.probabilities) == 500 and (done.probabilities == 0).sum() == 100
    assert done.scores[shown != y].mean() > 2 * done.scores[shown == y].mean()
    assert done.model is (done.debiased if done.comparison and done.comparison.helped else done.vanilla)


def test_plain_pgd_that_inverts_the_rule_is_told() -> None:
    x, y, _ = two_features(1500, 0.4, 0.5)
    data = TensorDataset(torch.tensor(x), torch.tensor(y))
    with pytest.warns(DebiasingWarning, match="below chance"):
        done = debias(network(), data, PGD(), FAST)
    assert done.model is done.debiased and done.vanilla is not None and done.comparison is not None
    assert min(done.comparison.debiased) < 50 < min(done.comparison.vanilla)


@pytest.mark.parametrize("labels", [np.arange(12) % 2, np.zeros(40, int)])
def test_too_few_samples_or_one_class_give_vanilla_and_say_so(labels: np.ndarray, caplog: Any) -> None:
    x = torch.randn(len(labels), 2, dtype=torch.float64)
    done = debias(network(), TensorDataset(x, torch.tensor(labels)), recipe=Recipe(epochs=1, batch_size=8))
    assert done.model is done.vanilla and done.debiased is None
    assert "too few to hold any out" in done.decisions[0] and "vanilla" in caplog.text


def test_a_tiny_class_is_no_obstacle() -> None:
    x, y, _ = two_features(120, 0.2, 0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        model = DebiasedClassifier(epochs=2, random_state=0).fit(x, np.where(np.arange(120) == 7, 2, y))
    assert list(model.classes_) == [0, 1, 2] and model.vanilla_ is not None


def test_halves_hold_the_same_share_of_every_class_out() -> None:
    y = np.repeat([0, 1], [100, 20])
    half = halves(y, 0.2, STREAM(0))
    assert [np.bincount(half[y == each] + 1).tolist() for each in (0, 1)] == [[20, 40, 40], [4, 8, 8]]


def test_a_strength_that_is_set_is_taken(tiny_task: Callable[..., Task]) -> None:
    """The contract tests train all of it; here it is vanilla, and nothing is compared."""
    task = tiny_task()
    GuardedPGD(strength=0).fit(task)
    assert (task.journal.vectors["probability"] > 0).all(), "nothing is held out where nothing is compared"
    assert task.journal.comparison is None and task.journal.models.keys() == {"vanilla"}
    assert task.journal.decisions == ["strength 0: as it was set"]


def test_wrong_labels_are_told_from_conflicting_ones_that_they_outnumber() -> None:
    """Four classes, shown by two blocks of features; a tenth of the labels is wrong, 2% go against the easy block."""
    stream, n = STREAM(5), 6000
    target = stream.integers(0, 4, n)
    conflicting = stream.random(n) < 0.02
    shown = np.where(conflicting, (target + stream.integers(1, 4, n)) % 4, target)
    flipped = stream.random(n) < 0.1
    y = np.where(flipped, (target + stream.integers(1, 4, n)) % 4, target)
    x = np.concatenate([3 * np.eye(4)[shown], np.eye(4)[target]], 1) + 0.2 * stream.standard_normal((n, 8))

    def new_model(seed: int) -> torch.nn.Module:
        torch.manual_seed(seed)
        return torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4)).double()

    task = Task(Split.of(torch.tensor(x), torch.tensor(y)), new_model, FAST)
    GuardedPGD(strength=1).fit(task)
    trust, inside = task.journal.vectors["trust"], task.journal.vectors["probability"] > 0
    right, wrong = (trust[inside & each].mean() for each in (conflicting & ~flipped, flipped & ~conflicting))
    assert right > 10 * wrong and any("look wrong" in each for each in task.journal.decisions)
