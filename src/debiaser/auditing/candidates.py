"""The candidates of `debias`: vanilla, models that need no labels of groups, and models trained on groups.

On frozen features every candidate is a linear head; elsewhere a network, or a network whose last layer is fitted anew.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from debiaser.auditing.crossval import Job, Predictions, Rows, Trainer, Vector, run_jobs
from debiaser.auditing.groups import FEWEST
from debiaser.auditing.inputs import IMAGES, TEXTS, Material, WholeMaterial, file_of
from debiaser.auditing.verdict import FLOOR, STRENGTH, Examined
from debiaser.auditing.views import View
from debiaser.data.cache import ArrayCache, user_cache
from debiaser.data.own.rows import digest
from debiaser.io import numpy_stream, write_json
from debiaser.learn.encoders import fill
from debiaser.learn.guard import null_labels, residual_norms
from debiaser.learn.last_layer import equal_groups
from debiaser.learn.recipe import Recipe

VANILLA, AUGMENTED = "vanilla (class-balanced)", "augmentation only"
COUNTERFACTUAL, CELLS = "counterfactual copies", "cells"
BIASED_MODEL = "easy"  # trained beside the others, never chosen
CONTROLS = (BIASED_MODEL,)
EQUAL, DRO, DFR = "equal group weight", "GroupDRO", "balanced subsets (DFR)"
STRENGTHS = (0.5, 0.75, 1.0)  # shares of PGD's draws that go by score
GAMMAS = (2.0, 4.0, 6.0)  # of AFR: how much less a sample weighs that the biased model is sure of
REGULARISATION = (0.001, 0.01, 0.1, 1.0)  # inverse strengths of a linear head, chosen by cross-validation
GROUP_REGULARISATION = (0.0001, 0.0003, 0.001)  # of heads that make groups equal


# --- Counterfactual copies: samples whose named property comes from a random other one, so that it tells no label


@dataclass(frozen=True, eq=False)
class Copies:
    """All n samples and, after them, a copy of each examined one; labels of both; `place` (n,) of one among these."""

    material: Material
    y: Rows
    place: Rows


def counterfactual_copies(examined: Examined, view: View, y: Rows | None = None) -> Copies | None:
    """The samples and copies that have this property of others: found on disk, finished, or made.

    None for images that a whole network learns from: copies in their full size would fill the disk. y: (n,) the labels,
    if not those of the data.
    """
    subject, trainer, pool = examined.subject, examined.trainer, examined.pool
    material = trainer.material
    donors = draw_donors(subject.own.split[pool] if subject.whole else trainer.fold[pool], trainer.seed)
    identity = ":".join((material.identity, view.identity, digest(pool.tobytes(), donors.tobytes())))

    def copies(places: Rows) -> Any:
        """The copies of the samples at these places of the pool, as `Subject.read` gives samples."""
        x, given = (subject.read(torch.from_numpy(pool[each])) for each in (places, donors[places]))
        return view.swap(x, given, torch.from_numpy(places))

    def stream(rows: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        own, enter = material.inputs, subject.encoder.encode if subject.encoder else torch.as_tensor
        for part in torch.split(rows, TEXTS if subject.own.kind == "text" else IMAGES):
            first, copied = part[part < len(own)].numpy(), part[part >= len(own)].numpy()
            found = [torch.from_numpy(own[first])] + ([enter(copies(copied - len(own)))] if len(copied) else [])
            yield part, torch.cat(found)

    if isinstance(material, WholeMaterial):
        if subject.own.kind == "image":
            return None
        path = material.array.with_name(f"{hashlib.blake2b(identity.encode(), digest_size=16).hexdigest()}.json")
        inputs = [*material.listed["inputs"], *copies(np.arange(len(pool)))]
        write_json(path, {**material.listed, "inputs": inputs})
        made: Material = replace(material, array=path, identity=identity)
    else:
        shape = (len(material.inputs) + len(pool), *material.input_shape)
        cache = ArrayCache(user_cache("features"), shape, material.inputs.dtype, "copies", identity)
        made = replace(material, array=file_of(fill(cache, stream, torch.as_tensor)), identity=identity)
    labels = trainer.y if y is None else y
    return Copies(made, np.concatenate([labels, labels[pool]]), examined.place)


def draw_donors(part_of: NDArray[Any], seed: int) -> Rows:
    """(m,) for each sample another one of its fold (or split), all as likely; every sample gives its property once.

    Within a fold, so that the samples that a model learns from take nothing from those that it is asked about.
    """
    stream, donors = numpy_stream(seed, "exchange"), np.empty(len(part_of), np.int64)
    for part in np.unique(part_of):
        circle = stream.permutation(np.flatnonzero(part_of == part))
        donors[circle] = np.roll(circle, 1)
    return donors


# --- What is trained


@dataclass(frozen=True, eq=False)
class World:
    """Labels (n,), and what the biased model says out of fold: what weights are made of. NaN outside the pool.

    trust (n,): what the weight of a sample is multiplied by.
    """

    y: Rows
    probability: Vector
    score: Vector
    trust: Vector

    @property
    def inside(self) -> NDArray[np.bool_]:
        return np.asarray(~np.isnan(self.score))

    @property
    def misclassified(self) -> NDArray[np.bool_]:
        """(n,) by the biased model."""
        return np.asarray(self.inside & (np.nan_to_num(self.probability).argmax(1) != self.y))

    def equal(self, groups: Rows) -> Vector:
        """(n,) weights by which every group counts the same."""
        return equal_groups(groups, np.where(self.inside, 1.0, 0.0)) * self.trust

    def by_score(self, strength: float) -> Vector:
        """(n,) a share `strength` of every class's weight by score, the rest even: scores alone rest on few samples."""
        drawn, even = self.trust * np.nan_to_num(self.score), self.equal(self.y)
        drawn = drawn / np.maximum(np.bincount(self.y, drawn), FLOOR)[self.y]
        return np.asarray(strength * drawn / drawn.sum() + (1 - strength) * even / even.sum())

    def by_confidence(self, gamma: float) -> Vector:
        """(n,) AFR: class-balanced weights times exp(-gamma p(y | x)) of the biased model."""
        sure = np.take_along_axis(np.nan_to_num(self.probability), self.y[:, None], 1)[:, 0]
        return np.asarray(self.equal(self.y) * np.exp(-gamma * sure))

    def null(self, stream: np.random.Generator) -> "World":
        """A world in which there is nothing but what the biased model knows: labels are drawn from its calibrated
        probabilities, so that the rest is noise."""
        y = null_labels(self.probability, self.y, self.inside, stream)
        length = self.score / np.maximum(residual_norms(self.probability, self.y), 1e-12)
        return World(y, self.probability, length * residual_norms(self.probability, y), np.ones(len(y)))


