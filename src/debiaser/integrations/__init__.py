"""Thin adapters to people's own frameworks; each imports its framework only when it is itself imported."""

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, Subset

from debiaser.errors import Misuse, Problem
from debiaser.learn import forward
from debiaser.learn.distributed import initialised
from debiaser.learn.forward import fingerprint
from debiaser.learn.gradient_norms import gradient_norms
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


def check_scores(scores: Tensor, dataset: Any, known: str, where: str, remedy: str) -> Tensor:
    """The scores that an interrupted training left, if they are those of this dataset, whose fingerprint was known."""
    if len(scores) != len(dataset):
        raise Misuse(f"{where} has scores of {len(scores)} samples, but the dataset has {len(dataset)}; {remedy}")
    if known and known != fingerprint(dataset):
        raise Misuse(f"{where} has scores of other samples than the dataset has now, or in another order; {remedy}")
    return scores


def probe(model: nn.Module, dataset: Any, collate: Callable[[Any], Any] | None = None, **options: Any) -> None:
    """Refuse, before anything is trained, a model, data or options that `gradient_norms` cannot score."""
    if not len(dataset):
        raise Misuse("the dataset has no samples; give it at least one")
    few = Subset(dataset, range(min(2, len(dataset))))
    gradient_norms(model, DataLoader(few, len(few), collate_fn=collate), shared=False, **options)


MAX_COST = 25.0  # points of accuracy that drawing by score may cost
STATE = ("scores", "shares", "answers")  # what an interrupted training needs, one number per sample each


def answers_of(model: nn.Module, dataset: Any) -> tuple[Tensor, Tensor, int]:
    """(n,) what the model answers, (n,) the labels, and how many classes there are; the same in all processes."""
    device, seen = forward.device_of(model), list[tuple[Tensor, Tensor]]()
    with forward.random_state_kept(device), initialised().same_buffers(model), forward.evaluating(model):
        for batch in forward.as_batches(dataset, 256):
            logits = forward.call(model, batch.to(device).x)
            seen.append((logits.reshape(len(batch.y), -1).argmax(1).cpu(), batch.y.cpu()))
    answers, labels = (torch.cat(parts) for parts in zip(*seen, strict=True))
    return answers, labels, logits.shape[-1]


def score_and_guard(model: nn.Module, dataset: Any, guard: bool, **norm: Any) -> dict[str, Tensor]:
    """(n,) gradient norms, shares of the draws (guarded, else the norms), and the biased model's answers."""
    scores = shares = gradient_norms(model, dataset, **norm)
    answers, labels, _ = answers_of(model, dataset)
    if guard:
        wrong, floored = (answers != labels).numpy(), np.maximum(scores.double().numpy(), 1e-8)
        shares = torch.from_numpy(guarded_shares(labels.numpy(), wrong, floored))
    return {"scores": scores, "shares": shares, "answers": answers}


def warn_of_inversion(model: nn.Module, dataset: Any, biased: Tensor, then: str) -> Comparison:
    """How the model does on the training data beside the biased model's answers (n,); warns where it is dangerous."""
    answers, labels, classes = answers_of(model, dataset)
    found = compare(biased.numpy(), answers.numpy(), labels.numpy(), None, classes, MAX_COST)
    found.warn(then)
    return found
