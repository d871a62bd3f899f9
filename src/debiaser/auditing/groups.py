"""Groups: of a column, with a table of every class x group cell; or propagated from a person's marks to all samples.

A mark is the shortcut's value in a sample ("water"); aligned and conflicting stand for the value that goes with the
sample's own class, and with the class that the biased model would rather answer. Groups are class x value.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from debiaser.auditing.crossval import Rows, Vector
from debiaser.auditing.estimates import Estimate, binomial_interval, share
from debiaser.auditing.marks import MARKS, marked_at_random
from debiaser.auditing.verdict import Examined
from debiaser.data.own.rows import first
from debiaser.errors import Problem
from debiaser.io import numpy_stream
from debiaser.learn.last_layer import equal_groups

MOST = 20  # values of a group column that are told apart, the most frequent ones
FEWEST = 10  # samples from which on a cell is judged
NAMED, LISTED = 4, 8  # empty cells, and groups with their sizes, that a sentence names
MISSING, OTHER = "(missing)", "other"
# Ways to propagate: whether marks weigh the same by class x value, not by value alone, and scikit-learn's C: few marks,
# many features. The one that finds more marks again, out of fold, is taken.
WAYS = ((False, 0.01), (True, 0.001))
LEVEL = 0.2  # of the test that features tell values beyond what the label tells
RANDOM = 8  # random marks of a class from which they tell how many of its samples have each value
FOLDS, TURNS = 5, 4  # of its cross-validation, of its learning curve
RISING = 2.0  # points of accuracy from which more marks are worth it
WEAK_CELL = 0.6  # of the marks in a class with a value that must be recovered
RELIABLE = 0.75  # of the marks in a class's rarer groups, from which on GroupDRO may rest on these

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


def describe_groups(examined: Examined, column: str) -> dict[str, Any] | None:
    """The table of all cells with the accuracy of both models, the plain model's worst cell, and the association of
    group and label; None where no column has the groups."""
    own, pool = examined.subject.own, examined.pool
    if own.group is None:
        return None
    y, unit = own.y.numpy()[pool], own.unit[pool]
    plain, biased = (said.answer[pool] == y for said in (examined.plain, examined.biased))

    def accuracy(right: NDArray[np.bool_], rows: Rows) -> dict[str, Any]:
        if 0 < len(rows) < FEWEST:
            return Estimate(100 * float(right[rows].mean()), method=f"fewer than {FEWEST} samples").plain
        return share(right[rows], unit[rows]).plain

    found = group_cells(group_names(own.group[pool]), y, own.classes)
    cells: list[dict[str, Any]] = [
        {"class": k, "group": g, "n": len(rows), "plain": accuracy(plain, rows), "biased": accuracy(biased, rows)}
        for (k, g), rows in found.items()
    ]
    judged = [cell for cell in cells if cell["n"] >= FEWEST]
    worst = min(judged, key=lambda cell: cell["plain"]["value"], default=None)
    related = association(column, found)
    if (count := len(np.unique(own.group[pool]))) > MOST:
        related["sentence"] += f" It has {count:,} values: all but the {MOST} most frequent are merged into '{OTHER}'."
    return {"column": column, "cells": cells, "worst": worst, "association": related}


def association(column: str, cells: Cells) -> dict[str, Any]:
    """Cramér's V of group and label (None where either never varies), and what it means in a sentence."""
    from scipy.stats.contingency import association as scipy_association

    classes, groups = (list(dict.fromkeys(names)) for names in zip(*cells, strict=True))
    counts = np.array([len(rows) for rows in cells.values()]).reshape(len(classes), len(groups))
    v = float(scipy_association(counts, method="cramer")) if min(counts.shape) > 1 else None
    if ((counts > 0).sum(1) == 1).all():
        told = f"Every class has only one group: '{column}' adds nothing to the label, and cannot help."
        return {"cramers_v": v, "sentence": told}
    within = counts / counts.sum(1, keepdims=True)
    everywhere = counts.sum(0) / counts.sum()
    k, g = np.unravel_index((within - everywhere).argmax(), counts.shape)
    told = f"In {within[k, g]:.0%} of the samples of '{classes[k]}' the group is '{groups[g]}' "
    told += f"({everywhere[g]:.0%} of all samples)" + (f"; Cramér's V {v:.2f}." if v is not None else ".")
    if empty := [f"'{name}' x '{group}'" for (name, group), rows in cells.items() if not len(rows)]:
        told += f" No samples at all: {first(empty, NAMED)}."
    return {"cramers_v": v, "sentence": told}


