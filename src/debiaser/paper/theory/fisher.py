"""The weighted empirical Fisher information, I_h = sum_i h_i g_i g_i^T, and the trace of its inverse.

g_i is the gradient of sample i's cross-entropy and h_i its sampling probability. The matrix is singular by
construction: a softmax head's gradients sum to zero over the classes, so h directions of its k*h never count (D37).
Hence two conventions, both of them in `inverse_trace`, neither of them in the paper, which names none.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from scipy.linalg import helmert
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
    def mean_eigenvalue(self) -> float:
        """The mean diagonal entry of the whole matrix."""
        return float(self.matrix.diagonal().sum()) / self.parameters

    @property
    def positive(self) -> Tensor:
        """The eigenvalues above the largest times r times the rounding of float64, as for a matrix rank."""
        tolerance = float(self.eigenvalues[-1]) * len(self.matrix) * torch.finfo(torch.float64).eps
        return self.eigenvalues[self.eigenvalues > tolerance]

    @property
    def rank(self) -> int:
        """How many eigenvalues are not zero."""
        return len(self.positive)


def inverse_trace(fisher: Fisher, damping: float = 0.0) -> float:
    """Tr[I^-1] by one of two conventions, since the matrix is singular.

    Without damping, of the pseudo-inverse: the sum of 1/eigenvalue over those that are not zero. It compares two
    matrices only where their ranks agree, and the smallest eigenvalues decide it. With damping, Tr[(I + damping)^-1]
    over the directions that are not zero by construction.
    """
    if not 0 <= damping < float("inf"):
        raise Misuse(f"damping must be at least 0, got {damping:g}")
    return float((1 / (fisher.eigenvalues + damping if damping else fisher.positive)).sum())


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


def head_fisher(outputs: Outputs | Iterable[Outputs], weights: Tensor | None = None, bias: bool = False) -> Fisher:
    """The Fisher information of a linear softmax head's weight (and bias) from what enters and leaves it.

    g_i is the outer product of the residual (softmax - onehot, k) and the feature (h). Residuals sum to zero, so they
    are written in an orthonormal basis of k - 1 directions, exactly. `weights` (n,) are scaled to the sum 1; without
    them all samples count the same. Batches are read once, and memory is that of the matrix and a piece of gradients.
    """
    parameters = 0

    def gradients() -> Iterator[tuple[Tensor, int]]:
        nonlocal parameters
        for batch in [outputs] if isinstance(outputs, Outputs) else outputs:
            residuals = Outputs(batch.features, batch.logits.double(), batch.labels).residual
            features = batch.features.double()
            if bias:
                features = torch.cat([features, features.new_ones(len(features), 1)], 1)
            width = features.shape[1]
            parameters = residuals.shape[1] * width
            residuals = residuals @ torch.from_numpy(helmert(residuals.shape[1]).T.copy()).to(residuals)
            size = max(1, PIECE // (8 * (parameters - width)))
            for one, other in zip(torch.split(residuals, size), torch.split(features, size), strict=True):
                yield (one[:, :, None] * other[:, None]).flatten(1), width

    return Fisher(summed(gradients(), weights), parameters)


def network_fisher(
    model: nn.Module, batches: Iterable[Batch], weights: Tensor | None = None, parameters: str = "all"
) -> Fisher:
    """The Fisher information of any parameters of a small network, from every sample's explicit gradient, in eval mode.

    `parameters` as in `gradient_norms`. For networks of a few thousand parameters: the matrix must fit into memory.
    """
    chosen = choose(model, parameters)
    count, device = sum(each.numel() for each in chosen.values()), next(iter(chosen.values())).device
    check_size(count)

    def gradients() -> Iterator[tuple[Tensor, int]]:
        for batch in batches:
            with modes_kept(model), eager(model), torch.inference_mode(False):
                for piece in pieces(trackable(batch.to(device)), max(1, PIECE // (8 * count))):
                    parts = gradients_by_vmap(model, chosen, piece).values()
                    yield torch.cat([each.flatten(1) for each in parts], 1).double(), count

    return Fisher(summed(gradients(), weights), count)


def check_size(size: int) -> None:
    """Refuse a matrix that is too large."""
    if 8 * size**2 > LARGEST:
        raise Problem(
            f"a Fisher information of {size:,} x {size:,} entries needs {8 * size**2 / 2**30:.1f} GiB, more than the "
            f"{LARGEST / 2**30:g} GiB allowed; choose fewer parameters"
        )


def summed(gradients: Iterable[tuple[Tensor, int]], weights: Tensor | None) -> Tensor:
    """(r, r) sum_i h_i g_i g_i^T of gradients that come in pieces (b, r); a mean where all samples count the same.

    With each piece comes a size: only blocks of so many rows on and above the diagonal are added up.
    """
    if weights is not None:
        weights = weights.double()
        if weights.ndim != 1 or not bool(torch.isfinite(weights).all() and (weights >= 0).all() and weights.sum() > 0):
            raise Misuse("weights must be one finite number of at least 0 per sample, and not all of them 0")
        weights = weights / weights.sum()
    total, rows = torch.zeros(0), 0
    for piece, size in gradients:
        if not rows:
            check_size(piece.shape[1])
            total = torch.zeros(piece.shape[1], piece.shape[1], dtype=torch.float64, device=piece.device)
        part = torch.ones(len(piece)) if weights is None else weights[rows : rows + len(piece)]
        rows += len(piece)
        if weights is not None and rows > len(weights):
            break
        weighted = piece * part[:, None].to(piece)
        for start in range(0, piece.shape[1], size):
            total[start : start + size, start:].addmm_(weighted[:, start : start + size].T, piece[:, start:])
    if not rows:
        raise Misuse("the dataset has no rows; give it at least one")
    if weights is not None and rows != len(weights):
        raise Misuse(f"there are {len(weights):,} weights, but more or fewer samples; give one weight per sample")
    if not bool(torch.isfinite(total).all()):
        raise Problem("the gradients hold NaN or infinity: the model or its inputs do; look at the logits first")
    matrix = total.triu() + total.triu(1).T
    return matrix if weights is not None else matrix / rows
