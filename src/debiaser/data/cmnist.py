"""Colored MNIST as the released generator makes it: file order, 54,000 / 6,000 / 10,000, ten fixed colours (D4, D5)."""

from pathlib import Path

import numpy as np

from debiaser.data import raw
from debiaser.data.coloured import Grey, colour_benchmark
from debiaser.data.split import Benchmark

TRAIN = 54_000
TEST_SEED = 0  # the test set is made once and shared by all rho and seeds


def parts(root: Path | None) -> dict[str, Grey]:
    """The grey pictures of each split."""
    mnist = raw.load("mnist", root)
    y_train, y_test = mnist.y_train.astype(np.int64), mnist.y_test.astype(np.int64)
    return {
        "train": Grey(mnist.x_train[:TRAIN], y_train[:TRAIN]),
        "valid": Grey(mnist.x_train[TRAIN:], y_train[TRAIN:]),
        "test": Grey(mnist.x_test, y_test),
    }


def load(root: Path | None, rho: float, data_seed: int, noise: float = 0.0) -> Benchmark:
    """The benchmark; the same bytes for the same seed."""
    return colour_benchmark("cmnist", parts(root), rho, data_seed, noise, test_seed=TEST_SEED)


def load_colour(root: Path | None, rho: float, data_seed: int, noise: float = 0.0) -> Benchmark:
    """Its twin: the same pictures, with colour as the target and the digit as the attribute that goes with it."""
    return colour_benchmark("cmnist-colour", parts(root), rho, data_seed, noise, True, TEST_SEED)
