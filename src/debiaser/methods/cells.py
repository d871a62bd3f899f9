"""Cells: balance or invert the table of biased answer and class (FG-CCDB and MST, Zhao and Zhang, ICLR 2026)."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import nn

from debiaser.io import derive, log, numpy_stream
from debiaser.learn.gradient_norms import disagreement
from debiaser.learn.groups import Groups, cell_weights
from debiaser.learn.losses import Supervised, gce
from debiaser.learn.sampler import ScoreSampler, Shuffle
from debiaser.methods.task import Method, Task, bounded, choice


@dataclass(frozen=True)
class Cells(Method):
    """Train a biased model, count its predictions in each class, then train a fresh network on draws that even out the
    counts.

    Args:
        power: exponent k of a cell's weight size^-k; within a class, 0 keeps the proportions of the data, 1 draws all
            cells equally often, 2 inverts the proportions.
        cells: what divides a class into cells: the biased model's prediction ("answer") or whether it is wrong
            ("error").
        alpha: exponent of the biased models' GCE; None for cross-entropy.
        share: share of each class, drawn at random, that the first biased model is trained on.
        amplify: number of rounds in which a fresh biased model is trained on the samples that the previous one is
            surest of.
        keep: share of each class that is kept in such a round.
        augment: augment the training data.

    >>> result = debias(model, dataset, Cells(power=2, amplify=1))
    """

    power: float = bounded(1, at_least=0)
    cells: str = choice("answer", "error")
    alpha: float | None = bounded(0.7, above=0, at_most=1)
    share: float = bounded(1, above=0, at_most=1)
    amplify: int = bounded(0, at_least=0)
    keep: float = bounded(0.5, above=0, at_most=1)
    augment: bool = True

    def fit(self, task: Task) -> nn.Module:
        """Return the network trained on draws by cell."""
        labels = task.train.y.numpy()
        biased = self.biased(task, "biased", labels, np.zeros(len(labels)), self.share)
        for number in range(1, self.amplify + 1):
            unsure = task.scores(biased, disagreement()).numpy()
            biased = self.biased(task, f"amplified {number}", labels, unsure, self.keep)
        answers = task.scores(biased, lambda seen: seen.logits.argmax(1)).numpy()
        weights = self.weights(labels, answers)
        task.journal.note("score", weights)
        fresh = Supervised(task.new_model("debiased"))
        return task.fit(fresh, "debiased", ScoreSampler(weights, seed=task.seed))

    def biased(self, task: Task, stage: str, labels: Groups, unsure: NDArray[np.float64], share: float) -> nn.Module:
        """Train a fresh biased model on a share of every class: the samples that the previous one was surest of."""
        shuffled = numpy_stream(task.seed, "cells", stage).permutation(len(labels))
        order = shuffled[np.argsort(unsure[shuffled], kind="stable")]  # surest first, in random order where alike
        place = np.empty(len(labels), np.int64)
        for label in np.unique(labels):
            own = order[labels[order] == label]
            place[own] = np.arange(len(own))
        kept = np.flatnonzero(place < np.ceil(share * np.bincount(labels))[labels])
        sampler = Shuffle(len(labels), derive(task.seed, stage), kept) if share < 1 else None
        start = task.new_model() if stage == "biased" else task.new_model(stage)
        return task.fit(Supervised(start, gce(self.alpha)), stage, sampler)

    def weights(self, labels: Groups, answers: Groups) -> NDArray[np.float64]:
        """Return the sampling weights (n,); a class with a single cell is drawn uniformly."""
        wrong = answers != labels
        missed = np.bincount(labels, wrong)[np.unique(labels)]
        if not missed.all():
            told = "the biased model misclassifies no sample of %d of %d classes: these are drawn evenly"
            log.warning(told, int((missed == 0).sum()), len(missed))
        return cell_weights(labels, wrong.astype(np.int64) if self.cells == "error" else answers, self.power)
