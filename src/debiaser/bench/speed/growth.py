"""How the cost grows with the number of rows: seconds from a thousand to a million, and the exponent that fits."""

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from debiaser.bench.speed.material import features
from debiaser.bench.speed.timing import exponent
from debiaser.data.split import Split
from debiaser.learn.engine import Stage, new_optimizer, run_epoch
from debiaser.learn.nets import FeatureHead
from debiaser.learn.objectives import Supervised
from debiaser.learn.recipe import Recipe
from debiaser.learn.sampling import ScoreSampler, Shuffle
from debiaser.learn.scores import gradient_norms

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
