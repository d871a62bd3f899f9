"""A training step of SimConv-1, compared with the same step with stock layers and with the limit of the machine.

    python benchmarks/cmnist_step.py --out benchmarks/results/cmnist_step.json
    python benchmarks/cmnist_step.py --out benchmarks/results/cmnist_accuracy.json --accuracy --data DIR --work DIR

Steps take turns, round after round, and so does a product of large matrices, whose rate is the peak. The arithmetic of
a step is counted by torch (`FlopCounterMode`): convolutions and the last layer, forward and backward. `--accuracy`
instead trains PGD's `fast` recipe on Colored MNIST with either network, seed by seed: accuracies and whole times.
"""

import argparse
import json
import os
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.flop_counter import FlopCounterMode

from debiaser.learn.nets import NETS, SimConv1
from debiaser.learn.recipe import environment, keep_freed_memory
from debiaser.paper import experiment
from debiaser.paper.spec import new_spec
from debiaser.paper.speed import Times, Way, interleaved, ratio, stock_simconv1

BATCH, SIDE = 128, 1024
NETWORKS: dict[str, Callable[..., nn.Module]] = {"ours": SimConv1, "stock layers": stock_simconv1}
STOCK = "simconv1-stock"


def one_step(model: nn.Module, x: Tensor, y: Tensor) -> Callable[[], None]:
    """An update of the network on this batch."""
    optimizer = torch.optim.SGD(model.train().parameters(), 0.02, momentum=0.9, weight_decay=1e-3, fused=True)

    def run() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()

    return run


def arithmetic(run: Callable[[], None]) -> int:
    """Additions and multiplications of matrix products and convolutions."""
    with FlopCounterMode(display=False) as counted:
        run()
    return int(counted.get_total_flops())


def measured(rounds: int, steps: int) -> tuple[Times, dict[str, float]]:
    """Seconds of each way in each round, and the arithmetic in it."""
    torch.manual_seed(0)
    x, y, square = torch.rand(BATCH, 3, 28, 28), torch.arange(BATCH) % 10, torch.randn(SIDE, SIDE)
    single = {name: one_step(make(), x, y) for name, make in NETWORKS.items()}
    work = dict.fromkeys(single, float(steps * arithmetic(single["stock layers"])))  # the same layers, the same work

    def repeated(run: Callable[[], None]) -> Way:
        return Way(lambda: [run() for _ in range(steps)])

    ways = {name: repeated(run) for name, run in single.items()} | {"peak": Way(lambda: square @ square)}
    interleaved(ways, 2)  # warms up
    return interleaved(ways, rounds), work | {"peak": 2.0 * SIDE**3}


def rows_of(times: Times, work: dict[str, float], steps: int) -> list[dict[str, Any]]:
    """A line for each network."""
    peak = work["peak"] / statistics.median(each["peak"] for each in times)
    found = []
    for name in NETWORKS:
        seconds, over = statistics.median(each[name] for each in times), ratio(times, name, "ours")
        found.append(
            {
                "layers": name,
                "times as long as ours": over["median"],
                "lowest": over["low"],
                "highest": over["high"],
                "step, ms": 1000 * seconds / steps,
                "GFLOP/s": work[name] / seconds / 1e9,
                "peak of matrix products, GFLOP/s": peak / 1e9,
                "of the peak, %": 100 * work[name] / seconds / peak,
            }
        )
    return found


def trained(net: str, seed: int, asked: argparse.Namespace) -> tuple[float, float]:
    """Unbiased accuracy and seconds of training of a PGD run, `fast`; one that is there already is read."""
    spec = new_spec("cmnist", "pgd", asked.rho, "fast", asked.epochs, seed, net=net)
    result = experiment.run(spec, asked.work, asked.data).result
    return result["metrics"]["unbiased"], sum(result["seconds"].values())


def accuracies(asked: argparse.Namespace) -> list[dict[str, Any]]:
    """A line for each network: accuracy over seeds, and its whole time over ours of the same seed."""
    NETS[STOCK] = stock_simconv1
    names = {"ours": "simconv1", "stock layers": STOCK}
    runs: list[dict[str, tuple[float, float]]] = []
    for seed in range(asked.seeds):  # in turns, so that a slow hour meets both
        runs.append({name: trained(net, seed, asked) for name, net in names.items()})
        print(f"seed {seed}: {runs[-1]}", flush=True)
    found = []
    for name in names:
        values = [run[name][0] for run in runs]
        over = [run[name][1] / run["ours"][1] for run in runs]
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        row = {"layers": name, "rho": asked.rho, "seeds": asked.seeds, "unbiased": f"{statistics.fmean(values):.2f}"}
        found.append(row | {"±": f"{spread:.2f}", "whole run, times ours": statistics.median(over)})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=20, help="of a round")
    parser.add_argument("--accuracy", action="store_true")
    parser.add_argument("--data", type=Path, default=None)
    parser.add_argument("--work", type=Path, default=Path("runs"))
    parser.add_argument("--rho", type=float, default=0.005)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=None, help="of each stage, to see that it runs")
    asked = parser.parse_args()
    keep_freed_memory()  # as the commands that train do
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    rows = accuracies(asked) if asked.accuracy else rows_of(*measured(asked.rounds, asked.steps), asked.steps)
    for row in rows:
        print(row, flush=True)
    told = {"batch": BATCH, "environment": environment("cpu", 1), "rows": rows}
    asked.out.write_text(json.dumps(told, indent=2) + "\n")  # in the order of the table's columns


if __name__ == "__main__":
    main()
