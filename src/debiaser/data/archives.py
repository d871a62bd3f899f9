"""Folders, tar and zip archives read alike and in place: nothing in an archive decides where anything is written.

An archive is never unpacked into files. Its index says where each file's bytes lie, and any thread reads them from
there. Only a compressed tar, which has no such places, is turned into a plain tar once, in the cache.
"""

import bz2
import gzip
import lzma
import os
import stat
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from debiaser.data.bundle import DEFLATED, LOOSE, PLAIN, STORED, Bundle, Entry
from debiaser.data.formats import DAMAGED, FormatError
from debiaser.files import explain, replacing

CHUNK = 1 << 20
LARGEST = 1 << 38  # bytes that a compressed tar may unpack to, where nothing smaller is asked
COMPRESSED: dict[bytes, Callable[[Path], Any]] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ": lzma.open}
ENDINGS = (".tar", ".zip", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
LITTER = ("__MACOSX", ".DS_Store", "Thumbs.db")


def open_bundle(path: Path, kept: Path, limit: int = LARGEST) -> Bundle:
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


def open_archive(path: Path, kept: Path, limit: int = LARGEST) -> dict[str, Entry]:
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
        piece: bytes = source.read(CHUNK)
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
