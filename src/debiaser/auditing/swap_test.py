"""The swap test: give an input one property of an input of another class; whose class does the model answer?"""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import beta
from torch import Tensor

from debiaser import __version__
from debiaser.auditing.crossval import Models, OutOfFold, Rows, Trainer, Vector, train_plain_models
from debiaser.auditing.estimates import CHUNK, DRAWS, Estimate, binomial_interval
from debiaser.auditing.inputs import LARGEST, Material, Subject, file_of, stream_of
from debiaser.auditing.views import View, image_views, text_views, with_matters
from debiaser.data.cache import load_arrays, user_cache
from debiaser.data.own.rows import units_per_class
from debiaser.errors import Problem
from debiaser.io import numpy_stream, write_arrays
from debiaser.learn.encoders import pixels
from debiaser.progress import task, track

Answer = Callable[[Tensor, Any], Any]  # from sample numbers and changed inputs to classes (b,)

PERMUTATIONS = 999
LEVEL = 0.05  # of the test
POWER = 0.8416  # standard normal quantile of 80%: the smallest effect is one found in four of five tests
ROWS, ROWS_PER_CLASS = 2000, 200  # swaps in all, and at least so many in each class
ENCODED = 300  # swaps in all where each costs a pass through a large encoder
SCREENED = {True: 64, False: 320}  # swaps of a local view that are tried first, with such an encoder and without
FOLLOWED, FOLLOWED_SHARE = 4, 0.03  # so many, and such a share, of them must be followed for it to be tested
BATCH = 64  # few, since a swap makes several more of each, and images may be large


@dataclass(frozen=True)
class InClass:
    """How far the model follows one property of donors of one class: points beyond chance, p over all classes."""

    name: str
    excess: Estimate
    p: float