@dataclass(frozen=True, eq=False)
class Training:
    """How a candidate is trained: by weights (n,), from scratch or going on from the biased model; whether images are
    varied; on copies instead of the samples; by groups (n,); as a last layer of this inverse regularisation alone."""

    weight: Vector
    from_biased: bool = False
    augmented: bool = False
    copies: Copies | None = None
    rule: str = "weight"
    groups: Rows | None = None
    strength: float | None = None

    @property
    def stage(self) -> str:
        """The name of its jobs, which is a word of their seeds."""
        if self.from_biased:
            return "debiased"
        return "exchanged" if self.copies else "augmented" if self.augmented else "vanilla"


@dataclass(frozen=True, eq=False)
class Candidate:
    """What was trained in one way: answers (s, m) to the evaluated samples by seed, and keys of models by seed and
    split."""

    answers: NDArray[np.int64]
    probability: Vector  # (m, k) of the first seed's models, those that can be exported
    keys: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, eq=False)
class Evaluation:
    """All candidates on the same samples; `misclassified`: by the biased model; `chosen`: on other samples."""

    rows: Rows
    labels: Rows
    unit: Rows
    misclassified: NDArray[np.bool_]
    candidates: dict[str, Candidate]
    samples_seen: int
    seeds: int
    chosen: str = VANILLA

    def right(self, name: str) -> NDArray[np.bool_]:
        """(s, m) which samples a candidate answers right, by seed."""
        return np.asarray(self.candidates[name].answers == self.labels)


