"""DFR: deep feature reweighting, a last layer on balanced groups (Kirichenko, Izmailov and Wilson, ICLR 2023)."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from torch import nn

from debiaser.io import numpy_stream
from debiaser.learn.forward import Outputs
from debiaser.learn.groups import Groups, balancing_weights, consecutive
from debiaser.learn.last_layer import LogisticFit
from debiaser.methods.task import Method, Task, bounded, choice, plain_network

STRENGTHS = (1.0, 0.7, 0.3, 0.1, 0.07, 0.03, 0.01)  # the authors' for Waterbirds


@dataclass(frozen=True)
class DFR(Method):
    """Train a network, then fit a new last layer on subsets in which all known groups are equally large. Uses group
    labels.

    Args:
        held_out: share of each class that the network does not see and the last layer is fitted on; 0 fits it on the
            samples that the network saw.
        penalty: penalty of the logistic regression.
        strength: its inverse regularisation strength (scikit-learn's C); None picks the best on the worst group of one
            half of the samples when fitted on the other.
        augment: augment the training data.

    >>> method = DFR(strength=0.1)  # `debiaser train waterbirds --method dfr --set strength=0.1`
    """

    uses_groups: ClassVar[bool] = True

    held_out: float = bounded(0.2, at_least=0, below=1)
    penalty: str = choice("l1", "l2")
    strength: float | None = bounded(None, above=0)
    augment: bool = True

    def fit(self, task: Task) -> nn.Module:
        """Return the network with a last layer averaged over ten balanced subsets."""
        known = task.known_groups()
        network = plain_network(task, self.held_out)
        rows = network.held_out
        seen, groups = network.look(rows), consecutive(known[rows])
        weights = np.zeros(len(known))
        weights[rows] = balancing_weights(groups)
        task.journal.note("weight", weights)
        with task.journal.timed("last layer"):
            fits = self.regression(seen, self.strength or self.best_strength(seen, groups, task.seed))
            return network.with_last_layer(*fits.balanced_subsets(groups, task.seed))

    def regression(self, seen: Outputs, strength: float) -> LogisticFit:
        """Return logistic regressions on these samples."""
        features, labels = seen.features.numpy(), seen.labels.numpy()
        return LogisticFit(features, labels, seen.logits.shape[1], strength, l1=self.penalty == "l1")

    def best_strength(self, seen: Outputs, groups: Groups, seed: int) -> float:
        """Fit on one half; return the strength with the best worst-group (then mean) accuracy on the other."""
        first = numpy_stream(seed, "dfr halves").random(len(groups)) < 0.5
        one, two = (Outputs(seen.features[half], seen.logits[half], seen.labels[half]) for half in (first, ~first))
        others = consecutive(groups[~first])
        found: list[tuple[float, float, float]] = []
        for strength in STRENGTHS:
            weights, biases = self.regression(one, strength).balanced_subsets(consecutive(groups[first]), seed, 1)
            right = (two.features.numpy() @ weights.T + biases).argmax(1) == two.labels.numpy()
            accuracy = np.bincount(others, right) / np.bincount(others)
            found.append((float(accuracy.min()), float(accuracy.mean()), strength))
        return max(found)[2]
