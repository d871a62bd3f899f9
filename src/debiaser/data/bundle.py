"""Files by name, wherever their bytes lie: loose in a folder, or a stretch of an archive."""

import hashlib
import io
import os
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import IO, Any, NamedTuple

from debiaser.data.formats import FormatError

LOOSE, PLAIN, STORED, DEFLATED = "loose", "plain", "stored", "deflated"
LOCAL_HEADER = struct.Struct("<4s22xHH")  # of a file in a zip: its signature, and how long name and extras are
LARGEST = 1 << 31  # bytes of one file that are read into memory at once
BUFFER = 1 << 20


class Entry(NamedTuple):
    """Where a file's bytes lie: how they are kept, in which file on disk and from where, packed and unpacked size.

    `check` is the CRC-32 that a zip keeps, or the time at which a loose file was changed.
    """

    how: str
    path: Path
    offset: int
    packed: int
    size: int
    check: int = 0


@dataclass(frozen=True, eq=False)
class Bundle:
    """The files of a folder or an archive, by their names inside it with `/` between folders."""

    path: Path
    entries: Mapping[str, Entry]

    def read(self, name: str) -> bytes:
        """The content of a file."""
        entry = self.entries[name]
        if entry.size > LARGEST:
            raise FormatError(self.path, f"holds {name!r} of {entry.size} bytes, too many to read at once")
        try:
            return entry.path.read_bytes() if entry.how == LOOSE else _content(self.path, name, entry)
        except OSError as error:
            raise self._unread(name, error) from error

    def open(self, name: str) -> IO[bytes]:
        """The content of a file as a stream."""
        entry = self.entries[name]
        try:
            if entry.how == LOOSE:
                return entry.path.open("rb")
            if entry.how == PLAIN:
                return io.BufferedReader(_Stretch(entry), BUFFER)
        except OSError as error:
            raise self._unread(name, error) from error
        return io.BytesIO(self.read(name))

    def end(self, name: str, count: int) -> bytes:
        """The last bytes of a file, at most `count`."""
        with self.open(name) as stream:
            stream.seek(max(0, self.entries[name].size - count))
            return stream.read(count)

    def below(self, folder: str) -> "Bundle":
        """The files below a folder, named from there."""
        start = f"{folder}/" if folder else ""
        return replace(self, entries={n[len(start) :]: e for n, e in self.entries.items() if n.startswith(start)})

    def based_on(self, *wanted: str) -> "Bundle":
        """The files named from the outermost folder that holds all the wanted files and folders; else as they are."""
        folders = {name.rpartition("/")[0] for name in self.entries}
        folders |= {str(each) for folder in folders for each in PurePosixPath(folder).parents}
        folders = {"" if folder == "." else folder for folder in folders}
        for base in sorted(folders, key=lambda folder: (len(PurePosixPath(folder).parts), folder)):
            paths = [f"{base}/{name}".lstrip("/") for name in wanted]
            if all(path in folders or path in self.entries for path in paths):
                return self.below(base)
        return self

    @cached_property
    def identity(self) -> str:
        """A digest of names, sizes, places and times: another one once a file was added, removed or replaced."""
        digest = hashlib.blake2b(digest_size=16)
        for path in sorted({entry.path for entry in self.entries.values() if entry.how != LOOSE}):
            digest.update(f"{path.stat().st_size} {path.stat().st_mtime_ns}\n".encode())
        for name, entry in sorted(self.entries.items()):
            digest.update(f"{name}\0{entry.offset} {entry.size} {entry.check}\n".encode(errors="surrogateescape"))
        return digest.hexdigest()

    def _unread(self, name: str, error: OSError) -> FormatError:
        return FormatError(self.path, f"holds {name!r}, which cannot be read ({error.strerror})")


class _Stretch(io.RawIOBase):
    """A stretch of a file as a file of its own."""

    def __init__(self, entry: Entry) -> None:
        self._file, self._start, self._size, self._at = entry.path.open("rb"), entry.offset, entry.size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        return self._at

    def readinto(self, buffer: Any, /) -> int:
        self._file.seek(self._start + self._at)
        found = self._file.read(max(0, min(len(buffer), self._size - self._at)))
        buffer[: len(found)] = found
        self._at += len(found)
        return len(found)

    def close(self) -> None:
        self._file.close()
        super().close()


def _content(archive: Path, name: str, entry: Entry) -> bytes:
    """The bytes of a file inside an archive, checked."""
    zipped = entry.how != PLAIN
    with entry.path.open("rb") as stream:
        stream.seek(entry.offset)
        if zipped:
            signature, *lengths = LOCAL_HEADER.unpack(stream.read(LOCAL_HEADER.size).ljust(LOCAL_HEADER.size))
            if signature != b"PK\x03\x04":
                raise FormatError(archive, f"is damaged: {name!r} is not where its index says")
            stream.seek(sum(lengths), os.SEEK_CUR)
        content = stream.read(entry.packed)
    if entry.how == DEFLATED:
        try:
            content = zlib.decompressobj(-15).decompress(content, entry.size + 1)  # one more: a bomb is not unpacked
        except zlib.error as error:
            raise FormatError(archive, f"is damaged inside {name!r}") from error
    if len(content) != entry.size or (zipped and zlib.crc32(content) != entry.check):
        raise FormatError(archive, f"is cut off or damaged inside {name!r}")
    return content
