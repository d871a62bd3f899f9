"""Folders, tar and zip archives read alike and in place: nothing in an archive decides where anything is written.

Only a gzipped tar, in which no file has a place of its own, is turned into a plain tar once, in the cache.
"""

import gzip
import hashlib
import os
import stat
import struct
import tarfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from debiaser.errors import brief
from debiaser.io import UNREADABLE, replacing

BAD = (*UNREADABLE, tarfile.TarError, struct.error)  # what is raised of an archive that is damaged
LARGEST = 1 << 31  # bytes of one file that are read into memory at once
BUFFER = 1 << 20
LARGEST_UNPACKED = 1 << 38  # bytes that a gzipped tar may unpack to, where nothing smaller is asked
ENDINGS = (".tar", ".zip", ".tar.gz", ".tgz")
LITTER = ("__MACOSX", "Thumbs.db")  # what operating systems leave behind, beside hidden files


class FormatError(Exception):
    """A file that is there but is not what it should be; `reason` continues a sentence that begins with the file."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.path.name} {self.reason}"


class Entry(NamedTuple):
    """Where a file's bytes lie: in which file on disk, how many, and what changes when they do (a time or a CRC).

    In a tar they lie at `offset`; in a zip, the file is called `member`. The path is a text: of two hundred thousand
    files, to make paths of them takes longer than to find them.
    """

    path: str
    size: int
    check: int = 0
    offset: int = -1
    member: str = ""


@dataclass(frozen=True, eq=False)
class Bundle:
    """The files of a folder or an archive, by their names inside it with `/` between folders."""

    path: Path
    entries: Mapping[str, Entry]

    def read(self, name: str) -> bytes:
        """The content of a file."""
        entry = self.entries[name]
        try:
            content = _content(entry) if entry.size <= LARGEST else b""
        except BAD as error:
            raise FormatError(self.path, f"holds {name!r}, which cannot be read ({brief(error)})") from error
        if len(content) != entry.size:
            raise FormatError(self.path, f"holds {name!r}, which is cut off, damaged or too large")
        return content

    def find(self, *names: str) -> str:
        """The first file, in order of names, that is called or ends in one of these; empty where none is."""
        ends = tuple(f"/{name}" for name in names)
        return next((each for each in sorted(self.entries) if f"/{each}".endswith(ends)), "")

    def based_on(self, *wanted: str) -> "Bundle":
        """The files named from the outermost folder that holds all the wanted folders; else as they are."""
        folders = {str(each) for name in self.entries for each in PurePosixPath(name).parents}
        for base in sorted(folders, key=lambda folder: (len(PurePosixPath(folder).parts), folder)):
            if all(str(PurePosixPath(base, each)) in folders for each in wanted):
                start = "" if base == "." else f"{base}/"
                inner = {n[len(start) :]: entry for n, entry in self.entries.items() if n.startswith(start)}
                return replace(self, entries=inner)
        return self

    @cached_property
    def identity(self) -> str:
        """A digest of names, sizes, places and times: another one once a file was added, removed or replaced."""
        digest = hashlib.blake2b(digest_size=16)
        for path in sorted({entry.path for entry in self.entries.values() if entry.member or entry.offset >= 0}):
            facts = Path(path).stat()
            digest.update(f"{facts.st_size} {facts.st_mtime_ns}\n".encode())
        for name, entry in sorted(self.entries.items()):
            digest.update(f"{name}\0{entry.offset} {entry.size} {entry.check}\n".encode(errors="surrogateescape"))
        return digest.hexdigest()


def _content(entry: Entry) -> bytes:
    if entry.member:
        with _opened_zip(entry.path, Path(entry.path).stat().st_mtime_ns, os.getpid()).open(entry.member) as packed:
            return packed.read(entry.size)
    with Path(entry.path).open("rb") as stream:
        stream.seek(max(0, entry.offset))
        return stream.read(entry.size)


@lru_cache(8)
def _opened_zip(path: str, _changed: int, _process: int) -> zipfile.ZipFile:
    """The archive, opened once, for all threads; a process that was forked opens it for itself."""
    return zipfile.ZipFile(path)


def open_bundle(path: Path, kept: Path, limit: int = LARGEST_UNPACKED) -> Bundle:
    """The files of a folder (and of the archives that lie in it) or of an archive; an unsafe archive is refused.

    `kept` is the folder for the plain form of a gzipped tar, which may hold at most `limit` bytes.
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
            start = stream.read(2)
        if start == b"PK":
            return dict(_zip_entries(path))
        return dict(_tar_entries(_plain_tar(path, kept, limit) if start == b"\x1f\x8b" else path, path))
    except BAD as error:
        why = f"is not a readable tar or zip archive, or is cut off or damaged ({brief(error)})"
        raise FormatError(path, why) from error


