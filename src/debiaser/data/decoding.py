"""Bytes of a stranger's picture to 8-bit RGB: any mode, any orientation flag, bounded in size, or a reason."""

import io
import math
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch.nn import functional as F  # noqa: N812

simplejpeg: Any
try:
    simplejpeg = import_module("simplejpeg")
except ImportError:  # optional: decodes JPEG faster than Pillow
    simplejpeg = None

Pixels = npt.NDArray[np.uint8]

LIMIT = 89_478_485  # pixels: where Pillow begins to warn of a decompression bomb
GREY = 127  # behind transparency and beside letterboxed pictures: neither black nor white drawings vanish in it
ORIENTATION = 0x0112
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF", "JPEG2000")  # none that starts another program
BROKEN = Exception  # Pillow raises whatever its parsers and the libraries behind them do: some twenty kinds


class DecodeError(Exception):
    """A picture that cannot be read; the text says why and continues a sentence that begins with the file."""


@dataclass(frozen=True, eq=False)
class Decoded:
    """Pixels (h, w, 3), upright; `windowed` where more than 8 bits were mapped to 8 by percentile."""

    pixels: Pixels
    windowed: bool = False


def decode(content: bytes, side: int = 0) -> Decoded:
    """The picture, upright; with `side`, large ones come reduced, their longer side still at least twice `side`."""
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
            raise DecodeError(f"is cut off or damaged ({_line(error)})") from error


def open_header(content: bytes) -> Image.Image:
    """The picture with only its header read: format, mode and size, within the limit of pixels."""
    if not content:
        raise DecodeError("is empty (0 bytes)")
    try:
        image = Image.open(io.BytesIO(content), formats=FORMATS)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise DecodeError(f"claims to hold more than {LIMIT:,} pixels (a decompression bomb)") from error
    except UnidentifiedImageError as error:
        raise DecodeError("is not a picture of a known format") from error
    except BROKEN as error:
        raise DecodeError(f"is cut off or damaged ({_line(error)})") from error
    if math.prod(image.size) > LIMIT:
        raise DecodeError(f"claims to hold {math.prod(image.size):,} pixels (a decompression bomb)")
    return image


def letterbox(pixels: Pixels, size: int, out: Pixels) -> None:
    """Fills `out` (size, size, 3) with the whole picture in the middle, its shape kept, grey beside it."""
    height, width = pixels.shape[:2]
    scale = size / max(height, width)
    new = max(1, round(height * scale)), max(1, round(width * scale))
    top, left = (size - new[0]) // 2, (size - new[1]) // 2
    if new != (size, size):
        out[:] = GREY
    out[top : top + new[0], left : left + new[1]] = pixels if new == (height, width) else _resized(pixels, new)


def _resized(pixels: Pixels, shape: tuple[int, int]) -> Pixels:
    """Bilinear, smoothed where it shrinks; by torch, which takes less than half of Pillow's time."""
    image = torch.from_numpy(pixels).permute(2, 0, 1)[None]
    resized = F.interpolate(image, shape, mode="bilinear", antialias=True)
    found: Pixels = resized[0].permute(1, 2, 0).numpy()
    return found


def orientation(content: bytes) -> int:
    """The EXIF orientation flag of a JPEG, 1 (upright) where there is none."""
    if content.find(b"Exif\0\0", 0, 1 << 18) < 0:
        return 1
    try:
        return int(open_header(content).getexif().get(ORIENTATION, 1))
    except BROKEN:
        return 1


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
    return upright(pixels, orientation(content))


def upright(pixels: Pixels, flag: int) -> Pixels:
    """The pixels turned and mirrored as an EXIF orientation flag says."""
    turned = {
        2: lambda p: p[:, ::-1],
        3: lambda p: p[::-1, ::-1],
        4: lambda p: p[::-1],
        5: lambda p: p.swapaxes(0, 1),
        6: lambda p: p[::-1].swapaxes(0, 1),
        7: lambda p: p[::-1, ::-1].swapaxes(0, 1),
        8: lambda p: p[:, ::-1].swapaxes(0, 1),
    }
    return np.ascontiguousarray(turned[flag](pixels)) if flag in turned else pixels


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
    levels: Pixels = spread.round().clip(0, 255).astype(np.uint8)
    return levels


def _line(error: BaseException) -> str:
    """What an error says, on one short line."""
    return " ".join(str(error).split())[:100] or type(error).__name__
