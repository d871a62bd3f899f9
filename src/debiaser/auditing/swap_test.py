"""The swap test: give an input one property of an input of another class; whose class does the model answer?"""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from debiaser import __version__
from debiaser.auditing.crossval import OutOfFold, Rows, Trainer, Vector
from debiaser.auditing.estimates import CHUNK, DRAWS, Estimate, binomial_interval
from debiaser.auditing.inputs import Subject
from debiaser.auditing.views import View, image_views, text_views, with_matters
from debiaser.data.cache import load_arrays
from debiaser.data.own.rows import units_per_class
from debiaser.errors import Problem
from debiaser.io import numpy_stream, write_arrays
from debiaser.progress import task

Answer = Callable[[Tensor, Any], Any]  # from sample numbers and changed inputs to classes (b,)

PERMUTATIONS = 999
LEVEL = 0.05  # of the test
POWER = 0.8416  # standard normal quantile of 80%: the smallest effect is one found in four of five tests
ROWS, ROWS_PER_CLASS = 2000, 200  # swaps in all, and at least so many in each class
ENCODED = 300  # swaps in all where each costs a pass through a large encoder
BATCH = 64  # few, since a swap makes several more of each, and images may be large


@dataclass(frozen=True)
class Reliance:
    """How far the model follows one property; everything in percent of swaps, `excess` in points beyond chance.

    flips, flips_same_class: answers that change with a donor of another and of the same class; changed: inputs that the
    swap changes at all; detectable: the smallest excess that would have been found in four of five such tests; null:
    what chance reaches in 19 of 20 draws, the largest over all views.
    """

    name: str
    title: str
    nuisance: bool
    rows: int
    follows: float
    chance: float
    excess: Estimate
    p: float
    flips: float
    flips_same_class: float
    changed: float
    detectable: float
    null: float = 0.0


@dataclass(frozen=True, eq=False)
class Pairs:
    """Samples (m,), a donor of another class for each, and a donor of its own class."""

    rows: Rows
    donors: Rows
    same: Rows


@dataclass(frozen=True, eq=False)
class SwapTest:
    """The reliance on every view, strongest first; views that could not be computed, and why; eligible samples and
    units of the class that has fewest.

    `answers[name]` (m,) is what the model said to the pairs in a view: what a page draws.
    """

    reliances: tuple[Reliance, ...]
    untested: tuple[dict[str, Any], ...]
    fewest_eligible: int
    fewest_units: int
    pairs: Pairs = field(repr=False)
    answers: dict[str, Rows] = field(repr=False)


@dataclass(frozen=True, eq=False)
class SwapAnswers:
    """Answers (m,) with a donor of another and of the same class, and whether the swap changed the input at all."""

    other: Rows
    same: Rows
    changed: NDArray[np.bool_]


# --- The test of an audit's own models


def find_views(subject: Subject, trainer: Trainer, matters: Sequence[str]) -> tuple[View, ...]:
    """What may be swapped between two samples; a name in `matters` that is no view is a mistake."""
    if subject.own.kind == "image":
        return with_matters(image_views(subject.own.inputs.largest_side), matters)
    pool = trainer.rows
    texts = subject.own.inputs.read(torch.from_numpy(pool))
    return with_matters(text_views(texts, trainer.y[pool], trainer.fold[pool]), matters)


def swap_plain_models(
    subject: Subject, trainer: Trainer, plain: OutOfFold, views: Sequence[View]
) -> SwapTest | Problem:
    """The swap test of the plain models on the samples they never saw; the problem, where it cannot be made."""
    pool, models = trainer.rows, trainer.read_models(plain)

    def answer(rows: Tensor, inputs: Any) -> Tensor:
        said = trainer.predict_changed(models, pool[rows.numpy()], subject.enter(inputs))
        return torch.from_numpy(said.mean(0).argmax(1))

    words = repr((__version__, plain.keys, subject.own.identity, [view.identity for view in views], trainer.seed))
    kept = trainer.folder / f"swaps-{hashlib.blake2b(words.encode(), digest_size=10).hexdigest()}.npz"
    return swap_answers(subject, trainer, views, plain.answer[pool], answer, kept)


