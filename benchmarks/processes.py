"""How much faster two processes train than one single-threaded process, as a ratio, measured in one run, interleaved.

    torchrun --standalone --nproc-per-node 2 benchmarks/processes.py --data DIR --out benchmarks/results/processes.json

Each round times the same steps on Colored MNIST (batch 128, SimConv-1, augmentation): first by one process while the
others wait, then by all of them on the same global batches. The ratio of a round is what is reported, with its spread.
"""

import argparse
import json
import os
import time
from pathlib import Path

import torch

from debiaser.bench.speed.timing import Spread
from debiaser.data import cmnist
from debiaser.data.augment import PAPER
from debiaser.data.split import Benchmark
from debiaser.learn.engine import Stage, new_optimizer, split_rows, step
from debiaser.learn.nets import new_net
from debiaser.learn.objectives import Supervised
from debiaser.learn.processes import ALONE, Processes, joined
from debiaser.learn.recipe import Recipe
from debiaser.learn.sampling import Shuffle
from debiaser.learn.sharing import sharing


class Steps:
    """Training steps by so many processes."""

    def __init__(self, benchmark: Benchmark, processes: Processes) -> None:
        self.stage = Stage("speed", benchmark.train, Recipe(), 0, augment=PAPER, processes=processes)
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=100)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    with joined("cpu") as processes:
        benchmark = cmnist.load(chosen.data, 0.005, 0)
        one, many = Steps(benchmark, ALONE), Steps(benchmark, processes)
        many.run(5)
        ratios = []
        for _ in range(chosen.rounds + 1):
            alone = processes.from_main(lambda: one.run(chosen.steps))
            ratios.append(alone / many.run(chosen.steps))
        ratios = ratios[1:]  # the first round warms up
        found = {
            "throughput of all processes over one": Spread.of(ratios).plain(),
            "processes": processes.size,
            "threads of each": torch.get_num_threads(),
            "cores": os.cpu_count(),
            "steps a round": chosen.steps,
        }
        if processes.main:
            print(json.dumps(found, indent=2))
            if chosen.out:
                chosen.out.parent.mkdir(parents=True, exist_ok=True)
                chosen.out.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
