"""Vanilla: empirical risk minimisation, the model that takes the shortcut."""

from dataclasses import dataclass

from torch import nn

from debiaser.learn.losses import Supervised
from debiaser.methods.task import Method, Task, bounded


@dataclass(frozen=True)
class Vanilla(Method):
    """One network trained with cross-entropy on every sample once an epoch: the baseline of all methods.

    length: times as long as other one-stage methods; augment: in training.

    >>> result = debias(model, dataset, Vanilla(length=2))
    """

    length: float = bounded(1, above=0)
    augment: bool = True

    def fit(self, task: Task) -> nn.Module:
        """The trained network."""
        return task.fit(Supervised(task.new_model()), "vanilla", length=self.length * task.recipe.single_stage)
