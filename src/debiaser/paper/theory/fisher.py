"""The weighted empirical Fisher information, I_h = sum_i h_i g_i g_i^T, and the trace of its inverse.

g_i is the gradient of sample i's cross-entropy and h_i its sampling probability. The matrix is singular by
construction: a softmax head's gradients sum to zero over the classes, so h directions of its k*h never count (D37).
Hence two conventions, both of them in `inverse_trace`, neither of them in the paper, which names none.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from debiaser.data.split import Batch
from debiaser.errors import Misuse, Problem
from debiaser.learn.forward import Outputs, eager, modes_kept, pieces
from debiaser.learn.layerwise import choose, gradients_by_vmap, trackable

PIECE = 64 * 2**20  # bytes of explicit gradients at a time
LARGEST = 2**30  # bytes that a matrix may take
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
    def always_zero(self) -> int:
        """How many directions of the parameters are zero by construction."""
        return self.parameters - len(self.matrix)

    @property
    def mean_eigenvalue(self) -> float:
        """The mean diagonal entry of the whole matrix."""
        return float(self.matrix.diagonal().sum()) / self.parameters

    @property
    def tolerance(self) -> float:
        """Eigenvalues up to this are zero: the largest times r times the rounding of float64, as for a matrix rank."""
        return float(self.eigenvalues[-1]) * len(self.matrix) * torch.finfo(torch.float64).eps

    @property
    def rank(self) -> int:
        """How many eigenvalues are above the tolerance."""
        return int((self.eigenvalues > self.tolerance).sum())


def inverse_trace(fisher: Fisher, damping: float = 0.0, everywhere: bool = False) -> float:
    """Tr[I^-1] by one of two conventions, since the matrix is singular.

    Without damping, of the pseudo-inverse: the sum of 1/eigenvalue over those above `fisher.tolerance`. It compares two
    matrices only where their ranks agree, and the smallest eigenvalues decide it. With damping, Tr[(I + damping)^-1]
    over the directions that are not zero by construction; with `everywhere`, over all of them, which adds the same
    1/damping for each to every model of this shape.
    """
    if not 0 <= damping < float("inf"):
        raise Misuse(f"damping must be at least 0, got {damping:g}")
    if damping == 0:
        kept = fisher.eigenvalues[fisher.eigenvalues > fisher.tolerance]
        return float((1 / kept).sum())
    trace = float((1 / (fisher.eigenvalues + damping)).sum())
    return trace + fisher.always_zero / damping * everywhere


@dataclass(frozen=True)
class Damped:
    """The trace of each of several inverses at one damping, the same for all, so that they can be compared."""

    relative: float
    damping: float
    traces: tuple[float, ...]


def damped_sweep(fishers: Sequence[Fisher], relative: Sequence[float] = RELATIVE) -> tuple[Damped, ...]:
    """The damped traces over dampings that are multiples of the mean eigenvalue of all these matrices together."""
    scale = sum(each.mean_eigenvalue for each in fishers) / len(fishers)
    if not scale > 0:
        raise Problem("every gradient is zero: there is no Fisher information whose inverse has a trace")
    return tuple(
        Damped(share, share * scale, tuple(inverse_trace(each, share * scale) for each in fishers))
        for share in relative
    )


def from_probabilities(features: Tensor, probabilities: Tensor, labels: Tensor) -> Outputs:
    """Outputs with the logarithms of the probabilities for logits, whose softmax is these probabilities."""
    return Outputs(features, probabilities.log(), labels)


def head_fisher(outputs: Outputs | Iterable[Outputs], weights: Tensor | None = None, bias: bool = False) -> Fisher:
    """The Fisher information of a linear softmax head's weight (and bias) from what enters and leaves it.

    g_i is the outer product of the residual (softmax - onehot, k) and the feature (h). Residuals sum to zero, so they
    are written in an orthonormal basis of k - 1 directions, exactly. `weights` (n,) are scaled to the sum 1; without
    them all samples count the same. Batches are read once, and memory is that of the matrix and a piece of gradients.
    """
    total: Tensor | None = None
    parameters = first = 0
    weights = None if weights is None else probabilities_of(weights)
    for batch in [outputs] if isinstance(outputs, Outputs) else outputs:
        part = take(weights, first, len(batch.labels))
        residuals = Outputs(batch.features, batch.logits.double(), batch.labels).residual
        features = batch.features.double()
        if bias:
            features = torch.cat([features, features.new_ones(len(features), 1)], 1)
        if total is None:
            parameters = residuals.shape[1] * features.shape[1]
            total = empty(parameters - features.shape[1], features.device)
        residuals = residuals @ contrasts(residuals.shape[1]).to(residuals)
        size = max(1, PIECE // (8 * len(total)))
        for start in range(0, len(features), size):
            rows = slice(start, start + size)
            add_products(total, residuals[rows], features[rows], part[rows].to(features))
        first += len(batch.labels)
    if total is None:
        raise Misuse("the dataset has no rows; give it at least one")
    return Fisher(finished(total, weights, first), parameters)


def add_products(total: Tensor, residuals: Tensor, features: Tensor, weights: Tensor) -> None:
    """Add sum_i w_i g_i g_i^T to the blocks on and above the diagonal; those below are their transposes."""
    gradients = (residuals[:, :, None] * features[:, None]).flatten(1)
    weighted = gradients * weights[:, None]
    for start in range(0, gradients.shape[1], features.shape[1]):
        rows = slice(start, start + features.shape[1])
        total[rows, start:].addmm_(weighted[:, rows].T, gradients[:, start:])


def contrasts(classes: int) -> Tensor:
    """(k, k - 1) orthonormal columns that each sum to zero: class j against the mean of those before it (Helmert)."""
    basis = torch.zeros(classes, classes - 1, dtype=torch.float64)
    for j in range(1, classes):
        basis[:j, j - 1], basis[j, j - 1] = -1.0, float(j)
        basis[:, j - 1] /= (j * (j + 1)) ** 0.5
    return basis


def network_fisher(
    model: nn.Module,
    batches: Iterable[Batch],
    weights: Tensor | None = None,
    parameters: str = "all",
) -> Fisher:
    """The Fisher information of any parameters of a small network, from every sample's explicit gradient, in eval mode.

    `parameters` as in `gradient_norms`. For networks of a few thousand parameters: the matrix must fit into memory.
    """
    chosen = choose(model, parameters)
    count = sum(each.numel() for each in chosen.values())
    total, first = empty(count, next(iter(chosen.values())).device), 0
    weights = None if weights is None else probabilities_of(weights)
    for batch in batches:
        part = take(weights, first, len(batch))
        with modes_kept(model), eager(model), torch.inference_mode(False):
            for piece in pieces(trackable(batch.to(total.device)), max(1, PIECE // (8 * count))):
                parts = gradients_by_vmap(model, chosen, piece).values()
                gradients = torch.cat([each.flatten(1) for each in parts], 1).double()
                weighted, part = gradients * part[: len(piece), None].to(gradients), part[len(piece) :]
                total.addmm_(weighted.T, gradients)
        first += len(batch)
    return Fisher(finished(total, weights, first), count)


def empty(size: int, device: torch.device) -> Tensor:
    """(size, size) zeros in float64, if that is not too much."""
    if 8 * size**2 > LARGEST:
        raise Problem(
            f"a Fisher information of {size:,} x {size:,} entries needs {8 * size**2 / 2**30:.1f} GiB, more than the "
            f"{LARGEST / 2**30:g} GiB allowed; choose fewer parameters"
        )
    return torch.zeros(size, size, dtype=torch.float64, device=device)


def probabilities_of(weights: Tensor) -> Tensor:
    """(n,) the weights scaled to the sum 1."""
    weights = weights.double()
    if weights.ndim != 1 or not bool(torch.isfinite(weights).all() and (weights >= 0).all() and weights.sum() > 0):
        raise Misuse("weights must be one finite number of at least 0 per sample, and not all of them 0")
    return weights / weights.sum()


def take(weights: Tensor | None, first: int, rows: int) -> Tensor:
    """(rows,) the weights of the rows from `first` on; ones where all count the same."""
    if weights is None:
        return torch.ones(rows, dtype=torch.float64)
    if first + rows > len(weights):
        raise Misuse(f"there are {len(weights):,} weights, but more samples than that; give one weight per sample")
    return weights[first : first + rows]


def finished(total: Tensor, weights: Tensor | None, rows: int) -> Tensor:
    """The whole symmetric matrix from its upper triangle, a mean where all samples count the same."""
    if not rows:
        raise Misuse("the dataset has no rows; give it at least one")
    if weights is not None and rows != len(weights):
        raise Misuse(f"there are {len(weights):,} weights, but {rows:,} samples; give one weight per sample")
    matrix = total.triu() + total.triu(1).T
    if not bool(torch.isfinite(matrix).all()):
        raise Problem("the gradients hold NaN or infinity: the model or its inputs do; look at the logits first")
    return matrix if weights is not None else matrix / rows
