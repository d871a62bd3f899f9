"""Norms of rows, for every p in (0, inf]."""

import math

import torch
from torch import Tensor

from debiaser.errors import Misuse

SMALLEST_P = 0.05  # below it even a short vector's norm leaves the range of floats


def check_norm(p: float, power: float) -> None:
    """Refuse a norm or power that ranks nothing."""
    if not p > 0:
        raise Misuse(f"p must be above 0 (inf for the largest entry), got {p:g}")
    if p < SMALLEST_P:
        raise Misuse(f"p={p:g} overflows: a norm of n entries grows with n^(1/p); take p of at least {SMALLEST_P:g}")
    if not (power > 0 and math.isfinite(power)):
        raise Misuse(f"power must be above 0, got {power:g}")


def norm(x: Tensor, p: float) -> Tensor:
    """(n,) entrywise p-norm of each row, for every p in (0, inf]; scaled by the largest entry, so nothing overflows."""
    largest = x.abs().amax(1)
    if math.isinf(p):
        return largest
    safe = torch.where(largest > 0, largest, 1)
    return largest * ((x / safe[:, None]).abs() ** p).sum(1) ** (1 / p)
