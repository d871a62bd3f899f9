"""One training of one model as a job: described in a folder, so that any process can do it, and found again if done.

`job.json` and `job.npz` say everything that decides the outcome (the folder's name is their digest). What came out is
`model.safetensors` and, written last, `answers.npz`: a job that was killed is done again, one that was finished never.
"""

import hashlib
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from functools import cached_property
from multiprocessing import Pipe, active_children, get_context, parent_process, resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import safetensors
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from debiaser.auditing.inputs import Material
from debiaser.data.augment import Augmentation
from debiaser.data.cache import load_arrays
from debiaser.errors import INTERRUPTED, Problem
from debiaser.io import derive, write_arrays, write_json
from debiaser.learn.checkpoint import read_tensors, write_tensors
from debiaser.learn.engine import steps_in
from debiaser.learn.forward import Outputs, call, evaluating, look
from debiaser.learn.losses import Supervised, gce
from debiaser.learn.machine import keep_freed_memory
from debiaser.learn.recipe import Recipe
from debiaser.learn.sampler import ScoreSampler
from debiaser.methods.task import Task
from debiaser.progress import Advance, current, listening, task

Rows = NDArray[np.int64]
log = logging.getLogger("debiaser")
LOOK = 512  # rows per batch where nothing is learnt


@dataclass(frozen=True, eq=False)
class Job:
    """Train a network on these rows, then ask it about those.

    y: labels of all rows; weight: draws in proportion, one number per row of `train`; alpha: GCE's exponent, None for
    cross-entropy; start: the job whose network it goes on from; averaged: the network's weights are their mean over the
    last epoch.
    """

    name: str
    material: Material
    y: Rows
    train: Rows
    ask: Rows
    recipe: Recipe
    seed: int = 0
    alpha: float | None = None
    weight: NDArray[np.float64] | None = None
    augment: Augmentation | None = None
    start: str | None = None
    averaged: bool = False

    @property
    def plain(self) -> dict[str, Any]:
        """What decides the outcome besides the arrays."""
        return {
            "name": self.name,
            "material": self.material.plain,
            "recipe": self.recipe.plain(),
            "seed": self.seed,
            "alpha": self.alpha,
            "augment": asdict(self.augment) if self.augment else None,
            "start": self.start,
            **({"averaged": True} if self.averaged else {}),
        }

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """The arrays that decide the outcome."""
        weight = {} if self.weight is None else {"weight": self.weight}
        return {"y": self.y, "train": self.train, "ask": self.ask, **weight}

    @cached_property
    def key(self) -> str:
        digest = hashlib.blake2b(json.dumps(self.plain, sort_keys=True).encode(), digest_size=10)
        for name, array in self.arrays.items():
            digest.update(name.encode() + np.ascontiguousarray(array).tobytes())
        return f"{self.name}-{digest.hexdigest()}"

    @property
    def steps(self) -> int:
        """How many updates it takes."""
        return self.recipe.epochs * steps_in(len(self.train), self.recipe.batch_size)

    def write(self, folder: Path) -> Path:
        """The job's folder below this one, described for any process that works on it."""
        own = folder / self.key
        write_arrays(own / "job.npz", **self.arrays)
        write_json(own / "job.json", self.plain)
        return own


def read_job(own: Path) -> Job:
    """The job that `write` described."""
    plain = json.loads((own / "job.json").read_text())
    with np.load(own / "job.npz", allow_pickle=False) as stored:
        arrays = dict(stored)
    varied: dict[str, Any] | None = plain["augment"]
    if varied is not None:
        varied = {name: tuple(value) if isinstance(value, list) else value for name, value in varied.items()}
    return Job(
        plain["name"],
        Material.of(plain["material"]),
        arrays["y"],
        arrays["train"],
        arrays["ask"],
        Recipe(**plain["recipe"]),
        plain["seed"],
        plain["alpha"],
        arrays.get("weight"),
        None if varied is None else Augmentation(**varied),
        plain["start"],
        plain.get("averaged", False),
    )


@dataclass(frozen=True, eq=False)
class Predictions:
    """What a model said about the rows it was asked: logits (m, k) and the length of the feature behind each (m,)."""

    rows: Rows
    logits: NDArray[np.float32]
    length: NDArray[np.float32]

    @property
    def probability(self) -> NDArray[np.float64]:
        """(m, k)."""
        return softmax(self.logits)

    def gradient_norm(self, y: Rows) -> NDArray[np.float64]:
        """(m,) the norm of the last layer's gradient for the labels `y` of all rows."""
        labels = torch.from_numpy(y[self.rows])
        outputs = Outputs(torch.from_numpy(self.length)[:, None], torch.from_numpy(self.logits), labels)
        return np.asarray(outputs.residual.double().norm(dim=1)) * self.length.astype(np.float64)


def softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    """(m, k) probabilities."""
    return np.asarray(torch.from_numpy(logits).double().softmax(1))


def read_predictions(own: Path) -> Predictions | None:
    """What the job's model said; None where it is not done, or a file of it is damaged."""
    stored = load_arrays(own / "answers.npz")
    if stored is None:
        return None
    try:
        with safetensors.safe_open(own / "model.safetensors", framework="pt"):  # its header and its length
            return Predictions(stored["rows"], stored["logits"], stored["length"])
    except (OSError, KeyError, safetensors.SafetensorError) as error:
        log.warning("the model in %s is gone or damaged (%s); it is trained again", own, error)
        return None


