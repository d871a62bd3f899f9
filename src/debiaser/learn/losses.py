"""Losses with one value per sample, and generalised cross-entropy."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from debiaser.errors import Misuse
from debiaser.learn.calls import at_least_single


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """(b,) -log f(y|x), in 32 bits or more."""
    try:
        return F.cross_entropy(at_least_single(logits), y, reduction="none")
    except IndexError as error:  # looked for only then: a loss must not wait for a GPU
        raise Misuse(
            f"the labels of this batch lie between {int(y.min())} and {int(y.max())}, but the model gives "
            f"{logits.shape[1]} logits: labels must be class numbers from 0 to {logits.shape[1] - 1}"
        ) from error


def generalised_cross_entropy(logits: Tensor, y: Tensor, alpha: float = 0.7, extra_q: bool = False) -> Tensor:
    """(b,) (1 - f(y|x)^alpha) / alpha, whose gradient is f^alpha times that of cross-entropy.

    `extra_q` multiplies by alpha, as the code of LfF, Disen and BPA does (decision D7).
    """
    log_likelihood = -cross_entropy(logits, y)
    loss = -torch.expm1(alpha * log_likelihood)
    return loss if extra_q else loss / alpha


class CrossEntropy(nn.Module):
    """Cross-entropy with one value per sample."""

    def forward(self, logits: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(logits, y)


class GCELoss(nn.Module):
    """Generalised cross-entropy: leans on what is easy, so that a model trained with it follows the shortcut.

    Larger alpha in (0, 1] leans more. `reduction` is "mean", "sum" or "none", as in torch.
    """

    def __init__(self, alpha: float = 0.7, extra_q: bool = False, reduction: str = "mean") -> None:
        super().__init__()
        check_alpha(alpha)
        if reduction not in ("mean", "sum", "none"):
            raise Misuse(f"unknown reduction '{reduction}'; known: mean, none, sum")
        self.alpha, self.extra_q, self.reduction = alpha, extra_q, reduction

    def forward(self, logits: Tensor, y: Tensor) -> Tensor:
        losses = generalised_cross_entropy(logits, y, self.alpha, self.extra_q)
        return losses if self.reduction == "none" else losses.mean() if self.reduction == "mean" else losses.sum()

    def extra_repr(self) -> str:
        return f"alpha={self.alpha}, extra_q={self.extra_q}"


def check_alpha(alpha: float) -> None:
    """Refuse an alpha for which the loss is not defined."""
    if not 0 < alpha <= 1:
        raise Misuse(f"alpha must lie in (0, 1], got {alpha:g}; for plain cross-entropy leave GCE out (alpha=none)")


def gce(alpha: float | None, extra_q: bool = False) -> nn.Module:
    """The per-sample loss of a biased model: GCE, or plain cross-entropy where alpha is None."""
    return CrossEntropy() if alpha is None else GCELoss(alpha, extra_q, reduction="none")
