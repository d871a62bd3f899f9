"""GroupDRO: distributionally robust optimisation of known groups (Sagawa, Koh, Hashimoto and Liang, ICLR 2020)."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import nn

from debiaser.learn import losses
from debiaser.learn.groups import balancing_weights
from debiaser.learn.sampler import ScoreSampler
from debiaser.methods.task import Method, Task, bounded


@dataclass(frozen=True)
class GroupDRO(Method):
    """Train one network for the worst of the known groups (class x bias). Uses group labels.

    Args:
        eta: step size of the group weights.
        adjustment: C of the size adjustment C / sqrt(size).
        balanced: draw the groups equally often.
        length: training length, as a multiple of that of other one-stage methods.
        augment: augment the training data.

    >>> method = GroupDRO(eta=0.1)  # `debiaser train waterbirds --method groupdro --set eta=0.1`
    """

    uses_groups: ClassVar[bool] = True

    eta: float = bounded(0.01, at_least=0)
    adjustment: float = bounded(0.0, at_least=0)
    balanced: bool = True
    length: float = bounded(1, above=0)
    augment: bool = True

    def fit(self, task: Task) -> nn.Module:
        """Return the network trained for the worst group."""
        groups = task.known_groups()
        weights = balancing_weights(groups) if self.balanced else np.ones(len(groups))
        task.journal.note("score", weights)
        robust = losses.GroupDRO(task.new_model(), torch.from_numpy(groups), self.eta, self.adjustment)
        sampler = ScoreSampler(weights, seed=task.seed) if self.balanced else None
        return task.fit(robust, "groupdro", sampler, length=self.length * task.recipe.single_stage)
