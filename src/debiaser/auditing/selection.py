"""Which candidate to take, and the proof that it is better.

One is selected on samples that its models never saw, pooled over folds: by the accuracy of the worst group where groups
are known or were propagated from marks, of the worst class where a property is followed often; and where one is, half
by samples that were given that property of another class. Else by the mean over cells (class x misclassified by the
biased model), and only by as much as the same candidate does not also gain in a null world, in which there is nothing
to be gained. Then it is compared with vanilla on held-out samples, and priced.
"""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from debiaser.auditing.candidates import (
    AUGMENTED,
    CONTROLS,
    DFR,
    DRO,
    EQUAL,
    REGULARISATION,
    VANILLA,
    Evaluation,
    Splits,
    Training,
    World,
    candidate_trainings,
    train_candidates,
    world_of,
)
from debiaser.auditing.crossval import Models, Rows, Trainer, Vector
from debiaser.auditing.estimates import FEWEST_UNITS, Estimate, interval, resampled_means
from debiaser.auditing.findings import conflicting_share
from debiaser.auditing.groups import FEWEST, Groups, group_cells, group_names
from debiaser.auditing.swap_test import SwapTest, predict_swapped, swap_models
from debiaser.auditing.verdict import Examined
from debiaser.auditing.views import View
from debiaser.data.own import OwnData
from debiaser.errors import Misuse
from debiaser.io import folder_name, numpy_stream
from debiaser.report.tables import signed, with_interval

NEVER = 100.0  # percent: there is no share of cases from which it pays
MOST = 1000  # samples that are planted
OFTEN = 20.0  # points beyond chance from which on a property that is followed decides between candidates
NULL_WORLDS, TRIED = 3, 3  # draws of the null world, and candidates that are held against it
WORTH = 3.0  # points beyond the null world, below which a gain is not worth the risk: nobody named a shortcut
ON_MISCLASSIFIED = "samples that the biased model misclassifies"
NOTHING: dict[str, Any] = {"difference": None, "interval": [None, None], "p": None, "rows": 0, "units": 0}


def select_and_prove(
    examined: Examined, groups: Groups | None, seeds: int, max_cost: float | None, export: str | None
) -> tuple[Evaluation, dict[str, Any]]:
    """The evaluation on held-out samples, its candidate chosen on others, and what `debias` adds to an audit.

    Once the choice is made all samples but the held-out ones are learnt from: everything is trained again.
    """
    own, trainer = examined.subject.own, examined.trainer
    train, valid, held_out = (own.rows(part).numpy() for part in ("train", "valid", "test"))
    world, of = world_of(examined), None if groups is None else groups.of(trainer.y)
    splits: Splits = [(train, valid)]
    if not examined.subject.whole:  # what costs hours is trained once
        splits = [
            (trainer.rows[trainer.fold[trainer.rows] != k], np.flatnonzero(trainer.fold == k)) for k in trainer.folds
        ]
    strength = best_regularisation(examined, world, splits)
    trainings = candidate_trainings(examined, world, of, strength)
    wanted = find_candidate(export, trainings)
    validation = evaluate(examined, splits, trainings, world)
    planted = plant_validation(examined, validation, view) if (view := main_property(examined)) else None
    null = None if examined.subject.whole else partial(null_gains, examined, world, splits, strength)  # else days
    choice = choose_model(validation, of, planted, null, max_cost, trainer.seed, groups)
    if examined.subject.whole:
        trainings = {name: trainings[name] for name in dict.fromkeys((VANILLA, choice.rival, wanted or VANILLA))}
    evaluation = train_candidates(trainer, [(np.union1d(train, valid), held_out)], trainings, own.unit, seeds)
    evaluation = replace(evaluation, chosen=choice.chosen)
    more = report_evaluation(evaluation, choice.rival, own, groups, max_cost, of is not None or planted is not None)
    paid = None if examined.degenerate else price(evaluation, choice.rival, trainer.seed)
    if paid is not None:
        here = conflicting_share(examined).plain
        paid["sentence"] = (
            f"{paid['sentence'][:-1]}; your data: between {100 * here['low']:.1f}% and {100 * here['high']:.1f}%."
        )
    after = [asdict(each) for each in reliances_after(examined, validation, choice.rival)]
    exported = wanted or (choice.chosen if more["kept"] else VANILLA)
    told = told_export(exported, wanted is not None, choice, groups)
    facts = {"selection": choice.plain, "price": paid, "exported": exported}
    more["repair"] |= {**facts, "views_after": after, "export": told}
    return evaluation, {**more, **facts}


