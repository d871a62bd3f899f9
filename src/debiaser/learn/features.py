"""Features and pixels of whole data sets, computed once and mapped from their files in the cache."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from debiaser.data.cache import Array, ArrayCache, Rows
from debiaser.learn.encoders import Encoder
from debiaser.progress import task

Stream = Callable[[Tensor], Iterable[tuple[Tensor, Any]]]  # rows to read; parts of them come out, each with its inputs


def features(encoder: Encoder, identity: str, n: int, stream: Stream, folder: Path) -> Array:
    """(n, width) float32, read-only, mapped from its file in the folder; `stream` is asked only for missing rows.

    `identity` names the data: the same words must mean the same n inputs in the same order.
    """
    cache = ArrayCache(folder, (n, encoder.width), np.float32, "features", encoder.identity, identity)
    return fill(cache, stream, encoder.encode)


def pixels(identity: str, n: int, stream: Stream, size: int, folder: Path) -> Array:
    """(n, 3, size, size) uint8, read-only, mapped from its file in the folder; as `features`."""
    return fill(ArrayCache(folder, (n, 3, size, size), np.uint8, "pixels", identity), stream, torch.as_tensor)


def fill(cache: ArrayCache, stream: Stream, encode: Callable[[Any], Tensor]) -> Array:
    """The whole array of a cache, made of what `encode` gives for the inputs of its missing rows."""
    n = cache.shape[0]

    def compute(absent: Rows) -> Iterator[tuple[Rows, Array]]:
        with task(cache.what, n, n - len(absent)) as advance:
            for rows, inputs in stream(torch.from_numpy(absent)):
                yield rows.numpy(), encode(inputs).numpy()
                advance(len(rows))

    return cache.fill(compute)
