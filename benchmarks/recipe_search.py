"""Search for a `fast` recipe on an unbiased copy of the validation images; the test set is never looked at.

    python benchmarks/recipe_search.py mbmnist --rho 0.1 --out results/search/mbmnist.jsonl \
        "biased.epochs=3 debiased.epochs=6" "biased.epochs=3 debiased.epochs=6 power=0.5"

A candidate says what differs from the recipe `fast`: a field of the recipe, of one of its stages (stage.field) or of
the method. Every run appends one JSON line, with the accuracy after each epoch on the validation images whose shortcut
was drawn anew so that it says nothing about the class. Candidates that share a first stage train it once.
"""

import argparse
import json
import time
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch

from debiaser.data.augment import AUGMENTATIONS
from debiaser.data.benchmarks import DATASETS
from debiaser.data.bias import TEST_RHO
from debiaser.learn.checkpoint import Checkpoints
from debiaser.learn.forward import predict
from debiaser.learn.nets import new_net, normalised
from debiaser.learn.recipe import Recipe, keep_freed_memory
from debiaser.methods.task import Task
from debiaser.paper.experiment import accuracies, detection, detector, validation
from debiaser.paper.settings import SETTINGS
from debiaser.paper.spec import new_spec

OF_RECIPE = {each.name for each in fields(Recipe)}


def value_of(text: str) -> Any:
    """A number, true, false or null where it is one, else the word."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def apart(candidate: str, recipe: Recipe) -> tuple[Recipe, list[str]]:
    """The recipe with what the candidate says of it, and what is left: fields of the method."""
    stages, own, left = {stage: dict(each) for stage, each in recipe.stages.items()}, dict[str, Any](), list[str]()
    for word in candidate.split():
        name, _, value = word.partition("=")
        stage, dot, field = name.rpartition(".")
        if dot:
            stages.setdefault(stage, {})[field] = value_of(value)
        elif name in OF_RECIPE:
            own[name] = value_of(value)
        else:
            left.append(word)
    return replace(recipe, name="candidate", stages=stages, **own), left


def evaluate(asked: argparse.Namespace, candidate: str, rho: float, seed: int, kept: Checkpoints) -> dict[str, object]:
    """One run of a candidate and what it reached on the unbiased copy of the validation images."""
    setting, load = SETTINGS[asked.dataset], DATASETS[asked.dataset].load
    recipe, changes = apart(candidate, setting.recipe("fast", asked.method))
    spec = new_spec(asked.dataset, asked.method, rho, changes=changes, net=asked.net)
    benchmark, unbiased = load(asked.data, rho, seed), load(asked.data, TEST_RHO, seed)
    copy, truth, classes = unbiased.valid, unbiased.truth["valid"], len(benchmark.classes)

    def reached(model: torch.nn.Module) -> dict[str, Any]:
        return dict(accuracies(predict(model, copy.batches(512)), copy.y, truth))

    started = time.perf_counter()
    task = Task(
        benchmark.train,
        lambda start: normalised(new_net(spec.net, classes, start), setting.normalise),
        recipe=recipe,
        seed=seed,
        valid=benchmark.valid,
        augment=AUGMENTATIONS[setting.augment] if setting.augment else None,
        identity=f"{asked.dataset} {rho} {seed}",
        checkpoints=kept,
        watch=lambda model: {"unbiased": reached(model)["unbiased"]},
        precision=asked.precision,
    )
    model = spec.new_method().fit(task)
    seconds = time.perf_counter() - started
    found = detector(task.journal, benchmark.train.y.numpy())
    conflicting = benchmark.truth["train"].conflicting(benchmark.train.y).numpy()
    return {
        "dataset": asked.dataset,
        "candidate": candidate,
        "method": asked.method,
        "fields": spec.fields,
        "net": spec.net,
        "precision": asked.precision,
        "rho": rho,
        "seed": seed,
        "unbiased_validation": reached(model) | detection(found, conflicting),
        "biased_validation": validation(predict(model, benchmark.valid.batches(512)), benchmark.valid.y),
        "epochs": [{name: each[name] for name in ("stage", "epoch", "unbiased")} for each in task.journal.history],
        "seconds": seconds,
        "threads": torch.get_num_threads(),
        "recipe": recipe.plain(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", choices=["ccifar", "cmnist", "digits", "mbmnist"])
    parser.add_argument("candidates", nargs="+")
    parser.add_argument("--method", default="pgd")
    parser.add_argument("--rho", type=float, nargs="+", required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--net")
    parser.add_argument("--precision", default="32")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    for seed in asked.seeds:
        for rho in asked.rho:
            kept = Checkpoints()
            for candidate in asked.candidates:
                line = evaluate(asked, candidate, rho, seed, kept)
                with asked.out.open("a") as record:
                    record.write(json.dumps(line) + "\n")
                curve = [f"{each['unbiased']:.1f}" for each in line["epochs"]]
                shares = {
                    name: line["unbiased_validation"].get(f"score_{name}")
                    for name in ("conflicting_mass", "effective_sample_size")
                }
                print(asked.dataset, candidate, rho, seed, *curve, shares, f"{line['seconds']:.0f} s", flush=True)


if __name__ == "__main__":
    main()
