"""NeuronTune: features that go with mistakes are set to 0 (Zheng, Ye and Zhang, ICML 2025)."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from debiaser.io import log
from debiaser.learn.groups import Groups, balancing_weights, consecutive
from debiaser.learn.last_layer import LastLayer, LogisticFit
from debiaser.methods.task import Method, Task, bounded, choice, plain_network


@dataclass(frozen=True)
class NeuronTune(Method):
    """Train a network, then fit a new last layer without the features that are higher in misclassified samples of a
    class.

    Args:
        classes: whether a feature must be higher in every class or in any class to be removed.
        held_out: share of each class that the network does not see and features are judged on.
        rounds: rounds of judging and fitting; the one with the largest sum of differences is kept.
        strength: inverse regularisation strength (scikit-learn's C).
        augment: augment the training data.

    >>> result = debias(model, dataset, NeuronTune(classes="any"))
    """

    classes: str = choice("every", "any")
    held_out: float = bounded(0.2, above=0, below=1)
    rounds: int = bounded(3, at_least=1)
    strength: float = bounded(1, above=0)
    augment: bool = True

    def fit(self, task: Task) -> nn.Module:
        """Return the network with a last layer that ignores features associated with mistakes."""
        network = plain_network(task, self.held_out)
        held_out = np.isin(np.arange(len(task.train)), network.held_out)
        task.journal.note("held_out", held_out.astype(np.int8))
        judged, learnt = network.look(np.flatnonzero(held_out)), network.look(np.flatnonzero(~held_out))
        features, labels, answers = (each.numpy() for each in (judged.features, judged.labels, judged.logits.argmax(1)))
        classes, found = judged.logits.shape[1], list[tuple[float, LastLayer]]()
        with task.journal.timed("last layer"):
            for _ in range(self.rounds):
                kept = ~self.biased(mistake_differences(features, labels, answers))
                fits = LogisticFit(learnt.features.numpy() * kept, learnt.labels.numpy(), classes, self.strength)
                weights, biases = fits.fit(balancing_weights(consecutive(fits.y)))
                answers = (features @ (weights * kept).T + biases).argmax(1)
                fitness = float(np.abs(mistake_differences(features, labels, answers)).sum())
                found.append((fitness, (weights * kept, biases)))
            return network.with_last_layer(*max(found, key=lambda each: each[0])[1])

    def biased(self, differences: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Return which features (h,) are higher in misclassified samples of a class; none if there are no mistakes."""
        if not len(differences):
            log.warning("no class has held-out samples both right and wrong: no feature is set to 0; raise held_out=")
            return np.zeros(differences.shape[1], bool)
        biased = np.asarray((differences > 0).all(0) if self.classes == "every" else (differences > 0).any(0))
        log.info("NeuronTune sets %d of %d features to 0", biased.sum(), len(biased))
        return biased


def mistake_differences(features: NDArray[Any], labels: Groups, answers: Groups) -> NDArray[np.float64]:
    """(c, h) median of misclassified less that of correctly classified samples, of each class that has both."""
    found = []
    for label in np.unique(labels):
        own, correct = labels == label, answers == label
        wrong, right = features[own & ~correct], features[own & correct]
        if len(wrong) and len(right):
            found.append(np.median(wrong, 0) - np.median(right, 0))
    return np.array(found, np.float64).reshape(-1, features.shape[1])
