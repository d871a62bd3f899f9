"""What a training depends on: its recipe (plain numbers, and the learning rate as a pure function), and the machine."""

import math
import os
import platform
import re
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache
from importlib.metadata import version
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from debiaser import __version__
from debiaser.errors import Misuse, known

OPTIMIZERS = ("adam", "adamw", "sgd")
SCHEDULES = ("constant", "cosine", "linear", "one-cycle", "step")


@dataclass(frozen=True)
class Recipe:
    """Epochs, batch size, optimiser and learning rate schedule.

    Args:
        epochs: epochs per stage.
        batch_size: samples per step.
        optimizer: "sgd", "adam" or "adamw".
        lr: the highest learning rate.
        momentum: momentum of SGD.
        weight_decay: weight decay of any optimiser.
        schedule: "one-cycle", "cosine", "linear", "step" or "constant".
        decay: factor of the schedule "step".
        decay_every: epochs between two such decays.
        rise: share of a one-cycle schedule in which the learning rate rises.
        clip: largest norm of the gradient; None for no clipping.
        augment: use the data's augmentation.
        single_stage: factor of `epochs` for methods with one stage, so that all methods see the same number of samples.
        name: name of the recipe in results.
        stages: changes for named stages, such as `{"biased": {"epochs": 4}}`.

    Raises:
        Misuse: a number or a name is invalid.

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
            if not isinstance(value := getattr(self, name), Integral):
                raise Misuse(f"{name} must be a whole number, got {value!r}")
            if value < 1:
                raise Misuse(f"{name} must be at least 1, got {value}")
        if not isinstance(self.lr, Real) or not self.lr > 0:
            raise Misuse(f"lr must be a positive number, got {self.lr!r}")
        if self.optimizer not in OPTIMIZERS:
            raise known("optimizer", self.optimizer, OPTIMIZERS)
        if self.schedule not in SCHEDULES:
            raise known("schedule", self.schedule, SCHEDULES)
        names = {each.name for each in fields(self)}
        for stage in self.stages.values():
            for name in set(stage) - names:
                raise known("recipe field", name, names)

    def of_stage(self, stage: str, length: float = 1, rate: float = 1) -> "Recipe":
        """Return the recipe of one stage, with epochs times `length` and learning rate times `rate`."""
        own = replace(self, **{**self.stages.get(stage, {}), "stages": {}})
        return replace(own, epochs=max(1, round(own.epochs * length)), lr=own.lr * rate)

    def with_epochs(self, epochs: int) -> "Recipe":
        """Return the recipe with this many epochs in every stage."""
        stages = {
            stage: {name: value for name, value in own.items() if name != "epochs"}
            for stage, own in self.stages.items()
        }
        return replace(self, epochs=epochs, stages=stages)

    def learning_rate(self, step: int, steps_per_epoch: int) -> float:
        """Return the learning rate at a step, counted from 0; no state is needed to resume."""
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
        """Return the recipe as plain values, for keys and JSON; `augment` only if it is False."""
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


# The machine


def environment(device: str, world_size: int = 1) -> dict[str, Any]:
    """What a result depends on besides its spec."""
    import numpy as np
    import torch

    return {
        "debiaser": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        **{name: version(name) for name in ("pillow", "scikit-learn", "scipy")},
        "commit": commit(),
        "device": device,
        "threads": torch.get_num_threads(),
        "platform": platform.platform(),
        "processor": processor(),
        "cores": os.cpu_count(),
        "world_size": world_size,
    }


def processor() -> str:
    """What the processor is called, where the system tells."""
    facts = Path("/proc/cpuinfo")
    named = re.search(r"^model name\s*:\s*(.+)$", facts.read_text() if facts.is_file() else "", re.MULTILINE)
    return named[1].strip() if named else platform.processor() or platform.machine()


def commit() -> str | None:
    """The commit of the checkout this package runs from, with a plus sign if it was changed since; else None."""

    def git(*words: str) -> str:
        line = ["git", "-C", str(Path(__file__).parent), *words]
        return subprocess.run(line, capture_output=True, text=True, timeout=10, check=True).stdout.strip()  # noqa: S603

    try:
        git("ls-files", "--error-unmatch", __file__)  # else it is installed inside of somebody's checkout
        return git("describe", "--always", "--exclude=*", "--abbrev=12", "--dirty=+")
    except (OSError, subprocess.SubprocessError):
        return None


# Keeping the memory that a training step frees for the next step, which needs the same again

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of glibc's malloc.h
MOST, LARGEST = 512 * 2**20, 32 * 2**20  # bytes kept in all, and of one tensor


@cache
def keep_freed_memory() -> None:
    """Ask glibc to keep what this process frees; elsewhere nothing happens.

    By default it returns the top of the heap to the system again and again, and every step of a small network pays for
    some thousand page faults to get it back. For commands of our own: a library has no business with malloc.
    """
    import ctypes

    with suppress(AttributeError, OSError, TypeError):  # another C library, another system
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(TRIM_THRESHOLD, MOST)
        mallopt(MMAP_THRESHOLD, LARGEST)
