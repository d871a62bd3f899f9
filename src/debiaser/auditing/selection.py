"""Which candidate to take when nobody can say which samples go against the shortcut, and the proof that it is better.

One is selected on validation samples, half by the accuracy on the worst class, half by the accuracy on samples that
were given the named property of another class; without a named property, by the worst class alone. Towards vanilla by
the one-standard-error rule. Then it is compared with vanilla on held-out samples, and priced.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from debiaser.auditing.candidates import (
    AUGMENTED,
    CONTROLS,
    MAX_COST,
    VANILLA,
    Evaluation,
    candidate_trainings,
    train_candidates,
)
from debiaser.auditing.crossval import Rows, Vector, probabilities, read_model
from debiaser.auditing.estimates import FEWEST_UNITS, Estimate, resampled_means, resampled_seeds
from debiaser.auditing.findings import conflicting_share
from debiaser.auditing.groups import FEWEST, group_cells, group_names
from debiaser.auditing.swap_test import BATCH, SwapTest, swap_answers
from debiaser.auditing.verdict import Examined
from debiaser.auditing.views import View
from debiaser.data.own import OwnData
from debiaser.io import numpy_stream
from debiaser.progress import track
from debiaser.report.tables import signed, with_interval

NEVER = 100.0  # percent: there is no share of cases from which it pays
MOST = 1000  # validation samples that are planted
ON_MISCLASSIFIED = "samples that the biased model misclassifies"
NOTHING: dict[str, Any] = {"difference": None, "interval": [None, None], "p": None, "rows": 0, "units": 0}


def select_and_prove(
    examined: Examined, train: Rows, valid: Rows, held_out: Rows, seeds: int, max_cost: float
) -> tuple[Evaluation, dict[str, Any]]:
    """The evaluation on held-out samples, its candidate chosen on validation ones, and what `debias` adds to an audit.

    Once the choice is made validation samples are to be learnt from like the others: everything is trained again.
    """
    own, trainer, view = examined.subject.own, examined.trainer, examined.named
    trainings = candidate_trainings(examined)
    validation = train_candidates(trainer, train, valid, trainings, own.unit, seeds)
    planted = plant_validation(examined, validation, view) if view else None
    choice = choose_model(validation, planted, max_cost, trainer.seed)
    if examined.subject.whole:  # what costs hours is trained again only where it is compared
        trainings = {name: trainings[name] for name in (VANILLA, choice.rival)}
    evaluation = train_candidates(trainer, np.union1d(train, valid), held_out, trainings, own.unit, seeds)
    evaluation = replace(evaluation, chosen=choice.chosen)
    more = report_evaluation(evaluation, choice.rival, own, max_cost)
    paid = price(evaluation, choice.rival, trainer.seed)
    if paid is not None:
        here = conflicting_share(examined).plain
        paid["sentence"] = (
            f"{paid['sentence'][:-1]}; your data: between {100 * here['low']:.1f}% and {100 * here['high']:.1f}%."
        )
    after = [asdict(each) for each in reliances_after(examined, validation, choice.rival)]
    more["repair"] |= {"selection": choice.plain, "price": paid, "views_after": after}
    return evaluation, {**more, "selection": choice.plain, "price": paid}


def reliances_after(examined: Examined, validation: Evaluation, name: str) -> Sequence[Any]:
    """How far this candidate's first seed follows each property, asked on validation samples."""
    if not isinstance(examined.swaps, SwapTest):
        return ()
    trainer, candidate = examined.trainer, validation.candidates[name]
    model = read_model(trainer.material, trainer.folder / candidate.keys[0])
    answers = np.full(len(examined.pool), -1)
    answers[examined.place[validation.rows]] = candidate.answers[0]

    def answer(_: torch.Tensor, inputs: Any) -> torch.Tensor:
        return torch.from_numpy(probabilities(model, examined.subject.enter(inputs)).argmax(1))

    test = swap_answers(examined.subject, trainer, examined.views, answers, answer)
    return test.reliances if isinstance(test, SwapTest) else ()


# --- Selection on validation samples


@dataclass(frozen=True, eq=False)
class PlantedAnswers:
    """Validation samples, by their places in the evaluation, that took a property of another class: right (s, p) by
    candidate."""

    title: str
    places: Rows
    right: dict[str, NDArray[np.bool_]]


@dataclass(frozen=True)
class Choice:
    """The candidate that was chosen, the one that would have been were no cost too high, every candidate's numbers in
    percent, and the sentence that says why."""

    chosen: str
    at_any_cost: str
    candidates: tuple[dict[str, Any], ...]
    sentence: str

    @property
    def rival(self) -> str:
        """What vanilla is compared with: the chosen one, else the one chosen at any cost, else the best debiased."""
        for name in (self.chosen, self.at_any_cost):
            if name != VANILLA:
                return name
        others = [each for each in self.candidates if each["name"] not in (VANILLA, AUGMENTED)]
        return str(max(others, key=lambda each: each["criterion"])["name"])

    @property
    def plain(self) -> dict[str, Any]:
        return {**asdict(self), "candidates": list(self.candidates), "rival": self.rival}


