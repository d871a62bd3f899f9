"""Ending a training in the middle of some step, as a kill would."""

from debiaser.learn.engine import Silence


class Kill(Exception):
    """What ends the training."""


class KillAt(Silence):
    """A listener that ends the training at this step."""

    def __init__(self, when: int) -> None:
        self.left = when

    def step(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise Kill
