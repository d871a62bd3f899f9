"""The gradient norm of every sample: how strongly it goes against what the model has learnt (higher: more).

The gradient of cross-entropy in the last layer's weight is the outer product of softmax - onehot and the feature that
enters the layer. The p-norm of an outer product is the product of the p-norms, so one forward pass gives all of them.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from debiaser.data.split import Batch
from debiaser.errors import Misuse, Problem
from debiaser.learn.forward import Outputs, as_batches, device_of, look, random_state_kept
from debiaser.learn.losses import cross_entropy

Score: TypeAlias = Callable[[Outputs], Tensor]
SMALLEST_P = 0.05  # below it even a short vector's norm leaves the range of floats


def grad_norm(p: float = 2, power: float = 1, bias: bool = False) -> Score:
    """The p-norm, to a power, of the gradient of cross-entropy in the last layer's weight (and bias).

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
    """(n,) cross-entropy of each sample."""
    return cross_entropy(outputs.logits, outputs.labels)


def norm(x: Tensor, p: float) -> Tensor:
    """(n,) entrywise p-norm of each row, for every p in (0, inf]; scaled by the largest entry, so nothing overflows."""
    largest = x.abs().amax(1)
    if math.isinf(p):
        return largest
    safe = torch.where(largest > 0, largest, 1)
    return largest * ((x / safe[:, None]).abs() ** p).sum(1) ** (1 / p)


def check_norm(p: float, power: float) -> None:
    """Refuse a norm or power that ranks nothing."""
    if not p >= SMALLEST_P:
        raise Misuse(f"p must be at least {SMALLEST_P:g} (inf for the largest entry), got {p:g}")
    if not (power > 0 and math.isfinite(power)):
        raise Misuse(f"power must be above 0, got {power:g}")


def scale_slope(outputs: Outputs) -> Tensor:
    """(n,) how fast the cross-entropy grows with a scale of all logits, at 1; above 0 mostly where misclassified."""
    return (outputs.residual * outputs.logits).sum(1)


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
    """The norm of the gradient of cross-entropy, per sample: large where it goes against what the model has learnt.

    One forward pass in eval mode gives the norms of the last layer; the model is left as it was.

    Args:
        model: a classifier; it may lie on any device.
        dataset: a map-style dataset of (x, y) pairs or dictionaries, or a DataLoader over one.
        p: the entrywise norm, above 0; `math.inf` takes the largest entry.
        power: the norm is raised to it.
        bias: with the gradient in the last layer's bias.
        parameters: "head" for the last linear layer; "all", the name of a parameter or layer, a pattern such as
            "encoder.*" or a function of the name to choose among all trainable parameters, which takes a backward pass.
        head: the last linear layer or its name, where it cannot be found.
        batch_size: samples of a forward pass.
        chunk: samples of a backward pass at once; by default as many as fit into a fixed piece of memory.

    Returns:
        A tensor (n,) on the CPU, in the order of the dataset.

    Raises:
        Misuse: the norm does not exist, or the dataset is empty.
        Problem: no last layer is found, or a norm is not finite.

    Example:
        >>> import torch
        >>> from torch.utils.data import TensorDataset
        >>> from debiaser import gradient_norms
        >>> model = torch.nn.Linear(1, 2, bias=False)
        >>> _ = torch.nn.init.zeros_(model.weight)
        >>> gradient_norms(model, TensorDataset(torch.tensor([[1.0], [2.0]]), torch.tensor([0, 1])))
        tensor([0.7071, 1.4142])
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
        from debiaser.learn.layerwise import whole_norms  # which needs the norm from here

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
