"""Training the models of an audit, each sample judged only by models that never saw it.

A training is a `Job`. Its folder is named by a digest of all that decides its outcome. It holds `model.safetensors`
and, written last, `answers.npz`: a job that was killed is done again, one that was finished never.
"""

import hashlib
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from multiprocessing import Pipe, active_children, get_context, parent_process, resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import cast

import numpy as np
import safetensors
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from debiaser.auditing.inputs import LINEAR, Material
from debiaser.data.augment import Augmentation
from debiaser.data.cache import load_arrays
from debiaser.data.split import Split
from debiaser.errors import INTERRUPTED, Problem
from debiaser.io import Damaged, check_seal, derive, log, write_arrays
from debiaser.learn.checkpoint import read_tensors, write_tensors
from debiaser.learn.engine import steps_in
from debiaser.learn.forward import Outputs, call, evaluating, look
from debiaser.learn.groups import balancing_weights
from debiaser.learn.last_layer import LogisticFit
from debiaser.learn.losses import GroupDRO, Objective, Supervised, gce
from debiaser.learn.recipe import Recipe, keep_freed_memory
from debiaser.learn.sampler import ScoreSampler
from debiaser.methods.task import Task
from debiaser.progress import Advance, current, listening, task

Rows = NDArray[np.int64]
Vector = NDArray[np.float64]
Models = Sequence[Sequence[nn.Module]]  # by seed and fold
ALPHA = 0.7  # of the biased model's GCE, as in PGD
BIASED_HEAD = 0.3  # inverse regularisation times samples of a biased head on frozen features: only what is easiest
LAST_LAYER = 50  # updates of a network that take as long as fitting a last layer
AT_ONCE = 512  # samples per batch where nothing is learnt
HARDLY = 1e-6  # of the largest weight
POLL = 0.2  # seconds between looks at the workers' progress


# --- One training


@dataclass(frozen=True, eq=False)
class Job:
    """Train a network on the samples `train`, then predict the samples `ask`.

    y: labels of all samples; weight: draws in proportion, one number per sample of `train`; alpha: GCE's exponent, None
    for cross-entropy; start: key of the job whose network it goes on from; averaged: the network's weights are their
    mean over the last epoch. rule: how groups, one number per sample of `train`, are made equal: by `weight`,
    "GroupDRO" or "balanced subsets"; "calibrated": by `weight`, with probabilities that fit. strength: only a last
    layer is fitted, with this inverse regularisation, on the inputs, or on the features of the network `start`.
    """

    name: str
    material: Material
    y: Rows
    train: Rows
    ask: Rows
    recipe: Recipe
    seed: int = 0
    alpha: float | None = None
    weight: Vector | None = None
    augment: Augmentation | None = None
    start: str | None = None
    averaged: bool = False
    rule: str = "weight"
    groups: Rows | None = None
    strength: float | None = None

    @cached_property
    def key(self) -> str:
        """The name of its folder."""
        data = (str(self.material.array), self.material.classes, self.material.identity)
        how = (self.recipe, self.seed, self.alpha, self.augment, self.start, self.averaged, self.rule, self.strength)
        digest = hashlib.blake2b(repr((self.name, data, how)).encode(), digest_size=10)
        for array in (self.y, self.train, self.ask, self.weight, self.groups):
            digest.update(b"none" if array is None else repr(array.shape).encode() + array.tobytes())
        return f"{self.name}-{digest.hexdigest()}"

    @property
    def features_are_frozen(self) -> bool:
        """Whether nothing but a last layer is learnt; its inputs then count as of length 1 in scores."""
        return self.strength is not None and self.start is None

    @property
    def steps(self) -> int:
        """How many updates it takes; a last layer counts as some."""
        if self.strength is not None:
            return LAST_LAYER
        return self.recipe.epochs * steps_in(len(self.train), self.recipe.batch_size)


