"""One number per training row: how strongly it goes against what the model has learnt (higher: more)."""

import math
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, SequentialSampler

from debiaser.data.split import Batch, Split
from debiaser.errors import Misuse, known
from debiaser.learn.losses import cross_entropy
from debiaser.learn.outputs import Outputs, look, reduce

Score: TypeAlias = Callable[[Outputs], Tensor]


def check_norm(p: float, power: float) -> None:
    """Refuse a norm or power that ranks nothing."""
    if not p > 0:
        raise Misuse(f"p must be above 0 (inf for the largest entry), got {p:g}")
    if not (power > 0 and math.isfinite(power)):
        raise Misuse(f"power must be above 0, got {power:g}")


def norm(x: Tensor, p: float) -> Tensor:
    """(n,) entrywise p-norm of each row, for every p in (0, inf]; scaled by the largest entry, so nothing overflows."""
    largest = x.abs().amax(1)
    if math.isinf(p):
        return largest
    safe = torch.where(largest > 0, largest, 1)
    return largest * ((x / safe[:, None]).abs() ** p).sum(1) ** (1 / p)


def grad_norm(p: float = 2, power: float = 1, bias: bool = False) -> Score:
    """The p-norm, to a power, of the gradient of cross-entropy in the last layer's weight (and bias).

    The gradient is the outer product of residual and feature, so its p-norm is the product of theirs: no backward pass.
    With `bias` the feature is extended by 1.
    """
    check_norm(p, power)

    def score(outputs: Outputs) -> Tensor:
        features = outputs.features
        if bias:
            features = torch.cat([features, features.new_ones(len(features), 1)], 1)
        return (norm(outputs.residual, p) * norm(features, p)) ** power

    return score


def residual_norm(p: float = 2, power: float = 1) -> Score:
    """The p-norm, to a power, of softmax - onehot alone: the gradient norm without the feature's length (D43)."""
    check_norm(p, power)
    return lambda outputs: norm(outputs.residual, p) ** power


def loss_score(outputs: Outputs) -> Tensor:
    """(n,) cross-entropy of each row."""
    return cross_entropy(outputs.logits, outputs.labels)


def as_batches(data: Any, batch_size: int) -> Iterator[Batch]:
    """Batches in dataset order from a Split, a Dataset of (x, y), or an unshuffled DataLoader."""
    if isinstance(data, Split):
        yield from data.batches(batch_size)
        return
    if isinstance(data, DataLoader):
        plain = type(data.batch_sampler) is BatchSampler and isinstance(data.sampler, SequentialSampler)
        if not plain or data.drop_last:
            raise Misuse(
                "the DataLoader shuffles, samples or drops rows, so scores would lose their rows: "
                "pass the dataset itself, or a DataLoader without shuffle, sampler and drop_last"
            )
        loader = data
    elif isinstance(data, Dataset) or hasattr(data, "__getitem__"):
        loader = DataLoader(data, batch_size=batch_size)
    else:
        raise Misuse(f"expected a Dataset, a DataLoader or a Split, got {type(data).__name__}")
    first = 0
    for item in loader:
        x, y = item[0], item[1]
        yield Batch(x, y, torch.arange(first, first + len(y)))
        first += len(y)


def gradient_norms(
    model: nn.Module,
    dataset: Any,
    p: float = 2,
    power: float = 1,
    bias: bool = False,
    parameters: str = "head",
    head: nn.Module | str | None = None,
    batch_size: int = 256,
) -> Tensor:
    """(n,) the gradient norm of every sample, in dataset order, from one forward pass in eval mode.

    Large for samples that go against what the model has learnt. The model is left as it was. `parameters="head"` is the
    last linear layer, found by itself or named by `head`.
    """
    if parameters != "head":
        raise known("parameters", parameters, ["head"])
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    with torch.random.fork_rng(devices=[]):  # a DataLoader draws a seed from the global generator
        return reduce(look(model, as_batches(dataset, batch_size), head, device), grad_norm(p, power, bias))
