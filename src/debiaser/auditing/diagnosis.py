"""What the samples are that the biased model misclassifies: conflicting or mislabelled; and can that be trusted?

Other models, which see those samples more often, tell whether a label is one that other samples predict. Controls
made on purpose check them: a bias-aligned sample that takes the named property from a sample of another class must be
called conflicting; a sample whose label is replaced by another, mislabelled.
"""

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from debiaser.auditing.crossval import OutOfFold, Rows, Trainer, Vector
from debiaser.auditing.estimates import Estimate, share
from debiaser.auditing.inputs import Subject
from debiaser.auditing.swap_test import SwapTest, predict_swapped
from debiaser.auditing.views import View
from debiaser.errors import Problem
from debiaser.io import numpy_stream
from debiaser.learn.groups import balancing_weights
from debiaser.learn.guard import likelihoods, posterior
from debiaser.learn.sampler import effective_sample_size

WEAK = 0.1  # of the way from guessing to perfect that a model must have gone
FEW = 20  # errors of the biased model, below which nothing can be said of samples that go against it
COLLAPSED = 0.05  # of a class's samples answered right, below which the model does not know the class
SHARE = 0.4  # of the draws that go to samples the biased model misclassifies
LEAST = 0.05  # of a sample's weight stays, however sure its label is wrong
EFFECTIVE = 0.1  # the draws must rest on more than this share of the samples
SURE = 0.8  # probability from which a sample is called mislabelled; under 1 - SURE, conflicting
TRAININGS = 2  # of the judging models: the second draws fewer of the samples that the first doubts
KINDS = ("aligned", "conflicting", "mislabelled", "unsure")
MOST = 600  # samples planted
LISTED = 50  # likely label errors
TOLERATED = 20.0  # percent of planted conflicts that may be called mislabelled before no kind is asserted
UNNAMED = (
    "No property is named that the model follows, so a sample that goes against the shortcut cannot be told from a "
    "wrong label: no kind is asserted."
)
UNDIVIDED = "The biased model misclassifies no sample, or all of them, so no kind is asserted."


# --- Is the biased model fit to judge anything?


@dataclass(frozen=True)
class Trouble:
    """What was seen, why it matters, what to do."""

    what: str
    why: str
    do: str


def above_chance(right: NDArray[np.bool_], y: Rows) -> float:
    """How far from always naming one class (0) to perfect (1) the answers are, all classes counting alike."""
    counts = np.bincount(y)
    there = counts > 0
    recall = np.bincount(y, right, len(counts))[there] / counts[there]
    guess = 1 / there.sum()
    return float((recall.mean() - guess) / max(1 - guess, 1e-12))


def degenerate(y: Rows, answers: Rows) -> bool:
    """Whether a model is no better than naming one class, or almost never names a class where that is the label."""
    return above_chance(answers == y, y) < WEAK or any(
        (answers[y == k] == k).mean() < COLLAPSED for k in np.flatnonzero(np.bincount(y) >= FEW)
    )


def check_health(y: Rows, biased: Rows, plain: Rows, classes: tuple[str, ...], advice: str) -> list[Trouble]:
    """What is wrong with the biased and the plain model's answers; `advice`: how to get better inputs."""
    found = []
    learnt, errors = above_chance(biased == y, y) >= WEAK, int((biased != y).sum())
    if above_chance(plain == y, y) < WEAK:
        what = "The plain model is hardly better than always predicting one class."
        why = "What it is given cannot carry the task, so no finding about it means anything."
        found.append(Trouble(what, why, advice))
    elif not learnt:
        what = "The biased model is hardly better than always predicting one class."
        why = "It has learnt no shortcut, so samples cannot go against one."
        found.append(Trouble(what, why, "Train it longer: --epochs with a larger number."))
    if errors < FEW:
        few = f"only {errors:,}" if errors else "none"
        what = f"The biased model misclassifies {few} of {len(y):,} samples it was not trained on."
        why = "If a shortcut goes with the label everywhere, no sample in the data can show it."
        do = "Collect samples where the suspected cue and the label disagree, or examine the model on them."
        found.append(Trouble(what, why, do))
    for number, name in enumerate(classes):
        mine = y == number
        if learnt and mine.any() and (biased[mine] == number).mean() < COLLAPSED:
            what = f"The biased model almost never answers '{name}' where that is the label."
            why = "All samples of that class then look as if they went against the shortcut."
            do = "It may be too rare or too hard for so short a training: a larger --epochs, or merge it with another."
            found.append(Trouble(what, why, do))
    return found


# --- Conflicting or mislabelled


