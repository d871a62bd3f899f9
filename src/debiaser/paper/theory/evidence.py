"""Everything that the verdicts on the paper's theory rest on: Theorem 1 and its lemmas, Theorem 2, the objective.

Lemma 7, Lemma 9 and Theorem 1 are measured on a well-specified logistic model whose inputs come from finitely many
points: the expectations over x and y are sums, and a training set of any size is two tables of counts. Only the
expectation over training sets is a mean over drawn ones.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import brentq, minimize, minimize_scalar
from scipy.special import expit
from scipy.stats import spearmanr
from torch import Tensor
from torch.nn.functional import avg_pool2d

from debiaser.data.benchmarks import digits
from debiaser.io import numpy_stream, torch_stream
from debiaser.learn.forward import Outputs
from debiaser.learn.gradient_norms import grad_norm
from debiaser.learn.losses import cross_entropy
from debiaser.paper.theory.fisher import damped_sweep, head_fisher, inverse_trace
from debiaser.progress import track

Array = NDArray[np.float64]
Numbers = dict[str, float]

# Theorem 1
POINTS, CONFLICTING = 64, 0.05  # of a world with a shortcut: how many, and the mass of those that go against it
SIZES = (100, 300, 1_000, 3_000, 10_000, 100_000)  # of training sets
REPLICATES = 20_000
PIECE = 5_000  # training sets fitted at once
STEPS = 60  # of Newton's method; about eight are needed where the maximum exists
SCALES = (1.0, 4.0, 16.0, 64.0, 256.0, 1024.0)  # of the true parameter, towards the hard labels of assumption A3
PAIRS = 2_000  # of matrices
# Theorem 2
TOY_SCALES = (0.01, 0.1, 0.5, 1.0, 3.0, 10.0)
TOY_SIZES = (1, 2, 9, 10, 95, 200, 995, 54_000)
# The practical objective
DATA_SETS, ROWS, MINORITY = 4, 240, 0.05
ITERATIONS = 300
EVENNESS = 1.0  # weight of the penalty that keeps h near the uniform one
NOTHING = 1e-6  # a probability below this is none
TINY, FORBIDDEN = 1e-300, 1e3
# Many parameters
RHO, POOL, RIDGE = 0.05, 7, 1e-3  # the ridge gives a finite solution, since regression separates the digits
REGRESSION_ITERATIONS, PRECISION = 1_000, 1e-8
FEW = 300  # samples, fewer than there are parameters: the matrices are singular beyond their construction


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

    @property
    def information_ratio(self) -> float:
        """Tr[I_p^-1 I_q] at the true parameter."""
        return float(np.trace(np.linalg.solve(self.fisher(self.p), self.fisher(self.q))))

    @property
    def inverse_information(self) -> float:
        """Tr[I_p^-1] at the true parameter."""
        return float(np.trace(np.linalg.inv(self.fisher(self.p))))


def products(weights: Array, points: Array) -> Array:
    """(..., d, d) sum over points of weight (..., m) times x x^T."""
    size = points.shape[1]
    flat = (points[:, :, None] * points[:, None]).reshape(len(points), -1)
    return np.asarray((weights @ flat).reshape(*weights.shape[:-1], size, size))


def biased_world(seed: int) -> World:
    """A world with a shortcut: p gives little mass to points whose two inputs disagree in sign, q the same to all."""
    inputs = numpy_stream(seed, "theory", "logistic").uniform(-2, 2, (POINTS, 2))
    against = inputs[:, 0] * inputs[:, 1] < 0
    p = np.where(against, CONFLICTING / against.sum(), (1 - CONFLICTING) / (~against).sum())
    return World(np.column_stack([np.ones(POINTS), inputs]), p, np.full(POINTS, 1 / POINTS), np.array([0.2, 1.0, 0.5]))


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


def measured(world: World, n: int, seed: int, replicates: int = REPLICATES) -> Numbers:
    """The excess loss and the bound over many drawn training sets of this size; shares are of the drawn sets."""
    stream = numpy_stream(seed, "theory", "sets", n)
    sizes = [min(PIECE, replicates - start) for start in range(0, replicates, PIECE)]
    theta = np.concatenate([fitted(world, n, size, stream)[0] for size in sizes])
    excess = excess_loss(world, theta)
    traces = np.trace(np.linalg.inv(world.fisher(world.p, theta)), axis1=1, axis2=2)
    bounds = traces * np.trace(world.fisher(world.q)) / (2 * n)
    mean = float(excess.mean())
    return {
        "n": n,
        "sets": len(excess),
        "scaled_excess": n * mean,  # Lemma 7: tends to half the Fisher information ratio
        "standard_error": n * float(excess.std(ddof=1)) / len(excess) ** 0.5,
        "loss": world.entropy + mean,  # as printed, without subtracting that of the true parameter
        "bound": float(bounds.mean()),  # the right side of Theorem 1
        "bounded_excess": float((bounds >= mean).mean()),
        "bounded_loss": float((bounds >= world.entropy + mean).mean()),
        "trace_deviation": float(np.abs(traces / world.inverse_information - 1).mean()),  # Lemma 9
    }


def hardened(world: World, scale: float) -> Numbers:
    """The Fisher information as f(y|x) tends to 0 or 1 (A3): it vanishes, though A8 says it is invertible (D41)."""
    harder = replace(world, theta=scale * world.theta)
    information = harder.fisher(world.p)
    return {
        "scale": scale,
        "least_certain": float(np.maximum(harder.truth, 1 - harder.truth).min()),  # of the likelier labels; A3: 1
        "entropy": harder.entropy,
        "trace": float(np.trace(information)),
        "smallest_eigenvalue": max(0.0, float(np.linalg.eigvalsh(information)[0])),
    }


def matrices(seed: int) -> tuple[Array, Array]:
    """The trace facts that the proof of Theorem 1 rests on, for drawn pairs of positive definite matrices.

    Tr[B - A] with A below B, for which the footnote prints <= 0, and Tr[A] Tr[B] / Tr[AB], used to be >= 1.
    """
    stream = numpy_stream(seed, "theory", "matrices")
    one, other = (drawn @ drawn.swapaxes(1, 2) for drawn in stream.normal(size=(2, PAIRS, 4, 4)))
    larger = one + other  # one is below it, since the other is positive definite
    traces = np.trace(one, axis1=1, axis2=2) * np.trace(other, axis1=1, axis2=2)
    return np.trace(larger - one, axis1=1, axis2=2), traces / np.trace(one @ other, axis1=1, axis2=2)


# The one-dimensional example of Theorem 2, in closed form and by a minimiser that knows only the definitions.


@dataclass(frozen=True)
class Sets:
    """Sets of samples on a line: each sample of set j has the loss (theta - centre_j)^2 / 2, and there are size_j.

    The paper's example has the centres -a for the set M and a for the set m.
    """

    centres: tuple[float, ...]
    sizes: tuple[int, ...]

    def gradients(self, theta: float) -> Array:
        """The gradient of one sample of each set."""
        return theta - np.array(self.centres)

    def uniform(self) -> Array:
        """The mass of each set where all samples count the same."""
        return np.array(self.sizes) / sum(self.sizes)

    def trained(self, masses: Array) -> float:
        """The parameter at which the weighted gradients add up to zero, found numerically."""
        ends = min(self.centres) - 1.0, max(self.centres) + 1.0
        return float(brentq(lambda theta: masses @ self.gradients(theta), *ends, xtol=1e-15, rtol=1e-15))

    def trace(self, masses: Array) -> float:
        """Tr[I_h(theta_h)^-1], a scalar here: the inverse of the weighted mean of squared gradients."""
        return 1 / float(masses @ self.gradients(self.trained(masses)) ** 2)


THREE_SETS = Sets((-1.0, 0.0, 1.0), (90, 8, 2))


def closed_form(sets: Sets) -> Array:
    """The probability of one sample of each set by Theorem 2: |g_j| / Z at the uniformly trained parameter."""
    norms = np.abs(sets.gradients(float(sets.uniform() @ np.array(sets.centres))))
    return np.asarray(norms / (np.array(sets.sizes) @ norms))


def minimised_of_two(sets: Sets) -> Array:
    """The probability of one sample of each of two sets that minimises the trace, by bounded scalar search."""
    mass = lowest_mass(lambda mass: sets.trace(np.array([mass, 1 - mass])), 1e-6, 1e-12)
    return np.asarray(np.array([mass, 1 - mass]) / np.array(sets.sizes))


def lowest_mass(value: Callable[[float], float], margin: float, precision: float) -> float:
    """The mass between 0 and 1, but for a margin, at which a value is lowest, by bounded scalar search."""
    bounds, options = (margin, 1 - margin), {"xatol": precision}
    return float(minimize_scalar(value, bounds=bounds, method="bounded", options=options).x)


def minimised_of_many(sets: Sets) -> Array:
    """The mass of each of any number of sets that minimises the trace: maximises the information on the simplex."""
    found = minimize(
        lambda masses: -1 / sets.trace(masses / masses.sum()),
        sets.uniform(),
        bounds=[(0, 1)] * len(sets.sizes),
        constraints={"type": "eq", "fun": lambda masses: masses.sum() - 1},
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 500},
    )
    return np.asarray(found.x / found.x.sum())


def two_sets(a: float, majority: int, minority: int) -> Numbers:
    """How far the minimiser is from the closed form (the larger relative difference), and what all of M gets: 1/2."""
    sets = Sets((-a, a), (majority, minority))
    found = minimised_of_two(sets)
    distance = float(np.abs(found / closed_form(sets) - 1).max())
    return {"distance": distance, "majority_mass": majority * float(found[0])}


def beyond() -> dict[str, tuple[Array, float]]:
    """What becomes of Theorem 2 with a third set between the two: masses and trace of three choices."""
    sets = THREE_SETS
    masses = {"uniform": sets.uniform(), "by_norm": closed_form(sets) * sets.sizes, "found": minimised_of_many(sets)}
    return {kind: (each, sets.trace(each)) for kind, each in masses.items()}


# The practical objective, min over h of Tr[I_h(theta_h)^-1], minimised directly on a small logistic model.


@dataclass(frozen=True)
class Rows:
    """Inputs (n, d) with a constant, labels (n,) in {0, 1}, and which samples go against the shortcut (n,)."""

    x: Tensor
    y: Tensor
    conflicting: Tensor


def drawn(seed: int, n: int = ROWS, minority: float = MINORITY) -> Rows:
    """Two inputs, a weak one that tells the label and a strong one that fails for the minority; no perfect fit."""
    stream = torch_stream(seed, "theory", "objective")
    y = torch.randint(2, (n,), generator=stream)
    conflicting = torch.zeros(n, dtype=torch.bool)
    conflicting[torch.randperm(n, generator=stream)[: round(n * minority)]] = True
    side = 2.0 * y - 1
    noise = torch.randn(n, 2, dtype=torch.float64, generator=stream)
    core, shortcut = side + noise[:, 0], torch.where(conflicting, -side, side) * 1.5 + 0.75 * noise[:, 1]
    return Rows(torch.stack([torch.ones_like(core), core, shortcut], 1), y.double(), conflicting)


def gradients(rows: Rows, theta: Tensor) -> Tensor:
    """(n, d) the gradient of every sample's cross-entropy."""
    return (torch.sigmoid(rows.x @ theta) - rows.y)[:, None] * rows.x


