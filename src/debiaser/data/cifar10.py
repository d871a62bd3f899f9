"""CIFAR-10 as it is, without an injected shortcut: 45,000 / 5,000 / 10,000."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from debiaser.data import inject, raw
from debiaser.data.progress import report
from debiaser.data.split import Benchmark, Split, Truth
from debiaser.randomness import numpy_stream

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
VALID = 10  # one in so many training pictures validates


class Photographs(NamedTuple):
    """Pictures (n, 3, 32, 32) uint8, their classes (n,), and where in its file each lies (n,)."""

    pictures: NDArray[np.uint8]
    target: NDArray[np.int64]
    rows: NDArray[np.int64]


def parts(root: Path | None, data_seed: int) -> dict[str, Photographs]:
    """Train and valid, a seeded permutation of the training file cut at nine tenths, and test in file order."""
    cifar = raw.load("cifar10", root, report)
    order = numpy_stream(data_seed, "cifar10", "split").permutation(len(cifar.y_train))
    cut = len(order) - len(order) // VALID
    chosen = {"train": order[:cut], "valid": order[cut:], "test": np.arange(len(cifar.y_test))}
    sources = {
        part: (cifar.x_test, cifar.y_test) if part == "test" else (cifar.x_train, cifar.y_train) for part in chosen
    }
    return {
        part: Photographs(sources[part][0], sources[part][1][rows].astype(np.int64), rows)
        for part, rows in chosen.items()
    }


def load(root: Path | None, rho: float | None, data_seed: int, noise: float = 0.0) -> Benchmark:  # noqa: ARG001
    """The benchmark; `rho` means nothing here, and what the bias of a picture may be is unknown."""
    inject.check_share("noise", noise, closed=True)
    splits, truth = {}, {}
    for part, (pictures, target, rows) in parts(root, data_seed).items():
        rng = numpy_stream(data_seed, "cifar10", part, "noise")
        labels = target if part == "test" else inject.flip_labels(target, noise, len(CLASSES), rng)
        splits[part] = Split(inject.as_tensor(labels), inject.bytes_reader(pictures, rows), CLASSES)
        truth[part] = Truth(inject.as_tensor(target), torch.full((len(target), 1), -1))
    return Benchmark("cifar10", splits["train"], splits["valid"], splits["test"], truth, ("unknown",))
