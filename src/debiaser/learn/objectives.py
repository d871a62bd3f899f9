"""What is optimised: modules that map a batch to a scalar and hold, as `model`, the network that comes out."""

import torch
from torch import Tensor, nn

from debiaser.data.split import Batch
from debiaser.learn.calls import call
from debiaser.learn.losses import CrossEntropy


class Objective(nn.Module):
    """Maps a batch to the scalar to minimise; `model` is the network that comes out of it."""

    model: nn.Module

    def begin(self, epoch: int, epochs: int) -> None:
        """Called before each epoch, for objectives whose rule changes with time."""


class Supervised(Objective):
    """The mean over the batch of one loss per sample, weighted by row where weights (n,) are given."""

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
