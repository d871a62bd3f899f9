"""From a spec to a result: load, train, judge, keep; the only reader of bias labels."""

import csv
import io
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from debiaser.data.augment import AUGMENTATIONS
from debiaser.data.benchmarks import DATASETS
from debiaser.data.split import Benchmark, Split, Truth
from debiaser.errors import Misuse, Problem
from debiaser.io import locked, log, make_folder, numpy_stream, write_arrays, write_json, write_text
from debiaser.learn.checkpoint import Checkpoints, write_tensors
from debiaser.learn.distributed import ALONE, Processes
from debiaser.learn.engine import Row
from debiaser.learn.forward import predict
from debiaser.learn.nets import model_folder, new_net, normalised
from debiaser.learn.recipe import environment, keep_freed_memory
from debiaser.learn.sampler import effective_sample_size
from debiaser.methods import METHODS, find_method
from debiaser.methods.task import Journal, Method, Task
from debiaser.paper.results import BINS, finished, published
from debiaser.paper.settings import SETTINGS
from debiaser.paper.spec import PROTOCOL, Spec, field_values
from debiaser.report.runs import Result

if TYPE_CHECKING:
    from debiaser.learn.encoders import Encoder

Vector: TypeAlias = NDArray[Any]
Metrics = dict[str, float | None]
EVALUATION_BATCH, ENCODING_BATCH = 512, 64  # samples at a time
PARTS = ("train", "valid", "test")
TASK = ("target", "bias", "severity", "positions")  # options that make another task of a dataset than the paper's
WATCHED = ("unbiased", "aligned", "conflicting", "worst_group", "valid_loss", "valid_accuracy")
HISTORY = (
    *("stage", "epoch", "seen", "lr", "loss", "valid_loss", "valid_accuracy"),
    *("unbiased", "aligned", "conflicting", "worst_group", "seconds"),
)
SHOWN = 112  # pixels of a side on the page, at most
PER_CLASS = 8  # highest- and lowest-scored images kept per class


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
    processes.agree("the run", spec.key)
    if spec.world_size != processes.size:
        raise Problem(f"this is a run of {spec.world_size} processes, but {processes.size} are here; use torchrun")

    def find() -> tuple[Result | None, str]:
        return processes.from_main(lambda: (None, "") if fresh else finished(out / spec.key))

    done, _ = find()
    if done is not None:  # a finished run can be read without its lock, also where one may not write
        return Run(out / spec.key, done, resumed=True)
    with processes.main_first():  # it may prepare what the others find
        benchmark = load(spec, data)
        for part in PARTS:
            getattr(getattr(benchmark, part).read, "prepare", lambda: None)()
    if benchmark.there and benchmark.there.part:  # a run of its own, whose stages serve no run of the whole set
        spec = replace(spec, part=f"{benchmark.there.part}, {benchmark.there.which}")
    folder = out / spec.key
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
        made = make(spec, folder, benchmark, data, device, checkpoints, processes)
        return Run(folder, made, resumed=False)


def make(
    spec: Spec,
    folder: Path,
    benchmark: Benchmark,
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
    classes, setting = len(benchmark.classes), SETTINGS[spec.dataset]
    varied = spec.augment or setting.augment
    if spec.options.get("features"):  # features are neither varied nor scaled like images
        varied, setting = None, replace(setting, normalise=None)
    start = {"weights": str(model_folder(spec.weights, data))} if spec.weights else {}
    task = Task(
        train=benchmark.train,
        make_model=lambda seed: normalised(new_net(spec.net, classes, seed, **start), setting.normalise),
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
        groups=benchmark.truth["train"].groups(benchmark.train.y) if uses_groups(method) else None,
    )
    model = fitted(method, task, spec)
    logits = predictions(model, benchmark, device, processes)
    return processes.from_main(lambda: keep(spec, folder, benchmark, task, model, logits))


def fitted(method: Method, task: Task, spec: Spec) -> nn.Module:
    """The network that the method gives; what a person's own method does wrong is theirs to fix, and told so."""
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
                f"{len(task.train)} training samples"
            )
    return model