def main_property(examined: Examined) -> View | None:
    """The named property, where the model follows it often enough for it to be the shortcut and not a part of it."""
    tested = examined.swaps.reliances if examined.named and isinstance(examined.swaps, SwapTest) else ()
    followed = {each.name: each.excess.value for each in tested}
    return examined.named if examined.named and followed[examined.named.name] >= OFTEN else None


def find_candidate(name: str | None, names: Collection[str]) -> str | None:
    """The candidate that a person wants exported, by its name or its folder's."""
    if name is None:
        return None
    for known in names:
        if name in (known, folder_name(known)):
            return known
    raise Misuse(f"there is no candidate '{name}' to export; there are: {', '.join(map(folder_name, names))}")


def evaluate(examined: Examined, splits: Splits, trainings: dict[str, Training], world: World) -> Evaluation:
    """Candidates on samples that they never saw; `misclassified` by the biased models of the audit, out of fold."""
    trainer = replace(examined.trainer, y=world.y)
    biased = examined.biased.keys if len(splits) > 1 else None
    found = train_candidates(trainer, splits, trainings, examined.subject.own.unit, 1, biased)
    return replace(found, misclassified=world.misclassified[found.rows])


def best_regularisation(examined: Examined, world: World, splits: Splits) -> float:
    """The inverse strength at which a linear head is best on samples it never saw, all classes counting alike; the
    smallest within one standard error of the best."""
    if examined.trainer.material.architecture != "mlp":
        return REGULARISATION[1]
    trainings = {str(each): Training(world.equal(world.y), strength=each) for each in REGULARISATION}
    found = evaluate(examined, splits, trainings, world)
    cells = cells_of(found, found.labels)
    full, drawn = resampled(found, list(trainings), cells, None, np.mean, examined.trainer.seed)
    return REGULARISATION[simplest_of_best(drawn, full, range(len(full)))]


def null_gains(examined: Examined, world: World, splits: Splits, strength: float, name: str) -> Vector:
    """(NULL_WORLDS,) what this candidate gains over vanilla, in mean cell accuracy, where nothing is to be gained."""
    gains = []
    for number in range(NULL_WORLDS):
        other = world.null(numpy_stream(examined.trainer.seed, "null world", number))
        every = candidate_trainings(examined, other, None, strength)
        found = evaluate(examined, splits, {each: every[each] for each in (VANILLA, name)}, other)
        mean = [cell_accuracies(found.right(each), cells_of(found)).mean() for each in (VANILLA, name)]
        gains.append(100 * (mean[1] - mean[0]))
    return np.array(gains)


def reliances_after(examined: Examined, validation: Evaluation, name: str) -> Sequence[Any]:
    """How far this candidate follows the named property, asked on samples that it never saw."""
    if examined.named is None or name == VANILLA:
        return ()
    asker, models = unseen_models(examined, validation, [name])
    answers = np.full(len(examined.pool), -1)
    answers[examined.place[validation.rows]] = validation.candidates[name].answers[0]
    test = swap_models(examined.subject, examined.trainer, asker, models[name], [examined.named], answers)
    return test.reliances if isinstance(test, SwapTest) else ()


def unseen_models(
    examined: Examined, validation: Evaluation, names: Collection[str]
) -> tuple[Trainer, dict[str, Models]]:
    """The models of these candidates, and a trainer that asks each only about samples that it never saw."""
    trainer, fold = examined.trainer, np.full(len(examined.trainer.y), -1)
    models = {name: trainer.read_models(validation.candidates[name].keys) for name in names}
    several = any(len(by_seed[0]) > 1 for by_seed in models.values())
    fold[validation.rows] = trainer.fold[validation.rows] if several else 0
    return replace(trainer, fold=fold), models


# --- Selection on samples that no model saw


