"""Search for a `fast` recipe on an unbiased copy of the validation pictures; the test set is never loaded.

    python benchmarks/recipe_search.py cmnist --rho 0.005 --seeds 0 --out results/search/cmnist.jsonl NAME ...

Every candidate is one line of CANDIDATES; every run appends one JSON line to the record. What is looked at: accuracy
on the validation pictures with colours drawn anew so that they say nothing about the class, from the training's seed.
"""

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from debiaser.data.augment import AUGMENTATIONS
from debiaser.data.benchmarks import digits, mnist
from debiaser.data.bias import Grey, colour_benchmark
from debiaser.data.split import Benchmark
from debiaser.learn.forward import predict
from debiaser.learn.nets import new_net
from debiaser.learn.recipe import Recipe
from debiaser.methods.task import Task
from debiaser.paper.experiment import accuracies, detection, detector, validation
from debiaser.paper.settings import SETTINGS
from debiaser.paper.spec import new_spec


def candidate(biased: int, debiased: int, lr: float = 0.1, batch_size: int = 128, **of_biased: object) -> Recipe:
    """So many epochs of each stage; names that begin with biased_ are what else differs in the biased one."""
    own = {name.removeprefix("biased_"): value for name, value in of_biased.items()}
    stages = {"biased": {"epochs": biased, **own}, "debiased": {"epochs": debiased}}
    return Recipe(name="candidate", epochs=(biased + debiased) // 2, lr=lr, batch_size=batch_size, stages=stages)


CANDIDATES = {
    # Colored MNIST: at most 20 epochs in all
    "10+10": candidate(10, 10),
    "10+10 lr .02": candidate(10, 10, biased_lr=0.02),
    "4+16": candidate(4, 16),
    "4+16 lr .02": candidate(4, 16, biased_lr=0.02),
    "2+18": candidate(2, 18),
    "6+14 lr .02": candidate(6, 14, biased_lr=0.02),
    "10+10 wd 1e-2": candidate(10, 10, biased_weight_decay=1e-2),
    "4+16 wd 1e-2": candidate(4, 16, biased_weight_decay=1e-2),
    "4+16 constant .02": candidate(4, 16, biased_lr=0.02, biased_schedule="constant"),
    "10+10 constant .02": candidate(10, 10, biased_lr=0.02, biased_schedule="constant"),
    "4+16 batch 64": candidate(4, 16, lr=0.07, batch_size=64),
    "4+16 lr .2": candidate(4, 16, lr=0.2, biased_lr=0.1),
    "6+14 lr .04": candidate(6, 14, biased_lr=0.04),
    "8+12 lr .02": candidate(8, 12, biased_lr=0.02),
    "4+16 lr .02, biased plain": candidate(4, 16, biased_lr=0.02, biased_augment=False),
    "4+16 lr .05, biased plain": candidate(4, 16, biased_lr=0.05, biased_augment=False),
    "5+15 lr .02": candidate(5, 15, biased_lr=0.02),
    "5+15 lr .05": candidate(5, 15, biased_lr=0.05),
    # one stage: LfF, Disen
    **{f"20-lr-{lr:g}": Recipe(name="candidate", epochs=10, lr=lr) for lr in (0.02, 0.05, 0.1)},
    **{f"20-lr-{lr:g}-plain": Recipe(name="candidate", epochs=10, lr=lr, augment=False) for lr in (0.05, 0.1, 0.2)},
    # digits: 1,167 rows
    **{
        f"digits {biased}+{epochs - biased} lr {lr:g} batch {size}": candidate(biased, epochs - biased, lr, size)
        for epochs in (20, 30, 40, 60, 80)
        for biased in (2, 4, 6, 8, 15, 30)
        if biased < epochs
        for lr in (0.02, 0.05, 0.1)
        for size in (32, 64)
    },
}


def unbiased_validation(dataset: str, rho: float, seed: int, data: Path | None) -> Benchmark:
    """The benchmark with validation pictures, coloured anew, where the test set would be."""
    parts = digits.parts() if dataset == "digits" else mnist.parts(data)
    copies = 5 if dataset == "digits" else 1  # 130 pictures are few: each is coloured five times
    valid = Grey(*(np.concatenate([part] * copies) for part in parts["valid"]))
    return colour_benchmark(dataset, {**parts, "test": valid}, rho, seed)


def evaluate(
    dataset: str, name: str, method: str, rho: float, seed: int, data: Path | None, changes: Sequence[str] = ()
) -> dict[str, object]:
    """One run of a candidate and what it reached on the unbiased copy of the validation pictures."""
    spec = new_spec(dataset, method, rho, changes=changes)
    recipe = spec.recipe if name == "setting" else CANDIDATES[name]
    benchmark = unbiased_validation(dataset, rho, seed, data)
    started = time.perf_counter()
    task = Task(
        benchmark.train,
        lambda start: new_net(SETTINGS[dataset].net, 10, start),
        recipe=recipe,
        seed=seed,
        augment=AUGMENTATIONS[SETTINGS[dataset].augment],
    )
    model = spec.new_method().fit(task)
    seconds = time.perf_counter() - started
    reached = accuracies(predict(model, benchmark.test.batches(512)), benchmark.test.y, benchmark.truth["test"])
    conflicting = benchmark.truth["train"].conflicting(benchmark.train.y).numpy()
    reached |= detection(detector(task.journal, benchmark.train.y.numpy()), conflicting)
    return {
        "dataset": dataset,
        "candidate": name,
        "method": method,
        "fields": spec.fields,
        "rho": rho,
        "seed": seed,
        "unbiased_validation": reached,
        "biased_validation": validation(predict(model, benchmark.valid.batches(512)), benchmark.valid.y),
        "seconds": seconds,
        "threads": torch.get_num_threads(),
        "augmentation": True,
        "recipe": recipe.plain(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dataset", choices=["cmnist", "digits"])
    parser.add_argument("candidates", nargs="+", choices=["setting", *CANDIDATES])
    parser.add_argument("--set", nargs="+", default=[], help="key=value: fields of the method")
    parser.add_argument("--method", default="pgd")
    parser.add_argument("--rho", type=float, nargs="+", default=[0.05])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=1)
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    for seed in chosen.seeds:
        for name in chosen.candidates:
            for rho in chosen.rho:
                line = evaluate(chosen.dataset, name, chosen.method, rho, seed, chosen.data, chosen.set)
                with chosen.out.open("a") as record:
                    record.write(json.dumps(line) + "\n")
                reached = {
                    key: round(value, 3) for key, value in line["unbiased_validation"].items() if value is not None
                }
                print(name, rho, seed, reached, f"{line['seconds']:.0f} s", flush=True)


if __name__ == "__main__":
    main()
