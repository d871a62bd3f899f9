"""Disen: learning debiased representations by swapping features (Lee, Kim, Lee, Lee and Choo, NeurIPS 2021)."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from debiaser.data.split import Batch
from debiaser.io import derive
from debiaser.learn.forward import call, without_head
from debiaser.learn.losses import Objective, SampleAverage, cross_entropy, gce, relative_difficulty
from debiaser.methods.task import Method, Task, bounded


@dataclass(frozen=True)
class Disen(Method):
    """Train one encoder for the task and one for the shortcut, then swap shortcut features between samples.

    Args:
        lambda_dis: weight of GCE in the loss on a sample's own features.
        lambda_swap_b: weight of GCE in the loss on swapped features.
        lambda_swap: weight of the whole loss on swapped features.
        alpha: exponent of GCE; None for cross-entropy.
        extra_q: multiply GCE by alpha, as the authors' code does.
        ema: weight of the past in each sample's moving average of losses.
        swap_from: share of the training after which swapping begins, in whole epochs; 1 for never.
        length: training length, as a multiple of that of other one-stage methods.
        augment: augment the training data.

    >>> result = debias(model, dataset, Disen(swap_from=0.5))
    """

    lambda_dis: float = bounded(10, at_least=0)
    lambda_swap_b: float = bounded(10, at_least=0)
    lambda_swap: float = bounded(1, at_least=0)
    alpha: float | None = bounded(0.7, above=0, at_most=1)
    extra_q: bool = True
    ema: float = bounded(0.7, at_least=0, below=1)
    swap_from: float = bounded(0.2, at_least=0, at_most=1)
    length: float = bounded(1, above=0)
    augment: bool = True

    def fit(self, task: Task) -> nn.Module:
        """Return the task head on the features of both encoders."""
        x = next(task.train.batches(2)).to(task.device).x
        intrinsic, weight = without_head(task.new_model("debiased").to(task.device), x)
        bias, _ = without_head(task.new_model().to(task.device), x)
        classes, width = weight.shape[:2]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive(task.seed, "init", "heads"))
            head, bias_head = (nn.Linear(2 * width, classes).to(weight.dtype) for _ in range(2))
        objective = Disentangling(Disentangled(intrinsic, bias, head), bias_head, task.train.y, self)
        task.fit(objective, "disen", length=self.length * task.recipe.single_stage)
        task.journal.note("weight", objective.weights())
        return objective.model


class Disentangled(nn.Module):
    """A linear head on the features of both encoders, intrinsic first."""

    def __init__(self, intrinsic: nn.Module, bias: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.intrinsic, self.bias, self.head = intrinsic, bias, head

    def features(self, x: Any) -> tuple[Tensor, Tensor]:
        """(b, h) intrinsic and (b, h) bias features."""
        return call(self.intrinsic, x).flatten(1), call(self.bias, x).flatten(1)

    def forward(self, x: Any = None, **named: Any) -> Tensor:
        logits: Tensor = self.head(torch.cat(self.features(named or x), 1))
        return logits


class Disentangling(Objective):
    """mean W ce(C_i) + lambda_dis mean GCE(C_b), and later the same on bias features that were swapped."""

    model: Disentangled

    def __init__(self, model: Disentangled, bias_head: nn.Module, labels: Tensor, rule: Disen) -> None:
        super().__init__()
        self.model, self.bias_head, self.rule, self.swapping = model, bias_head, rule, False
        self.loss = gce(rule.alpha, rule.extra_q)
        self.bias_losses, self.intrinsic_losses = SampleAverage(labels, rule.ema), SampleAverage(labels, rule.ema)

    def begin(self, epoch: int, epochs: int) -> None:
        self.swapping = epoch / epochs >= self.rule.swap_from

    def heads(self, intrinsic: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        """(b, k) logits of the intrinsic and of the bias head; each trains no encoder but its own."""
        own, other = torch.cat([intrinsic, bias.detach()], 1), torch.cat([intrinsic.detach(), bias], 1)
        return self.model.head(own), self.bias_head(other)

    def forward(self, batch: Batch) -> Tensor:
        rule: Disen = self.rule
        y = batch.y
        intrinsic, bias = self.model.features(batch.x)
        own, own_bias = self.heads(intrinsic, bias)
        losses = cross_entropy(own, y)
        self.intrinsic_losses.update(batch.rows, losses.detach())  # first update, then read
        self.bias_losses.update(batch.rows, cross_entropy(own_bias, y).detach())
        weight = self.weights(batch.rows)
        loss: Tensor = (weight * losses).mean() + rule.lambda_dis * self.loss(own_bias, y).mean()
        if not self.swapping:
            return loss
        order = torch.randperm(len(batch), device=y.device)  # a bias feature brings its own label along
        mixed, mixed_bias = self.heads(intrinsic, bias[order])
        swapped: Tensor = (weight * cross_entropy(mixed, y)).mean()
        swapped = swapped + rule.lambda_swap_b * self.loss(mixed_bias, y[order]).mean()
        return loss + rule.lambda_swap * swapped

    def weights(self, rows: Tensor | slice = slice(None)) -> Tensor:
        """(b,) the weight that these samples (without: all) have by now."""
        return relative_difficulty(self.bias_losses, self.intrinsic_losses, rows)
