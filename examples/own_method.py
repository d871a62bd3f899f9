"""Your own method is one file: `debiaser train digits --method examples/own_method.py:Balanced`.

A method is a frozen dataclass whose fields are its hyperparameters (`--set strength=0.5`). Its `fit(task)` trains with
`task.fit` and makes passes over the data with `task.scores` and `task.outputs`. It never sees a bias label.
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
    """Train, then draw samples so that each pair of label and first prediction is seen equally often."""

    strength: float = 1.0

    def fit(self, task: Task) -> nn.Module:
        first = task.fit(Supervised(task.new_model()), "first")
        outputs = task.outputs(first)
        pair = outputs.labels * outputs.logits.shape[1] + outputs.logits.argmax(1)
        scores = torch.bincount(pair)[pair].double() ** -self.strength
        task.journal.note("score", scores)
        return task.fit(Supervised(copy.deepcopy(first)), "second", sampler=ScoreSampler(scores, seed=task.seed))