def newton_step(rows: Rows, h: Tensor, theta: Tensor) -> Tensor:
    """(d,) what Newton's method subtracts for the weighted loss."""
    chance = torch.sigmoid(rows.x @ theta)
    hessian = rows.x.T @ (rows.x * (h * chance * (1 - chance))[:, None])
    step: Tensor = torch.linalg.solve(hessian, h @ gradients(rows, theta))
    return step


def trained(rows: Rows, h: Tensor) -> Tensor:
    """(d,) the weighted maximum likelihood parameter, with its derivative in h.

    The last Newton step is taken with derivatives on, from the maximum itself: that is the implicit derivative.
    """
    theta = torch.zeros(rows.x.shape[1], dtype=torch.float64)
    with torch.no_grad():
        for _ in range(100):
            step = newton_step(rows, h, theta)
            theta = theta - step / step.norm().clamp(min=1)
            if float(step.norm()) < 1e-12:
                break
    return theta - newton_step(rows, h, theta)


def objective(rows: Rows, h: Tensor) -> Tensor:
    """Tr[I_h(theta_h)^-1], differentiable in h; the matrix is invertible where the weighted samples span the space."""
    each = gradients(rows, trained(rows, h))
    inverse: Tensor = torch.linalg.inv(each.T @ (each * h[:, None]))
    return inverse.trace()


