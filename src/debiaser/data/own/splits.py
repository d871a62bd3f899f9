"""Rows dealt to splits and folds: whole units, classes in proportion, the same for the same seed."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from debiaser.io import numpy_stream

Ints = npt.NDArray[np.int64]


def folds(y: npt.ArrayLike, unit: npt.ArrayLike, k: int, seed: int) -> Ints:
    """(n,) fold numbers from 0: no unit in two folds, classes balanced; fewer folds where a class has too few units."""
    count = max(2, min(k, int(units_per_class(y, unit).min(initial=k))))
    return deal(y, unit, [1 / count] * count, seed)


def units_per_class(y: npt.ArrayLike, unit: npt.ArrayLike) -> Ints:
    """How many units hold each of the classes that occur, in the order of the classes."""
    pairs = np.unique(np.stack([np.asarray(y), np.asarray(unit)], 1).astype(np.int64), axis=0)
    return np.unique(pairs[:, 0], return_counts=True)[1].astype(np.int64)


def deal(y: npt.ArrayLike, unit: npt.ArrayLike, shares: Sequence[float], seed: int) -> Ints:
    """(n,) part numbers: each part gets its share of every class, in whole units.

    Units of several rows go first, the largest first, each to the part that is then least full for its classes; units
    of one row fill up what is left over. A class that has a unit for each part is then in each part.
    """
    _, label = np.unique(np.asarray(y), return_inverse=True)
    _, number = np.unique(np.asarray(unit), return_inverse=True)
    units = int(number.max(initial=-1)) + 1
    rng = numpy_stream(seed, "deal")
    size = np.bincount(number, minlength=units)
    share = np.asarray(shares, np.float64)
    filled = np.zeros((len(share), int(label.max(initial=-1)) + 1))
    part = np.full(units, -1, np.int64)
    shuffled = rng.permutation(units)
    large = shuffled[np.argsort(-size[shuffled], kind="stable")]
    _deal_large(part, large[size[large] > 1], label, number, share, filled)
    first = np.zeros(units, np.int64)
    first[number] = label
    single = shuffled[size[shuffled] == 1]
    for one in range(filled.shape[1]):
        chosen = single[first[single] == one]
        part[chosen] = _slots(filled[:, one], share, len(chosen))
    _visit_all(part, label, number, size, len(share))
    return part[number]


def _deal_large(
    part: Ints, units: Ints, label: Ints, number: Ints, share: npt.NDArray[np.float64], filled: npt.NDArray[np.float64]
) -> None:
    order = np.argsort(number, kind="stable")
    starts = np.searchsorted(number[order], units)
    ends = np.searchsorted(number[order], units, side="right")
    total = np.bincount(label)
    for unit, start, end in zip(units, starts, ends, strict=True):
        kinds, counts = np.unique(label[order[start:end]], return_counts=True)
        level = ((filled[:, kinds] + counts) / share[:, None] * (counts / total[kinds])).sum(1)
        part[unit] = level.argmin()
        filled[part[unit], kinds] += counts


def _slots(filled: npt.NDArray[np.float64], share: npt.NDArray[np.float64], count: int) -> Ints:
    """The parts that `count` single rows go to, so that each part comes as near to its share as whole rows can."""
    level = (filled[:, None] + np.arange(count) + 0.5) / share[:, None]
    parts = np.repeat(np.arange(len(share)), count)
    return parts[np.argsort(level.reshape(-1), kind="stable")[:count]]


def _visit_all(part: Ints, label: Ints, number: Ints, size: Ints, parts: int) -> None:
    """Moves the smallest units of a class to parts that have none of it, from those that have several."""
    pairs = np.unique(np.stack([label, number], 1), axis=0)
    for one in range(int(label.max(initial=-1)) + 1):
        members = pairs[pairs[:, 0] == one, 1]
        members = members[np.argsort(size[members], kind="stable")]
        for empty in np.setdiff1d(np.arange(parts), part[members]):
            held = np.bincount(part[members], minlength=parts)
            spare = members[held[part[members]] > 1]
            if len(spare):
                part[spare[held[part[spare]] == held[part[spare]].max()][0]] = empty
