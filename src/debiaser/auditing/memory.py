"""Rows that are in memory already: a dataset of (x, y) pairs as a person's own data."""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from debiaser.data.decoding import GREY
from debiaser.data.labels import as_labels
from debiaser.data.own import OwnData, Texts
from debiaser.data.partition import deal
from debiaser.errors import Misuse, Problem
from debiaser.methods.debias import as_split

SLACK = 1e-3  # by which rounding may leave the range of colours


class Tensors:
    """Pictures (n, c, h, w) behind the face of `Pictures`: letterboxed when read."""

    def __init__(self, split: Any, shape: tuple[int, ...], identity: str) -> None:
        self.split, self.shape, self.identity = split, shape, identity
        self.largest_side = self.median_side = max(shape[-2:])
        self.failed: dict[str, str] = {}  # what is in memory does not change meanwhile

    def read(self, rows: Tensor, size: int) -> Tensor:
        """(b, 3, size, size) uint8."""
        return letterboxed(self.split.read(rows), size)

    def stream(self, rows: Tensor, size: int, batch: int) -> Iterable[tuple[Tensor, Tensor]]:
        """The same, part by part."""
        return ((part, self.read(part, size)) for part in torch.split(rows, batch))


def letterboxed(x: Tensor, size: int) -> Tensor:
    """Pictures of any size and 1 or 3 channels, bytes or numbers in [0, 1], as (b, 3, size, size) uint8."""
    x = x.float() * (1 if x.dtype == torch.uint8 else 255)
    x = x.expand(-1, 3, -1, -1) if x.shape[1] == 1 else x
    height, width = x.shape[-2:]
    scale = size / max(height, width)
    shape = (max(1, round(height * scale)), max(1, round(width * scale)))
    if shape != (height, width):
        x = F.interpolate(x, shape, mode="bilinear", antialias=True)
    top, left = (size - shape[0]) // 2, (size - shape[1]) // 2
    x = F.pad(x, (left, size - shape[1] - left, top, size - shape[0] - top), value=GREY)
    return x.round().clamp(0, 255).byte()


def own_of(dataset: Any) -> OwnData:
    """A dataset of (picture, class number) or (text, class number) pairs as own data."""
    if not hasattr(dataset, "__len__") or not len(dataset):
        raise Misuse("there are no rows here: give a path, a dataset of (x, y) pairs, or labels and probabilities")
    first = dataset[0][0] if not hasattr(dataset, "read") else dataset.read(torch.arange(1))[0]
    inputs: Any
    classes: tuple[str, ...] = ()
    if isinstance(first, str):
        texts = [dataset[row][0] for row in range(len(dataset))]
        labels = as_labels([str(dataset[row][1]) for row in range(len(dataset))], "the dataset")
        y, classes = torch.from_numpy(labels.y), labels.classes
        inputs, kind = Texts(texts, digest(text.encode() for text in texts)), "text"
    else:
        split = as_split(dataset)
        if not isinstance(first, Tensor) or first.ndim != 3 or first.shape[0] not in (1, 3):
            raise Misuse(
                "audit takes a dataset of (picture, label) with pictures (1 or 3, height, width), or of (text, label); "
                "for other inputs give the answers of a model: audit(labels, pred_probs, features)"
            )
        y, classes = split.y, split.classes
        identity = digest(checked(split.read, part) for part in torch.split(torch.arange(len(y)), 256))
        inputs, kind = Tensors(split, tuple(first.shape), identity), "image"
    if y.min() < 0 or (y == y[0]).all():
        raise Problem("the dataset needs rows of two classes, and a label for each; leave out those without one")
    names = classes or tuple(str(k) for k in range(int(y.max()) + 1))
    unit = np.arange(len(y))
    return OwnData(
        source=type(dataset).__name__,
        kind=kind,
        ids=[str(row) for row in range(len(y))],
        paths=[""] * len(y),
        y=y,
        classes=names,
        split=np.array(["train", "valid"])[deal(y.numpy(), unit, [0.9, 0.1], 0)],
        unit=unit,
        units_named=False,
        group=None,
        columns={},
        inputs=inputs,
        excluded=[],
        duplicates=[],
        notes=[],
        identity=digest([inputs.identity.encode(), y.numpy().tobytes()]),
    )


def checked(read: Callable[[Tensor], Tensor], rows: Tensor) -> bytes:
    """The bytes of pictures that can be shown as they are: all of one size, in bytes or numbers from 0 to 1."""
    try:
        pictures = read(rows)
    except RuntimeError as error:
        raise Misuse("pictures of several sizes cannot be stacked; resize them, or give them as a folder") from error
    if pictures.is_floating_point():
        low, high = (float(each) for each in pictures.aminmax())
        if low < -SLACK or high > 1 + SLACK:
            raise Misuse(
                f"pictures must be bytes, or numbers from 0 to 1; these reach from {low:.3g} to {high:.3g}: leave out "
                "the normalisation"
            )
    return pictures.contiguous().numpy().tobytes()


def digest(parts: Iterable[bytes] | Iterator[bytes]) -> str:
    """A name for this content."""
    state = hashlib.blake2b(digest_size=16)
    for part in parts:
        state.update(len(part).to_bytes(8, "big") + part)
    return state.hexdigest()
