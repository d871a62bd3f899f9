"""The embedded default: coloured handwritten digits from scikit-learn's own copy, no download.

1,797 images of 8x8 pixels, enlarged to 28x28: the first 1,297 train (of which
the last 10% validate), the last 500 test.
"""

from pathlib import Path

import numpy as np
from PIL import Image

from debiaser.data.bias import Grey, colour_benchmark
from debiaser.data.split import Benchmark

TRAIN, VALID, SIZE = 1167, 130, 28


def enlarge(images: np.ndarray) -> np.ndarray:
    """(n, 28, 28) uint8 from (n, 8, 8) grey levels of 0 to 16."""
    levels = (images * (255 / 16)).round().astype(np.uint8)
    return np.stack(
        [np.asarray(Image.fromarray(each).resize((SIZE, SIZE), Image.Resampling.BICUBIC)) for each in levels]
    )


def parts() -> dict[str, Grey]:
    """The grey images of each split."""
    from sklearn.datasets import load_digits  # slow to import, so only here

    source = load_digits()
    images, target = enlarge(source.images), source.target.astype(np.int64)
    cuts = {"train": slice(0, TRAIN), "valid": slice(TRAIN, TRAIN + VALID), "test": slice(TRAIN + VALID, None)}
    return {part: Grey(images[cut], target[cut]) for part, cut in cuts.items()}


def load(root: Path | None, rho: float, data_seed: int, noise: float = 0.0) -> Benchmark:  # noqa: ARG001
    """Load the benchmark; `root` is not needed, since the images ship with scikit-learn."""
    return colour_benchmark("digits", parts(), rho, data_seed, noise)
