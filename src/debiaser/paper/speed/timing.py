"""Measuring: ways to do one thing run in turns, ratios round by round, memory in fresh processes, growth."""

import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from debiaser.data.benchmarks import digits
from debiaser.data.split import Split
from debiaser.io import python, surroundings

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


# --- What is measured on: coloured digits as often as asked, JPEGs of smooth shapes, a small table of features


def coloured_digits(rows: int) -> Split:
    """So many rows of coloured digits of 28 pixels: those that ship with scikit-learn, over and over."""
    train = digits.load(None, 0.05, 0).train
    place = torch.arange(rows) % len(train)
    return train.subset(place)


def features(rows: int, width: int = 32, classes: int = 10) -> Split:
    """So many rows of random features with labels."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, width, generator=generator)
    return Split.of(x, torch.randint(0, classes, (rows,), generator=generator))


def as_bytes(split: Split) -> np.ndarray:
    """(n, h, w, 3) its pictures as 8-bit pixels."""
    x: Tensor = torch.cat([batch.x for batch in split.batches(2000)])
    return (x * 255).round().byte().permute(0, 2, 3, 1).contiguous().numpy()


@contextmanager
def jpegs(count: int, side: int) -> Iterator[list[str]]:
    """Paths of so many square JPEGs of smooth shapes with some noise, for as long as it is open."""
    with TemporaryDirectory(prefix="debiaser-bench-") as folder:
        rng, paths = np.random.default_rng(0), [str(Path(folder) / f"{number}.jpg") for number in range(count)]
        noise = rng.normal(0, 6, (side, side, 3)).astype(np.float32)
        for path in paths:
            shapes = Image.fromarray(rng.integers(0, 256, (12, 12, 3), dtype=np.uint8)).resize((side, side))
            noisy = np.asarray(shapes, np.float32) + np.roll(noise, int(rng.integers(side)), axis=1)
            Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(path, quality=90)
        yield paths
