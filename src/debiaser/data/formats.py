"""Reading files that strangers wrote: idx, npz and tar, bounded in size and unable to run or overwrite anything."""

import errno
import gzip
import io
import logging
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
from typing import Any

import numpy as np
import numpy.typing as npt

from debiaser.errors import printable
from debiaser.files import UNREADABLE

Bytes = npt.NDArray[np.uint8]
Shape = tuple[int, ...]

NPY_HEADER = 4096  # more than the header of any plain array needs
BAD_HEADER = (ValueError, MemoryError, OverflowError, SyntaxError, tokenize.TokenError)  # what numpy raises of one
DAMAGED = (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile, zipfile.BadZipFile, tarfile.TarError)
log = logging.getLogger("debiaser")


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


def kept_arrays(path: Path) -> dict[str, npt.NDArray[Any]] | None:
    """What we kept in an `.npz` to save work; None where nothing is, or it is damaged, which is said."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            return dict(stored)
    except FileNotFoundError:
        return None
    except UNREADABLE as error:
        why = printable(str(error)) or type(error).__name__
        log.warning("%s is damaged (%s); what was in it is made again", path, why)
        return None


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
