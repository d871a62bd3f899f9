"""Per-sample gradient norms over any parameters of a network, in pieces of a batch that fit into memory."""

import logging
from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatchcase
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from debiaser.data.split import Batch, each_tensor
from debiaser.errors import Misuse
from debiaser.learn.batches import part_of, pieces
from debiaser.learn.calls import at_least_single, bare, call, eager
from debiaser.learn.layerwise import Chosen, Uncovered, by_layer, bytes_by_layer, logit_loss
from debiaser.learn.norms import norm
from debiaser.learn.outputs import Outputs, modes_kept

log = logging.getLogger("debiaser")
Way: TypeAlias = Callable[[nn.Module, Chosen, Batch, float], Tensor]
BUDGET = 256 * 2**20  # bytes that a piece of a batch may take beside the network
PROBE = 8  # samples on which a way is compared with autograd


def choose(model: nn.Module, parameters: str | Callable[[str], bool]) -> Chosen:
    """The trainable parameters that are meant, by name."""
    trainable = {name: each for name, each in model.named_parameters() if each.requires_grad}
    if not isinstance(parameters, str) and not callable(parameters):
        raise Misuse(f"parameters cannot be {parameters!r}; give a text, or a function of a parameter's name")
    if isinstance(parameters, str):
        chosen = {name: each for name, each in trainable.items() if is_meant(name, parameters)}
    else:
        chosen = {name: each for name, each in trainable.items() if parameters(name)}
    if not chosen:
        names = list(trainable)
        listed = ", ".join(names if len(names) <= 6 else [*names[:3], "...", *names[-2:]])
        raise Misuse(
            f"no trainable parameter is meant by parameters={parameters!r}: 'head', 'all', the name of a layer or "
            f"parameter, a pattern or a function of the name; the trainable ones: {listed or 'none'}"
        )
    return chosen


def is_meant(name: str, pattern: str) -> bool:
    """Whether a parameter is meant by "all", by its own or its layer's name, or by a pattern with stars."""
    return pattern == "all" or name.startswith(f"{pattern}.") or fnmatchcase(name, pattern)


def whole_norms(
    model: nn.Module,
    batches: Iterable[Batch],
    parameters: str | Callable[[str], bool],
    p: float,
    chunk: int | None,
    device: torch.device,
) -> Iterator[Tensor]:
    """(b,) for each batch, the p-norm of every sample's gradient of cross-entropy in the chosen parameters."""
    if chunk is not None and chunk < 1:
        raise Misuse(f"chunk must be at least 1, got {chunk}")
    network, way, size = bare(model), None, 1
    chosen = choose(network, parameters)
    for batch in batches:
        with modes_kept(model), eager(model), torch.inference_mode(False), torch.enable_grad():
            batch = trackable(batch.to(device))
            if way is None:
                way, size = best_way(network, chosen, batch, p, chunk)
            norms = torch.cat([way(network, chosen, piece, p).cpu() for piece in pieces(batch, size)])
        yield norms


def trackable(batch: Batch) -> Batch:
    """The batch with inputs that autograd may keep: those made in inference mode are copied."""
    x = each_tensor(batch.x, lambda tensor: tensor.clone() if tensor.is_inference() else tensor)
    return Batch(x, batch.y.clone(), batch.rows.clone())


def best_way(model: nn.Module, chosen: Chosen, batch: Batch, p: float, chunk: int | None) -> tuple[Way, int]:
    """The fastest way that gives what autograd gives on two samples of this batch, and how many samples at once.

    By layer; else vmap; else one backward pass per sample, which holds for every network.
    """
    few = part_of(batch, slice(0, chunk or PROBE))
    ends = [part_of(few, slice(0, 1)), part_of(few, slice(len(few) - 1, None))]
    alone = torch.cat([one_by_one(model, chosen, each, p) for each in ends])
    tolerance = 1e-3 if all(each.element_size() >= 4 for each in chosen.values()) else 0.1
    for way, needed in ((by_layer, bytes_by_layer), (by_vmap, bytes_by_vmap)):
        try:
            found = way(model, chosen, few, p)[[0, -1]]
            if torch.allclose(found, alone, rtol=tolerance, atol=0):
                return way, chunk or max(1, BUDGET // needed(model, chosen, batch, p))
            reason = "other norms than autograd's on the first samples"
        except (Uncovered, RuntimeError, ValueError, TypeError, IndexError, KeyError) as error:
            reason = str(error).partition("\n")[0] or type(error).__name__
        log.warning("gradient norms %s are not possible here, a slower way is taken: %s", WAYS[way], reason)
    return one_by_one, 1


def one_by_one(model: nn.Module, chosen: Chosen, batch: Batch, p: float) -> Tensor:
    """(b,) by definition: one backward pass per sample."""
    found = []
    for one in pieces(batch, 1):
        loss = logit_loss(call(model, one.x), one)
        parts = torch.autograd.grad(loss, list(chosen.values()), allow_unused=True)
        norms = [norm(at_least_single(part).reshape(1, -1), p) for part in parts if part is not None]
        found.append(norm(torch.stack(norms, 1), p) if norms else loss.new_zeros(1))
    return torch.cat(found)


def by_vmap(model: nn.Module, chosen: Chosen, batch: Batch, p: float) -> Tensor:
    """(b,) from the explicit gradients of all samples at once."""
    parts = gradients_by_vmap(model, chosen, batch)
    return norm(torch.stack([norm(at_least_single(part).flatten(1), p) for part in parts.values()], 1), p)


def gradients_by_vmap(model: nn.Module, chosen: Chosen, batch: Batch) -> dict[str, Tensor]:
    """The gradient (b, ...) of every sample's cross-entropy in each chosen parameter."""

    def loss(values: dict[str, Tensor], x: Any, y: Tensor) -> Tensor:
        logits = call(model, each_tensor(x, lambda tensor: tensor[None]), values)
        logits = at_least_single(logits.reshape(1, -1))
        return (logits * Outputs(logits, logits.detach(), y[None]).residual).sum()

    values = {name: each.detach() for name, each in chosen.items()}
    found: dict[str, Tensor] = vmap(grad(loss), in_dims=(None, 0, 0))(values, batch.x, batch.y)
    return found


def bytes_by_vmap(_model: nn.Module, chosen: Chosen, batch: Batch, _p: float) -> int:
    """Bytes per sample: explicit gradients and their norms, and a guess at what the layers keep."""
    sizes: list[int] = []
    each_tensor(batch.x, lambda x: sizes.append(x.nbytes // len(batch)) or x)  # type: ignore[func-returns-value]
    return 4 * 4 * sum(each.numel() for each in chosen.values()) + 100 * sum(sizes)


WAYS: dict[Way, str] = {by_layer: "by layer", by_vmap: "by vmap"}
