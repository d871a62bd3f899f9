"""Arrays kept on disk so that they are computed once: row by row in `ArrayCache`, whole ones in `.npz` files."""

import hashlib
import io
import math
import os
import threading
import zlib
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from platformdirs import user_cache_path

from debiaser.errors import Misuse, Problem, printable
from debiaser.io import UNREADABLE, explain, locked, log, make_folder, read_arrays

Rows = npt.NDArray[np.int64]
Array = npt.NDArray[Any]

CHECKED_AT_ONCE = 512  # rows


def user_cache(name: str) -> Path:
    """The folder of this name among the user's caches; `data` is the one of data sets and weights."""
    return user_cache_path("debiaser", appauthor=False) / name


class ArrayCache:
    """An array `(n, ...)` in a file that fills up row by row, in any order, and survives a kill at any time.

    `<folder>/<digest of words, shape and type>.npy` is an ordinary numpy file; `.rows` beside it holds the CRC-32 of
    each row that is there, and whether all are. A row that is absent or damaged is computed (anew), never handed out.
    Several threads and processes may share the files. Either `read` some rows at a time, or `fill` the whole.

    Args:
        folder: where the files lie.
        shape: of the whole array.
        dtype: of its numbers.
        words: all that its content depends on; the first says what the rows are.
    """

    def __init__(self, folder: Path, shape: tuple[int, ...], dtype: npt.DTypeLike, *words: str) -> None:
        self.shape, self.dtype, self.what = shape, np.dtype(dtype), words[0]
        key = hashlib.blake2b(repr((shape, self.dtype.str, words)).encode(), digest_size=16).hexdigest()
        self.path = folder / f"{key}.npy"
        self._lock = threading.Lock()

    def read(self, rows: Rows, compute: Callable[[Rows], Array]) -> Array:
        """(b, ...) the values of these rows; `compute` is asked for those that are not there.

        Where the files cannot be written, rows are computed every time: slower, not wrong.
        """
        try:
            files = self._files
        except (OSError, Problem):
            return compute(rows)
        found = np.zeros((len(rows), *self.shape[1:]), self.dtype)
        size = found[:1].nbytes
        for place, row in zip(found.reshape(len(rows), -1).view(np.uint8), rows.tolist(), strict=True):
            # not mapped: what is read of a large file would count as memory of this process
            os.preadv(files.values_stream.fileno(), [place.data], files.start + row * size)
        absent = np.flatnonzero(files.sums[rows] != _checksums(found))
        if len(absent):
            self._tell_damage(rows[absent][files.sums[rows[absent]] != 0])
            found[absent] = compute(rows[absent])
            with suppress(OSError):
                self._write(rows[absent], found[absent])
        return found

    def absent(self, rows: Rows) -> Rows:
        """(m,) those of these rows that were not written yet; all of them where the files cannot be written."""
        try:
            unwritten: npt.NDArray[np.bool_] = self._files.sums[rows] == 0
            return rows[unwritten]
        except (OSError, Problem):
            return rows

    def fill(self, compute: Callable[[Rows], Iterable[tuple[Rows, Array]]]) -> Array:
        """(n, ...) the whole array, read-only, mapped from its file.

        `compute` is asked for the rows that are absent, if any, and gives them in parts: row numbers and values.
        """
        if self.shape[0] < 1:
            raise Misuse(f"there are no samples to compute {self.what} of; give at least one")
        with locked(self.path.with_name(f".{self.path.stem}.lock")):
            try:
                if self._drop_damaged() or self._files.sums[-1] != 1:
                    self._complete(compute)
                return np.load(self.path, mmap_mode="r", allow_pickle=False)  # type: ignore[no-any-return]
            except OSError as error:
                raise explain(error, self.path) from error

    def _drop_damaged(self) -> bool:
        """Whether any row, or the note that all are there, is not as it was written; such rows count as absent."""
        files, n, found = self._files, self.shape[0], list[Rows]()
        there = np.flatnonzero(files.sums[:n])
        for part in np.split(there, range(CHECKED_AT_ONCE, len(there), CHECKED_AT_ONCE)):
            found.append(part[files.sums[part] != _checksums(files.values[part])])
        damaged = np.concatenate(found)
        self._note(damaged, np.zeros(len(damaged), np.uint32))
        if files.sums[-1] not in (0, 1) or (files.sums[-1] == 1 and len(there) < n):
            damaged = np.append(damaged, np.flatnonzero(files.sums[:n] == 0))
            log.warning("%s is damaged; what is missing in it is made again", self.path)
        self._tell_damage(damaged)
        return bool(len(damaged))

    def _tell_damage(self, rows: Rows) -> None:
        if len(rows):
            log.warning("%s is damaged in %d of its rows; they are made again", self.path, len(rows))

    def _complete(self, compute: Callable[[Rows], Iterable[tuple[Rows, Array]]]) -> None:
        files, n = self._files, self.shape[0]
        absent = np.flatnonzero(files.sums[:n] == 0)
        for rows, values in compute(absent) if len(absent) else ():
            self._write(rows, values)
        done = np.count_nonzero(files.sums[:n])
        if done < n:
            raise Problem(f"the data ended after {done:,} of {n:,} samples; it changed, so run the same command again")
        os.fsync(files.values_stream.fileno())
        self._note(np.array([n]), np.ones(1, np.uint32))

    @cached_property
    def _files(self) -> "_Files":
        """Both files, made where they are not there or not ours; a person's data is for its owner alone."""
        header = io.BytesIO()
        plan = {"descr": np.lib.format.dtype_to_descr(self.dtype), "fortran_order": False, "shape": self.shape}
        np.lib.format.write_array_header_1_0(header, plan)
        start, sums = header.getvalue(), self.path.with_suffix(".rows")
        make_folder(self.path.parent)
        values_stream, sums_stream = (
            os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+b", buffering=0) for path in (self.path, sums)
        )
        size, count = len(start) + math.prod(self.shape) * self.dtype.itemsize, self.shape[0] + 1
        ours = (values_stream.seek(0, os.SEEK_END), sums_stream.seek(0, os.SEEK_END)) == (size, 4 * count)
        values_stream.seek(0)
        began = values_stream.read(len(start))
        if not ours or began != start:
            if began.strip(b"\0"):
                log.warning("%s is damaged, or was made otherwise; what was in it is made again", self.path)
            sums_stream.truncate(4 * count)
            sums_stream.seek(0)
            sums_stream.write(bytes(4 * count))  # in place: another process may have it mapped
            values_stream.truncate(size)  # sparse: only what is written takes room
            values_stream.seek(0)
            values_stream.write(start)
        values = np.memmap(self.path, self.dtype, "r", len(start), self.shape)
        return _Files(values, np.memmap(sums, np.uint32, "r", 0, (count,)), values_stream, sums_stream, len(start))

    def _write(self, rows: Rows, values: Array) -> None:
        expected = (len(rows), *self.shape[1:])
        if values.shape != expected or values.dtype != self.dtype:
            got = f"{values.dtype} {values.shape}"
            raise Misuse(f"{self.what} must be {self.dtype} {expected} for {len(rows)} rows, got {got}")
        files, values = self._files, np.ascontiguousarray(values)
        with self._lock:
            for row, value in zip(rows.tolist(), values, strict=True):
                files.values_stream.seek(files.start + row * value.nbytes)
                files.values_stream.write(value.tobytes())
        self._note(rows, _checksums(values))

    def _note(self, rows: Rows, sums: npt.NDArray[np.uint32]) -> None:
        with self._lock:
            for row, checksum in zip(rows.tolist(), sums, strict=True):
                self._files.sums_stream.seek(4 * row)
                self._files.sums_stream.write(checksum.tobytes())


class _Files(NamedTuple):
    values: Array
    sums: npt.NDArray[np.uint32]  # (n + 1,): 0 where a row is absent; the last is 1 once all were written
    values_stream: io.FileIO
    sums_stream: io.FileIO
    start: int  # of the values in their file


def _checksums(rows: Array) -> npt.NDArray[np.uint32]:
    """(b,) CRC-32 of each row; never 0, which is a row that was not written."""
    return np.array([zlib.crc32(np.ascontiguousarray(row).data.cast("B")) or 1 for row in rows], np.uint32)


def load_arrays(path: Path) -> dict[str, Array] | None:
    """The arrays that were kept in an `.npz` with `io.write_arrays`; None where nothing is, or it is damaged (said)."""
    try:
        return read_arrays(path)
    except FileNotFoundError:
        return None
    except UNREADABLE as error:
        why = printable(str(error)) or type(error).__name__
        log.warning("%s is damaged (%s); what was in it is made again", path, why)
        return None
