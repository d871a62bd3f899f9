"""Per-sample gradient norms layer by layer: one backward pass to the layers' outputs, a formula for each layer."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from debiaser.data.split import Batch
from debiaser.errors import Problem
from debiaser.learn.batches import part_of
from debiaser.learn.calls import at_least_single, call, check_labels
from debiaser.learn.layers import entries_of, gradients, is_known
from debiaser.learn.norms import norm
from debiaser.learn.outputs import Outputs

Chosen: TypeAlias = dict[str, nn.Parameter]


class Uncovered(Exception):
    """A parameter that the formulas by layer do not hold for."""


@dataclass(frozen=True)
class Run:
    """One run of a layer: what entered it, and where in the graph the gradient of what left it is found."""

    layer: nn.Module
    entering: Tensor
    version: int
    edge: GradientEdge
    leaving: int


@dataclass
class Recorder:
    """Watches the layers that hold chosen parameters; `shared` are bare ones that every sample of a batch is given."""

    names: dict[nn.Module, dict[str, str]] = field(default_factory=lambda: defaultdict(dict))
    shared: Chosen = field(default_factory=dict)
    runs: list[Run] = field(default_factory=list)

    @classmethod
    def of(cls, model: nn.Module, chosen: Chosen) -> "Recorder":
        """The recorder for these parameters, if there is a formula for each of them."""
        found, names = cls(), {id(each): name for name, each in chosen.items()}
        for path, layer in model.named_modules():
            for own, each in layer.named_parameters(recurse=False):
                name = names.get(id(each))
                if name is None:
                    continue
                if is_known(layer):
                    found.names[layer][own] = name
                elif each.ndim > 1 and len(each) == 1:  # as the class token and positions of a vision transformer
                    found.shared[name] = each
                else:
                    raise Uncovered(f"no formula for '{own}' of the {type(layer).__name__} '{path}'")
        return found

    @contextmanager
    def watching(self, rows: int) -> Iterator[None]:
        """Inside, every run of a watched layer is kept."""

        def widen(_: nn.Module, ids: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
            shared = bool(ids) and len(ids[0]) == 1 < rows  # positions that all samples share, as in BERT
            return (ids[0].expand(rows, *ids[0].shape[1:]),) if shared else None

        def see(layer: nn.Module, args: tuple[Tensor, ...], named: dict[str, Tensor], out: Tensor) -> None:
            if out.requires_grad:
                entering = (args[0] if args else next(iter(named.values()))).detach()
                # The edge, not the tensor: what follows may change the tensor in place.
                self.runs.append(Run(layer, entering, entering._version, get_gradient_edge(out), out.numel()))

        hooks = [layer.register_forward_hook(see, with_kwargs=True) for layer in self.names]
        hooks += [layer.register_forward_pre_hook(widen) for layer in self.names if isinstance(layer, nn.Embedding)]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()


def logit_loss(logits: Tensor, batch: Batch) -> Tensor:
    """A scalar whose gradient in the logits is softmax - onehot, exact where softmax is near 1 (autograd's is not)."""
    rows = len(batch)
    if logits.numel() % rows or (logits.ndim > 2 and logits.shape[1:].numel() not in logits.shape[1:]):
        raise Problem(
            f"the model gives logits of shape {tuple(logits.shape)} for {rows} samples; the scores need one vector "
            "per sample, (n, classes)"
        )
    logits = at_least_single(logits.reshape(rows, -1))
    check_labels(batch.y, logits.shape[1], batch.rows)
    return (logits * Outputs(logits, logits.detach(), batch.y).residual).sum()


@dataclass(frozen=True)
class Recorded:
    """The runs of the layers in one pass with the gradients of what left them, and those of the shared parameters."""

    recorder: Recorder
    leaving: Sequence[Tensor | None]
    shared: Sequence[Tensor | None]


def record(model: nn.Module, chosen: Chosen, batch: Batch) -> Recorded:
    """One forward and one backward pass that reaches the outputs of the layers, not their weights."""
    recorder, rows = Recorder.of(model, chosen), len(batch)
    shared = {
        name: each.detach().expand(rows, *each.shape[1:]).clone().requires_grad_()
        for name, each in recorder.shared.items()
    }
    with recorder.watching(rows):
        loss = logit_loss(call(model, batch.x, shared), batch)
    places: list[Any] = [each.edge for each in recorder.runs] + list(shared.values())
    if not places:
        raise Uncovered("no layer that holds a chosen parameter was called")
    found = list(torch.autograd.grad(loss, places, allow_unused=True))
    if any(each.entering._version != each.version for each in recorder.runs):
        raise Uncovered("the input of a layer is changed in place after it")
    return Recorded(recorder, found[: len(recorder.runs)], found[len(recorder.runs) :])


def by_layer(model: nn.Module, chosen: Chosen, batch: Batch, p: float) -> Tensor:
    """(b,) norms over the chosen parameters; those used several times, or tied, add up before the norm."""
    recorded, rows = record(model, chosen, batch), len(batch)
    recorder = recorded.recorder
    times = Counter(name for each in recorder.runs for name in recorder.names[each.layer].values())
    entries = [at_least_single(part).flatten(1) for part in recorded.shared if part is not None]
    sums: dict[str, Tensor] = {}
    for each, part in zip(recorder.runs, recorded.leaving, strict=True):
        if part is None:
            continue
        names = recorder.names[each.layer]
        entering, part = at_least_single(each.entering), at_least_single(part)
        if all(times[name] == 1 for name in names.values()):
            found = entries_of(each.layer, entering, part, rows, p)
            entries += [found[own] for own in names]
            continue
        if isinstance(each.layer, nn.Embedding):
            raise Uncovered(f"the embedding '{names['weight']}' is used more than once")
        for own, value in gradients(each.layer, entering, part, rows).items():
            if own in names:
                sums[names[own]] = sums[names[own]] + value if names[own] in sums else value
    entries += [norm(each.flatten(1), p)[:, None] for each in sums.values()]
    return norm(torch.cat(entries, 1), p) if entries else torch.zeros(rows)  # one norm of all: few steps, little time


def bytes_by_layer(model: nn.Module, chosen: Chosen, batch: Batch, p: float) -> int:
    """Bytes per sample: what the layers keep and its gradients, and the largest step of a single layer."""
    kept = largest = 0
    for each in record(model, chosen, part_of(batch, slice(0, 1))).recorder.runs:
        window = torch.Size(getattr(each.layer, "kernel_size", ())).numel()
        explicit = 0 if p == 2 or isinstance(each.layer, nn.Embedding) else each.layer.weight.numel()  # type: ignore[operator]
        kept += each.entering.numel() + 2 * each.leaving
        largest = max(largest, window * each.entering.numel() + each.leaving + 4 * explicit)
    return 4 * 2 * (kept + largest) + 1
