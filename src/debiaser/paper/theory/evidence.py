"""The practical objective, min over h of Tr[I_h(theta_h)^-1], minimised directly on a small logistic model."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize, minimize_scalar
from scipy.stats import spearmanr
from torch import Tensor
from torch.nn.functional import avg_pool2d

from debiaser.data.benchmarks import digits
from debiaser.io import torch_stream
from debiaser.learn.forward import Outputs
from debiaser.learn.gradient_norms import grad_norm
from debiaser.learn.losses import cross_entropy
from debiaser.paper.theory import worlds
from debiaser.paper.theory.fisher import Damped, Fisher, damped_sweep, head_fisher, inverse_trace
from debiaser.progress import task

Array = NDArray[np.float64]
ROWS, MINORITY = 240, 0.05
ITERATIONS = 300
EVENNESS = 1.0  # weight of the penalty that keeps h near the uniform one
NOTHING = 1e-6  # a probability below this is none
TINY, FORBIDDEN = 1e-300, 1e3


@dataclass(frozen=True)
class Rows:
    """Inputs (n, d) with a constant, labels (n,) in {0, 1}, and which rows go against the shortcut (n,)."""

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


def trained(rows: Rows, h: Tensor, steps: int = 100) -> Tensor:
    """(d,) the weighted maximum likelihood parameter, with its derivative in h.

    The last Newton step is taken with derivatives on, from the maximum itself: that is the implicit derivative.
    """
    theta = torch.zeros(rows.x.shape[1], dtype=torch.float64)
    with torch.no_grad():
        for _ in range(steps):
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


def by_norm(rows: Rows) -> Tensor:
    """(n,) the sampling probability of PGD: in proportion to the gradient norm at the uniformly trained parameter."""
    norms: Tensor = gradients(rows, trained(rows, uniform(rows))).norm(dim=1)
    return norms / norms.sum()


def uniform(rows: Rows) -> Tensor:
    """(n,) the same probability for all."""
    return torch.full((len(rows.y),), 1 / len(rows.y), dtype=torch.float64)


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


@dataclass(frozen=True)
class Choice:
    """One h on a drawn data set: its objective, its ranks against the gradient norms, and where its mass lies."""

    h: Array
    trace: float
    rank_correlation: float
    conflicting_mass: float
    effective_rows: float  # 1 / sum h^2


@dataclass(frozen=True)
class Solved:
    """One drawn data set: the gradient norms' h, and what minimises the objective under three restrictions."""

    conflicting: NDArray[np.bool_]
    uniform: Choice
    by_norm: Choice
    optimal: Choice  # any h
    even: Choice  # any h, held near the uniform one by a penalty
    sets: Choice  # one value for the conflicting rows and one for the others, as in Theorem 2


def solve(seed: int) -> Solved:
    """The objective minimised on one drawn data set; a free h has several minima: the better of two starts."""
    rows = drawn(seed)
    even, norms = uniform(rows), by_norm(rows)

    def choice(h: Tensor) -> Choice:
        ranked = torch.where(h < NOTHING, 0, h)  # the order among rows that get nothing means nothing
        constant = bool((ranked == ranked[0]).all())
        return Choice(
            h=h.numpy(),
            trace=objective(rows, h).item(),
            rank_correlation=0.0 if constant else float(spearmanr(norms.numpy(), ranked.numpy()).statistic),
            conflicting_mass=float(h[rows.conflicting].sum()),
            effective_rows=float(1 / (h**2).sum()),
        )

    free = (choice(minimised(rows, start)) for start in (even, norms))
    return Solved(
        rows.conflicting.numpy(),
        choice(even),
        choice(norms),
        min(free, key=lambda each: each.trace),
        choice(minimised(rows, even, EVENNESS)),
        choice(minimised_over_sets(rows)),
    )


def over_sets(rows: Rows, mass: float) -> Tensor:
    """(n,) the conflicting rows share this mass evenly, the others the rest."""
    against = rows.conflicting
    return torch.where(against, mass / against.sum(), (1 - mass) / (~against).sum()).double()


def minimised_over_sets(rows: Rows) -> Tensor:
    """(n,) the h with one value per set that minimises the objective."""
    found = minimize_scalar(
        lambda mass: objective(rows, over_sets(rows, mass)).item(),
        bounds=(0.001, 0.999),
        method="bounded",
        options={"xatol": 1e-6},
    )
    return over_sets(rows, float(found.x))


