"""Thin adapters to people's own frameworks; each imports its framework only when it is itself imported."""

import importlib
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from debiaser.errors import Misuse, Problem
from debiaser.learn import forward
from debiaser.learn.gradient_norms import checked, grad_norm
from debiaser.learn.guard import Comparison, compare, guarded_shares


class Absent(Problem, ImportError):
    """A framework that is not installed."""


def framework(module: str, extra: str) -> Any:
    """A module of a framework, or the clear line on how to get it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise Absent(f"{package} is not installed; get it with: pip install 'debiaser[{extra}]'") from error


def check_sampler(loader: Any, ours: Any, owner: str, remedy: str) -> None:
    """Refuse a loader, or several, that do not draw by our sampler, however deep a framework wrapped it."""
    waiting, found = tree_leaves(loader), list[Any]()
    while waiting:
        each = waiting.pop(0)
        inner = [getattr(each, name, None) for name in ("base_dataloader", "batch_sampler", "sampler")]
        fresh = [part for part in inner if part is not None and not any(part is known for known in found)]
        found += fresh
        waiting += fresh
    if not any(each is ours for each in found):
        kinds = ", ".join(type(each).__name__ for each in found) or "none"
        raise Problem(f"the sampler of {owner} is not in use (the loader has: {kinds}): {remedy}")


def check_scores(scores: Tensor, samples: int, where: str, remedy: str) -> Tensor:
    """The scores that an interrupted training left, if they are those of this dataset."""
    if len(scores) != samples:
        raise Misuse(f"{where} has scores of {len(scores)} samples, but the dataset has {samples}; {remedy}")
    return scores


MAX_COST = 25.0  # points of accuracy that drawing by score may cost
STATE = ("scores", "shares", "answers")  # what an interrupted training needs, one number per sample each


def score_and_guard(
    model: nn.Module, dataset: Any, p: float, power: float, head: str | None, guard: bool
) -> dict[str, Tensor]:
    """(n,) gradient norms, shares of the draws (guarded, else the norms), and the biased model's answers: one pass."""
    score, seen = grad_norm(p, power), list[tuple[Tensor, ...]]()
    device = forward.device_of(model)
    with forward.random_state_kept(device):
        for each in forward.look(model, forward.as_batches(dataset, 256), head, device):
            seen.append((score(each).cpu(), each.logits.argmax(1).cpu(), each.labels.cpu()))
    scores, answers, y = (torch.cat(parts) for parts in zip(*seen, strict=True))
    shares = checked(scores, p)
    if guard:
        found = guarded_shares(y.numpy(), (answers != y).numpy(), np.maximum(scores.double().numpy(), 1e-8))
        shares = torch.from_numpy(found)
    return {"scores": scores, "shares": shares, "answers": answers}


def warn_of_inversion(model: nn.Module, dataset: Any, head: str | None, biased: Tensor, then: str) -> Comparison:
    """How the model does on the training data beside the biased model's answers (n,); warns where it is dangerous."""
    device = forward.device_of(model)
    with forward.random_state_kept(device):
        looked = forward.look(model, forward.as_batches(dataset, 256), head, device)
        seen = [(each.logits.argmax(1).cpu(), each.labels.cpu(), each.logits.shape[1]) for each in looked]
    answers, y = (torch.cat([each[part] for each in seen]).numpy() for part in (0, 1))  # type: ignore[misc]
    found = compare(biased.numpy(), answers, y, None, int(seen[0][2]), MAX_COST)
    found.warn(then)
    return found
