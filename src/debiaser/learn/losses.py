"""Losses with one value per sample, generalised cross-entropy, and objectives: what a stage of training minimises."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from debiaser.data.split import Batch
from debiaser.errors import Misuse
from debiaser.learn.forward import at_least_single, call


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """(b,) -log f(y|x), in 32 bits or more."""
    try:
        return F.cross_entropy(at_least_single(logits), y, reduction="none")
    except IndexError as error:  # looked for only then: a loss must not wait for a GPU
        raise Misuse(
            f"the labels of this batch lie between {int(y.min())} and {int(y.max())}, but the model gives "
            f"{logits.shape[1]} logits: labels must be class numbers from 0 to {logits.shape[1] - 1}"
        ) from error


class CrossEntropy(nn.Module):
    """Cross-entropy with one value per sample."""

    def forward(self, logits: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(logits, y)


class GCELoss(nn.Module):
    """Generalised cross-entropy: a model trained with it prefers what is easy to learn, and so takes the shortcut.

    The loss of a sample is (1 - f(y|x)^alpha) / alpha, where f is the softmax; its gradient is f^alpha times that of
    cross-entropy.

    Args:
        alpha: in (0, 1]; the larger it is, the less a misclassified sample counts.
        extra_q: multiply the loss by alpha, as the released code of several methods does (decision D7).
        reduction: "mean", "sum" or "none", as in torch.

    Raises:
        Misuse: alpha is outside (0, 1], or the reduction is unknown.

    Example:
        >>> import torch
        >>> from debiaser import GCELoss
        >>> loss = GCELoss(alpha=0.7)
        >>> f"{loss(torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0])):.3f}"
        '0.490'
    """

    def __init__(self, alpha: float = 0.7, extra_q: bool = False, reduction: str = "mean") -> None:
        super().__init__()
        if not 0 < alpha <= 1:
            raise Misuse(f"alpha must lie in (0, 1], got {alpha:g}; for plain cross-entropy leave GCE out (alpha=none)")
        if reduction not in ("mean", "sum", "none"):
            raise Misuse(f"unknown reduction '{reduction}'; known: mean, none, sum")
        self.alpha, self.extra_q, self.reduction = alpha, extra_q, reduction

    def forward(self, logits: Tensor, y: Tensor) -> Tensor:
        losses = -torch.expm1(-self.alpha * cross_entropy(logits, y))
        losses = losses if self.extra_q else losses / self.alpha
        return losses if self.reduction == "none" else losses.mean() if self.reduction == "mean" else losses.sum()

    def extra_repr(self) -> str:
        return f"alpha={self.alpha}, extra_q={self.extra_q}"


def gce(alpha: float | None, extra_q: bool = False) -> nn.Module:
    """The per-sample loss of a biased model: GCE, or plain cross-entropy where alpha is None."""
    return CrossEntropy() if alpha is None else GCELoss(alpha, extra_q, reduction="none")


# What is optimised: modules that map a batch to a scalar and hold, as `model`, the network that comes out


class Objective(nn.Module):
    """Maps a batch to the scalar to minimise; `model` is the network that comes out of it.

    `rule` is what else decides it, such as a method with its fields, for the key of the stage.
    """

    model: nn.Module
    rule: Any = ""

    def begin(self, epoch: int, epochs: int) -> None:
        """Called before each epoch, for objectives whose rule changes with time."""

    def extra_repr(self) -> str:
        return str(self.rule)


class Supervised(Objective):
    """The mean over the batch of one loss per sample, weighted by sample where weights (n,) are given."""

    weights: Tensor | None

    def __init__(self, model: nn.Module, loss: nn.Module | None = None, weights: Tensor | None = None) -> None:
        super().__init__()
        self.model, self.loss = model, loss or CrossEntropy()
        self.register_buffer("weights", None if weights is None else weights.float())

    def forward(self, batch: Batch) -> Tensor:
        losses: Tensor = self.loss(call(self.model, batch.x), batch.y)
        if self.weights is not None:
            losses = losses * self.weights[batch.rows]
        return torch.mean(losses)


# Objectives that know groups of samples: the worst group (GroupDRO) and the same optimum in every one (IRMv1)


def group_means(values: Tensor, groups: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """(g,) the mean of the values (b,) in each of `count` groups, 0 where it has none, and (g,) whether it has any."""
    member = F.one_hot(groups, count).to(values)
    sizes = member.sum(0)
    return values @ member / sizes.clamp_min(1), sizes > 0


class GroupDRO(Objective):
    """The weighted sum of group losses; a group's weight grows by exp(eta (loss + adjustment / sqrt(size))) a step.

    `groups` (n,) holds the group of every sample. A group absent from a batch has loss 0 there; one without any has
    no weight. Weights are kept as logarithms.
    """

    groups: Tensor
    margins: Tensor
    log_weights: Tensor

    def __init__(self, model: nn.Module, groups: Tensor, eta: float = 0.01, adjustment: float = 0.0) -> None:
        super().__init__()
        self.model, self.eta, self.rule = model, eta, f"eta={eta}"
        sizes = torch.bincount(groups)
        self.register_buffer("groups", groups.long())
        self.register_buffer("margins", adjustment / sizes.clamp_min(1).sqrt())
        start = torch.zeros(len(sizes)).masked_fill(sizes == 0, -torch.inf)
        self.register_buffer("log_weights", start.log_softmax(0))

    def forward(self, batch: Batch) -> Tensor:
        losses = cross_entropy(call(self.model, batch.x), batch.y)
        group_losses, _ = group_means(losses, self.groups[batch.rows], len(self.log_weights))
        if self.training:
            step = self.eta * (group_losses.detach() + self.margins)
            self.log_weights.copy_((self.log_weights + step).log_softmax(0))
        return self.log_weights.exp().to(group_losses) @ group_losses


class IRM(Objective):
    """IRMv1: the mean over environments of loss + penalty * (mean slope of the loss in a common scale of logits)^2.

    The penalty counts once in the first `anneal` of the epochs, later `penalty` times with everything divided by it.
    Means are over the batch's members of an environment; one absent from the batch is left out.
    """

    environments: Tensor

    def __init__(self, model: nn.Module, environments: Tensor, penalty: float = 1e4, anneal: float = 0.38) -> None:
        super().__init__()
        self.model, self.penalty, self.anneal, self.strength = model, penalty, anneal, 1.0
        self.rule = f"penalty={penalty}, anneal={anneal}"
        self.count = int(environments.max()) + 1
        self.register_buffer("environments", environments.long())

    def begin(self, epoch: int, epochs: int) -> None:
        """Whether this epoch has the full penalty: a function of the epoch alone, so that nothing needs saving."""
        self.strength = self.penalty if epoch >= round(self.anneal * epochs) else 1.0

    def forward(self, batch: Batch) -> Tensor:
        logits, where = call(self.model, batch.x), self.environments[batch.rows]
        losses, present = group_means(cross_entropy(logits, batch.y), where, self.count)
        residual = logits.softmax(1) - F.one_hot(batch.y, logits.shape[1])
        slopes, _ = group_means((residual * logits).sum(1), where, self.count)  # of the loss in a scale of the logits
        total = (losses + self.strength * slopes.square()).sum() / present.sum()
        return total / max(1.0, self.strength)


# One moving average per training sample, and the weight that LfF and Disen make of two of them

SMALLEST = 1e-8  # keeps the weight defined where both networks fit a sample perfectly


class SampleAverage(nn.Module):
    """A moving average m (n,) of one number per training sample, read relative to the largest of its class.

    m <- a m + (1 - a seen) value with a = `ema`: the first value of a sample is taken whole. The averages are buffers,
    so that a checkpoint carries them. The samples of one update differ.
    """

    labels: Tensor
    average: Tensor
    seen: Tensor

    def __init__(self, labels: Tensor, ema: float = 0.7) -> None:
        super().__init__()
        self.ema, self.classes = ema, int(labels.max()) + 1
        self.register_buffer("labels", labels.long(), persistent=False)  # data, not state
        self.register_buffer("average", torch.zeros(len(labels)))
        self.register_buffer("seen", torch.zeros(len(labels), dtype=torch.bool))

    @torch.no_grad()
    def update(self, rows: Tensor, values: Tensor) -> None:
        """Take one new value (b,) for each of these samples (b,)."""
        kept = self.ema * self.seen[rows].to(self.average)
        self.average[rows] = kept * self.average[rows] + (1 - kept) * values.to(self.average)
        self.seen[rows] = True

    @torch.no_grad()
    def relative(self, rows: Tensor | slice = slice(None)) -> Tensor:
        """(b,) averages of these samples (without: of all) over the largest in their class, of all samples."""
        largest = self.average.new_zeros(self.classes).scatter_reduce(0, self.labels, self.average, "amax")
        tiny = torch.finfo(largest.dtype).tiny  # a class that is fitted perfectly gives 0, not 0 / 0
        return self.average[rows] / largest.clamp_min(tiny)[self.labels[rows]]


def relative_difficulty(biased: SampleAverage, debiased: SampleAverage, rows: Tensor | slice = slice(None)) -> Tensor:
    """(b,) u_b / (u_b + u_d), near 1 where only the biased network fails: LfF's weight of these samples, or of all."""
    against, towards = biased.relative(rows), debiased.relative(rows)
    return against / (against + towards + SMALLEST)
