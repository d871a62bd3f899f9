"""`debias(model, dataset)`: a method applied to a person's own network and dataset, in one call."""

from collections.abc import Sequence, Sized
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset, default_collate

from debiaser.data.split import Split
from debiaser.errors import Misuse
from debiaser.learn.engine import Row
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
    """A split over a dataset of (x, y) pairs; labels are read once, inputs when needed."""
    if isinstance(dataset, Split):
        return dataset
    if not isinstance(dataset, Sized) or isinstance(dataset, DataLoader):
        raise Misuse("debias needs a map-style dataset of (x, y) pairs with a length, not a loader or a stream")
    if not len(dataset):
        raise Misuse("the dataset has no rows")
    if isinstance(dataset, TensorDataset):
        return Split.of(dataset.tensors[0], whole_numbers(dataset.tensors[1]))
    rows = range(len(dataset))
    y = whole_numbers(torch.as_tensor([dataset[row][1] for row in rows]))

    def read(chosen: Tensor) -> Tensor:
        inputs: Tensor = default_collate([dataset[row][0] for row in chosen.tolist()])
        return inputs

    return Split(y, read)


def whole_numbers(labels: Tensor) -> Tensor:
    """The labels, if they are class numbers from 0 on."""
    if labels.ndim != 1 or labels.is_floating_point() or int(labels.min()) < 0:
        raise Misuse(
            f"labels must be a vector of class numbers from 0 on, got {labels.dtype} of shape {tuple(labels.shape)}"
        )
    return labels


def debias(
    model: nn.Module,
    dataset: Dataset[Any] | Sequence[Any] | Split,
    method: Method | None = None,
    recipe: Recipe | None = None,
    seed: int = 0,
) -> Debiased:
    """The debiased network, from a copy of `model` as it is now, and the scores; the given model is not changed."""
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    task = Task(as_split(dataset), lambda _: clone(model), recipe or Recipe(), seed, device=device)
    trained = (method or PGD()).fit(task)
    scores = task.journal.vectors.get("score")
    return Debiased(
        trained, None if scores is None else torch.from_numpy(scores), task.journal.history, task.journal.seconds
    )