@dataclass(frozen=True, eq=False)
class Diagnosis:
    """Per sample: misclassified by the biased model?, probability (s, n) of a wrong label, and what that makes it.

    judge: what the judging models say, None where there was nothing to judge; noise (s,): the share of
    wrong labels among misclassified samples that it was found with; abstains: why no kind is asserted, else empty.
    """

    misclassified: NDArray[np.bool_]
    wrong_by_seed: NDArray[np.float64]
    kind: NDArray[np.str_]
    judge: OutOfFold | None = None
    noise: Vector | None = None
    abstains: str = ""

    @property
    def wrong(self) -> Vector:
        """(n,) probability that the label is wrong; 0 for samples that the biased model gets right."""
        return np.asarray(self.wrong_by_seed.mean(0))

    @property
    def trust(self) -> Vector:
        """(n,) what a sample's weight in training is multiplied by: less for likely mislabelled ones, never nothing."""
        if self.abstains or self.judge is None:
            return np.ones(len(self.misclassified))
        return np.where(self.misclassified, np.maximum(1 - self.wrong, LEAST), 1.0)


def diagnose(trainer: Trainer, biased: OutOfFold, seeds: int) -> Diagnosis:
    """What the samples that the biased model misclassifies are, by models that see these more often than they are.

    One step of nu and pi for each training. Steps to the fixed point under one model would end at pi = 1 wherever it is
    not yet sure of the samples that go against the shortcut, and no later model would see these more often than noise.
    """
    inside = trainer.fold >= 0
    misclassified = inside & (biased.answer != trainer.y)
    wrong = np.repeat(np.where(misclassified, 0.5, 0.0)[None], seeds, 0)
    if not misclassified.any() or not (inside & ~misclassified).any():
        return Diagnosis(misclassified, wrong, np.where(inside, np.where(misclassified, "unsure", "aligned"), ""))
    recipe = trainer.recipe("judge", trainer.trained_on)
    judge: OutOfFold | None = None
    for training in range(TRAININGS):
        noise = wrong[:, misclassified].mean(1)
        jobs = []
        for seed in range(seeds):
            start = None if judge is None else judge.keys[seed]
            weight = judging_weights(trainer, misclassified, wrong[seed])
            jobs.append(trainer.fold_jobs("judge", recipe, seed, weight=weight, start=start))
        judge = trainer.out_of_fold("label check" if training == 0 else "label check, second round", jobs)
        for seed, said in enumerate(judge.probability_by_seed):
            chances = likelihoods(said[misclassified], biased.probability[misclassified], trainer.y[misclassified])
            wrong[seed, misclassified] = posterior(noise[seed], *chances)
    return Diagnosis(misclassified, wrong, name_kinds(inside, misclassified, wrong), judge, noise)


def judging_weights(trainer: Trainer, misclassified: NDArray[np.bool_], wrong: Vector) -> Vector:
    """(n,) draws: class-balanced over samples the biased model gets right, and a share over the others.

    The share shrinks until the draws rest on enough samples.
    """
    outside, right = np.zeros(len(trainer.y)), (trainer.fold >= 0) & ~misclassified
    outside[right] = balancing_weights(trainer.y[right])
    doubted = np.where(misclassified, np.maximum(1 - wrong, LEAST), 0.0)
    outside, doubted = outside / outside.sum(), doubted / doubted.sum()
    share = SHARE
    while True:
        weight: Vector = (1 - share) * outside + share * doubted
        if effective_sample_size(weight) > EFFECTIVE * len(trainer.rows) or share < 0.01:
            return weight
        share *= 0.8


def label_errors(diagnosis: Diagnosis, y: Rows) -> Rows:
    """At most LISTED samples whose label is likely wrong, the likeliest first: the judging models do not believe it.

    Not checked by planted samples: a sample that goes against a shortcut that they learnt as well looks the same.
    """
    if diagnosis.judge is None:
        return np.zeros(0, np.int64)
    believed = np.nan_to_num(diagnosis.judge.probability)[np.arange(len(y)), y]
    doubted = np.flatnonzero(diagnosis.misclassified & (believed < 1 - SURE) & (diagnosis.wrong > 0.5))
    return np.asarray(doubted[np.lexsort((believed[doubted], -diagnosis.wrong[doubted]))][:LISTED])


def name_kinds(inside: NDArray[np.bool_], misclassified: NDArray[np.bool_], wrong: Vector) -> NDArray[np.str_]:
    """(n,) aligned, conflicting, mislabelled or unsure; a kind needs all seeds. Empty outside."""
    kind = np.where(misclassified, "unsure", "aligned")
    kind = np.where(misclassified & (wrong > SURE).all(0), "mislabelled", kind)
    kind = np.where(misclassified & (wrong < 1 - SURE).all(0), "conflicting", kind)
    return np.where(inside, kind, "")


# --- Controls