def uniform(n: int) -> Tensor:
    """(n,) the same probability for all."""
    return torch.full((n,), 1 / n, dtype=torch.float64)


def by_norm(rows: Rows) -> Tensor:
    """(n,) the sampling probability of PGD: in proportion to the gradient norm at the uniformly trained parameter."""
    norms: Tensor = gradients(rows, trained(rows, uniform(len(rows.y)))).norm(dim=1)
    return norms / norms.sum()


def minimised(rows: Rows, start: Tensor, evenness: float = 0.0) -> Tensor:
    """(n,) the best h that L-BFGS finds for the objective from a start, on the logits of h: it stays in the simplex.

    What is followed is log Tr[I_h^-1] + evenness * KL(h | uniform). Where a trial h leaves no finite maximum likelihood
    parameter, the objective is infinite; a large number turns the line search back.
    """
    best, lowest = start, float("inf")

    def value_and_slope(logits: Array) -> tuple[float, Array]:
        nonlocal best, lowest
        free = torch.from_numpy(logits).requires_grad_()
        h = free.softmax(0)
        try:
            value = objective(rows, h).log() + evenness * (h * (len(h) * h + TINY).log()).sum()
        except RuntimeError:  # of torch.linalg: a singular matrix
            return FORBIDDEN, np.zeros_like(logits)
        (slope,) = torch.autograd.grad(value, free)
        if not bool(torch.isfinite(slope).all()):
            return FORBIDDEN, np.zeros_like(logits)
        if value.item() < lowest:
            best, lowest = h.detach(), value.item()
        return value.item(), slope.numpy()

    options = {"maxiter": ITERATIONS, "ftol": 1e-10, "gtol": 1e-7, "maxcor": 30}
    minimize(value_and_slope, start.log().numpy(), jac=True, method="L-BFGS-B", options=options)
    return best


