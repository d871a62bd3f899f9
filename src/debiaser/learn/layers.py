"""Per-sample gradients of one layer's parameters, from what entered it (b, ...) and the gradient of what left it.

A weight that multiplies t positions of a sample has the gradient G = sum over positions of g_t a_t'. Where t is small
beside the weight, its 2-norm comes from two (t, t) Gram matrices, without G: |G|^2 = sum of (A A') * (B B').
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from debiaser.learn.norms import norm

Gradients = dict[str, Tensor]  # by the parameter's name in its layer, each (b, ...)


def positions_of_linear(layer: Any, entering: Tensor, gradient: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """(b, 1, h, t) what is multiplied and (b, 1, k, t) the gradient of what comes out, by position."""
    a = entering.reshape(rows, -1, layer.in_features)
    g = gradient.reshape(rows, -1, layer.out_features)
    return a.transpose(1, 2)[:, None], g.transpose(1, 2)[:, None]


def positions_of_convolution(layer: Any, entering: Tensor, gradient: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """(b, groups, h, t) the patches and (b, groups, k, t) the gradient of what they give, by position."""
    if any(layer._reversed_padding_repeated_twice):
        mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
        entering = F.pad(entering, layer._reversed_padding_repeated_twice, mode)
    shape, strides = entering.shape[:2], entering.stride()
    steps = [dilation * each for dilation, each in zip(layer.dilation, strides[2:], strict=True)]
    jumps = [stride * each for stride, each in zip(layer.stride, strides[2:], strict=True)]
    # A view, which the reshape below copies in one go, which F.unfold does not.
    patches = entering.as_strided((*shape, *layer.kernel_size, *gradient.shape[2:]), (*strides[:2], *steps, *jumps))
    split = (rows, layer.groups, -1, gradient.shape[2:].numel())
    return patches.reshape(split), gradient.reshape(split)


POSITIONS: dict[type[nn.Module], Callable[[Any, Tensor, Tensor, int], tuple[Tensor, Tensor]]] = {
    nn.Linear: positions_of_linear,
    nn.Conv1d: positions_of_convolution,
    nn.Conv2d: positions_of_convolution,
    nn.Conv3d: positions_of_convolution,
}


def per_channel(layer: Any, entering: Tensor, gradient: Tensor) -> Gradients:
    """(b, c) of a BatchNorm in eval mode or a GroupNorm."""
    g = gradient.flatten(2) if gradient.ndim > 2 else gradient[:, :, None]
    if isinstance(layer, nn.GroupNorm):
        a = F.group_norm(entering, layer.num_groups, eps=layer.eps).flatten(2)
    else:
        a = F.batch_norm(entering, layer.running_mean, layer.running_var, eps=layer.eps)
        a = a.flatten(2) if a.ndim > 2 else a[:, :, None]
    return {"weight": torch.einsum("bct,bct->bc", g, a), "bias": g.sum(2)}


def per_feature(layer: Any, entering: Tensor, gradient: Tensor, rows: int) -> Gradients:
    """(b, ...) of a LayerNorm or an RMSNorm."""
    shape = layer.normalized_shape
    normalise = F.layer_norm if isinstance(layer, nn.LayerNorm) else F.rms_norm
    a = normalise(entering, shape, eps=layer.eps).reshape(rows, -1, *shape)
    g = gradient.reshape(rows, -1, *shape)
    return {"weight": (g * a).sum(1), "bias": g.sum(1)}


def of_embedding(layer: nn.Embedding, entering: Tensor, gradient: Tensor, rows: int) -> Gradients:
    """(b, t, h) the rows of the weight's gradient that are not 0: at the first of equal ids, their sum."""
    ids, g = entering.reshape(rows, -1), gradient.reshape(rows, -1, layer.embedding_dim)
    if layer.padding_idx is not None:
        g = g * (ids != layer.padding_idx)[:, :, None]
    places = torch.arange(ids.shape[1], device=ids.device)
    first = torch.where(ids[:, :, None] == ids[:, None, :], places, len(places)).amin(2)
    return {"weight": torch.zeros_like(g).scatter_add(1, first[:, :, None].expand_as(g), g)}


def is_known(layer: nn.Module) -> bool:
    """Whether the formulas here hold for a layer of this kind."""
    if isinstance(layer, nn.Embedding):
        return layer.max_norm is None and not layer.scale_grad_by_freq and not layer.sparse
    if isinstance(layer, nn.modules.batchnorm._BatchNorm):
        return layer.running_mean is not None  # else eval mode still mixes the samples of a batch
    return isinstance(layer, nn.GroupNorm | nn.LayerNorm | nn.RMSNorm | nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d)


def by_position(layer: nn.Module, entering: Tensor, gradient: Tensor, rows: int) -> tuple[Tensor, Tensor] | None:
    """What a weight multiplies and the gradient of what comes out, for layers that multiply."""
    kind = next((kind for kind in POSITIONS if isinstance(layer, kind)), None)
    return POSITIONS[kind](layer, entering, gradient, rows) if kind else None


def gradients(layer: nn.Module, entering: Tensor, gradient: Tensor, rows: int) -> Gradients:
    """(b, ...) the gradient of every parameter of the layer, for each sample."""
    found = by_position(layer, entering, gradient, rows)
    if found:
        a, g = found
        return {"weight": (g @ a.transpose(2, 3)).flatten(1), "bias": g.sum(3).flatten(1)}
    if isinstance(layer, nn.Embedding):
        return of_embedding(layer, entering, gradient, rows)
    if isinstance(layer, nn.LayerNorm | nn.RMSNorm):
        return per_feature(layer, entering, gradient, rows)
    return per_channel(layer, entering, gradient)


def entries_of(layer: nn.Module, entering: Tensor, gradient: Tensor, rows: int, p: float) -> Gradients:
    """(b, m) for every parameter of the layer entries whose p-norm is that of its gradient, the cheapest way."""
    found = by_position(layer, entering, gradient, rows)
    if found:
        a, g = found
        return {"weight": weight_norm(a, g, p)[:, None], "bias": g.sum(3).flatten(1)}
    return {name: each.flatten(1) for name, each in gradients(layer, entering, gradient, rows).items()}


def weight_norm(a: Tensor, g: Tensor, p: float) -> Tensor:
    """(b,) the p-norm of the sum over positions of g a', from (b, groups, h, t) and (b, groups, k, t)."""
    (groups, h, t), k = a.shape[1:], g.shape[2]
    if t == 1 and groups == 1:  # rank one
        return norm(a.flatten(1), p) * norm(g.flatten(1), p)
    if p == 2 and t * (h + k) < h * k:
        products = (a.transpose(2, 3) @ a) * (g.transpose(2, 3) @ g)
        return products.sum((1, 2, 3)).clamp(min=0).sqrt()
    return norm((g @ a.transpose(2, 3)).flatten(1), p)
