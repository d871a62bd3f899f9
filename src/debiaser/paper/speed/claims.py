"""The claims, and what measuring them gives: one plain dictionary per claim, for JSON and for the page."""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from debiaser.data.split import Split
from debiaser.errors import known
from debiaser.learn.engine import Stage, new_optimizer, run_epoch
from debiaser.learn.gradient_norms import gradient_norms
from debiaser.learn.losses import Supervised
from debiaser.learn.machine import environment
from debiaser.learn.nets import FeatureHead
from debiaser.learn.recipe import Recipe
from debiaser.learn.sampler import ScoreSampler, Shuffle
from debiaser.paper.speed import ways as made
from debiaser.paper.speed.timing import (
    Way,
    difference,
    exponent,
    features,
    in_fresh_process,
    interleaved,
    peak_mb,
    ratio,
    typical,
)
from debiaser.progress import task

# --- How the cost grows with the number of rows: seconds from a thousand to a million, and the exponent that fits

SIZES, FEW = (1_000, 10_000, 100_000, 1_000_000), (200, 400)


def score(split: Split) -> None:
    """The gradient norm of every row."""
    gradient_norms(small_net(), split)


def sample(split: Split) -> None:
    """A sampler is prepared, and as many rows are drawn as there are."""
    ScoreSampler(torch.rand(len(split), generator=torch.Generator().manual_seed(0))).draw(0)


def epoch(split: Split) -> None:
    """One epoch of training."""
    recipe = Recipe(epochs=1, batch_size=256)
    objective = Supervised(small_net())
    run_epoch(objective, new_optimizer(recipe, objective), Stage("growth", split, recipe, 0), Shuffle(len(split)), 0)


def small_net() -> nn.Module:
    """A small head on 32 features, so that what surrounds the network is seen to grow, not the network."""
    return FeatureHead(32, 10, 64)


THINGS: dict[str, Callable[[Split], None]] = {"scoring": score, "sampling": sample, "training epoch": epoch}


def growth(quick: bool, done: Callable[[], None] = lambda: None) -> dict[str, Any]:
    """The seconds of each thing by number of rows, the best of three (of one for the largest), and its exponent."""
    sizes = FEW if quick else SIZES
    found: dict[str, list[float]] = {name: [] for name in THINGS}
    for size in sizes:
        split = features(size)
        for name, thing in THINGS.items():
            thing(split.subset(torch.arange(min(size, 500))))  # warms up
            found[name].append(min(elapsed(thing, split) for _ in range(1 if size == SIZES[-1] else 3)))
        done()
    return {
        "sizes": list(sizes),
        "things": {name: {"seconds": times, "exponent": exponent(sizes, times)} for name, times in found.items()},
    }


def elapsed(thing: Callable[[Split], None], split: Split) -> float:
    """Its seconds on this split."""
    started = time.perf_counter()
    thing(split)
    return time.perf_counter() - started


GROWTH = "growth"


@dataclass(frozen=True)
class Claim:
    """A thing that we say is fast: what it is, its ways, and how often they are measured.

    `at_most`: ours may cost this many times the other; without it, the ratio is the other over ours.
    """

    title: str
    ways: Callable[[bool], AbstractContextManager[made.Ways]]
    rounds: int = 7
    at_most: float | None = None
    memory: bool = True


CLAIMS: dict[str, Claim] = {
    "training": Claim("Training steps, with augmentation", made.training),
    "pgd": Claim("PGD from start to end, over two vanilla trainings", made.whole, 5, at_most=1.08),
    "scoring": Claim("Per-sample gradient norms", made.scoring),
    "sampling": Claim("An epoch of rows drawn by score", made.sampling),
    "augmenting": Claim("Augmentation of 28-pixel pictures", made.augmenting),
    "decoding": Claim("JPEG files of 224 pixels as batches", made.decoding),
    "decoding-large": Claim("JPEG files of 1024 pixels as batches of 224", partial(made.decoding, side=1024), 5),
    "start-up": Claim("Start of debiaser --help", made.starting, 5, memory=False),
}


def chosen(only: Sequence[str]) -> list[str]:
    """The names of the claims that are asked for, all without any; an unknown one is a mistake."""
    everything = [*CLAIMS, GROWTH]
    for name in only:
        if name not in everything:
            raise known("claim", name, everything)
    return [name for name in everything if not only or name in only]


def measure(only: Sequence[str] = (), quick: bool = False) -> dict[str, Any]:
    """What was found for each claim, with the facts of the machine; `quick` shows that it runs, not how fast."""
    names = chosen(only)
    found: dict[str, Any] = {"quick": quick, "environment": environment("cpu", 1), "claims": []}
    for name in names:
        rounds = len(FEW if quick else SIZES) if name == GROWTH else (2 if quick else CLAIMS[name].rounds)
        with task(name, rounds) as advance:
            if name == GROWTH:
                found["growth"] = growth(quick, advance)
            else:
                found["claims"].append({"name": name, **judged(name, rounds, quick, advance)})
    return found


def judged(name: str, rounds: int, quick: bool, done: Callable[[], None]) -> dict[str, Any]:
    """The ratios of one claim, seconds, and peak memory of each way."""
    claim = CLAIMS[name]
    with claim.ways(quick) as ways:
        results = {way: each.run() for way, each in ways.items()}  # also warms up
        times = interleaved(ways, rounds, done)
    others = [way for way in ways if way != "ours"]
    pairs = {way: ("ours", way) if claim.at_most else (way, "ours") for way in others}
    measured = ["ours"] if quick else list(ways)
    memory = {way: in_fresh_memory(name, way, quick) for way in measured} if claim.memory else {}
    return {
        "title": claim.title,
        "at_most": claim.at_most,
        "seconds": {way: typical(times, way) for way in ways},
        "ratios": {way: ratio(times, *pair).plain() for way, pair in pairs.items()},
        "differences": {
            way: apart for way in others if (apart := difference(results["ours"], results[way])) is not None
        },
        "peak_mb": memory,
    }


def in_fresh_memory(name: str, way: str, quick: bool) -> float:
    """Peak resident memory in MB of a process that does only this, once; workers of its own are not counted."""
    code = "import sys; from debiaser.paper.speed.claims import run_once; sys.stdout.write(run_once(*sys.argv[1:]))"
    return float(in_fresh_process("-c", code, name, way, *(["quick"] if quick else [])))


def run_once(name: str, way: str, *words: str) -> str:
    """Peak memory in MB, as text, after running one way of a claim in this process."""
    with CLAIMS[name].ways("quick" in words) as ways:
        one: Way = ways[way]
        ways.clear()
        one.run()
        return str(peak_mb())