def minimised_over_sets(rows: Rows) -> Tensor:
    """(n,) the h with one value for the conflicting samples and one for the others that minimises the objective."""

    def over_sets(mass: float) -> Tensor:
        against = rows.conflicting
        return torch.where(against, mass / against.sum(), (1 - mass) / (~against).sum()).double()

    return over_sets(lowest_mass(lambda mass: objective(rows, over_sets(mass)).item(), 0.001, 1e-6))


@dataclass(frozen=True)
class Choice:
    """One h on a drawn data set: its objective, its ranks against the gradient norms, and where its mass lies."""

    h: Array
    conflicting: NDArray[np.bool_]  # samples
    trace: float
    rank_correlation: float
    conflicting_mass: float
    effective_rows: float  # 1 / sum h^2


def solve(seed: int) -> dict[str, Choice]:
    """The objective minimised on one drawn data set: the gradient norms' h, and the best h under three restrictions.

    optimal: any h; it has several minima, of which the better of two starts. even: any h, held near the uniform one by
    a penalty. sets: one value for the conflicting samples and one for the others, as in Theorem 2.
    """
    rows = drawn(seed)
    even, norms = uniform(len(rows.y)), by_norm(rows)

    def choice(h: Tensor) -> Choice:
        ranked = torch.where(h < NOTHING, 0, h)  # the order among samples that get nothing means nothing
        constant = bool((ranked == ranked[0]).all())
        return Choice(
            h=h.numpy(),
            conflicting=rows.conflicting.numpy(),
            trace=objective(rows, h).item(),
            rank_correlation=0.0 if constant else float(spearmanr(norms.numpy(), ranked.numpy()).statistic),
            conflicting_mass=float(h[rows.conflicting].sum()),
            effective_rows=float(1 / (h**2).sum()),
        )

    return {
        "uniform": choice(even),
        "by_norm": choice(norms),
        "optimal": min((choice(minimised(rows, start)) for start in (even, norms)), key=lambda each: each.trace),
        "even": choice(minimised(rows, even, EVENNESS)),
        "sets": choice(minimised_over_sets(rows)),
    }


