"""Is the easy model fit to judge anything? What is wrong, why that matters, and what to change."""

from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from debiaser.auditing.jobs import Rows

WEAK = 0.1  # of the way from guessing to perfect that a model must have gone
FEW = 20  # errors of the easy model, below which nothing can be said of rows that go against it
COLLAPSED = 0.05  # of a class's rows answered right, below which the model does not know the class


@dataclass(frozen=True)
class Trouble:
    """What was seen, why it matters, what to do."""

    what: str
    why: str
    do: str

    @property
    def plain(self) -> dict[str, str]:
        return asdict(self)


def above_chance(right: NDArray[np.bool_], y: Rows) -> float:
    """How far from always naming one class (0) to perfect (1) the answers are, all classes counting alike."""
    counts = np.bincount(y)
    there = counts > 0
    recall = np.bincount(y, right, len(counts))[there] / counts[there]
    guess = 1 / there.sum()
    return float((recall.mean() - guess) / max(1 - guess, 1e-12))


def check(y: Rows, easy: Rows, plain: Rows, classes: tuple[str, ...], change: str) -> list[Trouble]:
    """What is wrong with the easy and the plain model's out-of-fold answers; `change`: how to get better inputs."""
    found = []
    if above_chance(plain == y, y) < WEAK:
        found.append(
            Trouble(
                "The plain model is hardly better than always naming one class.",
                "What it is given cannot carry the task, so no finding about it means anything.",
                change,
            )
        )
    elif above_chance(easy == y, y) < WEAK:
        found.append(
            Trouble(
                "The easy model is hardly better than always naming one class.",
                "It has not learnt any rule, so rows cannot go against one.",
                "Train it longer: --epochs with a larger number.",
            )
        )
    errors = int((easy != y).sum())
    if errors < FEW:
        found.append(
            Trouble(
                f"The easy model misses only {errors:,} of {len(y):,} rows it was not trained on.",
                "If a shortcut goes with the label everywhere, no row in the data can show it.",
                "Collect rows where the suspected cue and the label disagree, or examine the model on them.",
            )
        )
    for number, name in enumerate(classes):
        mine = y == number
        if mine.any() and (easy[mine] == number).mean() < COLLAPSED and above_chance(easy == y, y) >= WEAK:
            found.append(
                Trouble(
                    f"The easy model almost never answers '{name}' where that is the label.",
                    "All rows of that class then look as if they went against the rule.",
                    "The class may be too rare or too hard for so short a training: --epochs with a larger number, or "
                    "merge it with another.",
                )
            )
    return found
