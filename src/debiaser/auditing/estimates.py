"""Numbers with their uncertainty: a mean over samples and an interval that resamples units."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from debiaser.io import numpy_stream

DRAWS = 1000
CHUNK = 2_000_000  # counts held at once
MANY = 1000  # single samples: drawing them one by one would take a second for four thousand
FEWEST_UNITS = 6  # of fewer, even if all agree, a fair coin does the same in more than 5% of cases


@dataclass(frozen=True)
class Estimate:
    """A value, the ends of its 95% interval (None where there is none), and how both were made."""

    value: float
    low: float | None = None
    high: float | None = None
    method: str = ""

    @property
    def plain(self) -> dict[str, Any]:
        return {**asdict(self), "value": None if np.isnan(self.value) else self.value}

    def words(self, unit: str = "%") -> str:
        """`12.3% [10.1, 14.8]`."""
        between = "" if self.low is None or self.high is None else f" [{self.low:.1f}, {self.high:.1f}]"
        return f"{self.value:.1f}{unit}{between}"


def resampled_means(values: NDArray[np.float64], unit: NDArray[np.int64], seed: int = 0) -> NDArray[np.float64]:
    """(DRAWS, c) means of the columns of values (n, c) over bootstrap samples of units."""
    values = values.reshape(len(values), -1)
    _, unit = np.unique(unit, return_inverse=True)
    units = int(unit.max()) + 1
    sums = np.stack([np.bincount(unit, column, units) for column in values.T], 1)
    sizes = np.bincount(unit, minlength=units).astype(np.float64)
    stream, even = numpy_stream(seed, "bootstrap"), np.full(units, 1 / units)
    parts = []
    for start in range(0, DRAWS, step := max(1, CHUNK // units)):
        counts = stream.multinomial(units, even, min(step, DRAWS - start)).astype(np.float64)
        parts.append((counts @ sums) / (counts @ sizes)[:, None])
    return np.concatenate(parts)


def share(hits: NDArray[Any], unit: NDArray[np.int64], seed: int = 0) -> Estimate:
    """The percentage of hits, with an interval over units."""
    if not len(hits):
        return Estimate(float("nan"), method="no samples")
    values = 100 * hits.astype(np.float64)
    units = len(np.unique(unit))
    if units == len(hits) > MANY:  # each unit one sample: so many hits are drawn, whichever they are
        drawn = 100 * numpy_stream(seed, "bootstrap").binomial(units, values.mean() / 100, DRAWS) / units
    else:
        drawn = resampled_means(values, unit, seed)[:, 0]
    return Estimate(float(values.mean()), *interval(drawn), f"bootstrap over {units:,} units")


def interval(drawn: NDArray[np.float64]) -> tuple[float, float]:
    """The ends of the 95% interval of bootstrapped values."""
    low, high = np.percentile(drawn, [2.5, 97.5])
    return float(low), float(high)


def binomial_interval(share: float, n: float) -> tuple[float, float]:
    """The exact 95% interval (Clopper and Pearson) of a share seen in n trials; share * n need not be whole."""
    from scipy.stats import beta

    hits = share * n
    low = float(beta.ppf(0.025, hits, n - hits + 1)) if hits > 0 else 0.0
    return low, float(beta.ppf(0.975, hits + 1, n - hits)) if hits < n else 1.0
