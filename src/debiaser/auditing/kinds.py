"""Conflicting or mislabelled: whether a label that the easy model does not give is one that other rows predict."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from debiaser.auditing.scoring import Desk, OutOfFold, Vector
from debiaser.learn.sampling import effective_sample_size

SHARE = 0.4  # of the draws that go to rows the easy model misses
LEAST = 0.05  # of a row's weight stays, however sure its label is wrong
EFFECTIVE = 0.1  # the draws must rest on at least this share of the rows
SURE = 0.8  # probability from which a row is called mislabelled; under 1 - SURE, conflicting
ROUNDS = 50
KINDS = ("aligned", "conflicting", "mislabelled", "unsure")


@dataclass(frozen=True, eq=False)
class Kinds:
    """Per row: missed by the easy model, probability (s, n) that its label is wrong, and what that makes it."""

    missed: NDArray[np.bool_]
    wrong_by_seed: NDArray[np.float64]
    kind: NDArray[np.str_]
    judge: NDArray[np.int64] | None = None  # (n,) what the judging models answer; -1 outside

    @property
    def wrong(self) -> Vector:
        """(n,) probability that the label is wrong; 0 for rows that the easy model gets right."""
        return np.asarray(self.wrong_by_seed.mean(0))


def judge_kinds(desk: Desk, easy: OutOfFold, seeds: int) -> Kinds:
    """What the rows that the easy model misses are, by models that see these rows more often than they are."""
    inside = desk.fold >= 0
    missed = inside & (easy.answer != desk.y)
    if not missed.any() or not (inside & ~missed).any():
        kind = np.where(inside, np.where(missed, "unsure", "aligned"), "")
        return Kinds(missed, np.where(missed, 0.5, 0.0)[None], kind)
    weight = judging_weights(desk, missed, np.where(missed, 0.5, 0.0))
    recipe = desk.long_recipe(desk.trained_on)
    jobs = [desk.jobs("judge", recipe, seed, weight=weight) for seed in range(seeds)]
    judge = desk.out_of_fold("judge", jobs)
    wrong = np.stack([mislabelled(each, easy.probability, desk.y, missed) for each in judge.probability_by_seed])
    return Kinds(missed, wrong, name_kinds(inside, missed, wrong), judge.answer)


def judging_weights(desk: Desk, missed: NDArray[np.bool_], wrong: Vector) -> Vector:
    """(n,) draws: class-balanced over rows the easy model gets right, and a share over those it misses.

    The share shrinks until the draws rest on enough rows.
    """
    outside = desk.balanced(~missed)
    doubted = np.where(missed, np.maximum(1 - wrong, LEAST), 0.0)
    outside, doubted = outside / outside.sum(), doubted / doubted.sum()
    share = SHARE
    while True:
        weight: Vector = (1 - share) * outside + share * doubted
        if effective_sample_size(weight) >= EFFECTIVE * len(desk.rows) or share < 0.01:
            return weight
        share *= 0.8


def mislabelled(judge: Vector, easy: Vector, y: NDArray[np.int64], missed: NDArray[np.bool_]) -> Vector:
    """(n,) probability that a missed row's label is wrong: the fixed point of nu = pi Ln / (pi Ln + (1 - pi) Lr).

    Lr is what the judge gives the label, Ln what it gives the other classes, weighed by the easy model; pi is the mean
    of nu over the missed rows.
    """
    rows = np.flatnonzero(missed)
    label = y[rows][:, None]
    right = np.take_along_axis(judge[rows], label, 1)[:, 0]
    theirs = easy[rows].copy()
    np.put_along_axis(theirs, label, 0.0, 1)
    against = (judge[rows] * theirs).sum(1) / np.maximum(theirs.sum(1), 1e-12)
    share = 0.5
    nu = np.full(len(rows), 0.5)
    for _ in range(ROUNDS):
        nu = share * against / np.maximum(share * against + (1 - share) * right, 1e-300)
        share = float(np.clip(nu.mean(), 1e-3, 1 - 1e-3))
    result = np.zeros(len(y))
    result[rows] = nu
    return result


def name_kinds(inside: NDArray[np.bool_], missed: NDArray[np.bool_], wrong: NDArray[np.float64]) -> NDArray[np.str_]:
    """(n,) aligned, conflicting, mislabelled or unsure; a kind needs all seeds. Empty outside."""
    kind = np.where(missed, "unsure", "aligned")
    kind = np.where(missed & (wrong > SURE).all(0), "mislabelled", kind)
    kind = np.where(missed & (wrong < 1 - SURE).all(0), "conflicting", kind)
    return np.where(inside, kind, "")
