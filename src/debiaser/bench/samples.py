"""The pictures that a run keeps for its page."""

from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from debiaser.data import Benchmark, Split
from debiaser.data.civilcomments import Tokens
from debiaser.randomness import numpy_stream

Vector: TypeAlias = NDArray[Any]
SHOWN = 112  # pixels of a side on the page, at most
PER_CLASS = 8  # highest- and lowest-scored pictures kept per class


def as_pictures(split: Split, rows: Vector) -> NDArray[np.uint8]:
    """(m, h, w, 3) the inputs of these rows as 8-bit pictures, large ones reduced; one black dot each for texts.

    Features show the pictures that they were made of.
    """
    read = getattr(split.read, "pictures", split.read)
    blank = isinstance(read, Tokens) or not len(rows)
    x: Tensor = torch.zeros(len(rows), 3, 1, 1) if blank else read(torch.from_numpy(rows))
    if max(x.shape[-2:]) > SHOWN:
        x = F.interpolate(x, scale_factor=SHOWN / max(x.shape[-2:]), mode="area", recompute_scale_factor=True)
    return (x * 255).round().clamp(0, 255).byte().permute(0, 2, 3, 1).numpy()


def train_pictures(train: Split, vectors: dict[str, Vector], bias: Vector) -> dict[str, Vector]:
    """The highest- and lowest-scored rows of each class."""
    score, label = vectors["score"], vectors["label"]
    rows = np.zeros(0, dtype=np.int64)
    if not np.isnan(score).any():
        order = np.argsort(-score, kind="stable")
        ranked = [order[label[order] == number] for number in range(len(train.classes))]
        rows = np.concatenate([np.unique(np.r_[each[:PER_CLASS], each[-PER_CLASS:]]) for each in ranked])
    return {
        "train_images": as_pictures(train, rows),
        "train_rows": rows,
        "train_labels": label[rows],
        "train_scores": score[rows],
        "train_conflicting": vectors["conflicting"][rows],
        "train_bias": bias[rows],
    }


def test_pictures(benchmark: Benchmark, probabilities: Vector, data_seed: int) -> dict[str, Vector]:
    """For each class three test pictures against the shortcut and one that follows it; the same for all methods."""
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
        "test_images": as_pictures(benchmark.test, rows),
        "test_rows": rows,
        "test_labels": y.numpy()[rows],
        "test_bias": truth.bias[:, 0].numpy()[rows],
        "test_conflicting": kind[rows],
        "test_probabilities": probabilities[rows],
    }