PGD = {share: f"PGD, {share:.0%} of draws by score" for share in STRENGTHS}
AFR = {gamma: f"AFR, gamma {gamma:g}" for gamma in GAMMAS}
EQUAL_HEADS = {strength: f"{EQUAL}, C {strength:g}" for strength in GROUP_REGULARISATION}
BOTH = f"{PGD[STRENGTH]}, {COUNTERFACTUAL}"
EVERY_CANDIDATE = (
    *(VANILLA, AUGMENTED, COUNTERFACTUAL, *PGD.values(), *AFR.values(), CELLS, BOTH),
    *(EQUAL, *EQUAL_HEADS.values(), DRO, DFR),
)


def world_of(examined: Examined) -> World:
    """The world as it is; samples that a person marked as mislabelled weigh almost nothing."""
    trust = examined.diagnosis.trust.copy()
    trust[examined.confirmed[examined.diagnosis.kind[examined.confirmed] == "mislabelled"]] = FLOOR
    return World(examined.trainer.y, examined.biased.probability, examined.score, trust)


def candidate_trainings(
    examined: Examined, world: World, groups: Rows | None = None, strength: float = REGULARISATION[1]
) -> dict[str, Training]:
    """Everything that is trained, the simplest first: vanilla; what weighs samples without knowing groups; where a
    property is named, on counterfactual copies; where groups (n,) are known, what makes them equal.

    strength: the inverse regularisation of linear heads.
    """
    frozen, copies = examined.trainer.material.architecture == "mlp", None
    if examined.named is not None and not examined.degenerate:
        copies = counterfactual_copies(examined, examined.named, world.y)
    varied = examined.trainer.material.augment is not None
    even, last = world.equal(world.y), None if examined.subject.whole else strength
    head = strength if frozen else None
    trainings = {VANILLA: Training(even, strength=head)}
    if varied:
        trainings[AUGMENTED] = Training(even, augmented=True)
    if copies is not None:
        trainings[COUNTERFACTUAL] = Training(even, copies=copies, strength=head)
    if not examined.degenerate:
        for share, name in PGD.items():
            trainings[name] = Training(world.by_score(share), not frozen, varied, strength=head)
        for gamma, name in AFR.items() if last else ():
            trainings[name] = Training(world.by_confidence(gamma), strength=last)
        cells = 2 * world.y + world.misclassified
        trainings[CELLS] = Training(world.equal(cells), augmented=varied, strength=head)
        if copies is not None:
            trainings[BOTH] = Training(world.by_score(STRENGTH), not frozen, varied, copies, strength=head)
    if groups is not None:
        trainings |= group_trainings(world, groups, frozen, varied, examined.subject.whole)
    return trainings


def group_trainings(world: World, groups: Rows, frozen: bool, varied: bool, whole: bool) -> dict[str, Training]:
    """What makes groups (n,) equal: heads on frozen features, or networks, of which `whole` ones take hours."""
    sizes = np.bincount(groups[world.inside], minlength=int(groups.max()) + 1)
    equal = world.equal(groups) * np.minimum(1, sizes[groups] / FEWEST)  # a handful of samples is no group
    trainings = dict[str, Training]()
    for each, name in EQUAL_HEADS.items() if frozen else [(None, EQUAL)]:
        trainings[name] = Training(equal, augmented=varied, strength=each)
    middle = GROUP_REGULARISATION[1] if frozen else None
    trainings[DRO] = Training(equal, augmented=varied, rule="GroupDRO", groups=groups, strength=middle)
    if not whole:
        strict = GROUP_REGULARISATION[-1]
        trainings[DFR] = Training(world.equal(world.y), rule="balanced subsets", groups=groups, strength=strict)
    return trainings


