"""Disen: learning debiased representations by swapping features (Lee, Kim, Lee, Lee and Choo, NeurIPS 2021)."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from debiaser.data.split import Batch
from debiaser.errors import Misuse, Problem
from debiaser.io import derive
from debiaser.learn.forward import call, evaluating, find_head
from debiaser.learn.losses import Objective, RowAverage, check_alpha, check_ema, cross_entropy, gce, relative_difficulty
from debiaser.methods.task import Task


@dataclass(frozen=True)
class Disen:
    """Two encoders, one for what matters and one for the shortcut; later, shortcut features are swapped between rows.

    lambda_dis, lambda_swap_b: weight of GCE among the losses of a row's own and of swapped features; lambda_swap:
    weight of all losses of swapped features; swap_from: share of the training after which swapping begins, in whole
    epochs; alpha: GCE's exponent, None for cross-entropy; extra_q: the authors' factor; ema: share of the past in each
    row's average loss; length: times as long as other one-stage methods; augment: in training.
    """

    lambda_dis: float = 10
    lambda_swap_b: float = 10
    lambda_swap: float = 1
    alpha: float | None = 0.7
    extra_q: bool = True
    ema: float = 0.7
    swap_from: float = 0.2
    length: float = 1
    augment: bool = True

    def __post_init__(self) -> None:
        for name in ("lambda_dis", "lambda_swap_b", "lambda_swap"):
            value = getattr(self, name)
            if not (value >= 0 and math.isfinite(value)):
                raise Misuse(f"{name} must be a number of at least 0, got {value:g}")
        if self.alpha is not None:
            check_alpha(self.alpha)
        check_ema(self.ema)
        if not 0 <= self.swap_from <= 1:
            raise Misuse(f"swap_from must lie in [0, 1] (1: never), got {self.swap_from:g}")
        if not self.length > 0:
            raise Misuse(f"length must be above 0, got {self.length:g}")

    def fit(self, task: Task) -> nn.Module:
        """The intrinsic head on the features of both encoders."""
        task = task if self.augment else task.plain()
        (intrinsic, bias), (head, bias_head) = self.start(task)
        objective = Disentangling(Disentangled(intrinsic, bias, head), bias_head, task.train.y, self)
        task.fit(objective, "disen", length=self.length * task.recipe.single_stage)
        task.journal.note("weight", objective.weights())
        return objective.model

    def start(self, task: Task) -> tuple[list[nn.Module], list[nn.Module]]:
        """Two encoders and two heads, intrinsic first, each with a start of its own."""
        x = next(task.train.batches(2)).to(task.device).x
        encoders, removed = zip(*(beheaded(task.new_model(name).to(task.device), x) for name in NAMES), strict=True)
        classes, width = removed[0].weight.shape[:2]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive(task.seed, "init", "heads"))
            heads: list[nn.Module] = [nn.Linear(2 * width, classes).to(removed[0].weight.dtype) for _ in NAMES]
        return list(encoders), heads


NAMES = ("debiased", "model")  # of the intrinsic and the bias encoder, as in LfF and PGD


class Disentangled(nn.Module):
    """A linear head on the features of both encoders, intrinsic first."""

    def __init__(self, intrinsic: nn.Module, bias: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.intrinsic, self.bias, self.head = intrinsic, bias, head

    def features(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(b, h) intrinsic and (b, h) bias features."""
        return call(self.intrinsic, x).flatten(1), call(self.bias, x).flatten(1)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(torch.cat(self.features(x), 1))
        return logits


class Disentangling(Objective):
    """mean W ce(C_i) + lambda_dis mean GCE(C_b), and later the same on bias features that were swapped."""

    model: Disentangled

    def __init__(self, model: Disentangled, bias_head: nn.Module, labels: Tensor, how: Disen) -> None:
        super().__init__()
        self.model, self.bias_head, self.how, self.swapping = model, bias_head, how, False
        self.loss = gce(how.alpha, how.extra_q)
        self.bias_losses, self.intrinsic_losses = RowAverage(labels, how.ema), RowAverage(labels, how.ema)

    def begin(self, epoch: int, epochs: int) -> None:
        self.swapping = epoch / epochs >= self.how.swap_from

    def heads(self, intrinsic: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        """(b, k) logits of the intrinsic and of the bias head; each trains no encoder but its own."""
        towards_intrinsic: Tensor = self.model.head(torch.cat([intrinsic, bias.detach()], 1))
        towards_bias: Tensor = self.bias_head(torch.cat([intrinsic.detach(), bias], 1))
        return towards_intrinsic, towards_bias

    def forward(self, batch: Batch) -> Tensor:
        how, y = self.how, batch.y
        intrinsic, bias = self.model.features(batch.x)
        own, own_bias = self.heads(intrinsic, bias)
        losses = cross_entropy(own, y)
        self.intrinsic_losses.update(batch.rows, losses.detach())  # first update, then read
        self.bias_losses.update(batch.rows, cross_entropy(own_bias, y).detach())
        weight = relative_difficulty(self.bias_losses, self.intrinsic_losses, batch.rows)
        loss: Tensor = (weight * losses).mean() + how.lambda_dis * self.loss(own_bias, y).mean()
        if not self.swapping:
            return loss
        order = torch.randperm(len(batch), device=y.device)  # a bias feature brings its own label along
        mixed, mixed_bias = self.heads(intrinsic, bias[order])
        swapped: Tensor = (weight * cross_entropy(mixed, y)).mean()
        swapped = swapped + how.lambda_swap_b * self.loss(mixed_bias, y[order]).mean()
        return loss + how.lambda_swap * swapped

    def weights(self) -> Tensor:
        """(n,) the weight that every training row has by now."""
        return relative_difficulty(self.bias_losses, self.intrinsic_losses)

    def extra_repr(self) -> str:
        return repr(self.how)


def beheaded(model: nn.Module, x: Tensor) -> tuple[nn.Module, nn.Module]:
    """The network with its linear head replaced by nothing, and that head."""
    with evaluating(model):
        head = find_head(model, x)
        width = int(head.weight.shape[1])  # type: ignore[index]
        path = next(name for name, module in model.named_modules() if module is head)
        if path:
            above, _, name = path.rpartition(".")
            setattr(model.get_submodule(above), name, nn.Identity())
        else:  # the network is nothing but its head
            model = nn.Identity()
        if call(model, x).flatten(1).shape[1] != width:
            raise Problem(
                f"without its head '{path}' the network does not give the {width} features that enter it; "
                "take a network that ends in its head"
            )
    return model, head
