"""Batches, splits and benchmarks: whole batches travel, sample numbers with them, bias labels never."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """Inputs `x` (b, ...), labels `y` (b,) and the numbers (b,) of the samples in their split."""

    x: Tensor
    y: Tensor
    rows: Tensor

    def __len__(self) -> int:
        return len(self.y)

    def to(self, device: torch.device | str) -> "Batch":
        x: Any = each_tensor(self.x, lambda tensor: tensor.to(device))  # inputs may be a nest of tensors
        return Batch(x, self.y.to(device), self.rows.to(device))


def each_tensor(x: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The same nest of dicts, tuples and lists with every tensor changed."""
    if isinstance(x, Tensor):
        return change(x)
    if isinstance(x, Mapping):
        return {name: each_tensor(value, change) for name, value in x.items()}
    if isinstance(x, tuple | list) and any(isinstance(value, Tensor) for value in x):
        return type(x)(each_tensor(value, change) for value in x)
    return x


@dataclass(frozen=True)
class Split:
    """Labels (n,) and a reader that turns sample numbers (b,) into inputs (b, ...): whole batches."""

    y: Tensor
    read: Callable[[Tensor], Tensor] = field(repr=False)
    classes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.y)

    def batch(self, rows: Tensor) -> Batch:
        """The batch of these samples, in this order."""
        return Batch(self.read(rows), self.y[rows], rows)

    def batches(self, size: int) -> Iterator[Batch]:
        """All samples in their own order."""
        for rows in torch.split(torch.arange(len(self)), size):
            yield self.batch(rows)

    def subset(self, rows: Tensor) -> "Split":
        """The split of these samples, numbered anew from 0."""
        read = self.read
        return replace(self, y=self.y[rows], read=lambda chosen: read(rows[chosen]))

    @classmethod
    def of(cls, x: Tensor, y: Tensor, classes: tuple[str, ...] = ()) -> "Split":
        """A split over inputs that are in memory."""
        return cls(y.long(), x.__getitem__, classes)


@dataclass(frozen=True)
class Truth:
    """What only evaluation may know of a split: true target (n,) and bias attributes (n, a), -1 where unknown.

    `overlapping`: each attribute is a trait that a sample has (1) or has not (0), whatever its target is.
    """

    target: Tensor
    bias: Tensor
    overlapping: bool = False

    def flipped(self, y: Tensor) -> Tensor:
        """(n,) bool: samples whose label is not their true target (label noise)."""
        return y != self.target

    def conflicting(self, y: Tensor) -> Tensor:
        """(n,) int8: 1 where a bias attribute goes against the target, 0 where all follow it, -1 where unknown.

        A sample whose label was flipped counts as flipped, not as conflicting. Traits agree with no target: unknown.
        """
        if self.overlapping:
            return torch.full_like(self.target, -1, dtype=torch.int8)
        against = (self.bias != self.target[:, None]).any(1) & ~self.flipped(y)
        return torch.where((self.bias < 0).any(1), -1, against.to(torch.int8)).to(torch.int8)

    def groups(self, y: Tensor) -> Tensor | None:
        """(n,) each sample's group, a combination of label and bias attributes, from 0 on; None where one is unknown.

        For methods that declare `uses_groups`, and for them alone.
        """
        if bool((self.bias < 0).any()):
            return None
        numbers: Tensor = torch.unique(torch.cat([y[:, None], self.bias], 1), dim=0, return_inverse=True)[1]
        return numbers


class There(NamedTuple):
    """How many samples of a published set are here, of how many; `which` tells a part from others (empty: all is)."""

    samples: int
    of: int
    which: str = ""

    @property
    def part(self) -> str:
        """The part in a few words; empty where all is here."""
        return f"{self.samples:,} of {self.of:,} samples" if self.which else ""


@dataclass(frozen=True)
class Benchmark:
    """Three splits to learn from and be judged on; `truth` lies beside them, out of reach of the methods.

    `there`: how much of the published set they are made of; None where nobody publishes it whole.
    """

    name: str
    train: Split
    valid: Split
    test: Split
    truth: Mapping[str, Truth]
    attributes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    there: There | None = None

    @property
    def classes(self) -> tuple[str, ...]:
        return self.train.classes
