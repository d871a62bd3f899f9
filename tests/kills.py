"""Ending a training in the middle of some step, as a kill would, and what must be there when it has gone on."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

from debiaser.learn.checkpoint import Checkpoints
from debiaser.methods.task import Task
from debiaser.progress import listening
from two_stages import same


class Kill(Exception):
    """What ends the training."""


class KillAt:
    """A listener that ends the training at this step."""

    def __init__(self, when: int) -> None:
        self.left = when

    def __call__(self, what: str, done: int, total: int | None, step: int, unit: str) -> None:
        self.left -= step
        if self.left == 0:
            raise Kill


def check_resumed(
    method: Any, new_task: Callable[..., Task], when: int, folder: Path, expected: nn.Module, calm: Task
) -> None:
    """A fit that ends at this step and is begun again gives the weights and vectors of an undisturbed one."""
    with pytest.raises(Kill), listening(KillAt(when)):
        method.fit(new_task(checkpoints=Checkpoints(folder)))
    task = new_task(checkpoints=Checkpoints(folder))
    assert same(expected, method.fit(task)), f"killed at step {when}"
    assert task.journal.vectors.keys() == calm.journal.vectors.keys()
    for name, vector in calm.journal.vectors.items():
        assert np.array_equal(task.journal.vectors[name], vector), f"{name}, killed at step {when}"
