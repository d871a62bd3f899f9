"""Samples of a benchmark: those that a run keeps for its page, and what `data check` and `data show` tell of a set."""

from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from debiaser.data.benchmarks.civilcomments import Tokens
from debiaser.data.split import Benchmark, Split
from debiaser.errors import Problem
from debiaser.io import numpy_stream
from debiaser.paper.results import table

Vector: TypeAlias = NDArray[Any]
SHOWN = 112  # pixels of a side on the page, at most
PER_CLASS = 8  # highest- and lowest-scored images kept per class
ALIGNED_ROWS = 3  # of a sheet


def as_images(split: Split, rows: Vector) -> NDArray[np.uint8]:
    """(m, h, w, 3) the inputs of these samples as 8-bit images, large ones reduced; one black dot each for texts.

    Features show the images that they were made of.
    """
    read = getattr(split.read, "pictures", split.read)
    blank = isinstance(read, Tokens) or not len(rows)
    x: Tensor = torch.zeros(len(rows), 3, 1, 1) if blank else read(torch.from_numpy(rows))
    if max(x.shape[-2:]) > SHOWN:
        x = F.interpolate(x, scale_factor=SHOWN / max(x.shape[-2:]), mode="area", recompute_scale_factor=True)
    return (x * 255).round().clamp(0, 255).byte().permute(0, 2, 3, 1).numpy()


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


def statistics(benchmark: Benchmark) -> dict[str, dict[str, Any]]:
    """Per split: rows, rows that go against the shortcut (None where unknown), flipped labels, rows per class."""
    found = {}
    for part in ("train", "valid", "test"):
        split, truth = getattr(benchmark, part), benchmark.truth[part]
        kind = truth.conflicting(split.y)
        found[part] = {
            "rows": len(split),
            "conflicting": None if (kind < 0).any() else int(kind.sum()),
            "flipped": int(truth.flipped(split.y).sum()),
            "per_class": np.bincount(split.y.numpy(), minlength=len(benchmark.classes)).tolist(),
        }
    return found


def portions(benchmark: Benchmark) -> list[dict[str, Any]]:
    """Where attributes are overlapping traits: for each, how many rows have it and the percentage of the second class.

    Over all splits together, beside what the paper prints (its table `portion of toxic`).
    """
    parts = list(benchmark.truth.values())
    if not all(truth.overlapping for truth in parts):
        return []
    target, traits = torch.cat([truth.target for truth in parts]), torch.cat([truth.bias for truth in parts])
    printed = {each.variant.lower(): each.mean for each in table("portion of toxic") if each.dataset == benchmark.name}
    found = []
    for name, trait in zip(benchmark.attributes, traits.T, strict=True):
        rows = target[trait == 1]
        share = float(rows.double().mean()) * 100 if len(rows) else None
        published = printed.get(name.lower().replace("_", " "))
        found.append({"name": name, "rows": len(rows), "percent": share, "published": published})
    return found


def draw(benchmark: Benchmark, path: Path) -> Path:
    """The training set as the paper draws it: rows of aligned samples, then a row of conflicting ones.

    Where it is not known which rows conflict: rows of training samples, then a row of conflicting test samples.
    """
    from debiaser.report.figures import write_sheet  # matplotlib takes a while to load

    if isinstance(benchmark.train.read, Tokens):
        raise Problem(f"{benchmark.name} holds texts, so there is nothing to draw; see `debiaser data check`")
    unknown = bool((benchmark.truth["train"].conflicting(benchmark.train.y) < 0).all())
    upper, lower = ("training", "test") if unknown else ("aligned", "conflicting")

    def column(part: str, number: int, wanted: int, count: int) -> list[np.ndarray | None]:
        split: Split = getattr(benchmark, part)
        kind = benchmark.truth[part].conflicting(split.y)
        rows = np.flatnonzero(((split.y == number) & (kind == wanted)).numpy())[:count]
        images: list[np.ndarray | None] = list(as_images(split, rows))
        return images + [None] * (count - len(images))

    classes = range(len(benchmark.classes))
    above = [column("train", number, -1 if unknown else 0, ALIGNED_ROWS) for number in classes]
    below = [column("test" if unknown else "train", number, 1, 1) for number in classes]
    rows = [(upper, [images[row] for images in above]) for row in range(ALIGNED_ROWS)]
    return write_sheet(path, benchmark.classes, [*rows, (lower, [images[0] for images in below])])
