"""One number per training row: how strongly it goes against what the model has learnt (higher: more)."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from debiaser.data.split import Batch
from debiaser.errors import Misuse, Problem
from debiaser.learn.forward import Outputs, as_batches, device_of, look, random_state_kept
from debiaser.learn.layerwise import check_norm, norm, whole_norms
from debiaser.learn.losses import cross_entropy

__all__ = ["Score", "check_norm", "grad_norm", "gradient_norms", "loss_score", "norm", "norms_of", "residual_norm"]

Score: TypeAlias = Callable[[Outputs], Tensor]


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


def gradient_norms(
    model: nn.Module,
    dataset: Any,
    p: float = 2,
    power: float = 1,
    bias: bool = False,
    parameters: str | Callable[[str], bool] = "head",
    head: nn.Module | str | None = None,
    batch_size: int = 256,
    chunk: int | None = None,
) -> Tensor:
    """(n,) the gradient norm of every sample, in dataset order, in eval mode; the model is left as it was.

    Large for samples that go against what the model has learnt. `parameters="head"` is the weight (with `bias`, also
    the bias) of the last linear layer, found by itself or named by `head`: one forward pass. "all", the name of a
    parameter or layer, a pattern ("encoder.*") or a function of the name choose among all trainable parameters: one
    backward pass, `chunk` samples at once, by default as many as fit into a fixed piece of memory.
    """
    with random_state_kept(device_of(model)):  # a DataLoader draws a seed from the global generator
        parts = list(norms_of(model, as_batches(dataset, batch_size), p, power, bias, parameters, head, chunk))
    if not parts:
        raise Misuse("the dataset has no rows; give it at least one")
    return checked(torch.cat(parts), p)


def norms_of(
    model: nn.Module,
    batches: Iterable[Batch],
    p: float = 2,
    power: float = 1,
    bias: bool = False,
    parameters: str | Callable[[str], bool] = "head",
    head: nn.Module | str | None = None,
    chunk: int | None = None,
) -> Iterator[Tensor]:
    """(b,) the gradient norms of each batch, on the CPU; see `gradient_norms`."""
    check_norm(p, power)
    device = device_of(model)
    if isinstance(parameters, str) and parameters == "head":
        score = grad_norm(p, power, bias)
        yield from (score(outputs).cpu() for outputs in look(model, batches, head, device))
    elif head is not None:
        raise Misuse("head= names the layer of parameters='head'; leave it out when parameters= says what counts")
    else:
        yield from (norms**power for norms in whole_norms(model, batches, parameters, p, chunk, device))


def checked(scores: Tensor, p: float, first: int = 0) -> Tensor:
    """The scores, if all are numbers; `first` is the number of their first row."""
    wrong = ~scores.isfinite()
    if bool(wrong.any()):
        raise Problem(
            f"{int(wrong.sum()):,} of {len(scores):,} gradient norms are not finite, the first in row "
            f"{first + int(wrong.nonzero()[0, 0])}: the input or the model's output there is not, or the norm with "
            f"p={p:g} overflows; look at that row, or take a larger p"
        )
    return scores