def read_members(archive: Path, wanted: Sequence[str], kept: Path, limit: int) -> dict[str, bytes]:
    """The contents of the wanted files of an archive, by their base names, wherever in it they lie."""
    bundle = open_bundle(archive, kept, limit)
    found = {each: bundle.find(each) for each in wanted}
    missing = [each for each, name in found.items() if not name]
    if missing:
        raise FormatError(archive, f"does not hold {', '.join(missing)}")
    if sum(bundle.entries[name].size for name in found.values()) > limit:
        raise FormatError(archive, f"unpacks to more than {limit} bytes")
    return {PurePosixPath(each).name: bundle.read(name) for each, name in found.items()}


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
                yield before + each.name, Entry(each.path, facts.st_size, facts.st_mtime_ns)


def _zip_entries(path: Path) -> Iterator[tuple[str, Entry]]:
    for member in _opened_zip(str(path), path.stat().st_mtime_ns, os.getpid()).infolist():
        mode = stat.S_IFMT(member.external_attr >> 16)
        name = _checked_name(path, member.filename, mode in (0, stat.S_IFREG, stat.S_IFDIR))
        if name and not member.is_dir():
            yield name, Entry(str(path), member.file_size, member.CRC, member=member.filename)


def _tar_entries(path: Path, named: Path) -> Iterator[tuple[str, Entry]]:
    """The files of a plain tar at `path`; what is wrong with it is told of the archive `named`."""
    end, count = path.stat().st_size, 0
    with tarfile.open(path, "r:") as archive:
        for member in archive:
            archive.members = []  # type: ignore[attr-defined]  # else all headers stay in memory
            name = _checked_name(named, member.name, member.isdir() or (member.isreg() and not member.issparse()))
            count += 1
            if member.offset_data + member.size > end:
                raise FormatError(named, f"is cut off inside {name!r}")
            if name and not member.isdir():
                yield name, Entry(str(path), member.size, offset=member.offset_data)
        last = archive.offset
    with path.open("rb") as stream:
        stream.seek(last)
        if any(stream.read(tarfile.BLOCKSIZE)):  # neither a header nor the zeros that end an archive
            raise FormatError(named, f"is cut off or damaged after {count:,} files")


def _plain_tar(path: Path, kept: Path, limit: int) -> Path:
    """The plain form of a gzipped tar in the folder `kept`: made once, and only of a safe archive."""
    facts, left = path.stat(), limit
    plain = kept / f"{path.name}-{facts.st_size}-{facts.st_mtime_ns}.tar"
    if plain.is_file():
        return plain
    with replacing(plain) as temporary:
        with temporary.open("wb") as target, gzip.open(path) as source:
            while True:
                try:  # damage is told as such, not as a file that could not be written
                    chunk = source.read(BUFFER)
                except BAD as error:
                    raise FormatError(path, "is cut off or damaged") from error
                left -= len(chunk)
                if left < 0:
                    raise FormatError(path, f"unpacks to more than {limit} bytes")
                if not chunk:
                    break
                target.write(chunk)
        dict(_tar_entries(temporary, path))
    return plain


def _checked_name(path: Path, name: str, ordinary: bool) -> str:
    """A name inside an archive with `/` between folders, empty for litter; a name that leads outside is refused."""
    parts = name.replace("\\", "/").split("/")
    if parts[0] == "" or ".." in parts or parts[0][1:2] == ":" or "\0" in name:
        raise FormatError(path, f"is unsafe: it names {name!r}, outside its own folder")
    if not ordinary:
        raise FormatError(path, f"is unsafe: {name!r} is a link or a device")
    parts = [part for part in parts if part not in ("", ".")]
    return "" if parts and (parts[-1].startswith(".") or set(parts) & set(LITTER)) else "/".join(parts)