def keep(
    spec: Spec, folder: Path, benchmark: Benchmark, task: Task, model: nn.Module, logits: dict[str, Tensor]
) -> Result:
    """Write everything, `result.json` last."""
    found = judge(spec, benchmark, logits, task.journal, folder)
    write_tensors(folder / "model.safetensors", dict(model.state_dict()), net=spec.net, classes=benchmark.classes)
    write_history(folder / "history.csv", task.journal.history)
    result = {
        "protocol": PROTOCOL,
        "key": spec.key,
        "spec": spec.plain(),
        "dataset": spec.dataset,
        "method": spec.label,
        "rho": spec.rho,
        "seed": spec.seed,
        "recipe": spec.recipe.name,
        **({"uses_groups": True} if uses_groups(find_method(spec.method)) else {}),
        **found,
        "environment": environment(str(task.device), spec.world_size),
    }
    write_json(folder / "result.json", result)
    shutil.rmtree(folder / "checkpoint", ignore_errors=True)
    stages = task.journal.stages
    kept = list(stages)[-1:] if model is task.journal.model else []  # it is in the run's folder
    for key in dict.fromkeys([*(key for key, own in stages.items() if own), *kept]):
        task.checkpoints.remove(key)  # the others may serve other runs
    return result


def uses_groups(method: Any) -> bool:
    """Whether a method, perhaps a person's own, declares that it learns from group labels."""
    return bool(getattr(method, "uses_groups", False))


def load(spec: Spec, data: Path | None) -> Benchmark:
    """The benchmark of this spec; with the option `features`, its frozen features instead of images."""
    benchmark = DATASETS[spec.dataset].load(data, spec.rho, spec.data_seed, noise=spec.noise, **spec.options)
    for part in PARTS:
        if not len(getattr(benchmark, part)):
            raise Problem(f"{spec.dataset} holds no samples of {part}; put the whole set there: `debiaser data check`")
    if benchmark.there and benchmark.there.part:
        log.warning("only a part of %s is here: %s", spec.dataset, benchmark.there.part)
    encoder = spec.options.get("features")
    if not encoder:
        return benchmark
    from debiaser.learn.encoders import find_encoder  # few runs need one

    return features_of(benchmark, find_encoder("image", encoder, data=data))


@dataclass(frozen=True, eq=False)
class Encoded:
    """A reader for a split: sample numbers (b,) to features (b, width); `images` reads what they were made of."""

    array: Vector = field(repr=False)
    places: NDArray[np.int64] = field(repr=False)  # of the split's samples in the array
    images: Any = field(repr=False)

    def __call__(self, rows: Tensor) -> Tensor:
        return torch.from_numpy(self.array[self.places[rows.numpy()]])


