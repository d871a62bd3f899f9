"""Scores turned into probabilities, in float64 and in place: they may be hundreds of millions."""

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from debiaser.errors import Misuse

Shares = NDArray[np.float64]
PART = 2**24  # rows looked at together


def parts(values: Shares) -> Iterator[Shares]:
    """The vector in parts, so that what is computed from it takes little memory."""
    for first in range(0, len(values), PART):
        yield values[first : first + PART]


def probabilities(
    scores: ArrayLike | Tensor, temperature: float = 1, clip: float | None = None, rows: int | None = None
) -> Shares:
    """(n,) scores to the power 1/temperature divided by their sum, none above clip/n."""
    if isinstance(scores, Tensor):
        values: Shares = scores.detach().cpu().to(torch.float64, copy=True).numpy()
    else:
        try:
            values = np.array(scores, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise Misuse(f"scores must be a vector with one number per row: {error}; give numbers") from None
    check_scores(values, rows)
    if not 0 < temperature < float("inf"):
        raise Misuse(f"temperature must be above 0 (1 for the scores themselves), got {temperature:g}")
    values /= values.max()  # so that the sum of very large scores stays finite
    if temperature != 1:
        np.power(values, 1 / temperature, out=values)
    values /= values.sum()
    if clip is not None:
        cap(values, clip)
    return values


def check_scores(values: Shares, rows: int | None) -> None:
    """Refuse what cannot be a score per row."""
    if values.ndim != 1 or not len(values):
        raise Misuse(f"scores must be a vector with one number per row, got shape {values.shape}")
    if rows is not None and len(values) != rows:
        raise Misuse(f"{len(values):,} scores for a dataset of {rows:,} rows; score the same dataset that is sampled")
    for what, finite in (("not finite (NaN or infinite)", True), ("negative", False)):
        wrong = [np.flatnonzero(~np.isfinite(part) if finite else part < 0) for part in parts(values)]
        if count := sum(map(len, wrong)):
            first = next(int(each[0]) + number * PART for number, each in enumerate(wrong) if len(each))
            raise Misuse(
                f"{count:,} of {len(values):,} scores are {what}, the first in row {first}; "
                "leave such rows out, or score with a model that has not diverged"
            )
    if not values.max() > 0:
        raise Misuse("all scores are 0: the model fits every row perfectly, so nothing can be preferred; train it less")


def cap(shares: Shares, clip: float) -> None:
    """Make no share larger than clip/n, in place; what is cut off goes to the others in proportion to their shares."""
    most, positive = clip / len(shares), int(np.count_nonzero(shares))
    if not clip >= 1:
        raise Misuse(f"clip must be at least 1 (a multiple of the uniform probability), got {clip:g}")
    if positive * most < 1:
        raise Misuse(
            f"clip={clip:g} cannot hold: only {positive:,} of {len(shares):,} scores are above 0; "
            f"take at least {len(shares) / positive:.4g}"
        )
    full = np.zeros(len(shares), bool)
    while True:  # each round fills at least one more row
        new = (shares > most) & ~full
        if not new.any():
            return
        full |= new
        shares[full] = most
        rest = 1 - most * int(full.sum())
        others = shares.sum(where=~full)
        if others <= 0 or rest <= 0:
            return
        np.multiply(shares, rest / others, out=shares, where=~full)


def last_positive(shares: Shares) -> int:
    """The last row that can be drawn."""
    for first in reversed(range(0, len(shares), PART)):
        positive = shares[first : first + PART] > 0
        if positive.any():
            return first + len(positive) - 1 - int(positive[::-1].argmax())
    raise AssertionError("checked before: one score is above 0")


def effective_sample_size(shares: Shares) -> float:
    """1 / sum of squared shares."""
    return float(1 / sum(np.square(part).sum() for part in parts(shares)))
