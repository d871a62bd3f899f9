"""Suspects: does a column that is not the input tell the label? Counted out of fold, held against chance.

Balanced accuracy does not reward naming the large class, and chance is the same rule on permuted labels, so an
imbalanced dataset makes no column suspect. One sample of each unit takes part: those of one patient are one proof.
"""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import random_table

from debiaser.io import numpy_stream

Rows = NDArray[np.int64]

FOLDS = 5
PERMUTATIONS = 999
RATE = 0.01  # false discoveries among the flagged: of a hundred datasets without a suspect, one names some
SMALLEST = 0.05  # of the way from chance to perfect: below, a column tells too little to matter, however sure that is
BINS, VALUES = 16, 50  # parts that numbers are cut into; values of a column that are kept apart
FEWEST = 5  # samples of a value, below which it counts among the others; as many expected in a cell that is empty
SHOWN = 20  # values listed of a column
MISSING, OTHERS = "(missing)", "(others)"


@dataclass(frozen=True)
class Leakage:
    """A column: how well it tells the label out of fold (percent), what chance gives, p, q (false discovery rate).

    values: samples and the biased model's error rate (percent) for each value; empty: those that a label never has.
    """

    column: str
    balanced_accuracy: float
    chance: float
    p: float
    q: float
    flagged: bool
    values: tuple[dict[str, Any], ...]
    empty: tuple[dict[str, Any], ...]

    def first_empty_cell(self) -> str:
        """The first of its empty cells in words, and how many more there are."""
        cell, others = self.empty[0], len(self.empty) - 1
        words = f"{self.column} '{cell['value']}' never goes with label '{cell['label']}'"
        return words + (f" (and {others:,} more such cells)" if others else "")


def find_leakage(
    columns: Mapping[str, NDArray[Any]],
    y: Rows,
    unit: Rows,
    wrong: NDArray[np.bool_],
    classes: Sequence[str],
    seed: int = 0,
) -> list[Leakage]:
    """Every column (n,) that varies, the most telling first; `wrong` (n,): misclassified by the biased model."""
    rows = one_of_each(unit, seed)
    fold = numpy_stream(seed, "suspects", "folds").permutation(len(rows)) % FOLDS
    _, label = np.unique(y[rows], return_inverse=True)
    coded = {name: coded_values(values) for name, values in columns.items()}
    coded = {name: pair for name, pair in coded.items() if len(np.unique(pair[0][rows])) > 1}
    if len(np.unique(label)) < 2:
        return []
    tests = [
        hold_against_chance(fold * len(names) + code[rows], label, len(names), len(coded), seed, name)
        for name, (code, names) in coded.items()
    ]
    adjusted = false_discovery_rates(np.array([p for _, _, p in tests]))
    found = []
    for (name, (code, names)), (value, chance, p), q in zip(coded.items(), tests, adjusted, strict=True):
        flagged = bool(q <= RATE and value - chance >= SMALLEST * (1 - chance))
        empty = empty_cells(code, y, unit, names, classes) if flagged else ()
        listed = error_rates(code, wrong, names)
        found.append(Leakage(name, 100 * value, 100 * chance, p, float(q), flagged, listed, empty))
    return sorted(found, key=lambda each: (not each.flagged, each.chance - each.balanced_accuracy))


def one_of_each(unit: Rows, seed: int) -> Rows:
    """One sample of every unit, at random."""
    mixed = numpy_stream(seed, "suspects", "units").permutation(len(unit))
    return np.sort(mixed[np.unique(unit[mixed], return_index=True)[1]])


# --- values ---------------------------------------------------------------------------------------------------------


def coded_values(values: NDArray[Any]) -> tuple[Rows, list[str]]:
    """(n,) the number of each sample's value, and the values' names: numbers cut at quantiles, rare values as others.

    The labels have no part in it.
    """
    texts = np.char.strip(np.asarray(values).astype(str))
    gone, numbers = np.isin(np.char.lower(texts), ["", "nan", "none", "na", "n/a", "null"]), None
    with suppress(ValueError):  # some are no numbers
        numbers = np.where(gone, "0", texts).astype(np.float64)
        gone = gone | ~np.isfinite(numbers)
        numbers = np.where(gone, 0.0, numbers)
    if numbers is not None and len(np.unique(numbers[~gone])) > BINS:
        edges = np.unique(np.quantile(numbers[~gone], np.linspace(0, 1, BINS + 1)))
        code = np.clip(np.searchsorted(edges, numbers, side="right") - 1, 0, len(edges) - 2)
        names = [f"{low:.6g} to {high:.6g}" for low, high in pairwise(edges)]
    else:
        texts = np.where(gone, MISSING, np.asarray(values).astype(str))
        found, code, counts = np.unique(texts, return_inverse=True, return_counts=True)
        kept = np.sort(np.argsort(-counts, kind="stable")[:VALUES])
        kept = kept[counts[kept] >= FEWEST]
        place = np.full(len(found), len(kept))
        place[kept] = np.arange(len(kept))
        return place[code], [*found[kept].tolist(), OTHERS]
    return np.where(gone, len(names), code), [*names, MISSING]


