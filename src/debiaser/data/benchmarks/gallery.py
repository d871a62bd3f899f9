"""Images of a benchmark that lie in a folder or an archive: decoded in whole batches by threads when asked for."""

import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from debiaser.data.archives import Bundle, FormatError
from debiaser.data.cache import ArrayCache, user_cache
from debiaser.data.images import DecodeError, Pixels, decode
from debiaser.errors import Misuse, Problem
from debiaser.progress import task

# Decoded images are kept on disk up to this side in pixels, or where those of the whole set take up to so many bytes.
SMALL, ROOM = 64, 1 << 29
LARGEST = 2048  # pixels of a side that may be asked for
THREADS = min(os.cpu_count() or 1, 8)
PIECE, AT_ONCE = 4, 512  # images a thread takes at a time, and that are decoded between two words on how far it is


@cache
def threads_of(process: int) -> ThreadPoolExecutor:
    """The threads that decode, started once: for every batch anew takes a quarter of its time. A fork has none yet."""
    return ThreadPoolExecutor(THREADS, f"images of {process}")


@lru_cache(4)
def numbered(bundle: Bundle) -> tuple[list[str], dict[str, int]]:
    """All names of a set, sorted, and the place of each; one for all splits."""
    every = sorted(bundle.entries)
    return every, {name: number for number, name in enumerate(every)}


def channels_first(values: npt.NDArray[Any]) -> Tensor:
    """(b, 3, h, w) of (b, h, w, 3)."""
    return torch.from_numpy(values).permute(0, 3, 1, 2).contiguous()


@dataclass(frozen=True, eq=False)
class Gallery:
    """A reader for a split: sample numbers (b,) to images (b, 3, h, w) in [0, 1].

    `shape`: "squash" is the whole image in this height and width, "crop" the largest square in its middle.
    """

    bundle: Bundle = field(repr=False)
    names: Sequence[str] = field(repr=False)
    size: tuple[int, int]
    shape: str = "squash"

    def __post_init__(self) -> None:
        if not all(8 <= side <= LARGEST for side in self.size):
            raise Misuse(f"size must lie between 8 and {LARGEST} pixels, got {self.size[0]}")

    def __call__(self, rows: Tensor) -> Tensor:
        if self._keeps:
            return channels_first(self._stored(rows.numpy())).float().div_(255)
        out = np.empty((len(rows), 3, *self.size), np.float32)

        def fill(place: int, pixels: Pixels) -> None:  # by the threads that decode; torch would start more within each
            channels = np.ascontiguousarray(pixels.transpose(2, 0, 1))  # moved as bytes: a third of the time of floats
            np.divide(channels, np.float32(255), out=out[place])

        self._decode_each([self.names[row] for row in rows], fill)
        return torch.from_numpy(out)

    def prepare(self) -> None:
        """Decodes all that is to be kept and is not yet; what was done stays when it is interrupted."""
        if not self._keeps:
            return
        _, places, kept = self._kept
        rows = np.flatnonzero(np.isin(places, kept.absent(places)))
        if not len(rows):
            return
        with task(f"decoding {self.bundle.path.name}", len(places), len(places) - len(rows)) as advance:
            for part in np.split(rows, range(AT_ONCE, len(rows), AT_ONCE)):
                self._stored(part)
                advance(len(part))

    def resized(self, side: int) -> "Gallery":
        """The same images as squares of this many pixels."""
        return replace(self, size=(side, side))

    def pixels(self, rows: Tensor) -> Tensor:
        """(b, 3, h, w) uint8, decoded anew: for those who keep what they make of them."""
        return channels_first(self._decode([self.names[row] for row in rows]))

    @cached_property
    def identity(self) -> str:
        """What changes whenever the images, their order or their shape do."""
        return " ".join([self.bundle.identity, self.shape, str(self.size), *self.names])

    @property
    def _keeps(self) -> bool:
        return max(self.size) <= SMALL or len(self.bundle.entries) * math.prod(self.size) * 3 <= ROOM

    @cached_property
    def _kept(self) -> tuple[list[str], npt.NDArray[np.int64], ArrayCache]:
        """All names of the set, the places of ours (n,) among them, and the decoded images of all, each kept once."""
        every, place = numbered(self.bundle)
        words = "pixels", self.bundle.identity, self.shape
        kept = ArrayCache(user_cache("kept"), (len(every), *self.size, 3), np.uint8, *words)
        return every, np.array([place[name] for name in self.names], np.int64), kept

    def _stored(self, rows: npt.NDArray[np.int64]) -> Pixels:
        """(b, h, w, 3) these images out of the file, decoded first where they are not in it."""
        every, places, kept = self._kept
        return kept.read(places[rows], lambda absent: self._decode([every[place] for place in absent]))

    def _decode(self, names: Sequence[str]) -> Pixels:
        out = np.empty((len(names), *self.size, 3), np.uint8)
        self._decode_each(names, out.__setitem__)
        return out

    def _decode_each(self, names: Sequence[str], fill: Callable[[int, Pixels], None]) -> None:
        """Hands each image and its place to `fill`, from several threads at once."""

        def piece(first: int) -> None:
            for place in range(first, min(first + PIECE, len(names))):
                fill(place, self._image(names[place]))

        list(threads_of(os.getpid()).map(piece, range(0, len(names), PIECE)))

    def _image(self, name: str) -> Pixels:
        try:
            pixels = decode(self.bundle.read(name), max(self.size)).pixels
        except DecodeError as error:
            raise Problem(f"{self.bundle.path}: '{name}' {error}; put the original file there") from error
        except FormatError as error:
            raise Problem(f"{error.path} {error.reason}; put the original file there") from error
        if self.shape == "crop":
            side = min(pixels.shape[:2])
            top, left = (round((length - side) / 2) for length in pixels.shape[:2])
            pixels = pixels[top : top + side, left : left + side]
        if pixels.shape[:2] == self.size:
            return pixels
        return np.array(Image.fromarray(pixels).resize(self.size[::-1], Image.Resampling.BILINEAR))
