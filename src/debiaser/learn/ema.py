"""One moving average per training row, and the weight that LfF and Disen make of two of them."""

import torch
from torch import Tensor, nn

from debiaser.errors import Misuse

SMALLEST = 1e-8  # keeps the weight defined where both networks fit a row perfectly


class RowAverage(nn.Module):
    """A moving average m (n,) of one number per training row, read relative to the largest of the row's class.

    m <- a m + (1 - a seen) value with a = `ema`: the first value of a row is taken whole. The averages are buffers, so
    that a checkpoint carries them. The rows of one update differ.
    """

    labels: Tensor
    average: Tensor
    seen: Tensor

    def __init__(self, labels: Tensor, ema: float = 0.7) -> None:
        super().__init__()
        check_ema(ema)
        self.ema, self.classes = ema, int(labels.max()) + 1
        self.register_buffer("labels", labels.long(), persistent=False)  # data, not state
        self.register_buffer("average", torch.zeros(len(labels)))
        self.register_buffer("seen", torch.zeros(len(labels), dtype=torch.bool))

    @torch.no_grad()
    def update(self, rows: Tensor, values: Tensor) -> None:
        """Take one new value (b,) for each of these rows (b,)."""
        kept = self.ema * self.seen[rows].to(self.average)
        self.average[rows] = kept * self.average[rows] + (1 - kept) * values.to(self.average)
        self.seen[rows] = True

    @torch.no_grad()
    def relative(self, rows: Tensor | slice = slice(None)) -> Tensor:
        """(b,) averages of these rows (without: of all) over the largest in their class, the whole set considered."""
        largest = self.average.new_zeros(self.classes).scatter_reduce(0, self.labels, self.average, "amax")
        tiny = torch.finfo(largest.dtype).tiny  # a class that is fitted perfectly gives 0, not 0 / 0
        return self.average[rows] / largest.clamp_min(tiny)[self.labels[rows]]

    def extra_repr(self) -> str:
        return f"rows={len(self.labels)}, classes={self.classes}, ema={self.ema}"


def relative_difficulty(biased: RowAverage, debiased: RowAverage, rows: Tensor | slice = slice(None)) -> Tensor:
    """(b,) u_b / (u_b + u_d), near 1 where only the biased network fails: LfF's weight of these rows, or of all."""
    against, towards = biased.relative(rows), debiased.relative(rows)
    return against / (against + towards + SMALLEST)


def check_ema(ema: float) -> None:
    """Refuse a share of the past that never lets a new value in."""
    if not 0 <= ema < 1:
        raise Misuse(f"ema, the share of the past in the average, must lie in [0, 1), got {ema:g}")
