"""Lemma 7, Lemma 9 and Theorem 1 on a well-specified logistic model, where every expectation but one is exact.

Inputs come from finitely many points, so the expectations over x and y are sums, and a training set of any size is two
tables of counts. Only the expectation over training sets is a mean over drawn ones.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq, minimize, minimize_scalar
from scipy.special import expit

from debiaser.io import numpy_stream

Array = NDArray[np.float64]
SIZES = (100, 300, 1_000, 3_000, 10_000, 100_000)
REPLICATES = 20_000
PIECE = 5_000  # training sets fitted at once
STEPS = 60  # of Newton's method; about eight are needed where the maximum exists
SCALES = (1.0, 4.0, 16.0, 64.0, 256.0, 1024.0)


@dataclass(frozen=True)
class World:
    """Points (m, d), training and test marginals p and q (m,) on them, and the true parameter (d,)."""

    points: Array
    p: Array
    q: Array
    theta: Array

    @property
    def truth(self) -> Array:
        """(m,) the probability of the label 1."""
        return np.asarray(expit(self.points @ self.theta))

    @property
    def entropy(self) -> float:
        """The test loss of the true model: the mean entropy of the labels under q."""
        logits = self.points @ self.theta
        return float(self.q @ (np.logaddexp(0, logits) - self.truth * logits))

    def fisher(self, marginal: Array, theta: Array | None = None) -> Array:
        """(..., d, d) the Fisher information under a marginal, at the true parameter or at others (..., d)."""
        chance = expit((self.theta if theta is None else theta) @ self.points.T)
        return products(marginal * chance * (1 - chance), self.points)


def products(weights: Array, points: Array) -> Array:
    """(..., d, d) sum over points of weight (..., m) times x x^T."""
    size = points.shape[1]
    flat = (points[:, :, None] * points[:, None]).reshape(len(points), -1)
    return np.asarray((weights @ flat).reshape(*weights.shape[:-1], size, size))


def biased_world(seed: int, points: int = 64, conflicting: float = 0.05) -> World:
    """A world with a shortcut: p gives little mass to points whose two inputs disagree in sign, q the same to all."""
    stream = numpy_stream(seed, "theory", "logistic")
    inputs = stream.uniform(-2, 2, (points, 2))
    against = inputs[:, 0] * inputs[:, 1] < 0
    p = np.where(against, conflicting / against.sum(), (1 - conflicting) / (~against).sum())
    return World(np.column_stack([np.ones(points), inputs]), p, np.full(points, 1 / points), np.array([0.2, 1.0, 0.5]))


def fitted(world: World, n: int, count: int, stream: np.random.Generator) -> tuple[Array, int]:
    """(count', d) the maximum likelihood parameters of drawn training sets, and how many of them have no maximum."""
    drawn = stream.multinomial(n, world.p, count)
    ones = stream.binomial(drawn, world.truth)
    theta = np.tile(world.theta, (count, 1))
    for _ in range(STEPS):
        chance = expit(theta @ world.points.T)
        gradient = (ones - drawn * chance) @ world.points / n
        hessian = products(drawn * chance * (1 - chance) / n, world.points) + 1e-13 * np.eye(theta.shape[1])
        step = np.linalg.solve(hessian, gradient[..., None])[..., 0]
        length = np.linalg.norm(step, axis=1, keepdims=True)
        theta += step / np.maximum(1, length)  # far from the maximum a whole step may overshoot
        if length.max() < 1e-12:
            break
    exists = length[:, 0] < 1e-8
    return theta[exists], int((~exists).sum())


def excess_loss(world: World, theta: Array) -> Array:
    """(...,) the test loss under q at these parameters minus that at the true one: a Kullback-Leibler divergence."""
    logits, true = theta @ world.points.T, world.points @ world.theta
    return np.asarray((np.logaddexp(0, logits) - np.logaddexp(0, true) - world.truth * (logits - true)) @ world.q)


@dataclass(frozen=True)
class Row:
    """What was measured at one size of the training set; shares are of the drawn sets."""

    n: int
    sets: int
    without_maximum: int
    scaled_excess: float  # n times the mean excess test loss; Lemma 7: tends to half the Fisher information ratio
    standard_error: float
    loss: float  # the mean test loss as printed, without subtracting that of the true parameter
    bound: float  # the mean right side of Theorem 1
    bounded_excess: float  # share in which the right side is at least the excess loss
    bounded_loss: float  # share in which the right side is at least the loss as printed
    trace_deviation: float  # mean of |Tr at the fitted parameter / Tr at the true one - 1|: Lemma 9


def measured(world: World, n: int, seed: int, replicates: int = REPLICATES) -> Row:
    """One row: the excess loss and the bound over many drawn training sets of this size."""
    stream = numpy_stream(seed, "theory", "sets", n)
    pieces, without = [], 0
    for start in range(0, replicates, PIECE):
        theta, missing = fitted(world, n, min(PIECE, replicates - start), stream)
        pieces.append(theta)
        without += missing
    theta = np.concatenate(pieces)
    excess = excess_loss(world, theta)
    traces = np.trace(np.linalg.inv(world.fisher(world.p, theta)), axis1=1, axis2=2)
    bounds = traces * np.trace(world.fisher(world.q)) / (2 * n)
    mean = float(excess.mean())
    return Row(
        n=n,
        sets=len(excess),
        without_maximum=without,
        scaled_excess=n * mean,
        standard_error=n * float(excess.std(ddof=1)) / len(excess) ** 0.5,
        loss=world.entropy + mean,
        bound=float(bounds.mean()),
        bounded_excess=float((bounds >= mean).mean()),
        bounded_loss=float((bounds >= world.entropy + mean).mean()),
        trace_deviation=float(np.abs(traces / inverse_information(world) - 1).mean()),
    )


def information_ratio(world: World) -> float:
    """Tr[I_p^-1 I_q] at the true parameter."""
    return float(np.trace(np.linalg.solve(world.fisher(world.p), world.fisher(world.q))))


def inverse_information(world: World) -> float:
    """Tr[I_p^-1] at the true parameter."""
    return float(np.trace(np.linalg.inv(world.fisher(world.p))))


@dataclass(frozen=True)
class Hardened:
    """The same world with its true parameter scaled up, towards the hard labels that assumption A3 asks for."""

    scale: float
    least_certain: float  # the smallest probability that any point's likelier label has; A3: 1
    entropy: float
    trace: float
    smallest_eigenvalue: float


def hardened(world: World) -> Iterator[Hardened]:
    """The Fisher information as f(y|x) tends to 0 or 1: it vanishes, though A8 says that it is invertible (D41)."""
    for scale in SCALES:
        harder = replace(world, theta=scale * world.theta)
        information = harder.fisher(world.p)
        yield Hardened(
            scale=scale,
            least_certain=float(np.maximum(harder.truth, 1 - harder.truth).min()),
            entropy=harder.entropy,
            trace=float(np.trace(information)),
            smallest_eigenvalue=max(0.0, float(np.linalg.eigvalsh(information)[0])),
        )


@dataclass(frozen=True)
class Matrices:
    """Two facts about traces on drawn pairs of positive definite matrices."""

    pairs: int
    smallest_ordered: float  # Tr[B - A] with A below B; the footnote prints <= 0
    largest_ordered: float
    smallest_slack: float  # Tr[A] Tr[B] / Tr[AB]; Theorem 1's proof uses >= 1


def matrices(seed: int, pairs: int = 2_000, size: int = 4) -> Matrices:
    """The trace facts that the proof of Theorem 1 rests on."""
    stream = numpy_stream(seed, "theory", "matrices")
    one, other = (drawn @ drawn.swapaxes(1, 2) for drawn in stream.normal(size=(2, pairs, size, size)))
    larger = one + other  # one is below it, since the other is positive definite
    ordered = np.trace(larger - one, axis1=1, axis2=2)
    traces = np.trace(one, axis1=1, axis2=2) * np.trace(other, axis1=1, axis2=2)
    slack = traces / np.trace(one @ other, axis1=1, axis2=2)
    return Matrices(pairs, float(ordered.min()), float(ordered.max()), float(slack.min()))


# --- The one-dimensional example of Theorem 2, in closed form and by a minimiser that knows only the definitions


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


TOY_SCALES = (0.01, 0.1, 0.5, 1.0, 3.0, 10.0)
TOY_SIZES = (1, 2, 9, 10, 95, 200, 995, 54_000)


def cases() -> Iterator[Case]:
    """Every combination of a, |M| and |m|."""
    for a in TOY_SCALES:
        for majority in TOY_SIZES:
            for minority in TOY_SIZES:
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
