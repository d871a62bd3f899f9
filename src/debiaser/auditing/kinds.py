"""Conflicting or mislabelled: whether a label that the easy model does not give is one that other rows predict."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from debiaser.auditing.scoring import Desk, OutOfFold, Vector
from debiaser.learn.sampling import effective_sample_size

SHARE = 0.4  # of the draws that go to rows the easy model misses
LEAST = 0.05  # of a row's weight stays, however sure its label is wrong
EFFECTIVE = 0.1  # the draws must rest on more than this share of the rows
SURE = 0.8  # probability from which a row is called mislabelled; under 1 - SURE, conflicting
TRAININGS = 2  # of the judging models: the second draws fewer of the rows that the first doubts
KINDS = ("aligned", "conflicting", "mislabelled", "unsure")


@dataclass(frozen=True, eq=False)
class Kinds:
    """Per row: missed by the easy model, probability (s, n) that its label is wrong, and what that makes it.

    judge: what the judging models say, None where there was nothing to judge; noise (s,): the share of
    wrong labels among missed rows that it was found with; abstains: why no kind is asserted, empty where kinds are.
    """

    missed: NDArray[np.bool_]
    wrong_by_seed: NDArray[np.float64]
    kind: NDArray[np.str_]
    judge: OutOfFold | None = None
    noise: Vector | None = None
    abstains: str = ""

    @property
    def wrong(self) -> Vector:
        """(n,) probability that the label is wrong; 0 for rows that the easy model gets right."""
        return np.asarray(self.wrong_by_seed.mean(0))

    @property
    def trust(self) -> Vector:
        """(n,) what a row's weight in training is multiplied by: less for likely mislabelled rows, never nothing."""
        if self.abstains or self.judge is None:
            return np.ones(len(self.missed))
        return np.where(self.missed, np.maximum(1 - self.wrong, LEAST), 1.0)


def judge_kinds(desk: Desk, easy: OutOfFold, seeds: int) -> Kinds:
    """What the rows that the easy model misses are, by models that see these rows more often than they are.

    One step of nu and pi for each training. Steps to the fixed point under one model would end at pi = 1 wherever it is
    not yet sure of the rows that go against the rule, and no later model would see these more often than noise.
    """
    inside = desk.fold >= 0
    missed = inside & (easy.answer != desk.y)
    wrong = np.repeat(np.where(missed, 0.5, 0.0)[None], seeds, 0)
    if not missed.any() or not (inside & ~missed).any():
        return Kinds(missed, wrong, np.where(inside, np.where(missed, "unsure", "aligned"), ""))
    recipe = desk.judge_recipe(desk.trained_on)
    judge: OutOfFold | None = None
    for training in range(TRAININGS):
        noise = wrong[:, missed].mean(1)
        jobs = []
        for seed in range(seeds):
            start = None if judge is None else judge.keys[seed]
            weight = judging_weights(desk, missed, wrong[seed])
            jobs.append(desk.jobs("judge", recipe, seed, weight=weight, start=start))
        judge = desk.out_of_fold("judge" if training == 0 else "judge again", jobs)
        for seed, said in enumerate(judge.probability_by_seed):
            against, right = likelihoods(said[missed], easy.probability[missed], desk.y[missed])
            wrong[seed, missed] = posterior(noise[seed], against, right)
    return Kinds(missed, wrong, name_kinds(inside, missed, wrong), judge, noise)


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
        if effective_sample_size(weight) > EFFECTIVE * len(desk.rows) or share < 0.01:
            return weight
        share *= 0.8


def likelihoods(judge: Vector, easy: Vector, label: NDArray[np.int64]) -> tuple[Vector, Vector]:
    """(m,) Ln, were the label wrong: sum over c other than y of d[c] pb[c] / (1 - pb[y]); and Lr = d[y], were it right.

    d (m, k): the judging model; pb (m, k): the easy one.
    """
    own = label[:, None]
    right = np.take_along_axis(judge, own, 1)[:, 0]
    others = easy.copy()
    np.put_along_axis(others, own, 0.0, 1)
    return (judge * others).sum(1) / np.maximum(others.sum(1), 1e-12), right


def posterior(noise: float, against: Vector, right: Vector) -> Vector:
    """(m,) nu = pi Ln / (pi Ln + (1 - pi) Lr), the probability that a label is wrong; pi is `noise`."""
    return noise * against / np.maximum(noise * against + (1 - noise) * right, 1e-300)


def name_kinds(inside: NDArray[np.bool_], missed: NDArray[np.bool_], wrong: NDArray[np.float64]) -> NDArray[np.str_]:
    """(n,) aligned, conflicting, mislabelled or unsure; a kind needs all seeds. Empty outside."""
    kind = np.where(missed, "unsure", "aligned")
    kind = np.where(missed & (wrong > SURE).all(0), "mislabelled", kind)
    kind = np.where(missed & (wrong < 1 - SURE).all(0), "conflicting", kind)
    return np.where(inside, kind, "")
