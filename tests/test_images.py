"""Any picture a person may have becomes 8-bit RGB, whole and upright; one that cannot be read is told."""

import io
import os
import struct
import threading
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from debiaser.data import images
from debiaser.data.images import AHEAD, GREY, TURNS, DecodeError, Embedded, Files, Images, decode, stretch, window
from debiaser.data.own.checks import survey

RNG = np.random.default_rng(0)


def smooth(height: int = 40, width: int = 60) -> Image.Image:
    """A picture whose four corners differ."""
    y, x = np.mgrid[0:height, 0:width]
    return Image.fromarray(np.stack([x * 255 // width, y * 255 // height, (x + y) * 2 % 256], 2).astype(np.uint8))


def saved(image: Image.Image, kind: str, **options: object) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def opened(paths: list[Path]) -> Images:
    contents = Files([str(path) for path in paths])
    return Images([path.name for path in paths], contents, survey(contents, "test", paths[0].parent / "cache").sides)


@pytest.mark.parametrize(
    ("mode", "kind", "far"),
    [
        *((mode, "PNG", 2) for mode in ("RGB", "L", "P", "1", "LA", "RGBA")),
        *((mode, "TIFF", 2) for mode in ("RGB", "CMYK", "YCbCr")),
        *(("RGB", kind, 130) for kind in ("JPEG", "WEBP", "GIF", "BMP")),
        ("CMYK", "JPEG", 130),
    ],
)
def test_every_mode_and_format_is_read(mode: str, kind: str, far: int) -> None:
    pixels = decode(saved(smooth().convert(mode), kind)).pixels
    difference = np.abs(pixels - np.asarray(smooth().convert(mode).convert("RGB"), np.int16))
    assert pixels.shape == (40, 60, 3) and difference.max() <= far and difference.mean() < 20


def test_frames_transparency_and_size() -> None:
    first, second = (Image.new("RGB", (8, 8), colour) for colour in ("red", "blue"))
    assert (decode(saved(first, "GIF", save_all=True, append_images=[second])).pixels == (255, 0, 0)).all()
    assert (decode(saved(Image.new("RGBA", (4, 4), (255, 0, 0, 0)), "PNG")).pixels == GREY).all(), "no hidden colour"
    content = saved(smooth(600, 1200), "JPEG")
    height, width = decode(content, 100).pixels.shape[:2]
    assert 200 <= width < 400 and abs(width / height - 2) < 0.05, "reduced, but not below twice the side"
    assert decode(content).pixels.shape == (600, 1200, 3)


@pytest.mark.parametrize("with_simplejpeg", [True, False])
@pytest.mark.parametrize("flag", range(1, 9))
def test_orientation_flags_are_obeyed(flag: int, with_simplejpeg: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not with_simplejpeg:
        monkeypatch.setattr(images, "simplejpeg", None)
    exif = Image.Exif()
    exif[0x0112] = flag
    back = {1: 1, 2: 2, 3: 3, 4: 4, 5: 5, 6: 8, 7: 7, 8: 6}[flag]
    stored = smooth().transpose(TURNS[back]) if back in TURNS else smooth()
    pixels = decode(saved(stored, "JPEG", exif=exif, quality=95)).pixels
    assert pixels.shape == (40, 60, 3) and np.abs(pixels - np.asarray(smooth(), np.int16)).mean() < 6


@pytest.mark.parametrize("kind", [np.uint16, np.float32, np.int32])
def test_more_than_eight_bits_are_windowed(kind: type) -> None:
    values = np.linspace(1000, 3000, 100 * 100).reshape(100, 100).astype(kind)
    decoded = decode(saved(Image.fromarray(values), "TIFF"))
    expected = ((np.linspace(0, 1, 10_000) - 0.01) / 0.98 * 255).clip(0, 255).reshape(100, 100)
    assert decoded.windowed and np.abs(decoded.pixels[..., 0] - expected).max() <= 2
    assert (window(np.full((3, 3), 7.0)) == GREY).all() and (window(np.full((3, 3), np.nan)) == 0).all()
    few = np.zeros((50, 50))
    few[0, 0], few[1, 1] = 9, np.inf
    assert window(few)[0, 0] == 255 and window(few)[1, 1] == 0


def test_a_whole_image_is_stretched_to_a_square() -> None:
    out = np.empty((32, 32, 3), np.uint8)
    stretch(np.array(smooth(100, 200)), 32, out)
    expected = np.asarray(smooth(100, 200).resize((32, 32), Image.Resampling.BILINEAR), np.int16)
    assert np.abs(out - expected).max() <= 3
    exact = RNG.integers(0, 256, (32, 32, 3)).astype(np.uint8)
    stretch(exact, 32, out)
    assert (out == exact).all()
    stretch(np.zeros((1, 5000, 3), np.uint8), 32, out)  # one pixel high
    assert (out == 0).all()


HEADER = b"IHDR" + struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)  # 60,000 x 60,000 pixels
TINY = saved(Image.new("RGB", (1, 1)), "PNG")
BROKEN = {
    "bomb": (TINY[:12] + HEADER + struct.pack(">I", zlib.crc32(HEADER)) + TINY[33:], "bomb"),
    "a bomb below Pillow's own error": (saved(Image.new("1", (10_000, 9_000)), "PNG"), "bomb"),
    "empty": (b"", "empty"),
    "text": (b"hello", "not an image"),
    "half a jpeg": (saved(smooth(200, 200), "JPEG")[:1500], "cut off or damaged"),
    "half a png": (saved(smooth(200, 200), "PNG")[:600], "cut off or damaged"),
    "a jpeg's first bytes": (b"\xff\xd8\xff\xe0", "not an image|damaged"),
}


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("name", BROKEN)
def test_what_cannot_be_read_gives_a_reason(name: str) -> None:  # damage anywhere: test_fuzz.py
    content, reason = BROKEN[name]
    with pytest.raises(DecodeError, match=reason):
        decode(content, 64)


def test_batches_come_in_the_order_asked_for(tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.png" for number in range(70)]
    for number, path in enumerate(paths):
        Image.new("RGB", (5, 5), (number, 0, 0)).save(path)
    found = opened(paths)
    order = torch.from_numpy(RNG.permutation(70))
    batches = list(found.stream(order, 5, 32, workers=3))
    assert [len(rows) for rows, _ in batches] == [32, 32, 6]
    for rows, batch in batches:
        assert batch.dtype == torch.uint8 and batch.shape == (len(rows), 3, 5, 5)
        assert batch[:, 0, 2, 2].tolist() == rows.tolist()
    assert found.read(order[:3], 9)[:, 0, 4, 4].tolist() == order[:3].tolist()
    assert found.read(order[:0], 9).shape == (0, 3, 9, 9) and list(found.stream(order[:0], 9, 4)) == []


def test_memory_is_bounded_and_an_unfinished_stream_ends_its_threads() -> None:
    content, asked = saved(smooth(), "PNG"), []
    contents = Embedded(lambda row: asked.append(row) or content, np.arange(10_000))
    found = Images([str(row) for row in range(10_000)], contents, np.full((10_000, 2), 40, np.int32))
    before = threading.active_count()
    stream = found.stream(torch.arange(10_000), 8, 16)
    next(stream)
    assert len(asked) <= 16 * (AHEAD + 1)
    stream.close()
    assert threading.active_count() == before


def test_a_file_that_changes_vanishes_or_is_odd_is_grey_and_told(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a.png", "b.png", "c.png")]
    for path in paths:
        smooth().save(path)
    found = opened(paths)
    paths[0].write_bytes(b"now something else")
    paths[2].unlink()
    batch = found.read(torch.arange(3), 16)
    assert [(each == GREY).all().item() for each in batch] == [True, False, True]
    assert set(found.failed) == {"a.png", "c.png"} and found.failed["c.png"] == "is not there"
    os.mkfifo(tmp_path / "pipe.jpg")
    (tmp_path / "folder.jpg").mkdir()
    files = Files([str(tmp_path / "pipe.jpg"), str(tmp_path / "folder.jpg"), "a\0b.jpg", str(tmp_path / "x.jpg")])
    reasons = survey(files, "odd", tmp_path / "cache").reason.tolist()
    assert reasons == ["is not an ordinary file", "is a folder", "is not a possible file name", "is not there"]


def test_the_first_look_is_remembered_until_a_file_changes(tmp_path: Path) -> None:
    paths = [tmp_path / "a.png", tmp_path / "b.png", tmp_path / "bad.png"]
    for path in paths[:2]:
        smooth().save(path)
    paths[2].write_bytes(b"x")
    read: list[int] = []

    class Counted(Files):
        def read(self, row: int) -> bytes:
            read.append(row)
            return super().read(row)

    files = Counted([str(path) for path in paths])
    first = survey(files, "name", tmp_path / "cache")
    assert sorted(read) == [0, 1, 2]
    again = survey(files, "name", tmp_path / "cache")
    assert sorted(read) == [0, 1, 2]
    assert (first.thumb == again.thumb).all() and first.reason.tolist() == again.reason.tolist()
    smooth(50, 50).save(paths[1])
    os.utime(paths[1], ns=(1, 1))
    assert survey(files, "name", tmp_path / "cache").sides[1].tolist() == [50, 50] and read[3:] == [1]
    for kept in (tmp_path / "cache").iterdir():
        kept.write_bytes(b"damaged")
    assert (survey(files, "name", tmp_path / "cache").content == again.content)[0].all()