def plant_validation(examined: Examined, validation: Evaluation, view: View) -> PlantedAnswers | None:
    """What every candidate answers to bias-aligned validation samples that take this property of another class."""
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
    models = {
        name: [read_model(trainer.material, trainer.folder / key) for key in each.keys]
        for name, each in validation.candidates.items()
    }
    right: dict[str, list[NDArray[np.bool_]]] = {name: [] for name in models}
    for start in track(range(0, len(places), BATCH), "planted samples"):
        rows, given = (validation.rows[each[start : start + BATCH]] for each in (places, donors))
        x, other = (subject.read(torch.from_numpy(each)) for each in (rows, given))
        entered = subject.enter(view.swap(x, other, torch.from_numpy(examined.place[rows])))
        for name, networks in models.items():
            said = [probabilities(each, entered).argmax(1) for each in networks]
            right[name].append(np.stack(said) == trainer.y[rows])
    return PlantedAnswers(view.title, places, {name: np.concatenate(parts, 1) for name, parts in right.items()})


def choose_model(validation: Evaluation, planted: PlantedAnswers | None, max_cost: float, seed: int = 0) -> Choice:
    """The simplest candidate within one standard error of the best that costs at most `max_cost` points of accuracy."""
    names = [name for name in validation.candidates if name not in CONTROLS]
    drawn, full = resampled_criteria(validation, planted, names, seed)
    overall = {name: 100 * float(validation.right(name).mean()) for name in names}
    cost = {name: overall[VANILLA] - overall[name] for name in names}
    vetoed = {name: cost[name] > max_cost for name in names}
    everyone = range(len(names))
    chosen, at_any_cost = (
        names[simplest_of_best(drawn, full, allowed)]
        for allowed in ([number for number in everyone if not vetoed[names[number]]], everyone)
    )
    classes = [validation.labels == label for label in np.unique(validation.labels)]
    by_sample = {name: validation.right(name).mean(0) for name in names}
    rows = [
        {
            "name": name,
            "criterion": full[number],
            "error": float(drawn[number].std()),
            "worst_class": 100 * float(min(by_sample[name][mine].mean() for mine in classes)),
            "planted": None if planted is None else 100 * float(planted.right[name].mean()),
            "overall": overall[name],
            "vetoed": vetoed[name],
        }
        for number, name in enumerate(names)
    ]
    by = "by the worst class alone, since no property is named"
    if planted:
        by = f"half by the worst class, half by {len(planted.places):,} of them that were given the {planted.title} of "
        by += "another class"
    beside = f"; {VANILLA} {full[names.index(VANILLA)]:.1f}" if chosen != VANILLA else ""
    value = f"{full[names.index(chosen)]:.1f}{beside}"
    told = f"Chosen on {len(validation.rows):,} validation samples, {by}: {chosen} ({value})"
    told += ", the simplest within one standard error of the best."
    if any(vetoed.values()):
        out = ", ".join(f"{name} ({cost[name]:.1f})" for name in names if vetoed[name])
        told += f" Out, for costing more than {max_cost:g} points of validation accuracy: {out}."
    if at_any_cost != chosen and vetoed[at_any_cost]:
        told += f" At any cost it would have been {at_any_cost}: --max-cost {math.ceil(cost[at_any_cost])} allows it."
    return Choice(chosen, at_any_cost, tuple(rows), told)


def simplest_of_best(drawn: Vector, full: Sequence[float], allowed: Sequence[int]) -> int:
    """The first of these candidates, simplest first, that is within one standard error of the best of them."""
    best = max(allowed, key=lambda number: full[number])
    within = (n for n in allowed if n == best or full[best] - full[n] <= (drawn[best] - drawn[n]).std())
    return next(within)


def resampled_criteria(
    evaluation: Evaluation, planted: PlantedAnswers | None, names: Sequence[str], seed: int
) -> tuple[Vector, list[float]]:
    """(c, draws) the criterion in percent over bootstrap samples of units and seeds, the same for all candidates, and
    (c,) on all samples."""
    drawn, full, seeds, labels = [], [], evaluation.seeds, evaluation.labels
    for name in names:
        # for each class, then for the planted samples: which these are, and by seed whether they are right
        right = evaluation.right(name).astype(np.float64)
        parts = [np.vstack([mine, right * mine]) for mine in (labels == k for k in np.unique(labels))]
        if planted is not None:
            moved = np.zeros((1 + seeds, len(labels)))
            moved[0, planted.places], moved[1:, planted.places] = 1.0, planted.right[name]
            parts.append(moved)
        columns = np.concatenate(parts).T
        again = resampled_means(columns, evaluation.unit, seed)
        drawn.append(criterion(again, planted is not None, resampled_seeds(seeds, len(again), seed)))
        mean = columns.mean(0, keepdims=True)
        full.append(float(criterion(mean, planted is not None, np.full((1, seeds), 1 / seeds))[0]))
    return np.stack(drawn), full


