"""A benchmark of pictures as one of frozen features: what `--option features=NAME` trains on."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from debiaser.data import Benchmark, Split
from debiaser.data.gallery import Gallery
from debiaser.data.raw import cache
from debiaser.errors import Misuse
from debiaser.learn.encoders import Encoder, find_encoder
from debiaser.learn.engine import Listener
from debiaser.learn.features import features

BATCH = 64  # pictures decoded at a time


@dataclass(frozen=True, eq=False)
class Encoded:
    """A reader for a split: row numbers (b,) to features (b, width); `pictures` reads what they were made of."""

    array: NDArray[Any] = field(repr=False)
    places: NDArray[np.int64] = field(repr=False)  # of the split's rows in the array
    pictures: Gallery = field(repr=False)

    def __call__(self, rows: Tensor) -> Tensor:
        return torch.from_numpy(self.array[self.places[rows.numpy()]])


def with_features(
    benchmark: Benchmark, name: str, device: str = "cpu", listener: Listener | None = None, data: Path | None = None
) -> Benchmark:
    """The benchmark with the features of the encoder of this name as inputs."""
    return features_of(benchmark, find_encoder("image", name, device, data), listener)


def features_of(benchmark: Benchmark, encoder: Encoder, listener: Listener | None = None) -> Benchmark:
    """The benchmark with this encoder's features as inputs: computed once per picture, then read from the cache.

    Whole pictures at the encoder's size, without augmentation; the same file serves every seed and split.
    """
    splits = {part: getattr(benchmark, part) for part in ("train", "valid", "test")}
    galleries = {part: split.read for part, split in splits.items()}
    if not all(isinstance(gallery, Gallery) for gallery in galleries.values()):
        raise Misuse(
            f"features are for benchmarks of pictures that lie in files, not for {benchmark.name}; "
            "leave --option features out"
        )
    names = sorted({each for gallery in galleries.values() for each in gallery.names})
    array = encode(replace(galleries["train"], names=names), encoder, listener)
    place = {each: number for number, each in enumerate(names)}
    train, valid, test = (encoded(splits[part], galleries[part], array, place) for part in splits)
    notes = (*benchmark.notes, f"inputs are frozen features of {encoder.name}")
    return replace(benchmark, train=train, valid=valid, test=test, notes=notes)


def encode(gallery: Gallery, encoder: Encoder, listener: Listener | None = None) -> NDArray[Any]:
    """(n, width) the features of all pictures of a gallery, mapped from the cache."""
    pictures = gallery.resized(encoder.size)

    def stream(rows: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        return ((part, pictures.pixels(part)) for part in torch.split(rows, BATCH))

    return features(encoder, pictures.identity, len(pictures.names), stream, cache().parent / "features", listener)


def encoded(split: Split, gallery: Gallery, array: NDArray[Any], place: Mapping[str, int]) -> Split:
    """The split with features as inputs."""
    places = np.array([place[name] for name in gallery.names])
    return replace(split, read=Encoded(array, places, gallery))
