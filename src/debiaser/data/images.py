"""Images in whole batches, as squares of one size, decoded ahead in threads; one that fails is grey and told."""

import errno
import hashlib
import io
import math
import os
import stat
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from debiaser.errors import brief

# --- Bytes of a stranger's image to 8-bit RGB: any mode, any orientation flag, bounded in size, or a reason

simplejpeg: Any
try:
    simplejpeg = import_module("simplejpeg")
except ImportError:  # optional: decodes JPEG faster than Pillow
    simplejpeg = None

Pixels = npt.NDArray[np.uint8]

LIMIT = 89_478_485  # pixels: where Pillow begins to warn of a decompression bomb
BOMB = f"claims to hold more than {LIMIT:,} pixels (a decompression bomb)"
RESIZED = "stretched"  # how an image becomes a square: part of the identity of data and of exported models
GREY = 127  # behind transparency: neither black nor white drawings vanish in it
ORIENTATION = 0x0112
TURNS = {flag: Image.Transpose(number) for flag, number in enumerate((0, 3, 1, 5, 4, 6, 2), 2)}  # as Pillow's own do
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF", "JPEG2000")  # none that starts another program
BROKEN = Exception  # Pillow raises whatever its parsers and the libraries behind them do: some twenty kinds


class DecodeError(Exception):
    """An image that cannot be read; the text says why and continues a sentence that begins with the file."""


class Decoded(NamedTuple):
    """Pixels (h, w, 3), upright; `windowed` where more than 8 bits were mapped to 8 by percentile."""

    pixels: Pixels
    windowed: bool = False


def decode(content: bytes, side: int = 0) -> Decoded:
    """The image, upright; with `side`, large ones come reduced, their longer side still at least twice `side`."""
    fast = _decode_jpeg(content, side) if simplejpeg is not None and content[:2] == b"\xff\xd8" else None
    if fast is not None:
        return Decoded(fast)
    with open_header(content) as image:
        try:
            if side:
                scale = min(1.0, 2 * side / max(image.size))
                image.draft(None, (math.ceil(image.width * scale), math.ceil(image.height * scale)))  # JPEG only
            image.load()
            rgb = _as_rgb(ImageOps.exif_transpose(image))
            deep = image.format == "PNG" and content[24:25] == b"\x10"  # Pillow keeps 8 bits of 16 in colour: the upper
            return Decoded(window(rgb.pixels), windowed=True) if deep and not rgb.windowed else rgb
        except MemoryError as error:
            raise DecodeError("needs more memory than there is") from error
        except BROKEN as error:
            raise DecodeError(f"is cut off or damaged ({brief(error)})") from error


def open_header(content: bytes) -> Image.Image:
    """The image with only its header read: format, mode and size, within the limit of pixels."""
    if not content:
        raise DecodeError("is empty (0 bytes)")
    try:
        image = Image.open(io.BytesIO(content), formats=FORMATS)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise DecodeError(BOMB) from error
    except UnidentifiedImageError as error:
        raise DecodeError("is not an image of a known format") from error
    except BROKEN as error:
        raise DecodeError(f"is cut off or damaged ({brief(error)})") from error
    if math.prod(image.size) > LIMIT:
        raise DecodeError(BOMB)
    return image


def stretch(pixels: Pixels, size: int, out: Pixels) -> None:
    """Fills `out` (size, size, 3) with the whole image, wider or narrower than it was.

    Bars beside an image of its own shape cost frozen features much: what they show is smaller, and edges are added.
    """
    if pixels.shape[:2] == (size, size):
        out[:] = pixels
        return
    image = torch.from_numpy(pixels).permute(2, 0, 1)[None]  # by torch, which takes less than half of Pillow's time
    out[:] = F.interpolate(image, (size, size), mode="bilinear", antialias=True)[0].permute(1, 2, 0).numpy()


def _decode_jpeg(content: bytes, side: int) -> Pixels | None:
    """The pixels by simplejpeg, upright; none where Pillow has to judge (damaged, CMYK, too large)."""
    try:
        height, width, colours, _ = simplejpeg.decode_jpeg_header(content)
        if colours not in {"YCbCr", "Gray", "RGB"} or height * width > LIMIT:
            return None
        scale = min(1.0, 2 * side / max(height, width)) if side else 1.0
        least = {"min_height": math.ceil(height * scale), "min_width": math.ceil(width * scale)} if scale < 1 else {}
        pixels: Pixels = simplejpeg.decode_jpeg(content, "RGB", **least)
    except ValueError:
        return None
    flag = 1
    if content.find(b"Exif\0\0", 0, 1 << 18) >= 0:
        with suppress(BROKEN):
            flag = int(open_header(content).getexif().get(ORIENTATION, 1))
    return np.array(Image.fromarray(pixels).transpose(TURNS[flag])) if flag in TURNS else pixels


