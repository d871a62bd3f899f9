"""Images of a benchmark that lie in a folder or an archive: decoded in whole batches by threads when asked for."""

import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
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

# Decoded images are kept on disk up to this side in pixels, or where those of the whole set take up to so many bytes.
SMALL, ROOM = 64, 1 << 29
LARGEST = 2048  # pixels of a side that may be asked for
THREADS = min(os.cpu_count() or 1, 8)
PIECE = 4  # images a thread takes at a time


@cache
def threads_of(process: int) -> ThreadPoolExecutor:
    """The threads that decode, started once: for every batch anew takes a quarter of its time. A fork has none yet."""
    return ThreadPoolExecutor(THREADS, f"pictures of {process}")


def squash(pixels: Pixels, size: tuple[int, int]) -> Pixels:
    """The whole image in this height and width, whatever its shape."""
    if pixels.shape[:2] == size:
        return pixels
    resized = Image.fromarray(pixels).resize(size[::-1], Image.Resampling.BILINEAR)
    return np.array(resized)  # a copy: torch warns of arrays that cannot be written


def crop_square(pixels: Pixels, size: tuple[int, int]) -> Pixels:
    """The largest square in the middle, in this height and width."""
    side = min(pixels.shape[:2])
    top, left = (round((length - side) / 2) for length in pixels.shape[:2])
    return squash(pixels[top : top + side, left : left + side], size)


def channels_first(values: npt.NDArray[Any]) -> Tensor:
    """(b, 3, h, w) of (b, h, w, 3)."""
    return torch.from_numpy(values).permute(0, 3, 1, 2).contiguous()


SHAPES = {"squash": squash, "crop": crop_square}


@dataclass(frozen=True, eq=False)
class Gallery:
    """A reader for a split: row numbers (b,) to images (b, 3, h, w) in [0, 1]."""

    bundle: Bundle = field(repr=False)
    names: Sequence[str] = field(repr=False)
    size: tuple[int, int]
    shape: str = "squash"

    def __post_init__(self) -> None:
        if not all(8 <= side <= LARGEST for side in self.size):
            raise Misuse(f"size must lie between 8 and {LARGEST} pixels, got {self.size[0]}")

    def __call__(self, rows: Tensor) -> Tensor:
        if self._fits:
            return channels_first(self._cache.read(self._places[rows.numpy()], self._decode_places)).float().div_(255)
        out = np.empty((len(rows), 3, *self.size), np.float32)

        def fill(place: int, pixels: Pixels) -> None:  # by the threads that decode; torch would start more within each
            channels = np.ascontiguousarray(pixels.transpose(2, 0, 1))  # moved as bytes: a third of the time of floats
            np.divide(channels, np.float32(255), out=out[place])

        self._decode_each(self._named(rows.numpy()), fill)
        return torch.from_numpy(out)

    def resized(self, side: int) -> "Gallery":
        """The same images as squares of this many pixels."""
        return replace(self, size=(side, side))

    def pixels(self, rows: Tensor) -> Tensor:
        """(b, 3, h, w) uint8, decoded anew: for those who keep what they make of them."""
        return channels_first(self._decode(self._named(rows.numpy())))

    @cached_property
    def identity(self) -> str:
        """What changes whenever the images, their order or their shape do."""
        return " ".join([self.bundle.identity, self.shape, str(self.size), *self.names])

    def _named(self, rows: npt.NDArray[np.int64]) -> list[str]:
        return [self.names[row] for row in rows]

    @property
    def _fits(self) -> bool:
        return max(self.size) <= SMALL or len(self.bundle.entries) * math.prod(self.size) * 3 <= ROOM

    @cached_property
    def _cache(self) -> ArrayCache:
        """The decoded images of the whole set, by number: whatever seed or split asks for one, it is kept once."""
        shape = (len(self.bundle.entries), *self.size, 3)
        return ArrayCache(user_cache("kept"), shape, np.uint8, "pixels", self.bundle.identity, self.shape)

    @cached_property
    def _places(self) -> npt.NDArray[np.int64]:
        """(n,) the numbers of our images in the whole set."""
        number = {name: place for place, name in enumerate(self._every)}
        return np.array([number[name] for name in self.names], np.int64)

    @cached_property
    def _every(self) -> list[str]:
        return sorted(self.bundle.entries)

    def _decode_places(self, places: npt.NDArray[np.int64]) -> Pixels:
        return self._decode([self._every[place] for place in places])

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
            return SHAPES[self.shape](decode(self.bundle.read(name), max(self.size)).pixels, self.size)
        except DecodeError as error:
            raise Problem(f"{self.bundle.path}: '{name}' {error}; put the original file there") from error
        except FormatError as error:
            raise Problem(f"{error.path} {error.reason}; put the original file there") from error