# PGD against uniform sampling where there are many parameters: softmax regression on the coloured digits.


@dataclass(frozen=True)
class Compared:
    """The traces of vanilla (h uniform) and PGD (h by gradient norm), each at its own solution."""

    rows: int
    parameters: int
    ranks: tuple[int, ...]
    pseudo: tuple[float, ...]
    sweep: dict[float, tuple[float, ...]]  # by damping in mean eigenvalues; vanilla first
    accuracy: tuple[float, ...]  # on the unbiased test samples, in percent


def compare(seed: int, rows: int | None = None) -> Compared:
    """Both solutions on the digits with a shortcut (or its first samples), and the traces of their inverses."""
    benchmark = digits.load(None, RHO, seed)
    train = benchmark.train.batch(torch.arange(len(benchmark.train))[:rows])
    test = benchmark.test.batch(torch.arange(len(benchmark.test)))
    # images in float64, made small: one feature per colour and patch
    x, seen = (avg_pool2d(each.x.double(), POOL).flatten(1) for each in (train, test))
    y = train.y
    even = uniform(len(y))
    vanilla = solution(x, y, even)
    h = grad_norm(bias=True)(Outputs(x, logits(vanilla, x), y))
    h = h / h.sum()
    solved = ((vanilla, even), (solution(x, y, h), h))
    both = [head_fisher([Outputs(x, logits(weight, x), y)], each, bias=True) for weight, each in solved]
    return Compared(
        rows=len(y),
        parameters=both[0].parameters,
        ranks=tuple(len(each.positive) for each in both),
        pseudo=tuple(inverse_trace(each) for each in both),
        sweep=damped_sweep(both),
        accuracy=tuple(100 * float((logits(weight, seen).argmax(1) == test.y).double().mean()) for weight, _ in solved),
    )


def logits(weight: Tensor, x: Tensor) -> Tensor:
    """(n, k) of a linear model whose last column is the bias."""
    return x @ weight[:, :-1].T + weight[:, -1]


def solution(x: Tensor, y: Tensor, h: Tensor) -> Tensor:
    """(k, d + 1) the weights that minimise sum_i h_i cross-entropy_i + ridge / 2 |W|^2."""
    weight = torch.zeros(int(y.max()) + 1, x.shape[1] + 1, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS(
        [weight],
        max_iter=REGRESSION_ITERATIONS,
        tolerance_grad=PRECISION,
        tolerance_change=0,  # else it stops where steps are small, not where the slope is
        history_size=50,
        line_search_fn="strong_wolfe",
    )

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = h @ cross_entropy(logits(weight, x), y) + RIDGE / 2 * (weight**2).sum()
        torch.autograd.backward(value)
        return value

    optimizer.step(loss)  # type: ignore[no-untyped-call]
    return weight.detach()


@dataclass(frozen=True)
class Evidence:
    """The measurements behind all statements."""

    cases: tuple[Numbers, ...]
    beyond: dict[str, tuple[Array, float]]
    world: World
    rows: tuple[Numbers, ...]  # by size of the training set
    hardened: tuple[Numbers, ...]  # by scale of the true parameter
    matrices: tuple[Array, Array]
    solved: tuple[dict[str, Choice], ...]  # by data set
    compared: tuple[Compared, ...]  # with more rows than parameters, then with fewer


def gather(seed: int, replicates: int = REPLICATES) -> Evidence:
    """All measurements, with progress."""
    world, cases = biased_world(seed), list(product(TOY_SCALES, TOY_SIZES, TOY_SIZES))
    return Evidence(
        cases=tuple(two_sets(*case) for case in track(cases, "Theorem 2")),
        beyond=beyond(),
        world=world,
        rows=tuple(measured(world, n, seed, replicates) for n in track(SIZES, "Theorem 1")),
        hardened=tuple(hardened(world, scale) for scale in SCALES),
        matrices=matrices(seed),
        solved=tuple(solve(seed * DATA_SETS + each) for each in track(range(DATA_SETS), "practical objective")),
        compared=tuple(compare(seed, rows) for rows in track((None, FEW), "digits")),
    )
