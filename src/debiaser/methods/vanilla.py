"""Vanilla: empirical risk minimisation, the model that takes the shortcut."""

import math
from dataclasses import dataclass

from torch import nn

from debiaser.errors import Misuse
from debiaser.learn.losses import Supervised
from debiaser.methods.task import Task


@dataclass(frozen=True)
class Vanilla:
    """One network, cross-entropy, every row once an epoch; `length` times as long as other one-stage methods."""

    length: float = 1
    augment: bool = True

    def __post_init__(self) -> None:
        if not (self.length > 0 and math.isfinite(self.length)):
            raise Misuse(f"length must be a finite number above 0, got {self.length:g}")

    def fit(self, task: Task) -> nn.Module:
        """The trained network."""
        task = task if self.augment else task.plain()
        return task.fit(Supervised(task.new_model()), "vanilla", length=self.length * task.recipe.single_stage)
