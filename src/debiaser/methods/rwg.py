"""RWG: groups drawn equally often (the control of Idrissi, Arjovsky, Pezeshki and Lopez-Paz, CLeaR 2022)."""

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from debiaser.learn.groups import balancing_weights
from debiaser.learn.losses import Supervised
from debiaser.learn.sampler import ScoreSampler
from debiaser.methods.task import Method, Task, bounded


@dataclass(frozen=True)
class RWG(Method):
    """Train on draws in which every known group (class x bias) is equally likely. Uses group labels.

    Args:
        length: training length, as a multiple of that of other one-stage methods.
        augment: augment the training data.

    >>> method = RWG()  # `debiaser train waterbirds --method rwg`
    """

    uses_groups: ClassVar[bool] = True

    length: float = bounded(1, above=0)
    augment: bool = True

    def fit(self, task: Task) -> nn.Module:
        """Return the network trained on equal draws of all groups."""
        weights = balancing_weights(task.known_groups())
        task.journal.note("score", weights)
        sampler, length = ScoreSampler(weights, seed=task.seed), self.length * task.recipe.single_stage
        return task.fit(Supervised(task.new_model()), "rwg", sampler, length=length)
