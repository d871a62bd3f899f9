"""The swap test: give an input one property of an input of another class; whose class does the model answer?"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from debiaser.auditing.reliance import LEVEL, Asked, Design, Reliance, Rows, by_chance, detectable, estimates
from debiaser.auditing.views import View
from debiaser.data.formats import kept_arrays
from debiaser.data.partition import units_per_class
from debiaser.errors import Problem
from debiaser.files import write_arrays
from debiaser.learn.engine import Listener, Silence
from debiaser.randomness import numpy_stream

Answer = Callable[[Tensor, Any], Any]

ROWS, ROWS_PER_CLASS = 2000, 200  # swaps in all, and at least so many in each class
BATCH = 64  # few, since a swap makes several more of each, and pictures may be large
PARTS = ("other", "same", "changed")


@dataclass(frozen=True)
class Untested:
    """A view that could not be computed, and why."""

    name: str
    title: str
    nuisance: bool
    reason: str

    @property
    def plain(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, eq=False)
class Pairs:
    """Rows (m,), a donor of another class for each, and a donor of its own class."""

    rows: Rows
    donors: Rows
    same: Rows


@dataclass(frozen=True, eq=False)
class SwapTest:
    """The reliance on every view, strongest first; eligible rows and units of the class that has fewest.

    `answers[name]` (m,) is what the model said to the pairs in a view: what a page draws.
    """

    reliances: tuple[Reliance, ...]
    untested: tuple[Untested, ...]
    fewest_eligible: int
    fewest_units: int
    pairs: Pairs = field(repr=False)
    answers: dict[str, Rows] = field(repr=False)


def swap_test(
    views: Sequence[View],
    read: Callable[[Tensor], Any],
    y: Rows,
    unit: Rows,
    answers: Rows,
    answer: Answer,
    seed: int = 0,
    limit: int | None = None,
    listener: Listener | None = None,
    kept: Path | None = None,
) -> SwapTest:
    """The test of these views on the rows (n,) whose out-of-fold `answers` are right, at most `limit` of a class.

    `read(rows)` gives inputs; `answer(rows, inputs)` the class (b,) that a model which never saw these rows answers.
    The answers are kept in a file, where one is named: the next time nothing is read and no model is asked.
    """
    labels = np.unique(y)
    pairs = draw_pairs(y, answers == y, limit or max(ROWS_PER_CLASS, -(-ROWS // len(labels))), seed)
    found = remembered(kept, views) if kept else None
    asked, untested = found or ask(views, read, y[pairs.rows], pairs, answer, listener or Silence())
    if kept and found is None:
        remember(kept, asked, untested)
    design = Design(y[pairs.rows], y[pairs.donors], unit[pairs.rows])
    reliances = judge([view for view in views if view.name in asked], asked, design, seed)
    eligible = np.bincount(y[answers == y], minlength=int(y.max()) + 1)[labels]
    said = {name: each.other for name, each in asked.items()}
    return SwapTest(reliances, untested, int(eligible.min()), int(units_per_class(y, unit).min()), pairs, said)


def draw_pairs(y: Rows, eligible: NDArray[np.bool_], limit: int, seed: int) -> Pairs:
    """At most `limit` eligible rows of each class, each with donors of another class (all as likely) and its own."""
    stream = numpy_stream(seed, "swap", "pairs")
    counts = np.bincount(y)
    present = np.flatnonzero(counts > 1)
    mixed = stream.permutation(np.flatnonzero(eligible))
    rows = np.sort(np.concatenate([mixed[:0], *(mixed[y[mixed] == label][:limit] for label in present)]))
    if len(present) < 2 or not len(rows):
        raise Problem(
            f"the swap test has {len(present)} classes of two rows or more and {len(rows)} rows that the model gets "
            "right; it needs two such classes and one such row: audit more data, or a model that has learnt the task"
        )
    order, starts = np.argsort(y, kind="stable"), np.cumsum(counts) - counts
    place = np.empty_like(order)
    place[order] = np.arange(len(y))
    own = y[rows]
    other = stream.integers(0, len(present) - 1, len(rows))
    other = present[other + (other >= np.searchsorted(present, own))]
    donors = order[starts[other] + stream.integers(0, counts[other])]
    ahead = stream.integers(1, counts[own])  # places further on in the row's class: never the row itself
    same = order[starts[own] + (place[rows] - starts[own] + ahead) % counts[own]]
    return Pairs(rows, donors, same)


def ask(
    views: Sequence[View], read: Callable[[Tensor], Any], own: Rows, pairs: Pairs, answer: Answer, listener: Listener
) -> tuple[dict[str, Asked], tuple[Untested, ...]]:
    """What the model answers to every pair in every view; a view that cannot be computed says why.

    An input that a swap leaves as it is has its answer already: the row's own label (m,), since only rows that the
    model gets right are swapped.
    """
    parts: dict[str, list[Asked]] = {view.name: [] for view in views}
    untested: dict[str, Untested] = {}
    starts = range(0, len(pairs.rows), BATCH)
    listener.begin("swaps", len(starts) * len(views), 0)
    for start in starts:
        rows, donors, same = (
            torch.from_numpy(each[start : start + BATCH]) for each in (pairs.rows, pairs.donors, pairs.same)
        )
        x, others, fellows, label = read(rows), read(donors), read(same), own[start : start + BATCH]
        for view in views:
            if view.name not in untested:
                try:
                    swapped, within = view.swap(x, others, rows), view.swap(x, fellows, rows)
                except Problem as problem:
                    untested[view.name] = Untested(view.name, view.title, view.nuisance, str(problem))
                else:
                    changed = differs(x, swapped)
                    other = ask_changed(rows, swapped, changed, label, answer)
                    same_class = ask_changed(rows, within, differs(x, within), label, answer)
                    parts[view.name].append(Asked(other, same_class, changed))
            listener.step()
    listener.end("swaps", None)
    asked = {name: joined(said) for name, said in parts.items() if name not in untested}
    return asked, tuple(untested.values())


def ask_changed(rows: Tensor, swapped: Any, changed: NDArray[np.bool_], label: Rows, answer: Answer) -> Rows:
    """(b,) what the model answers to inputs after a swap; it is asked only about those that are other ones now."""
    said, places = label.astype(np.int64), np.flatnonzero(changed)
    if len(places):
        inputs = swapped[places] if isinstance(swapped, Tensor) else [swapped[each] for each in places]
        said[places] = np.asarray(answer(rows[places], inputs))
    return said


def remember(path: Path, asked: dict[str, Asked], untested: tuple[Untested, ...]) -> None:
    """Keep what was answered, and why some views could not be asked."""
    said = {f"{part}.{name}": getattr(each, part) for name, each in asked.items() for part in PARTS}
    write_arrays(path, views=np.array([*asked]), names=np.array([each.name for each in untested], np.str_),
                 reasons=np.array([each.reason for each in untested], np.str_), **said)  # fmt: skip


def remembered(path: Path, views: Sequence[View]) -> tuple[dict[str, Asked], tuple[Untested, ...]] | None:
    """What was kept about these views; nothing where that cannot be read."""
    kept = kept_arrays(path)
    if kept is None:
        return None
    asked = {str(name): Asked(*(kept[f"{part}.{name}"] for part in PARTS)) for name in kept["views"]}
    reasons = dict(zip(kept["names"].tolist(), kept["reasons"].tolist(), strict=True))
    if {*asked, *reasons} != {view.name for view in views}:
        return None
    return asked, tuple(
        Untested(view.name, view.title, view.nuisance, reasons[view.name]) for view in views if view.name in reasons
    )


def joined(parts: Sequence[Asked]) -> Asked:
    """The answers of several batches as one."""
    return Asked(
        np.concatenate([each.other for each in parts]),
        np.concatenate([each.same for each in parts]),
        np.concatenate([each.changed for each in parts]),
    )


def differs(x: Any, swapped: Any) -> NDArray[np.bool_]:
    """(b,) whether an input is another one after the swap."""
    if isinstance(x, Tensor):
        return np.asarray((x != swapped).flatten(1).any(1))
    return np.array([before != after for before, after in zip(x, swapped, strict=True)], bool)


def judge(views: Sequence[View], asked: dict[str, Asked], design: Design, seed: int) -> tuple[Reliance, ...]:
    """The reliance on each view, strongest first; p holds its excess against the largest of all views by chance."""
    if not views:
        return ()
    answers = [asked[view.name] for view in views]
    largest = by_chance(answers, design, seed).max(0)
    units = len(np.unique(design.unit))
    found = []
    for view, each, (follows, chance, excess) in zip(views, answers, estimates(answers, design, seed), strict=True):
        beaten = int((largest >= excess.value / 100 - 1e-12).sum())
        found.append(
            Reliance(
                view.name,
                view.title,
                view.nuisance,
                len(design.own),
                follows,
                chance,
                excess,
                p=(1 + beaten) / (1 + len(largest)),
                flips=100 * float((each.other != design.own).mean()),
                flips_same_class=100 * float((each.same != design.own).mean()),
                changed=100 * float(each.changed.mean()),
                detectable=detectable(largest, chance, len(design.own), units),
                null=chance + 100 * max(0.0, float(np.quantile(largest, 1 - LEVEL))),
            )
        )
    return tuple(sorted(found, key=lambda each: -each.excess.value))
