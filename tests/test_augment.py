"""Batched augmentation against Pillow, one picture and one map at a time."""

import colorsys
import math

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance

from debiaser.data.augment import PAPER, Augmentation, affine_grid
from debiaser.data.split import Benchmark


def stream(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def photo(size: tuple[int, int] = (40, 40)) -> torch.Tensor:
    """A smooth coloured picture, so that resampling methods differ little."""
    rows, columns = torch.meshgrid(*(torch.linspace(0, 3, side) for side in size), indexing="ij")
    return torch.stack([(rows.sin() + 1) / 2.2, (columns.cos() + 1) / 2.2, ((rows + columns).sin() + 1) / 2.2])[None]


def as_image(x: torch.Tensor) -> Image.Image:
    return Image.fromarray((x[0].permute(1, 2, 0).numpy() * 255).round().astype(np.uint8))


def as_tensor(image: Image.Image) -> torch.Tensor:
    return torch.from_numpy(np.asarray(image).astype(np.float32) / 255).permute(2, 0, 1)[None]


@pytest.mark.parametrize("size", [(28, 28), (30, 50), (1, 3)])
def test_the_grid_of_points_is_torchs(size: tuple[int, int]) -> None:
    maps = torch.randn(7, 2, 3, generator=stream(), dtype=torch.float64)
    expected = torch.nn.functional.affine_grid(maps, [7, 3, *size], align_corners=False)
    torch.testing.assert_close(affine_grid(maps, *size), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("size", [(40, 40), (30, 50)])
@pytest.mark.parametrize("crop", [None, (0.5, 0.9)])
def test_geometry_is_pillows_for_the_same_map(crop: tuple[float, float] | None, size: tuple[int, int]) -> None:
    augmentation = Augmentation(crop=crop, rotate=25, flip=True)
    x = photo(size)
    height, width = size
    for seed in range(8):
        theta = augmentation.draw_maps(1, size, stream(seed))[0].double().numpy()
        # the same map in Pillow's pixel coordinates: unit square [-1, 1] to pixels and back
        to_unit = np.array([[2 / width, 0, -1], [0, 2 / height, -1], [0, 0, 1]])
        pixel_map = np.linalg.inv(to_unit) @ np.vstack([theta, [0, 0, 1]]) @ to_unit
        if crop is None:  # a rotation by at most what was asked, and a mirror
            linear = pixel_map[:2, :2]
            np.testing.assert_allclose(linear @ linear.T, np.eye(2), atol=1e-5)
            assert abs(linear[1, 1]) > math.cos(math.radians(25)) - 1e-6
        coefficients = pixel_map[:2].flatten()
        reference = as_image(x).transform(
            (width, height), Image.Transform.AFFINE, coefficients, Image.Resampling.BILINEAR
        )
        columns, rows = np.meshgrid(np.arange(width) + 0.5, np.arange(height) + 0.5)
        across, down, _ = np.tensordot(pixel_map, np.stack([columns, rows, np.ones_like(rows)]), 1)
        inside = (across > 1) & (across < width - 1) & (down > 1) & (down < height - 1)  # edges are filled otherwise
        difference = (augmentation(x, stream(seed)) - as_tensor(reference)).abs().amax(1)[0].numpy()
        assert inside.mean() > 0.5
        assert difference[inside].max() < 0.02


def test_colours_are_pillows_and_those_of_hsv() -> None:
    """A rotation of the chroma plane stands for the shift in HSV: for small turns of pure colours they agree."""
    x = photo() * 0.5 + 0.25  # no clipping
    factor = float((Augmentation(saturation=0.5).draw_colour_matrices(1, stream(3))[0, 0, 0] - 0.299) / (1 - 0.299))
    theirs = as_tensor(ImageEnhance.Color(as_image(x)).enhance(factor))
    assert abs(factor - 1) > 0.05 and (Augmentation(saturation=0.5)(x, stream(3)) - theirs).abs().max() < 0.012
    colours = torch.tensor([[0.8, 0.3, 0.3], [0.3, 0.7, 0.4], [0.3, 0.4, 0.8], [0.7, 0.7, 0.3]])
    for seed in range(6):
        turned = colours @ Augmentation(hue=0.05).draw_colour_matrices(1, stream(seed))[0].T
        hues = [[colorsys.rgb_to_hsv(*each)[0] for each in both.tolist()] for both in (colours, turned)]
        shifts = [(after - before + 0.5) % 1 - 0.5 for before, after in zip(*hues, strict=True)]
        assert max(shifts) - min(shifts) < 0.035 and all(s * shifts[0] >= -1e-4 for s in shifts)
    grey = torch.full((1, 3, 4, 4), 0.5)
    assert torch.allclose(Augmentation(hue=0.5, saturation=0.9)(grey, stream()), grey, atol=1e-4), "grey stays grey"


def test_crops_follow_the_definition() -> None:
    maps = Augmentation(crop=(0.3, 0.9)).draw_maps(4000, (28, 28), stream())
    width, height = maps[:, 0, 0], maps[:, 1, 1]
    area = width * height
    assert area.min() > 0.26 and area.max() < 0.97
    left, right = maps[:, 0, 2] - width, maps[:, 0, 2] + width
    assert left.min() >= -1.0001 and right.max() <= 1.0001, "a crop lies inside the picture"
    ratio = (width / height).log()
    assert ratio.min() > math.log(3 / 4) - 0.15 and ratio.max() < math.log(4 / 3) + 0.15
    whole = Augmentation(crop=(0.9, 1.1)).draw_maps(20_000, (28, 28), stream())
    share = ((whole[:, 0, 0] == 1) & (whole[:, 1, 1] == 1)).float().mean()
    assert 0.1 < share < 0.3, "where no try fits, the whole picture is taken (simulated: 17%)"


def test_it_is_seeded_per_sample_and_off_by_default(benchmark_digits: Benchmark) -> None:
    x = benchmark_digits.train.batch(torch.zeros(6, dtype=torch.long)).x
    out = PAPER(x, stream(1))
    assert torch.equal(out, PAPER(x, stream(1))) and not torch.equal(out, PAPER(x, stream(2)))
    assert not torch.equal(out[0], out[1]), "each sample has its own draw"
    assert out.shape == x.shape and out.min() >= 0 and out.max() <= 1
    assert torch.equal(Augmentation()(x, stream()), x)


def test_shift_moves_by_whole_pixels() -> None:
    x = torch.rand(1, 3, 12, 12)
    seen = set()
    for seed in range(30):
        out = Augmentation(shift=2)(x, stream(seed))
        theta = Augmentation(shift=2).draw_maps(1, (12, 12), stream(seed))[0]
        columns, rows = round(float(theta[0, 2]) * 6), round(float(theta[1, 2]) * 6)
        seen.add((columns, rows))
        inner = out[..., 2:10, 2:10]
        assert torch.allclose(inner, x[..., 2 + rows : 10 + rows, 2 + columns : 10 + columns], atol=1e-5)
    assert len(seen) > 8
