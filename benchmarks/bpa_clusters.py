"""Why BPA does not find the conflicting samples of Colored MNIST: what its clusters contain, by their number.

    python benchmarks/bpa_clusters.py --out results/search/bpa_clusters.json

Trains BPA's reference network (no test data), clusters its features class by class as BPA does, and asks what only an
evaluation may ask: how the conflicting rows lie in the clusters. Its first weight is n / size of a row's cluster.
"""

import argparse
import json
from pathlib import Path

import torch
from clusters import conflicting_in

from debiaser.data.benchmarks import DATASETS
from debiaser.data.split import Benchmark
from debiaser.io import write_json
from debiaser.learn.forward import Outputs
from debiaser.learn.losses import Supervised
from debiaser.learn.nets import new_net
from debiaser.methods.bpa import class_clusters
from debiaser.methods.task import Task
from debiaser.paper.settings import SETTINGS
from debiaser.paper.spec import new_spec

MANY = (2, 4, 8, 16, 32, 64, 128, 256)


def reference_outputs(benchmark: Benchmark, rho: float, seed: int) -> Outputs:
    """What the reference network makes of the training rows."""
    recipe, setting = new_spec("cmnist", "bpa", rho).recipe, SETTINGS["cmnist"]
    task = Task(
        benchmark.train,
        lambda start: new_net(setting.net, 10, start),
        recipe=recipe,
        seed=seed,
        augment=setting.augment,
    )
    return task.outputs(task.fit(Supervised(task.new_model()), "reference"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rho", type=float, default=0.005)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    benchmark = DATASETS["cmnist"].load(chosen.data, chosen.rho, chosen.seed)
    conflicting = benchmark.truth["train"].conflicting(benchmark.train.y).numpy() == 1
    rows: list[dict[str, object]] = []
    found = {"rho": chosen.rho, "seed": chosen.seed, "conflicting rows": int(conflicting.sum()), "rows": rows}
    outputs = reference_outputs(benchmark, chosen.rho, chosen.seed)
    wrong = (outputs.logits.argmax(1) != outputs.labels).numpy()
    found["conflicting rows that the reference misses"] = float(wrong[conflicting].mean())
    for k in MANY:
        rows.append({"clusters per class": k, **conflicting_in(class_clusters(outputs, k, chosen.seed), conflicting)})
        print(json.dumps(rows[-1]), flush=True)
    write_json(chosen.out, found)


if __name__ == "__main__":
    main()