# --- telling the label ----------------------------------------------------------------------------------------------


def balanced_accuracies(tables: NDArray[np.int64], values: int) -> NDArray[np.float64]:
    """(b,) how well values tell labels, from counts (b, FOLDS * values, k): each value names the label that is most
    frequent with it in the other folds, relative to the label's size; the mean over labels of the share named."""
    b, _, labels = tables.shape
    counts = tables.reshape(b, FOLDS, values, labels).astype(np.float64)
    others = counts.sum(1, keepdims=True) - counts
    named = (others / np.maximum(others.sum(2, keepdims=True), 1)).argmax(3)
    hits = (counts * (named[..., None] == np.arange(labels))).sum((1, 2))
    accuracies: NDArray[np.float64] = (hits / counts.sum((1, 2))).mean(1)
    return accuracies


def hold_against_chance(
    cell: Rows, label: Rows, values: int, columns: int, seed: int, name: str
) -> tuple[float, float, float]:
    """Balanced accuracy out of fold, its mean under permuted labels, and p, from cells (n,) = fold * values + value.

    Permuting labels draws a table of counts with the same margins: it is drawn as such, whatever the number of rows. A
    column that beats every draw gets as many as a decision among so many columns needs.
    """
    table = np.zeros((FOLDS * values, int(label.max()) + 1), np.int64)
    np.add.at(table, (cell, label), 1)
    used = table.sum(1) > 0
    value = float(balanced_accuracies(table[None], values)[0])

    def draw(count: int, word: str) -> NDArray[np.float64]:
        stream, parts = numpy_stream(seed, "suspects", word, name), []
        for start in range(0, count, PERMUTATIONS):
            size = min(PERMUTATIONS, count - start)
            drawn = np.zeros((size, *table.shape), np.int64)
            margins = random_table(table.sum(1)[used], table.sum(0))
            drawn[:, used] = margins.rvs(size, random_state=stream)
            parts.append(balanced_accuracies(drawn, values))
        return np.concatenate(parts)

    null = draw(PERMUTATIONS, "null")
    p = (1 + int((null >= value - 1e-12).sum())) / (1 + PERMUTATIONS)
    needed = math.ceil(2 * columns / RATE)
    if p <= 1 / (1 + PERMUTATIONS) and needed > PERMUTATIONS:
        more = draw(needed, "more")
        p = (1 + int((more >= value - 1e-12).sum())) / (1 + needed)
    return value, float(null.mean()), p


def false_discovery_rates(p: NDArray[np.float64]) -> NDArray[np.float64]:
    """(m,) the smallest rate at which each would be flagged (Benjamini and Hochberg).

    `scipy.stats.false_discovery_control` but for the last bits, which records of old audits hold.
    """
    order = np.argsort(p)[::-1]
    rates = np.minimum.accumulate(p[order] * len(p) / np.arange(len(p), 0, -1))
    result = np.empty(len(p))
    result[order] = np.minimum(rates, 1)
    return result


# --- what the page shows --------------------------------------------------------------------------------------------


def error_rates(code: Rows, wrong: NDArray[np.bool_], names: Sequence[str]) -> tuple[dict[str, Any], ...]:
    """Value, samples and the biased model's error rate in percent, for the most frequent values."""
    counts, errors = (np.bincount(code, weights, len(names)) for weights in (None, wrong.astype(float)))
    largest = np.argsort(-counts, kind="stable")[:SHOWN]
    return tuple(
        {"value": names[each], "n": int(counts[each]), "error_rate": float(100 * errors[each] / counts[each])}
        for each in largest
        if counts[each]
    )


def empty_cells(
    code: Rows, y: Rows, unit: Rows, names: Sequence[str], classes: Sequence[str]
) -> tuple[dict[str, Any], ...]:
    """Pairs of value and label without a sample where at least FEWEST units would be expected."""
    table = np.zeros((len(names), len(classes)), np.int64)
    np.add.at(table, (code, y), 1)
    each = np.unique(np.stack([code, y, unit], 1), axis=0)  # samples of one unit that agree in both are one
    values, labels = np.bincount(each[:, 0], minlength=len(names)), np.bincount(each[:, 1], minlength=len(classes))
    expected = np.outer(values, labels) / len(each)
    return tuple(
        {"value": names[value], "label": classes[label]}
        for value, label in np.argwhere((table == 0) & (expected >= FEWEST))
    )