@dataclass(frozen=True, eq=False)
class PlantedAnswers:
    """Samples, by their places in the evaluation, that took a property of another class: right (s, p) by candidate."""

    title: str
    places: Rows
    right: dict[str, NDArray[np.bool_]]


@dataclass(frozen=True)
class Choice:
    """The candidate that was chosen, the one that would have been without a veto, what candidates were compared by,
    every candidate's numbers in percent, and the sentence that says why."""

    chosen: str
    at_any_cost: str
    by: str
    uses_groups: str
    candidates: tuple[dict[str, Any], ...]
    sentence: str

    @property
    def rival(self) -> str:
        """What vanilla is compared with: the chosen one, else the one chosen without a veto, else the best debiased."""
        for name in (self.chosen, self.at_any_cost):
            if name != VANILLA:
                return name
        others = [each for each in self.candidates if each["name"] != VANILLA]
        debiased = [each for each in others if each["name"] != AUGMENTED] or others
        return str(max(debiased, key=lambda each: each["criterion"])["name"]) if debiased else VANILLA

    @property
    def plain(self) -> dict[str, Any]:
        return {**asdict(self), "candidates": list(self.candidates), "rival": self.rival}


def plant_validation(examined: Examined, validation: Evaluation, view: View) -> PlantedAnswers | None:
    """What every candidate answers to bias-aligned samples that take this property of another class."""
    trainer, subject, labels = examined.trainer, examined.subject, validation.labels
    stream = numpy_stream(trainer.seed, "planted", "validation")
    places = np.sort(stream.permutation(np.flatnonzero(~validation.misclassified))[:MOST])
    classes = np.unique(labels)
    if not len(places) or len(classes) < 2:
        return None
    donors = np.empty_like(places)
    for number, label in enumerate(labels[places]):  # of another class, all as likely
        others = classes[classes != label]
        mine = np.flatnonzero(labels == others[stream.integers(len(others))])
        donors[number] = mine[stream.integers(len(mine))]
    asker, models = unseen_models(examined, validation, validation.candidates)
    rows, taken_from = validation.rows[places], validation.rows[donors]
    said = predict_swapped(subject, asker, view, rows, taken_from, examined.place[rows], list(models.values()))
    right = {name: each.argmax(2) == trainer.y[rows] for name, each in zip(models, said, strict=True)}
    return PlantedAnswers(view.title, places, right)


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
    reduce: Callable[..., Any],
    seed: int,
) -> tuple[list[float], Vector]:
    """(c,) the criterion in percent on all samples, and (c, draws) over bootstrap samples of units, the same for all.

    reduce: of the accuracies of the cells; with planted samples, half of the criterion is the accuracy on these.
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
            accuracy = means[:, 1::2] / np.maximum(means[:, ::2], 1e-12)
            accuracy = np.where(means[:, ::2] > 0, accuracy, np.nan)
            value = reduce(np.nan_to_num(accuracy[:, : len(cells)], nan=1.0), axis=1)
            value = value if planted is None else (value + np.nan_to_num(accuracy[:, -1])) / 2
            into.append(100 * value)
    return [float(each[0]) for each in full], np.stack(drawn)


def choose_model(
    validation: Evaluation,
    groups: Rows | None,
    planted: PlantedAnswers | None,
    null: Callable[[str], Vector] | None,
    max_cost: float | None,
    seed: int = 0,
    known: Groups | None = None,
) -> Choice:
    """The candidate to take, by the rule for what is known: groups (n,), planted samples, or nothing."""
    names = [name for name in validation.candidates if name not in CONTROLS]
    of = None if groups is None else groups[validation.rows]
    by_class = cells_of(validation, validation.labels)
    cells = by_class if planted and of is None else cells_of(validation, of)
    if of is not None and len({validation.labels[cell][0] for cell in cells}) == len(cells):
        cells = cells_of(validation, of, 1)  # in no class two groups are large: those against the shortcut must count
    full, drawn = resampled(validation, names, cells, planted, np.mean if of is None and not planted else np.min, seed)
    chance = 1 / len(np.unique(validation.labels))
    overall = {name: 100 * float(validation.right(name).mean()) for name in names}
    worst = {name: float(cell_accuracies(validation.right(name), by_class).min()) for name in names}
    alone = planted if of is None else None  # what a person marked may be something else
    reasons = {name: veto(name, overall, worst, chance, max_cost, alone) for name in names}
    allowed = [number for number, name in enumerate(names) if not reasons[name] or name == VANILLA]
    everyone = range(len(names))
    beyond = ""
    if of is not None or planted is not None:
        chosen, free = (simplest_of_best(drawn, full, numbers) for numbers in (allowed, everyone))
        by = "the worst class" if of is None else f"the worst of {len(cells)} groups"
        by += f" ({known.source})" if known else ""
        if planted is not None:
            by = f"half {by}, half {len(planted.places):,} samples given the {planted.title} of another class"
    else:
        both = [full[n] + overall[name] for n, name in enumerate(names)]  # a gain must be larger than its cost
        worthy = [n for n in allowed if names[n] == VANILLA or both[n] > both[names.index(VANILLA)]]
        chosen, beyond = beyond_null(names, worthy, full, drawn, null)
        free = simplest_of_best(drawn, full, allowed)
        by = "the mean over cells (class x misclassified by the biased model), beyond the null world"
    rows = [
        {
            "name": name,
            "criterion": full[number],
            "error": float(drawn[number].std()),
            "worst_class": 100 * worst[name],
            "planted": None if planted is None else 100 * float(planted.right[name].mean()),
            "overall": overall[name],
            "vetoed": bool(reasons[name]) and name != VANILLA,
            "mean_cell": 100 * float(cell_accuracies(validation.right(name), cells_of(validation)).mean()),
            "uses_groups": known.flag if known and name.startswith((EQUAL, DRO, DFR)) else "",
        }
        for number, name in enumerate(names)
    ]
    beside = f"; {VANILLA} {full[names.index(VANILLA)]:.1f}" if names[chosen] != VANILLA else ""
    told = f"Chosen on {len(validation.rows):,} samples that the models never saw, by {by}: {names[chosen]} "
    told += f"({full[chosen]:.1f}{beside}).{beyond}"
    out = [f"{name} ({reasons[name]})" for name in names if reasons[name] and name != VANILLA]
    told += f" Out: {', '.join(out)}." if out else ""
    return Choice(names[chosen], names[free], by, known.flag if known else "", tuple(rows), told)


def veto(
    name: str,
    overall: dict[str, float],
    worst: dict[str, float],
    chance: float,
    max_cost: float | None,
    planted: PlantedAnswers | None,
) -> str:
    """Why a candidate may not be chosen; empty where it may.

    With planted samples it must be better than vanilla in a field where the property tells nothing of the label.
    """
    cost = overall[VANILLA] - overall[name]
    if worst[name] < min(chance, worst[VANILLA]):
        return "below chance in a class"
    if max_cost is not None and cost > max_cost:
        return f"costs {cost:.1f} points of accuracy, more than {max_cost:g}: --max-cost {math.ceil(cost)} allows it"
    if planted is not None and name != VANILLA:
        gain = 100 * float(planted.right[name].mean() - planted.right[VANILLA].mean())
        if break_even(cost, gain) > 100 * (1 - chance):
            return "better only where nearly all cases go against the shortcut"
    return ""


def beyond_null(
    names: Sequence[str],
    allowed: Sequence[int],
    full: Sequence[float],
    drawn: Vector,
    null: Callable[[str], Vector] | None,
) -> tuple[int, str]:
    """The best candidate whose gain over vanilla is beyond what it gains in null worlds by a standard error, else
    vanilla; and what the null worlds said."""
    vanilla, told = names.index(VANILLA), list[str]()
    if null is None:
        return vanilla, " Whole networks are not trained in null worlds, so nothing is taken for a gain."
    gains = {number: full[number] - full[vanilla] for number in allowed if number != vanilla}
    error = {number: float((drawn[number] - drawn[vanilla]).std()) for number in gains}
    hopeful = [number for number in gains if gains[number] > error[number]]
    for number in sorted(hopeful, key=lambda each: -gains[each])[:TRIED]:
        there = null(names[number])
        spread = float(np.hypot(error[number], there.std(ddof=1)))
        told.append(f"{names[number]} gains {gains[number]:.1f} points here and {there.mean():.1f} in a null world")
        if gains[number] - there.mean() > max(spread, WORTH):
            return number, f" {told[-1]}."
    return vanilla, f" {'; '.join(told)}: not enough beyond it." if told else ""


def simplest_of_best(drawn: Vector, full: Sequence[float], allowed: Sequence[int]) -> int:
    """The first of these candidates, simplest first, that is within one standard error of the best of them."""
    best = max(allowed, key=lambda number: full[number])
    within = (n for n in allowed if n == best or full[best] - full[n] <= (drawn[best] - drawn[n]).std())
    return next(within)


# --- Proof on held-out samples


def report_evaluation(
    evaluation: Evaluation,
    rival: str,
    own: OwnData,
    groups: Groups | None,
    max_cost: float | None,
    certain: bool = False,
) -> dict[str, Any]:
    """What `debias` adds to an audit: vanilla before, its rival after, the other controls, the test, whether it helped.

    The rival is the chosen candidate or, where that is vanilla, the best of those that were not chosen. Whether it
    helped is a matter of the mean over groups, or over cells where none are known; it is `kept` where it did or, where
    the shortcut is `certain` (groups are known, or a property is named), unless it is shown to harm the worst, too: not
    by samples that lack a group, and a group counts however few of them are in it, since those it helps are rare.
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
    sure = lacking or any(each is None or each >= 0 for each in highest) if certain else helped
    kept = evaluation.chosen != VANILLA and sure
    if evaluation.chosen == VANILLA:
        changed = changes_in_words(overall, misclassified, cell_change, kind)
        helped, words = False, f"Debiasing was not chosen; on the held-out samples {rival} changed {changed}."
    if rival == VANILLA:
        words = "There is no candidate but vanilla: the biased model tells nothing of samples."
    before = told.pop(VANILLA)
    after = told.pop(rival, before)
    marked = None if groups is None or of is None else on_marked(evaluation, rival, of, groups.known)
    if marked is not None:
        words += (
            f" On the {marked['rows']:,} held-out samples that you marked: {marked['before']:.0f}% right before, "
            f"{marked['after']:.0f}% after (mean over their groups)."
        )
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
        resampled(evaluation, (VANILLA, name), cells, None, each, seed) for each in (np.mean, np.min)
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


