"""From a spec to a result: load, train, judge, keep."""

import logging
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from debiaser.data.augment import AUGMENTATIONS
from debiaser.data.benchmarks import DATASETS
from debiaser.data.benchmarks.gallery import Gallery
from debiaser.data.cache import user_cache
from debiaser.data.split import Benchmark, Split
from debiaser.errors import Misuse, Problem
from debiaser.io import locked, make_folder, write_arrays, write_json
from debiaser.learn.checkpoint import Checkpoints, write_tensors
from debiaser.learn.distributed import ALONE, Processes
from debiaser.learn.encoders import Encoder, features, find_encoder
from debiaser.learn.engine import Row
from debiaser.learn.forward import predict
from debiaser.learn.machine import environment, keep_freed_memory
from debiaser.learn.nets import new_net, normalised
from debiaser.methods import METHODS
from debiaser.methods.task import Journal, Method, Task
from debiaser.paper.metrics import accuracies, detection, validation
from debiaser.paper.results import finished, measures, new_result, published, write_history
from debiaser.paper.samples import Vector, test_samples, train_samples
from debiaser.paper.settings import SETTINGS
from debiaser.paper.spec import Spec, field_values
from debiaser.report.runs import Result

log = logging.getLogger("debiaser")
EVALUATION_BATCH, ENCODING_BATCH = 512, 64  # samples at a time
PARTS = ("train", "valid", "test")
TASK = ("target", "bias", "severity", "positions")  # options that make another task of a dataset than the paper's


@dataclass(frozen=True)
class Run:
    """A finished run: its folder, its result, and whether it was there already."""

    folder: Path
    result: Result
    resumed: bool


def run(
    spec: Spec,
    out: Path,
    data: Path | None = None,
    device: str = "cpu",
    fresh: bool = False,
    processes: Processes = ALONE,
) -> Run:
    """The finished run of this spec: found in the store, resumed, or made (by several processes, all call this)."""
    folder = out / spec.key
    processes.agree("the run", spec.key)
    if spec.world_size != processes.size:
        raise Problem(f"this is a run of {spec.world_size} processes, but {processes.size} are here; use torchrun")

    def find() -> tuple[Result | None, str]:
        return processes.from_main(lambda: (None, "") if fresh else finished(folder))

    done, _ = find()
    if done is not None:  # a finished run can be read without its lock, also where one may not write
        return Run(folder, done, resumed=True)
    waiting = f"another process is working on {folder}; waiting for it to end"
    with processes.held(lambda: locked(folder / ".lock", waiting)):
        done, wrong = find()
        if done is not None:
            return Run(folder, done, resumed=True)
        if processes.main and wrong:
            log.warning("the result in %s does not count (%s); the run is made again", folder, wrong)
        if fresh and processes.main:
            shutil.rmtree(folder / "checkpoint", ignore_errors=True)
            (folder / "result.json").unlink(missing_ok=True)
        checkpoints = Checkpoints(out / "stages", fresh=fresh)
        made = make(spec, folder, data, device, checkpoints, processes)
        return Run(folder, made, resumed=False)


def make(
    spec: Spec,
    folder: Path,
    data: Path | None,
    device: str,
    checkpoints: Checkpoints,
    processes: Processes = ALONE,
) -> Result:
    """Train and judge; everything that is kept lands in the folder, `result.json` last."""
    keep_freed_memory()
    if processes.main:
        make_folder(folder / "checkpoint")  # a run in the making, for anyone who looks
    method = spec.new_method()
    with processes.main_first():  # it may prepare what the others find
        benchmark = load(spec, data)
    classes, setting = len(benchmark.classes), SETTINGS[spec.dataset]
    varied = spec.augment or setting.augment
    if spec.options.get("features"):  # features are neither varied nor scaled like pictures
        varied, setting = None, replace(setting, normalise=None)
    task = Task(
        train=benchmark.train,
        make_model=lambda seed: normalised(new_net(spec.net, classes, seed, **spec.net_options), setting.normalise),
        recipe=spec.recipe,
        seed=spec.seed,
        valid=benchmark.valid,
        augment=AUGMENTATIONS[varied] if varied else None,
        device=device,
        identity=spec.data_identity,
        checkpoints=checkpoints,
        watch=lambda model: watch(model, benchmark, device, processes),
        processes=processes,
        precision=spec.precision,
    )
    model = fitted(method, task, spec)
    logits = predictions(model, benchmark, device, processes)
    return processes.from_main(lambda: keep(spec, folder, benchmark, task, model, logits))