@dataclass(frozen=True)
class Controls:
    """What became of planted samples, in percent: conflicts that the biased model misclassifies (found), conflicts and
    flips that were called mislabelled, the former of those found."""

    view: str
    title: str
    conflicts: int
    found: Estimate
    conflicts_called: Estimate
    flips: int
    flips_called: Estimate

    @property
    def plain(self) -> dict[str, Any]:
        shares = {name: getattr(self, name).plain for name in ("found", "conflicts_called", "flips_called")}
        return {**asdict(self), **shares, "sentence": self.words}

    @property
    def words(self) -> str:
        """What the controls showed."""
        if not self.conflicts:
            return "No samples could be planted: no bias-aligned sample could be given another class's property."
        fooled = f"the biased model misclassifies {self.found.words()}"
        if self.found.value:
            fooled += f", and {self.conflicts_called.words()} of these would be called mislabelled"
        return (
            f"Checked on planted samples: of {self.conflicts:,} given the {self.title} of another class, {fooled}; of "
            f"{self.flips:,} with a flipped label, {self.flips_called.words()} would be called mislabelled."
        )

    @property
    def doubts(self) -> str:
        """Why no kind may be asserted; empty where kinds may."""
        fooled = round(self.conflicts * self.found.value / 100) if self.conflicts else 0
        if fooled < FEW:
            told = f"Of {self.conflicts:,} samples that were made bias-conflicting, {fooled:,} fooled the biased model"
            return f"{told}; {FEW} are needed to check what kinds are called: no kind is asserted."
        if self.conflicts_called.value > TOLERATED:
            called = (
                f"{self.conflicts_called.value:.0f}% would have been called mislabelled, more than {TOLERATED:.0f}%"
            )
            return f"Of {fooled:,} samples that were made bias-conflicting, {called}: no kind is asserted."
        return ""


def check_planted(
    subject: Subject,
    trainer: Trainer,
    biased: OutOfFold,
    diagnosis: Diagnosis,
    swaps: SwapTest | Problem,
    view: View | None,
) -> tuple[Diagnosis, Controls | None]:
    """The diagnosis, asserting kinds only where planted samples bear it out; and what these showed.

    They follow the shortcut, and are made to go against it: each takes the view from a donor of another class.
    """
    if diagnosis.judge is None or view is None or isinstance(swaps, Problem):
        return without_kinds(diagnosis, UNNAMED if diagnosis.judge else UNDIVIDED), None
    pool, pairs = trainer.rows, swaps.pairs
    follows = np.flatnonzero(biased.answer[pool[pairs.rows]] == trainer.y[pool[pairs.rows]])
    chosen = np.sort(numpy_stream(trainer.seed, "planted").permutation(follows)[:MOST])
    places, rows, donors = pairs.rows[chosen], pool[pairs.rows[chosen]], pool[pairs.donors[chosen]]
    models = [trainer.read_models(each.keys) for each in (biased, diagnosis.judge)]
    said, judged = predict_swapped(subject, trainer, view, rows, donors, places, models)
    controls = check_controls(view, rows, said.mean(0), judged, trainer, biased, diagnosis, subject.own.unit)
    return without_kinds(diagnosis, controls.doubts) if controls.doubts else diagnosis, controls


def without_kinds(diagnosis: Diagnosis, why: str) -> Diagnosis:
    """The same probabilities, no sample called anything."""
    return replace(diagnosis, kind=np.where(diagnosis.misclassified, "unsure", diagnosis.kind), abstains=why)


def check_controls(
    view: View,
    rows: Rows,
    planted: Vector,
    planted_judged: Vector,
    trainer: Trainer,
    biased: OutOfFold,
    diagnosis: Diagnosis,
    unit: Rows,
) -> Controls:
    """What the rule for kinds calls planted conflicts, and labels that were flipped on bias-aligned samples.

    planted (m, k), planted_judged (s, m, k): what the biased and the judging models say of samples `rows` (m,) with the
    view of another class.
    """
    assert diagnosis.judge is not None
    assert diagnosis.noise is not None
    label, of_rows, classes = trainer.y[rows], unit[rows], len(trainer.material.classes)
    misclassified = planted.argmax(1) != label
    conflicts = called(planted, planted_judged, label, diagnosis.noise)[misclassified]
    flipped = (label + numpy_stream(trainer.seed, "planted", "flips").integers(1, classes, len(label))) % classes
    judged = diagnosis.judge.probability_by_seed[:, rows]
    flips = called(biased.probability[rows], judged, flipped, diagnosis.noise)
    return Controls(
        view.name,
        view.title,
        len(label),
        share(misclassified, of_rows, trainer.seed),
        share(conflicts, of_rows[misclassified], trainer.seed),
        len(flips),
        share(flips, of_rows, trainer.seed),
    )


def called(biased: Vector, judge: NDArray[np.float64], label: Rows, noise: Vector) -> NDArray[np.bool_]:
    """(m,) whether samples with these labels would be called mislabelled: sure in all seeds."""
    sure = [posterior(pi, *likelihoods(each, biased, label)) > SURE for pi, each in zip(noise, judge, strict=True)]
    return np.asarray(np.stack(sure).all(0))
