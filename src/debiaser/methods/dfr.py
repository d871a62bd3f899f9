"""DFR: deep feature reweighting, a last layer on balanced groups (Kirichenko, Izmailov and Wilson, ICLR 2023)."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from torch import nn

from debiaser.learn.groups import balancing_weights, consecutive
from debiaser.learn.last_layer import LogisticFit
from debiaser.methods.frozen import plain_network
from debiaser.methods.task import Method, Task, bounded, choice


@dataclass(frozen=True)
class DFR(Method):
    """Plain training, then a new last layer on subsets in which all known groups are as large: it uses group labels.

    held_out: share of each class that the network does not see and the last layer is fitted on (0: on all that it
    saw); penalty: of the logistic regression; strength: its inverse strength of regularisation (scikit-learn's C);
    augment: in training.

    >>> method = DFR(strength=0.1)  # `debiaser train waterbirds --method dfr --set strength=0.1`
    """

    uses_groups: ClassVar[bool] = True

    held_out: float = bounded(0.2, at_least=0, below=1)
    penalty: str = choice("l1", "l2")
    strength: float = bounded(0.1, above=0)
    augment: bool = True

    def fit(self, task: Task) -> nn.Module:
        """The network with the mean of the last layers of ten balanced subsets."""
        known = task.known_groups()
        network = plain_network(task, self.held_out)
        rows = network.held_out
        seen, groups = network.look(rows), consecutive(known[rows])
        weights = np.zeros(len(known))
        weights[rows] = balancing_weights(groups)
        task.journal.note("weight", weights)
        classes = seen.logits.shape[1]
        fits = LogisticFit(seen.features.numpy(), seen.labels.numpy(), classes, self.strength, l1=self.penalty == "l1")
        with task.journal.timed("last layer"):
            return network.with_last_layer(*fits.balanced_subsets(groups, task.seed))
