"""Corrupted CIFAR-10: class k goes with corruption k, in exact proportions by rank within each class (as LfF does)."""

import hashlib
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from debiaser.data import bias as inject
from debiaser.data import sources as raw
from debiaser.data.benchmarks.corruptions import NAMES, VERSION, corrupt
from debiaser.data.fetch import report
from debiaser.data.formats import BAD_HEADER
from debiaser.data.split import Benchmark, Split, Truth
from debiaser.io import explain, locked, numpy_stream, replacing

# --- CIFAR-10 as it is, without an injected shortcut: 45,000 / 5,000 / 10,000

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


def load_cifar10(root: Path | None, rho: float | None, data_seed: int, noise: float = 0.0) -> Benchmark:  # noqa: ARG001
    """The benchmark; `rho` means nothing here, and what the bias of a picture may be is unknown."""
    inject.check_share("noise", noise, closed=True)
    splits, truth = {}, {}
    for part, (pictures, target, rows) in parts(root, data_seed).items():
        rng = numpy_stream(data_seed, "cifar10", part, "noise")
        labels = target if part == "test" else inject.flip_labels(target, noise, len(CLASSES), rng)
        splits[part] = Split(inject.as_tensor(labels), inject.bytes_reader(pictures, rows), CLASSES)
        truth[part] = Truth(inject.as_tensor(target), torch.full((len(target), 1), -1))
    return Benchmark("cifar10", splits["train"], splits["valid"], splits["test"], truth, ("unknown",))


TEST_SEED = 0  # the test set is made once and shared by all rho and seeds


def load_ccifar(root: Path | None, rho: float, data_seed: int, noise: float = 0.0, severity: int = 5) -> Benchmark:
    """The benchmark; the same bytes for the same seed. The corrupted pictures are made once and kept in the cache."""
    inject.check_share("rho", rho)
    inject.check_share("noise", noise, closed=True)
    splits, truth = {}, {}
    for part, photographs in parts(root, data_seed).items():
        testing = part == "test"
        target = photographs.target
        bias = inject.assign_bias(target, inject.TEST_RHO if testing else rho, len(NAMES))
        pictures = corrupted(photographs, bias, severity, TEST_SEED if testing else data_seed, part)
        rng = numpy_stream(data_seed, "ccifar", part, "noise")
        labels = target if testing else inject.flip_labels(target, noise, len(CLASSES), rng)
        splits[part] = Split(inject.as_tensor(labels), inject.bytes_reader(pictures), CLASSES)
        truth[part] = Truth(inject.as_tensor(target), inject.as_tensor(bias)[:, None])
    return Benchmark("ccifar", splits["train"], splits["valid"], splits["test"], truth, ("corruption",))


def corrupted(
    photographs: Photographs, bias: NDArray[np.int64], severity: int, seed: int, part: str
) -> NDArray[np.uint8]:
    """(n, 3, 32, 32) each picture under the corruption of its bias: from the cache, else made and kept there."""
    path = raw.cache().parent / "ccifar" / f"{part}-{identity(photographs, bias, severity, seed)}.npy"
    with locked(path.with_suffix(".lock")):
        kept = _read(path, (len(bias), *photographs.pictures.shape[1:]))
        if kept is not None:
            return kept
        what, total = f"corrupting CIFAR-10, {part}", photographs.pictures[0].size * len(bias)
        done = 0

        def tell(pictures: int) -> None:
            nonlocal done
            done += pictures * photographs.pictures[0].size
            report(what, done, total)

        made = corrupt(photographs.pictures[photographs.rows], bias, photographs.rows, severity, seed, tell)
        with replacing(path) as temporary, temporary.open("wb") as stream:
            np.save(stream, made, allow_pickle=False)
        return made


def identity(photographs: Photographs, bias: NDArray[np.int64], severity: int, seed: int) -> str:
    """A name for the corrupted pictures, made of everything that decides their bytes; the raw set is checked before."""
    source = raw.SETS["cifar10"].parts
    digest = hashlib.blake2b(f"{VERSION}/{severity}/{seed}/{source}".encode(), digest_size=10)
    for array in (photographs.rows, bias):
        digest.update(np.ascontiguousarray(array, dtype=np.int64).data)
    return digest.hexdigest()


def _read(path: Path, shape: tuple[int, ...]) -> NDArray[np.uint8] | None:
    """The kept pictures, or None where there are none or the file is not what it should be."""
    try:
        pictures: NDArray[np.uint8] = np.load(path, allow_pickle=False)
    except FileNotFoundError:
        return None
    except (EOFError, *BAD_HEADER):  # damaged: made anew
        return None
    except OSError as error:
        raise explain(error, path) from error
    return pictures if pictures.shape == shape and pictures.dtype == np.uint8 else None