def features_of(benchmark: Benchmark, encoder: "Encoder") -> Benchmark:
    """The benchmark with this encoder's features as inputs: computed once per image, then read from the cache.

    Whole images at the encoder's size, without augmentation; the same file serves every seed and split.
    """
    from debiaser.data.benchmarks.gallery import Gallery
    from debiaser.data.cache import user_cache
    from debiaser.learn.encoders import features

    splits: dict[str, Split] = {part: getattr(benchmark, part) for part in PARTS}
    galleries = {part: split.read for part, split in splits.items() if isinstance(split.read, Gallery)}
    if len(galleries) < len(splits):
        raise Misuse(
            f"features are for benchmarks of images that lie in files, not for {benchmark.name}; "
            "leave --option features out"
        )
    place = {name: at for at, name in enumerate(sorted({each for one in galleries.values() for each in one.names}))}
    images = replace(galleries["train"], names=list(place)).resized(encoder.size)

    def stream(rows: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        return ((part, images.pixels(part)) for part in torch.split(rows, ENCODING_BATCH))

    array = features(encoder, images.identity, len(place), stream, user_cache("features"))
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
    fields = field_values(find_method(spec.method)(**setting.fields(spec.method, spec.rho)))
    if other_task or other_net or fields != spec.fields:
        return None
    number = published(spec.dataset, spec.method, spec.rho)
    if number is None or number.mean is None:
        return None
    return {"mean": number.mean, "std": number.std, "label": number.label, "note": number.note}


def detector(journal: Journal, labels: Vector) -> Vector | None:
    """(n,) what the method noted that should be high on conflicting samples.

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
    """Metrics, times and counts; writes the vectors and the images that the page draws."""
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
        **({} if spec.rho else natural_groups(logits, benchmark)),
        "valid": validation(logits["valid"], benchmark.valid.y)["valid_accuracy"],
        **detection(detector(journal, vectors["label"]), conflicting),
        **({"flip_rate": float(vectors["flip"].mean())} if "flip" in vectors else {}),
    }
    return {
        "metrics": found,
        "seconds": journal.seconds,
        "samples_seen": sum(row["seen"] for row in journal.history),
        "rows": {
            **{part: len(getattr(benchmark, part)) for part in PARTS},
            "conflicting": None if (conflicting < 0).any() else int(conflicting.sum()),
            "flipped": int(vectors["flipped"].sum()),
        },
        "classes": list(benchmark.classes),
        "bias_name": " and ".join(benchmark.attributes),
        "notes": [*benchmark.notes, *journal.decisions],
        **({"there": {"samples": benchmark.there.samples, "of": benchmark.there.of}} if benchmark.there else {}),
        "published": published_number(spec),
        **measures(journal.history, vectors),
    }


# What a run keeps beside its model: history, measures and the samples that its page draws.


def write_history(path: Path, history: Iterable[dict[str, Any]]) -> None:
    """One line per epoch; `seen` counts the samples of all stages so far."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, HISTORY, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    seen = 0
    for row in history:
        seen += row["seen"]
        writer.writerow({**row, "seen": seen})
    write_text(path, stream.getvalue())


def measures(history: Sequence[Mapping[str, Any]], vectors: Mapping[str, Any]) -> dict[str, Any]:
    """`stages`: the last epoch of each; `selection`: three ways to choose an epoch; `histogram`: of the scores."""
    found: dict[str, Any] = {"histogram": histogram(vectors)}
    if history:
        found["stages"] = {row["stage"]: watched(row) for row in history}
        found["selection"] = selection([row for row in history if row["stage"] == history[-1]["stage"]])
    return {name: value for name, value in found.items() if value}


def selection(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The epochs that three rules would report: the last, the lowest biased validation loss, the oracle (D6)."""
    told = [row for row in rows if row.get("valid_loss") is not None and row.get("unbiased") is not None]
    if not told:
        return {}
    chosen = {
        "last": told[-1],
        "best_valid": min(told, key=lambda row: row["valid_loss"]),
        "oracle": max(told, key=lambda row: row["unbiased"]),
    }
    return {rule: {"epoch": float(row["epoch"]), **watched(row)} for rule, row in chosen.items()}


def watched(row: Mapping[str, Any]) -> dict[str, float]:
    """What an epoch's row says about the model."""
    return {name: float(row[name]) for name in WATCHED if row.get(name) is not None}


def histogram(vectors: Mapping[str, Any]) -> dict[str, Any]:
    """Samples of each kind per tenth of the largest score, and each kind's mean of score over largest score."""
    score = np.asarray(vectors["score"], dtype=float)
    if not len(score) or not np.isfinite(score).all() or not score.max() > 0:
        return {}
    relative = score / score.max()
    kinds = {"aligned": vectors["conflicting"] == 0, "conflicting": vectors["conflicting"] == 1}
    if not all(mask.any() for mask in kinds.values()):
        return {}
    counts = {kind: np.histogram(relative[mask], BINS, (0, 1))[0].tolist() for kind, mask in kinds.items()}
    return {**counts, "mean": {kind: float(relative[mask].mean()) for kind, mask in kinds.items()}}


def as_images(split: Split, rows: Vector) -> NDArray[np.uint8]:
    """(m, h, w, 3) the inputs of these samples as 8-bit images, large ones reduced; one black dot each for texts.

    Features show the images that they were made of.
    """
    read = getattr(split.read, "images", split.read)
    x: Any = read(torch.from_numpy(rows)) if len(rows) else {}
    if isinstance(x, dict):  # tokens
        x = torch.zeros(len(rows), 3, 1, 1)
    if max(x.shape[-2:]) > SHOWN:
        x = F.interpolate(x, scale_factor=SHOWN / max(x.shape[-2:]), mode="area", recompute_scale_factor=True)
    return np.asarray((x * 255).round().clamp(0, 255).byte().permute(0, 2, 3, 1))


def train_samples(train: Split, vectors: dict[str, Vector], bias: Vector) -> dict[str, Vector]:
    """The highest- and lowest-scored samples of each class."""
    score, label = vectors["score"], vectors["label"]
    rows = np.zeros(0, dtype=np.int64)
    if not np.isnan(score).any():
        order = np.argsort(-score, kind="stable")
        ranked = [order[label[order] == number] for number in range(len(train.classes))]
        rows = np.concatenate([np.unique(np.r_[each[:PER_CLASS], each[-PER_CLASS:]]) for each in ranked])
    return {
        "train_images": as_images(train, rows),
        "train_rows": rows,
        "train_labels": label[rows],
        "train_scores": score[rows],
        "train_conflicting": vectors["conflicting"][rows],
        "train_bias": bias[rows],
    }


def test_samples(benchmark: Benchmark, probabilities: Vector, data_seed: int) -> dict[str, Vector]:
    """For each class three bias-conflicting test samples and a bias-aligned one; the same for all methods."""
    truth, y = benchmark.truth["test"], benchmark.test.y
    kind = truth.conflicting(y).numpy()
    shuffled = numpy_stream(data_seed, "shown test pictures").permutation(len(y))
    label = y.numpy()[shuffled]
    chosen = [
        shuffled[(label == number) & (kind[shuffled] == wanted)][:count]
        for number in range(len(benchmark.classes))
        for wanted, count in ((1, 3), (0, 1), (-1, 4))
    ]
    rows = np.concatenate(chosen)
    return {
        "test_images": as_images(benchmark.test, rows),
        "test_rows": rows,
        "test_labels": y.numpy()[rows],
        "test_bias": truth.bias[:, 0].numpy()[rows],
        "test_conflicting": kind[rows],
        "test_probabilities": probabilities[rows],
    }


# How good a model and a detector are; the only reader of bias labels.


def percent(right: Tensor) -> float | None:
    """The share that is right, in percent; None where there is nothing to judge."""
    return float(right.double().mean()) * 100 if len(right) else None


def accuracies(logits: Tensor, y: Tensor, truth: Truth, attributes: Sequence[str] = ()) -> Metrics:
    """unbiased: over all samples; aligned and conflicting: those that follow and go against the shortcut; over groups:

    group_average, their mean, and worst_group, their lowest. Papers call either of unbiased and group_average "average"
    (D27), so both are there. With several `attributes`, aligned and conflicting also for each of them, by its name.
    """
    right = logits.argmax(1) == y
    kind = truth.conflicting(y)
    groups = group_accuracies(right, truth)
    found: Metrics = {
        "unbiased": percent(right),
        "aligned": percent(right[kind == 0]),
        "conflicting": percent(right[kind == 1]),
        "group_average": float(groups.mean()) if len(groups) else None,
        "worst_group": float(groups.min()) if len(groups) else None,
    }
    if len(attributes) > 1 and not truth.overlapping:
        for name, attribute in zip(attributes, truth.bias.T, strict=True):
            kind = Truth(truth.target, attribute[:, None]).conflicting(y)  # whatever the other attributes do
            for word, wanted in (("aligned", 0), ("conflicting", 1)):
                found[f"{word}_{name.replace(' ', '_')}"] = percent(right[kind == wanted])
    return found


def group_accuracies(right: Tensor, truth: Truth) -> NDArray[np.float64]:
    """(g,) the accuracy in percent of every group that has samples.

    A group is a pair of target and bias value, and with several attributes each of them has its own groups. Where
    attributes are overlapping traits, only samples that have a trait form groups, and a sample may be in several.
    """
    found = []
    for attribute in truth.bias.T:
        member = (attribute == 1) if truth.overlapping else (attribute >= 0)
        if not member.any():
            continue
        group = (truth.target * (int(attribute.max()) + 1) + attribute)[member].numpy()
        counts = np.bincount(group)
        correct = np.bincount(group, weights=right[member].numpy().astype(float))
        found.append(correct[counts > 0] / counts[counts > 0] * 100)
    return np.concatenate(found) if found else np.zeros(0)


def natural_groups(logits: Mapping[str, Tensor], benchmark: Benchmark) -> Metrics:
    """What is usual where the bias is natural: the test accuracy over groups weighted by their share of the training
    samples, and the lowest of a group of validation samples, by which others choose. Nothing where they are unknown.
    """
    train, test, valid = (benchmark.truth[part] for part in ("train", "test", "valid"))
    if train.overlapping or train.bias.shape[1] != 1 or any((each.bias < 0).any() for each in (train, test, valid)):
        return {}
    width = int(max(each.bias.max() for each in (train, test))) + 1
    of_train, of_test = ((each.target * width + each.bias[:, 0]).numpy() for each in (train, test))
    right, size = (logits["test"].argmax(1) == benchmark.test.y).double().numpy(), width * len(benchmark.classes)
    counts = np.bincount(of_test, minlength=size)
    weights = np.bincount(of_train, minlength=size)[of_test] / np.maximum(counts, 1)[of_test]
    right_in_valid = logits["valid"].argmax(1) == benchmark.valid.y
    return {
        "weighted_average": float((weights * right).sum() / weights.sum()) * 100 if weights.any() else None,
        "valid_worst_group": float(group_accuracies(right_in_valid, valid).min()),
    }


def validation(logits: Tensor, y: Tensor) -> Metrics:
    """Loss and accuracy on the (biased) validation samples: all that a choice may rest on."""
    return {"valid_loss": float(F.cross_entropy(logits, y)), "valid_accuracy": percent(logits.argmax(1) == y)}


def detection(score: NDArray[Any] | None, conflicting: NDArray[np.int8]) -> Metrics:
    """How well scores find the conflicting samples, what share of the sampling mass these get, and how even it is.

    precision and recall are those of the samples that get more than an even share: drawn or weighed more than in plain
    training, or in the error set where scores are 0 and 1. All from 0 to 1; None where none is known to conflict or all
    do. Nothing without scores.
    """
    from sklearn.metrics import average_precision_score, roc_auc_score

    if score is None or not score.sum() > 0:
        return {}
    score = score.astype(np.float64)
    known, shares = conflicting >= 0, score / score.sum()
    names = ("auroc", "average_precision", "precision", "recall", "conflicting_mass")
    found: Metrics = {f"score_{name}": None for name in names}
    found["score_effective_sample_size"] = effective_sample_size(shares)
    truth = conflicting[known] == 1
    if truth.any() and not truth.all():
        found["score_auroc"] = float(roc_auc_score(truth, score[known]))
        found["score_average_precision"] = float(average_precision_score(truth, score[known]))
        singled_out = shares[known] > 1 / len(score)
        found["score_precision"] = float(truth[singled_out].mean()) if singled_out.any() else None
        found["score_recall"] = float(singled_out[truth].mean())
        found["score_conflicting_mass"] = float(shares[known][truth].sum())
    return found


# --- What `data check` and `data show` tell of a benchmark

ALIGNED_ROWS = 3  # of a sheet


def statistics(benchmark: Benchmark) -> dict[str, dict[str, Any]]:
    """Per split: samples, those against the shortcut (None where unknown), flipped labels, samples per class."""
    found = {}
    for part in PARTS:
        split, truth = getattr(benchmark, part), benchmark.truth[part]
        kind = truth.conflicting(split.y)
        found[part] = {
            "rows": len(split),
            "conflicting": None if (kind < 0).any() else int(kind.sum()),
            "flipped": int(truth.flipped(split.y).sum()),
            "per_class": np.bincount(split.y.numpy(), minlength=len(benchmark.classes)).tolist(),
        }
    return found


def draw(benchmark: Benchmark, path: Path) -> Path:
    """The training set as the paper draws it: rows of aligned samples, then a row of conflicting ones.

    Where it is not known which rows conflict: rows of training samples, then a row of conflicting test samples.
    """
    from debiaser.data.benchmarks.civilcomments import Tokens
    from debiaser.report.figures import write_sheet  # matplotlib takes a while to load

    if isinstance(benchmark.train.read, Tokens):
        raise Problem(f"{benchmark.name} holds texts, so there is nothing to draw; see `debiaser data check`")
    unknown = bool((benchmark.truth["train"].conflicting(benchmark.train.y) < 0).all())
    upper, lower = ("training", "test") if unknown else ("aligned", "conflicting")

    def column(part: str, number: int, wanted: int, count: int) -> list[NDArray[np.uint8] | None]:
        split: Split = getattr(benchmark, part)
        kind = benchmark.truth[part].conflicting(split.y)
        rows = np.flatnonzero(((split.y == number) & (kind == wanted)).numpy())[:count]
        images: list[NDArray[np.uint8] | None] = list(as_images(split, rows))
        return images + [None] * (count - len(images))

    classes = range(len(benchmark.classes))
    above = [column("train", number, -1 if unknown else 0, ALIGNED_ROWS) for number in classes]
    below = [column("test" if unknown else "train", number, 1, 1) for number in classes]
    rows = [(upper, [images[row] for images in above]) for row in range(ALIGNED_ROWS)]
    return write_sheet(path, benchmark.classes, [*rows, (lower, [images[0] for images in below])])