def fitted(method: Method, task: Task, spec: Spec) -> nn.Module:
    """The network that the method gives; what a person's own method does wrong is theirs to mend, and told so."""
    if spec.method in METHODS:
        return method.fit(task)
    try:
        model: Any = method.fit(task)
    except Problem:
        raise
    except Exception as error:
        said = f"{spec.method} failed: {type(error).__name__}: {error} (--debug shows where)"
        raise Problem(said) from error
    if not isinstance(model, nn.Module):
        raise Problem(f"{spec.method} must return the network from fit, got {type(model).__name__}")
    for name, vector in task.journal.vectors.items():
        if vector.shape != (len(task.train),):
            raise Problem(
                f"{spec.method} noted '{name}' of shape {vector.shape}; a note has one number for each of "
                f"{len(task.train)} training rows"
            )
    return model


def keep(
    spec: Spec, folder: Path, benchmark: Benchmark, task: Task, model: nn.Module, logits: dict[str, Tensor]
) -> Result:
    """Write everything, `result.json` last."""
    found = judge(spec, benchmark, logits, task.journal, folder)
    write_tensors(folder / "model.safetensors", dict(model.state_dict()), net=spec.net, classes=benchmark.classes)
    write_history(folder / "history.csv", task.journal.history)
    result = new_result(spec, **found, environment=environment(str(task.device), spec.world_size))
    write_json(folder / "result.json", result)
    shutil.rmtree(folder / "checkpoint", ignore_errors=True)
    stages = task.journal.stages
    for key in dict.fromkeys([*(key for key, own in stages.items() if own), *list(stages)[-1:]]):
        task.checkpoints.remove(key)  # the last stage's model is in the run's folder; the others may serve other runs
    return result


def load(spec: Spec, data: Path | None) -> Benchmark:
    """The benchmark of this spec; with the option `features`, its frozen features instead of pictures."""
    benchmark = DATASETS[spec.dataset].load(data, spec.rho, spec.data_seed, noise=spec.noise, **spec.options)
    for part in PARTS:
        if not len(getattr(benchmark, part)):
            raise Problem(f"{spec.dataset} holds no rows of {part}; put the whole set there: `debiaser data check`")
    encoder = spec.options.get("features")
    return features_of(benchmark, find_encoder("image", encoder, data=data)) if encoder else benchmark


@dataclass(frozen=True, eq=False)
class Encoded:
    """A reader for a split: row numbers (b,) to features (b, width); `pictures` reads what they were made of."""

    array: NDArray[Any] = field(repr=False)
    places: NDArray[np.int64] = field(repr=False)  # of the split's rows in the array
    pictures: Gallery = field(repr=False)

    def __call__(self, rows: Tensor) -> Tensor:
        return torch.from_numpy(self.array[self.places[rows.numpy()]])


