"""The fix and its proof: controls and the debiased model, same number of samples seen, judged on held-out rows."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from debiaser.auditing.audit import Examined
from debiaser.auditing.crew import run
from debiaser.auditing.estimates import resampled_means
from debiaser.auditing.jobs import Answers, Job, Rows
from debiaser.auditing.scoring import ALPHA, Desk, Vector
from debiaser.data.own import OwnData
from debiaser.learn.groups import balancing_weights

VANILLA, AUGMENTED = "vanilla (class-balanced)", "augmentation only"
EASY, PLAIN_PGD = "easy", "plain PGD"
CONTROLS = (EASY, PLAIN_PGD)  # trained beside the others, never chosen
STRENGTHS = (0.5, 0.75, 1.0)  # shares of PGD's draws that go by score
EASY_MISSES = "rows the easy model misses"
NOTHING: dict[str, Any] = {"difference": None, "interval": [None, None], "p": None, "rows": 0, "units": 0}
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
    """All contenders on the same rows; `misses`: which of these the easy model gets wrong; `chosen`: on other rows."""

    rows: Rows
    labels: Rows
    unit: Rows
    misses: NDArray[np.bool_]
    contenders: dict[str, Contender]
    samples_seen: int
    seeds: int
    chosen: str = VANILLA


def named(strength: float) -> str:
    """PGD at this strength."""
    return f"PGD, {strength:.0%} of draws by score"


def draws_of(examined: Examined) -> dict[str, Vector]:
    """The draws of PGD at every strength; where kinds are asserted, those of plain PGD beside them."""
    draws = {named(strength): examined.weight(strength) for strength in STRENGTHS}
    if not examined.kinds.abstains and examined.kinds.judge is not None:
        draws[PLAIN_PGD] = examined.weight(1.0, trusting=False)
    return draws


def compete(
    desk: Desk, train: Rows, asked: Sequence[Rows], draws: dict[str, Vector], unit: Rows, seeds: int
) -> list[Trial]:
    """Train everything over so many seeds, to its last epoch, weights averaged over it; a trial for each set of rows.

    `draws`: for each way to debias, the probabilities (n,) of the rows.
    """
    material = desk.material
    easy, rest = desk.easy_recipe(len(train)), desk.long_recipe(len(train))
    whole = replace(rest, epochs=easy.epochs + rest.epochs)  # a control sees as many samples as both stages together
    balanced = balancing_weights(desk.y[train])
    plan = {"material": material, "y": desk.y, "train": train, "ask": np.concatenate(list(asked)), "averaged": True}

    def job(name: str, seed: int, **how: Any) -> Job:
        return Job(**{**plan, "name": name, "recipe": whole, "seed": desk.seed + seed, **how})

    first = {VANILLA: [job("vanilla", seed, weight=balanced) for seed in range(seeds)]}
    if material.augment:
        varied = {"weight": balanced, "augment": material.augment}
        first[AUGMENTED] = [job("augmented", seed, **varied) for seed in range(seeds)]
    first[EASY] = [job("biased", seed, recipe=easy, alpha=ALPHA, averaged=False) for seed in range(seeds)]
    second = {
        name: [
            job(
                "debiased",
                seed,
                start=first[EASY][seed].key,
                recipe=rest,
                weight=weight[train],
                augment=material.augment,
            )
            for seed in range(seeds)
        ]
        for name, weight in draws.items()
    }
    said = answers_of(first, desk, "controls") | answers_of(second, desk, "debiased")
    jobs, seen = {**first, **second}, whole.epochs * len(train)
    trials, start = [], 0
    for rows in asked:
        part = slice(start, start + len(rows))
        start += len(rows)
        contenders = {name: contender(name, each, jobs[name], part) for name, each in said.items()}
        misses = np.mean([each.probability[part] for each in said[EASY]], axis=0).argmax(1) != desk.y[rows]
        trials.append(Trial(rows, desk.y[rows], unit[rows], misses, contenders, seen, seeds))
    return trials


def answers_of(jobs: dict[str, list[Job]], desk: Desk, stage: str) -> dict[str, list[Answers]]:
    """What the models of these jobs say, by name."""
    flat = run([job for each in jobs.values() for job in each], desk.folder, stage, desk.listener, desk.workers)
    found = iter(flat)
    return {name: [next(found) for _ in each] for name, each in jobs.items()}


def contender(name: str, said: list[Answers], jobs: list[Job], part: slice) -> Contender:
    """The answers of one way to train to these rows, over its seeds."""
    answers = np.stack([each.logits[part].argmax(1) for each in said])
    return Contender(name, answers, said[0].probability[part], tuple(job.key for job in jobs))


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


def difference(trial: Trial, chosen: str, rows: NDArray[np.bool_], seed: int = 0) -> dict[str, Any]:
    """The chosen model minus vanilla in points on these held-out rows, an interval over units and seeds, and p."""
    if not rows.any():
        return dict(NOTHING)
    gain = 100.0 * (
        (trial.contenders[chosen].answers == trial.labels).astype(np.float64)
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
    told = told_changes(overall, misses)
    if everywhere[0] > 0:
        return True, f"Debiasing helped: {told}."
    if there[0] is not None and there[0] > 0 and overall["difference"] >= -max_cost:
        return True, f"Debiasing helped on {EASY_MISSES}: {told}."
    if everywhere[1] < 0:
        return False, f"Debiasing did not help, it cost accuracy: {told}."
    return False, f"Debiasing is not shown to help: {told}. The interval includes no change."


def told_changes(overall: dict[str, Any], misses: dict[str, Any]) -> str:
    """The differences on all held-out rows and on those the easy model misses, with their intervals."""
    everywhere, there = overall["interval"], misses["interval"]
    told = f"{overall['difference']:+.1f} points on all held-out rows [{everywhere[0]:.1f}, {everywhere[1]:.1f}]"
    if there[0] is None:
        return told
    where = f"on the {misses['rows']:,} {EASY_MISSES} [{there[0]:.1f}, {there[1]:.1f}]"
    return f"{told}, {misses['difference']:+.1f} {where}"


def report_trial(trial: Trial, rival: str, own: OwnData, max_cost: float) -> dict[str, Any]:
    """What `debias` adds to an audit: vanilla before, its rival after, the other controls, the test, whether it helped.

    The rival is the chosen model or, where that is vanilla, the best of those that were not chosen.
    """
    told = {name: describe(trial, name, own.classes, own.group) for name in trial.contenders}
    overall = difference(trial, rival, np.ones(len(trial.rows), bool))
    misses = difference(trial, rival, trial.misses)
    helped, words = verdict(overall, misses, max_cost)
    if trial.chosen == VANILLA:
        helped = False
        words = f"Debiasing was not chosen; on the held-out rows {rival} changed {told_changes(overall, misses)}."
    before, after = told.pop(VANILLA), told.pop(rival)
    test = {**overall, "on": "all held-out rows", "easy_misses": misses}
    facts = {"before": before, "after": after, "controls": told, "test": test, "helped": helped}
    sides = {"before": {VANILLA: before}, "after": {rival: after}}
    repair = {**facts, **sides, "sentence": words, "seeds": trial.seeds, "samples_seen": trial.samples_seen}
    return {**facts, "repair": {**repair, "chosen": trial.chosen, "cost": None}}
