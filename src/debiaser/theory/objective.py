"""The practical objective, min over h of Tr[I_h(theta_h)^-1], minimised directly on a small logistic model."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize, minimize_scalar
from scipy.stats import spearmanr
from torch import Tensor

from debiaser.randomness import torch_stream

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
