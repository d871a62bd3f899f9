"""The examination of a person's own data: models that never saw a row judge it, and are asked what they follow."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from debiaser.auditing import health
from debiaser.auditing.estimates import Estimate
from debiaser.auditing.jobs import Rows, answer_inputs, read_model
from debiaser.auditing.kinds import Kinds, judge_kinds
from debiaser.auditing.scoring import Desk, OutOfFold, easy_models, plain_models
from debiaser.auditing.subject import Subject, texts_of
from debiaser.auditing.suspects import Suspect, find_suspects
from debiaser.auditing.swap import SwapTest, swap_test
from debiaser.auditing.verdict import CANNOT_TELL, Health, verdict
from debiaser.auditing.views import VIEWS, View, with_matters
from debiaser.auditing.word_views import text_views
from debiaser.data.partition import folds
from debiaser.errors import Misuse, Problem
from debiaser.learn.engine import Listener, Silence
from debiaser.learn.sampling import effective_sample_size

FOLDS = 5
FLOOR = 1e-8  # no probability is exactly 0
STRENGTH = 0.75  # share of the draws that go by score: chosen on an unbiased copy of validation texts, docs/own_data.md
ENCODED = 300  # swaps in all where each costs a pass through a large encoder
CONFIDENT = 0.9  # probability of a wrong answer from which the easy model follows a rule, not a guess
RECOVERABLE = 0.005  # share of rows, confidently missed yet learnable, from which a rule must be suspected


@dataclass(frozen=True)
class Plan:
    """How to examine: seeds of the easy and of the plain models, folds, processes, which views may matter."""

    seeds: int = 2
    plain_seeds: int = 1
    folds: int = FOLDS
    workers: int = 1
    seed: int = 0
    epochs: int | None = None
    in_sample: bool = False
    matters: tuple[str, ...] = ()
    listener: Listener = field(default_factory=Silence)


@dataclass(frozen=True, eq=False)
class Examined:
    """Everything that was computed about the rows of `pool`; `model` says which model was examined."""

    subject: Subject
    desk: Desk
    pool: Rows
    easy: OutOfFold
    plain: OutOfFold
    kinds: Kinds
    swaps: SwapTest | Problem
    suspects: Sequence[Suspect]
    troubles: list[health.Trouble]
    verdict: str
    reasons: list[str]
    model: str
    confirmed: Rows = field(default_factory=lambda: np.zeros(0, np.int64))

    @property
    def score(self) -> NDArray[np.float64]:
        """(n,) how strongly a row goes against the easy rule; NaN outside the pool."""
        return np.asarray(np.maximum(self.easy.score, FLOOR))

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

    @property
    def weight(self) -> NDArray[np.float64]:
        """(n,) the probabilities to train with: most draws by score, the others class-balanced.

        Scores alone may rest on so few rows that the rest is forgotten. Rows that a person confirmed to be mislabelled
        have almost none.
        """
        bad = self.confirmed[self.kinds.kind[self.confirmed] == "mislabelled"]
        even = self.desk.balanced()
        weight = STRENGTH * self.probability + (1 - STRENGTH) * even / even.sum()
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
    desk = Desk(subject.material, y, fold, folder / "work", plan.listener, plan.workers, plan.seed, plan.epochs)
    views = find_views(subject, desk, plan.matters)  # before any training: a view that does not exist is a mistake
    easy, plain = easy_models(desk, plan.seeds, plan.in_sample), plain_models(desk, plan.plain_seeds)
    kinds = judge_kinds(desk, easy, 1)
    missed = easy.answer[pool] != y[pool]
    troubles = health.check(y[pool], easy.answer[pool], plain.answer[pool], own.classes, subject.better_inputs)
    swaps = views if isinstance(views, Problem) else try_swaps(subject, desk, plain, views, plan)
    unused = {name: values[pool] for name, values in own.columns.items()}
    suspects = find_suspects(unused, y[pool], own.unit[pool], missed, own.classes, plan.seed)
    told = Health(
        health.above_chance(plain.answer[pool] == y[pool], y[pool]),
        int(missed.sum()),
        recoverable(easy, kinds, pool, y),
        [few(each.empty_cells()) for each in suspects if each.flagged and each.empty],
    )
    ruled = verdict(swaps, told) if isinstance(swaps, SwapTest) else (CANNOT_TELL, [str(swaps)])
    seeds = "one seed" if plan.seeds == 1 else f"{plan.seeds} seeds"
    how = "on the rows it was trained on" if plan.in_sample else f"out of fold, {len(desk.folds)} folds, {seeds}"
    model = f"{subject.material.network}, trained here on this data ({how})."
    return Examined(subject, desk, pool, easy, plain, kinds, swaps, suspects, troubles, *ruled, model)


def few(cells: list[str]) -> str:
    """The first of a column's empty cells, and how many more there are."""
    return cells[0] + (f" (and {len(cells) - 1:,} more such cells)" if len(cells) > 1 else "")


def recoverable(easy: OutOfFold, kinds: Kinds, pool: Rows, y: Rows) -> bool:
    """Whether many rows are confidently missed by the easy model although other rows predict their label."""
    if kinds.judge is None:
        return False
    sure = np.nan_to_num(easy.probability).max(1) >= CONFIDENT
    found = kinds.missed & sure & (kinds.judge == y)
    return bool(found.sum() >= max(health.FEW, RECOVERABLE * len(pool)))


def try_swaps(subject: Subject, desk: Desk, plain: OutOfFold, views: Sequence[View], plan: Plan) -> SwapTest | Problem:
    """The swap test of the plain models on the rows they never saw; the problem, where it cannot be made."""
    pool = desk.rows
    models = [
        [read_model(desk.material, desk.folder / key) for key in (by_fold[fold] for by_fold in plain.keys)]
        for fold in desk.folds
    ]

    def answer(rows: Tensor, inputs: Any) -> Tensor:
        entered, fold = subject.enter(inputs), desk.fold[pool[rows.numpy()]]
        said = np.zeros((len(rows), len(desk.material.classes)))
        for number in np.unique(fold):
            mine = np.flatnonzero(fold == number)
            said[mine] = np.mean([answer_inputs(model, entered[mine]) for model in models[number]], axis=0)
        return torch.from_numpy(said.argmax(1))

    limit = None if subject.encoder is None else -(-ENCODED // len(desk.material.classes))
    plan.listener.begin("swaps", 1, 0)
    try:
        return swap_test(
            views,
            lambda rows: subject.read(torch.from_numpy(pool[rows.numpy()])),
            desk.y[pool],
            subject.own.unit[pool],
            plain.answer[pool],
            answer,
            plan.seed,
            limit,
        )
    except Problem as problem:
        return problem
    finally:
        plan.listener.step()
        plan.listener.end("swaps", None)


def find_views(subject: Subject, desk: Desk, matters: Sequence[str]) -> Sequence[View] | Problem:
    """What may be swapped, or why nothing can be; a name in `matters` that is no view is raised."""
    try:
        return views_of(subject, desk, matters)
    except Misuse:
        raise
    except Problem as problem:
        return problem


def views_of(subject: Subject, desk: Desk, matters: Sequence[str]) -> Sequence[View]:
    """What may be swapped between two rows of this kind of data."""
    if subject.own.kind == "image":
        return with_matters(VIEWS, matters)
    pool = desk.rows
    texts = texts_of(subject.own, torch.from_numpy(pool))
    return with_matters(text_views(texts, desk.y[pool], desk.fold[pool]), matters)
