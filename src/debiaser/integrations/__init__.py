"""Thin adapters to people's own frameworks; each imports its framework only when it is itself imported."""

import importlib
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, Subset

from debiaser.errors import Misuse, Problem
from debiaser.learn.forward import fingerprint
from debiaser.learn.gradient_norms import gradient_norms


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
