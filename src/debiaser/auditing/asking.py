"""The swap test asked of an audit's own models: what can be swapped, and what the models answer."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from debiaser import __version__
from debiaser.auditing.jobs import Rows
from debiaser.auditing.scoring import Desk, OutOfFold, ask_panel, read_panel
from debiaser.auditing.subject import Subject, pictures_of, texts_of
from debiaser.auditing.swap import Answer, SwapTest, swap_test
from debiaser.auditing.views import VIEWS, View, with_matters
from debiaser.auditing.word_views import text_views
from debiaser.errors import Misuse, Problem
from debiaser.learn.engine import Listener

ENCODED = 300  # swaps in all where each costs a pass through a large encoder


def try_swaps(
    subject: Subject, desk: Desk, plain: OutOfFold, views: Sequence[View], listener: Listener
) -> SwapTest | Problem:
    """The swap test of the plain models on the rows they never saw; the problem, where it cannot be made."""
    pool, panel = desk.rows, read_panel(desk, plain)

    def answer(rows: Tensor, inputs: Any) -> Tensor:
        said = ask_panel(desk, panel, pool[rows.numpy()], subject.enter(inputs))
        return torch.from_numpy(said.mean(0).argmax(1))

    words = repr((__version__, plain.keys, subject.own.identity, [view.name for view in views], desk.seed))
    kept = desk.folder / f"swaps-{hashlib.blake2b(words.encode(), digest_size=10).hexdigest()}.npz"
    return swaps_of(subject, desk, views, plain.answer[pool], answer, listener, kept)


def swaps_of(
    subject: Subject,
    desk: Desk,
    views: Sequence[View],
    answers: Rows,
    answer: Answer,
    listener: Listener | None = None,
    kept: Path | None = None,
) -> SwapTest | Problem:
    """The swap test on those rows of the folds whose `answers`, in their order, are right; or the problem with it."""
    pool = desk.rows
    limit = None if subject.encoder is None else -(-ENCODED // len(desk.material.classes))
    try:
        return swap_test(
            views,
            lambda rows: subject.read(torch.from_numpy(pool[rows.numpy()])),
            desk.y[pool],
            subject.own.unit[pool],
            answers,
            answer,
            desk.seed,
            limit,
            listener,
            kept,
        )
    except Problem as problem:
        return problem


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
        side = pictures_of(subject.own).largest_side
        return with_matters([replace(view, side=side) for view in VIEWS], matters)
    pool = desk.rows
    texts = texts_of(subject.own, torch.from_numpy(pool))
    return with_matters(text_views(texts, desk.y[pool], desk.fold[pool]), matters)
