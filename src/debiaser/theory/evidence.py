"""Everything that the verdicts rest on, computed one part after the other."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from debiaser.learn.engine import Listener
from debiaser.theory import logistic, objective, regression, toy

T = TypeVar("T")
DATA_SETS = 4  # drawn for the practical objective


@dataclass(frozen=True)
class Evidence:
    """The measurements behind all statements."""

    seed: int
    cases: tuple[toy.Case, ...]
    beyond: toy.Beyond
    world: logistic.World
    rows: tuple[logistic.Row, ...]
    hardened: tuple[logistic.Hardened, ...]
    matrices: logistic.Matrices
    solved: tuple[objective.Solved, ...]
    compared: tuple[regression.Compared, ...]  # with more rows than parameters, then with fewer


def gather(seed: int, listener: Listener, replicates: int = logistic.REPLICATES) -> Evidence:
    """All measurements; the listener hears of each part and its steps."""

    def told(stage: str, steps: int, parts: Iterable[T]) -> tuple[T, ...]:
        listener.begin(stage, steps, 0)
        found = tuple(ticking(parts, listener.step))
        listener.end(stage, None)
        return found

    world = logistic.biased_world(seed)
    per_case = len(toy.SCALES) * len(toy.SIZES) ** 2
    return Evidence(
        seed=seed,
        cases=told("Theorem 2", per_case, toy.cases()),
        beyond=toy.beyond(),
        world=world,
        rows=told(
            "Theorem 1",
            len(logistic.SIZES),
            (logistic.measured(world, n, seed, replicates) for n in logistic.SIZES),
        ),
        hardened=tuple(logistic.hardened(world)),
        matrices=logistic.matrices(seed),
        solved=told(
            "practical objective", DATA_SETS, (objective.solve(seed * DATA_SETS + each) for each in range(DATA_SETS))
        ),
        compared=told("digits", 2, (regression.compare(seed, rows) for rows in (None, regression.FEW))),
    )


def ticking(parts: Iterable[T], tick: Callable[[], None]) -> Iterator[T]:
    """The parts, with a call after each."""
    for part in parts:
        yield part
        tick()