def told_export(exported: str, wanted: bool, choice: Choice, groups: Groups | None) -> dict[str, str]:
    """Which model was exported, why, and what would change that."""
    folder = folder_name(choice.rival)
    if wanted:
        why, change = "you asked for it with --export", "leave --export out to take the chosen one"
    elif exported != VANILLA:
        why = f"it was chosen by {choice.by}, and held-out samples do not show it to do harm"
        change = f"--export {folder_name(VANILLA)} takes vanilla instead"
    elif choice.chosen != VANILLA:
        why = f"{choice.chosen} was chosen, but held-out samples do not show it to be better"
        change = f"--export {folder_name(choice.chosen)} takes it anyway"
    else:
        why = "no candidate was better beyond doubt"
        if choice.at_any_cost != VANILLA:
            why = f"{choice.at_any_cost} seemed better, but is out or not beyond doubt"
        change = "sixty marks would decide (--marks)" if groups is None else "more marks or samples would decide"
        change += f"; --export {folder} takes {choice.rival} anyway" if choice.rival != VANILLA else ""
    return {"name": exported, "why": why, "change": change, "sentence": f"Exported: {exported}: {why}; {change}."}


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
        return f"These samples cannot tell from how many cases against the shortcut on it is better {points}."
    if gain <= 0 and cost < 0:  # the other way round: what it wins is on samples that follow the shortcut
        share = 100 * cost / (cost + gain)
        return f"Better only if fewer than {share:.1f}% of the cases go against the shortcut {points}."
    if even.value >= NEVER:
        return "No share of cases that go against the shortcut makes it better: it gains nothing on them."
    told = f"Better if more than {even.words()} of the cases in the field go against the shortcut"
    if even.value <= 0:
        told = f"Better at any share of cases that go against the shortcut [{even.low:.1f}, {even.high:.1f}%]"
    return f"{told} {points}."
