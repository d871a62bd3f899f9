"""Atomic file writes, locks, random streams derived from a seed and a name, and Python subprocesses."""

import errno
import hashlib
import json
import logging
import lzma
import mmap
import os
import re
import secrets
import sys
import tokenize
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

from debiaser.errors import Problem

if TYPE_CHECKING:
    import numpy as np
    import torch

log = logging.getLogger("debiaser")

# What numpy, zipfile and json raise of a file that is not whole or not ours: odd headers, packing, passwords, nesting.
UNREADABLE = (
    *(OSError, EOFError, ValueError, KeyError, TypeError, RuntimeError, MemoryError, OverflowError, SyntaxError),
    *(tokenize.TokenError, zipfile.BadZipFile, zlib.error, lzma.LZMAError),
)


def explain(error: OSError, path: Path) -> Problem:
    """The clear line for a file system that refuses."""
    reasons = {
        errno.ENOSPC: "the disk is full; free some space, then run the same command again",
        errno.EDQUOT: "the disk quota is used up; free some space, then run the same command again",
        errno.EROFS: "the file system is read-only; choose another folder",
        errno.EACCES: "no permission to write there; choose another folder",
        errno.EPERM: "no permission to write there; choose another folder",
        errno.ENOTDIR: "a part of that path is a file, not a folder; choose another folder",
        errno.EEXIST: "a file of that name is in the way; choose another folder",
    }
    return Problem(f"cannot write {path}: {reasons.get(error.errno or 0, error.strerror or str(error))}")


def make_folder(path: Path) -> Path:
    """The folder, made if it was not there."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise explain(error, path) from error
    return path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary file beside `path` to write to; on success it becomes `path`, on failure it vanishes.

    It is locked for as long as it is written, so that one that a kill left behind is known and swept.
    """
    path = path.resolve()  # a link stays a link to what it names
    make_folder(path.parent)
    if path.exists() and not path.is_file():
        raise Problem(f"cannot write {path}: it is there and is not an ordinary file; choose another name")
    sweep(path.parent)
    temporary, descriptor = path.parent / f".{secrets.token_hex(8)}.part", -1
    try:
        while descriptor < 0:
            descriptor = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
            lock(descriptor)
            if not os.fstat(descriptor).st_nlink:  # swept before it was locked
                os.close(descriptor)
                descriptor = -1
        yield temporary
        with temporary.open("rb+") as written:
            os.fsync(written.fileno())
        temporary.replace(path)
    except OSError as error:
        raise explain(error, path) from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        if descriptor >= 0:
            os.close(descriptor)


@cache
def sweep(folder: Path) -> None:
    """Remove the temporary files that killed processes left in a folder; once in the life of a process."""
    for path in folder.glob(".*.part"):
        if re.fullmatch(r"\.[0-9a-f]{16}\.part", path.name):
            with suppress(OSError), path.open("r+b") as stream:
                if lock(stream.fileno()):
                    path.unlink(missing_ok=True)


def lock(descriptor: int) -> bool:
    """Whether the open file is now locked by us; not if another holds it, or where files cannot be locked."""
    try:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (ImportError, OSError):  # Windows has no fcntl
        return False
    return True


@contextmanager
def locked(path: Path, waiting: str = "", patience: float = -1) -> Iterator[None]:
    """The lock file held by us alone; where another process has it, we say so in these words, and wait.

    `patience` is for how many seconds; -1 is for ever.
    """
    make_folder(path.parent)
    file_lock = FileLock(path)
    try:
        try:
            file_lock.acquire(timeout=0)
        except Timeout:
            if waiting:
                log.warning("%s", waiting)
            file_lock.acquire(timeout=patience)
    except Timeout as error:
        raise Problem(f"another process has held {path} for too long; end it, then try again") from error
    except OSError as error:
        raise explain(error, path) from error
    except NotImplementedError as error:
        raise Problem(f"cannot write {path}: its file system has no locks; choose another folder") from error
    try:
        yield
    finally:
        with suppress(OSError):
            file_lock.release()


# --- Seals: a file that holds a digest of its own bytes, so that damaged ones are never taken for what was written

SEAL = "<debiaser:" + "0" * 32 + ":debiaser>"  # what a writer puts anywhere into a file, for `seal` to fill in


class Damaged(Problem, ValueError):
    """A file whose bytes are not those that were written."""


def seal(path: Path) -> None:
    """Put the digest of the file's bytes into the place that was left for it."""
    at, _, digest = _sealed(path)
    with path.open("r+b") as stream:
        stream.seek(at)
        stream.write(digest)


def check_seal(path: Path) -> None:
    """Refuse a file whose bytes are not those that were sealed; one that has no seal (of earlier versions) may pass."""
    at, found, digest = _sealed(path)
    if at >= 0 and found != digest:
        raise Damaged(f"{path} is damaged: its bytes are not those that were written; delete it, then make it again")


