"""What each of several processes does in tests/test_processes.py; the first prints what it found as JSON."""

import hashlib
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from debiaser.data.augment import PAPER
from debiaser.data.benchmarks import digits
from debiaser.data.split import Benchmark
from debiaser.errors import Problem
from debiaser.learn.distributed import ALONE, Processes, joined
from debiaser.learn.gradient_norms import grad_norm
from debiaser.learn.losses import Supervised
from debiaser.learn.nets import new_net
from debiaser.learn.recipe import Recipe
from debiaser.methods import METHODS, find_method
from debiaser.methods.task import Task

FIELDS: dict[str, dict[str, Any]] = {
    **{name: {} for name in METHODS},
    "george": {"reduce": "pca"},
    "pgd reweight": {"use": "reweight"},
    "pgd joint": {"joint": True},
    "lff gradient": {"score": "gradient"},
    "eiil irm": {"learner": "irm", "reference": 1, "steps": 200},
    "eiil": {"steps": 200},
    "jtt train": {"error_set": "train"},
    "disen": {"swap_from": 1},  # swapping draws, from another stream than one process does
}
ROWS = 195  # batches of 64, 64, 64 and 3: the last is too small to share


def plain_net(seed: int) -> nn.Module:
    """Without BatchNorm and dropout, so that sharing a batch changes nothing but rounding."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 28 * 28, 16), nn.Tanh(), nn.Linear(16, 10))


def task(benchmark: Benchmark, processes: Processes, **changes: Any) -> Task:
    plan: dict[str, Any] = {
        "train": benchmark.train.subset(torch.arange(ROWS)),
        "make_model": plain_net,
        "recipe": Recipe(epochs=1, batch_size=64, lr=0.05),
        "valid": benchmark.valid,
        "processes": processes,
        "groups": groups[:ROWS] if (groups := benchmark.truth["train"].groups(benchmark.train.y)) is not None else None,
    }
    return Task(**{**plan, **changes})


def difference(one: dict[str, Tensor], two: dict[str, Tensor]) -> float:
    """The largest difference of weights, over the largest weight."""
    return max(float((one[name] - two[name]).abs().max() / one[name].abs().max()) for name in one)


def methods(benchmark: Benchmark, processes: Processes) -> dict[str, list[float]]:
    """Per method: how far weights, and what it noted of every row, are from those of one process."""
    found = {}
    for name, fields in FIELDS.items():
        method = find_method(name.split()[0])(**fields)
        ours, alone = task(benchmark, processes), task(benchmark, ALONE)
        shared, single = method.fit(ours), method.fit(alone)
        noted = [
            abs(ours.journal.vectors[vector].astype(float) - values.astype(float)).max()
            for vector, values in alone.journal.vectors.items()
        ]
        found[name] = [difference(single.state_dict(), shared.state_dict()), float(max(noted, default=0))]
    return found


def digest(model: nn.Module) -> str:
    content = b"".join(tensor.numpy().tobytes() for tensor in model.state_dict().values())
    return hashlib.sha256(content).hexdigest()


def real_network(benchmark: Benchmark, processes: Processes) -> dict[str, Any]:
    """BatchNorm, dropout and augmentation: digests of the weights in every process, and scores beside one process's."""
    own: dict[str, Any] = {"make_model": lambda seed: new_net("simconv1", 10, seed), "augment": PAPER}
    trained = {
        "pgd": find_method("pgd")().fit(task(benchmark, processes, **own)),
        "bf16": find_method("pgd")().fit(task(benchmark, processes, precision="bf16", **own)),
        "disen": find_method("disen")(swap_from=0).fit(task(benchmark, processes, **own)),
    }
    digests = {
        name: processes.gather(torch.tensor([list(bytes.fromhex(digest(model)))])).tolist()
        for name, model in trained.items()
    }
    apart = []
    for batch_size in (64, 2000):  # five looks to share, and one
        recipe = Recipe(epochs=1, batch_size=batch_size)
        two, one = (
            task(benchmark, each, recipe=recipe, train=benchmark.train).scores(trained["pgd"], grad_norm())
            for each in (processes, ALONE)
        )
        apart.append(float((two - one).abs().max() / one.max()))
    return {"digests": digests, "scores": apart, "rows": len(one)}


def refusals(benchmark: Benchmark, processes: Processes) -> dict[str, str]:
    """What is said where processes differ, or are too many for a batch."""

    def said(act: Callable[[], object]) -> str:
        try:
            act()
        except Problem as error:
            return str(error)
        return ""

    small = task(benchmark, processes, recipe=Recipe(epochs=1, batch_size=3))
    drifting = Supervised(plain_net(0))
    drifting.register_buffer("own", torch.zeros(3))

    def drift(*_: Any) -> None:
        drifting.own += processes.rank  # which the other processes do not have

    drifting.register_forward_pre_hook(drift)
    return {
        "agree": said(lambda: processes.agree("the run", f"run {processes.rank}")),
        "agreed": said(lambda: processes.agree("the run", "run")),
        "drift": said(lambda: task(benchmark, processes).fit(drifting, "drift")),
        "small": said(lambda: small.fit(Supervised(plain_net(0)), "small")),
    }


def main() -> None:
    torch.set_num_threads(1)
    logging.getLogger("debiaser").setLevel(logging.ERROR)
    with joined("cpu") as processes:
        benchmark = digits.load(None, 0.05, 0)
        found = {
            "size": processes.size,
            "methods": methods(benchmark, processes),
            "network": real_network(benchmark, processes),
            "refusals": refusals(benchmark, processes),
        }
    threads = [each.read_text().strip() for each in Path("/proc/self/task").glob("*/comm")]
    found["left behind"] = [name for name in threads if "gloo" in name]
    if processes.main:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