def work(own: Path) -> Predictions:
    """Do the job of this folder."""
    job = read_job(own)
    split = job.material.split(job.y)
    start = None if job.start is None else own.parent / job.start
    training = Task(
        train=split.subset(torch.from_numpy(job.train)),
        make_model=lambda seed: job.material.new_net(seed) if start is None else read_model(job.material, start),
        recipe=job.recipe,
        seed=derive(job.seed, job.name),
        augment=job.augment,
    )
    network = training.new_model()
    average = Average(network, job.steps - job.steps // job.recipe.epochs)
    sampler = None if job.weight is None else ScoreSampler(job.weight, seed=training.seed)
    with listening(average) if job.averaged else nullcontext():
        model = training.fit(Supervised(network, gce(job.alpha)), job.name, sampler=sampler)
    if job.averaged:
        model.load_state_dict(average.state)
    write_tensors(own / "model.safetensors", dict(model.state_dict()))
    answers = ask(model, job.material, job.y, job.ask)
    write_arrays(own / "answers.npz", rows=answers.rows, logits=answers.logits, length=answers.length)
    return answers


class Average:
    """A listener that keeps the mean of a network's weights over all updates after the first `skip`."""

    def __init__(self, network: nn.Module, skip: int) -> None:
        self.network, self.skip, self.tell = network, skip, current.get()
        self.state: dict[str, Tensor] = {}

    @torch.no_grad()
    def __call__(self, what: str, done: int, total: int | None, step: int, unit: str) -> None:
        self.tell(what, done, total, step, unit)
        taken = done - self.skip
        if taken < 1:
            return
        for name, value in self.network.state_dict().items():
            if taken == 1 or not value.is_floating_point():
                self.state[name] = value.clone()
            else:
                self.state[name].lerp_(value, 1 / taken)


def read_model(material: Material, own: Path) -> nn.Module:
    """The network that came out of a job, in eval mode."""
    model = material.new_net(0)
    model.load_state_dict(read_tensors(own / "model.safetensors").tensors)
    return model.eval()


def ask(model: nn.Module, material: Material, y: Rows, rows: Rows) -> Predictions:
    """What a model says about these rows."""
    chosen = material.split(y).subset(torch.from_numpy(rows))
    logits, length = [], []
    for outputs in look(model, chosen.batches(LOOK)):
        logits.append(outputs.logits.float().numpy())
        length.append(outputs.features.float().norm(dim=1).numpy())
    if not logits:
        return Predictions(rows, np.zeros((0, len(material.classes)), np.float32), np.zeros(0, np.float32))
    return Predictions(rows, np.concatenate(logits), np.concatenate(length))


def probabilities(model: nn.Module, inputs: Tensor) -> NDArray[np.float64]:
    """(b, k) probabilities for inputs that are not rows of the data."""
    with evaluating(model):
        parts = [call(model, part) for part in torch.split(inputs, LOOK)]
        return np.asarray(torch.cat(parts).double().softmax(1))


# --- Running jobs, in this process or in a pool of several

POLL = 0.2  # seconds between looks at the workers' progress


def run(jobs: Sequence[Job], folder: Path, stage: str, workers: int = 1) -> list[Predictions]:
    """The answers of these jobs, in their order; what was done before is not done again."""
    folders = [folder / job.key for job in jobs]
    known = [read_predictions(own) for own in folders]
    missing = [job for job, answers in zip(jobs, known, strict=True) if answers is None]
    if missing:
        total = sum(job.steps for job in jobs)
        with task(stage, total, total - sum(job.steps for job in missing)) as advance:
            written = [job.write(folder) for job in missing]
            if min(workers, len(missing)) > 1:
                run_in_pool(written, min(workers, len(missing)), advance)
            else:
                with listening(lambda _what, _done, _total, step, _unit: advance(step)):  # many trainings, one bar
                    for own in written:
                        work(own)
    return [answers or finished(own) for answers, own in zip(known, folders, strict=True)]


def finished(own: Path) -> Predictions:
    """The answers of a job that was just done."""
    answers = read_predictions(own)
    if answers is None:
        raise Problem(f"cannot read what was just written to {own}; another process may have removed it: try again")
    return answers


def run_in_pool(folders: Sequence[Path], workers: int, advance: Advance) -> None:
    """Do the jobs of these folders in so many processes, which report every step through one pipe.

    The first problem ends all of them, as does Ctrl-C; what was finished is kept by its folder.
    """
    threads = max(1, torch.get_num_threads() // workers)
    reader, writer = Pipe(duplex=False)
    others = set(active_children())
    with spawning(OMP_NUM_THREADS=str(threads)):
        pool = ProcessPoolExecutor(workers, get_context("spawn"), start_worker, (writer, threads))
        waiting = {pool.submit(work_in_pool, own) for own in folders}
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
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        sys.path[:], sys.modules["__main__"] = path, script
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.__setitem__(name, value)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def start_worker(pipe: Connection, threads: int) -> None:
    """Set a worker process up: each step of its work is a byte through the pool's pipe.

    It ends when the process that started it does, however that ends.
    """

    def report(_what: str, _done: int, _total: int | None, step: int, _unit: str) -> None:
        os.write(pipe.fileno(), b"." * step)

    current.set(report)
    torch.set_num_threads(threads)
    keep_freed_memory()
    threading.Thread(target=end_with_parent, daemon=True).start()


def end_with_parent() -> None:
    """Wait until the process that started this one is gone."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(INTERRUPTED)


def work_in_pool(own: Path) -> None:
    """Do the job of this folder as a worker."""
    work(own)
