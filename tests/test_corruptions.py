"""The ten corruptions: formulas against their definitions, and bytes that depend on seed and row alone."""

import colorsys
import io

import numpy as np
import pytest
from PIL import Image
from scipy import ndimage

from debiaser.data.benchmarks import corruptions
from debiaser.data.benchmarks.corruptions import NAMES, corrupt, frost_textures, motion_blur, plasma, resample
from debiaser.errors import Misuse


def photos(n: int, seed: int = 0) -> np.ndarray:
    """Smooth coloured pictures (n, 3, 32, 32), some of them dark."""
    noise = np.random.default_rng(seed).random((n, 3, 32, 32))
    smooth = ndimage.gaussian_filter(noise, (0, 0, 3, 3), mode="wrap")
    smooth = (smooth - smooth.min()) / (smooth.max() - smooth.min())
    return (smooth * np.linspace(0.4, 1, n)[:, None, None, None] * 255).astype(np.uint8)


def one(name: str, pictures: np.ndarray, severity: int = 5, seed: int = 0) -> np.ndarray:
    n = len(pictures)
    return corrupt(pictures, np.full(n, NAMES.index(name)), np.arange(n), severity, seed)


@pytest.mark.parametrize("name", NAMES)
def test_every_corruption_changes_more_with_severity_and_keeps_the_form(name: str) -> None:
    x = photos(24)
    changed = [one(name, x, severity) for severity in range(1, 6)]
    distance = [np.abs(each.astype(float) - x).mean() for each in changed]
    assert all(each.shape == x.shape and each.dtype == np.uint8 for each in changed)
    assert distance[4] > 1.5 and len({each.tobytes() for each in changed}) == 5
    if name not in {"elastic", "saturate", "spatter"}:  # these change kind on the way, by CIFAR-10-C's own numbers
        assert distance[4] > distance[0]


def test_bytes_depend_on_seed_and_row_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    x, rows = photos(40), np.arange(100, 140)
    kind = np.arange(40) % 10
    whole = corrupt(x, kind, rows, 5, seed=3)
    order = np.random.default_rng(1).permutation(40)
    monkeypatch.setattr(corruptions, "CHUNK", 3)
    parts = corrupt(x[order], kind[order], rows[order], 5, 3)
    assert np.array_equal(parts, whole[order]), "neither order nor batches matter"
    other = corrupt(x, kind, rows, 5, seed=4)
    random = [number for number, name in enumerate(NAMES) if name in {"snow", "frost", "fog", "spatter", "elastic"}]
    for number in range(10):
        assert np.array_equal(whole[kind == number], other[kind == number]) == (number not in random)
    for severity in (0, 6, -1):
        with pytest.raises(Misuse, match="severity must be 1, 2, 3, 4 or 5"):
            corrupt(x, kind, rows, severity)
    assert " ".join(NAMES) == "snow frost fog brightness contrast spatter elastic jpeg pixelate saturate"
    twins = corrupt(x[[0, 0]], np.full(2, 0), np.array([5, 6]), 5, 0)
    assert not np.array_equal(*twins), "each row has its own snow"


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("brightness", lambda h, s, v: (h, s, min(1, v + 0.3))),
        ("saturate", lambda h, s, v: (h, min(1, s * 2.5 + 0.2), v)),
    ],
)
def test_colour_corruptions_are_those_of_hsv(name: str, change: object) -> None:
    x = photos(4)
    x[0, :, :4] = 77  # grey
    x[0, :, 4:8] = 0  # black
    found = one(name, x).transpose(0, 2, 3, 1).reshape(-1, 3)
    for before, after in zip(x.transpose(0, 2, 3, 1).reshape(-1, 3)[::37], found[::37], strict=True):
        wanted = colorsys.hsv_to_rgb(*change(*colorsys.rgb_to_hsv(*(before / 255))))  # type: ignore[operator]
        assert np.abs(np.array(wanted) * 255 - after).max() < 1.1