def swap_answers(
    subject: Subject,
    trainer: Trainer,
    views: Sequence[View],
    answers: Rows,
    answer: Answer,
    kept: Path | None = None,
) -> SwapTest | Problem:
    """The swap test on those samples of the folds whose `answers`, in their order, are right; or why there is none."""
    pool = trainer.rows
    limit = None if subject.encoder is None else -(-ENCODED // len(trainer.material.classes))

    def read(rows: Tensor) -> Any:
        return subject.read(torch.from_numpy(pool[rows.numpy()]))

    try:
        y, unit = trainer.y[pool], subject.own.unit[pool]
        return swap_test(views, read, y, unit, answers, answer, trainer.seed, limit, kept)
    except Problem as problem:
        return problem


def swap_test(
    views: Sequence[View],
    read: Callable[[Tensor], Any],
    y: Rows,
    unit: Rows,
    answers: Rows,
    answer: Answer,
    seed: int = 0,
    limit: int | None = None,
    kept: Path | None = None,
) -> SwapTest:
    """The test of these views on the samples (n,) whose out-of-fold `answers` are right, at most `limit` of a class.

    `read(rows)` gives inputs; `answer(rows, inputs)` the class (b,) that a model which never saw these samples answers.
    The answers are kept in a file, where one is named: the next time nothing is read and no model is asked.
    """
    labels = np.unique(y)
    pairs = draw_pairs(y, answers == y, limit or max(ROWS_PER_CLASS, -(-ROWS // len(labels))), seed)
    found = load_arrays(kept) if kept else None
    if found is None:
        said, reasons = ask(views, read, y[pairs.rows], pairs, answer)
        if kept:
            arrays = {name: np.stack([each.other, each.same, each.changed]) for name, each in said.items()}
            write_arrays(kept, **arrays, reasons=np.array(json.dumps(reasons)))
    else:
        reasons = json.loads(str(found.pop("reasons")))
        said = {name: SwapAnswers(each[0], each[1], each[2] > 0) for name, each in found.items()}
    design = Design(y[pairs.rows], y[pairs.donors], unit[pairs.rows])
    untested = tuple(
        {"name": view.name, "title": view.title, "nuisance": view.nuisance, "reason": reasons[view.name]}
        for view in views
        if view.name in reasons
    )
    eligible = np.bincount(y[answers == y], minlength=int(y.max()) + 1)[labels]
    return SwapTest(
        judge([view for view in views if view.name in said], said, design, seed),
        untested,
        int(eligible.min()),
        int(units_per_class(y, unit).min()),
        pairs,
        {name: each.other for name, each in said.items()},
    )


def draw_pairs(y: Rows, eligible: NDArray[np.bool_], limit: int, seed: int) -> Pairs:
    """At most `limit` eligible samples of each class, each with donors of another class (all as likely) and its own."""
    stream = numpy_stream(seed, "swap", "pairs")
    counts = np.bincount(y)
    present = np.flatnonzero(counts > 1)
    mixed = stream.permutation(np.flatnonzero(eligible))
    rows = np.sort(np.concatenate([mixed[:0], *(mixed[y[mixed] == label][:limit] for label in present)]))
    if len(present) < 2 or not len(rows):
        raise Problem(
            f"the swap test has {len(present)} classes of two samples or more and {len(rows)} samples that the model "
            "gets right; it needs two such classes and one such sample: audit more data, or a model that knows the task"
        )
    order, starts = np.argsort(y, kind="stable"), np.cumsum(counts) - counts
    place = np.empty_like(order)
    place[order] = np.arange(len(y))
    own = y[rows]
    other = stream.integers(0, len(present) - 1, len(rows))
    other = present[other + (other >= np.searchsorted(present, own))]
    donors = order[starts[other] + stream.integers(0, counts[other])]
    ahead = stream.integers(1, counts[own])  # places further on in the sample's class: never the sample itself
    same = order[starts[own] + (place[rows] - starts[own] + ahead) % counts[own]]
    return Pairs(rows, donors, same)


def ask(
    views: Sequence[View], read: Callable[[Tensor], Any], own: Rows, pairs: Pairs, answer: Answer
) -> tuple[dict[str, SwapAnswers], dict[str, str]]:
    """What the model answers to every pair in every view, and why a view could not be computed.

    An input that a swap leaves as it is has its answer already: the sample's own label (m,), since only samples that
    the model gets right are swapped.
    """
    parts: dict[str, list[tuple[Any, ...]]] = {view.name: [] for view in views}
    untested: dict[str, str] = {}
    starts = range(0, len(pairs.rows), BATCH)

    def ask_changed(rows: Tensor, changed: NDArray[np.bool_], swapped: Any, label: Rows) -> Rows:
        said, places = label.astype(np.int64), np.flatnonzero(changed)
        if len(places):
            inputs = swapped[places] if isinstance(swapped, Tensor) else [swapped[each] for each in places]
            said[places] = np.asarray(answer(rows[places], inputs))
        return said

    with task("swaps", len(starts) * len(views)) as advance:
        for start in starts:
            part = slice(start, start + BATCH)
            rows, donors, same = (torch.from_numpy(each[part]) for each in (pairs.rows, pairs.donors, pairs.same))
            x, others, fellows = read(rows), read(donors), read(same)
            for view in views:
                if view.name not in untested:
                    try:
                        both = [view.swap(x, given, rows) for given in (others, fellows)]
                    except Problem as problem:
                        untested[view.name] = str(problem)
                    else:
                        changed = [differs(x, swapped) for swapped in both]
                        said = [ask_changed(rows, *each, own[part]) for each in zip(changed, both, strict=True)]
                        parts[view.name].append((*said, changed[0]))
                advance()
    joined = {name: [np.concatenate(each) for each in zip(*said, strict=True)] for name, said in parts.items()}
    return {name: SwapAnswers(*each) for name, each in joined.items() if name not in untested}, untested


def differs(x: Any, swapped: Any) -> NDArray[np.bool_]:
    """(b,) whether an input is another one after the swap."""
    if isinstance(x, Tensor):
        return np.asarray((x != swapped).flatten(1).any(1))
    return np.array([before != after for before, after in zip(x, swapped, strict=True)], bool)


# --- From answers to reliance: chance, interval and p, all views at once


@dataclass(frozen=True, eq=False)
class Design:
    """Which classes met: labels (m,) of the samples and of their donors, and the units of the samples."""

    own: Rows
    donor: Rows
    unit: Rows

    @property
    def paired(self) -> bool:
        """Whether there are only two classes, so that donors of the sample's own class must stand in."""
        return len(np.union1d(self.own, self.donor)) < 3

    def groups(self) -> list[Rows]:
        """The places of the samples of each class."""
        return [np.flatnonzero(self.own == label) for label in np.unique(self.own)]


def judge(views: Sequence[View], said: dict[str, SwapAnswers], design: Design, seed: int) -> tuple[Reliance, ...]:
    """The reliance on each view, strongest first; p holds its excess against the largest of all views by chance."""
    if not views:
        return ()
    answers = [said[view.name] for view in views]
    largest = by_chance(answers, design, seed).max(0)
    units, found = len(np.unique(design.unit)), []
    # above what chance gives in 19 of 20 draws, in four of five tests; one hit alone is never beyond chance
    bar = max(float(np.quantile(largest, 1 - LEVEL)), 2 / len(design.own))
    for view, each, (follows, chance, excess) in zip(views, answers, estimates(answers, design, seed), strict=True):
        beaten = int((largest >= excess.value / 100 - 1e-12).sum())
        share = min(1.0, chance / 100 + bar)
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
                detectable=min(100.0, 100 * (bar + POWER * float(np.sqrt(share * (1 - share) / units)))),
                null=chance + 100 * max(0.0, float(np.quantile(largest, 1 - LEVEL))),
            )
        )
    return tuple(sorted(found, key=lambda each: -each.excess.value))


def excesses(answers: Sequence[SwapAnswers], design: Design, weights: Vector) -> tuple[Vector, Vector]:
    """(v, b) shares of hits and of hits expected by chance, exactly, under b weightings (b, m) of the samples."""
    total = weights.sum(1)
    hits = np.stack([weights @ (each.other == design.donor) for each in answers])
    if design.paired:
        return hits / total, np.stack([weights @ (each.same == design.donor) for each in answers]) / total
    expected = np.zeros_like(hits)
    labels = np.arange(int(max(design.donor.max(), *(each.other.max() for each in answers))) + 1)
    for group in design.groups():
        part = weights[:, group]
        offered = part @ (design.donor[group, None] == labels)
        for number, each in enumerate(answers):
            given = part @ (each.other[group, None] == labels)
            expected[number] += (given * offered).sum(1) / np.maximum(part.sum(1), 1)
    return hits / total, expected / total


def by_chance(answers: Sequence[SwapAnswers], design: Design, seed: int) -> Vector:
    """(v, PERMUTATIONS) shares of hits beyond chance when the donors' labels say nothing: one draw for all views."""
    stream, size = numpy_stream(seed, "swap", "null"), len(design.own)
    drawn = np.zeros((len(answers), PERMUTATIONS))
    if design.paired:
        gains = [(each.other == design.donor).astype(int) - (each.same == design.donor) for each in answers]
        _, unit = np.unique(design.unit, return_inverse=True)
        sums = np.stack([np.bincount(unit, gain) for gain in gains], 1)
        for start in range(0, PERMUTATIONS, step := max(1, CHUNK // len(sums))):
            signs = stream.integers(0, 2, (min(step, PERMUTATIONS - start), len(sums))) * 2.0 - 1
            drawn[:, start : start + len(signs)] = (signs @ sums).T / size
        return drawn
    for group in design.groups():
        labels = np.broadcast_to(design.donor[group], (PERMUTATIONS, len(group)))
        permuted = stream.permuted(labels, axis=1)
        for number, each in enumerate(answers):
            drawn[number] += (permuted == each.other[group]).sum(1)
    _, expected = excesses(answers, design, np.ones((1, size)))
    return drawn / size - expected


def resampled(design: Design, seed: int) -> Iterator[Vector]:
    """Weightings (b, m) of the samples, DRAWS in all: how often a bootstrap sample of the units holds each's unit."""
    _, unit = np.unique(design.unit, return_inverse=True)
    units, stream = int(unit.max()) + 1, numpy_stream(seed, "swap", "bootstrap")
    for start in range(0, DRAWS, step := max(1, CHUNK // len(unit))):
        count = min(step, DRAWS - start)
        chosen = stream.integers(0, units, (count, units)) + units * np.arange(count)[:, None]
        times = np.bincount(chosen.ravel(), minlength=count * units).reshape(count, units)
        yield times[:, unit].astype(np.float64)


def estimates(answers: Sequence[SwapAnswers], design: Design, seed: int) -> list[tuple[float, float, Estimate]]:
    """For each view hits, hits by chance and the excess, in percent.

    The bootstrap of an event that was never seen has no width, so no interval is narrower than the exact binomial one.
    """
    hits, chance = (each[:, 0] for each in excesses(answers, design, np.ones((1, len(design.own)))))
    drawn = [np.subtract(*excesses(answers, design, weights)) for weights in resampled(design, seed)]
    lows, highs = np.percentile(np.concatenate(drawn, 1), [2.5, 97.5], axis=1)
    units, found = len(np.unique(design.unit)), []
    method = f"bootstrap over {units:,} units, no narrower than the exact binomial interval"
    for share, expected, low, high in zip(hits.tolist(), chance.tolist(), lows, highs, strict=True):
        least, most = (bound - expected for bound in binomial_interval(share, units))
        ends = 100 * float(min(low, least)), 100 * float(max(high, most))
        found.append((100 * share, 100 * expected, Estimate(100 * (share - expected), *ends, method)))
    return found
