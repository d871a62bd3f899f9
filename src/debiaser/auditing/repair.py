"""The fix and its proof: controls and the debiased model, same number of samples seen, judged on held-out rows."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from debiaser.auditing.crew import run
from debiaser.auditing.estimates import resampled_means
from debiaser.auditing.jobs import Answers, Job, Rows
from debiaser.auditing.scoring import ALPHA, Desk, Vector
from debiaser.data.own import OwnData
from debiaser.learn.groups import balancing_weights

VANILLA, AUGMENTED, PGD = "vanilla (class-balanced)", "augmentation only", "PGD"
EASY_MISSES = "rows the easy model misses"
MAX_COST = 2.0  # points of accuracy on all rows that a gain elsewhere may cost


@dataclass(frozen=True, eq=False)
class Contender:
    """A way to train: its answers (s, m) to the held-out rows, by seed, and the keys of its models."""

    name: str
    answers: NDArray[np.int64]
    probability: NDArray[np.float64]  # (m, k) of the first seed's model, the one that can be exported
    keys: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Trial:
    """All contenders on the same held-out rows; `misses`: which of these the easy model gets wrong."""

    rows: Rows
    labels: Rows
    unit: Rows
    misses: NDArray[np.bool_]
    contenders: dict[str, Contender]
    samples_seen: int
    seeds: int


def compete(desk: Desk, train: Rows, held_out: Rows, score: Vector, unit: Rows, seeds: int) -> Trial:
    """Train everything over so many seeds and ask it about the held-out rows."""
    material = desk.material
    easy, rest = desk.easy_recipe(len(train)), desk.long_recipe(len(train))
    whole = replace(rest, epochs=easy.epochs + rest.epochs)  # a control sees as many samples as both stages together
    balanced = balancing_weights(desk.y[train])

    def job(name: str, seed: int, **how: Any) -> Job:
        plan = {"name": name, "material": material, "y": desk.y, "train": train, "ask": held_out}
        return Job(**{**plan, "recipe": whole, "seed": desk.seed + seed, **how})

    controls = {VANILLA: [job("vanilla", seed, weight=balanced) for seed in range(seeds)]}
    if material.augment:
        varied = {"weight": balanced, "augment": material.augment}
        controls[AUGMENTED] = [job("augmented", seed, **varied) for seed in range(seeds)]
    biased = [job("biased", seed, recipe=easy, alpha=ALPHA) for seed in range(seeds)]
    first = {**controls, "easy": biased}
    flat = [each for jobs in first.values() for each in jobs]
    answers = run(flat, desk.folder, "controls", desk.listener, desk.workers)
    drawn = {"recipe": rest, "weight": score[train], "augment": material.augment}
    debiased = [job("debiased", seed, start=biased[seed].key, **drawn) for seed in range(seeds)]
    last = run(debiased, desk.folder, "debiased", desk.listener, desk.workers)
    by_name = {name: answers[n * seeds : (n + 1) * seeds] for n, name in enumerate(first)}
    by_name[PGD] = last
    keys = {**first, PGD: debiased}
    contenders = {name: contender(name, said, keys[name]) for name, said in by_name.items()}
    labels = desk.y[held_out]
    easy_answer = np.mean([said.probability for said in by_name["easy"]], axis=0).argmax(1)
    seen = whole.epochs * len(train)
    return Trial(held_out, labels, unit[held_out], easy_answer != labels, contenders, seen, seeds)


def contender(name: str, said: list[Answers], jobs: list[Job]) -> Contender:
    """The answers of one way to train, over its seeds."""
    answers = np.stack([each.logits.argmax(1) for each in said])
    return Contender(name, answers, said[0].probability, tuple(job.key for job in jobs))


def describe(trial: Trial, name: str, classes: tuple[str, ...], group: NDArray[np.str_] | None) -> dict[str, Any]:
    """Accuracy in percent, mean and spread over seeds: overall, per class, on easy misses, per real group."""
    right = trial.contenders[name].answers == trial.labels
    parts = {classes[k]: trial.labels == k for k in np.unique(trial.labels)}
    groups = {} if group is None else {str(each): group[trial.rows] == each for each in np.unique(group[trial.rows])}
    return {
        "overall": spread(right),
        "per_class": {each: spread(right[:, rows]) for each, rows in parts.items()},
        "easy_misses": spread(right[:, trial.misses]),
        "easy_follows": spread(right[:, ~trial.misses]),
        "groups": {each: spread(right[:, rows]) for each, rows in groups.items()},
    }


def spread(right: NDArray[np.bool_]) -> dict[str, float | None]:
    """Mean and standard deviation over seeds of an accuracy in percent; None without rows."""
    if not right.shape[1]:
        return {"mean": None, "sd": None, "rows": 0}
    each = 100 * right.mean(1)
    sd = float(each.std(ddof=1)) if len(each) > 1 else None
    return {"mean": float(each.mean()), "sd": sd, "rows": right.shape[1]}


def difference(trial: Trial, rows: NDArray[np.bool_], seed: int = 0) -> dict[str, Any]:
    """PGD minus vanilla in points on these held-out rows, with an interval over units and seeds, and a p-value."""
    if not rows.any():
        return {"difference": None, "interval": [None, None], "p": None, "rows": 0, "units": 0}
    gain = 100.0 * (
        (trial.contenders[PGD].answers == trial.labels).astype(np.float64)
        - (trial.contenders[VANILLA].answers == trial.labels)
    )
    drawn = resampled_means(gain[:, rows].T, trial.unit[rows], seed)  # (draws, seeds)
    stream = np.random.default_rng(seed)
    seeds = stream.integers(0, trial.seeds, drawn.shape)  # and of the seeds, so many again
    resampled = np.take_along_axis(drawn, seeds, 1).mean(1)
    low, high = np.percentile(resampled, [2.5, 97.5])
    p = 2 * min(float((resampled <= 0).mean()), float((resampled >= 0).mean()))
    return {
        "difference": float(gain[:, rows].mean()),
        "interval": [float(low), float(high)],
        "p": min(1.0, max(p, 1 / len(resampled))),
        "rows": int(rows.sum()),
        "units": len(np.unique(trial.unit[rows])),
    }


def verdict(overall: dict[str, Any], misses: dict[str, Any], max_cost: float = MAX_COST) -> tuple[bool, str]:
    """Whether debiasing helped, and the sentence that says so."""
    everywhere, there = overall["interval"], misses["interval"]
    told = f"{overall['difference']:+.1f} points on all held-out rows [{everywhere[0]:.1f}, {everywhere[1]:.1f}]"
    if there[0] is not None:
        told += (
            f", {misses['difference']:+.1f} on the {misses['rows']:,} {EASY_MISSES} [{there[0]:.1f}, {there[1]:.1f}]"
        )
    if everywhere[0] > 0:
        return True, f"Debiasing helped: {told}."
    if there[0] is not None and there[0] > 0 and overall["difference"] >= -max_cost:
        return True, f"Debiasing helped on {EASY_MISSES}: {told}."
    if everywhere[1] < 0:
        return False, f"Debiasing did not help, it cost accuracy: {told}."
    return False, f"Debiasing is not shown to help: {told}. The interval includes no change."


def report_trial(trial: Trial, own: OwnData, max_cost: float) -> dict[str, Any]:
    """What `debias` adds to an audit: before, after, the other controls, the test, and whether it helped."""
    overall, misses = difference(trial, np.ones(len(trial.rows), bool)), difference(trial, trial.misses)
    helped, sentence = verdict(overall, misses, max_cost)
    told = {name: describe(trial, name, own.classes, own.group) for name in trial.contenders}
    before, after = told.pop(VANILLA), told.pop(PGD)
    test = {**overall, "on": "all held-out rows", "easy_misses": misses}
    facts = {"before": before, "after": after, "controls": told, "test": test, "helped": helped}
    repair = {**facts, "before": {VANILLA: before}, "after": {PGD: after}, "sentence": sentence}
    return {**facts, "repair": {**repair, "seeds": trial.seeds, "samples_seen": trial.samples_seen, "cost": None}}