def features_of(benchmark: Benchmark, encoder: Encoder) -> Benchmark:
    """The benchmark with this encoder's features as inputs: computed once per picture, then read from the cache.

    Whole pictures at the encoder's size, without augmentation; the same file serves every seed and split.
    """
    splits: dict[str, Split] = {part: getattr(benchmark, part) for part in PARTS}
    galleries = {part: split.read for part, split in splits.items() if isinstance(split.read, Gallery)}
    if len(galleries) < len(splits):
        raise Misuse(
            f"features are for benchmarks of pictures that lie in files, not for {benchmark.name}; "
            "leave --option features out"
        )
    place = {name: at for at, name in enumerate(sorted({each for one in galleries.values() for each in one.names}))}
    pictures = replace(galleries["train"], names=list(place)).resized(encoder.size)

    def stream(rows: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        return ((part, pictures.pixels(part)) for part in torch.split(rows, ENCODING_BATCH))

    array = features(encoder, pictures.identity, len(place), stream, user_cache("features"))
    encoded: dict[str, Any] = {
        part: replace(splits[part], read=Encoded(array, np.array([place[name] for name in one.names]), one))
        for part, one in galleries.items()
    }
    return replace(benchmark, **encoded, notes=(*benchmark.notes, f"inputs are frozen features of {encoder.name}"))


def published_number(spec: Spec) -> dict[str, object] | None:
    """What the paper prints for this run, where it is one of the paper's: its fields as in the settings, its task."""
    if spec.method not in METHODS or spec.noise:
        return None
    setting, usual = SETTINGS[spec.dataset], signature(DATASETS[spec.dataset].load).parameters
    other_task = any(usual[name].default != value for name, value in spec.options.items() if name in TASK)
    other_net = spec.dataset == "celeba" and spec.net != setting.net  # the paper prints accuracies of one network
    fields = field_values(METHODS[spec.method](**setting.fields(spec.method, spec.rho)))
    if other_task or other_net or fields != spec.fields:
        return None
    number = published(spec.dataset, spec.method, spec.rho)
    if number is None or number.mean is None:
        return None
    return {"mean": number.mean, "std": number.std, "label": number.label, "note": number.note}


def detector(journal: Journal, labels: Vector) -> Vector | None:
    """(n,) what the method noted that should be high on conflicting rows.

    Its scores, weights, errors or worse environment; of clusters alone, the share of its class that is in others.
    """
    for name in ("score", "weight", "error", "environment"):
        if name in journal.vectors:
            return journal.vectors[name]
    if "cluster" not in journal.vectors:
        return None
    clusters = journal.vectors["cluster"]  # each lies within one class
    return np.asarray(1 - np.bincount(clusters)[clusters] / np.bincount(labels)[labels])


def predictions(model: nn.Module, benchmark: Benchmark, device: str, processes: Processes) -> dict[str, Tensor]:
    """(n, k) a model's logits on validation and test samples."""
    found = {}
    for part in ("valid", "test"):
        split: Split = getattr(benchmark, part)
        (found[part],) = processes.over(split, EVALUATION_BATCH, lambda batches: (predict(model, batches, device),))
    return found


def watch(model: nn.Module, benchmark: Benchmark, device: str, processes: Processes) -> Row:
    """What the history shows of an epoch; no method sees it."""
    logits = predictions(model, benchmark, device, processes)
    return {
        **validation(logits["valid"], benchmark.valid.y),
        **accuracies(logits["test"], benchmark.test.y, benchmark.truth["test"]),
    }


def judge(spec: Spec, benchmark: Benchmark, logits: dict[str, Tensor], journal: Journal, folder: Path) -> Result:
    """Metrics, times and counts; writes the vectors and the pictures that the page draws."""
    train, truth = benchmark.train, benchmark.truth["train"]
    conflicting = truth.conflicting(train.y).numpy()
    score = journal.vectors.get("score")
    n = len(train)
    vectors: dict[str, Vector] = {
        "score": np.full(n, np.nan) if score is None else score.astype(np.float64),
        "probability": np.full(n, 1 / n) if score is None else score / score.sum(dtype=np.float64),
        "label": train.y.numpy(),
        "conflicting": conflicting,
        "flipped": truth.flipped(train.y).numpy().astype(np.int8),
        **{name: vector for name, vector in journal.vectors.items() if name != "score"},
    }
    write_arrays(folder / "vectors.npz", **vectors)
    write_arrays(
        folder / "samples.npz",
        **train_samples(train, vectors, truth.bias[:, 0].numpy()),
        **test_samples(benchmark, logits["test"].softmax(1).numpy(), spec.data_seed),
    )
    found = {
        **accuracies(logits["test"], benchmark.test.y, benchmark.truth["test"], benchmark.attributes),
        "valid": validation(logits["valid"], benchmark.valid.y)["valid_accuracy"],
        **detection(detector(journal, vectors["label"]), conflicting),
    }
    return {
        "metrics": found,
        "seconds": journal.seconds,
        "samples_seen": sum(row["seen"] for row in journal.history),
        "rows": {
            "train": n,
            "valid": len(benchmark.valid),
            "test": len(benchmark.test),
            "conflicting": None if (conflicting < 0).any() else int(conflicting.sum()),
            "flipped": int(vectors["flipped"].sum()),
        },
        "classes": list(benchmark.classes),
        "bias_name": " and ".join(benchmark.attributes),
        "notes": list(benchmark.notes),
        "published": published_number(spec),
        **measures(journal.history, vectors),
    }
