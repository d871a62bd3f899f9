"""Objectives that know groups of rows: the worst group (GroupDRO) and the same optimum in every one (IRMv1)."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from debiaser.data.split import Batch
from debiaser.errors import Misuse
from debiaser.learn.calls import call
from debiaser.learn.losses import cross_entropy
from debiaser.learn.objectives import Objective


def check_number(name: str, value: float, above: float, closed: bool = False) -> None:
    """Refuse a number that is not above this one (with `closed`: not at least), or not finite."""
    if not (math.isfinite(value) and (value > above or (closed and value == above))):
        raise Misuse(f"{name} must be {'at least' if closed else 'above'} {above:g}, got {value:g}")


def group_means(values: Tensor, groups: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """(g,) the mean of the values (b,) in each of `count` groups, 0 where it has none, and (g,) whether it has any."""
    member = F.one_hot(groups, count).to(values)
    sizes = member.sum(0)
    return values @ member / sizes.clamp_min(1), sizes > 0


def scale_slopes(logits: Tensor, y: Tensor) -> Tensor:
    """(b,) the derivative at k = 1 of cross-entropy(k logits, y): sum of (softmax - onehot) * logits."""
    return ((logits.softmax(1) - F.one_hot(y, logits.shape[1])) * logits).sum(1)


class GroupDRO(Objective):
    """The weighted sum of group losses; a group's weight grows by exp(eta (loss + adjustment / sqrt(size))) a step.

    `groups` (n,) holds the group of every row. A group absent from a batch has loss 0 there; one without any row has
    no weight. Weights are kept as logarithms.
    """

    groups: Tensor
    margins: Tensor
    log_weights: Tensor

    def __init__(self, model: nn.Module, groups: Tensor, eta: float = 0.01, adjustment: float = 0.0) -> None:
        super().__init__()
        check_number("eta", eta, 0, closed=True)
        check_number("adjustment", adjustment, 0, closed=True)
        self.model, self.eta = model, eta
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

    def extra_repr(self) -> str:
        return f"eta={self.eta}"


class IRM(Objective):
    """IRMv1: the mean over environments of loss + penalty * (mean slope of the loss in a common scale of logits)^2.

    The penalty counts once in the first `anneal` of the epochs, later `penalty` times with everything divided by it.
    Means are over the batch's members of an environment; one absent from the batch is left out.
    """

    environments: Tensor

    def __init__(self, model: nn.Module, environments: Tensor, penalty: float = 1e4, anneal: float = 0.38) -> None:
        super().__init__()
        check_number("penalty", penalty, 0, closed=True)
        check_share("anneal", anneal)
        self.model, self.penalty, self.anneal, self.strength = model, penalty, anneal, 1.0
        self.count = int(environments.max()) + 1
        self.register_buffer("environments", environments.long())

    def begin(self, epoch: int, epochs: int) -> None:
        """Whether this epoch has the full penalty: a function of the epoch alone, so that nothing needs saving."""
        self.strength = self.penalty if epoch >= round(self.anneal * epochs) else 1.0

    def forward(self, batch: Batch) -> Tensor:
        logits, where = call(self.model, batch.x), self.environments[batch.rows]
        losses, present = group_means(cross_entropy(logits, batch.y), where, self.count)
        slopes, _ = group_means(scale_slopes(logits, batch.y), where, self.count)
        total = (losses + self.strength * slopes.square()).sum() / present.sum()
        return total / max(1.0, self.strength)

    def extra_repr(self) -> str:
        return f"penalty={self.penalty}, anneal={self.anneal}"


def check_share(name: str, value: float) -> None:
    """Refuse a number outside [0, 1]."""
    if not 0 <= value <= 1:
        raise Misuse(f"{name} must lie in [0, 1], got {value:g}")
