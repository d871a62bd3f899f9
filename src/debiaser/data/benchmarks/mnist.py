"""Colored MNIST: a digit in one of ten colours, the colour of its class but for a share rho.

Multi-bias MNIST: a digit among three companions, seven attributes that each go with it, 54,000 / 6,000 / 10,000.

The paper gives the idea but no generator (D14). Here: 56x56 pixels, a 2x2 grid of tiles on black: the digit (top left),
an article of clothing, a cursive character and a letter from A to J. Class k of every source goes with digit k, and
every tile has a colour of its own. Each of the seven attributes is aligned with probability 1 - rho, on its own.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from debiaser.data import bias as inject
from debiaser.data import raw
from debiaser.data.bias import DIGITS, Grey, Integers, colour_benchmark
from debiaser.data.split import Benchmark
from debiaser.errors import known
from debiaser.io import numpy_stream

# --- Colored MNIST as the released generator makes it: file order, 54,000 / 6,000 / 10,000, ten fixed colours (D4, D5)

TRAIN = 54_000
TEST_SEED = 0  # the test set is made once and shared by all rho and seeds


def parts(root: Path | None) -> dict[str, Grey]:
    """The grey images of each split."""
    mnist = raw.load("mnist", root)
    y_train, y_test = mnist.y_train.astype(np.int64), mnist.y_test.astype(np.int64)
    return {
        "train": Grey(mnist.x_train[:TRAIN], y_train[:TRAIN]),
        "valid": Grey(mnist.x_train[TRAIN:], y_train[TRAIN:]),
        "test": Grey(mnist.x_test, y_test),
    }


def load_cmnist(root: Path | None, rho: float, data_seed: int, noise: float = 0.0) -> Benchmark:
    """Load the benchmark; the same seed gives the same bytes."""
    return colour_benchmark("cmnist", parts(root), rho, data_seed, noise, test_seed=TEST_SEED)


def load_cmnist_colour(root: Path | None, rho: float, data_seed: int, noise: float = 0.0) -> Benchmark:
    """Load the same images, with colour as the target and the digit as the attribute that goes with it."""
    return colour_benchmark("cmnist-colour", parts(root), rho, data_seed, noise, True, TEST_SEED)


SETS = {"digit": "mnist", "fashion": "fashion_mnist", "kana": "kmnist", "letter": "emnist_letters"}
ATTRIBUTES = ("digit colour", "fashion", "fashion colour", "kana", "kana colour", "letter", "letter colour")
POSITIONS = ("fixed", "random")
COMPLETE = 60_000  # training images of KMNIST


class Drawn(NamedTuple):
    """A split in parts: the image of each tile (n, 4), its colour (n, 4, 3), attributes (n, 7).

    `places` (n, 4): which tile lies at each place, where that is not always the same.
    """

    images: Integers
    colours: NDArray[np.float32]
    places: Integers | None
    bias: Integers


def load_mbmnist(
    root: Path | None, rho: float, data_seed: int, noise: float = 0.0, positions: str = "fixed"
) -> Benchmark:
    """With `positions=random`, the four tiles of each image are in random order."""
    inject.check_share("rho", rho)
    if positions not in POSITIONS:
        raise known("positions", positions, POSITIONS)
    sources = {tile: raw.load(name, root) for tile, name in SETS.items()}
    training, testing = tiles(sources, "train"), tiles(sources, "test")
    digits = np.arange(len(training[0].target))
    cut = len(digits) * 9 // 10  # file order, as in Colored MNIST
    rows = {"train": digits[:cut], "valid": digits[cut:], "test": np.arange(len(testing[0].target))}
    made = {}
    for part, chosen in rows.items():
        test = part == "test"
        seed, share, grey = (TEST_SEED, inject.TEST_RHO, testing) if test else (data_seed, rho, training)
        drawn = draw(chosen, grey, share, positions == "random", numpy_stream(seed, "mbmnist", part))
        made[part] = inject.Part(grey[0].target[chosen], drawn.bias, composed([each.images for each in grey], drawn))
    return inject.build_benchmark("mbmnist", made, DIGITS, ATTRIBUTES, noise, data_seed, notes_on(sources))


def tiles(sources: Mapping[str, raw.Arrays], part: str) -> list[Grey]:
    """What the four tiles are drawn from: train and valid from the training files, test from the test files.

    Letters are A to J as classes 0 to 9; the original file has 26 classes from 1 on, and its images are transposed.
    """
    grey = [Grey(getattr(each, f"x_{part}"), getattr(each, f"y_{part}").astype(np.int64)) for each in sources.values()]
    images, target = grey[-1]
    if (target == len(DIGITS)).any():
        chosen = np.flatnonzero((target >= 1) & (target <= len(DIGITS)))
        grey[-1] = Grey(np.ascontiguousarray(images[chosen].swapaxes(1, 2)), target[chosen] - 1)
    return grey


def notes_on(sources: Mapping[str, raw.Arrays]) -> tuple[str, ...]:
    """What a reader of the result should know of the sources."""
    notes = ["no generator was published: the construction is ours (D14)"]
    kana = len(sources["kana"].y_train)
    if kana < COMPLETE:
        notes.append(f"KMNIST is not complete here: its tiles are drawn from {kana:,} of {COMPLETE:,} training images")
    if (sources["letter"].y_train == len(DIGITS)).any():
        notes.append("EMNIST letters are the original files; their content could not be checked, no digest is known")
    return tuple(notes)


def draw_members(target: Integers, wanted: Integers, rng: np.random.Generator) -> Integers:
    """(n,) for each wanted class the place of one of its members in `target`, uniformly."""
    counts = np.bincount(target, minlength=len(DIGITS))
    first: Integers = (counts.cumsum() - counts)[wanted]
    return np.argsort(target, kind="stable")[first + (rng.random(len(wanted)) * counts[wanted]).astype(np.int64)]


def draw(digits: Integers, grey: Sequence[Grey], rho: float, shuffled: bool, rng: np.random.Generator) -> Drawn:
    """Everything random about the images of these digits."""
    target = grey[0].target[digits]
    bias = np.stack([inject.draw_bias(target, rho, len(DIGITS), rng) for _ in ATTRIBUTES], 1)
    companions = [draw_members(each.target, bias[:, 2 * tile + 1], rng) for tile, each in enumerate(grey[1:])]
    colours = np.stack([inject.draw_colours(bias[:, 2 * tile], rng) for tile in range(len(grey))], 1)
    places = rng.permuted(np.tile(np.arange(len(grey)), (len(digits), 1)), axis=1) if shuffled else None
    return Drawn(np.stack([digits, *companions], 1), colours.clip(0, 1), places, bias)


def composed(tiles: Sequence[NDArray[np.uint8]], drawn: Drawn) -> Callable[[Tensor], Tensor]:
    """A reader that paints and lays out four tiles: (b, 3, 56, 56) in [0, 1].

    Tiles stay uint8 in their sources and colours stay float, so that no image is ever held in full.
    """
    grey = [torch.from_numpy(each) for each in tiles]
    images, paint = torch.from_numpy(drawn.images), torch.from_numpy(drawn.colours / 255)
    places = None if drawn.places is None else torch.from_numpy(drawn.places)

    def read(rows: Tensor) -> Tensor:
        chosen, colours = images[rows], paint[rows]
        shades = torch.stack([each[chosen[:, tile]] for tile, each in enumerate(grey)], 1)  # (b, 4, 28, 28)
        if places is not None:
            every = torch.arange(len(rows))[:, None]
            shades, colours = shades[every, places[rows]], colours[every, places[rows]]
        b, _, height, width = shades.shape
        grid = shades.view(b, 2, 2, height, width).permute(0, 1, 3, 2, 4)  # row, line, column, place in line
        shade = colours.view(b, 2, 2, 3).permute(0, 3, 1, 2)[:, :, :, None, :, None]
        return (grid[:, None] * shade).reshape(b, 3, 2 * height, 2 * width)

    return read
