"""How far a model follows a property, from its answers to swapped inputs: chance, interval and p, all views at once.

A hit is a swap answered with the donor's class. By chance: the donors' labels permuted among the rows of one class.
With two classes all donors of a row have one label and nothing can be permuted: then a donor of the row's own class
stands in, and by chance each row's two answers trade places.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from debiaser.auditing.estimates import CHUNK, DRAWS, Estimate
from debiaser.randomness import numpy_stream

Rows = NDArray[np.int64]
Vector = NDArray[np.float64]

PERMUTATIONS = 999
LEVEL = 0.05  # of the test
POWER = 0.8416  # standard normal quantile of 80%: the smallest effect is one found in four of five tests


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

    @property
    def plain(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, eq=False)
class Asked:
    """Answers (m,) with a donor of another and of the same class, and whether the swap changed the input at all."""

    other: Rows
    same: Rows
    changed: NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Design:
    """Which classes met: labels (m,) of the rows and of their donors, and the units of the rows."""

    own: Rows
    donor: Rows
    unit: Rows

    @property
    def paired(self) -> bool:
        """Whether there are only two classes, so that donors of the row's own class must stand in."""
        return len(np.union1d(self.own, self.donor)) < 3

    def groups(self) -> list[Rows]:
        """The places of the rows of each class."""
        return [np.flatnonzero(self.own == label) for label in np.unique(self.own)]


def excesses(asked: Sequence[Asked], design: Design, weights: Vector) -> tuple[Vector, Vector]:
    """(v, b) shares of hits and of hits expected by chance, exactly, under b weightings (b, m) of the rows."""
    total = weights.sum(1)
    hits = np.stack([weights @ (each.other == design.donor) for each in asked])
    if design.paired:
        return hits / total, np.stack([weights @ (each.same == design.donor) for each in asked]) / total
    expected = np.zeros_like(hits)
    labels = np.arange(int(max(design.donor.max(), *(each.other.max() for each in asked))) + 1)
    for group in design.groups():
        part = weights[:, group]
        offered = part @ (design.donor[group, None] == labels)
        for number, each in enumerate(asked):
            given = part @ (each.other[group, None] == labels)
            expected[number] += (given * offered).sum(1) / np.maximum(part.sum(1), 1)
    return hits / total, expected / total


def by_chance(asked: Sequence[Asked], design: Design, seed: int) -> Vector:
    """(v, PERMUTATIONS) shares of hits beyond chance when the donors' labels say nothing: one draw for all views."""
    stream, size = numpy_stream(seed, "swap", "null"), len(design.own)
    drawn = np.zeros((len(asked), PERMUTATIONS))
    if design.paired:
        gains = [(each.other == design.donor).astype(int) - (each.same == design.donor) for each in asked]
        _, unit = np.unique(design.unit, return_inverse=True)
        sums = np.stack([np.bincount(unit, gain) for gain in gains], 1)
        for start in range(0, PERMUTATIONS, step := max(1, CHUNK // len(sums))):
            signs = stream.integers(0, 2, (min(step, PERMUTATIONS - start), len(sums))) * 2.0 - 1
            drawn[:, start : start + len(signs)] = (signs @ sums).T / size
        return drawn
    for group in design.groups():
        labels = np.broadcast_to(design.donor[group], (PERMUTATIONS, len(group)))
        permuted = stream.permuted(labels, axis=1)
        for number, each in enumerate(asked):
            drawn[number] += (permuted == each.other[group]).sum(1)
    _, expected = excesses(asked, design, np.ones((1, size)))
    return drawn / size - expected


def resampled(design: Design, seed: int) -> Iterator[Vector]:
    """Weightings (b, m) of the rows, DRAWS in all: how often a bootstrap sample of the units holds each row's unit."""
    _, unit = np.unique(design.unit, return_inverse=True)
    units, stream = int(unit.max()) + 1, numpy_stream(seed, "swap", "bootstrap")
    for start in range(0, DRAWS, step := max(1, CHUNK // len(unit))):
        count = min(step, DRAWS - start)
        chosen = stream.integers(0, units, (count, units)) + units * np.arange(count)[:, None]
        times = np.bincount(chosen.ravel(), minlength=count * units).reshape(count, units)
        yield times[:, unit].astype(np.float64)


def binomial_interval(share: float, n: int) -> tuple[float, float]:
    """The exact 95% interval (Clopper and Pearson) of a share seen in n trials."""
    from scipy.stats import beta

    hits = share * n
    low = float(beta.ppf(0.025, hits, n - hits + 1)) if hits > 0 else 0.0
    return low, float(beta.ppf(0.975, hits + 1, n - hits)) if hits < n else 1.0


def estimates(asked: Sequence[Asked], design: Design, seed: int) -> list[tuple[float, float, Estimate]]:
    """For each view hits, hits by chance and the excess, in percent.

    The bootstrap of an event that was never seen has no width, so no interval is narrower than the exact binomial one.
    """
    hits, chance = (each[:, 0] for each in excesses(asked, design, np.ones((1, len(design.own)))))
    drawn = [np.subtract(*excesses(asked, design, weights)) for weights in resampled(design, seed)]
    lows, highs = np.percentile(np.concatenate(drawn, 1), [2.5, 97.5], axis=1)
    units, found = len(np.unique(design.unit)), []
    for share, expected, low, high in zip(hits.tolist(), chance.tolist(), lows, highs, strict=True):
        least, most = (bound - expected for bound in binomial_interval(share, units))
        method = f"bootstrap over {units:,} units, no narrower than the exact binomial interval"
        ends = 100 * float(min(low, least)), 100 * float(max(high, most))
        found.append((100 * share, 100 * expected, Estimate(100 * (share - expected), *ends, method)))
    return found


def detectable(null: Vector, chance: float, rows: int, units: int) -> float:
    """The smallest excess, in percent, that is above what chance gives in 19 of 20 draws, in four of five tests."""
    bar = max(float(np.quantile(null, 1 - LEVEL)), 2 / rows)  # one hit alone is never beyond chance
    share = min(1.0, chance / 100 + bar)
    return min(100.0, 100 * (bar + POWER * float(np.sqrt(share * (1 - share) / units))))
