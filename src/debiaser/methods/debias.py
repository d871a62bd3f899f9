"""`debias(model, dataset)`: a method applied to a person's own network and dataset, in one call."""

import copy
from collections.abc import Sequence, Sized
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset, default_collate

from debiaser.data.split import Split
from debiaser.errors import Misuse
from debiaser.learn import forward
from debiaser.learn.engine import Row
from debiaser.learn.recipe import Recipe
from debiaser.methods.pgd import PGD
from debiaser.methods.task import Method, Task


@dataclass(frozen=True)
class Debiased:
    """The network that came out, the score of every sample (None for methods without), and what happened."""

    model: nn.Module = field(repr=False)
    scores: Tensor | None
    history: list[Row] = field(repr=False)
    seconds: dict[str, float]


def as_split(dataset: Dataset[Any] | Sequence[Any] | Split) -> Split:
    """A split over a dataset of (x, y) pairs or of dictionaries; labels are read once, inputs when needed."""
    if not isinstance(dataset, Sized) or isinstance(dataset, DataLoader):
        raise Misuse("debias needs a map-style dataset of (x, y) pairs with a length, not a loader or a stream")
    if not len(dataset):
        raise Misuse("the dataset has no samples; give it at least one")
    if isinstance(dataset, Split):
        return dataset
    tensors = dataset.tensors if isinstance(dataset, TensorDataset) and len(dataset.tensors) == 2 else None
    given = [forward.input_and_label(dataset[row])[1] for row in range(len(dataset))] if tensors is None else tensors[1]
    labels = forward.class_numbers(given)
    if int(labels.min()) < 0:
        raise Misuse(f"labels must be class numbers from 0 on, got {int(labels.min())}; number the classes from 0")
    if tensors is not None:
        return Split.of(tensors[0], labels)

    def read(chosen: Tensor) -> Any:
        return forward.split_item(default_collate([dataset[row] for row in chosen.tolist()]))[0]

    return Split(labels, read)


def debias(
    model: nn.Module,
    dataset: Dataset[Any] | Sequence[Any] | Split,
    method: Method | None = None,
    recipe: Recipe | None = None,
    seed: int = 0,
) -> Debiased:
    """Train a copy of a network on a dataset with a method that keeps it from taking the dataset's shortcut.

    Args:
        model: any network that ends in a linear layer and gives one logit per class; it is not changed.
        dataset: (x, y) pairs or dictionaries with "labels" or "label", class numbers from 0 on; with a length.
        method: a method with its fields; PGD() by default.
        recipe: how long, how fast and with which optimiser to train.
        seed: decides every draw.

    Returns:
        `model`, the debiased network; `scores` (n,), higher for samples that go against the shortcut, None for methods
        without scores; `history` and `seconds` of the stages.

    Raises:
        Misuse: a dataset, labels, a method or a recipe that cannot be meant.
        Problem: a network whose last layer cannot be found, or that cannot be trained on these samples.

    >>> result = debias(model, dataset, recipe=Recipe(epochs=1, batch_size=16, lr=0.01))
    >>> result.scores.shape == (len(dataset),)
    True
    """
    if isinstance(method, str | type):
        raise Misuse(f"method cannot be {method!r}; give a method with its fields, as in method=PGD(p=1)")
    if not isinstance(recipe, Recipe | None):
        raise Misuse(f"recipe cannot be {recipe!r}; give a Recipe, as in recipe=Recipe(epochs=10)")
    split, device = as_split(dataset), forward.device_of(model)
    with forward.random_state_kept(device):
        logits = forward.predict(forward.bare(model), [split.batch(torch.arange(min(2, len(split))))], device)
    forward.check_labels(split.y, logits.reshape(len(logits), -1).shape[1], torch.arange(len(split)))
    task = Task(split, lambda _: copy.deepcopy(model), recipe or Recipe(), seed, device=device)
    trained = (method or PGD()).fit(task)
    scores = task.journal.vectors.get("score")
    found = None if scores is None else torch.from_numpy(scores)
    return Debiased(trained, found, task.journal.history, task.journal.seconds)
