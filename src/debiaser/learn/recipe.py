"""How long, how fast and with which optimiser to train: plain numbers, and the learning rate as a pure function."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from debiaser.errors import Misuse, known

OPTIMIZERS = ("adam", "adamw", "sgd")
SCHEDULES = ("constant", "cosine", "linear", "one-cycle", "step")


@dataclass(frozen=True)
class Recipe:
    """How long, how fast and with which optimiser to train.

    Args:
        epochs: of each stage.
        batch_size: samples of a step.
        optimizer: "sgd", "adam" or "adamw".
        lr: the learning rate, at its highest.
        momentum: of SGD.
        weight_decay: of every optimiser.
        schedule: "one-cycle", "cosine", "linear", "step" or "constant".
        decay: factor of the schedule "step".
        decay_every: epochs between two such factors.
        rise: share of a one-cycle schedule in which the rate goes up.
        clip: the largest norm of the gradient; None for any.
        augment: whether the data's augmentation is used.
        single_stage: how many times `epochs` a method with one stage trains, so that all see as many samples.
        name: for results.
        stages: what differs in the stage of a name, such as `{"biased": {"epochs": 4}}`.

    Raises:
        Misuse: a number or a name that cannot be meant.

    Example:
        >>> from debiaser import Recipe
        >>> recipe = Recipe(epochs=10, lr=0.1, stages={"biased": {"epochs": 4}})
        >>> recipe.of_stage("biased").epochs, recipe.of_stage("debiased").epochs
        (4, 10)
    """

    epochs: int = 10
    batch_size: int = 128
    optimizer: str = "sgd"
    lr: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 1e-3
    schedule: str = "one-cycle"
    decay: float = 0.1
    decay_every: int = 40
    rise: float = 0.3
    clip: float | None = None
    augment: bool = True
    single_stage: int = 2
    name: str = "custom"
    stages: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "single_stage", "decay_every"):
            if getattr(self, name) < 1:
                raise Misuse(f"{name} must be at least 1, got {getattr(self, name)}")
        if not self.lr > 0:
            raise Misuse(f"lr must be positive, got {self.lr:g}")
        if self.optimizer not in OPTIMIZERS:
            raise known("optimizer", self.optimizer, OPTIMIZERS)
        if self.schedule not in SCHEDULES:
            raise known("schedule", self.schedule, SCHEDULES)
        names = {each.name for each in fields(self)}
        for stage in self.stages.values():
            for name in set(stage) - names:
                raise known("recipe field", name, names)

    def of_stage(self, stage: str, length: float = 1, rate: float = 1) -> "Recipe":
        """The recipe of this stage, `length` times as long at `rate` times its rate, with no further stages in it."""
        own = replace(self, **{**self.stages.get(stage, {}), "stages": {}})
        return replace(own, epochs=max(1, round(own.epochs * length)), lr=own.lr * rate)

    def with_epochs(self, epochs: int) -> "Recipe":
        """The recipe with this many epochs in every stage."""
        stages = {
            stage: {name: value for name, value in own.items() if name != "epochs"}
            for stage, own in self.stages.items()
        }
        return replace(self, epochs=epochs, stages=stages)

    def learning_rate(self, step: int, steps_per_epoch: int) -> float:
        """The rate at this step (from 0); a function of the step alone, so that resuming needs no scheduler state."""
        total = self.epochs * steps_per_epoch
        if self.schedule == "step":
            return self.lr * self.decay ** (step // steps_per_epoch // self.decay_every)
        if self.schedule == "cosine":  # per epoch, as it is usually written
            return self.lr * (1 + math.cos(math.pi * (step // steps_per_epoch) / self.epochs)) / 2
        if self.schedule == "linear":
            return self.lr * (1 - step / total)
        if self.schedule == "one-cycle":
            return one_cycle(step, total, self.lr, self.rise)
        return self.lr

    def plain(self) -> dict[str, Any]:
        """The recipe as plain values, for keys and JSON; `augment` only where it is off, as it usually is not."""
        values = asdict(self)
        if self.augment:
            del values["augment"]
        return values


def one_cycle(step: int, total: int, highest: float, rise: float) -> float:
    """From highest / 25 up to `highest` at the share `rise`, then down to highest / 250,000, along half cosines."""

    def between(start: float, end: float, share: float) -> float:
        return end + (start - end) * (1 + math.cos(math.pi * share)) / 2

    peak = max(0.0, rise * total - 1)
    if step < peak:
        return between(highest / 25, highest, step / peak)
    return between(highest, highest / 25e4, (step - peak) / max(1.0, total - 1 - peak))
