"""The fix and its proof: controls and the debiased model, same number of samples seen, judged on held-out rows."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from debiaser.auditing.crossval import ALPHA, Trainer, Vector
from debiaser.auditing.estimates import FEWEST_UNITS, resampled_means
from debiaser.auditing.examine import STRENGTH, Examined
from debiaser.auditing.inputs import (
    PICTURES,
    TEXTS,
    Material,
    Subject,
    WholeMaterial,
    cache_folder,
    digest,
    file_of,
    with_texts,
)
from debiaser.auditing.jobs import Job, Predictions, Rows, run
from debiaser.auditing.views import View
from debiaser.data.cache import ArrayCache
from debiaser.data.own import OwnData
from debiaser.io import numpy_stream
from debiaser.learn.features import fill
from debiaser.learn.groups import balancing_weights
from debiaser.report.tables import signed, with_interval

# --- Copies of rows whose named property comes from a random other row: in them it no longer tells the label


@dataclass(frozen=True, eq=False)
class Copies:
    """All n rows and, after them, a copy of each examined one; labels of both; `place` (n,) of a row among these."""

    material: Material
    y: Rows
    place: Rows

    def in_place_of(self, job: Job) -> Job:
        """The same job, learning from the copies of its rows."""
        return replace(job, material=self.material, y=self.y, train=len(self.place) + self.place[job.train])


def counterfactual_copies(examined: Examined, view: View) -> Copies | None:
    """The rows and copies that have this property of others: found on disk, finished, or made.

    None for pictures that a whole network learns from: copies in their full size would fill the disk.
    """
    subject, trainer, pool = examined.subject, examined.trainer, examined.pool
    donors = draw_donors(subject.own.split[pool], trainer.seed)
    identity = ":".join((trainer.material.identity, view.identity, digest((pool.tobytes(), donors.tobytes()))))

    def copies(places: Rows) -> Any:
        """The copies of the rows at these places of the pool, as `Subject.read` gives rows."""
        x, given = (subject.read(torch.from_numpy(pool[each])) for each in (places, donors[places]))
        return view.swap(x, given, torch.from_numpy(places))

    if not isinstance(trainer.material, WholeMaterial):
        made = with_copies(subject, identity, copies, len(pool))
    elif subject.own.kind == "text":
        made = with_texts(trainer.material, copies(np.arange(len(pool))), identity)
    else:
        return None
    return Copies(made, np.concatenate([trainer.y, trainer.y[pool]]), examined.place)


def draw_donors(split: NDArray[np.str_], seed: int) -> Rows:
    """(m,) for each row another one of its split, all as likely; every row gives its property once.

    Within a split, so that training rows take nothing from validation rows.
    """
    stream, donors = numpy_stream(seed, "exchange"), np.empty(len(split), np.int64)
    for part in np.unique(split):
        circle = stream.permutation(np.flatnonzero(split == part))
        donors[circle] = np.roll(circle, 1)
    return donors


def with_copies(subject: Subject, identity: str, copies: Callable[[Rows], Any], count: int) -> Material:
    """The material with so many copies after its rows, in a file of its own: pixels as they are, others encoded."""
    own = subject.material.inputs
    enter = subject.encoder.encode if subject.encoder else torch.as_tensor
    size = TEXTS if subject.own.kind == "text" else PICTURES

    def stream(rows: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        for part in torch.split(rows, size):
            first, copied = part[part < len(own)].numpy(), part[part >= len(own)].numpy()
            found = [torch.from_numpy(own[first])] + ([enter(copies(copied - len(own)))] if len(copied) else [])
            yield part, torch.cat(found)

    cache = ArrayCache(cache_folder(), (len(own) + count, *own.shape[1:]), own.dtype, "copies", identity)
    return replace(subject.material, array=file_of(fill(cache, stream, torch.as_tensor)), identity=identity)


VANILLA, AUGMENTED = "vanilla (class-balanced)", "augmentation only"
COUNTERFACTUAL = "named property exchanged"
BIASED_MODEL, PLAIN_PGD = "easy", "plain PGD"
CONTROLS = (BIASED_MODEL, PLAIN_PGD)  # trained beside the others, never chosen
STRENGTHS = (0.5, 0.75, 1.0)  # shares of PGD's draws that go by score
ON_MISCLASSIFIED = "rows the easy model misses"
NOTHING: dict[str, Any] = {"difference": None, "interval": [None, None], "p": None, "rows": 0, "units": 0}
MAX_COST = 2.0  # points of accuracy on all rows that a gain elsewhere may cost


@dataclass(frozen=True, eq=False)
class Training:
    """How to train: draws (n,) in proportion, going on from the easy model (None: by class, from scratch), whether
    pictures are varied, and copies to train on instead of the rows themselves."""

    draws: Vector | None = None
    augmented: bool = False
    copies: Copies | None = None

    @property
    def stage(self) -> str:
        """The name of its jobs."""
        if self.draws is not None:
            return "debiased"
        return "exchanged" if self.copies else "augmented" if self.augmented else "vanilla"


@dataclass(frozen=True, eq=False)
class Candidate:
    """A way to train: its answers (s, m) to the held-out rows, by seed, and the keys of its models."""

    name: str
    answers: NDArray[np.int64]
    probability: NDArray[np.float64]  # (m, k) of the first seed's model, the one that can be exported
    keys: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Evaluation:
    """All contenders on the same rows; `misses`: which of these the easy model gets wrong; `chosen`: on other rows."""

    rows: Rows
    labels: Rows
    unit: Rows
    misclassified: NDArray[np.bool_]
    candidates: dict[str, Candidate]
    samples_seen: int
    seeds: int
    chosen: str = VANILLA


def named(strength: float) -> str:
    """PGD at this strength."""
    return f"PGD, {strength:.0%} of draws by score"


def candidate_trainings(examined: Examined, copies: Copies | None) -> dict[str, Training]:
    """Everything that is trained, the simplest first: controls, and PGD at every strength; with copies, on these too.

    Where kinds are asserted, plain PGD stands beside them.
    """
    varied = examined.trainer.material.augment is not None
    trainings = {VANILLA: Training()}
    if varied:
        trainings[AUGMENTED] = Training(augmented=True)
    if copies is not None:
        trainings[COUNTERFACTUAL] = Training(copies=copies)
    trainings |= {named(strength): Training(examined.weight(strength), varied) for strength in STRENGTHS}
    if copies is not None:
        trainings[f"{named(STRENGTH)}, {COUNTERFACTUAL}"] = Training(examined.weight(STRENGTH), varied, copies)
    if not examined.diagnosis.abstains and examined.diagnosis.judge is not None:
        trainings[PLAIN_PGD] = Training(examined.weight(1.0, trusting=False), varied)
    return trainings


def train_candidates(
    trainer: Trainer, train: Rows, asked: Rows, trainings: dict[str, Training], unit: Rows, seeds: int
) -> Evaluation:
    """Train everything over so many seeds, to its last epoch, weights averaged over it, and ask about these rows."""
    short, rest = trainer.biased_recipe(len(train)), trainer.long_recipe(len(train))
    whole = replace(rest, epochs=short.epochs + rest.epochs)  # a control sees as many samples as both stages together
    biased = [
        Job("biased", trainer.material, trainer.y, train, asked, short, trainer.seed + seed, ALPHA)
        for seed in range(seeds)
    ]

    def job(training: Training, seed: int) -> Job:
        alone = training.draws is None
        weight = balancing_weights(trainer.y[train]) if training.draws is None else training.draws[train]
        made = Job(
            training.stage,
            trainer.material,
            trainer.y,
            train,
            asked,
            whole if alone else rest,
            trainer.seed + seed,
            weight=weight,
            augment=trainer.material.augment if training.augmented else None,
            start=None if alone else biased[seed].key,
            averaged=True,
        )
        return made if training.copies is None else training.copies.in_place_of(made)

    jobs = {name: [job(training, seed) for seed in range(seeds)] for name, training in trainings.items()}
    first = {
        BIASED_MODEL: biased,
        **{name: jobs[name] for name, training in trainings.items() if training.draws is None},
    }
    second = {name: each for name, each in jobs.items() if name not in first}
    said = answers_of(first, trainer, "controls") | answers_of(second, trainer, "debiased")
    misclassified = np.mean([each.probability for each in said[BIASED_MODEL]], axis=0).argmax(1) != trainer.y[asked]
    candidates = {name: candidate(name, said[name], each) for name, each in {BIASED_MODEL: biased, **jobs}.items()}
    return Evaluation(asked, trainer.y[asked], unit[asked], misclassified, candidates, whole.epochs * len(train), seeds)


def answers_of(jobs: dict[str, list[Job]], trainer: Trainer, stage: str) -> dict[str, list[Predictions]]:
    """What the models of these jobs say, by name."""
    flat = run([job for each in jobs.values() for job in each], trainer.folder, stage, trainer.workers)
    found = iter(flat)
    return {name: [next(found) for _ in each] for name, each in jobs.items()}


def candidate(name: str, said: list[Predictions], jobs: list[Job]) -> Candidate:
    """The answers of one way to train, over its seeds."""
    answers = np.stack([each.logits.argmax(1) for each in said])
    return Candidate(name, answers, said[0].probability, tuple(job.key for job in jobs))


def describe(
    evaluation: Evaluation, name: str, classes: tuple[str, ...], group: NDArray[np.str_] | None
) -> dict[str, Any]:
    """Accuracy in percent, mean and spread over seeds: overall, per class, on easy misses, per real group."""
    right = evaluation.candidates[name].answers == evaluation.labels
    parts = {classes[k]: evaluation.labels == k for k in np.unique(evaluation.labels)}
    groups = (
        {}
        if group is None
        else {str(each): group[evaluation.rows] == each for each in np.unique(group[evaluation.rows])}
    )
    return {
        "overall": spread(right),
        "per_class": {each: spread(right[:, rows]) for each, rows in parts.items()},
        "easy_misses": spread(right[:, evaluation.misclassified]),
        "easy_follows": spread(right[:, ~evaluation.misclassified]),
        "groups": {each: spread(right[:, rows]) for each, rows in groups.items()},
    }


def spread(right: NDArray[np.bool_]) -> dict[str, float | None]:
    """Mean and standard deviation over seeds of an accuracy in percent; None without rows."""
    if not right.shape[1]:
        return {"mean": None, "sd": None, "rows": 0}
    each = 100 * right.mean(1)
    sd = float(each.std(ddof=1)) if len(each) > 1 else None
    return {"mean": float(each.mean()), "sd": sd, "rows": right.shape[1]}


def difference(evaluation: Evaluation, chosen: str, rows: NDArray[np.bool_], seed: int = 0) -> dict[str, Any]:
    """The chosen model minus vanilla in points on these held-out rows, an interval over units and seeds, and p."""
    if not rows.any():
        return dict(NOTHING)
    gain = 100.0 * (
        (evaluation.candidates[chosen].answers == evaluation.labels).astype(np.float64)
        - (evaluation.candidates[VANILLA].answers == evaluation.labels)
    )
    drawn = resampled_means(gain[:, rows].T, evaluation.unit[rows], seed)  # (draws, seeds)
    stream = np.random.default_rng(seed)
    seeds = stream.integers(0, evaluation.seeds, drawn.shape)  # and of the seeds, so many again
    resampled = np.take_along_axis(drawn, seeds, 1).mean(1)
    units = len(np.unique(evaluation.unit[rows]))
    if units < FEWEST_UNITS:
        return {**NOTHING, "difference": float(gain[:, rows].mean()), "rows": int(rows.sum()), "units": units}
    low, high = np.percentile(resampled, [2.5, 97.5])
    p = 2 * min(float((resampled <= 0).mean()), float((resampled >= 0).mean()))
    return {
        "difference": float(gain[:, rows].mean()),
        "interval": [float(low), float(high)],
        "p": min(1.0, max(p, 1 / len(resampled))),
        "rows": int(rows.sum()),
        "units": units,
    }


def verdict(overall: dict[str, Any], misclassified: dict[str, Any], max_cost: float = MAX_COST) -> tuple[bool, str]:
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
    """The differences on all held-out rows and on those the easy model misses, with their intervals."""
    there = with_interval(misclassified)
    told = f"{with_interval(overall) or signed(overall['difference'])} points on all held-out rows"
    return f"{told}, {there} on the {misclassified['rows']:,} {ON_MISCLASSIFIED}" if there else told


def report_evaluation(evaluation: Evaluation, rival: str, own: OwnData, max_cost: float) -> dict[str, Any]:
    """What `debias` adds to an audit: vanilla before, its rival after, the other controls, the test, whether it helped.

    The rival is the chosen model or, where that is vanilla, the best of those that were not chosen.
    """
    told = {name: describe(evaluation, name, own.classes, own.group) for name in evaluation.candidates}
    everywhere = np.ones(len(evaluation.rows), bool)
    for name, each in told.items():
        each["minus_vanilla"] = None if name == VANILLA else difference(evaluation, name, everywhere)
    overall = told[rival]["minus_vanilla"]
    misclassified = difference(evaluation, rival, evaluation.misclassified)
    helped, words = verdict(overall, misclassified, max_cost)
    if evaluation.chosen == VANILLA:
        helped = False
        told_change = changes_in_words(overall, misclassified)
        words = f"Debiasing was not chosen; on the held-out rows {rival} changed {told_change}."
    before, after = told.pop(VANILLA), told.pop(rival)
    test = {**overall, "on": "all held-out rows", "easy_misses": misclassified}
    facts = {"before": before, "after": after, "controls": told, "test": test, "helped": helped}
    sides = {"before": {VANILLA: before}, "after": {rival: after}}
    repair = {**facts, **sides, "sentence": words, "seeds": evaluation.seeds, "samples_seen": evaluation.samples_seen}
    return {**facts, "repair": {**repair, "chosen": evaluation.chosen, "cost": None}}
