"""Rows that are computed when they are first asked for and kept in a file from then on: pixels, token numbers."""

import hashlib
import os
import threading
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import numpy.typing as npt

from debiaser.data.sources import cache
from debiaser.errors import Problem
from debiaser.io import make_folder

Rows = npt.NDArray[np.int64]
Values = npt.NDArray[np.generic]


class Kept:
    """Rows `(n, *shape)` by number, each with a checksum: one that is absent or damaged is computed (anew).

    Several threads and processes may share the file; where it cannot be written, rows are computed every time.
    """

    def __init__(
        self, key: str, n: int, shape: tuple[int, ...], dtype: type[np.generic], compute: Callable[[Rows], Values]
    ) -> None:
        self.compute, self.shape, self.dtype = compute, shape, np.dtype(dtype)
        self.sums: npt.NDArray[np.uint32] | None = None
        self.lock = threading.Lock()
        self.start, self.length = 4 * n, int(np.prod(shape)) * self.dtype.itemsize
        with suppress(OSError, Problem):
            self._open(make_folder(folder()) / f"{hashlib.blake2b(key.encode(), digest_size=16).hexdigest()}.rows", n)

    def _open(self, path: Path, n: int) -> None:
        self.stream = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+b", buffering=0)
        self.stream.truncate(self.start + n * self.length)  # sparse: only what is written takes room
        self.values = np.memmap(path, self.dtype, "r", self.start, (n, *self.shape))
        self.sums = np.memmap(path, np.uint32, "r", 0, (n,))

    def read(self, rows: Rows) -> Values:
        """(b, *shape) the values of these rows."""
        if self.sums is None:
            return self.compute(rows)
        found = np.asarray(self.values[rows])  # a copy, so that what is checked is what is handed out
        sums = [_checksum(row) for row in found]
        absent = np.flatnonzero(self.sums[rows] != np.array(sums, np.uint32))
        if len(absent):
            found[absent] = self.compute(rows[absent])
            self._write(rows[absent], found[absent])
        return found

    def _write(self, rows: Rows, values: Values) -> None:
        with self.lock, suppress(OSError):  # a full disk makes it slower, not wrong
            for row, value in zip(rows.tolist(), values, strict=True):
                content = np.ascontiguousarray(value)
                self.stream.seek(self.start + row * self.length)
                self.stream.write(content.tobytes())
                self.stream.seek(4 * row)
                self.stream.write(np.uint32(_checksum(content)).tobytes())


def folder() -> Path:
    """Where such files lie."""
    return cache().parent / "kept"


def _checksum(row: Values) -> int:
    return zlib.crc32(np.ascontiguousarray(row).data.cast("B")) or 1  # 0 is a row that was never written
