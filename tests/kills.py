"""Ending a training in the middle of some step, as a kill would; and watching what goes into its stages."""

import copy
from typing import Any

import torch
from torch import nn

from debiaser.methods.task import Task


class Killed(Exception):
    """What ends the training."""


class Kill:
    """A listener that counts the steps that were taken, and ends the training at one of them; at 0, never."""

    def __init__(self, at: int = 0) -> None:
        self.at, self.steps = at, 0

    def __call__(self, what: str, done: int, total: int | None, step: int, unit: str) -> None:
        self.steps += step
        if step and self.steps == self.at:
            raise Killed


def same(one: nn.Module, two: nn.Module) -> bool:
    """Whether two networks have the same weights."""
    states = one.state_dict(), two.state_dict()
    return states[0].keys() == states[1].keys() and all(
        torch.equal(states[0][name], states[1][name]) for name in states[0]
    )


class Watched:
    """What went into and came out of the stages of a task, by stage."""

    def __init__(self, task: Task) -> None:
        self.starts: dict[str, nn.Module] = {}
        self.ends: dict[str, nn.Module] = {}
        self.samplers: dict[str, Any] = {}
        self.objectives: dict[str, Any] = {}
        original = task.fit

        def fit(objective: Any, stage: str, sampler: Any = None, *more: Any, **named: Any) -> nn.Module:
            self.starts[stage], self.samplers[stage] = copy.deepcopy(objective.model), sampler
            self.objectives[stage], self.ends[stage] = objective, original(objective, stage, sampler, *more, **named)
            return self.ends[stage]

        task.fit = fit  # type: ignore[method-assign]
