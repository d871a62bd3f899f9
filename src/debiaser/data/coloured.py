"""Coloured pictures of ten classes: the construction that the digits and Colored MNIST share."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from debiaser.data import inject
from debiaser.data.split import Benchmark, Split, Truth
from debiaser.randomness import numpy_stream


class Grey(NamedTuple):
    """Grey pictures (n, h, w) uint8 and their classes (n,)."""

    pictures: NDArray[np.uint8]
    target: NDArray[np.int64]


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
    inject.check_share("rho", rho)
    inject.check_share("noise", noise, closed=True)
    splits, truth = {}, {}
    for part, grey in parts.items():
        testing = part == "test"
        seed = data_seed if not testing or test_seed is None else test_seed
        rng = numpy_stream(seed, name.removesuffix("-colour"), part)
        colour = inject.draw_bias(grey.target, inject.TEST_RHO if testing else rho, 10, rng)
        painted = inject.coloured(torch.from_numpy(grey.pictures), torch.from_numpy(inject.draw_colours(colour, rng)))
        target, bias = (colour, grey.target) if colour_is_target else (grey.target, colour)
        labels = target if testing else inject.flip_labels(target, noise, 10, numpy_stream(seed, name, part, "noise"))
        classes = inject.COLOUR_NAMES if colour_is_target else tuple(str(digit) for digit in range(10))
        splits[part] = Split(inject.as_tensor(labels), painted, classes)
        truth[part] = Truth(inject.as_tensor(target), inject.as_tensor(bias)[:, None])
    attribute = "digit" if colour_is_target else "colour"
    return Benchmark(name, splits["train"], splits["valid"], splits["test"], truth, (attribute,))
