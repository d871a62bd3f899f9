"""Which model to take when nobody can say which rows go against the rule: judged on validation rows and planted ones.

The criterion is half the accuracy on the worst class, half the accuracy on rows that were given the named property of
another class; without a named property, the worst class alone. Towards vanilla by the one-standard-error rule.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from debiaser.auditing.audit import Examined
from debiaser.auditing.estimates import resampled_means, resampled_seeds
from debiaser.auditing.jobs import Rows, answer_inputs, read_model
from debiaser.auditing.repair import AUGMENTED, CONTROLS, VANILLA, Trial
from debiaser.auditing.scoring import Vector
from debiaser.auditing.swap import BATCH
from debiaser.auditing.views import View
from debiaser.errors import Problem
from debiaser.learn.engine import told_of
from debiaser.randomness import numpy_stream

MOST = 1000  # validation rows that are planted


@dataclass(frozen=True, eq=False)
class PlantedTrial:
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


def plant_trial(examined: Examined, rehearsal: Trial, view: View) -> PlantedTrial | None:
    """What every model answers to validation rows that follow the rule and take this property of another class."""
    desk, subject = examined.desk, examined.subject
    stream = numpy_stream(desk.seed, "planted", "validation")
    places = np.sort(stream.permutation(np.flatnonzero(~rehearsal.misses))[:MOST])
    labels = rehearsal.labels
    donors = np.array([other_class(labels, labels[each], stream) for each in places], np.int64)
    if not len(places) or (donors < 0).any():
        return None
    right: dict[str, list[list[NDArray[np.bool_]]]] = {name: [] for name in rehearsal.contenders}
    models = {
        name: [read_model(desk.material, desk.folder / key) for key in each.keys]
        for name, each in rehearsal.contenders.items()
    }
    for start in told_of(desk.listener, "planted rows", range(0, len(places), BATCH)):
        part = places[start : start + BATCH]
        rows = rehearsal.rows[part]
        x, other = (
            subject.read(torch.from_numpy(rehearsal.rows[each])) for each in (part, donors[start:][: len(part)])
        )
        try:
            entered = subject.enter(view.swap(x, other, torch.from_numpy(examined.place[rows])))
        except Problem:
            desk.listener.end("planted rows", None)
            return None
        for name, networks in models.items():
            right[name].append([answer_inputs(each, entered).argmax(1) == labels[part] for each in networks])
    joined = {name: np.concatenate([np.stack(each) for each in parts], 1) for name, parts in right.items()}
    return PlantedTrial(view.title, places, joined)


def other_class(labels: Rows, label: int, stream: np.random.Generator) -> int:
    """The place of a row of another class, all classes as likely; -1 where there is none."""
    others = np.setdiff1d(np.unique(labels), [label])
    if not len(others):
        return -1
    mine = np.flatnonzero(labels == others[stream.integers(len(others))])
    return int(mine[stream.integers(len(mine))])


def choose_model(rehearsal: Trial, planted: PlantedTrial | None, max_cost: float, seed: int = 0) -> Choice:
    """The simplest candidate within one standard error of the best that costs at most `max_cost` points of accuracy."""
    names = [name for name in rehearsal.contenders if name not in CONTROLS]
    drawn, full = resampled_criteria(rehearsal, planted, names, seed)
    overall = {name: 100 * float((rehearsal.contenders[name].answers == rehearsal.labels).mean()) for name in names}
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
            "worst_class": 100 * worst_class(rehearsal, name),
            "planted": None if planted is None else 100 * float(planted.right[name].mean()),
            "overall": overall[name],
            "vetoed": vetoed[name],
        }
        for number, name in enumerate(names)
    ]
    told = sentence(rows, chosen, planted, rehearsal)
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


def sentence(rows: Sequence[dict[str, Any]], chosen: str, planted: PlantedTrial | None, rehearsal: Trial) -> str:
    """What was chosen, and on what."""
    by = (
        f"half by the worst class, half by {len(planted.places):,} of them that were given the {planted.title} of "
        "another class"
        if planted
        else "by the worst class alone, since no property is named"
    )
    of = {row["name"]: row for row in rows}
    return (
        f"Chosen on {len(rehearsal.rows):,} validation rows, {by}: {chosen} ({of[chosen]['criterion']:.1f}"
        + (f"; {VANILLA} {of[VANILLA]['criterion']:.1f}" if chosen != VANILLA else "")
        + "), the simplest within one standard error of the best."
    )


def worst_class(trial: Trial, name: str) -> float:
    """The accuracy on the class where it is lowest, over all seeds."""
    right = (trial.contenders[name].answers == trial.labels).mean(0)
    return float(min(right[trial.labels == label].mean() for label in np.unique(trial.labels)))


def resampled_criteria(
    trial: Trial, planted: PlantedTrial | None, names: Sequence[str], seed: int
) -> tuple[NDArray[np.float64], list[float]]:
    """(c, draws) the criterion in percent over bootstrap samples of units and seeds, the same for all candidates, and
    (c,) on all rows."""
    drawn, full = [], []
    for name in names:
        columns = criterion_columns(trial, planted, name)
        again = resampled_means(columns, trial.unit, seed)
        drawn.append(criterion(again, trial, planted, resampled_seeds(trial.seeds, len(again), seed)))
        even = np.full((1, trial.seeds), 1 / trial.seeds)
        full.append(float(criterion(columns.mean(0, keepdims=True), trial, planted, even)[0]))
    return np.stack(drawn), full


def criterion_columns(trial: Trial, planted: PlantedTrial | None, name: str) -> Vector:
    """(m, c) for each class, then for the planted rows: which rows these are, and by seed whether they are right."""
    right = (trial.contenders[name].answers == trial.labels).astype(np.float64)
    parts = [np.vstack([mine, right * mine]) for mine in (trial.labels == k for k in np.unique(trial.labels))]
    if planted is not None:
        moved = np.zeros((1 + trial.seeds, len(trial.rows)))
        moved[0, planted.places], moved[1:, planted.places] = 1.0, planted.right[name]
        parts.append(moved)
    return np.concatenate(parts).T


def criterion(means: Vector, trial: Trial, planted: PlantedTrial | None, turns: Vector) -> Vector:
    """(b,) in percent, from means of the columns (b, c) and shares of the seeds (b, s)."""
    parts = means.reshape(len(means), -1, 1 + trial.seeds)
    accuracy = (parts[..., 1:] * turns[:, None]).sum(2) / np.maximum(parts[..., 0], 1e-12)
    accuracy = np.where(parts[..., 0] > 0, accuracy, 1.0)  # a class that a sample does not hold is not its worst
    if planted is None:
        return np.asarray(100 * accuracy.min(1))
    return np.asarray(50 * accuracy[:, :-1].min(1) + 50 * accuracy[:, -1])
