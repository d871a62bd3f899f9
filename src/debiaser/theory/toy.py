"""The one-dimensional example of Theorem 2, in closed form and by a minimiser that knows only the definitions."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq, minimize, minimize_scalar

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Sets:
    """Sets of samples on a line: each sample of set j has the loss (theta - centre_j)^2 / 2, and there are size_j."""

    centres: tuple[float, ...]
    sizes: tuple[int, ...]

    @classmethod
    def two(cls, a: float, majority: int, minority: int) -> "Sets":
        """The paper's example: centres -a for the set M and a for the set m."""
        return cls((-a, a), (majority, minority))

    def gradients(self, theta: float) -> Array:
        """The gradient of one sample of each set."""
        return theta - np.array(self.centres)

    def uniform(self) -> Array:
        """The mass of each set where all samples count the same."""
        return np.array(self.sizes) / sum(self.sizes)

    def trained(self, masses: Array) -> float:
        """The parameter at which the weighted gradients add up to zero, found numerically."""
        return float(brentq(lambda theta: masses @ self.gradients(theta), *self.ends(), xtol=1e-15, rtol=1e-15))

    def ends(self) -> tuple[float, float]:
        """Between these lies every trained parameter."""
        return min(self.centres) - 1.0, max(self.centres) + 1.0

    def trace(self, masses: Array) -> float:
        """Tr[I_h(theta_h)^-1], a scalar here: the inverse of the weighted mean of squared gradients."""
        return 1 / float(masses @ self.gradients(self.trained(masses)) ** 2)


def closed_form(sets: Sets) -> Array:
    """The probability of one sample of each set by Theorem 2: |g_j| / Z at the uniformly trained parameter."""
    sizes = np.array(sets.sizes)
    norms = np.abs(sets.gradients(float(sets.uniform() @ np.array(sets.centres))))
    return np.asarray(norms / (sizes @ norms))


def minimised(sets: Sets) -> Array:
    """The probability of one sample of each of two sets that minimises the trace, by bounded scalar search."""
    found = minimize_scalar(
        lambda mass: sets.trace(np.array([mass, 1 - mass])),
        bounds=(1e-6, 1 - 1e-6),
        method="bounded",
        options={"xatol": 1e-12},
    )
    return np.asarray(np.array([found.x, 1 - found.x]) / np.array(sets.sizes))


def minimised_of_many(sets: Sets) -> Array:
    """The mass of each of any number of sets that minimises the trace: maximises the information on the simplex."""
    count = len(sets.sizes)
    found = minimize(
        lambda masses: -1 / sets.trace(masses / masses.sum()),
        sets.uniform(),
        bounds=[(0, 1)] * count,
        constraints={"type": "eq", "fun": lambda masses: masses.sum() - 1},
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 500},
    )
    return np.asarray(found.x / found.x.sum())


@dataclass(frozen=True)
class Case:
    """One example of Theorem 2: its solution by the closed form and by the minimiser, (h_M, h_m) each."""

    a: float
    majority: int
    minority: int
    closed: tuple[float, float]
    found: tuple[float, float]

    @property
    def distance(self) -> float:
        """The larger relative difference between the two."""
        return max(abs(one / other - 1) for one, other in zip(self.found, self.closed, strict=True))

    @property
    def majority_mass(self) -> float:
        """What all of M gets together by the minimiser; Theorem 2's proof says 1/2."""
        return self.majority * self.found[0]


SCALES = (0.01, 0.1, 0.5, 1.0, 3.0, 10.0)
SIZES = (1, 2, 9, 10, 95, 200, 995, 54_000)


def cases() -> Iterator[Case]:
    """Every combination of a, |M| and |m|."""
    for a in SCALES:
        for majority in SIZES:
            for minority in SIZES:
                sets = Sets.two(a, majority, minority)
                closed, found = closed_form(sets), minimised(sets)
                yield Case(
                    a, majority, minority, (float(closed[0]), float(closed[1])), (float(found[0]), float(found[1]))
                )


@dataclass(frozen=True)
class Beyond:
    """Three sets on a line: masses and traces of uniform sampling, of gradient norms, and of the minimiser."""

    sets: Sets
    uniform: tuple[float, ...]
    by_norm: tuple[float, ...]
    found: tuple[float, ...]

    def trace(self, masses: tuple[float, ...]) -> float:
        """Tr[I_h(theta_h)^-1] at these masses."""
        return self.sets.trace(np.array(masses))


def beyond(sets: Sets = Sets((-1.0, 0.0, 1.0), (90, 8, 2))) -> Beyond:  # noqa: B008
    """What becomes of Theorem 2 with a third set between the two."""
    by_norm = closed_form(sets) * np.array(sets.sizes)
    return Beyond(sets, *(tuple(map(float, each)) for each in (sets.uniform(), by_norm, minimised_of_many(sets))))