# --- Groups to train with: of a column, or from a few marks, which are propagated over features


@dataclass(frozen=True, eq=False)
class Groups:
    """Class x value of the shortcut, for every sample; `value` (n,) numbers `values`, `known` (n,) who was not guessed.

    source: in words where the values come from; propagation: everything that is reported of it.
    """

    value: Rows
    values: tuple[str, ...]
    known: NDArray[np.bool_]
    source: str
    propagation: dict[str, Any] = field(default_factory=dict)

    @property
    def flag(self) -> str:
        """What a model that was trained on these groups is flagged with."""
        return "uses group labels" if self.known.all() else "uses marks"

    def of(self, y: Rows) -> Rows:
        """(n,) numbers of the groups of samples with these labels."""
        return np.asarray(y * len(self.values) + self.value)

    @property
    def reliable(self) -> bool:
        """Whether the marks of every group but the largest of its class are mostly recovered."""
        cells = self.propagation.get("groups", [])
        largest = {cell["class"]: cell for cell in sorted(cells, key=lambda each: each["n"])}.values()
        rare = [cell for cell in cells if cell["n"] and cell not in largest]
        return all((cell["found_again"] or 0) >= 100 * RELIABLE for cell in rare)


def column_groups(group: NDArray[np.str_], y: Rows) -> Groups:
    """The groups of a column that is known for every sample with these labels (n,)."""
    values, number = np.unique(group_names(group), return_inverse=True)
    if all(len(np.unique(number[y == k])) < 2 for k in np.unique(y)):
        raise Problem("the column of --group has one value in every class, so it makes no groups; name another column")
    return Groups(number, tuple(map(str, values)), np.ones(len(group), bool), "the column of --group")


def propagate_marks(examined: Examined, marks: dict[int, str]) -> Groups:
    """The groups that these marks make of all samples: marks of samples in the pool are learnt from.

    Samples marked mislabelled say nothing of the shortcut. Marks of held-out samples are only known, not learnt from.
    """
    y = examined.trainer.y
    words = {row: word for row, mark in marks.items() if (word := as_value(examined, row, mark))}
    learnt = np.array([row for row in words if examined.place[row] >= 0], np.int64)
    values = tuple(sorted({words[row] for row in learnt.tolist()}))
    if len(values) < 2:
        nothing = "all are on held-out samples, which nothing learns from" if words else "all say mislabelled"
        only = f"all {len(learnt):,} say '{values[0]}'" if values else nothing
        raise Problem(f"the marks make no groups: {only}; mark samples of both kinds: to_mark.csv lists the next ones")
    number = {word: place for place, word in enumerate(values)}
    labels = np.array([number[words[row]] for row in learnt.tolist()])
    if all(len(np.unique(labels[y[learnt] == k])) < 2 for k in np.unique(y[learnt])):
        raise Problem(
            "within every class all marks agree, so they add nothing to the label and make no groups; mark samples of "
            "each class that go against it"
        )
    keys, everything = examined.plain.keys[0], np.arange(len(y))
    if examined.subject.whole or examined.trainer.material.architecture == "mlp":  # costly, or the same for all
        keys = keys[:1]
    spaces = [np.concatenate([*examined.trainer.features(everything, key)]) for key in keys]
    shares = random_shares(examined, dict(zip(learnt.tolist(), labels.tolist(), strict=True)), len(values))
    ways = [Propagation(spaces, y, shares, *way) for way in WAYS]
    guesses = [cross_validated(way, learnt, labels, examined.trainer.seed) for way in ways]
    cell = y[learnt] * len(values) + labels
    recall = [np.mean([(guess == labels)[cell == each].mean() for each in np.unique(cell)]) for guess in guesses]
    best, guess = ways[int(np.argmax(recall))], guesses[int(np.argmax(recall))]
    value = best.values(learnt, labels)
    check_beyond_label(y, value, learnt, labels, guess)
    known = np.zeros(len(y), bool)
    for row, word in words.items():
        if word in number:
            value[row], known[row] = number[word], True
    groups = Groups(value, values, known, f"{len(learnt):,} marks, propagated")
    groups.propagation.update(report(groups, examined, learnt, labels, guess, best))
    return groups


