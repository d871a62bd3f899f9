"""The one look: what a network makes of every row, batch by batch, and the linear layer that it ends in."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from debiaser.data.split import Batch
from debiaser.errors import Misuse
from debiaser.learn.calls import bare, call, check_labels, eager
from debiaser.learn.heads import Head, find_head

__all__ = ["Outputs", "call", "collect", "evaluating", "find_head", "look", "predict", "reduce"]


@dataclass(frozen=True)
class Outputs:
    """Features (n, h) that enter the last layer, logits (n, k) that leave it, labels (n,)."""

    features: Tensor
    logits: Tensor
    labels: Tensor

    @property
    def residual(self) -> Tensor:
        """(n, k) softmax - onehot; the label's entry as minus the sum of the others, exact where softmax is near 1."""
        residual = self.logits.softmax(1)
        label = self.labels[:, None]
        residual = residual.scatter(1, label, 0)
        return residual.scatter(1, label, -residual.sum(1, keepdim=True))


@contextmanager
def modes_kept(model: nn.Module) -> Iterator[None]:
    """The model in eval mode; afterwards every module is in the mode it was in."""
    modes = [(module, module.training) for module in model.modules()]
    if any(mode for _, mode in modes):  # setting a mode takes as long as a small layer
        model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            if module.training != mode:
                module.training = mode


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """The model in eval mode and without gradients; afterwards every module is in the mode it was in."""
    try:
        with modes_kept(model), torch.no_grad():  # not inference mode: what a network caches must stay trainable
            yield
    finally:
        torch.clear_autocast_cache()  # else a training under the same autocast would meet weights without gradients


def look(
    model: nn.Module,
    batches: Iterable[Batch],
    head: nn.Module | str | None = None,
    device: torch.device | str = "cpu",
) -> Iterator[Outputs]:
    """One forward pass in eval mode over the batches, which come out as outputs in the same order."""
    batches, network = iter(batches), bare(model)
    last: Head | None = None
    while True:
        with evaluating(model), eager(model):  # per batch: a consumer may train in between, and modes are never left
            batch = next(batches, None)
            if batch is None:
                return
            batch = batch.to(device)
            last = last or Head.of(model, head, batch.x)
            with last.watched():
                logits = call(network, batch.x)
            features, logits = last.features_and_logits(logits, len(batch))
            check_labels(batch.y, logits.shape[1], batch.rows)
        yield Outputs(features, logits, batch.y)


def collect(outputs: Iterable[Outputs]) -> Outputs:
    """All outputs as one, on the CPU."""
    kept = [(each.features.cpu(), each.logits.cpu(), each.labels.cpu()) for each in outputs]
    if not kept:
        raise Misuse("the dataset has no rows; give it at least one")
    features, logits, labels = (torch.cat(parts) for parts in zip(*kept, strict=True))
    return Outputs(features, logits, labels)


def reduce(outputs: Iterable[Outputs], score: Callable[[Outputs], Tensor]) -> Tensor:
    """(n,) one number per row, computed batch by batch: features are never held together."""
    parts = [score(each).cpu() for each in outputs]
    if not parts:
        raise Misuse("the dataset has no rows; give it at least one")
    return torch.cat(parts)


def predict(model: nn.Module, batches: Iterable[Batch], device: torch.device | str = "cpu") -> Tensor:
    """(n, k) logits in eval mode."""
    with evaluating(model):
        return torch.cat([call(model, batch.to(device).x).cpu() for batch in batches])
