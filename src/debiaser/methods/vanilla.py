"""Vanilla: empirical risk minimisation, the model that takes the shortcut."""

from dataclasses import dataclass

from torch import nn

from debiaser.learn.losses import Supervised
from debiaser.methods.task import Method, Task, bounded


@dataclass(frozen=True)
class Vanilla(Method):
    """Train one network with cross-entropy, on every sample once per epoch: the baseline of all methods.

    Args:
        length: training length, as a multiple of that of other one-stage methods.
        augment: augment the training data.

    >>> result = debias(model, dataset, Vanilla(length=2))
    """

    length: float = bounded(1, above=0)
    augment: bool = True

    def fit(self, task: Task) -> nn.Module:
        """Return the trained network."""
        return task.fit(Supervised(task.new_model()), "vanilla", length=self.length * task.recipe.single_stage)
