"""Drawing bias attributes that agree with the target except for a share rho, label noise, and benchmarks of both."""

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from debiaser.data.split import Benchmark, Split, There, Truth
from debiaser.errors import Misuse
from debiaser.io import numpy_stream

Integers: TypeAlias = NDArray[np.int64]

# Ten fixed colours of the released generator (8-bit RGB over 255; decision D5).
_HEX = "dc143c 008080 fde910 0095b6 ed9121 911ebc 46f0f0 fac5bb d2f53c 800000"
PALETTE = np.frombuffer(bytes.fromhex(_HEX), np.uint8).reshape(10, 3) / 255
DIGITS = tuple(str(digit) for digit in range(10))
COLOUR_NAMES = ("crimson", "teal", "yellow", "blue", "orange", "purple", "cyan", "pink", "lime", "maroon")
COLOUR_NOISE = 1e-4  # standard deviation per image and channel (D5)
TEST_RHO = 0.9  # nine of ten values go against the target: colour says nothing about the class


def check_share(name: str, value: float, closed: bool = False) -> float:
    """The value, if it is a share: strictly between 0 and 1, or from 0 on when `closed`."""
    if not (0 <= value < 1 if closed else 0 < value < 1):
        raise Misuse(f"{name} must lie {'in [0, 1)' if closed else 'strictly between 0 and 1'}, got {value:g}")
    return value


def draw_bias(target: Integers, rho: float, classes: int, rng: np.random.Generator) -> Integers:
    """(n,) a value equal to the target with probability 1 - rho, else uniform over the others."""
    against = rng.random(len(target)) < rho
    return np.where(against, (target + rng.integers(1, classes, len(target))) % classes, target)


def assign_bias(target: Integers, rho: float, classes: int) -> Integers:
    """(n,) bias values in exact proportions by rank within each class: the share rho goes evenly to the others.

    The first of a class are aligned; where the others cannot get equally many, the first after the class get one more.
    """
    bias = target.copy()
    for number in range(classes):
        members = np.flatnonzero(target == number)
        against = members[len(members) - round(rho * len(members)) :]
        bias[against] = (number + 1 + np.arange(len(against)) % (classes - 1)) % classes
    return bias


def draw_by_class(target: Integers, share: float, rng: np.random.Generator) -> NDArray[np.bool_]:
    """(n,) bool: of each class this share of its samples, at random."""
    chosen = np.zeros(len(target), dtype=bool)
    for number in range(int(target.max(initial=-1)) + 1):
        rows = np.flatnonzero(target == number)
        chosen[rng.permutation(rows)[: round(share * len(rows))]] = True
    return chosen


def draw_colours(bias: Integers, rng: np.random.Generator) -> NDArray[np.float32]:
    """(n, 3) the palette's colour of each bias value with one small draw per image."""
    return (PALETTE[bias] + rng.normal(0, COLOUR_NOISE, (len(bias), 3))).astype(np.float32)


def coloured(grey: Tensor, colours: Tensor) -> Callable[[Tensor], Tensor]:
    """A reader that paints uint8 images (n, h, w) with one float colour each: (b, 3, h, w) in [0, 1].

    The image stays uint8 in memory and the colour stays float: 8-bit pixels would erase the colour noise.
    """
    return lambda rows: ((grey[rows][:, None].float() / 255) * colours[rows][:, :, None, None]).clamp_(0, 1)


def bytes_reader(images: NDArray[np.uint8], places: Integers | None = None) -> Callable[[Tensor], Tensor]:
    """A reader of uint8 images (n, ...) as floats in [0, 1]; with `places`, sample i is the image at places[i]."""
    kept, where = torch.from_numpy(images), None if places is None else torch.from_numpy(places)
    return lambda rows: kept[rows if where is None else where[rows]].float() / 255


class Part(NamedTuple):
    """A split in the making: its classes (n,), its bias attributes (n, a), -1 where unknown, and its reader."""

    target: Integers
    bias: Integers
    read: Callable[[Tensor], Tensor]


def build_benchmark(
    name: str,
    parts: Mapping[str, Part],
    classes: tuple[str, ...],
    attributes: tuple[str, ...],
    noise: float,
    data_seed: int,
    notes: tuple[str, ...] = (),
    overlapping: bool = False,
    there: There | None = None,
) -> Benchmark:
    """Train, valid and test of these parts; `noise` flips this share of the train and valid labels.

    `overlapping`: the attributes are traits that a sample has or has not, whatever its target is.
    """
    check_share("noise", noise, closed=True)
    if there and there.part:
        notes = (*notes, f"only a part of {name} was here: {there.part}")
    splits, truth = {}, {}
    for part, (target, bias, read) in parts.items():
        flipping = numpy_stream(data_seed, name, part, "noise")
        labels = target if part == "test" else draw_bias(target, noise, len(classes), flipping)
        y, true, attribute = (torch.from_numpy(np.array(each, dtype=np.int64)) for each in (labels, target, bias))
        splits[part] = Split(y, read, classes)
        truth[part] = Truth(true, attribute, overlapping)
    return Benchmark(name, splits["train"], splits["valid"], splits["test"], truth, attributes, notes, there)


# --- Coloured images of ten classes: the construction that the digits and Colored MNIST share


class Grey(NamedTuple):
    """Grey images (n, h, w) uint8 and their classes (n,)."""

    images: NDArray[np.uint8]
    target: Integers


def colour_benchmark(
    name: str,
    parts: Mapping[str, Grey],
    rho: float,
    data_seed: int,
    noise: float = 0.0,
    colour_is_target: bool = False,
    test_seed: int | None = None,
) -> Benchmark:
    """Train, valid and test in colour: aligned with probability 1 - rho, in the test set with 1 in 10.

    `colour_is_target` swaps the roles: the label is the colour, and the digit is the attribute that goes with it.
    `noise` flips this share of the train and valid labels. The test set is the same for every rho and, with
    `test_seed`, for every data seed.
    """
    check_share("rho", rho)
    made = {}
    for part, grey in parts.items():
        testing = part == "test"
        seed = data_seed if not testing or test_seed is None else test_seed
        rng = numpy_stream(seed, name.removesuffix("-colour"), part)
        colour = draw_bias(grey.target, TEST_RHO if testing else rho, 10, rng)
        painted = coloured(torch.from_numpy(grey.images), torch.from_numpy(draw_colours(colour, rng)))
        target, bias = (colour, grey.target) if colour_is_target else (grey.target, colour)
        made[part] = Part(target, bias[:, None], painted)
    classes, attribute = (COLOUR_NAMES, "digit") if colour_is_target else (DIGITS, "colour")
    return build_benchmark(name, made, classes, (attribute,), noise, data_seed)
