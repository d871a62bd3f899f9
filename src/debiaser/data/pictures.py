"""Pictures handed out in whole batches, letterboxed, decoded ahead in threads; one that fails is grey and told."""

import errno
import hashlib
import os
import stat
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from debiaser.data.decoding import GREY, DecodeError, Pixels, decode, letterbox

PIECE = 16  # pictures a thread takes at a time
LARGEST = 1 << 29  # bytes of a file that are read at most
AHEAD = 2  # batches decoded before they are asked for


class Contents(Protocol):
    """Where the bytes of pictures come from, by row."""

    def __len__(self) -> int: ...

    def stamp(self, row: int) -> str:
        """What changes when the content does, and costs little to know; DecodeError where there is nothing."""
        ...

    def read(self, row: int) -> bytes:
        """The bytes; DecodeError where there are none."""
        ...

    def take(self, rows: npt.NDArray[np.int64]) -> "Contents":
        """The contents of these rows, numbered anew."""
        ...


@dataclass(frozen=True)
class Files:
    """Pictures that are files; only ordinary ones are opened (a pipe would never end)."""

    paths: Sequence[str]

    def __len__(self) -> int:
        return len(self.paths)

    def stamp(self, row: int) -> str:
        facts = self._ordinary(row)
        return f"{self.paths[row]}\0{facts.st_size}\0{facts.st_mtime_ns}"

    def read(self, row: int) -> bytes:
        self._ordinary(row)
        try:
            with Path(self.paths[row]).open("rb") as stream:
                return stream.read(LARGEST)
        except OSError as error:
            raise _explained(error) from error

    def take(self, rows: npt.NDArray[np.int64]) -> "Files":
        return Files([self.paths[row] for row in rows])

    def _ordinary(self, row: int) -> os.stat_result:
        try:
            facts = Path(self.paths[row]).stat()
        except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
            raise _explained(error) from error
        if not stat.S_ISREG(facts.st_mode):
            raise DecodeError("is a folder" if stat.S_ISDIR(facts.st_mode) else "is not an ordinary file")
        if facts.st_size > LARGEST:
            raise DecodeError(f"is larger than {LARGEST >> 20} MB")
        return facts


@dataclass(frozen=True)
class Embedded:
    """Pictures whose bytes lie inside a table; `get` gives those of a row of the table, none where it has none."""

    get: Callable[[int], bytes | None]
    rows: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.rows)

    def stamp(self, row: int) -> str:
        return content_digest(self.read(row)).hex()

    def read(self, row: int) -> bytes:
        try:
            content = self.get(int(self.rows[row]))
        except OSError as error:
            raise _explained(error) from error
        if content is None:
            raise DecodeError("has no picture in this row")
        return content

    def take(self, rows: npt.NDArray[np.int64]) -> "Embedded":
        return Embedded(self.get, self.rows[rows])


@dataclass(frozen=True, eq=False)
class Pictures:
    """Pictures by row; `sides` (n, 2) are width and height, `failed` tells which could not be read later, and why.

    Where `digests` (n, 16) of the contents are known, a picture that is another one by now counts as failed too.
    """

    ids: Sequence[str] = field(repr=False)
    contents: Contents = field(repr=False)
    sides: npt.NDArray[np.int32] = field(repr=False)
    identity: str = ""
    digests: npt.NDArray[np.uint8] | None = field(default=None, repr=False)
    failed: dict[str, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def largest_side(self) -> int:
        """The longest side of any picture, in pixels."""
        return int(self.sides.max(initial=0))

    @cached_property
    def median_side(self) -> int:
        """The median over pictures of their longer side, in pixels."""
        return int(np.median(self.sides.max(1))) if len(self) else 0

    def read(self, rows: Tensor, size: int) -> Tensor:
        """(b, 3, size, size) uint8, letterboxed: the whole picture, its shape kept, never cropped, grey beside it.

        Grey, because networks map it near zero and a dark or bright border of the picture stays visible. In memory
        the channels come last, as the decoders give them and as convolutions like them.
        """
        return next((batch for _, batch in self.stream(rows, size, max(len(rows), 1))), _empty(0, size)[1])

    def stream(
        self, rows: Tensor, size: int, batch: int, workers: int | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Pairs of row numbers (b,) and pictures (b, 3, size, size) in the given order, decoded ahead in threads.

        At most `AHEAD` batches are held beside the one handed out, however many rows there are.
        """
        pool = ThreadPoolExecutor(workers or min(os.cpu_count() or 1, 8), "pictures")
        waiting: deque[tuple[Tensor, Tensor, list[Future[None]]]] = deque()
        try:
            for part in torch.split(rows, batch) if len(rows) else ():
                pixels, shaped = _empty(len(part), size)
                starts = range(0, len(part), PIECE)
                numbers = part.tolist()
                futures = [pool.submit(self._fill, numbers[at : at + PIECE], pixels[at : at + PIECE]) for at in starts]
                waiting.append((part, shaped, futures))
                if len(waiting) > AHEAD:
                    yield _finished(*waiting.popleft())
            while waiting:
                yield _finished(*waiting.popleft())
        finally:
            pool.shutdown(cancel_futures=True)

    def _fill(self, rows: list[int], out: Pixels) -> None:
        size = out.shape[1]
        for row, place in zip(rows, out, strict=True):
            try:
                letterbox(decode(self._unchanged(row), size).pixels, size, place)
            except DecodeError as error:
                self.failed[self.ids[row]] = str(error)
                place[:] = GREY

    def _unchanged(self, row: int) -> bytes:
        content = self.contents.read(row)
        if self.digests is not None and content_digest(content) != self.digests[row].tobytes():
            raise DecodeError("changed while it was read")
        return content


def content_digest(content: bytes) -> bytes:
    """16 bytes that name a content."""
    return hashlib.blake2b(content, digest_size=16).digest()


def _empty(count: int, size: int) -> tuple[Pixels, Tensor]:
    """Room for pictures: as (b, size, size, 3) to fill and, the same memory, as (b, 3, size, size) to hand out."""
    pixels = np.empty((count, size, size, 3), np.uint8)
    return pixels, torch.from_numpy(pixels).permute(0, 3, 1, 2)


def _finished(rows: Tensor, pictures: Tensor, futures: list[Future[None]]) -> tuple[Tensor, Tensor]:
    for future in futures:
        future.result()
    return rows, pictures


def _explained(error: OSError | ValueError) -> DecodeError:
    if isinstance(error, OSError):
        known = {errno.ENOENT: "is not there", errno.ENOTDIR: "is not there", errno.EACCES: "may not be read"}
        return DecodeError(known.get(error.errno or 0, f"cannot be read: {error.strerror}"))
    return DecodeError("is not a possible file name")
