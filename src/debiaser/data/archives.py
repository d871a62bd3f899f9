"""Folders, tar and zip archives read alike and in place: nothing in an archive decides where anything is written.

An archive is never unpacked into files. Its index says where each file's bytes lie, and any thread reads them from
there. Only a compressed tar, which has no such places, is turned into a plain tar once, in the cache.
"""

import bz2
import gzip
import hashlib
import io
import lzma
import os
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path, PurePosixPath
from typing import IO, Any, NamedTuple

from debiaser.io import explain, replacing

DAMAGED = (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile, zipfile.BadZipFile, tarfile.TarError)
LOOSE, PLAIN, STORED, DEFLATED = "loose", "plain", "stored", "deflated"
LOCAL_HEADER = struct.Struct("<4s22xHH")  # of a file in a zip: its signature, and how long name and extras are
LARGEST = 1 << 31  # bytes of one file that are read into memory at once
BUFFER = 1 << 20
LARGEST_UNPACKED = 1 << 38  # bytes that a compressed tar may unpack to, where nothing smaller is asked
COMPRESSED: dict[bytes, Callable[[Path], Any]] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ": lzma.open}
ENDINGS = (".tar", ".zip", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
LITTER = ("__MACOSX", ".DS_Store", "Thumbs.db")


class FormatError(Exception):
    """A file that is there but is not what it should be; `reason` continues a sentence that begins with the file."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.path.name} {self.reason}"


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


def open_bundle(path: Path, kept: Path, limit: int = LARGEST_UNPACKED) -> Bundle:
    """The files of a folder (and of the archives that lie in it) or of an archive; an unsafe archive is refused.

    `kept` is the folder for the plain form of a compressed tar, which may hold at most `limit` bytes.
    """
    if not path.is_dir():
        return Bundle(path, open_archive(path, kept, limit))
    loose = dict(_walk(path, "", set()))
    entries: dict[str, Entry] = {}
    for name in sorted(loose):
        if name.lower().endswith(ENDINGS):
            before = f"{name.rpartition('/')[0]}/".lstrip("/")
            entries |= {before + inner: each for inner, each in open_archive(path / name, kept, limit).items()}
    return Bundle(path, {**entries, **loose})


def open_archive(path: Path, kept: Path, limit: int = LARGEST_UNPACKED) -> dict[str, Entry]:
    """Where the files of an archive lie, by name; its kind is told by its content, not by its ending."""
    try:
        with path.open("rb") as stream:
            start = stream.read(6)
        if start.startswith(b"PK"):
            return dict(_zip_entries(path))
        packing = next((each for each in COMPRESSED if start.startswith(each)), None)
        if packing is None:
            return dict(_tar_entries(path, path))
        return _plain_tar(path, COMPRESSED[packing], kept, limit)
    except OSError as error:
        raise FormatError(path, f"cannot be read ({error.strerror or error})") from error
    except (*DAMAGED, NotImplementedError, ValueError) as error:
        raise FormatError(path, "is not a readable tar or zip archive, or is cut off or damaged") from error


def read_members(archive: Path, wanted: Collection[str], limit: int) -> dict[str, bytes]:
    """The contents of the wanted files of a tar or zip archive, by their base names, wherever in it they lie.

    At most `limit` bytes are unpacked; an unsafe archive, or one that lacks a file, is refused.
    """
    found: dict[str, bytes] = {}
    total = 0
    try:
        for name, size, read in _zip_members(archive) if zipfile.is_zipfile(archive) else _tar_members(archive):
            ours = next((each for each in wanted if f"/{name}".endswith(f"/{each}")), None)
            total += size
            if total > limit:
                raise FormatError(archive, f"unpacks to more than {limit} bytes")
            if ours is not None:
                found.setdefault(ours, read())
    except (*DAMAGED, NotImplementedError) as error:
        raise FormatError(archive, "is not a readable tar or zip archive, or is cut off or damaged") from error
    missing = [name for name in wanted if name not in found]
    if missing:
        raise FormatError(archive, f"does not hold {', '.join(missing)}")
    return {PurePosixPath(name).name: content for name, content in found.items()}


def _zip_members(path: Path) -> Iterator[tuple[str, int, Callable[[], bytes]]]:
    """Name, unpacked size and a way to read each file."""
    for name, entry in _zip_entries(path):
        yield name, entry.size, partial(_content, path, name, entry)


def _tar_members(path: Path) -> Iterator[tuple[str, int, Callable[[], bytes]]]:
    with tarfile.open(path) as archive:
        for member in archive:
            name = _safe(path, member.name, member.isreg() or member.isdir())
            stream = archive.extractfile(member)
            size = member.size + tarfile.BLOCKSIZE  # its header counts too: a billion empty files are a bomb as well
            yield name, size, stream.read if stream else bytes


def _walk(folder: Path, before: str, above: set[tuple[int, int]]) -> Iterator[tuple[str, Entry]]:
    """The loose files below a folder; a link that leads back into itself is not followed."""
    own = folder.stat().st_dev, folder.stat().st_ino
    if own in above:
        return
    with os.scandir(folder) as found:
        for each in found:
            if each.name in LITTER or each.name.startswith("."):
                continue
            if each.is_dir():
                yield from _walk(Path(each.path), f"{before}{each.name}/", above | {own})
            elif each.is_file():
                facts = each.stat()
                yield (
                    before + each.name,
                    Entry(LOOSE, Path(each.path), 0, facts.st_size, facts.st_size, facts.st_mtime_ns),
                )


def _zip_entries(path: Path) -> Iterator[tuple[str, Entry]]:
    kinds = {zipfile.ZIP_STORED: STORED, zipfile.ZIP_DEFLATED: DEFLATED}
    seen: set[str] = set()
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            mode = stat.S_IFMT(member.external_attr >> 16)
            name = _safe(path, member.filename, mode in (0, stat.S_IFREG, stat.S_IFDIR))
            if member.is_dir() or _is_litter(name):
                continue
            _refuse_twice(path, name, seen)
            if member.flag_bits & 1:
                raise FormatError(path, f"is encrypted: {name!r} needs a password")
            if member.compress_type not in kinds:
                raise FormatError(path, f"packs {name!r} in a way that is not known here; pack it anew")
            sizes = member.compress_size, member.file_size
            yield name, Entry(kinds[member.compress_type], path, member.header_offset, *sizes, member.CRC)


def _tar_entries(path: Path, named: Path) -> Iterator[tuple[str, Entry]]:
    """The files of a plain tar at `path`; what is wrong with it is told of the archive `named`."""
    seen: set[str] = set()
    end = path.stat().st_size
    with tarfile.open(path, "r:") as archive:
        for member in archive:
            archive.members = []  # type: ignore[attr-defined]  # else all headers stay in memory
            name = _safe(named, member.name, member.isdir() or (member.isreg() and not member.issparse()))
            if member.isdir() or _is_litter(name):
                continue
            _refuse_twice(named, name, seen)
            if member.offset_data + member.size > end:
                raise FormatError(named, f"is cut off inside {name!r}")
            yield name, Entry(PLAIN, path, member.offset_data, member.size, member.size)
        last = archive.offset
    with path.open("rb") as stream:
        stream.seek(last)
        if any(stream.read(tarfile.BLOCKSIZE)):  # neither a header nor the zeros that end an archive
            raise FormatError(named, f"is cut off or damaged after {len(seen):,} files")


def _plain_tar(path: Path, unpack: Callable[[Path], Any], kept: Path, limit: int) -> dict[str, Entry]:
    """The files of a compressed tar, from its plain form in the folder `kept`: made once, checked, then kept."""
    facts = path.stat()
    plain = kept / f"{path.name}-{facts.st_size}-{facts.st_mtime_ns}.tar"
    if not plain.is_file():
        with replacing(plain) as temporary:
            with temporary.open("wb") as target, unpack(path) as source:
                done = 0
                while chunk := _unpacked(path, source):
                    done += len(chunk)
                    if done > limit:
                        raise FormatError(path, f"unpacks to more than {limit} bytes")
                    try:
                        target.write(chunk)
                    except OSError as error:
                        raise explain(error, plain) from error
            dict(_tar_entries(temporary, path))  # an unsafe archive is refused before anything is kept
    return dict(_tar_entries(plain, path))


def _unpacked(path: Path, source: Any) -> bytes:
    """The next piece; damage is told as such, not as a file that could not be written."""
    try:
        piece: bytes = source.read(BUFFER)
    except (*DAMAGED, OSError, ValueError) as error:
        raise FormatError(path, "is cut off or damaged") from error
    return piece


def _safe(path: Path, name: str, ordinary: bool) -> str:
    parts = name.replace("\\", "/").split("/")
    if parts[0] == "" or ".." in parts or parts[0][1:2] == ":" or "\0" in name:
        raise FormatError(path, f"is unsafe: it names {name!r}, outside its own folder")
    if not ordinary:
        raise FormatError(path, f"is unsafe: {name!r} is a link or a device")
    return "/".join(part for part in parts if part not in ("", "."))


def _refuse_twice(path: Path, name: str, seen: set[str]) -> None:
    if name in seen:
        raise FormatError(path, f"holds {name!r} twice")
    seen.add(name)


def _is_litter(name: str) -> bool:
    """Whether a file is what an operating system left behind."""
    parts = name.split("/")
    return any(part in LITTER for part in parts) or parts[-1].startswith(".")
