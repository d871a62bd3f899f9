"""The examination of a person's own data: models that never saw a row judge it, and are asked what they follow."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from debiaser.auditing.crossval import OutOfFold, Trainer, train_biased_models, train_plain_models
from debiaser.auditing.diagnosis import (
    FEW,
    UNNAMED,
    Controls,
    Diagnosis,
    Planted,
    Trouble,
    above_chance,
    check,
    check_controls,
    diagnose,
    plant,
)
from debiaser.auditing.estimates import Estimate
from debiaser.auditing.inputs import Subject
from debiaser.auditing.jobs import Rows
from debiaser.auditing.leakage import Leakage, find_leakage
from debiaser.auditing.swap_test import SwapTest, find_views, try_swaps
from debiaser.auditing.verdict import BIASED, CANNOT_TELL, Health, fires, verdict
from debiaser.auditing.views import View
from debiaser.data.own.splits import folds
from debiaser.errors import Problem
from debiaser.learn.sampler import effective_sample_size

FOLDS = 5
FLOOR = 1e-8  # no probability is exactly 0
STRENGTH = 0.75  # share of the draws that go by score where nothing chooses it: `debias` does, on validation rows
CONFIDENT = 0.9  # probability of a wrong answer from which the easy model follows a rule, not a guess
RECOVERABLE = 0.005  # share of rows, confidently missed yet learnable, from which a rule must be suspected


@dataclass(frozen=True)
class Plan:
    """How to examine: seeds of the easy, plain and judging models, folds, processes, which views may matter."""

    seeds: int = 2
    plain_seeds: int = 3
    judge_seeds: int = 2
    folds: int = FOLDS
    workers: int = 1
    seed: int = 0
    epochs: int | None = None
    in_sample: bool = False
    matters: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Examined:
    """Everything that was computed about the rows of `pool`; `model` says which model was examined, `named` which
    property it is found to follow."""

    subject: Subject
    trainer: Trainer
    pool: Rows
    biased: OutOfFold
    plain: OutOfFold
    diagnosis: Diagnosis
    swaps: SwapTest | Problem
    leakage: Sequence[Leakage]
    troubles: list[Trouble]
    verdict: str
    reasons: list[str]
    model: str
    views: Sequence[View] = ()
    named: View | None = None
    planted: Planted | None = None
    controls: Controls | None = None
    confirmed: Rows = field(default_factory=lambda: np.zeros(0, np.int64))

    @property
    def score(self) -> NDArray[np.float64]:
        """(n,) how strongly a row goes against the easy rule; NaN outside the pool."""
        return np.asarray(np.maximum(self.biased.score, FLOOR))

    @property
    def probability(self) -> NDArray[np.float64]:
        """(n,) with which each row would be drawn; 0 outside the pool."""
        score = np.nan_to_num(self.score)
        return np.asarray(score / score.sum())

    @property
    def place(self) -> Rows:
        """(n,) where each row stands among the examined ones; -1 for others."""
        place = np.full(len(self.subject.own), -1)
        place[self.pool] = np.arange(len(self.pool))
        return place

    def weight(self, strength: float = STRENGTH, trusting: bool = True) -> NDArray[np.float64]:
        """(n,) the probabilities to train with: a share `strength` of the draws by score, the others class-balanced.

        Scores alone may rest on so few rows that the rest is forgotten. Where kinds are asserted, likely mislabelled
        rows weigh less (unless `trusting` is off), never nothing; rows that a person confirmed as such almost nothing.
        """
        bad = self.confirmed[self.diagnosis.kind[self.confirmed] == "mislabelled"]
        trust = self.diagnosis.trust if trusting else np.ones(len(self.diagnosis.misclassified))
        drawn, even = trust * self.probability, trust * self.trainer.balanced()
        weight = strength * drawn / drawn.sum() + (1 - strength) * even / even.sum()
        weight[bad] = np.minimum(weight[bad], FLOOR)
        return np.asarray(weight / weight.sum())

    @property
    def effective_rows(self) -> Estimate:
        """On how many rows a training by score would rest."""
        return Estimate(effective_sample_size(self.probability), method="1 / sum of squared probabilities")


def examine(subject: Subject, pool: Rows, folder: Path, plan: Plan) -> Examined:
    """Train the models, out of fold, and ask them everything."""
    own, y = subject.own, subject.own.y.numpy()
    fold = np.full(len(y), -1)
    fold[pool] = folds(y[pool], own.unit[pool], plan.folds, plan.seed)
    trainer = Trainer(subject.material, y, fold, folder / "work", plan.workers, plan.seed, plan.epochs)
    views = find_views(subject, trainer, plan.matters)  # before any training: a view that does not exist is a mistake
    trainer, biased = train_biased_models(trainer, plan.seeds, plan.in_sample)
    plain = train_plain_models(trainer, plan.plain_seeds)
    diagnosis = diagnose(trainer, biased, plan.judge_seeds)
    misclassified = biased.answer[pool] != y[pool]
    troubles = check(y[pool], biased.answer[pool], plain.answer[pool], own.classes, subject.better_inputs)
    swaps = views if isinstance(views, Problem) else try_swaps(subject, trainer, plain, views)
    unused = {name: values[pool] for name, values in own.columns.items()}
    leakage = find_leakage(unused, y[pool], own.unit[pool], misclassified, own.classes, plan.seed)
    told = Health(
        above_chance(plain.answer[pool] == y[pool], y[pool]),
        int(misclassified.sum()),
        recoverable(biased, diagnosis, pool, y),
        [few(each.empty_cells()) for each in leakage if each.flagged and each.empty],
    )
    ruling, reasons = verdict(swaps, told) if isinstance(swaps, SwapTest) else (CANNOT_TELL, [str(swaps)])
    named = named_view(views, swaps, ruling)
    diagnosis, planted, controls = checked_diagnosis(subject, trainer, biased, diagnosis, swaps, named)
    seeds = "one seed" if plan.seeds == 1 else f"{plan.seeds} seeds"
    how = "on the rows it was trained on" if plan.in_sample else f"out of fold, {len(trainer.folds)} folds, {seeds}"
    model = f"{subject.material.network}, trained here on this data ({how})."
    return Examined(
        subject=subject,
        trainer=trainer,
        pool=pool,
        biased=biased,
        plain=plain,
        diagnosis=diagnosis,
        swaps=swaps,
        leakage=leakage,
        troubles=troubles,
        verdict=ruling,
        reasons=reasons,
        model=model,
        views=() if isinstance(views, Problem) else views,
        named=named,
        planted=planted,
        controls=controls,
    )


def named_view(views: Sequence[View] | Problem, swaps: SwapTest | Problem, ruling: str) -> View | None:
    """The property that the model is found to follow most; None where the verdict is another."""
    if ruling != BIASED or isinstance(views, Problem) or isinstance(swaps, Problem):
        return None
    strongest = next(each.name for each in swaps.reliances if fires(each))
    return next(view for view in views if view.name == strongest)


def checked_diagnosis(
    subject: Subject,
    trainer: Trainer,
    biased: OutOfFold,
    diagnosis: Diagnosis,
    swaps: SwapTest | Problem,
    view: View | None,
) -> tuple[Diagnosis, Planted | None, Controls | None]:
    """The kinds where rows planted by this view bear them out, else none asserted; and the planted rows."""
    if diagnosis.judge is None or view is None or isinstance(swaps, Problem):
        return without_kinds(diagnosis, UNNAMED), None, None
    planted = plant(subject, trainer, biased, diagnosis.judge, view, swaps.pairs)
    controls = check_controls(planted, trainer, biased, diagnosis, subject.own.unit)
    return without_kinds(diagnosis, controls.doubts) if controls.doubts else diagnosis, planted, controls


def without_kinds(diagnosis: Diagnosis, why: str) -> Diagnosis:
    """The same probabilities, no row called anything."""
    return replace(diagnosis, kind=np.where(diagnosis.misclassified, "unsure", diagnosis.kind), abstains=why)


def few(cells: list[str]) -> str:
    """The first of a column's empty cells, and how many more there are."""
    return cells[0] + (f" (and {len(cells) - 1:,} more such cells)" if len(cells) > 1 else "")


def confidently_misclassified(biased: OutOfFold, misclassified: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """(n,) rows that the easy model misses while it is confident."""
    return np.asarray(misclassified & (np.nan_to_num(biased.probability).max(1) >= CONFIDENT))


def many(found: NDArray[np.bool_], rows: int) -> bool:
    """Whether these are too many to be strays."""
    return bool(found.sum() >= max(FEW, RECOVERABLE * rows))


def recoverable(biased: OutOfFold, diagnosis: Diagnosis, pool: Rows, y: Rows) -> bool:
    """Whether many rows are confidently missed by the easy model although other rows predict their label."""
    if diagnosis.judge is None:
        return False
    return many(confidently_misclassified(biased, diagnosis.misclassified) & (diagnosis.judge.answer == y), len(pool))
