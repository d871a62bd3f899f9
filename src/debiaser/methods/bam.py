"""BAM: bias amplification (Li, Li, Vinod, Kangaslahti and Bates, TMLR 2024)."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from debiaser.data.split import Batch, Split
from debiaser.learn.forward import call, device_of, predict
from debiaser.learn.gradient_norms import misclassified
from debiaser.learn.losses import Objective, Supervised, cross_entropy
from debiaser.methods.jtt import JTT
from debiaser.methods.task import Method, Task, bounded


@dataclass(frozen=True)
class BAM(Method):
    """Train with a learnable offset per sample that absorbs what would otherwise be memorised, then continue training
    with misclassified samples upweighted.

    Args:
        amplify: factor of the offset that is added to the logits (the paper's lambda).
        upweight: a misclassified sample counts 1 + upweight times.
        identification: length of the first stage, as a multiple of the recipe's epochs.
        augment: augment the training data.

    >>> result = debias(model, dataset, BAM(amplify=5, upweight=20))
    """

    amplify: float = bounded(20, at_least=0)
    upweight: float = bounded(50, at_least=0)
    identification: float = bounded(1, above=0)
    augment: bool = True

    def fit(self, task: Task) -> nn.Module:
        """Return the network after both stages."""
        free = Auxiliary(task.new_model(), task.train, self.amplify)
        model = task.fit(free, "identification", length=self.identification)  # stage 1
        error = task.scores(model, misclassified)
        task.journal.note("score", 1 + self.upweight * error)
        return task.fit(Supervised(model), "final", JTT(self.upweight).sampler(error, task.seed))  # stage 2


class Auxiliary(Objective):
    """Cross-entropy of f(x_i) + amplify b_i with a trainable vector b_i of every sample, 0 at the start."""

    def __init__(self, model: nn.Module, split: Split, amplify: float) -> None:
        super().__init__()
        self.model, self.amplify, self.rule = model, amplify, f"amplify={amplify}"
        logits = predict(model, [split.batch(torch.arange(min(2, len(split))))], device_of(model))
        self.vectors = nn.Parameter(torch.zeros(len(split), logits.shape[1]))

    def forward(self, batch: Batch) -> Tensor:
        return cross_entropy(call(self.model, batch.x) + self.amplify * self.vectors[batch.rows], batch.y).mean()
