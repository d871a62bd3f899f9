"""Per-sample gradient norms against the usual ways, as ratios, measured in one run, interleaved.

    python benchmarks/gradient_norms.py --out benchmarks/results/gradient_norms.json

Networks: SimConv-1, ResNet-18 of transformers on small and larger pictures, BERT of two layers on short and of four on
longer texts (the more arithmetic a sample takes, the less a loop's overhead weighs); random weights, eval mode. Ours
takes its usual batches, as a plain forward pass beside it does; the others take batches of 32, written as their users
write them, once for the whole network and once for the last layer alone (the rest frozen). The loop and whole-network
vmap run on a part of the samples and are scaled. Memory is that of fresh processes, where all take batches of 32.
"""

import argparse
import json
import os
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import TensorDataset
from transformers import BertConfig, BertForSequenceClassification, ResNetConfig, ResNetForImageClassification

from debiaser import gradient_norms
from debiaser.learn.forward import logits_of
from debiaser.learn.nets import SimConv1
from debiaser.paper.speed import Way, difference, in_fresh_process, interleaved, peak_mb, ratio

Run = Callable[[], Tensor]


def resnet18() -> nn.Module:
    sizes = {"embedding_size": 64, "hidden_sizes": [64, 128, 256, 512], "depths": [2, 2, 2, 2]}
    return ResNetForImageClassification(ResNetConfig(**sizes, layer_type="basic", num_labels=10))


def small_bert(layers: int) -> nn.Module:
    sizes = {"hidden_size": 128, "num_hidden_layers": layers, "num_attention_heads": 2, "intermediate_size": 512}
    return BertForSequenceClassification(BertConfig(vocab_size=2000, num_labels=3, **sizes))


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Tensor], int, int]] = {
    "SimConv-1, 28 px": (SimConv1, lambda n: torch.randn(n, 3, 28, 28), 10, 512),
    "ResNet-18, 32 px": (resnet18, lambda n: torch.randn(n, 3, 32, 32), 10, 256),
    "ResNet-18, 64 px": (resnet18, lambda n: torch.randn(n, 3, 64, 64), 10, 256),
    "BERT of 2 layers, 16 tokens": (partial(small_bert, 2), lambda n: torch.randint(0, 2000, (n, 16)), 3, 256),
    "BERT of 4 layers, 64 tokens": (partial(small_bert, 4), lambda n: torch.randint(0, 2000, (n, 64)), 3, 256),
}
OTHERS = ("loop", "vmap", "opacus", "vmap, last layer", "opacus, last layer")
WHOLE = "whole network over forward and backward"
BATCH, USUAL = 32, 256  # of the other ways, and what `gradient_norms` takes unless told


def weight_of(model: nn.Module) -> str:
    """The name of the last layer's weight."""
    return [name for name, each in model.named_parameters() if name.endswith("weight") and each.ndim == 2][-1]


def loop(model: nn.Module, x: Tensor, y: Tensor, part: int) -> Run:
    def run() -> Tensor:
        weight, found = model.get_parameter(weight_of(model)), []
        for one, label in zip(x[:part].split(1), y[:part].split(1), strict=True):
            model.zero_grad()
            F.cross_entropy(logits_of(model(one)), label).backward()
            found.append(weight.grad.norm())
        return torch.stack(found)

    return run


def by_vmap(model: nn.Module, x: Tensor, y: Tensor, head_only: bool) -> Run:
    last = weight_of(model)
    values = {name: each.detach() for name, each in model.named_parameters() if not head_only or name == last}

    def loss(values: dict[str, Tensor], one: Tensor, label: Tensor) -> Tensor:
        return F.cross_entropy(logits_of(functional_call(model, values, (one[None],))), label[None])

    each_gradient = vmap(grad(loss), in_dims=(None, 0, 0))

    def run() -> Tensor:
        parts = [each_gradient(values, a, b)[last] for a, b in zip(x.split(BATCH), y.split(BATCH), strict=True)]
        return torch.cat([part.flatten(1).norm(dim=1) for part in parts])

    return run


def by_opacus(make: Callable[[], nn.Module], state: dict[str, Tensor], batches: Iterable[Any], head_only: bool) -> Run:
    from opacus import GradSampleModule

    model = make().eval()
    model.load_state_dict(state)
    last = weight_of(model)
    for name, each in model.named_parameters():
        holder = model.get_submodule(name.rpartition(".")[0])
        possible = not list(holder.buffers(recurse=False))  # opacus refuses BatchNorm, also in eval mode: frozen
        each.requires_grad_(name == last if head_only else possible)
    weight = model.get_parameter(last)
    wrapped = GradSampleModule(model, strict=False)
    for module in wrapped.modules():  # opacus sees nothing in eval mode; what has no gradient stays in it
        module.training = any(each.requires_grad for each in module.parameters(recurse=False))

    def run() -> Tensor:
        found = []
        for a, b in batches:
            wrapped.zero_grad()
            F.cross_entropy(logits_of(wrapped(a)), b).backward()
            found.append(weight.grad_sample.flatten(1).norm(dim=1))
        return torch.cat(found)

    return run


