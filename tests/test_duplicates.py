"""Copies are found, exact and near; different images stay different; nothing is quadratic."""

import io
import tarfile
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from debiaser.data.benchmarks import mnist
from debiaser.data.images import decode
from debiaser.data.own.checks import LOOK, Survey, digests, joined, near, numbered, same


def surveyed(arrays: list[np.ndarray]) -> Survey:
    seen = np.zeros(len(arrays), LOOK).view(np.recarray)
    for row, pixels in enumerate(arrays):
        seen.drawing[row], seen.thumb[row] = digests(pixels)
        seen.sides[row] = pixels.shape[1::-1]
    return seen


def again(pixels: np.ndarray, kind: str = "JPEG", scale: float = 1.0, **options: int) -> np.ndarray:
    """The image, resized and saved again."""
    image = Image.fromarray(pixels)
    image = image.resize((round(image.width * scale), round(image.height * scale)), Image.Resampling.BICUBIC)
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return decode(stream.getvalue(), 256).pixels


def test_sets_are_numbered_in_order_of_appearance() -> None:
    pairs = np.array([[4, 1], [1, 2]])
    assert joined(5, pairs).tolist() == [0, 1, 1, 2, 1]
    assert joined(3).tolist() == [0, 1, 2] and joined(0).tolist() == []
    assert numbered(["b", "a", "b"]).tolist() == [0, 1, 0]
    assert same(np.array([3, 1, 3, 3])).tolist() == [[0, 2], [2, 3]]


def test_saved_again_is_a_copy_and_another_picture_is_not(real_data: Path) -> None:
    with tarfile.open(real_data / "bar_240px.tar") as archive:
        members = [member for member in archive if member.name.endswith(".jpg")][:120]
        originals = [decode(archive.extractfile(member).read(), 256).pixels for member in members]
    variants = {"quality": {"quality": 50}, "half": {"scale": 0.5, "quality": 85}, "png": {"kind": "PNG"}}
    for name, options in variants.items():
        seen = surveyed([*originals, *(again(each, **options) for each in originals)])
        unit = joined(240, near(seen))
        assert (unit[:120] == unit[120:]).mean() >= 0.9, name
        assert len(np.unique(unit)) >= 119, name  # no two different images were joined


def test_coloured_digits_are_not_copies(real_data: Path) -> None:
    train = mnist.load_cmnist(real_data, 0.01, 0).train.subset(torch.arange(6_000))
    pixels = torch.cat([(batch.x * 255).round().byte() for batch in train.batches(4000)]).permute(0, 2, 3, 1).numpy()
    seen = surveyed(list(pixels))
    unit = joined(len(pixels), near(seen))
    assert len(pixels) - len(np.unique(unit)) < 0.001 * len(pixels)
    recoloured = pixels[:50][..., [1, 2, 0]]
    seen = surveyed([*pixels[:50], *recoloured, *pixels[:50]])
    unit = joined(150, near(seen))
    coloured = np.abs(pixels[:50].astype(int) - recoloured).max((1, 2, 3)) > 60
    assert coloured.sum() > 25
    assert (unit[:50] == unit[100:]).all() and (unit[:50] != unit[50:100])[coloured].all()


@pytest.mark.parametrize("shade", [0, 255])
def test_flat_pictures_collide_only_where_they_are_equal(shade: int) -> None:
    flat = [np.full((20, 20, 3), (shade, level, 9), np.uint8) for level in range(0, 250, 5)]
    unit = joined(100, near(surveyed(flat + flat)))
    assert (unit[:50] == unit[50:]).all() and len(np.unique(unit)) == 50


@pytest.mark.long
def test_the_search_is_not_quadratic() -> None:
    seen = np.zeros(100_000, LOOK).view(np.recarray)  # one bucket: nothing was drawn
    seen.sides[:] = 32
    seen.thumb[:] = np.random.default_rng(0).integers(0, 256, (100_000, 1, 1, 3), np.uint8)
    started = time.process_time()
    near(seen)
    assert time.process_time() - started < 30


def test_shape_matters() -> None:
    drawn = np.random.default_rng(0).integers(0, 256, (8, 8, 3), np.uint8)
    wide = np.repeat(np.repeat(drawn, 5, 0), 10, 1)
    square = np.repeat(np.repeat(drawn, 10, 0), 10, 1)
    assert len(near(surveyed([wide, square]))) == 0 and len(near(surveyed([wide, wide]))) > 0
