"""Thin adapters to other frameworks; each framework is imported only with its adapter."""

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, Subset

from debiaser.errors import Misuse, Problem
from debiaser.io import numpy_stream
from debiaser.learn import forward
from debiaser.learn.distributed import initialised
from debiaser.learn.gradient_norms import gradient_norms
from debiaser.learn.guard import Comparison, compare, guarded_shares
from debiaser.learn.streams import fingerprint


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


def check_scores(scores: Tensor, dataset: Any, known: str, where: str, remedy: str) -> None:
    """Refuse scores that an interrupted training left, unless they are of this dataset, whose fingerprint was known."""
    if len(scores) != len(dataset):
        raise Misuse(f"{where} has scores of {len(scores)} samples, but the dataset has {len(dataset)}; {remedy}")
    if known and known != fingerprint(dataset):
        raise Misuse(f"{where} has scores of other samples than the dataset has now, or in another order; {remedy}")


def probe(model: nn.Module, dataset: Any, collate: Callable[[Any], Any] | None = None, **options: Any) -> None:
    """Refuse, before anything is trained, a model, data or options that `gradient_norms` cannot score."""
    if not len(dataset):
        raise Misuse("the dataset has no samples; give it at least one")
    few = Subset(dataset, range(min(2, len(dataset))))
    gradient_norms(model, DataLoader(few, len(few), collate_fn=collate), shared=False, **options)


MAX_COST = 25.0  # points of accuracy that drawing by score may cost
FEWEST = 20  # samples, below which holding some out tells nothing
STATE = ("scores", "shares", "answers", "held_out")  # what an interrupted training needs, one number per sample each


def choose_held_out(n: int, share: float, seed: int) -> Tensor:
    """(n,) which samples no training sees, at random by index; none where they would be too few to tell anything."""
    if not 0 <= share <= 0.5:
        raise Misuse(f"held_out must lie between 0 (none) and 0.5, got {share:g}")
    held_out, many = torch.zeros(n, dtype=torch.bool), round(share * n)
    if many >= FEWEST:
        held_out[numpy_stream(seed, "held out").permutation(n)[:many]] = True
    return held_out


def score_and_guard(model: nn.Module, dataset: Any, guard: bool, held_out: Tensor, **norm: Any) -> dict[str, Tensor]:
    """(n,) gradient norms, shares of the draws (guarded, else the norms; 0 for samples that are held out), and the
    biased model's answers: one pass."""
    seen = list[Tensor]()
    scores = gradient_norms(model, dataset, see=lambda logits, y: seen.append(answered(logits, y)), **norm)
    answers, labels = initialised().gather(torch.cat(seen))[: len(scores)].T
    shares = torch.where(held_out, 0, scores)
    if guard:
        floored = torch.where(held_out, 0, scores.double().clamp(min=1e-8)).numpy()
        shares = torch.from_numpy(guarded_shares(labels.numpy(), (answers != labels).numpy(), floored))
    return {"scores": scores, "shares": shares, "answers": answers.contiguous(), "held_out": held_out}


def answered(logits: Tensor, labels: Tensor) -> Tensor:
    """(b, 2) the likeliest classes, and the labels."""
    return torch.stack([logits.argmax(1).cpu(), labels.cpu()], 1)


def warn_of_inversion(model: nn.Module, dataset: Any, found: dict[str, Tensor], then: str) -> Comparison:
    """How the model does beside the biased one on what was held out (else on all); warns where it is dangerous."""
    held_out = found.get("held_out", torch.zeros(0, dtype=torch.bool))
    rows = held_out.nonzero()[:, 0] if held_out.any() else torch.arange(len(found["answers"]))
    device, seen, classes = forward.device_of(model), list[Tensor](), 0
    with forward.random_state_kept(device), initialised().same_buffers(model), forward.evaluating(model):
        for batch in forward.as_batches(dataset, 256, lambda _: rows):
            logits = forward.call(model, batch.to(device).x).reshape(len(batch), -1)
            seen.append(answered(logits, batch.y))
            classes = logits.shape[1]
    answers, labels = torch.cat(seen).T.numpy()
    compared = compare(found["answers"][rows].numpy(), answers, labels, None, classes, MAX_COST)
    compared.warn(then)
    return compared