Splits = Sequence[tuple[Rows, Rows]]  # samples to train on, samples to ask


def candidate_job(
    trainer: Trainer, training: Training, split: tuple[Rows, Rows], recipe: Recipe, seed: int, start: str | None
) -> Job:
    """The job of a candidate on one split; `start`: key of the job that it goes on from."""
    (train, ask), copies, material = split, training.copies, trainer.material
    fitted = training.strength is not None and start is None  # a linear head is the same under every seed
    return Job(
        training.stage,
        material if copies is None else copies.material,
        trainer.y if copies is None else copies.y,
        train if copies is None else len(copies.place) + copies.place[train],
        ask,
        recipe,
        trainer.seed + (0 if fitted else seed),
        weight=training.weight[train],
        augment=material.augment if training.augmented else None,
        start=start,
        averaged=True,
        rule=training.rule,
        groups=None if training.groups is None else training.groups[train],
        strength=training.strength,
    )


def train_candidates(
    trainer: Trainer,
    splits: Splits,
    trainings: dict[str, Training],
    unit: Rows,
    seeds: int,
    biased: Sequence[Sequence[str]] | None = None,
) -> Evaluation:
    """Train everything on every split over so many seeds, to the last epoch, weights averaged over it, and evaluate.

    biased: keys of the biased models, by seed and split; without them these are trained too, and are a candidate.
    """
    y, material, jobs = trainer.y, trainer.material, dict[str, list[list[Job]]]()
    short, rest = (trainer.recipe(stage, len(splits[0][0])) for stage in ("biased", "long"))
    whole = replace(rest, epochs=short.epochs + rest.epochs)  # a control sees as many samples as both stages together
    turns = range(seeds)
    if biased is None:
        jobs[BIASED_MODEL] = [[trainer.biased_job("biased", *split, seed) for split in splits] for seed in turns]
        biased = [[job.key for job in each] for each in jobs[BIASED_MODEL]]
    for name, training in trainings.items():
        recipe, start = (rest, biased) if training.from_biased else (whole, None)
        if training.strength is not None and material.architecture != "mlp":  # the last layer of vanilla, fitted anew
            start = [[job.key for job in by_split] for by_split in jobs[VANILLA]]
        jobs[name] = [
            [
                candidate_job(trainer, training, split, recipe, seed, start[seed][number] if start else None)
                for number, split in enumerate(splits)
            ]
            for seed in turns
        ]
    said: dict[str, Predictions] = {}
    for stage, later in (("candidates", False), ("debiased candidates", True)):  # which go on from others
        waiting = {j.key: j for each in jobs.values() for by in each for j in by if (j.start is not None) is later}
        said |= zip(waiting, run_jobs([*waiting.values()], trainer.folder, stage, trainer.workers), strict=True)
    candidates, rows = {}, np.concatenate([ask for _, ask in splits])
    for name, mine in jobs.items():
        keys = tuple(tuple(each.key for each in by_split) for by_split in mine)
        answers = np.stack([np.concatenate([said[key].logits.argmax(1) for key in by_split]) for by_split in keys])
        candidates[name] = Candidate(answers, np.concatenate([said[key].probability for key in keys[0]]), keys)
    misclassified = np.zeros(len(rows), bool)
    if BIASED_MODEL in jobs:
        by_seed = [np.concatenate([said[key].probability for key in keys]) for keys in biased]
        misclassified = np.mean(by_seed, 0).argmax(1) != y[rows]
    seen = whole.epochs * len(splits[0][0])
    return Evaluation(rows, y[rows], unit[rows], misclassified, candidates, seen, seeds)
