"""How much faster two processes train than one single-threaded process, as a ratio, measured in one run, interleaved.

    torchrun --standalone --nproc-per-node 2 benchmarks/processes.py --data DIR --out benchmarks/results/processes.json

Each round times the same steps (SimConv-1, augmentation): first by one process while the others wait, then by all of
them on the same global batches. The ratio of a round is what is reported, with its spread, for steps of several sizes:
the processes wait for each other twice in a step, so the shorter a step, the less is gained.
"""

import argparse
import json
import os
import time
from pathlib import Path

import torch

from debiaser.data.augment import PAPER
from debiaser.data.benchmarks import mnist
from debiaser.data.split import Benchmark
from debiaser.learn.distributed import ALONE, Processes, joined, sharing
from debiaser.learn.engine import Stage, new_optimizer, split_rows, step
from debiaser.learn.losses import Supervised
from debiaser.learn.nets import new_net
from debiaser.learn.recipe import Recipe
from debiaser.learn.sampler import Shuffle
from debiaser.paper.speed import spread


class Steps:
    """Training steps on batches of so many rows by so many processes."""

    def __init__(self, benchmark: Benchmark, batch_size: int, processes: Processes) -> None:
        recipe = Recipe(batch_size=batch_size)
        self.stage = Stage("speed", benchmark.train, recipe, 0, augment=PAPER, processes=processes)
        self.objective = Supervised(new_net("simconv1", 10, 0)).train()
        self.optimizer = new_optimizer(self.stage.recipe, self.objective)
        self.parts = split_rows(Shuffle(len(benchmark.train)).draw(0), self.stage.recipe.batch_size)

    def run(self, steps: int) -> float:
        """Seconds of so many steps."""
        torch.manual_seed(0)
        augmenting, started = torch.Generator(), time.perf_counter()
        with sharing(self.objective, self.stage.processes) as shared:
            for part in self.parts[:steps]:
                step(self.objective, self.optimizer, self.stage, part, augmenting, shared)
        return time.perf_counter() - started


def compare(benchmark: Benchmark, batch_size: int, steps: int, rounds: int, processes: Processes) -> dict[str, float]:
    """How many times as fast all processes are as one, over the rounds."""
    one, many = Steps(benchmark, batch_size, ALONE), Steps(benchmark, batch_size, processes)
    many.run(5)
    ratios = []
    for _ in range(rounds + 1):
        alone = processes.from_main(lambda: one.run(steps))
        ratios.append(alone / many.run(steps))
    return spread(ratios[1:])  # the first round warms up


def rows_of(found: dict[str, dict[str, float]]) -> list[dict[str, object]]:
    """What was measured as the lines of the table in docs/many_processes.md."""
    return [
        {"steps": name, "two processes over one": each["median"], "lowest": each["low"], "highest": each["high"]}
        for name, each in found.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--rows", type=int, default=12800, help="that are trained on in a round")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    with joined("cpu") as processes:
        digits = mnist.load_cmnist(chosen.data, 0.005, 0)
        larger = mnist.load_mbmnist(chosen.data, 0.1, 0)
        plans = {
            "cmnist, 28 px, batches of 128": (digits, 128, 1),
            "cmnist, 28 px, batches of 256": (digits, 256, 1),
            "mbmnist, 56 px, batches of 128": (larger, 128, 4),
        }
        found = {
            name: compare(benchmark, size, chosen.rows // size // longer, chosen.rounds, processes)
            for name, (benchmark, size, longer) in plans.items()
        }
        if processes.main:
            facts = {"processes": processes.size, "threads of each": torch.get_num_threads(), "cores": os.cpu_count()}
            told = {"rows": rows_of(found), "throughput of all processes over one": found, **facts}
            told["rows a round"] = chosen.rows
            print(json.dumps(told, indent=2))
            if chosen.out:
                chosen.out.write_text(json.dumps(told, indent=2) + "\n")


if __name__ == "__main__":
    main()
