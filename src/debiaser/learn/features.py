"""Features and pixels computed once: a file that fills up row by row, survives a kill, and is read without loading.

`<key>.npy` is whole and an ordinary numpy file. While it is made it is `<key>.part`, and `<key>.rows` holds one bit for
each row that is safely in it. Rows are written, not mapped, so that memory does not grow with their number.
"""

import hashlib
import io
import math
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from debiaser.errors import Misuse, Problem
from debiaser.io import explain, locked, write_bytes
from debiaser.learn.encoders import Encoder
from debiaser.learn.engine import Listener, Silence

Array = npt.NDArray[Any]
Stream = Callable[[Tensor], Iterable[tuple[Tensor, Any]]]  # rows to read; parts of them come out, each with its inputs

CHUNK = 512  # rows between two notes of what is done: all that a kill can cost


def features(
    encoder: Encoder, identity: str, n: int, stream: Stream, folder: Path, listener: Listener | None = None
) -> Array:
    """(n, width) float32, read-only, mapped from its file in the folder; `stream` is asked only for missing rows.

    `identity` names the data: the same words must mean the same n inputs in the same order.
    """
    file = Filling.of(folder, (n, encoder.width), np.float32, "features", encoder.identity, identity)
    return file.array(stream, encoder.encode, listener)


def pixels(identity: str, n: int, stream: Stream, size: int, folder: Path, listener: Listener | None = None) -> Array:
    """(n, 3, size, size) uint8, read-only, mapped from its file in the folder; as `features`."""
    file = Filling.of(folder, (n, 3, size, size), np.uint8, "pixels", identity)
    return file.array(stream, torch.as_tensor, listener)


def reader(array: Array) -> Callable[[Tensor], Tensor]:
    """Row numbers to a tensor of those rows, copied out of the file: what a `Split` reads with."""
    return lambda rows: torch.from_numpy(array[rows.numpy()])


@dataclass(frozen=True)
class Filling:
    """The file of an array (n, ...) in the making, or made; `what` is how a listener hears of it."""

    path: Path
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    what: str

    @classmethod
    def of(cls, folder: Path, shape: tuple[int, ...], dtype: npt.DTypeLike, what: str, *words: str) -> "Filling":
        """The file whose name is a digest of all that its content depends on."""
        if shape[0] < 1:
            raise Misuse(f"there are no rows to compute {what} of; give at least one")
        key = hashlib.blake2b(repr((what, shape, words)).encode(), digest_size=16).hexdigest()
        return cls(folder / f"{key}.npy", shape, np.dtype(dtype), what)

    @cached_property
    def header(self) -> bytes:
        """The first bytes of the numpy file of such an array."""
        stream = io.BytesIO()
        plan = {"descr": np.lib.format.dtype_to_descr(self.dtype), "fortran_order": False, "shape": self.shape}
        np.lib.format.write_array_header_1_0(stream, plan)
        return stream.getvalue()

    @property
    def bytes(self) -> int:
        """How long the file is."""
        return len(self.header) + math.prod(self.shape) * self.dtype.itemsize

    def array(self, stream: Stream, encode: Callable[[Any], Tensor], listener: Listener | None = None) -> Array:
        """The array: from its file, else made, else finished where an earlier attempt was killed."""
        with locked(self.path.with_name(f".{self.path.stem}.lock")):
            try:
                if not self._fits(self.path):
                    self._fill(stream, encode, listener or Silence())
                return np.load(self.path, mmap_mode="r", allow_pickle=False)  # type: ignore[no-any-return]
            except OSError as error:
                raise explain(error, self.path) from error

    def _fits(self, path: Path) -> bool:
        """Whether the file is there with this header and in its full length."""
        if not path.is_file() or path.stat().st_size != self.bytes:
            return False
        with path.open("rb") as file:
            return file.read(len(self.header)) == self.header

    def _fill(self, stream: Stream, encode: Callable[[Any], Tensor], listener: Listener) -> None:
        part, notes, n = self.path.with_suffix(".part"), self.path.with_suffix(".rows"), self.shape[0]
        done = noted(notes, n) if self._fits(part) else np.zeros(n, np.bool_)
        if not done.any():
            self._begin(part)
        left = torch.from_numpy(np.flatnonzero(~done))
        listener.begin(self.what, n, n - len(left))
        with part.open("r+b") as file:
            since = 0
            for rows, inputs in stream(left) if len(left) else ():
                self._write(file, rows.numpy(), encode(inputs).numpy())
                done[rows.numpy()] = True
                since += len(rows)
                if since >= CHUNK:
                    note(file, notes, done)
                    since = 0
                for _ in range(len(rows)):
                    listener.step()
            note(file, notes, done)
        if not done.all():
            raise Problem(
                f"the data ended after {done.sum():,} of {n:,} rows; it changed, so run the same command again"
            )
        part.replace(self.path)
        notes.unlink(missing_ok=True)
        listener.end(self.what, None)

    def _begin(self, part: Path) -> None:
        """A file of full length without content; a person's data is for its owner alone."""
        part.unlink(missing_ok=True)
        with os.fdopen(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
            file.write(self.header)
            file.truncate(self.bytes)

    def _write(self, file: BinaryIO, rows: npt.NDArray[np.int64], content: Array) -> None:
        """Each run of neighbouring rows in one piece."""
        if content.shape != (len(rows), *self.shape[1:]) or content.dtype != self.dtype:
            wanted = f"{self.dtype} {(len(rows), *self.shape[1:])}"
            raise Misuse(f"{self.what} must be {wanted} for {len(rows)} rows, got {content.dtype} {content.shape}")
        breaks = np.flatnonzero(np.diff(rows) != 1) + 1
        for first, run in zip([0, *breaks.tolist()], np.split(content, breaks), strict=True):
            file.seek(len(self.header) + int(rows[first]) * content[0].nbytes)
            file.write(np.ascontiguousarray(run).data)


def note(file: BinaryIO, notes: Path, done: npt.NDArray[np.bool_]) -> None:
    """Which rows are done; noted only after they are on the disk."""
    file.flush()
    os.fsync(file.fileno())
    write_bytes(notes, np.packbits(done).tobytes())


def noted(notes: Path, n: int) -> npt.NDArray[np.bool_]:
    """(n,) which rows are done; none where the notes are absent or of another length."""
    content = notes.read_bytes() if notes.is_file() else b""
    bits = np.unpackbits(np.frombuffer(content, np.uint8))
    return bits[:n].astype(np.bool_) if len(content) == (n + 7) // 8 else np.zeros(n, np.bool_)
