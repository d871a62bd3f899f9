"""The candidates of `debias`: controls and debiased models, each seeing the same number of samples."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from debiaser.auditing.crossval import ALPHA, Job, Rows, Trainer, Vector, run_jobs
from debiaser.auditing.inputs import IMAGES, TEXTS, Material, WholeMaterial, file_of
from debiaser.auditing.verdict import STRENGTH, Examined
from debiaser.auditing.views import View
from debiaser.data.cache import ArrayCache, user_cache
from debiaser.data.own.rows import digest
from debiaser.io import numpy_stream, write_json
from debiaser.learn.encoders import fill
from debiaser.learn.groups import balancing_weights

VANILLA, AUGMENTED = "vanilla (class-balanced)", "augmentation only"
COUNTERFACTUAL = "named property exchanged"
BIASED_MODEL, PLAIN_PGD = "easy", "plain PGD"
CONTROLS = (BIASED_MODEL, PLAIN_PGD)  # trained beside the others, never chosen
STRENGTHS = (0.5, 0.75, 1.0)  # shares of PGD's draws that go by score
MAX_COST = 2.0  # points of accuracy on all samples that a gain elsewhere may cost


# --- Counterfactual copies: samples whose named property comes from a random other one, so that it tells no label


@dataclass(frozen=True, eq=False)
class Copies:
    """All n samples and, after them, a copy of each examined one; labels of both; `place` (n,) of one among these."""

    material: Material
    y: Rows
    place: Rows


def counterfactual_copies(examined: Examined, view: View) -> Copies | None:
    """The samples and copies that have this property of others: found on disk, finished, or made.

    None for images that a whole network learns from: copies in their full size would fill the disk.
    """
    subject, trainer, pool = examined.subject, examined.trainer, examined.pool
    material = trainer.material
    donors = draw_donors(subject.own.split[pool], trainer.seed)
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
    return Copies(made, np.concatenate([trainer.y, trainer.y[pool]]), examined.place)


def draw_donors(split: NDArray[np.str_], seed: int) -> Rows:
    """(m,) for each sample another one of its split, all as likely; every sample gives its property once.

    Within a split, so that training samples take nothing from validation samples.
    """
    stream, donors = numpy_stream(seed, "exchange"), np.empty(len(split), np.int64)
    for part in np.unique(split):
        circle = stream.permutation(np.flatnonzero(split == part))
        donors[circle] = np.roll(circle, 1)
    return donors


# --- What is trained


@dataclass(frozen=True, eq=False)
class Training:
    """How a candidate is trained: draws (n,) in proportion, going on from the biased model (None: by class, from
    scratch), whether images are varied, and copies to train on instead of the samples themselves."""

    draws: Vector | None = None
    augmented: bool = False
    copies: Copies | None = None

    @property
    def stage(self) -> str:
        """The name of its jobs, which is a word of their seeds."""
        if self.draws is not None:
            return "debiased"
        return "exchanged" if self.copies else "augmented" if self.augmented else "vanilla"


@dataclass(frozen=True, eq=False)
class Candidate:
    """What was trained in one way: answers (s, m) to the evaluated samples, by seed, and the keys of its models."""

    answers: NDArray[np.int64]
    probability: Vector  # (m, k) of the first seed's model, the one that can be exported
    keys: tuple[str, ...]


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


def named(strength: float) -> str:
    """PGD at this strength."""
    return f"PGD, {strength:.0%} of draws by score"


def candidate_trainings(examined: Examined) -> dict[str, Training]:
    """Everything that is trained, the simplest first: controls, and PGD at every strength; where a property is named,
    also on counterfactual copies; where kinds are asserted, plain PGD beside them."""
    copies = counterfactual_copies(examined, examined.named) if examined.named else None
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
    trainer: Trainer, train: Rows, ask: Rows, trainings: dict[str, Training], unit: Rows, seeds: int
) -> Evaluation:
    """Train everything over so many seeds, to its last epoch, weights averaged over it, and evaluate on `ask`."""
    short, rest = trainer.recipe("biased", len(train)), trainer.recipe("long", len(train))
    whole = replace(rest, epochs=short.epochs + rest.epochs)  # a control sees as many samples as both stages together
    material, y = trainer.material, trainer.y
    biased = [Job("biased", material, y, train, ask, short, trainer.seed + seed, ALPHA) for seed in range(seeds)]

    def job(training: Training, seed: int) -> Job:
        alone = Job(training.stage, material, y, train, ask, whole, trainer.seed + seed, averaged=True)
        made = replace(
            alone,
            weight=balancing_weights(y[train]) if training.draws is None else training.draws[train],
            augment=material.augment if training.augmented else None,
        )
        if training.draws is not None:
            made = replace(made, recipe=rest, start=biased[seed].key)
        if (copies := training.copies) is None:
            return made
        learnt = len(copies.place) + copies.place[train]  # the copies of the samples
        return replace(made, material=copies.material, y=copies.y, train=learnt)

    jobs = {name: [job(training, seed) for seed in range(seeds)] for name, training in trainings.items()}
    jobs = {BIASED_MODEL: biased, **jobs}
    second = {name for name, training in trainings.items() if training.draws is not None}
    candidates = {}
    for stage, mine in (("controls", jobs.keys() - second), ("debiased", second)):
        names = [name for name in jobs if name in mine]
        said = iter(run_jobs([job for name in names for job in jobs[name]], trainer.folder, stage, trainer.workers))
        for name in names:
            found = [next(said) for _ in jobs[name]]
            answers = np.stack([each.logits.argmax(1) for each in found])
            candidates[name] = Candidate(answers, found[0].probability, tuple(each.key for each in jobs[name]))
            if name == BIASED_MODEL:
                misclassified = np.mean([each.probability for each in found], axis=0).argmax(1) != y[ask]
    candidates = {name: candidates[name] for name in jobs}
    return Evaluation(ask, y[ask], unit[ask], misclassified, candidates, whole.epochs * len(train), seeds)