# --- PGD against uniform sampling where there are many parameters: softmax regression on the coloured digits

RHO, POOL, RIDGE = 0.05, 7, 1e-3  # the ridge gives a finite solution, since regression separates the digits
REGRESSION_ITERATIONS, PRECISION = 1_000, 1e-8
FEW = 300  # rows, fewer than there are parameters: the matrices are singular beyond their construction


@dataclass(frozen=True)
class Compared:
    """The traces of vanilla (h uniform) and PGD (h by gradient norm), each at its own solution."""

    rows: int
    parameters: int
    ranks: tuple[int, int]
    pseudo: tuple[float, float]
    sweep: tuple[Damped, ...]  # vanilla first
    accuracy: tuple[float, float]  # on the unbiased test rows, in percent


def compare(seed: int, rows: int | None = None) -> Compared:
    """Both solutions on the digits with a shortcut (or its first rows), and the traces of their inverses."""
    benchmark = digits.load(None, RHO, seed)
    train = benchmark.train.batch(torch.arange(len(benchmark.train))[:rows])
    x, y = pooled(train.x), train.y
    even = torch.full((len(y),), 1 / len(y), dtype=torch.float64)
    vanilla = solution(x, y, even)
    h = grad_norm(bias=True)(Outputs(x, logits(vanilla, x), y))
    h = h / h.sum()
    pgd = solution(x, y, h)
    both = [fisher_of(vanilla, x, y, even), fisher_of(pgd, x, y, h)]
    test = pooled(benchmark.test.batch(torch.arange(len(benchmark.test))).x)
    right = [float((logits(each, test).argmax(1) == benchmark.test.y).double().mean()) for each in (vanilla, pgd)]
    return Compared(
        rows=len(y),
        parameters=both[0].parameters,
        ranks=(both[0].rank, both[1].rank),
        pseudo=(inverse_trace(both[0]), inverse_trace(both[1])),
        sweep=damped_sweep(both),
        accuracy=(100 * right[0], 100 * right[1]),
    )


def pooled(pictures: Tensor) -> Tensor:
    """(n, d) the pictures in float64, made small: one feature per colour and patch."""
    return avg_pool2d(pictures.double(), POOL).flatten(1)


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


def fisher_of(weight: Tensor, x: Tensor, y: Tensor, h: Tensor) -> Fisher:
    """The Fisher information of weight and bias."""
    return head_fisher(Outputs(x, logits(weight, x), y), h, bias=True)


# --- Everything that the verdicts rest on, computed one part after the other

T = TypeVar("T")
DATA_SETS = 4  # drawn for the practical objective


@dataclass(frozen=True)
class Evidence:
    """The measurements behind all statements."""

    seed: int
    cases: tuple[worlds.Case, ...]
    beyond: worlds.Beyond
    world: worlds.World
    rows: tuple[worlds.Row, ...]
    hardened: tuple[worlds.Hardened, ...]
    matrices: worlds.Matrices
    solved: tuple[Solved, ...]
    compared: tuple[Compared, ...]  # with more rows than parameters, then with fewer


def gather(seed: int, replicates: int = worlds.REPLICATES) -> Evidence:
    """All measurements, with progress."""

    def told(stage: str, steps: int, parts: Iterable[T]) -> tuple[T, ...]:
        found = []
        with task(stage, steps) as advance:
            for part in parts:
                found.append(part)
                advance()
        return tuple(found)

    world = worlds.biased_world(seed)
    per_case = len(worlds.TOY_SCALES) * len(worlds.TOY_SIZES) ** 2
    return Evidence(
        seed=seed,
        cases=told("Theorem 2", per_case, worlds.cases()),
        beyond=worlds.beyond(),
        world=world,
        rows=told(
            "Theorem 1",
            len(worlds.SIZES),
            (worlds.measured(world, n, seed, replicates) for n in worlds.SIZES),
        ),
        hardened=tuple(worlds.hardened(world)),
        matrices=worlds.matrices(seed),
        solved=told("practical objective", DATA_SETS, (solve(seed * DATA_SETS + each) for each in range(DATA_SETS))),
        compared=told("digits", 2, (compare(seed, rows) for rows in (None, FEW))),
    )
