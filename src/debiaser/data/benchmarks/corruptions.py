"""The ten corruptions of Corrupted CIFAR-10, severities 1 to 5, whole batches at a time.

Every image has its own random stream, named by seed, corruption and row, so that its bytes depend on nothing else.
The parameters are those of CIFAR-10-C. What differs from its generator: the motion blur of snow is a line kernel with
Gaussian weights, rounded to pixels (there: ImageMagick), frost textures are drawn (there: photographs), and the water
of spatter (severities 1 to 3) finds edges with a plain Sobel threshold (there: Canny).
"""

import io
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from scipy import ndimage
from torch.nn import functional as F  # noqa: N812

from debiaser.errors import Misuse
from debiaser.io import derive, numpy_stream

# --- Textures drawn by rule: clouds for fog, and ice crystals for frost

Textures = NDArray[np.float32]

TEXTURES, SIZE = 5, 128
SEEDS, BRANCH, FAINT = 16, 0.1, 0.2  # crystals, how often they branch, and how faint they end
SPREAD = np.pi / 3  # the angle of a branch: ice has six directions


def plasma(draws: Textures, size: int, decay: float) -> Textures:
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
def frost_textures() -> Textures:
    """(5, 3, 128, 128) windows with ice, from 0 to 1: always the same ones."""
    return np.stack([_frost(numpy_stream(0, "frost", number)) for number in range(TEXTURES)])


def _frost(rng: np.random.Generator) -> Textures:
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
    return np.asarray(((light - dark) / (bright - dark)).clip(0, 1.2))


VERSION = 1  # raised whenever the same seed would no longer give the same bytes
CHUNK = 500  # images in work at a time: bounds the memory

Floats = NDArray[np.floating[Any]]
Bytes = NDArray[np.uint8]
Rows = NDArray[np.int64]
Streams = Sequence[np.random.Generator]
LUMA = np.array([0.299, 0.587, 0.114], dtype=np.float32)
WATER, MUD = (np.array(each, dtype=np.float32)[:, None, None] / 255 for each in ((175, 238, 238), (63, 42, 20)))


def normals(streams: Streams, shape: tuple[int, ...], mean: float, deviation: float) -> Floats:
    """(b, *shape) normal numbers, each image's from its own stream."""
    return np.stack([each.normal(mean, deviation, shape) for each in streams]).astype(np.float32)


def uniforms(streams: Streams, shape: tuple[int, ...], low: float, high: float) -> Floats:
    """(b, *shape) uniform numbers, each image's from its own stream."""
    return np.stack([each.uniform(low, high, shape) for each in streams]).astype(np.float32)


def smooth(x: Floats, deviation: float, mode: str = "nearest", truncate: float = 4) -> Floats:
    """Images (b, h, w) under a Gaussian blur."""
    return np.asarray(ndimage.gaussian_filter(x, (0, deviation, deviation), mode=mode, truncate=truncate))


