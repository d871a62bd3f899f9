"""Drawing rows: shuffled once each, or with replacement in proportion to a score."""

from collections.abc import Iterator
from typing import Protocol

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from torch.utils.data import Sampler

from debiaser.errors import Misuse
from debiaser.randomness import numpy_stream


class RowSampler(Protocol):
    """Anything that says which rows an epoch consists of."""

    @property
    def identity(self) -> bytes:
        """What decides its draws: samplers that differ in it draw other rows."""
        ...

    def draw(self, epoch: int) -> Tensor:
        """(m,) row numbers of this epoch."""
        ...


class Shuffle:
    """Every row once, in an order of its own each epoch."""

    def __init__(self, n: int, seed: int = 0) -> None:
        self.n, self.seed = n, seed

    @property
    def identity(self) -> bytes:
        return f"shuffle {self.n} {self.seed}".encode()

    def draw(self, epoch: int) -> Tensor:
        return torch.from_numpy(numpy_stream(self.seed, "shuffle", epoch).permutation(self.n))


class ScoreSampler(Sampler[int]):
    """Draws rows with replacement, each with probability score / sum of scores, exactly (float64).

    Each pass is a new draw; (seed, epoch) fixes it, and `set_epoch` says which epoch the next pass is. `length` is how
    many rows a pass draws, by default as many as there are scores. A `DataLoader` takes it as `sampler=`.
    """

    def __init__(self, scores: ArrayLike | Tensor, seed: int = 0, length: int | None = None) -> None:
        self.probabilities = probabilities(scores)
        self.seed, self.length, self.epoch = seed, len(self.probabilities) if length is None else length, 0
        if self.length < 1:
            raise Misuse(f"length must be at least 1, got {self.length}")
        self._cumulative = np.cumsum(self.probabilities)
        self._last = int(np.flatnonzero(self.probabilities)[-1])

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[int]:
        rows = self.draw(self.epoch)
        self.epoch += 1
        return iter(rows.tolist())

    def set_epoch(self, epoch: int) -> None:
        """Make the next pass the draw of this epoch."""
        self.epoch = epoch

    def draw(self, epoch: int) -> Tensor:
        """(length,) rows of this epoch; O(log n) a row."""
        uniform = numpy_stream(self.seed, "score", epoch).random(self.length) * self._cumulative[-1]
        rows = np.searchsorted(self._cumulative, uniform, side="right")  # "right": a row of score 0 is never drawn
        return torch.from_numpy(np.minimum(rows, self._last))

    @property
    def identity(self) -> bytes:
        """Probabilities, seed and length."""
        return self.probabilities.tobytes() + f"{self.seed} {self.length}".encode()

    @property
    def effective_sample_size(self) -> float:
        """1 / sum of squared probabilities: how many equally likely rows would be as even as this."""
        return effective_sample_size(self.probabilities)

    def __repr__(self) -> str:
        rows, rests = len(self.probabilities), self.effective_sample_size
        return f"ScoreSampler({rows:,} rows, seed={self.seed}, effective sample size {rests:,.1f})"


def probabilities(scores: ArrayLike | Tensor) -> NDArray[np.float64]:
    """(n,) scores divided by their sum, in float64."""
    values = np.asarray(scores.detach().cpu().double() if isinstance(scores, Tensor) else scores, dtype=np.float64)
    if values.ndim != 1 or not len(values):
        raise Misuse(f"scores must be a vector with one number per row, got shape {values.shape}")
    for what, wrong in (("not finite (NaN or infinite)", ~np.isfinite(values)), ("negative", values < 0)):
        if wrong.any():
            first = int(np.flatnonzero(wrong)[0])
            raise Misuse(f"{int(wrong.sum()):,} of {len(values):,} scores are {what}, the first in row {first}")
    if not values.max() > 0:
        raise Misuse("all scores are 0: the model fits every row perfectly, so nothing can be preferred; train it less")
    values = values / values.max()  # so that the sum of very large scores stays finite
    result: NDArray[np.float64] = values / values.sum()
    return result


def effective_sample_size(shares: NDArray[np.float64]) -> float:
    """1 / sum of squared shares."""
    return float(1 / np.square(shares).sum())