def _sealed(path: Path) -> tuple[int, bytes, bytes]:
    """Where in the file its digest is (-1: nowhere), that digest, and the one of all other bytes."""
    before, after = SEAL.encode().split(b"0" * 32)
    with path.open("rb") as stream:
        if not os.fstat(stream.fileno()).st_size:
            return -1, b"", b""
        with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
            at = content.find(before) + len(before)
            if at < len(before):  # a bit of these words may be what is damaged, but not of both
                at = content.find(after) - 32
            if at < 0:
                return -1, b"", b""
            digest, found = hashlib.blake2b(digest_size=16), content[at : at + 32]
            with memoryview(content) as view, view[:at] as head, view[at + 32 :] as tail:
                for part in (head, b"0" * 32, tail):
                    digest.update(part)
            return at, found, digest.hexdigest().encode()


def write_bytes(path: Path, content: bytes) -> None:
    """The file with this content, atomically; sealed, where it leaves a place for that."""
    with replacing(path) as temporary:
        temporary.write_bytes(content)
        if SEAL.encode() in content:
            seal(temporary)


def write_text(path: Path, content: str) -> None:
    """The file with this text, atomically."""
    write_bytes(path, content.encode())


def write_json(path: Path, content: Any) -> None:
    """The file with this content as indented JSON, atomically."""
    write_text(path, json.dumps(content, indent=2, sort_keys=True) + "\n")


def write_arrays(path: Path, **arrays: "np.ndarray") -> None:
    """An `.npz` of plain arrays (no pickle), sealed."""
    import numpy as np  # most who write files write no arrays, and it takes a while to load

    with replacing(path) as temporary:
        with temporary.open("wb") as stream:
            np.savez_compressed(stream, allow_pickle=False, **arrays)
        with zipfile.ZipFile(temporary, "a") as archive:
            archive.comment = SEAL.encode()
        seal(temporary)


def read_arrays(path: Path) -> "dict[str, np.ndarray]":
    """The arrays of an `.npz` that `write_arrays` wrote; `UNREADABLE` has what is raised of a damaged one."""
    import numpy as np

    check_seal(path)
    with np.load(path, allow_pickle=False) as stored:
        return dict(stored)


# --- What people's data asks for: files for their owner, cells that no spreadsheet runs

_RUNS = re.compile(r"'*[=+\-@\t\r]")
_NUMBER = re.compile(r"[+-]?\d+(\.\d*)?([eE][+-]?\d+)?")


@contextmanager
def private() -> Iterator[None]:
    """What is written meanwhile can be read by its owner only."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def guarded(cell: Any) -> Any:
    """A cell of a CSV; a text that a spreadsheet would run gets an apostrophe before it, which `unguarded` removes."""
    runs = isinstance(cell, str) and _RUNS.match(cell) and not _NUMBER.fullmatch(cell)
    return f"'{cell}" if runs else cell


def unguarded(cell: str) -> str:
    """The text behind a cell that `guarded` gave."""
    return cell[1:] if cell.startswith("'") and _RUNS.match(cell) else cell


# --- Every random stream comes from a seed and a name, so that nothing random ever needs to be saved


def derive(seed: int, *names: object) -> int:
    """A 63-bit seed for the stream of this name: the same for the same words, unrelated for others."""
    words = "/".join(str(part) for part in (seed, *names))
    return int.from_bytes(hashlib.blake2b(words.encode(), digest_size=8).digest(), "big") >> 1


def numpy_stream(seed: int, *names: object) -> "np.random.Generator":
    """A numpy generator for the stream of this name."""
    import numpy as np

    return np.random.default_rng(derive(seed, *names))


def torch_stream(seed: int, *names: object) -> "torch.Generator":
    """A torch generator for the stream of this name."""
    import torch

    return torch.Generator().manual_seed(derive(seed, *names))


# --- What may not be installed


def optional(module: str, told: str) -> Any:
    """A module that an extra brings; a `Problem` in these words where it is not installed."""
    try:
        return import_module(module)
    except ImportError as error:
        raise Problem(told) from error


# --- Starting Python once more: a child finds this package where we did, and takes no code from the folder we stand in


def python(*words: str) -> list[str]:
    """The command line of this interpreter; `-P`, so that a file `random.py` among a person's data stays data."""
    return [sys.executable, "-P", *words]


def surroundings(**variables: str) -> dict[str, str]:
    """Our environment variables and these, with the places that we import from."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **variables}


def folder_name(title: str) -> str:
    """`pgd-75-of-draws-by-score`: a title as the name of a folder."""
    words = "".join(each if each.isalnum() or each == "." else " " for each in title.lower())
    return "-".join(words.split())
