"""`debias(model, dataset)`: a method applied to a person's own network and dataset, in one call."""

from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset, default_collate

from debiaser.data.split import Split
from debiaser.errors import Misuse
from debiaser.learn.engine import Row
from debiaser.learn.forward import (
    LABELS,
    bare,
    call,
    check_labels,
    device_of,
    evaluating,
    random_state_kept,
    split_item,
)
from debiaser.learn.recipe import Recipe
from debiaser.methods.pgd import PGD
from debiaser.methods.task import Method, Task, clone


@dataclass(frozen=True)
class Debiased:
    """The network that came out, the score of every row (None for methods without), and what happened."""

    model: nn.Module = field(repr=False)
    scores: Tensor | None
    history: list[Row] = field(repr=False)
    seconds: dict[str, float]


def as_split(dataset: Dataset[Any] | Sequence[Any] | Split) -> Split:
    """A split over a dataset of (x, y) pairs or of dictionaries; labels are read once, inputs when needed."""
    if not isinstance(dataset, Sized) or isinstance(dataset, DataLoader):
        raise Misuse("debias needs a map-style dataset of (x, y) pairs with a length, not a loader or a stream")
    if not len(dataset):
        raise Misuse("the dataset has no rows; give it at least one")
    if isinstance(dataset, Split):
        return dataset
    if isinstance(dataset, TensorDataset) and len(dataset.tensors) == 2:
        return Split.of(dataset.tensors[0], whole_numbers(dataset.tensors[1]))
    y = whole_numbers([label_of(dataset[row]) for row in range(len(dataset))])

    def read(chosen: Tensor) -> Any:
        return split_item(default_collate([dataset[row] for row in chosen.tolist()]))[0]

    return Split(y, read)


def label_of(item: Any) -> Any:
    """The label of one row: (x, y, ...), or a dictionary with "labels" or "label"."""
    if isinstance(item, tuple | list) and len(item) >= 2:
        return item[1]
    if not isinstance(item, Mapping):
        raise Misuse(f"a row must be a pair (x, y) or a dictionary with labels, got {type(item).__name__}")
    name = next((name for name in LABELS if name in item), None)
    if name is None:
        raise Misuse(f"a row has no label under 'labels' or 'label'; it has: {', '.join(map(str, item))}")
    return item[name]


def whole_numbers(given: Tensor | list[Any]) -> Tensor:
    """The labels, if they are class numbers from 0 on."""
    try:
        labels = torch.as_tensor(given)
    except (TypeError, ValueError, RuntimeError):
        raise Misuse(f"labels must be class numbers from 0 on, got {given[0]!r}") from None
    if labels.ndim != 1 or labels.is_floating_point() or int(labels.min()) < 0:
        raise Misuse(
            f"labels must be a vector of class numbers from 0 on, got {labels.dtype} of shape {tuple(labels.shape)}"
        )
    return labels.long()


def check_classes(model: nn.Module, split: Split) -> None:
    """Refuse labels that the network has no logit for, before anything is trained."""
    device = device_of(model)
    few = split.batch(torch.arange(min(2, len(split)))).to(device)
    with random_state_kept(device), evaluating(model):
        classes = call(bare(model), few.x).reshape(len(few), -1).shape[1]
    check_labels(split.y, classes, torch.arange(len(split)))


def debias(
    model: nn.Module,
    dataset: Dataset[Any] | Sequence[Any] | Split,
    method: Method | None = None,
    recipe: Recipe | None = None,
    seed: int = 0,
) -> Debiased:
    """The debiased network, from a copy of `model` as it is now, and the scores; the given model is not changed."""
    if isinstance(method, str | type):
        raise Misuse(f"method cannot be {method!r}; give a method with its fields, as in method=PGD(p=1)")
    if not isinstance(recipe, Recipe | None):
        raise Misuse(f"recipe cannot be {recipe!r}; give a Recipe, as in recipe=Recipe(epochs=10)")
    split = as_split(dataset)
    check_classes(model, split)
    task = Task(split, lambda _: clone(model), recipe or Recipe(), seed, device=device_of(model))
    trained = (method or PGD()).fit(task)
    scores = task.journal.vectors.get("score")
    return Debiased(
        trained, None if scores is None else torch.from_numpy(scores), task.journal.history, task.journal.seconds
    )
