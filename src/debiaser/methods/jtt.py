"""JTT: just train twice (Liu, Haghgoo, Chen, Raghunathan, Koh, Sagawa, Liang and Finn, ICML 2021)."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from debiaser.data.split import Batch
from debiaser.io import log
from debiaser.learn.forward import call
from debiaser.learn.gradient_norms import misclassified
from debiaser.learn.losses import Supervised
from debiaser.learn.sampler import ScoreSampler
from debiaser.methods.task import Method, Task, bounded, choice


@dataclass(frozen=True)
class JTT(Method):
    """Train, find the misclassified samples, then train a fresh network in which these count 1 + upweight times.

    Args:
        upweight: a misclassified sample counts 1 + upweight times (the PGD paper uses 1 / rho).
        identification: length of the first stage, as a multiple of the recipe's epochs.
        error_set: find misclassified samples in a clean pass in eval mode after the first stage, or by the predictions
            made during its last epoch, as the authors do.
        augment: augment the training data.

    >>> result = debias(model, dataset, JTT(upweight=20))
    """

    upweight: float = bounded(50, at_least=0)
    identification: float = bounded(1, above=0)
    error_set: str = choice("eval", "train")
    augment: bool = True

    def fit(self, task: Task) -> nn.Module:
        """Return the network of the second stage."""
        recorded = Recorded(task.new_model(), len(task.train))
        identifier = task.fit(recorded, "identification", length=self.identification)
        error = recorded.wrong
        if self.error_set == "eval":
            error = task.scores(identifier, misclassified)
        task.journal.note("error", error.to(torch.int8))
        return task.fit(Supervised(task.new_model("final")), "final", sampler=self.sampler(error, task.seed))

    def sampler(self, error: Tensor, seed: int) -> ScoreSampler | None:
        """Return a sampler that draws errors 1 + upweight times as often; None if no sample, or every one, is wrong."""
        errors, samples = int(error.sum()), len(error)
        if 0 < errors < samples:
            return ScoreSampler(1 + self.upweight * error.double(), seed=seed)
        told = "the first model misclassifies %s of %d samples, so the second training is plain; %s identification="
        log.warning(told, "all" if errors else "none", samples, "lengthen" if errors else "shorten")
        return None


class Recorded(Supervised):
    """Cross-entropy; beside it, for each sample, whether the latest prediction made in training was wrong."""

    wrong: Tensor

    def __init__(self, model: nn.Module, rows: int) -> None:
        super().__init__(model)
        self.register_buffer("wrong", torch.zeros(rows, dtype=torch.bool))

    def forward(self, batch: Batch) -> Tensor:
        logits = call(self.model, batch.x)
        self.wrong[batch.rows] = logits.detach().argmax(1) != batch.y
        return torch.mean(self.loss(logits, batch.y))
