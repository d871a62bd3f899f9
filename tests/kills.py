"""Ending a training in the middle of some step, as a kill would."""

import torch


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


def same(one: torch.nn.Module, two: torch.nn.Module) -> bool:
    """Whether two networks have the same weights."""
    states = one.state_dict(), two.state_dict()
    return states[0].keys() == states[1].keys() and all(
        torch.equal(states[0][name], states[1][name]) for name in states[0]
    )