def snow(x: Floats, streams: Streams, severity: int) -> Floats:
    """Flakes that fall in one direction, over an image that pales."""
    mean, deviation, zoom, threshold, radius, sigma, weight = (
        (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
        (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
        (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
        (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
        (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
    )[severity - 1]
    layer = enlarge(normals(streams, x.shape[2:], mean, deviation), zoom)
    layer[layer < threshold] = 0
    layer = motion_blur(layer.clip(0, 1), int(radius), sigma, uniforms(streams, (), -135, -45))[:, None]
    grey = np.tensordot(LUMA, x, (0, 1))[:, None]
    pale = weight * x + (1 - weight) * np.maximum(x, grey * 1.5 + 0.5)
    return pale + layer + layer[..., ::-1, ::-1]


def enlarge(x: Floats, factor: float) -> Floats:
    """The middle of images (b, h, w), magnified to their old size."""
    if factor == 1:
        return x
    size = x.shape[-1]
    inner = int(np.ceil(size / factor))
    first = (size - inner) // 2
    cut = torch.from_numpy(x[:, None, first : first + inner, first : first + inner].copy())
    wide = round(inner * factor)
    trim = (wide - size) // 2
    grown = F.interpolate(cut, (wide, wide), mode="bilinear", align_corners=True)[:, 0]
    return grown[:, trim : trim + size, trim : trim + size].numpy().copy()


def motion_blur(x: Floats, radius: int, sigma: float, degrees: Floats) -> Floats:
    """Images (b, h, w), each smeared one way along its own angle (b,) with half a Gaussian; edges are continued."""
    steps = np.arange(2 * radius + 1)
    weights = np.exp(-(steps**2) / (2 * sigma**2))
    weights = (weights / weights.sum()).astype(np.float32)
    angle = np.deg2rad(degrees)[:, None] * np.ones(len(steps))
    across, down = (np.ceil(steps * turn(angle) - 0.5).astype(np.int64) for turn in (np.cos, np.sin))
    height, width = x.shape[1:]
    image = np.arange(len(x))[:, None, None]
    result = np.zeros_like(x)
    for step, weight in enumerate(weights):
        rows = (np.arange(height) + down[:, step, None]).clip(0, height - 1)
        columns = (np.arange(width) + across[:, step, None]).clip(0, width - 1)
        result += weight * x[image, rows[:, :, None], columns[:, None, :]]
    return result


def frost(x: Floats, streams: Streams, severity: int) -> Floats:
    """Ice crystals on a window: a random crop of a drawn texture on top."""
    share, ice = ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45))[severity - 1]
    textures, (height, width) = frost_textures(), x.shape[2:]
    crops = []
    for stream in streams:
        texture = textures[stream.integers(len(textures))]
        top, left = (stream.integers(texture.shape[axis] - x.shape[axis + 1] + 1) for axis in (1, 2))
        crops.append(texture[:, top : top + height, left : left + width])
    return share * x + ice * np.stack(crops)


def fog(x: Floats, streams: Streams, severity: int) -> Floats:
    """A cloud (plasma fractal) in front of the image."""
    amount, decay = ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75))[severity - 1]
    brightest = x.max((1, 2, 3), keepdims=True)
    cloud = plasma(uniforms(streams, (x.shape[-1] ** 2 - 1,), -1, 1), x.shape[-1], decay)
    return np.asarray((x + amount * cloud[:, None]) * brightest / (brightest + amount))


def brightness(x: Floats, streams: Streams, severity: int) -> Floats:  # noqa: ARG001
    """V of HSV raised."""
    value = x.max(1, keepdims=True)
    raised = (value + (0.05, 0.1, 0.15, 0.2, 0.3)[severity - 1]).clip(0, 1)
    return np.asarray(np.where(value > 0, x * (raised / np.maximum(value, 1e-6)), raised))


def contrast(x: Floats, streams: Streams, severity: int) -> Floats:  # noqa: ARG001
    """Every channel drawn towards its mean."""
    mean = x.mean((2, 3), keepdims=True)
    return np.asarray((x - mean) * (0.75, 0.5, 0.4, 0.3, 0.15)[severity - 1] + mean)


def spatter(x: Floats, streams: Streams, severity: int) -> Floats:
    """Drops of water (severities 1 to 3) or mud on the lens."""
    mean, deviation, blur, threshold, amount, mud = (
        (0.62, 0.1, 0.7, 0.7, 0.5, False),
        (0.65, 0.1, 0.8, 0.7, 0.5, False),
        (0.65, 0.3, 1, 0.69, 0.5, False),
        (0.65, 0.1, 0.7, 0.69, 0.6, True),
        (0.65, 0.1, 0.5, 0.68, 0.6, True),
    )[severity - 1]
    liquid = smooth(normals(streams, x.shape[2:], mean, deviation), blur)
    liquid[liquid < threshold] = 0
    if mud:
        mask = smooth((liquid > threshold).astype(np.float32), amount)
        mask[mask < 0.8] = 0
        return x * (1 - mask[:, None]) + mask[:, None] * MUD
    shine = liquid * water_depth(liquid)
    shine *= amount / np.maximum(shine.max((1, 2), keepdims=True), 1e-6)
    return x + shine[:, None] * WATER


def water_depth(liquid: Floats) -> Floats:
    """(b, h, w) how far inside a drop each pixel lies, evened out and lit from one side."""
    across, down = (ndimage.sobel(liquid * 255, axis) for axis in (2, 1))
    inner = np.abs(across) + np.abs(down) <= 150
    distance = np.stack([ndimage.distance_transform_edt(each) for each in inner]).clip(0, 20)
    levels = ndimage.uniform_filter(distance, (0, 3, 3), mode="mirror").astype(np.uint8)
    ranks = np.stack([equalised(each) for each in levels])
    relief = np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]], dtype=np.float32)[None]
    lit = ndimage.correlate(ranks, relief, mode="mirror").clip(0, 255)
    return np.asarray(ndimage.uniform_filter(lit, (0, 3, 3), mode="mirror"))


def equalised(levels: Bytes) -> Floats:
    """An image (h, w) whose grey levels are spread evenly over 0 to 255."""
    below = np.bincount(levels.ravel(), minlength=256).cumsum()
    lowest = below[levels.min()]
    spread = (below - lowest) * (255 / max(1, levels.size - lowest))
    return np.asarray(spread.clip(0, 255).astype(np.float32)[levels])


