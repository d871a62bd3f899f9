"""Which model to take when nobody can say which rows go against the rule: judged on validation rows and planted ones.

The criterion is half the accuracy on the worst class, half the accuracy on rows that were given the named property of
another class; without a named property, the worst class alone. Towards vanilla by the one-standard-error rule.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from debiaser.auditing.candidates import (
    AUGMENTED,
    CONTROLS,
    VANILLA,
    Evaluation,
    candidate_trainings,
    counterfactual_copies,
    report_evaluation,
    train_candidates,
)
from debiaser.auditing.crossval import Vector
from debiaser.auditing.estimates import FEWEST_UNITS, Estimate, resampled_means, resampled_seeds
from debiaser.auditing.examine import Examined
from debiaser.auditing.findings import conflicting_share
from debiaser.auditing.inputs import WholeMaterial
from debiaser.auditing.jobs import Rows, probabilities, read_model
from debiaser.auditing.swap_test import BATCH, SwapTest, swaps_of
from debiaser.auditing.views import View
from debiaser.errors import Problem
from debiaser.io import numpy_stream
from debiaser.progress import track

# --- What debiasing gains on rows that go against the rule, what it costs on rows that follow it, and when it pays

NEVER = 100.0  # percent: there is no share of cases from which it pays


def price(evaluation: Evaluation, chosen: str, seed: int = 0) -> dict[str, Any] | None:
    """Gain and cost in points, and the share in percent of cases against the rule from which the chosen model is
    better than vanilla: cost / (cost + gain). Intervals over units and seeds; None without rows of both kinds."""
    against = evaluation.misclassified
    if not against.any() or against.all():
        return None
    right = {
        name: (evaluation.candidates[name].answers == evaluation.labels).astype(np.float64)
        for name in (VANILLA, chosen)
    }
    change = 100 * (right[chosen] - right[VANILLA])  # (s, m)
    gains = resampled_changes(change, against, evaluation.unit, seed)
    costs = -resampled_changes(change, ~against, evaluation.unit, seed)
    gain, cost = float(change[:, against].mean()), -float(change[:, ~against].mean())
    shares = [break_even(*pair) for pair in zip(costs.tolist(), gains.tolist(), strict=True)]
    method = f"bootstrap over {len(np.unique(evaluation.unit)):,} units and {evaluation.seeds} seeds"

    def estimate(value: float, values: Any) -> Estimate:
        if len(np.unique(evaluation.unit)) < FEWEST_UNITS:
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
    """(DRAWS,) the mean change (s, m) over a part of the rows, over bootstrap samples of units and seeds."""
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
        return f"These rows cannot tell from how many cases against the rule on it is better {points}."
    if gain <= 0 and cost < 0:  # the other way round: what it wins is on rows that follow the rule
        return f"Better only if fewer than {100 * cost / (cost + gain):.1f}% of the cases go against the rule {points}."
    if even.value >= NEVER:
        return "No share of cases that go against the rule makes it better: it gains nothing on them."
    told = f"Better if more than {even.words()} of the cases in the field go against the rule"
    if even.value <= 0:
        told = f"Better at any share of cases that go against the rule [{even.low:.1f}, {even.high:.1f}%]"
    return f"{told} {points}."


MOST = 1000  # validation rows that are planted


@dataclass(frozen=True, eq=False)
class PlantedAnswers:
    """Validation rows, by their places in the trial, that took a property of another class: right (s, p) by model."""

    title: str
    places: Rows
    right: dict[str, NDArray[np.bool_]]


@dataclass(frozen=True)
class Choice:
    """The model that was chosen, the one that would have been were no cost too high, every candidate's numbers in
    percent, and the sentence that says why."""

    chosen: str
    at_any_cost: str
    candidates: tuple[dict[str, Any], ...]
    sentence: str

    @property
    def rival(self) -> str:
        """What vanilla is compared with: the chosen model, else the one chosen at any cost, else the best debiased."""
        for name in (self.chosen, self.at_any_cost):
            if name != VANILLA:
                return name
        others = [each for each in self.candidates if each["name"] not in (VANILLA, AUGMENTED)]
        return str(max(others, key=lambda each: each["criterion"])["name"])

    @property
    def plain(self) -> dict[str, Any]:
        return {
            "chosen": self.chosen,
            "at_any_cost": self.at_any_cost,
            "rival": self.rival,
            "candidates": list(self.candidates),
            "sentence": self.sentence,
        }


def plant_validation(examined: Examined, validation: Evaluation, view: View) -> PlantedAnswers | None:
    """What every model answers to validation rows that follow the rule and take this property of another class."""
    trainer, subject = examined.trainer, examined.subject
    stream = numpy_stream(trainer.seed, "planted", "validation")
    places = np.sort(stream.permutation(np.flatnonzero(~validation.misclassified))[:MOST])
    labels = validation.labels
    donors = np.array([other_class(labels, labels[each], stream) for each in places], np.int64)
    if not len(places) or (donors < 0).any():
        return None
    right: dict[str, list[list[NDArray[np.bool_]]]] = {name: [] for name in validation.candidates}
    models = {
        name: [read_model(trainer.material, trainer.folder / key) for key in each.keys]
        for name, each in validation.candidates.items()
    }
    for start in track(range(0, len(places), BATCH), "planted rows"):
        part = places[start : start + BATCH]
        rows = validation.rows[part]
        x, other = (
            subject.read(torch.from_numpy(validation.rows[each])) for each in (part, donors[start:][: len(part)])
        )
        try:
            entered = subject.enter(view.swap(x, other, torch.from_numpy(examined.place[rows])))
        except Problem:
            return None
        for name, networks in models.items():
            right[name].append([probabilities(each, entered).argmax(1) == labels[part] for each in networks])
    joined = {name: np.concatenate([np.stack(each) for each in parts], 1) for name, parts in right.items()}
    return PlantedAnswers(view.title, places, joined)


def other_class(labels: Rows, label: int, stream: np.random.Generator) -> int:
    """The place of a row of another class, all classes as likely; -1 where there is none."""
    others = np.setdiff1d(np.unique(labels), [label])
    if not len(others):
        return -1
    mine = np.flatnonzero(labels == others[stream.integers(len(others))])
    return int(mine[stream.integers(len(mine))])


def choose_model(validation: Evaluation, planted: PlantedAnswers | None, max_cost: float, seed: int = 0) -> Choice:
    """The simplest candidate within one standard error of the best that costs at most `max_cost` points of accuracy."""
    names = [name for name in validation.candidates if name not in CONTROLS]
    drawn, full = resampled_criteria(validation, planted, names, seed)
    overall = {name: 100 * float((validation.candidates[name].answers == validation.labels).mean()) for name in names}
    cost = {name: overall[VANILLA] - overall[name] for name in names}
    vetoed = {name: cost[name] > max_cost for name in names}
    everyone = range(len(names))
    chosen, at_any_cost = (
        names[simplest_of_best(drawn, full, allowed)]
        for allowed in ([number for number in everyone if not vetoed[names[number]]], everyone)
    )
    rows = [
        {
            "name": name,
            "criterion": full[number],
            "error": float(drawn[number].std()),
            "worst_class": 100 * worst_class(validation, name),
            "planted": None if planted is None else 100 * float(planted.right[name].mean()),
            "overall": overall[name],
            "vetoed": vetoed[name],
        }
        for number, name in enumerate(names)
    ]
    told = sentence(rows, chosen, planted, validation)
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


def sentence(
    rows: Sequence[dict[str, Any]], chosen: str, planted: PlantedAnswers | None, validation: Evaluation
) -> str:
    """What was chosen, and on what."""
    by = (
        f"half by the worst class, half by {len(planted.places):,} of them that were given the {planted.title} of "
        "another class"
        if planted
        else "by the worst class alone, since no property is named"
    )
    of = {row["name"]: row for row in rows}
    return (
        f"Chosen on {len(validation.rows):,} validation rows, {by}: {chosen} ({of[chosen]['criterion']:.1f}"
        + (f"; {VANILLA} {of[VANILLA]['criterion']:.1f}" if chosen != VANILLA else "")
        + "), the simplest within one standard error of the best."
    )


def worst_class(evaluation: Evaluation, name: str) -> float:
    """The accuracy on the class where it is lowest, over all seeds."""
    right = (evaluation.candidates[name].answers == evaluation.labels).mean(0)
    return float(min(right[evaluation.labels == label].mean() for label in np.unique(evaluation.labels)))


def resampled_criteria(
    evaluation: Evaluation, planted: PlantedAnswers | None, names: Sequence[str], seed: int
) -> tuple[NDArray[np.float64], list[float]]:
    """(c, draws) the criterion in percent over bootstrap samples of units and seeds, the same for all candidates, and
    (c,) on all rows."""
    drawn, full = [], []
    for name in names:
        columns = criterion_columns(evaluation, planted, name)
        again = resampled_means(columns, evaluation.unit, seed)
        drawn.append(criterion(again, evaluation, planted, resampled_seeds(evaluation.seeds, len(again), seed)))
        even = np.full((1, evaluation.seeds), 1 / evaluation.seeds)
        full.append(float(criterion(columns.mean(0, keepdims=True), evaluation, planted, even)[0]))
    return np.stack(drawn), full


def criterion_columns(evaluation: Evaluation, planted: PlantedAnswers | None, name: str) -> Vector:
    """(m, c) for each class, then for the planted rows: which rows these are, and by seed whether they are right."""
    right = (evaluation.candidates[name].answers == evaluation.labels).astype(np.float64)
    parts = [np.vstack([mine, right * mine]) for mine in (evaluation.labels == k for k in np.unique(evaluation.labels))]
    if planted is not None:
        moved = np.zeros((1 + evaluation.seeds, len(evaluation.rows)))
        moved[0, planted.places], moved[1:, planted.places] = 1.0, planted.right[name]
        parts.append(moved)
    return np.concatenate(parts).T


def criterion(means: Vector, evaluation: Evaluation, planted: PlantedAnswers | None, turns: Vector) -> Vector:
    """(b,) in percent, from means of the columns (b, c) and shares of the seeds (b, s)."""
    parts = means.reshape(len(means), -1, 1 + evaluation.seeds)
    accuracy = (parts[..., 1:] * turns[:, None]).sum(2) / np.maximum(parts[..., 0], 1e-12)
    accuracy = np.where(parts[..., 0] > 0, accuracy, 1.0)  # a class that a sample does not hold is not its worst
    if planted is None:
        return np.asarray(100 * accuracy.min(1))
    return np.asarray(50 * accuracy[:, :-1].min(1) + 50 * accuracy[:, -1])


# --- From an audit to a model: candidates are trained, one is chosen on validation rows and proven on held-out ones


def prove(
    examined: Examined, train: Rows, valid: Rows, held_out: Rows, seeds: int, max_cost: float
) -> tuple[Evaluation, dict[str, Any]]:
    """The trial on held-out rows, its model chosen on the validation rows, and what `debias` adds to an audit.

    Once the choice is made validation rows are rows to learn from like the others: everything is trained again.
    """
    own, trainer = examined.subject.own, examined.trainer
    view = examined.named
    trainings = candidate_trainings(examined, counterfactual_copies(examined, view) if view else None)
    validation = train_candidates(trainer, train, valid, trainings, own.unit, seeds)
    choice = choose_model(
        validation, plant_validation(examined, validation, view) if view else None, max_cost, trainer.seed
    )
    if isinstance(trainer.material, WholeMaterial):  # what costs hours is trained again only where it is compared
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
    after = [each.plain for each in reliances_after(examined, validation, choice.rival)]
    more["repair"] |= {"selection": choice.plain, "price": paid, "views_after": after}
    more["selection"], more["price"] = choice.plain, paid
    return evaluation, more


def reliances_after(examined: Examined, validation: Evaluation, name: str) -> Sequence[Any]:
    """How far this model's first seed follows each property, asked on validation rows."""
    if not isinstance(examined.swaps, SwapTest):
        return ()
    trainer, candidate = examined.trainer, validation.candidates[name]
    model = read_model(trainer.material, trainer.folder / candidate.keys[0])
    answers = np.full(len(examined.pool), -1)
    answers[examined.place[validation.rows]] = candidate.answers[0]

    def answer(_: torch.Tensor, inputs: Any) -> torch.Tensor:
        return torch.from_numpy(probabilities(model, examined.subject.enter(inputs)).argmax(1))

    test = swaps_of(examined.subject, trainer, examined.views, answers, answer)
    return test.reliances if isinstance(test, SwapTest) else ()
