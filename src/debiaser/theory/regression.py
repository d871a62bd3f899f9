"""PGD against uniform sampling where there are many parameters: softmax regression on the coloured digits.

The head is the whole model, so the trace is that of all its parameters, and training is convex: what is compared are
the two solutions, not two runs.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from debiaser.data import digits
from debiaser.learn.losses import cross_entropy
from debiaser.learn.outputs import Outputs
from debiaser.learn.scores import grad_norm
from debiaser.theory.fisher import Damped, Fisher, damped_sweep, head_fisher, inverse_trace

RHO, POOL, RIDGE = 0.05, 7, 1e-3  # the ridge gives a finite solution, since regression separates the digits
ITERATIONS, PRECISION = 1_000, 1e-8
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
        max_iter=ITERATIONS,
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