def ours(model: nn.Module, x: Tensor, y: Tensor, parameters: str = "head", batch: int = USUAL) -> Run:
    return lambda: gradient_norms(model, TensorDataset(x, y), parameters=parameters, batch_size=batch)


def forward(model: nn.Module, x: Tensor, batch: int = USUAL) -> Run:
    @torch.no_grad()
    def run() -> Tensor:
        return torch.cat([logits_of(model(part)) for part in x.split(batch)])

    return run


def forward_and_backward(model: nn.Module, x: Tensor, y: Tensor) -> Run:
    def run() -> Tensor:
        for a, b in zip(x.split(BATCH), y.split(BATCH), strict=True):
            model.zero_grad()
            F.cross_entropy(logits_of(model(a)), b).backward()
        return y

    return run


def ways(name: str) -> dict[str, Way]:
    """Every way, and by how much its time is to be scaled."""
    make, inputs, classes, samples = NETWORKS[name]
    torch.manual_seed(0)
    model = make().eval()
    x, y = inputs(samples), torch.randint(0, classes, (samples,))
    state, part = model.state_dict(), max(8, samples // 16)
    batches = list(zip(x.split(BATCH), y.split(BATCH), strict=True))
    return {
        "ours": Way(ours(model, x, y), 1),
        "forward": Way(forward(model, x), 1),
        "loop": Way(loop(model, x, y, part), samples / part),
        "vmap": Way(by_vmap(model, x[:BATCH], y[:BATCH], False), samples / BATCH),
        "vmap, last layer": Way(by_vmap(model, x, y, True), 1),
        "opacus": Way(by_opacus(make, state, batches, False), 1),
        "opacus, last layer": Way(by_opacus(make, state, batches, True), 1),
        "forward and backward": Way(forward_and_backward(model, x, y), 1),
        "ours, whole network": Way(ours(model, x, y, "all", BATCH), 1),
    }


def measured(name: str, rounds: int) -> dict[str, object]:
    """Ratios of times, and the largest relative difference from ours."""
    runs = ways(name)
    results = {way: each.run() for way, each in runs.items()}  # also warms up
    times = interleaved(runs, rounds)
    found: dict[str, object] = {"samples": len(results["ours"])}
    for way in OTHERS:
        apart = difference(results["ours"], results[way])
        found[way] = {"times ours": ratio(times, way, "ours"), "largest difference": apart}
    found["ours over a forward pass"] = ratio(times, "ours", "forward")
    found[WHOLE] = ratio(times, "ours, whole network", "forward and backward")
    return found


def rows_of(found: dict[str, Any]) -> list[dict[str, Any]]:
    """What was measured as the lines of the table in docs/own_loop.md."""
    rows = []
    for threads in (key for key in found if key.startswith("threads ")):
        for name, each in found[threads].items():
            others = {way: each[way] for way in OTHERS}
            rows.append(
                {
                    "network": name,
                    "threads": threads.removeprefix("threads "),
                    **{f"{way}, over ours": other["times ours"]["median"] for way, other in others.items()},
                    "largest difference": max(other["largest difference"] for other in others.values()),
                    "ours over a forward pass": each["ours over a forward pass"]["median"],
                    WHOLE: each[WHOLE]["median"],
                }
            )
    return rows


def show_peak(way: str) -> None:
    torch.manual_seed(0)
    model, x, y = resnet18().eval(), torch.randn(64, 3, 64, 64), torch.randint(0, 10, (64,))
    whole = {
        "forward": forward(model, x, BATCH),
        "ours": ours(model, x, y, batch=BATCH),
        "ours, whole network": ours(model, x, y, "all", BATCH),
    }
    (whole[way] if way in whole else by_vmap_at_once(model, x, y))()
    print(peak_mb() / 1024)


def by_vmap_at_once(model: nn.Module, x: Tensor, y: Tensor) -> Run:
    """All 64 samples in one call, as in the tutorials."""
    globals()["BATCH"] = 64
    return by_vmap(model, x, y, False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, os.cpu_count() or 1])
    parser.add_argument("--peak")
    chosen = parser.parse_args()
    if chosen.peak:
        show_peak(chosen.peak)
        return
    found: dict[str, Any] = {}
    for threads in dict.fromkeys(chosen.threads):
        torch.set_num_threads(threads)
        found[f"threads {threads}"] = {name: measured(name, chosen.rounds) for name in NETWORKS}
    peaks = {
        way: float(in_fresh_process(__file__, "--peak", way))
        for way in ("forward", "ours", "ours, whole network", "vmap")
    }
    found["rows"] = rows_of(found)
    found["peak memory on ResNet-18, GB"] = peaks
    found["peak memory: ours over forward"] = peaks["ours"] / peaks["forward"]
    found["peak memory: vmap over ours"] = peaks["vmap"] / peaks["ours"]
    print(json.dumps(found, indent=2))
    if chosen.out:
        chosen.out.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