def _as_rgb(image: Image.Image) -> Decoded:
    """Any mode to RGB: transparency over grey, more than 8 bits a channel by percentile window."""
    if image.mode == "F" or image.mode.startswith("I"):
        levels = window(np.asarray(image))
        return Decoded(np.repeat(levels[:, :, None], 3, axis=2), windowed=True)
    if image.mode in {"LA", "PA", "La", "RGBA", "RGBa"} or "transparency" in image.info:
        image = image.convert("RGBA")
        behind = Image.new("RGBA", image.size, (GREY, GREY, GREY, 255))
        image = Image.alpha_composite(behind, image)
    return Decoded(np.array(image.convert("RGB")))  # a copy: torch warns of arrays that cannot be written


def window(values: npt.NDArray[Any]) -> Pixels:
    """Numbers (h, w) or (h, w, 3) to 0..255: the 1st percentile is black, the 99th white; what is not finite, black."""
    finite = np.isfinite(values)
    if not finite.any():
        return np.zeros(values.shape, np.uint8)
    low, high = np.percentile(values[finite].astype(np.float64), (1, 99))
    if high <= low:
        low, high = float(values[finite].min()), float(values[finite].max())
    if high <= low:
        return np.full(values.shape, GREY, np.uint8)
    spread = (np.where(finite, values, low).astype(np.float64) - low) * (255 / (high - low))
    return np.asarray(spread.round().clip(0, 255).astype(np.uint8))


PIECE = 16  # images a thread takes at a time
LARGEST = 1 << 29  # bytes of a file that are read at most
AHEAD = 2  # batches decoded before they are asked for


@dataclass(frozen=True)
class Files:
    """Images that are files, by number; only ordinary ones are opened (a pipe would never end).

    `stamp` changes when the content does, and costs little; both it and `read` raise DecodeError where there is none.
    """

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
    """Images whose bytes lie inside a table; `get` gives those of a row of the table, none where it has none."""

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
            raise DecodeError("has no image in this row")
        return content

    def take(self, rows: npt.NDArray[np.int64]) -> "Embedded":
        return Embedded(self.get, self.rows[rows])


Contents = Files | Embedded


@dataclass(frozen=True, eq=False)
class Images:
    """Images by number; `sides` (n, 2) are width and height, `failed` tells which could not be read later, and why.

    Where `digests` (n, 16) of the contents are known, an image that is another one by now counts as failed too.
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
        """The longest side of any image, in pixels."""
        return int(self.sides.max(initial=0))

    def read(self, rows: Tensor, size: int) -> Tensor:
        """(b, 3, size, size) uint8: the whole image, stretched to a square, never cropped.

        In memory the channels come last, as the decoders give them and as convolutions like them.
        """
        return next(
            (batch for _, batch in self.stream(rows, size, max(len(rows), 1))),
            torch.empty(0, 3, size, size, dtype=torch.uint8),
        )

    def stream(
        self, rows: Tensor, size: int, batch: int, workers: int | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Pairs of sample numbers (b,) and images (b, 3, size, size) in the given order, decoded ahead in threads.

        At most `AHEAD` batches are held beside the one handed out, however many samples there are.
        """
        pool = ThreadPoolExecutor(workers or min(os.cpu_count() or 1, 8), "images")
        waiting: deque[tuple[Tensor, Tensor, Iterator[None]]] = deque()

        def first() -> tuple[Tensor, Tensor]:
            part, images, work = waiting.popleft()
            list(work)
            return part, images

        try:
            for part in torch.split(rows, batch) if len(rows) else ():
                pixels = np.empty((len(part), size, size, 3), np.uint8)
                pieces = [slice(at, at + PIECE) for at in range(0, len(part), PIECE)]
                work = pool.map(self._fill, [part[each].tolist() for each in pieces], [pixels[each] for each in pieces])
                waiting.append((part, torch.from_numpy(pixels).permute(0, 3, 1, 2), work))
                if len(waiting) > AHEAD:
                    yield first()
            while waiting:
                yield first()
        finally:
            pool.shutdown(cancel_futures=True)

    def _fill(self, rows: list[int], out: Pixels) -> None:
        size = out.shape[1]
        for row, place in zip(rows, out, strict=True):
            try:
                stretch(decode(self._unchanged(row), size).pixels, size, place)
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


def _explained(error: OSError | ValueError) -> DecodeError:
    if isinstance(error, OSError):
        known = {errno.ENOENT: "is not there", errno.ENOTDIR: "is not there", errno.EACCES: "may not be read"}
        return DecodeError(known.get(error.errno or 0, f"cannot be read: {error.strerror}"))
    return DecodeError("is not a possible file name")
