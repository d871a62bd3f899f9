"""What is measured on: coloured digits as often as asked, JPEGs of smooth shapes, a small table of features."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from debiaser.data import digits
from debiaser.data.split import Split


def coloured_digits(rows: int) -> Split:
    """So many rows of coloured digits of 28 pixels: those that ship with scikit-learn, over and over."""
    train = digits.load(None, 0.05, 0).train
    place = torch.arange(rows) % len(train)
    return train.subset(place)


def features(rows: int, width: int = 32, classes: int = 10) -> Split:
    """So many rows of random features with labels."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, width, generator=generator)
    return Split.of(x, torch.randint(0, classes, (rows,), generator=generator))


def as_bytes(split: Split) -> np.ndarray:
    """(n, h, w, 3) its pictures as 8-bit pixels."""
    x: Tensor = torch.cat([batch.x for batch in split.batches(2000)])
    return (x * 255).round().byte().permute(0, 2, 3, 1).contiguous().numpy()


@contextmanager
def jpegs(count: int, side: int) -> Iterator[list[str]]:
    """Paths of so many square JPEGs of smooth shapes with some noise, for as long as it is open."""
    with TemporaryDirectory(prefix="debiaser-bench-") as folder:
        rng, paths = np.random.default_rng(0), [str(Path(folder) / f"{number}.jpg") for number in range(count)]
        noise = rng.normal(0, 6, (side, side, 3)).astype(np.float32)
        for path in paths:
            shapes = Image.fromarray(rng.integers(0, 256, (12, 12, 3), dtype=np.uint8)).resize((side, side))
            noisy = np.asarray(shapes, np.float32) + np.roll(noise, int(rng.integers(side)), axis=1)
            Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(path, quality=90)
        yield paths
