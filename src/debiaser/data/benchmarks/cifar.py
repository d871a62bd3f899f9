"""Corrupted CIFAR-10: class k goes with corruption k, in exact proportions by rank within each class (as LfF does)."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from debiaser.data import bias as inject
from debiaser.data import raw
from debiaser.data.benchmarks.corruptions import CHUNK, NAMES, VERSION, corrupt
from debiaser.data.cache import ArrayCache, user_cache
from debiaser.data.split import Benchmark
from debiaser.io import numpy_stream
from debiaser.progress import task

# --- CIFAR-10 as it is, without an injected shortcut: 45,000 / 5,000 / 10,000

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
VALID = 10  # one in so many training images validates


class Photographs(NamedTuple):
    """Images (n, 3, 32, 32) uint8, their classes (n,), and where in its file each lies (n,)."""

    images: NDArray[np.uint8]
    target: NDArray[np.int64]
    rows: NDArray[np.int64]


def parts(root: Path | None, data_seed: int) -> dict[str, Photographs]:
    """Train and valid, a seeded permutation of the training file cut at nine tenths, and test in file order."""
    cifar = raw.load("cifar10", root)
    order = numpy_stream(data_seed, "cifar10", "split").permutation(len(cifar.y_train))
    cut = len(order) - len(order) // VALID
    y_train, y_test = cifar.y_train.astype(np.int64), cifar.y_test.astype(np.int64)
    return {
        "train": Photographs(cifar.x_train, y_train[order[:cut]], order[:cut]),
        "valid": Photographs(cifar.x_train, y_train[order[cut:]], order[cut:]),
        "test": Photographs(cifar.x_test, y_test, np.arange(len(y_test))),
    }


def load_cifar10(root: Path | None, rho: float | None, data_seed: int, noise: float = 0.0) -> Benchmark:  # noqa: ARG001
    """Load the benchmark; `rho` has no meaning here, and the bias of an image is unknown."""
    made = {
        part: inject.Part(target, np.full((len(target), 1), -1), inject.bytes_reader(images, rows))
        for part, (images, target, rows) in parts(root, data_seed).items()
    }
    return inject.build_benchmark("cifar10", made, CLASSES, ("unknown",), noise, data_seed)


TEST_SEED = 0  # the test set is made once and shared by all rho and seeds


def load_ccifar(root: Path | None, rho: float, data_seed: int, noise: float = 0.0, severity: int = 5) -> Benchmark:
    """`severity`: severity of the corruptions, from 1 to 5. Corrupted images are made once and cached."""
    inject.check_share("rho", rho)
    made = {}
    for part, photographs in parts(root, data_seed).items():
        testing = part == "test"
        bias = inject.assign_bias(photographs.target, inject.TEST_RHO if testing else rho, len(NAMES))
        images = corrupted(photographs, bias, severity, TEST_SEED if testing else data_seed, part)
        made[part] = inject.Part(photographs.target, bias[:, None], inject.bytes_reader(images))
    return inject.build_benchmark("ccifar", made, CLASSES, ("corruption",), noise, data_seed)


def corrupted(
    photographs: Photographs, bias: NDArray[np.int64], severity: int, seed: int, part: str
) -> NDArray[np.uint8]:
    """(n, 3, 32, 32) each image under the corruption of its bias: from the cache, else made and kept there."""
    images, _, rows = photographs
    # All that decides the bytes; the raw set is checked before.
    decisive = f"{VERSION}/{severity}/{seed}/{raw.SETS['cifar10'].parts}", rows.tobytes().hex(), bias.tobytes().hex()
    cache = ArrayCache(user_cache("ccifar"), (len(bias), *images.shape[1:]), np.uint8, "images", *decisive)

    def compute(absent: NDArray[np.int64]) -> Iterator[tuple[NDArray[np.int64], NDArray[np.uint8]]]:
        absent = absent[np.argsort(bias[absent], kind="stable")]  # few corruptions at a time
        with task(f"corrupting CIFAR-10, {part}", len(absent), unit="images") as advance:
            for start in range(0, len(absent), CHUNK):
                chosen = absent[start : start + CHUNK]
                yield chosen, corrupt(images[rows[chosen]], bias[chosen], rows[chosen], severity, seed)
                advance(len(chosen))

    return np.array(cache.fill(compute))
