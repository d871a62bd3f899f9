"""DPR: disagreement-probability resampling (Han, Kim and Lee, NeurIPS 2024)."""

import copy
from dataclasses import dataclass

from torch import nn

from debiaser.learn.gradient_norms import disagreement
from debiaser.learn.losses import Supervised, gce
from debiaser.learn.sampler import ScoreSampler
from debiaser.methods.task import Method, Task, bounded


@dataclass(frozen=True)
class DPR(Method):
    """Train a biased model, score samples by how much it disagrees with their label, then continue training on samples
    drawn by score.

    Args:
        alpha: exponent of GCE; None for cross-entropy.
        extra_q: multiply GCE by alpha, as the released code does.
        temperature: tau; above 1 it evens out the scores (at 1 this is PGD with score="residual", p=1).
        inherit: start the debiased model from the biased one.
        augment: augment the training data.

    >>> result = debias(model, dataset, DPR(temperature=1.1))
    """

    alpha: float | None = bounded(0.7, above=0, at_most=1)
    extra_q: bool = False
    temperature: float = bounded(1, above=0)
    inherit: bool = True
    augment: bool = True

    def fit(self, task: Task) -> nn.Module:
        """Return the debiased network."""
        biased = task.fit(Supervised(task.new_model(), gce(self.alpha, self.extra_q)), "biased")  # step 1
        scores = task.scores(biased, disagreement(self.temperature)).clamp_min(1e-8)  # step 2
        task.journal.note("score", scores)
        start = copy.deepcopy(biased) if self.inherit else task.new_model("debiased")
        return task.fit(Supervised(start), "debiased", ScoreSampler(scores, seed=task.seed))  # step 3
