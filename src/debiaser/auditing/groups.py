"""Groups that a column tells: every class x group cell, and how far the group goes with the label."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from debiaser.auditing.crossval import Rows
from debiaser.auditing.estimates import Estimate, share

MOST = 20  # values of a group column that are told apart, the most frequent ones
FEWEST = 10  # samples from which on a cell is judged
NAMED = 4  # empty cells that the sentence names
MISSING, OTHER = "(missing)", "other"
Names = NDArray[np.str_]
Cells = dict[tuple[str, str], Rows]


def group_names(values: Names) -> Names:
    """(n,) the group of every sample: the most frequent values, and one name for all others."""
    values = np.where(values == "", MISSING, values)
    names, number, counts = np.unique(values, return_inverse=True, return_counts=True)
    if len(names) <= MOST:
        return values
    rare = np.argsort(-counts, kind="stable")[MOST:]
    return np.where(np.isin(number, rare), OTHER, values)


def group_cells(group: Names, y: Rows, classes: tuple[str, ...]) -> Cells:
    """By class and group the places of their samples; every pair of a class and a group that are there, also if empty.

    group: (n,) names, y: (n,) labels.
    """
    labels, by_label = np.unique(y, return_inverse=True)
    groups, by_group = np.unique(group, return_inverse=True)
    cell = by_label * len(groups) + by_group
    parts = np.split(np.argsort(cell, kind="stable"), np.bincount(cell, minlength=len(labels) * len(groups)).cumsum())
    pairs = ((classes[k], str(name)) for k in labels for name in groups)
    return dict(zip(pairs, parts[:-1], strict=True))


def describe_groups(
    column: str, group: Names, y: Rows, unit: Rows, classes: tuple[str, ...], plain: Rows, biased: Rows
) -> dict[str, Any]:
    """The table of all cells with the accuracy of both models, the plain model's worst cell, and the association of
    group and label; everything (n,) is over the same samples."""

    def accuracy(answer: Rows, rows: Rows) -> dict[str, Any]:
        right = answer[rows] == y[rows]
        if 0 < len(rows) < FEWEST:
            return Estimate(100 * float(right.mean()), method=f"fewer than {FEWEST} samples").plain
        return share(right, unit[rows]).plain

    found = group_cells(group_names(group), y, classes)
    cells: list[dict[str, Any]] = [
        {"class": k, "group": g, "n": len(rows), "plain": accuracy(plain, rows), "biased": accuracy(biased, rows)}
        for (k, g), rows in found.items()
    ]
    judged = [cell for cell in cells if cell["n"] >= FEWEST]
    worst = min(judged, key=lambda cell: cell["plain"]["value"], default=None)
    return {"column": column, "cells": cells, "worst": worst, "association": association(column, found)}


def association(column: str, cells: Cells) -> dict[str, Any]:
    """Cramér's V of group and label (None where either never varies), and what it means in a sentence."""
    from scipy.stats.contingency import association as scipy_association

    classes, groups = (list(dict.fromkeys(names)) for names in zip(*cells, strict=True))
    counts = np.array([len(rows) for rows in cells.values()]).reshape(len(classes), len(groups))
    v = float(scipy_association(counts, method="cramer")) if min(counts.shape) > 1 else None
    if ((counts > 0).sum(1) == 1).all():
        told = f"All samples of a class are of one group: '{column}' tells nothing beside the label, and cannot help."
        return {"cramers_v": v, "sentence": told}
    within = counts / counts.sum(1, keepdims=True)
    everywhere = counts.sum(0) / counts.sum()
    k, g = np.unravel_index((within - everywhere).argmax(), counts.shape)
    told = f"In {within[k, g]:.0%} of the samples of '{classes[k]}' the group is '{groups[g]}' "
    told += f"({everywhere[g]:.0%} of all samples)" + (f"; Cramér's V {v:.2f}." if v is not None else ".")
    if empty := [f"'{name}' x '{group}'" for (name, group), rows in cells.items() if not len(rows)]:
        more = f" and {len(empty) - NAMED:,} more" if len(empty) > NAMED else ""
        told += f" No samples at all: {', '.join(empty[:NAMED])}{more}."
    return {"cramers_v": v, "sentence": told}
