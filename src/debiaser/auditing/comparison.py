"""How candidates are compared: accuracy in cells of samples, the proof on held-out ones, and the price.

A cell is a group where groups are known, else a class x whether the biased model misclassifies its samples.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from debiaser.auditing.candidates import VANILLA, Evaluation
from debiaser.auditing.crossval import Rows, Vector
from debiaser.auditing.estimates import FEWEST_UNITS, Estimate, interval, resampled_means
from debiaser.auditing.groups import FEWEST, Groups, group_cells, group_names
from debiaser.data.own import OwnData
from debiaser.io import numpy_stream
from debiaser.report.tables import signed, with_interval

NEVER = 100.0  # percent: there is no share of cases from which it pays
ON_MISCLASSIFIED = "samples that the biased model misclassifies"
NOTHING: dict[str, Any] = {"difference": None, "interval": [None, None], "p": None, "rows": 0, "units": 0}


@dataclass(frozen=True, eq=False)
class PlantedAnswers:
    """Samples, by their places in the evaluation, that took a property of another class: right (s, p) by candidate."""

    title: str
    places: Rows
    right: dict[str, NDArray[np.bool_]]


def cells_of(evaluation: Evaluation, cell: Rows | None = None, fewest: int = FEWEST) -> list[NDArray[np.bool_]]:
    """The samples (m,) of every cell that is not too small: class x misclassified by the biased model, or as given."""
    number = 2 * evaluation.labels + evaluation.misclassified if cell is None else cell
    found = [number == each for each in np.unique(number)]
    large = [each for each in found if each.sum() >= fewest]
    return large or found


def cell_accuracies(right: NDArray[np.bool_], cells: Sequence[NDArray[np.bool_]]) -> Vector:
    """(c,) the accuracy of answers (s, m) in each cell."""
    return np.array([right[:, cell].mean() for cell in cells])


def resampled(
    evaluation: Evaluation,
    names: Sequence[str],
    cells: Sequence[NDArray[np.bool_]],
    planted: PlantedAnswers | None,
    worst: bool,
    seed: int,
) -> tuple[list[float], Vector]:
    """(c,) the criterion in percent on all samples, and (c, draws) over bootstrap samples of units, the same for all.

    worst: the least accuracy of the cells, else their mean; with planted samples, half of it is the accuracy on these.
    """
    drawn, full = list[Vector](), list[Vector]()
    for name in names:
        right = evaluation.right(name).mean(0)
        parts = [(cell.astype(np.float64), cell * right) for cell in cells]
        if planted is not None:
            moved = np.zeros((2, len(right)))
            moved[0, planted.places], moved[1, planted.places] = 1.0, planted.right[name].mean(0)
            parts.append((moved[0], moved[1]))
        columns = np.stack([each for part in parts for each in part], 1)
        again = resampled_means(columns, evaluation.unit, seed)
        for means, into in ((columns.mean(0, keepdims=True), full), (again, drawn)):
            accuracy = np.where(means[:, ::2] > 0, means[:, 1::2] / np.maximum(means[:, ::2], 1e-12), np.nan)
            there = np.ma.masked_invalid(accuracy[:, : len(cells)])  # a small cell may be missing from a draw
            value = (there.min(1) if worst else there.mean(1)).filled(1.0)
            value = value if planted is None else (value + np.nan_to_num(accuracy[:, -1])) / 2
            into.append(100 * value)
    return [float(each[0]) for each in full], np.stack(drawn)


# --- Proof on held-out samples


def report_evaluation(
    evaluation: Evaluation, rival: str, own: OwnData, groups: Groups | None, max_cost: float | None
) -> dict[str, Any]:
    """What `debias` adds to an audit: vanilla before, its rival after, the other controls, the test, whether it helped.

    The rival is the chosen candidate or, where that is vanilla, the best of those that were not chosen. Whether it
    helped is a matter of the mean over groups, or over cells where none are known; it is `kept` unless it is shown to
    harm both this mean and the worst of them: not by samples that lack a group, and a group counts however few of them
    are in it, since those it helps are rare.
    """
    every = None if groups is None else groups.of(own.y.numpy())
    of = None if every is None else every[evaluation.rows]
    lacking = every is not None and of is not None and len(np.unique(of)) < len(np.unique(every))
    group = None if own.group is None else group_names(own.group)[evaluation.rows]
    told = {name: describe(evaluation, name, own.classes, group) for name in evaluation.candidates}
    everywhere = np.ones(len(evaluation.rows), bool)
    cells, kind = cells_of(evaluation, of, FEWEST if of is None else 1), "cells" if of is None else "groups"
    for name, each in told.items():
        each["minus_vanilla"] = None if name == VANILLA else difference(evaluation, name, everywhere)
        each["worst_cell"] = 100 * float(cell_accuracies(evaluation.right(name), cells).min())
        each["mean_cell"] = 100 * float(cell_accuracies(evaluation.right(name), cells).mean())
    overall = difference(evaluation, rival, everywhere)
    misclassified = difference(evaluation, rival, evaluation.misclassified)
    cell_change = cell_difference(evaluation, rival, cells)
    helped, words = judge_change(overall, misclassified, cell_change, kind)
    highest = (cell_change["interval"][1], cell_change["worst_interval"][1])  # in the mean, and in the worst of them
    harmless = lacking or any(each is None or each >= 0 for each in highest)
    kept = evaluation.chosen != VANILLA and harmless
    if evaluation.chosen == VANILLA:
        changed = changes_in_words(overall, misclassified, cell_change, kind)
        helped, words = False, f"Debiasing was not chosen; on the held-out samples {rival} changed {changed}."
    if rival == VANILLA:
        words = "Vanilla is the only candidate: the biased model's scores carry no information."
    before = told.pop(VANILLA)
    after = told.pop(rival, before)
    marked = None if groups is None or of is None else on_marked(evaluation, rival, of, groups.known)
    if marked is not None and marked["rows"] >= FEWEST:
        right = f"{marked['before']:.0f}% right before, {marked['after']:.0f}% after (mean over their groups)"
        words += f" On the {marked['rows']:,} held-out samples that you marked: {right}."
    test = {**overall, "on": "all held-out samples", "easy_misses": misclassified, "cells": {**cell_change, "of": kind}}
    test["marked"] = marked
    facts = {"before": before, "after": after, "controls": told, "test": test, "helped": helped, "kept": kept}
    sides = {"before": {VANILLA: before}, "after": {rival: after}}
    how = {"seeds": evaluation.seeds, "samples_seen": evaluation.samples_seen, "chosen": evaluation.chosen}
    return {**facts, "repair": {**facts, **sides, "sentence": words, **how, "cost": max_cost}}


def cell_difference(
    evaluation: Evaluation, name: str, cells: Sequence[NDArray[np.bool_]], seed: int = 0
) -> dict[str, Any]:
    """Candidate minus vanilla in the mean and in the worst over cells, in points, with an interval over units."""
    units = len(np.unique(evaluation.unit))
    (full, drawn), (lowest, worst) = (
        resampled(evaluation, (VANILLA, name), cells, None, each, seed) for each in (False, True)
    )
    found = {"difference": full[1] - full[0], "worst": [lowest[0], lowest[1]], "units": units}
    intervals: list[list[float | None]] = [
        [None, None] if units < FEWEST_UNITS else [*interval(each[1] - each[0])] for each in (drawn, worst)
    ]
    return {**found, "interval": intervals[0], "worst_interval": intervals[1]}


def on_marked(evaluation: Evaluation, rival: str, of: Rows, known: NDArray[np.bool_]) -> dict[str, Any] | None:
    """How vanilla and its rival answer the held-out samples that a person marked: percent, the mean over their groups
    `of` (m,); None where there are none, or where the groups of all samples (n,) are `known` anyway."""
    marked = known[evaluation.rows]
    if known.all() or not marked.any():
        return None
    cells = [marked & (of == each) for each in np.unique(of[marked])]
    before, after = (100 * float(cell_accuracies(evaluation.right(name), cells).mean()) for name in (VANILLA, rival))
    return {"rows": int(marked.sum()), "before": before, "after": after}


def describe(
    evaluation: Evaluation, name: str, classes: tuple[str, ...], group: NDArray[np.str_] | None
) -> dict[str, Any]:
    """Accuracy in percent, mean and spread over seeds: overall, per class, by the biased model, per class x group of
    the evaluated samples (m,), and in the worst of these cells that can be judged."""
    right, labels = evaluation.right(name), evaluation.labels
    cells = {} if group is None else group_cells(group, labels, classes)
    groups = {" x ".join(cell): spread(right[:, rows]) for cell, rows in cells.items()}
    judged: list[dict[str, Any]] = [
        {"group": cell, **told} for cell, told in groups.items() if (told["rows"] or 0) >= FEWEST
    ]
    return {
        "overall": spread(right),
        "per_class": {classes[k]: spread(right[:, labels == k]) for k in np.unique(labels)},
        "easy_misses": spread(right[:, evaluation.misclassified]),
        "easy_follows": spread(right[:, ~evaluation.misclassified]),
        "groups": groups,
        "worst_group": min(judged, key=lambda each: each["mean"], default=None),
    }


def spread(right: NDArray[np.bool_]) -> dict[str, float | None]:
    """Mean and standard deviation over seeds of an accuracy in percent; None without samples, or if all are equal."""
    if not right.shape[1]:
        return {"mean": None, "sd": None, "rows": 0}
    each = 100 * right.mean(1)
    sd = float(each.std(ddof=1)) if np.ptp(each) else None  # linear heads are the same under every seed
    return {"mean": float(each.mean()), "sd": sd, "rows": right.shape[1]}


def difference(evaluation: Evaluation, chosen: str, rows: NDArray[np.bool_], seed: int = 0) -> dict[str, Any]:
    """The chosen candidate minus vanilla in points on these samples, an interval over units and seeds, and p."""
    if not rows.any():
        return dict(NOTHING)
    gain = 100.0 * (evaluation.right(chosen).astype(np.float64) - evaluation.right(VANILLA))
    units = len(np.unique(evaluation.unit[rows]))
    found = {**NOTHING, "difference": float(gain[:, rows].mean()), "rows": int(rows.sum()), "units": units}
    if units < FEWEST_UNITS:
        return found
    drawn = resampled_means(gain[:, rows].T, evaluation.unit[rows], seed)  # (draws, seeds)
    seeds = np.random.default_rng(seed).integers(0, evaluation.seeds, drawn.shape)  # and of the seeds, so many again
    resampled = np.take_along_axis(drawn, seeds, 1).mean(1)
    p = 2 * min(float((resampled <= 0).mean()), float((resampled >= 0).mean()))
    return {**found, "interval": [*interval(resampled)], "p": min(1.0, max(p, 1 / len(resampled)))}


def judge_change(
    overall: dict[str, Any], misclassified: dict[str, Any], cells: dict[str, Any], kind: str
) -> tuple[bool, str]:
    """Whether debiasing helped, and the sentence that says so."""
    told = changes_in_words(overall, misclassified, cells, kind)
    low, high = cells["interval"]
    if low is None:
        few = f"{cells['units']:,} held-out units are too few for an interval; {FEWEST_UNITS} are needed"
        return False, f"Debiasing is not shown to help: {told}. {few}."
    if low > 0:
        return True, f"Debiasing helped: {told}."
    if high < 0:
        return False, f"Debiasing did not help, it cost accuracy: {told}."
    return False, f"Debiasing is not shown to help: {told}. The interval includes no change."


def changes_in_words(overall: dict[str, Any], misclassified: dict[str, Any], cells: dict[str, Any], kind: str) -> str:
    """The differences in the mean over cells, on all held-out samples and on those the biased model misclassifies."""
    there = with_interval(misclassified)
    told = f"{with_interval(cells) or signed(cells['difference'])} points in the mean over {kind} of held-out samples "
    told += f"(the worst from {cells['worst'][0]:.1f}% to {cells['worst'][1]:.1f}%), "
    told += f"{with_interval(overall) or signed(overall['difference'])} on all of them"
    return f"{told}, {there} on the {misclassified['rows']:,} {ON_MISCLASSIFIED}" if there else told


# --- Price: what debiasing gains on samples that go against the shortcut, what it costs on others, and when it pays


def price(evaluation: Evaluation, chosen: str, seed: int = 0) -> dict[str, Any] | None:
    """Gain and cost in points, and the share in percent of bias-conflicting cases from which the chosen candidate is
    better than vanilla: cost / (cost + gain). Intervals over units and seeds; None without samples of both kinds."""
    against = evaluation.misclassified
    if not against.any() or against.all():
        return None
    right = {name: evaluation.right(name).astype(np.float64) for name in (VANILLA, chosen)}
    change = 100 * (right[chosen] - right[VANILLA])  # (s, m)
    gains = resampled_changes(change, against, evaluation.unit, seed)
    costs = -resampled_changes(change, ~against, evaluation.unit, seed)
    gain, cost = float(change[:, against].mean()), -float(change[:, ~against].mean())
    shares = [break_even(*pair) for pair in zip(costs.tolist(), gains.tolist(), strict=True)]
    units = len(np.unique(evaluation.unit))
    method = f"bootstrap over {units:,} units and {evaluation.seeds} seeds"

    def estimate(value: float, values: Any) -> Estimate:
        if units < FEWEST_UNITS:
            return Estimate(value, method=f"{method}, too few for an interval")
        return Estimate(value, *interval(values), method)

    even = estimate(break_even(cost, gain), shares)
    before, after = (
        {"against": 100 * float(each[:, against].mean()), "follow": 100 * float(each[:, ~against].mean())}
        for each in (right[VANILLA], right[chosen])
    )
    return {
        "gain": estimate(gain, gains).plain,
        "cost": estimate(cost, costs).plain,
        "break_even": even.plain,
        "before": before,
        "after": after,
        "rows_against": int(against.sum()),
        "rows_follow": int((~against).sum()),
        "sentence": pays(even, cost, gain),
    }


def resampled_changes(change: Vector, part: NDArray[np.bool_], unit: Rows, seed: int) -> Vector:
    """(DRAWS,) the mean change (s, m) over a part of the samples, over bootstrap samples of units and seeds."""
    columns = np.concatenate([change * part, part[None].astype(np.float64)]).T
    drawn = resampled_means(columns, unit, seed)
    by_seed = drawn[:, :-1] / np.maximum(drawn[:, -1:], 1e-12)
    seeds, stream = len(change), numpy_stream(seed, "bootstrap", "seeds")
    return np.asarray((by_seed * (stream.multinomial(seeds, np.full(seeds, 1 / seeds), len(drawn)) / seeds)).sum(1))


def break_even(cost: float, gain: float) -> float:
    """The share in percent from which a gain outweighs a cost: 0 where nothing is lost, NEVER where nothing is won."""
    if gain <= 0:
        return NEVER
    return 0.0 if cost <= 0 else 100 * cost / (cost + gain)


def pays(even: Estimate, cost: float, gain: float) -> str:
    """When it pays, in words."""
    points = f"({gain:+.1f} points on those, {-cost:+.1f} on the others)"
    if (even.low or 0.0) <= 0 and (NEVER if even.high is None else even.high) >= NEVER:
        return f"Too little evidence to say at what share of cases against the shortcut it becomes better {points}."
    if gain <= 0 and cost < 0:  # the other way round: what it wins is on samples that follow the shortcut
        share = 100 * cost / (cost + gain)
        return f"Better only if fewer than {share:.1f}% of the cases go against the shortcut {points}."
    if even.value >= NEVER:
        return "No share of cases that go against the shortcut makes it better: it gains nothing on them."
    told = f"Better if more than {even.words()} of the cases in the field go against the shortcut"
    if even.value <= 0:
        told = f"Better at any share of cases that go against the shortcut [{even.low:.1f}, {even.high:.1f}%]"
    return f"{told} {points}."
