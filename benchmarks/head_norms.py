"""Gradient norms of the last layer: ours, captum's TracInCPFast, and opacus with the rest frozen, in one run.

    python benchmarks/head_norms.py --out benchmarks/results/head_norms.json

The networks are those of `benchmarks/gradient_norms.py` and their weights random. All ways are given the same dataset
and size of batches and run in turns, on one thread; opacus once with a DataLoader, as its users have it, and once with
batches that lie ready, which no other way gets. Few samples in small batches show what ours takes to find the last
layer and to check every batch. captum's self-influence with one checkpoint and the rate 1 is the square of the norm.

Beside the time on the clock stands that of the processor, which does not count what other programs take; the ratio is
that of the shortest times, which are the least disturbed, and its spread that of the rounds, quarter to three quarters.
"""

import argparse
import itertools
import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from captum.influence import TracInCPFast
from gradient_norms import BATCH, NETWORKS, USUAL, Run, by_opacus, ours, weight_of
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from debiaser.learn.forward import logits_of
from debiaser.paper.speed import difference

NAMES = ("SimConv-1, 28 px", "ResNet-18, 32 px", "BERT of 2 layers, 16 tokens")
SIZES = ((256, BATCH), (2048, USUAL))  # samples, and of a batch
Times = dict[str, list[tuple[float, float]]]


class Logits(nn.Module):
    """captum asks for a network that gives a tensor."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return logits_of(self.model(x))


def by_captum(model: nn.Module, data: TensorDataset, batch: int) -> Run:
    head = model.get_submodule(weight_of(model).rpartition(".")[0])
    tracin = TracInCPFast(
        Logits(model),
        head,
        data,
        checkpoints=["as it is"],
        checkpoints_load_func=lambda *_: 1.0,
        loss_fn=nn.CrossEntropyLoss(reduction="sum"),
        batch_size=batch,
    )
    return lambda: tracin.self_influence().sqrt()


def measured(name: str, samples: int, batch: int, rounds: int) -> list[dict[str, Any]]:
    """Ratios of times to ours, all ways in turns."""
    make, inputs, classes, _ = NETWORKS[name]
    torch.manual_seed(0)
    model = make().eval()
    x, y, state = inputs(samples), torch.randint(0, classes, (samples,)), model.state_dict()
    data, ready = TensorDataset(x, y), list(zip(x.split(batch), y.split(batch), strict=True))
    runs = {
        "ours": ours(model, x, y, batch=batch),
        "captum, TracInCPFast": by_captum(model, data, batch),
        "opacus, the rest frozen": by_opacus(make, state, DataLoader(data, batch), True),
        "opacus, batches that lie ready": by_opacus(make, state, ready, True),
    }
    results = {way: run() for way, run in runs.items()}  # also warms up
    times = {way: list[tuple[float, float]]() for way in runs}
    for number in range(rounds):
        names = list(runs)[number % len(runs) :] + list(runs)[: number % len(runs)]  # each is first now and then
        for way in names:
            times[way].append(taken(runs[way]))
    return [row(name, samples, batch, way, times, results) for way in runs if way != "ours"]


def taken(run: Run) -> tuple[float, float]:
    """Seconds of the processor and on the clock."""
    cpu, clock = time.process_time(), time.perf_counter()
    run()
    return time.process_time() - cpu, time.perf_counter() - clock


def row(name: str, samples: int, batch: int, way: str, times: Times, results: dict[str, Tensor]) -> dict[str, Any]:
    """One way beside ours."""
    cpu, clock = (
        [(theirs[place], ours[place]) for theirs, ours in zip(times[way], times["ours"], strict=True)]
        for place in range(2)
    )
    shortest = [min(theirs for theirs, _ in each) / min(ours for _, ours in each) for each in (cpu, clock)]
    low, _, high = statistics.quantiles([theirs / ours for theirs, ours in cpu], n=4)
    return {
        "network": name,
        "samples": samples,
        "batch": batch,
        "beside": way,
        "processor time over ours": shortest[0],
        "a quarter below": low,
        "a quarter above": high,
        "time on the clock over ours": shortest[1],
        "largest difference": difference(results["ours"], results[way]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rounds", type=int, default=15)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, Any] = {"rows": [], "rounds": chosen.rounds, "load of the machine": []}
    for name, size in itertools.product(NAMES, SIZES):
        found["load of the machine"].append(os.getloadavg()[0])
        found["rows"] += measured(name, *size, chosen.rounds)
        if chosen.out:
            chosen.out.write_text(json.dumps(found, indent=2) + "\n")
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
