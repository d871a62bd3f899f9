"""JTT: just train twice (Liu, Haghgoo, Chen, Raghunathan, Koh, Sagawa, Liang and Finn, ICML 2021)."""

import logging
import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from debiaser.data.split import Batch
from debiaser.errors import Misuse, known
from debiaser.learn.forward import Outputs, call
from debiaser.learn.losses import Supervised
from debiaser.learn.sampler import ScoreSampler
from debiaser.methods.task import Task

log = logging.getLogger("debiaser")
ERROR_SETS = ("eval", "train")


@dataclass(frozen=True)
class JTT:
    """Train, see which rows come out wrong, train a fresh network in which these count 1 + upweight times.

    upweight: how many times more an error counts (the PGD paper: 1 / rho); identification: length of the first
    training, in times the recipe's epochs; error_set: predictions of a clean pass in eval mode after it, or those made
    during its last epoch of training, as the authors log them; augment: in training.
    """

    upweight: float = 50
    identification: float = 1
    error_set: str = "eval"
    augment: bool = True

    def __post_init__(self) -> None:
        if not (self.upweight >= 0 and math.isfinite(self.upweight)):
            raise Misuse(f"upweight must be a number of at least 0, got {self.upweight:g}")
        if not self.identification > 0:
            raise Misuse(f"identification must be above 0, got {self.identification:g}")
        if self.error_set not in ERROR_SETS:
            raise known("error_set", self.error_set, ERROR_SETS)

    def fit(self, task: Task) -> nn.Module:
        """The network of the second training."""
        task = task if self.augment else task.plain()
        recorded = Recorded(task.new_model(), len(task.train))
        identifier = task.fit(recorded, "identification", length=self.identification)
        error = recorded.wrong if self.error_set == "train" else task.scores(identifier, wrong)
        task.journal.note("error", error.to(torch.int8))
        return task.fit(Supervised(task.new_model("final")), "final", sampler=self.sampler(error, task.seed))

    def sampler(self, error: Tensor, seed: int) -> ScoreSampler | None:
        """Draws of rows that count 1 + upweight times where they are errors; None where all count the same."""
        errors, rows = int(error.sum()), len(error)
        if 0 < errors < rows:
            return ScoreSampler(1 + self.upweight * error.double(), seed=seed)
        found, remedy = ("no row", "shorten") if errors == 0 else ("every row", "lengthen")
        log.warning(
            "JTT's first model gets %s of %d wrong, so no row counts more than another and the second training is "
            "plain training; %s the first one (identification=)",
            *(found, rows, remedy),
        )
        return None


class Recorded(Supervised):
    """Cross-entropy; beside it, for each training row, whether the latest prediction made in training was wrong."""

    wrong: Tensor

    def __init__(self, model: nn.Module, rows: int) -> None:
        super().__init__(model)
        self.register_buffer("wrong", torch.zeros(rows, dtype=torch.bool))

    def forward(self, batch: Batch) -> Tensor:
        logits = call(self.model, batch.x)
        self.wrong[batch.rows] = logits.detach().argmax(1) != batch.y
        return torch.mean(self.loss(logits, batch.y))


def wrong(outputs: Outputs) -> Tensor:
    """(n,) 1 where the prediction is not the label, 0 where it is."""
    return (outputs.logits.argmax(1) != outputs.labels).float()