@dataclass(frozen=True, eq=False)
class Predictions:
    """What a model says about some samples: logits (m, k), and the length of the feature behind each (m,)."""

    rows: Rows
    logits: NDArray[np.float32]
    length: NDArray[np.float32]

    @property
    def probability(self) -> Vector:
        """(m, k)."""
        return np.asarray(torch.from_numpy(self.logits).double().softmax(1))

    def gradient_norm(self, y: Rows) -> Vector:
        """(m,) the norm of the last layer's gradient for the labels `y` of all samples."""
        labels = torch.from_numpy(y[self.rows])
        outputs = Outputs(torch.from_numpy(self.length)[:, None], torch.from_numpy(self.logits), labels)
        return np.asarray(outputs.residual.double().norm(dim=1)) * self.length.astype(np.float64)


def train_job(job: Job, folder: Path) -> None:
    """Train the job's network and keep it, and what it predicts, below this folder."""
    own, split = folder / job.key, Split(torch.from_numpy(job.y), job.material.read, job.material.classes)
    model = train_network(job, folder, split) if job.strength is None else fit_last_layer(job, folder, split)
    write_tensors(own / "model.safetensors", dict(model.state_dict()))
    logits, length = [np.zeros((0, len(job.material.classes)), np.float32)], [np.zeros(0, np.float32)]
    for outputs in look(model, split.subset(torch.from_numpy(job.ask)).batches(AT_ONCE)):
        logits.append(outputs.logits.float().numpy())
        norms = outputs.features.float().norm(dim=1)
        length.append((torch.ones_like(norms) if job.features_are_frozen else norms).numpy())
    write_arrays(own / "answers.npz", rows=job.ask, logits=np.concatenate(logits), length=np.concatenate(length))


def train_network(job: Job, folder: Path, split: Split) -> nn.Module:
    """The job's network, trained on batches drawn by its weights."""
    start = None if job.start is None else folder / job.start
    training = Task(
        train=split.subset(torch.from_numpy(job.train)),
        make_model=lambda seed: job.material.new_net(seed) if start is None else read_model(job.material, start),
        recipe=job.recipe,
        seed=derive(job.seed, job.name),
        augment=job.augment,
    )
    network = training.new_model()
    average = AveragedModel(network, avg_fn=running_mean, use_buffers=True) if job.averaged else None

    def after_step(steps: int) -> None:
        if average and steps > job.steps - job.steps // job.recipe.epochs:  # over the last epoch
            average.update_parameters(network)

    sampler = None if job.weight is None else ScoreSampler(job.weight, seed=training.seed)
    objective: Objective = Supervised(network, gce(job.alpha))
    if job.rule == "GroupDRO" and job.groups is not None:
        objective = GroupDRO(network, torch.from_numpy(job.groups))
    model = training.fit(objective, job.name, sampler=sampler, after_step=after_step)
    if average:
        model.load_state_dict(average.module.state_dict())
    return model


def fit_last_layer(job: Job, folder: Path, split: Split) -> nn.Module:
    """A linear head on the inputs, or the network that the job starts from with its last layer fitted anew."""
    material, train = job.material, split.subset(torch.from_numpy(job.train))
    assert job.strength is not None and job.weight is not None
    with task(job.name, job.steps) as advance:
        if job.start is None:
            model, features = material.linear_head(), np.asarray(material.inputs[job.train], np.float32)
        else:
            model = read_model(material, folder / job.start)
            features = np.concatenate([each.features.float().numpy() for each in look(model, train.batches(AT_ONCE))])
        y, k = job.y[job.train], len(material.classes)
        if job.groups is None:
            fits = LogisticFit(features, y, k, job.strength)
            layer = fits.calibrated(job.weight) if job.rule == "calibrated" else fits.fit(job.weight)
        else:  # a sample that hardly weighs (marked mislabelled) is in no group
            kept = job.weight > HARDLY * job.weight.max()
            fits = LogisticFit(features[kept], y[kept], k, job.strength)
            balance = fits.group_dro if job.rule == "GroupDRO" else fits.balanced_subsets
            layer = balance(job.groups[kept], job.seed)
        last = cast(nn.Linear, model.fc)
        last.weight.data, last.bias.data = map(torch.from_numpy, layer)
        advance(job.steps)
    return model.eval()


