"""Measuring: ways to do one thing run in turns, ratios round by round, memory in fresh processes, growth."""

import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from debiaser.children import python, surroundings

Times = list[dict[str, float]]
STATUS = Path("/proc/self/status")


@dataclass(frozen=True)
class Way:
    """One way to do a thing; `factor` scales its time where it runs on a part only."""

    run: Callable[[], Any]
    factor: float = 1


@dataclass(frozen=True)
class Spread:
    """The median of some ratios, the lowest and the highest, and how many they were."""

    median: float
    low: float
    high: float
    rounds: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """That of these numbers."""
        return cls(statistics.median(values), min(values), max(values), len(values))

    def plain(self) -> dict[str, float]:
        """As JSON has it."""
        return asdict(self)


def seconds(way: Way) -> float:
    """How long it takes, scaled."""
    started = time.perf_counter()
    way.run()
    return (time.perf_counter() - started) * way.factor


def interleaved(ways: Mapping[str, Way], rounds: int, done: Callable[[], None] = lambda: None) -> Times:
    """The seconds of every way in every round: all of them once, then all of them again.

    What slows the machine for a while slows all of them, and falls out of the ratio of a round.
    """
    times: Times = []
    for _ in range(rounds):
        times.append({name: seconds(way) for name, way in ways.items()})
        done()
    return times


def ratio(times: Times, upper: str, lower: str) -> Spread:
    """The seconds of one way over those of another, round by round."""
    return Spread.of([each[upper] / each[lower] for each in times])


def typical(times: Times, name: str) -> float:
    """The median of its seconds."""
    return statistics.median(each[name] for each in times)


def difference(ours: Any, other: Any) -> float | None:
    """The largest relative difference of two results, over the rows that both have; None where they are no numbers."""
    if not (isinstance(ours, Tensor) and isinstance(other, Tensor) and ours.is_floating_point()):
        return None
    rows = min(len(ours), len(other))
    return float((other[:rows].detach() / ours[:rows].detach() - 1).abs().max())


def peak_mb() -> float:
    """The most memory that this process has held, in MB.

    Linux's own count where there is one: `ru_maxrss` of a child is at least that of the process that started it.
    """
    if STATUS.exists():
        return int(STATUS.read_text().split("VmHWM:")[1].split()[0]) / 1024
    import resource

    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return largest / (2**20 if sys.platform == "darwin" else 1024)


def in_fresh_process(*words: str) -> str:
    """The last line that `python words...` prints."""
    line, variables = python(*words), surroundings(OMP_NUM_THREADS=str(torch.get_num_threads()))
    done = subprocess.run(line, capture_output=True, text=True, check=True, env=variables)  # noqa: S603 (our own words)
    return (done.stdout.strip().splitlines() or [""])[-1]


def exponent(sizes: Sequence[int], times: Sequence[float]) -> float:
    """b of the line log t = a + b log n that fits best; 1 is linear."""
    x, y = [math.log(size) for size in sizes], [math.log(each) for each in times]
    mean_x, mean_y = statistics.fmean(x), statistics.fmean(y)
    across = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    return across / sum((a - mean_x) ** 2 for a in x)