def check_beyond_label(y: Rows, value: Rows, rows: Rows, labels: Rows, guess: Rows) -> None:
    """Refuse values that features tell no better than the label does: groups of them would be groups of chance.

    Of the marks (m,) of samples `rows` whose value is not the usual one of their class, `guess` must recover more than
    giving as many samples of the class, as have it in `value` (n,), that value at random.
    """
    from scipy.stats import binomtest

    usual = {k: np.bincount(value[y == k]).argmax() for k in np.unique(y[rows])}  # marks by score are mostly unusual
    rare = np.flatnonzero(labels != np.array([usual[k] for k in y[rows]]))
    chance = float(np.mean([(value[y == y[rows[each]]] == labels[each]).mean() for each in rare]))
    found = int((guess[rare] == labels[rare]).sum())
    if binomtest(found, len(rare), chance, "greater").pvalue > LEVEL:
        raise Problem(
            "the marks cannot be turned into groups: within a class, the features barely separate the values "
            f"({found:,} of {len(rare):,} minority marks recovered, {len(rare) * chance:.1f} expected by chance); "
            "mark more samples that go against the shortcut, or try another --backbone"
        )


def as_value(examined: Examined, row: int, mark: str) -> str | None:
    """The value that a mark stands for: the tag; for aligned and conflicting, the class that it is typical of."""
    y, classes = examined.trainer.y, examined.subject.own.classes
    if mark not in MARKS:
        return mark
    if mark == "aligned":
        return f"as in '{classes[y[row]]}'"
    others = np.nan_to_num(examined.biased.probability[row]).copy()
    others[y[row]] = -1
    if mark == "mislabelled" or (len(others) > 2 and (examined.place[row] < 0 or examined.degenerate)):
        return None  # of more than two classes, which one it is typical of only the biased model can tell
    return f"as in '{classes[int(others.argmax())]}'"


def random_shares(examined: Examined, value: dict[int, int], count: int) -> dict[int, Vector]:
    """By class the shares (count,) of its samples with each value, as the marks at random have them (Jeffreys' prior);
    only of classes with enough of these. `value`: of the marked samples."""
    y, pool = examined.trainer.y, examined.pool
    drawn = marked_at_random(y, pool, value, examined.trainer.seed)
    counts = {k: np.bincount([value[row] for row in rows.tolist()], minlength=count) for k, rows in drawn.items()}
    return {k: (each + 0.5) / (each.sum() + 0.5 * count) for k, each in counts.items() if each.sum() >= RANDOM}


@dataclass(frozen=True, eq=False)
class Propagation:
    """From marks to values of all samples: features (n, h) in one or more spaces, labels (n,), shares by class.

    A logistic regression ranks samples; how many of a class get a value is what the random marks of that class say: a
    value that is rare in a class would else be given to many that do not have it, since marks by score abound in it.
    by_cell: marks of every class x value weigh the same, so that the value is not read off the label where that is
    easier to see; of every value else, which rests on more marks.
    """

    spaces: list[NDArray[np.float32]]
    y: Rows
    shares: dict[int, Vector]
    by_cell: bool = False
    strength: float = 0.01

    def values(self, rows: Rows, marked: Rows) -> Rows:
        """(n,) the value of every sample by the marks (m,), numbers of values, of samples `rows`."""
        from sklearn.linear_model import LogisticRegression
        from sklearn.preprocessing import StandardScaler

        known, number = np.unique(marked, return_inverse=True)
        weight = equal_groups(self.y[rows] * len(known) + number if self.by_cell else number)
        weight /= weight.mean()
        found = []
        for x in self.spaces:
            scaled = StandardScaler().fit(x[rows]).transform(x)
            fit = LogisticRegression(C=self.strength, max_iter=500).fit(scaled[rows], marked, weight)
            found.append(fit.predict_proba(scaled))
        chances = np.mean(found, 0)
        value = known[chances.argmax(1)]
        for k, shares in self.shares.items():
            mine = self.y == k
            value[mine] = known[by_shares(chances[mine], shares[known] / shares[known].sum())]
        return np.asarray(value)


def by_shares(chances: Vector, shares: Vector) -> Rows:
    """(n,) values, each given to its share of the samples: the rarest first, to those most likely to have it."""
    order, value = np.argsort(shares), np.full(len(chances), -1)
    for each in order[:-1]:
        free = np.flatnonzero(value < 0)
        value[free[np.argsort(-chances[free, each], kind="stable")[: round(shares[each] * len(chances))]]] = each
    value[value < 0] = order[-1]
    return value


