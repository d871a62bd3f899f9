"""Textures drawn by rule: clouds for fog, and ice crystals for frost."""

from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from debiaser.randomness import numpy_stream

Floats = NDArray[np.float32]

TEXTURES, SIZE = 5, 128
SEEDS, BRANCH, FAINT = 16, 0.1, 0.2  # crystals, how often they branch, and how faint they end
SPREAD = np.pi / 3  # the angle of a branch: ice has six directions


def plasma(draws: Floats, size: int, decay: float) -> Floats:
    """(b, size, size) clouds from 0 to 1 by diamond-square, which wraps around; `draws` (b, size^2 - 1) from -1 to 1.

    At every level the random part is smaller by the square of `decay`, beginning with all of it.
    """
    cloud = np.zeros((len(draws), size, size))
    step, strength, used = size, 1.0, 0

    def shaken(mean: NDArray[np.float64]) -> NDArray[np.float64]:
        nonlocal used
        count = mean[0].size
        part = draws[:, used : used + count].reshape(mean.shape)
        used += count
        return mean + strength * part

    while step >= 2:
        half = step // 2
        corners = cloud[:, ::step, ::step]
        rows = corners + np.roll(corners, -1, 1)
        cloud[:, half::step, half::step] = centres = shaken((rows + np.roll(rows, -1, 2)) / 4)
        sides = np.roll(centres, 1, 2) + centres + corners + np.roll(corners, -1, 1)
        tops = np.roll(centres, 1, 1) + centres + corners + np.roll(corners, -1, 2)
        cloud[:, half::step, ::step] = shaken(sides / 4)
        cloud[:, ::step, half::step] = shaken(tops / 4)
        step, strength = half, strength / decay**2
    cloud -= cloud.min((1, 2), keepdims=True)
    cloud /= np.maximum(cloud.max((1, 2), keepdims=True), 1e-12)
    return cloud.astype(np.float32)


@cache
def frost_textures() -> Floats:
    """(5, 3, 128, 128) windows with ice, from 0 to 1: always the same ones."""
    return np.stack([_frost(numpy_stream(0, "frost", number)) for number in range(TEXTURES)])


def _frost(rng: np.random.Generator) -> Floats:
    """(3, 128, 128) crystals that grow from random points in six directions and branch, on a bluish cloud."""
    ice = np.zeros((SIZE, SIZE))
    points = rng.uniform(0, SIZE, (SEEDS, 2))
    angle = rng.uniform(0, 2 * np.pi, SEEDS)
    bright = rng.uniform(0.5, 1, SEEDS)
    for _ in range(SIZE // 2):
        cells = points.astype(int) % SIZE
        np.maximum.at(ice, (cells[:, 0], cells[:, 1]), bright)
        points = points + np.stack([np.sin(angle), np.cos(angle)], 1)
        angle = angle + rng.normal(0, 0.05, len(angle))
        born = np.flatnonzero(rng.random(len(points)) < BRANCH)
        side = angle[born] + SPREAD * rng.choice([-1, 1], len(born))
        points, angle = np.concatenate([points, points[born]]), np.concatenate([angle, side])
        bright = np.concatenate([bright * 0.99, bright[born] * 0.75])
        points, angle, bright = (each[bright > FAINT] for each in (points, angle, bright))
    fine = ndimage.gaussian_filter(ice, 0.7, mode="wrap")
    cloud = plasma(rng.uniform(-1, 1, (1, SIZE**2 - 1)).astype(np.float32), SIZE, 1.4)[0]
    thick = ndimage.gaussian_filter(ice, 4, mode="wrap") * cloud
    light = 0.65 * _spread(fine) + 0.5 * _spread(thick) + 0.05
    bluish = np.array([0.8, 0.9, 1.0])[:, None, None] ** (1.5 - light)
    return (light * bluish).clip(0, 1).astype(np.float32)


def _spread(light: NDArray[np.float64]) -> NDArray[np.float64]:
    """The light between its 5th and 95th percentile as 0 to 1 and a little beyond."""
    dark, bright = np.percentile(light, (5, 95))
    spread: NDArray[np.float64] = ((light - dark) / (bright - dark)).clip(0, 1.2)
    return spread
