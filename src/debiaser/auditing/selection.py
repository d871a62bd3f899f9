"""Which candidate of `debias` to take.

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
from debiaser.auditing.comparison import (
    PlantedAnswers,
    break_even,
    cell_accuracies,
    cells_of,
    price,
    report_evaluation,
    resampled,
)
from debiaser.auditing.crossval import Models, Rows, Trainer, Vector
from debiaser.auditing.findings import conflicting_share
from debiaser.auditing.groups import Groups
from debiaser.auditing.swap_test import SwapTest, predict_swapped, swap_models
from debiaser.auditing.verdict import Examined
from debiaser.auditing.views import View
from debiaser.errors import Misuse
from debiaser.io import folder_name, numpy_stream

MOST = 1000  # samples that are planted
OFTEN = 20.0  # points beyond chance from which on a property that is followed decides between candidates
NULL_WORLDS, TRIED = 3, 3  # draws of the null world, and candidates that are held against it
BALANCED = (EQUAL, DRO, DFR)  # candidates that learn from groups
WORTH = 5.0  # points beyond the null world, below which a gain is not worth the risk: nobody named a shortcut


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
    # whole networks, many times, cost days
    null = None if examined.subject.whole else partial(null_gains, examined, world, splits, strength)
    choice = choose_model(validation, of, planted, null, max_cost, trainer.seed, groups)
    if examined.subject.whole:
        trainings = {name: trainings[name] for name in dict.fromkeys((VANILLA, choice.rival, wanted or VANILLA))}
    evaluation = train_candidates(trainer, [(np.union1d(train, valid), held_out)], trainings, own.unit, seeds)
    evaluation = replace(evaluation, chosen=choice.chosen)
    more = report_evaluation(evaluation, choice.rival, own, groups, max_cost)
    paid = None if examined.degenerate else price(evaluation, choice.rival, trainer.seed)
    if paid is not None:
        here = conflicting_share(examined).plain
        share = f"between {100 * here['low']:.1f}% and {100 * here['high']:.1f}%"
        paid["sentence"] = f"{paid['sentence'][:-1]}; your data: {share}."
    after = [asdict(each) for each in reliances_after(examined, validation, choice.rival)]
    exported = wanted or (choice.chosen if more["kept"] else VANILLA)
    told = told_export(exported, wanted is not None, choice, bool(groups or examined.marks.by_sample))
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
    full, drawn = resampled(found, list(trainings), cells, None, False, examined.trainer.seed)
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
    if known:  # a person says that there is a shortcut: what balances its groups comes first
        names.sort(key=lambda name: not name.startswith(BALANCED))
    of = None if groups is None else groups[validation.rows]
    by_class = cells_of(validation, validation.labels)
    cells = by_class if planted and of is None else cells_of(validation, of)
    if of is not None and len({validation.labels[cell][0] for cell in cells}) == len(cells):
        cells = cells_of(validation, of, 1)  # in no class two groups are large: those against the shortcut must count
    full, drawn = resampled(validation, names, cells, planted, of is not None or bool(planted), seed)
    chance = 1 / len(np.unique(validation.labels))
    overall = {name: 100 * float(validation.right(name).mean()) for name in names}
    worst = {name: float(cell_accuracies(validation.right(name), by_class).min()) for name in names}
    alone = planted if of is None else None  # what a person marked may be something else
    reasons = {name: veto(name, overall, worst, chance, max_cost, alone, known) for name in names}
    allowed = [number for number, name in enumerate(names) if not reasons[name] or name == VANILLA]
    beyond = ""
    if of is not None or planted is not None:
        chosen, free = (simplest_of_best(drawn, full, numbers) for numbers in (allowed, range(len(names))))
        by = "accuracy in the worst class" if of is None else f"accuracy in the worst of {len(cells)} groups"
        by += f" ({known.source})" if known else ""
        if planted is not None:
            by += f" and on {len(planted.places):,} samples given the {planted.title} of another class, half each"
    else:
        both = [full[n] + overall[name] for n, name in enumerate(names)]  # a gain must be larger than its cost
        worthy = [n for n in allowed if names[n] == VANILLA or both[n] > both[names.index(VANILLA)]]
        chosen, beyond = beyond_null(names, worthy, full, drawn, null)
        free = simplest_of_best(drawn, full, allowed)
        by = "mean accuracy over cells (class x misclassified by the biased model), beyond the null world"
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
            "uses_groups": known.flag if known and name.startswith(BALANCED) else "",
        }
        for number, name in enumerate(names)
    ]
    beside = f"; {VANILLA} {full[names.index(VANILLA)]:.1f}" if names[chosen] != VANILLA else ""
    told = f"Chosen on {len(validation.rows):,} samples that the models never saw, by {by}: {names[chosen]} "
    told += f"({full[chosen]:.1f}{beside}).{beyond}"
    told += ruled_out({name: why for name, why in reasons.items() if why and name != VANILLA})
    if max_cost is not None and (cost := overall[VANILLA] - overall[names[free]]) > max_cost:
        told += f" --max-cost {math.ceil(cost)} allows {names[free]}."
    return Choice(names[chosen], names[free], by, known.flag if known else "", tuple(rows), told)


def veto(
    name: str,
    overall: dict[str, float],
    worst: dict[str, float],
    chance: float,
    max_cost: float | None,
    planted: PlantedAnswers | None,
    known: Groups | None,
) -> str:
    """Why a candidate may not be chosen; empty where it may.

    With planted samples it must be better than vanilla in a field where the property tells nothing of the label.
    """
    cost = overall[VANILLA] - overall[name]
    if worst[name] < min(chance, worst[VANILLA]):
        return "below chance in a class"
    if max_cost is not None and cost > max_cost:
        return f"lost accuracy above --max-cost {max_cost:g}"
    if planted is not None and name != VANILLA:
        gain = 100 * float(planted.right[name].mean() - planted.right[VANILLA].mean())
        if break_even(cost, gain) > 100 * (1 - chance):
            return "better only where nearly all cases go against the shortcut"
    if name == DRO and known and not known.reliable:  # it gives most weight to the worst group, right or wrong
        return "too few marks of the rarer groups are recovered"
    return ""


def ruled_out(reasons: dict[str, str]) -> str:
    """Candidates by the reason that rules them out: one by its name, several by their number, as a table has them."""
    by_reason = {why: [name for name in reasons if reasons[name] == why] for why in reasons.values()}
    parts = (f"{each[0] if len(each) < 2 else f'{len(each)} candidates'} ({why})" for why, each in by_reason.items())
    return f" Ruled out: {'; '.join(parts)}." if reasons else ""


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
        return vanilla, " Whole networks are not trained in null worlds, so no gain can be confirmed."
    gains = {number: full[number] - full[vanilla] for number in allowed if number != vanilla}
    error = {number: float((drawn[number] - drawn[vanilla]).std()) for number in gains}
    hopeful = [number for number in gains if gains[number] > error[number]]
    for number in sorted(hopeful, key=lambda each: -gains[each])[:TRIED]:
        there = null(names[number])
        spread = float(np.hypot(error[number], there.std(ddof=1)))
        told.append(f"{names[number]} gains {gains[number]:.1f} points here and {there.mean():.1f} in a null world")
        if gains[number] - there.mean() > max(spread, WORTH):
            return number, f" {told[-1]}."
    return vanilla, f" {'; '.join(told)}: the difference is too small." if told else ""


def simplest_of_best(drawn: Vector, full: Sequence[float], allowed: Sequence[int]) -> int:
    """The first of these candidates, simplest first, that is within one standard error of the best of them."""
    best = max(allowed, key=lambda number: full[number])
    within = (n for n in allowed if n == best or full[best] - full[n] <= (drawn[best] - drawn[n]).std())
    return next(within)


def told_export(exported: str, wanted: bool, choice: Choice, marked: bool) -> dict[str, str]:
    """Which model was exported, why, and what would change that."""
    folder = folder_name(choice.rival)
    if wanted:
        why, change = "you asked for it with --export", "leave --export out to take the chosen one"
    elif exported != VANILLA:
        why = f"it was chosen by {choice.by}, and held-out samples do not show that it does harm"
        change = f"--export {folder_name(VANILLA)} takes vanilla instead"
    elif choice.chosen != VANILLA:
        why = f"{choice.chosen} was chosen, but held-out samples show that it does harm"
        change = f"--export {folder_name(choice.chosen)} takes it anyway"
    else:
        why = "no candidate was clearly better"
        if choice.at_any_cost != VANILLA:
            why = f"{choice.at_any_cost} looked better, but was ruled out or not clearly better"
        change = "more marks or samples would decide" if marked else "sixty marks would decide (--marks)"
        change += f"; --export {folder} takes {choice.rival} anyway" if choice.rival != VANILLA else ""
    told = f"Exported: {exported}. {why[:1].upper()}{why[1:]}; {change}."
    return {"name": exported, "why": why, "change": change, "sentence": told}