def test_contrast_jpeg_and_pixelate_by_definition() -> None:
    x = photos(6)
    mean = x.astype(float).mean((2, 3), keepdims=True)
    assert np.abs((x - mean) * 0.15 + mean - one("contrast", x)).max() < 1.1
    for picture, jpeg, coarse in zip(x, one("jpeg", x), one("pixelate", x), strict=True):
        image, stream = Image.fromarray(picture.transpose(1, 2, 0)), io.BytesIO()
        image.save(stream, "JPEG", quality=40)
        assert np.array_equal(np.asarray(Image.open(stream)).transpose(2, 0, 1), jpeg)
        box = image.resize((20, 20), Image.Resampling.BOX).resize((32, 32), Image.Resampling.BOX)
        assert np.array_equal(np.asarray(box).transpose(2, 0, 1), coarse)


def test_fog_is_a_cloud_of_diamond_and_square() -> None:
    draws = np.random.default_rng(0).uniform(-1, 1, (3, 63)).astype(np.float32)
    cloud = plasma(draws, 8, 2)
    assert cloud.min() == 0 and cloud.max() == 1 and cloud.shape == (3, 8, 8)
    by_hand = np.zeros((8, 8))
    values = iter(draws[1].astype(float))
    step, strength = 8, 1.0
    while step >= 2:
        half, starts = step // 2, range(0, 8, step)
        at = by_hand.__getitem__
        for r, c in [(r, c) for r in starts for c in starts]:
            corners = [at(((r + a) % 8, (c + b) % 8)) for a in (0, step) for b in (0, step)]
            by_hand[r + half, c + half] = sum(corners) / 4 + strength * next(values)
        for down, across in ((half, 0), (0, half)):
            for r, c in [(r + down, c + across) for r in starts for c in starts]:
                around = [at(((r + a) % 8, (c + b) % 8)) for a, b in ((half, 0), (-half, 0), (0, half), (0, -half))]
                by_hand[r, c] = sum(around) / 4 + strength * next(values)
        step, strength = half, strength / 4
    by_hand = (by_hand - by_hand.min()) / (by_hand.max() - by_hand.min())
    assert np.allclose(by_hand, cloud[1], atol=1e-5)


def test_motion_blur_smears_one_way_and_keeps_the_light() -> None:
    x = np.zeros((2, 32, 32), dtype=np.float32)
    x[:, 16, 16] = 1
    down, across = motion_blur(x, 3, 2, np.array([-90.0, 180.0], dtype=np.float32))
    assert np.flatnonzero(down.sum(0)).tolist() == [16] == np.flatnonzero(across.sum(1)).tolist()
    weights = np.exp(-(np.arange(7) ** 2) / 8)
    assert np.allclose(down[16:23, 16], weights / weights.sum(), atol=1e-6) and np.isclose(down.sum(), 1)
    flat = np.full((1, 32, 32), 0.3, dtype=np.float32)
    assert np.allclose(motion_blur(flat, 14, 12, np.array([-77.0], dtype=np.float32)), 0.3)


@pytest.mark.parametrize(("around_pixels", "mode"), [(True, "mirror"), (False, "reflect")])
def test_resampling_is_scipys(around_pixels: bool, mode: str) -> None:
    rng = np.random.default_rng(0)
    x = rng.random((2, 3, 32, 32)).astype(np.float32)
    down, across = (each + rng.uniform(-6, 6, (2, 32, 32)) for each in np.mgrid[:32, :32])
    found = resample(x, across, down, around_pixels)
    for n in range(2):
        for c in range(3):
            wanted = ndimage.map_coordinates(x[n, c], [down[n], across[n]], order=1, mode=mode)
            assert np.abs(found[n, c] - wanted).max() < 1e-4


def test_elastic_moves_but_keeps_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    x = photos(8)
    moved = one("elastic", x)
    assert np.abs(moved.astype(float) - x).mean() > 1
    assert np.abs(moved.mean((2, 3)) - x.mean((2, 3))).max() < 12
    monkeypatch.setattr(corruptions, "uniforms", lambda streams, shape, low, high: np.zeros((len(streams), *shape)))
    assert np.abs(one("elastic", x).astype(float) - x).max() <= 1, "no jitter, no field: the same picture"


def test_textures_are_always_the_same_and_visible() -> None:
    textures = frost_textures()
    assert textures.shape == (5, 3, 128, 128) and textures.min() >= 0 and textures.max() <= 1
    assert (textures.std((1, 2, 3)) > 0.15).all() and (np.abs(textures.mean((1, 2, 3)) - 0.5) < 0.15).all()
    assert (textures.mean((2, 3))[:, 2] > textures.mean((2, 3))[:, 0]).all(), "ice is bluish"