def running_mean(mean: Tensor, value: Tensor, n: Tensor | int) -> Tensor:
    """The mean of n values and one more; of whole numbers, such as BatchNorm's count of batches, the last."""
    return mean.lerp(value, 1 / (int(n) + 1)) if mean.is_floating_point() else value


def read_predictions(own: Path) -> Predictions | None:
    """What the model in a job's folder said; None where it is not done, or a file of it is damaged."""
    stored = load_arrays(own / "answers.npz")
    if stored is None:
        return None
    try:
        check_seal(own / "model.safetensors")
        with safetensors.safe_open(own / "model.safetensors", framework="pt"):  # its header and its length
            return Predictions(stored["rows"], stored["logits"], stored["length"])
    except (OSError, KeyError, Damaged, safetensors.SafetensorError) as error:
        log.warning("the model in %s is gone or damaged (%s); it is trained again", own, error)
        return None


def read_model(material: Material, own: Path) -> nn.Module:
    """The network in a job's folder, in eval mode."""
    state = read_tensors(own / "model.safetensors").tensors
    model = material.linear_head() if LINEAR.issuperset(state) else material.new_net(0)
    model.load_state_dict(state)
    return model.eval()


def probabilities(model: nn.Module, inputs: Tensor) -> Vector:
    """(b, k) for inputs that are not samples of the data."""
    with evaluating(model):
        parts = [call(model, part) for part in torch.split(inputs, AT_ONCE)]
        return np.asarray(torch.cat(parts).double().softmax(1))


# --- Many trainings, in this process or in a pool of several


def run_jobs(jobs: Sequence[Job], folder: Path, stage: str, workers: int = 1) -> list[Predictions]:
    """What the models of these jobs predict, in their order; a job that was done before is not done again."""
    different = {job.key: job for job in jobs}
    known = {key: read_predictions(folder / key) for key in different}
    missing = [job for key, job in different.items() if known[key] is None]
    if missing:
        total = sum(job.steps for job in different.values())
        with task(stage, total, total - sum(job.steps for job in missing)) as advance:
            if min(workers, len(missing)) > 1:
                run_in_pool(missing, folder, min(workers, len(missing)), advance)
            else:
                with listening(lambda _what, _done, _total, step, _unit: advance(step)):  # many trainings, one bar
                    for job in missing:
                        train_job(job, folder)
    known |= {job.key: read_predictions(folder / job.key) for job in missing}
    assert None not in known.values(), "what was just written cannot be read"
    return [predictions for job in jobs if (predictions := known[job.key])]


