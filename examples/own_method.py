"""A method of one's own is one file: `debiaser train digits --method examples/own_method.py:Balanced`.

A method is a frozen dataclass: its fields are hyperparameters (`--set strength=0.5`), its `fit(task)` trains through
the one loop (`task.fit`) and looks through the one look (`task.scores`, `task.outputs`). It never sees a bias label.
"""

import copy
from dataclasses import dataclass

import torch
from torch import nn

from debiaser import ScoreSampler
from debiaser.learn.losses import Supervised
from debiaser.methods.task import Task


@dataclass(frozen=True)
class Balanced:
    """Train briefly, then draw samples so that each (label, first model's answer) pair is seen equally often."""

    strength: float = 1.0

    def fit(self, task: Task) -> nn.Module:
        first = task.fit(Supervised(task.new_model()), "first")
        outputs = task.outputs(first)
        pair = outputs.labels * outputs.logits.shape[1] + outputs.logits.argmax(1)
        scores = torch.bincount(pair)[pair].double() ** -self.strength
        task.journal.note("score", scores)
        return task.fit(Supervised(copy.deepcopy(first)), "second", sampler=ScoreSampler(scores, seed=task.seed))
