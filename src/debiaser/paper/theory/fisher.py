"""The weighted empirical Fisher information, I_h = sum_i h_i g_i g_i^T, and the trace of its inverse.

g_i is the gradient of sample i's cross-entropy and h_i its sampling probability. The matrix is singular by
construction: a softmax head's gradients sum to zero over the classes, so h directions of its k*h never count (D37).
Hence two conventions, both of them in `inverse_trace`, neither of them in the paper, which names none.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from scipy.linalg import helmert
from torch import Tensor

from debiaser.errors import Problem
from debiaser.learn.forward import Outputs

PIECE = 64 * 2**20  # bytes of explicit gradients at a time
RELATIVE = (1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)  # dampings of a sweep, in mean eigenvalues


@dataclass(frozen=True)
class Fisher:
    """A Fisher information by its matrix (r, r), in float64, on a basis that leaves out only what is always zero.

    Its eigenvalues are those of the whole (parameters, parameters) matrix but for `parameters - r` zeros.
    """

    matrix: Tensor
    parameters: int

    @cached_property
    def eigenvalues(self) -> Tensor:
        """(r,) ascending; what rounding took below zero is zero."""
        found: Tensor = torch.linalg.eigvalsh(self.matrix)
        return found.clamp(min=0)

    @property
    def mean_eigenvalue(self) -> float:
        """The mean diagonal entry of the whole matrix."""
        return float(self.matrix.diagonal().sum()) / self.parameters

    @property
    def positive(self) -> Tensor:
        """The eigenvalues above the largest times r times the rounding of float64: as many as the matrix has ranks."""
        tolerance = float(self.eigenvalues[-1]) * len(self.matrix) * torch.finfo(torch.float64).eps
        return self.eigenvalues[self.eigenvalues > tolerance]


def inverse_trace(fisher: Fisher, damping: float = 0.0) -> float:
    """Tr[I^-1] by one of two conventions, since the matrix is singular.

    Without damping, of the pseudo-inverse: the sum of 1/eigenvalue over those that are not zero. It compares two
    matrices only where their ranks agree, and the smallest eigenvalues decide it. With damping, Tr[(I + damping)^-1]
    over the directions that are not zero by construction.
    """
    return float((1 / (fisher.eigenvalues + damping if damping else fisher.positive)).sum())


def damped_sweep(fishers: Sequence[Fisher]) -> dict[float, tuple[float, ...]]:
    """The traces of several inverses by damping, the same for all: in multiples of their mean eigenvalue together."""
    scale = sum(each.mean_eigenvalue for each in fishers) / len(fishers)
    return {share: tuple(inverse_trace(each, share * scale) for each in fishers) for share in RELATIVE}


def head_fisher(outputs: Iterable[Outputs], weights: Tensor, bias: bool = False) -> Fisher:
    """The Fisher information of a linear softmax head's weight (and bias) from what enters and leaves it, in batches.

    g_i is the outer product of the residual (softmax - onehot, k) and the feature (h). Residuals sum to zero, so they
    are written in an orthonormal basis of k - 1 directions, exactly. `weights` (n,) are scaled to the sum 1. Batches
    are read once, and memory is that of the matrix and a piece of gradients.
    """
    shares = weights.double() / weights.double().sum()
    total, parameters, done = torch.zeros(0), 0, 0
    for batch in outputs:
        residuals = Outputs(batch.features, batch.logits.double(), batch.labels).residual
        features = batch.features.double()
        if bias:
            features = torch.cat([features, features.new_ones(len(features), 1)], 1)
        width = features.shape[1]
        parameters = residuals.shape[1] * width
        residuals = residuals @ torch.from_numpy(helmert(residuals.shape[1]).T.copy()).to(residuals)
        if not done:
            total = residuals.new_zeros(parameters - width, parameters - width)
        size = max(1, PIECE // (8 * len(total)))
        for one, other in zip(torch.split(residuals, size), torch.split(features, size), strict=True):
            piece = (one[:, :, None] * other[:, None]).flatten(1)
            weighted = piece * shares[done : done + len(piece), None].to(piece)
            done += len(piece)
            for start in range(0, len(total), width):  # blocks on and above the diagonal
                total[start : start + width, start:].addmm_(weighted[:, start : start + width].T, piece[:, start:])
    if not bool(torch.isfinite(total).all()):
        raise Problem("the gradients hold NaN or infinity: the model or its inputs do; look at the logits first")
    return Fisher(total.triu() + total.triu(1).T, parameters)
