"""Gradient norms of the last layer beside captum's TracInCPFast and opacus with all else frozen, as ratios, in one run.

    python benchmarks/head_norms.py --out benchmarks/results/head_norms.json

The networks are those of `benchmarks/gradient_norms.py` and their weights random. All ways are given the same dataset
and size of batches and run in turns, on one thread; opacus once with a DataLoader, as its users have it, and once with
batches that lie ready, which no other way gets. Few samples in small batches show what ours takes to find the last
layer and to check every batch. captum's self-influence with one checkpoint and the rate 1 is the square of the norm.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from captum.influence import TracInCPFast
from gradient_norms import BATCH, NETWORKS, USUAL, Run, by_opacus, ours, weight_of
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from debiaser.learn.forward import logits_of
from debiaser.paper.speed import Way, difference, interleaved, ratio

NAMES = ("SimConv-1, 28 px", "ResNet-18, 32 px", "BERT of 2 layers, 16 tokens")
SIZES = ((256, BATCH), (2048, USUAL))  # samples, and of a batch


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
    """Ratios of times, and the largest relative difference from ours."""
    make, inputs, classes, _ = NETWORKS[name]
    torch.manual_seed(0)
    model = make().eval()
    x, y, state = inputs(samples), torch.randint(0, classes, (samples,)), model.state_dict()
    data, ready = TensorDataset(x, y), list(zip(x.split(batch), y.split(batch), strict=True))
    runs = {
        "ours": Way(ours(model, x, y, batch=batch)),
        "captum, TracInCPFast": Way(by_captum(model, data, batch)),
        "opacus, the rest frozen": Way(by_opacus(make, state, DataLoader(data, batch), True)),
        "opacus, batches that lie ready": Way(by_opacus(make, state, ready, True)),
    }
    results = {way: each.run() for way, each in runs.items()}  # also warms up
    times = interleaved(runs, rounds)
    rows = []
    for way in [each for each in runs if each != "ours"]:
        found, apart = ratio(times, way, "ours"), difference(results["ours"], results[way])
        shown = {"times as long as ours": found["median"], "lowest": found["low"], "highest": found["high"]}
        rows.append(
            {"network": name, "samples": samples, "batch": batch, "beside": way, **shown, "largest difference": apart}
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rounds", type=int, default=9)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    rows = [row for name in NAMES for size in SIZES for row in measured(name, *size, chosen.rounds)]
    print(json.dumps(rows, indent=2))
    if chosen.out:
        chosen.out.write_text(json.dumps({"rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