def criterion(means: Vector, planted: bool, turns: Vector) -> Vector:
    """(b,) in percent, from means of the columns (b, c) and shares of the seeds (b, s)."""
    parts = means.reshape(len(means), -1, 1 + turns.shape[1])
    accuracy = (parts[..., 1:] * turns[:, None]).sum(2) / np.maximum(parts[..., 0], 1e-12)
    accuracy = np.where(parts[..., 0] > 0, accuracy, 1.0)  # a class that a sample does not hold is not its worst
    if not planted:
        return np.asarray(100 * accuracy.min(1))
    return np.asarray(50 * accuracy[:, :-1].min(1) + 50 * accuracy[:, -1])


# --- Proof on held-out samples


def report_evaluation(evaluation: Evaluation, rival: str, own: OwnData, max_cost: float) -> dict[str, Any]:
    """What `debias` adds to an audit: vanilla before, its rival after, the other controls, the test, whether it helped.

    The rival is the chosen candidate or, where that is vanilla, the best of those that were not chosen.
    """
    group = None if own.group is None else group_names(own.group)[evaluation.rows]
    told = {name: describe(evaluation, name, own.classes, group) for name in evaluation.candidates}
    everywhere = np.ones(len(evaluation.rows), bool)
    for name, each in told.items():
        each["minus_vanilla"] = None if name == VANILLA else difference(evaluation, name, everywhere)
    overall = told[rival]["minus_vanilla"]
    misclassified = difference(evaluation, rival, evaluation.misclassified)
    helped, words = judge_change(overall, misclassified, max_cost)
    if evaluation.chosen == VANILLA:
        changed = changes_in_words(overall, misclassified)
        helped, words = False, f"Debiasing was not chosen; on the held-out samples {rival} changed {changed}."
    before, after = told.pop(VANILLA), told.pop(rival)
    test = {**overall, "on": "all held-out samples", "easy_misses": misclassified}
    facts = {"before": before, "after": after, "controls": told, "test": test, "helped": helped}
    sides = {"before": {VANILLA: before}, "after": {rival: after}}
    how = {"seeds": evaluation.seeds, "samples_seen": evaluation.samples_seen, "chosen": evaluation.chosen}
    return {**facts, "repair": {**facts, **sides, "sentence": words, **how, "cost": None}}


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
    """Mean and standard deviation over seeds of an accuracy in percent; None without samples."""
    if not right.shape[1]:
        return {"mean": None, "sd": None, "rows": 0}
    each = 100 * right.mean(1)
    sd = float(each.std(ddof=1)) if len(each) > 1 else None
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
    low, high = np.percentile(resampled, [2.5, 97.5])
    p = 2 * min(float((resampled <= 0).mean()), float((resampled >= 0).mean()))
    return {**found, "interval": [float(low), float(high)], "p": min(1.0, max(p, 1 / len(resampled)))}


def judge_change(
    overall: dict[str, Any], misclassified: dict[str, Any], max_cost: float = MAX_COST
) -> tuple[bool, str]:
    """Whether debiasing helped, and the sentence that says so."""
    everywhere, there = overall["interval"], misclassified["interval"]
    told = changes_in_words(overall, misclassified)
    if everywhere[0] is None:
        few = f"{overall['units']:,} held-out units are too few for an interval; {FEWEST_UNITS} are needed"
        return False, f"Debiasing is not shown to help: {told}. {few}."
    if everywhere[0] > 0:
        return True, f"Debiasing helped: {told}."
    if there[0] is not None and there[0] > 0 and overall["difference"] >= -max_cost:
        return True, f"Debiasing helped on {ON_MISCLASSIFIED}: {told}."
    if everywhere[1] < 0:
        return False, f"Debiasing did not help, it cost accuracy: {told}."
    return False, f"Debiasing is not shown to help: {told}. The interval includes no change."


def changes_in_words(overall: dict[str, Any], misclassified: dict[str, Any]) -> str:
    """The differences on all held-out samples and on those the biased model misclassifies, with their intervals."""
    there = with_interval(misclassified)
    told = f"{with_interval(overall) or signed(overall['difference'])} points on all held-out samples"
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
        low, high = np.percentile(values, [2.5, 97.5])
        return Estimate(value, float(low), float(high), method)

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
    return np.asarray((by_seed * resampled_seeds(len(change), len(drawn), seed)).sum(1))


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