@dataclass(frozen=True)
class Reliance:
    """How far the model follows one property; everything in percent of swaps, `excess` in points beyond chance.

    flips, flips_same_class: answers that change with a donor of another and of the same class; changed: inputs that the
    swap changes at all; detectable: the smallest excess that would have been found in four of five such tests; null:
    what chance reaches in 19 of 20 draws, the largest over all views; by_class: the excess by the donor's class, and
    `strongest` of these the surest; words: those that were swapped; declared: a person said that the model may follow
    it; screened: only a few swaps were tried, of which hardly one was followed.
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
    by_class: dict[str, float] = field(default_factory=dict)
    strongest: InClass | None = None
    words: tuple[str, ...] = ()
    declared: bool = False
    screened: bool = False


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
    subject: Subject, trainer: Trainer, plain: OutOfFold, views: Sequence[View], most: int | None = None
) -> SwapTest | Problem:
    """The swap test of the plain models on the samples they never saw; the problem, where it cannot be made.

    most: swaps of one view in all; None for what the model's cost allows.
    """
    named = [view.identity for view in views]
    words = repr((__version__, plain.keys, subject.own.identity, named, trainer.seed, most))
    kept = trainer.folder / f"swaps-{hashlib.blake2b(words.encode(), digest_size=10).hexdigest()}.npz"
    models = trainer.read_models(plain.keys)
    return swap_models(subject, trainer, trainer, models, views, plain.answer[trainer.rows], kept, most)


@dataclass(frozen=True, eq=False)
class Probe:
    """A small network that was trained on the pixels, beside a head on features: what it says and what it follows."""

    plain: OutOfFold
    swaps: SwapTest | Problem


def probe_pixels(subject: Subject, trainer: Trainer, views: Sequence[View]) -> Probe | None:
    """What a network would follow that sees what frozen features may hide: half of the samples at a time, 64 px.

    None where the examined model itself is trained on the samples, or where the probe cannot be trained.
    """
    own = subject.own
    if own.kind != "image" or subject.encoder is None or subject.whole:
        return None
    array = pixels(own.inputs.identity, len(own), stream_of(own, LARGEST), LARGEST, user_cache("features"))
    material = Material(file_of(array), own.classes, f"{own.inputs.identity}:{LARGEST}")
    halves = np.where(trainer.fold < 0, -1, trainer.fold % 2)
    trainer = replace(trainer, material=material, fold=halves)
    try:
        plain = train_plain_models(trainer, 1)
    except Problem:  # it is beside the point of an audit
        return None
    subject = replace(subject, material=material, encoder=None, size=LARGEST)
    return Probe(plain, swap_plain_models(subject, trainer, plain, views, ENCODED))


def swap_models(
    subject: Subject,
    trainer: Trainer,
    asker: Trainer,
    models: Models,
    views: Sequence[View],
    answers: Rows,
    kept: Path | None = None,
    most: int | None = None,
) -> SwapTest | Problem:
    """The swap test on those samples of the folds whose `answers`, in their order, are right; or why there is none.

    asker: like the trainer, its folds those of these models.
    """
    pool, names = trainer.rows, trainer.material.classes
    most = ENCODED if subject.encoder else most
    limit = None if most is None else -(-most // len(names))

    def read(rows: Tensor) -> Any:
        return subject.read(torch.from_numpy(pool[rows.numpy()]))

    def answer(rows: Tensor, inputs: Any) -> Rows:
        said = asker.predict_changed(models, pool[rows.numpy()], subject.enter(inputs))
        return np.asarray(said.mean(0).argmax(1))

    try:
        y, unit, screened = trainer.y[pool], subject.own.unit[pool], SCREENED[subject.encoder is not None]
        return swap_test(views, read, y, unit, answers, answer, trainer.seed, limit, kept, screened, names)
    except Problem as problem:
        return problem


def predict_swapped(
    subject: Subject, asker: Trainer, view: View, rows: Rows, donors: Rows, places: Rows, models: Sequence[Models]
) -> list[Vector]:
    """(s, m, k) for each of these sets of models what it says of samples `rows` (m,) that take the view of `donors`.

    places: of the samples among the examined ones, which a view of texts knows them by.
    """
    said = [[np.zeros((len(each), 0, len(asker.material.classes)))] for each in models]
    for start in track(range(0, len(rows), BATCH), "planted samples"):
        part = slice(start, start + BATCH)
        x, given = (subject.read(torch.from_numpy(each[part])) for each in (rows, donors))
        entered = subject.enter(view.swap(x, given, torch.from_numpy(places[part])))
        for parts, each in zip(said, models, strict=True):
            parts.append(asker.predict_changed(each, rows[part], entered))
    return [np.concatenate(parts, 1) for parts in said]


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
    screened: int = 0,
    names: Sequence[str] = (),
) -> SwapTest:
    """The test of these views on the samples (n,) whose out-of-fold `answers` are right, at most `limit` of a class.

    `read(rows)` gives inputs; `answer(rows, inputs)` the class (b,) that a model which never saw these samples answers.
    The answers are kept in a file, where one is named: the next time nothing is read and no model is asked. About
    `screened` swaps of every local view are tried first, and it is tested only where some of them are followed; they
    have donors of their own, so that the p of the test stays what it says. `names`: of the classes.
    """
    labels, right = np.unique(y), answers == y
    pairs = draw_pairs(y, right, limit or max(ROWS_PER_CLASS, -(-ROWS // len(labels))), seed)
    few = draw_pairs(y, right, max(1, -(-screened // len(labels))), seed, "screening")
    found = load_arrays(kept) if kept else None
    if found is None:
        said, reasons = ask([view for view in views if view.local and screened], read, y, few, answer, control=False)
        enough = needed(len(few.rows))
        calm = [name for name, each in said.items() if (each.other == y[few.donors]).sum() < enough]
        rest, more = ask([view for view in views if view.name not in {*calm, *reasons}], read, y, pairs, answer)
        said, reasons = {**said, **rest}, {**reasons, **more}
        if kept:
            arrays = {name: np.stack([each.other, each.same, each.changed]) for name, each in said.items()}
            write_arrays(kept, **arrays, reasons=np.array(json.dumps([reasons, calm])))
    else:
        reasons, calm = json.loads(str(found.pop("reasons")))
        said = {name: SwapAnswers(each[0], each[1], each[2] > 0) for name, each in found.items()}
    untested = tuple(
        {"name": view.name, "title": view.title, "nuisance": view.nuisance, "reason": reasons[view.name]}
        for view in views
        if view.name in reasons
    )
    names = names or [str(each) for each in range(int(y.max()) + 1)]
    reliances: list[Reliance] = []
    for drawn, some in ((pairs, False), (few, True)):
        design = Design(y[drawn.rows], y[drawn.donors], unit[drawn.rows])
        asked = [view for view in views if view.name in said and (view.name in calm) == some]
        reliances += judge(asked, said, design, seed, names, screened=some)
    eligible = np.bincount(y[right], minlength=int(y.max()) + 1)[labels]
    return SwapTest(
        tuple(sorted(reliances, key=lambda each: -each.excess.value)),
        untested,
        int(eligible.min()),
        int(units_per_class(y, unit).min()),
        pairs,
        {name: each.other for name, each in said.items() if name not in calm},
    )


def draw_pairs(y: Rows, eligible: NDArray[np.bool_], limit: int, seed: int, purpose: str = "pairs") -> Pairs:
    """At most `limit` eligible samples of each class, each with donors of another class (all as likely) and its own."""
    stream = numpy_stream(seed, "swap", purpose)
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
    views: Sequence[View],
    read: Callable[[Tensor], Any],
    y: Rows,
    pairs: Pairs,
    answer: Answer,
    control: bool = True,
) -> tuple[dict[str, SwapAnswers], dict[str, str]]:
    """What the model answers to every pair in every view, and why a view could not be computed.

    An input that a swap leaves as it is has its answer already: the sample's own label, since only samples that the
    model gets right are swapped. Without `control`, donors of the same class are not tried: as if they changed nothing.
    """
    own = y[pairs.rows]
    parts: dict[str, list[tuple[Any, ...]]] = {view.name: [] for view in views}
    untested: dict[str, str] = {}
    starts = range(0, len(pairs.rows) if views else 0, BATCH)

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
            x, others = read(rows), read(donors)
            fellows = read(same) if control else None
            for view in views:
                if view.name not in untested:
                    try:
                        both = [x if given is None else view.swap(x, given, rows) for given in (others, fellows)]
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

    @property
    def offered(self) -> Rows:
        """The classes of the donors."""
        return np.unique(self.donor)

    def groups(self) -> list[Rows]:
        """The places of the samples of each class."""
        return [np.flatnonzero(self.own == label) for label in np.unique(self.own)]


def judge(
    views: Sequence[View],
    said: dict[str, SwapAnswers],
    design: Design,
    seed: int,
    names: Sequence[str],
    screened: bool = False,
) -> list[Reliance]:
    """The reliance on each view; p holds its excess against the largest of all views by chance."""
    if not views:
        return []
    answers = [said[view.name] for view in views]
    largest = by_chance(answers, design, seed).max(0)
    units, found = len(np.unique(design.unit)), []
    # above what chance gives in 19 of 20 draws, in four of five tests; one hit alone is never beyond chance
    null = float(np.quantile(largest[:, 0], 1 - LEVEL))
    bar = max(null, 2 / len(design.own))
    # the share that the model must follow for enough of the swaps to be followed in four of five screenings
    seen = float(beta.ppf(0.8, needed(units), units - needed(units) + 1)) if units >= FOLLOWED else 1.0
    for view, each, excess in zip(views, answers, estimates(answers, design, seed), strict=True):
        values = np.array([part.value for part in excess])
        p = (1 + (largest >= values / 100 - 1e-12).sum(0)) / (1 + len(largest))
        p[1:] = np.minimum(1, p[1:] * len(p[1:]))  # of all classes
        classes = [
            InClass(names[label], part, float(value))
            for label, part, value in zip(design.offered, excess[1:], p[1:], strict=True)
        ]
        chance = 100 * float((each.other == design.donor).mean()) - excess[0].value
        share = min(1.0, chance / 100 + bar)
        detectable = bar + POWER * float(np.sqrt(share * (1 - share) / units))
        found.append(
            Reliance(
                view.name,
                view.title,
                view.nuisance,
                len(design.own),
                follows=chance + excess[0].value,
                chance=chance,
                excess=excess[0],
                p=float(p[0]),
                flips=100 * float((each.other != design.own).mean()),
                flips_same_class=100 * float((each.same != design.own).mean()),
                changed=100 * float(each.changed.mean()),
                detectable=min(100.0, 100 * (seen if screened else detectable)),
                null=chance + 100 * max(0.0, null),
                by_class={part.name: part.excess.value for part in classes},
                strongest=max(classes, key=lambda part: (part.p <= LEVEL, part.excess.low or 0)),
                words=view.words,
                declared=view.declared,
                screened=screened,
            )
        )
    return found


def needed(n: int) -> int:
    """How many of n swaps that are tried must be followed for a view to be tested."""
    return max(FOLLOWED, round(FOLLOWED_SHARE * n))


def excesses(answers: Sequence[SwapAnswers], design: Design, weights: Vector) -> Vector:
    """(v, b, 1 + c) shares of hits beyond those expected by chance, exactly, under b weightings (b, m) of the samples:
    of all swaps, then of those with a donor of each offered class."""
    labels = design.offered
    offers = (design.donor[:, None] == labels).astype(np.float64)
    offered, found = np.maximum(weights @ offers, 1e-12), []
    for each in answers:
        hits = weights @ (offers * (each.other == design.donor)[:, None])
        if design.paired:
            expected = weights @ (offers * (each.same == design.donor)[:, None])
        else:
            given = (each.other[:, None] == labels).astype(np.float64)
            expected = np.zeros_like(hits)
            for group in design.groups():
                part = weights[:, group]
                expected += (part @ given[group]) * (part @ offers[group]) / np.maximum(part.sum(1, keepdims=True), 1)
        beyond = hits - expected
        found.append(
            np.concatenate([beyond.sum(1, keepdims=True) / weights.sum(1, keepdims=True), beyond / offered], 1)
        )
    return np.stack(found)


def by_chance(answers: Sequence[SwapAnswers], design: Design, seed: int) -> Vector:
    """(v, PERMUTATIONS, 1 + c) shares of hits beyond chance, as of `excesses`, when the donors' labels say nothing: one
    draw for all views."""
    stream, labels = numpy_stream(seed, "swap", "null"), design.offered
    offers = (design.donor[:, None] == labels).astype(np.float64)
    drawn = np.zeros((len(answers), PERMUTATIONS, len(labels)))  # hits by class
    if design.paired:
        _, unit = np.unique(design.unit, return_inverse=True)
        gains = [(each.other == design.donor).astype(float) - (each.same == design.donor) for each in answers]
        sums = [np.stack([np.bincount(unit, gain * offer) for offer in offers.T], 1) for gain in gains]
        for start in range(0, PERMUTATIONS, step := max(1, CHUNK // len(sums[0]))):
            signs = stream.integers(0, 2, (min(step, PERMUTATIONS - start), len(sums[0]))) * 2.0 - 1
            drawn[:, start : start + len(signs)] = signs @ np.stack(sums)
    else:
        for group in design.groups():
            permuted = stream.permuted(np.broadcast_to(design.donor[group], (PERMUTATIONS, len(group))), axis=1)
            for number, each in enumerate(answers):
                hits = permuted == each.other[group]
                given = (each.other[group, None] == labels).astype(np.float64)
                drawn[number] += hits @ given - given.sum(0) * offers[group].sum(0) / len(group)
    total = drawn.sum(2, keepdims=True) / len(design.own)
    return np.concatenate([total, drawn / np.maximum(offers.sum(0), 1)], 2)


def resampled(design: Design, seed: int) -> Iterator[Vector]:
    """Weightings (b, m) of the samples, DRAWS in all: how often a bootstrap sample of the units holds each's unit."""
    _, unit = np.unique(design.unit, return_inverse=True)
    units, stream = int(unit.max()) + 1, numpy_stream(seed, "swap", "bootstrap")
    for start in range(0, DRAWS, step := max(1, CHUNK // len(unit))):
        count = min(step, DRAWS - start)
        chosen = stream.integers(0, units, (count, units)) + units * np.arange(count)[:, None]
        times = np.bincount(chosen.ravel(), minlength=count * units).reshape(count, units)
        yield times[:, unit].astype(np.float64)


def estimates(answers: Sequence[SwapAnswers], design: Design, seed: int) -> list[list[Estimate]]:
    """For each view the excess in points: of all swaps, then of those with a donor of each offered class.

    The bootstrap of an event that was never seen has no width, so no interval is narrower than the exact binomial one.
    """
    values = excesses(answers, design, np.ones((1, len(design.own))))[:, 0]
    drawn = np.concatenate([excesses(answers, design, weights) for weights in resampled(design, seed)], 1)
    lows, highs = np.percentile(drawn, [2.5, 97.5], axis=1)
    parts = [np.ones(len(design.own), bool), *(design.donor == label for label in design.offered)]
    units = [len(np.unique(design.unit[part])) for part in parts]
    found: list[list[Estimate]] = []
    for number, each in enumerate(answers):
        found.append([])
        for column, (part, n) in enumerate(zip(parts, units, strict=True)):
            value, share = values[number, column], float((each.other == design.donor)[part].mean())
            least, most = (bound - (share - value) for bound in binomial_interval(share, n))
            ends = float(min(lows[number, column], least)), float(max(highs[number, column], most))
            method = f"bootstrap over {n:,} units, no narrower than the exact binomial interval"
            found[-1].append(Estimate(100 * float(value), 100 * ends[0], 100 * ends[1], method))
    return found