def elastic(x: Floats, streams: Streams, severity: int) -> Floats:
    """Three corners of a triangle jittered, then every pixel moved by a smooth random field."""
    levels = ((0, 0, 2.56), (1.6, 6.4, 2.24), (2.56, 1.92, 1.92), (3.2, 1.28, 1.6), (3.2, 0.96, 0.96))
    strength, deviation, jitter = levels[severity - 1]
    height, width = x.shape[2:]
    middle, reach = np.array([height // 2, width // 2]), min(height, width) // 3
    corners = middle + reach * np.array([[1, 1], [1, -1], [-1, -1]])
    moved = corners + uniforms(streams, (3, 2), -jitter, jitter).astype(np.float64)
    ones = np.ones((len(x), 3, 1))
    sources = np.broadcast_to(corners, moved.shape)
    back = np.linalg.solve(np.concatenate([moved, ones], 2), sources)  # (b, 3, 2): from where each pixel comes
    down, across = np.mgrid[:height, :width].astype(np.float32)
    grid = np.stack([across, down, np.ones_like(down)], -1) @ back[:, None]
    warped = resample(x, grid[..., 0], grid[..., 1], around_pixels=True)
    if not strength:
        return warped
    field = uniforms(streams, (2, height, width), -1, 1).reshape(-1, height, width)
    field = smooth(field, deviation, "reflect", 3).reshape(-1, 2, height, width) * strength
    return resample(warped, across + field[:, 0], down + field[:, 1], around_pixels=False)


def resample(x: Floats, across: NDArray[Any], down: NDArray[Any], around_pixels: bool) -> Floats:
    """Images read bilinearly at pixel coordinates (b, h, w); beyond the border they are mirrored.

    `around_pixels`: about the middle of the outermost pixels (c b | a b c), else about their outer edge (b a | a b c).
    """
    height, width = x.shape[2:]
    if around_pixels:
        grid = np.stack([across / (width - 1), down / (height - 1)], -1) * 2 - 1
    else:
        grid = np.stack([(across + 0.5) / width, (down + 0.5) / height], -1) * 2 - 1
    where = torch.from_numpy(grid.astype(np.float32))
    read = F.grid_sample(torch.from_numpy(x), where, "bilinear", "reflection", align_corners=around_pixels)
    return read.numpy()


def jpeg(x: Floats, streams: Streams, severity: int) -> Floats:  # noqa: ARG001
    """Saved and read again as JPEG of low quality."""
    quality = (80, 65, 58, 50, 40)[severity - 1]

    def saved(image: Image.Image) -> Image.Image:
        stream = io.BytesIO()
        image.save(stream, "JPEG", quality=quality)
        return Image.open(stream)

    return through_pillow(x, saved)


def pixelate(x: Floats, streams: Streams, severity: int) -> Floats:  # noqa: ARG001
    """Made smaller and large again with a box filter."""
    share = (0.95, 0.9, 0.85, 0.75, 0.65)[severity - 1]
    small = (int(x.shape[3] * share), int(x.shape[2] * share))
    return through_pillow(
        x, lambda each: each.resize(small, Image.Resampling.BOX).resize(each.size, Image.Resampling.BOX)
    )


def through_pillow(x: Floats, change: Callable[[Image.Image], Image.Image]) -> Floats:
    """Images changed one by one as 8-bit Pillow images."""
    pixels = (x * 255).round().astype(np.uint8).transpose(0, 2, 3, 1)
    changed = np.stack([np.asarray(change(Image.fromarray(each))) for each in pixels])
    return changed.transpose(0, 3, 1, 2).astype(np.float32) / 255


def saturate(x: Floats, streams: Streams, severity: int) -> Floats:  # noqa: ARG001
    """S of HSV stretched and shifted; a grey pixel has hue 0 and turns reddish where S is shifted."""
    factor, shift = ((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2))[severity - 1]
    value = x.max(1, keepdims=True)
    chroma = value - x.min(1, keepdims=True)
    old = chroma / np.maximum(value, 1e-6)
    new = (old * factor + shift).clip(0, 1)
    reddish = np.concatenate([value, value * (1 - new), value * (1 - new)], 1)
    return np.where(chroma > 0, value - (value - x) * (new / np.maximum(old, 1e-6)), reddish)


_EVERY = (snow, frost, fog, brightness, contrast, spatter, elastic, jpeg, pixelate, saturate)
CORRUPTIONS: dict[str, Callable[[Floats, Streams, int], Floats]] = {each.__name__: each for each in _EVERY}
NAMES = tuple(CORRUPTIONS)


def corrupt(images: Bytes, kind: Rows, rows: Rows, severity: int = 5, seed: int = 0) -> Bytes:
    """Images (n, 3, h, w), each under the corruption of its kind (n,); `rows` (n,) name their random streams."""
    if severity not in range(1, 6):
        raise Misuse(f"severity must be 1, 2, 3, 4 or 5, got {severity}")
    result = np.empty_like(images)
    for number, (name, change) in enumerate(CORRUPTIONS.items()):
        key = derive(seed, "corruption", name, severity)
        members = np.flatnonzero(kind == number)
        for part in np.split(members, range(CHUNK, len(members), CHUNK)):
            if len(part):
                streams = [np.random.Generator(np.random.Philox(key=[key, row])) for row in rows[part]]
                changed = change(images[part].astype(np.float32) / 255, streams, severity)
                result[part] = changed.clip(0, 1) * 255 + 1e-3  # cut down to whole levels, but 254.9999 is 255
    return result