def run_in_pool(jobs: Sequence[Job], folder: Path, workers: int, advance: Advance) -> None:
    """Do these jobs in so many processes, which report every step through one pipe.

    The first problem ends all of them, as does Ctrl-C; what was finished is kept by its folder.
    """
    threads = max(1, torch.get_num_threads() // workers)
    reader, writer = Pipe(duplex=False)
    others = set(active_children())
    with spawning(OMP_NUM_THREADS=str(threads)):
        pool = ProcessPoolExecutor(workers, get_context("spawn"), start_worker, (writer, threads))
        waiting = {pool.submit(train_job, job, folder) for job in jobs}
    try:
        while waiting:
            done, waiting = wait(waiting, POLL, FIRST_EXCEPTION)
            while reader.poll():
                advance(len(os.read(reader.fileno(), 1 << 16)))
            for each in done:
                each.result()
    except BaseException as error:
        for process in set(active_children()) - others:
            process.kill()
        if isinstance(error, BrokenProcessPool):
            raise Problem(
                "a worker process ended unexpectedly, perhaps for lack of memory; the same command goes on from what "
                "is done, --workers 1 needs the least memory"
            ) from error
        raise
    finally:
        pool.shutdown()
        reader.close()
        writer.close()


@contextmanager
def spawning(**variables: str) -> Iterator[None]:
    """While it is open, processes that we start have these environment variables and leave Ctrl-C to us.

    They import nothing from the current folder (a `random.py` among a person's data) and not the caller's script
    either, which so needs no `if __name__ == "__main__"`.
    """
    variables["PYTHONSAFEPATH"] = "1"
    before = {name: os.environ.get(name) for name in variables}
    path, script = sys.path[:], sys.modules["__main__"]
    os.environ.update(variables)
    sys.path[:], sys.modules["__main__"] = filter(None, path), ModuleType("__main__")
    resource_tracker.ensure_running()  # Python's own; to start it later would let Ctrl-C through again
    set_mask = getattr(signal, "pthread_sigmask", None)  # which Windows lacks
    mask = set_mask(signal.SIG_BLOCK, {signal.SIGINT}) if set_mask else None
    try:
        yield
    finally:
        sys.path[:], sys.modules["__main__"] = path, script
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.__setitem__(name, value)
        if set_mask:
            set_mask(signal.SIG_SETMASK, mask)


def start_worker(pipe: Connection, threads: int) -> None:
    """Set a worker process up: each step of its work is a byte through the pool's pipe.

    It ends when the process that started it does, however that ends.
    """

    def report(_what: str, _done: int, _total: int | None, step: int, _unit: str) -> None:
        os.write(pipe.fileno(), b"." * step)

    def end_with_parent() -> None:
        parent = parent_process()
        if parent is not None:
            parent.join()
            os._exit(INTERRUPTED)

    current.set(report)
    torch.set_num_threads(threads)
    keep_freed_memory()
    threading.Thread(target=end_with_parent, daemon=True).start()


# --- Out-of-fold models


@dataclass(frozen=True, eq=False)
class OutOfFold:
    """By seed: probabilities (s, n, k) and scores (s, n), NaN for samples outside; keys of models by seed and fold."""

    probability_by_seed: NDArray[np.float64]
    score_by_seed: NDArray[np.float64]
    keys: tuple[tuple[str, ...], ...]

    @cached_property
    def probability(self) -> Vector:
        """(n, k) over seeds."""
        return np.asarray(self.probability_by_seed.mean(0))

    @cached_property
    def score(self) -> Vector:
        """(n,) over seeds: how strongly a sample goes against the models."""
        return np.asarray(self.score_by_seed.mean(0))

    @cached_property
    def answer(self) -> Rows:
        """(n,) the class that is most probable; -1 outside."""
        known = ~np.isnan(self.probability[:, 0])
        return np.where(known, np.nan_to_num(self.probability).argmax(1), -1)


@dataclass(frozen=True, eq=False)
class Trainer:
    """Trains models of all kinds on one material, whose samples are dealt to folds (-1: in none)."""

    material: Material
    y: Rows
    fold: Rows
    folder: Path
    workers: int = 1
    seed: int = 0
    epochs: int | None = None  # of every training, instead of what its recipe says

    @property
    def rows(self) -> Rows:
        """The samples that are in a fold."""
        return np.flatnonzero(self.fold >= 0)

    @property
    def folds(self) -> range:
        return range(int(self.fold.max()) + 1)

    @property
    def trained_on(self) -> int:
        """About how many samples a model is trained on."""
        return len(self.rows) * (len(self.folds) - 1) // len(self.folds)

    def recipe(self, stage: str, rows: int) -> Recipe:
        """The recipe of a stage for so many samples, with the epochs that a person asked for."""
        recipe = self.material.recipe(stage, rows)
        return replace(recipe, epochs=self.epochs or recipe.epochs)

    def biased_job(self, name: str, train: Rows, ask: Rows, seed: int) -> Job:
        """A model that learns what is easy: by GCE, for a short time, on clean inputs, from class-balanced draws; on
        frozen features a linear head, the same under every seed, so strongly regularised that it learns little else."""
        recipe, drawn = self.recipe("biased", len(train)), balancing_weights(self.y[train])
        job = Job(name, self.material, self.y, train, ask, recipe, self.seed + seed, ALPHA, drawn)
        if self.material.architecture == "mlp":
            job = replace(job, seed=self.seed, alpha=None, rule="calibrated", strength=BIASED_HEAD / len(train))
        return job

    def of_fold(self, fold: int) -> tuple[Rows, Rows]:
        """The samples of the other folds, and those of this one."""
        return np.flatnonzero((self.fold >= 0) & (self.fold != fold)), np.flatnonzero(self.fold == fold)

    def fold_jobs(
        self, name: str, recipe: Recipe, seed: int, weight: Vector | None = None, start: Sequence[str] | None = None
    ) -> list[Job]:
        """One job per fold: train on the others, predict it.

        `weight`: (n,), None for class-balanced draws; `start`: keys of the jobs, by fold, that these go on from.
        """
        jobs = []
        for fold in self.folds:
            train, ask = self.of_fold(fold)
            drawn = balancing_weights(self.y[train]) if weight is None else weight[train]
            job = Job(name, self.material, self.y, train, ask, recipe, self.seed + seed, weight=drawn)
            jobs.append(replace(job, start=start[fold] if start else None))
        return jobs

    def out_of_fold(self, stage: str, jobs: Sequence[Sequence[Job]]) -> OutOfFold:
        """What the models of these jobs say, each about the samples it never saw; one sequence of jobs per seed.

        The scores of one model are in units of their mean, so that models agree.
        """
        probability = np.full((len(jobs), len(self.y), len(self.material.classes)), np.nan)
        score = np.full((len(jobs), len(self.y)), np.nan)
        flat = [job for each in jobs for job in each]
        for number, said in enumerate(run_jobs(flat, self.folder, stage, self.workers)):
            seed, norms = number // len(self.folds), said.gradient_norm(self.y)
            probability[seed, said.rows] = said.probability
            score[seed, said.rows] = norms / max(norms.mean(), 1e-12) if len(norms) else norms
        return OutOfFold(probability, score, tuple(tuple(job.key for job in each) for each in jobs))

    def read_models(self, keys: Sequence[Sequence[str]]) -> Models:
        """The networks of these keys, by seed and fold."""
        return [[read_model(self.material, self.folder / key) for key in by_fold] for by_fold in keys]

    def features(self, rows: Rows, key: str) -> Iterator[NDArray[np.float32]]:
        """(b, h) at a time of these samples: frozen features, or what enters the last layer of the network `key`."""
        batches = Split(torch.from_numpy(self.y), self.material.read).subset(torch.from_numpy(rows)).batches(AT_ONCE)
        if self.material.architecture == "mlp":
            yield from (batch.x.numpy() for batch in batches)
        else:
            model = read_model(self.material, self.folder / key)
            yield from (outputs.features.float().numpy() for outputs in look(model, batches))

    def predict_changed(self, models: Models, rows: Rows, inputs: Tensor) -> Vector:
        """(s, b, k) by seed what networks say about changed inputs (b, ...) of samples that none of them ever saw."""
        probability = np.zeros((len(models), len(rows), len(self.material.classes)))
        for number in np.unique(self.fold[rows]):
            mine = np.flatnonzero(self.fold[rows] == number)
            for seed, by_fold in enumerate(models):
                probability[seed, mine] = probabilities(by_fold[number], inputs[mine])
        return probability


def train_biased_models(trainer: Trainer, seeds: int) -> OutOfFold:
    """Models that learn what is easy."""
    jobs = [[trainer.biased_job("easy", *trainer.of_fold(k), seed) for k in trainer.folds] for seed in range(seeds)]
    return trainer.out_of_fold("biased models", jobs)


def train_plain_models(trainer: Trainer, seeds: int) -> OutOfFold:
    """Models that learn what they can from class-balanced draws."""
    recipe = trainer.recipe("plain", trainer.trained_on)
    jobs = [trainer.fold_jobs("plain", recipe, seed) for seed in range(seeds)]
    return trainer.out_of_fold("plain models", jobs)