def cross_validated(propagation: Propagation, rows: Rows, labels: Rows, seed: int) -> Rows:
    """(m,) the value of each marked sample as the others would have it, out of fold; -1 if its value has no other."""
    from sklearn.model_selection import StratifiedKFold

    use, said = np.flatnonzero(np.bincount(labels)[labels] > 1), np.full(len(rows), -1)
    known, place = np.unique(labels[use], return_inverse=True)
    if len(known) < 2:
        return said
    parts = StratifiedKFold(min(FOLDS, int(np.bincount(place).min())), shuffle=True, random_state=seed % 2**32)
    for train, ask in parts.split(use, place):
        said[use[ask]] = propagation.values(rows[use[train]], labels[use[train]])[rows[use[ask]]]
    return said


def learning_curve(propagation: Propagation, rows: Rows, labels: Rows, seed: int) -> list[list[float]]:
    """Pairs of how many marks were learnt from, a third and two thirds, and the accuracy in percent on the others."""
    stream, curve = numpy_stream(seed, "learning curve"), []
    for part in (1 / 3, 2 / 3):
        right, count = [], round(part * len(rows))
        for _ in range(TURNS):
            mixed = stream.permutation(len(rows))
            train, ask = mixed[:count], mixed[count:]
            if len(np.unique(labels[train])) > 1 and len(ask):
                said = propagation.values(rows[train], labels[train])[rows[ask]]
                right.append(float((said == labels[ask]).mean()))
        curve += [[count, 100 * float(np.mean(right))]] if right else []
    return curve


def report(
    groups: Groups, examined: Examined, rows: Rows, labels: Rows, guess: Rows, propagation: Propagation
) -> dict[str, Any]:
    """How well the marks are recovered, by class and value too, the groups they make, and whether more would help."""
    y, pool, classes = examined.trainer.y, examined.pool, examined.subject.own.classes
    asked, right = guess >= 0, guess == labels
    hit = float(right[asked].mean()) if asked.any() else float("nan")
    low, high = binomial_interval(hit, int(asked.sum())) if asked.any() else (0.0, 1.0)
    accuracy = Estimate(100 * hit, 100 * low, 100 * high, f"cross-validated over {int(asked.sum())} marks")
    of, marked = groups.of(y), groups.of(y)[rows]
    cells: list[dict[str, Any]] = [
        {
            "class": classes[number // len(groups.values)],
            "value": groups.values[number % len(groups.values)],
            "n": int((of[pool] == number).sum()),
            "marked": int((marked == number).sum()),
            "found_again": 100 * float(right[tested].mean()) if (tested := asked & (marked == number)).any() else None,
        }
        for number in range(len(classes) * len(groups.values))
    ]
    curve = learning_curve(propagation, rows, labels, examined.trainer.seed)
    curve += [] if np.isnan(hit) else [[len(rows), 100 * hit]]
    large = sorted((cell for cell in cells if cell["n"]), key=lambda cell: -int(cell["n"]))
    counts = first([f"{cell['class']} x {cell['value']} ({cell['n']:,})" for cell in large], LISTED)
    recovered = "too few to check" if np.isnan(hit) else f"recovered with {accuracy.words()} accuracy"
    others = int(groups.known.sum()) - len(rows)
    beside = f" ({others:,} more are on held-out samples)" if others else ""
    told = f"{len(rows):,} marks{beside}, {recovered} (cross-validated). Groups: {counts}."
    return {
        "marked": len(rows),
        "accuracy": accuracy.plain,
        "groups": cells,
        "curve": curve,
        "sentence": told,
        "more": more_marks(cells, curve),
    }


def more_marks(cells: list[dict[str, Any]], curve: list[list[float]]) -> str:
    """Whether more marks are worth a person's time."""
    unseen = [f"{cell['class']} x {cell['value']}" for cell in cells if cell["n"] and not cell["marked"]]
    if unseen:
        return f"More marks would help: none is in {first(unseen, NAMED)}."
    lost = [cell for cell in cells if cell["found_again"] is not None and cell["found_again"] < 100 * WEAK_CELL]
    if lost:
        cell = min(lost, key=lambda each: each["found_again"])
        where = f"{cell['class']} x {cell['value']}"
        return f"More marks would help: of those in {where} only {cell['found_again']:.0f}% are recovered."
    if len(curve) > 1 and curve[-1][1] - curve[-2][1] > RISING:
        return (
            f"More marks would help: from {curve[-2][0]:.0f} to {curve[-1][0]:.0f} of them the propagation went from "
            f"{curve[-2][1]:.0f}% to {curve[-1][1]:.0f}%."
        )
    return "More marks would hardly change the groups."
