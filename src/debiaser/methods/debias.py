"""`debias(model, dataset)`: a method applied to a person's own network and dataset, in one call."""

import copy
from collections.abc import Callable, Sequence, Sized
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset, default_collate

from debiaser.data.split import Split
from debiaser.errors import Misuse
from debiaser.learn import forward
from debiaser.learn.engine import Row
from debiaser.learn.guard import Comparison, Rows, below_chance, compare
from debiaser.learn.recipe import Recipe
from debiaser.learn.sampler import Shares, probabilities
from debiaser.methods.guarded import GuardedPGD
from debiaser.methods.task import Journal, Method, Task
from debiaser.methods.vanilla import Vanilla


@dataclass(frozen=True)
class Debiased:
    """The trained network, the score of every sample (None for methods without scores), and what happened.

    `probabilities` (n,) says how often each sample was drawn. `vanilla` and `debiased` are the two networks if they
    were compared in `comparison`, whose `danger` says why the debiased one must not be used. `decisions` says what was
    decided and why.
    """

    model: nn.Module = field(repr=False)
    scores: Tensor | None
    history: list[Row] = field(repr=False)
    seconds: dict[str, float]
    probabilities: Tensor | None = None
    vanilla: nn.Module | None = field(default=None, repr=False)
    debiased: nn.Module | None = field(default=None, repr=False)
    comparison: Comparison | None = None
    decisions: tuple[str, ...] = ()


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
    reweigh: Callable[[Shares], Shares] | None = None,
) -> Debiased:
    """Train a copy of a network on a dataset with a method that keeps it from taking the dataset's shortcut.

    Args:
        model: any network that ends in a linear layer and returns one logit per class; it is not changed.
        dataset: a sized dataset of (x, y) pairs, or of dictionaries with "labels" or "label"; classes are numbered from
            0.
        method: the method; by default GuardedPGD(), which holds out some samples.
        recipe: epochs, optimiser and learning rate.
        seed: seed of everything random.
        reweigh: function that changes the sampling probabilities (n,), which need not sum to 1, for weights of your
            own.

    Returns:
        `model` is the debiased network, or vanilla if that is safer. `scores` (n,) are higher for samples that go
        against the shortcut, and `probabilities` (n,) are those of the draws; both are None for methods without scores.
        `vanilla`, `debiased` and their `comparison` are set if the two were compared, `told` says what was decided and
        why, and `history` and `seconds` describe the stages.

    Warns:
        DebiasingWarning: the debiased network is below chance in a class, or loses too much accuracy, on samples like
            the training data; `model` is then vanilla, unless you passed another method.

    Raises:
        Misuse: the dataset, the labels, the method or the recipe is invalid.
        Problem: the last layer cannot be found, or the network cannot be trained on these samples.

    >>> result = debias(model, dataset, recipe=Recipe(epochs=1, batch_size=16, lr=0.01))
    >>> result.scores.shape == (len(dataset),)
    True
    """
    if not isinstance(method, Method | None):
        raise Misuse(f"method cannot be {method!r}; give a method with its fields, as in method=PGD(p=1)")
    if not isinstance(recipe, Recipe | None):
        raise Misuse(f"recipe cannot be {recipe!r}; give a Recipe, as in recipe=Recipe(epochs=10)")
    split, device = as_split(dataset), forward.device_of(model)
    with forward.random_state_kept(device):
        logits = forward.predict(forward.bare(model), [split.batch(torch.arange(min(2, len(split))))], device)
    forward.check_labels(split.y, logits.reshape(len(logits), -1).shape[1], torch.arange(len(split)))
    task = Task(split, lambda _: copy.deepcopy(model), recipe or Recipe(), seed, device=device, reweigh=reweigh)
    method = method or GuardedPGD()
    trained, journal = method.fit(task), task.journal
    if not isinstance(method, GuardedPGD | Vanilla):
        check_trained(trained, task)
    elif journal.comparison is not None:
        journal.comparison.warn()
    scores, drawn = (journal.vectors.get(name) for name in ("score", "probability"))
    found = None if scores is None else torch.from_numpy(scores).float()
    shares = found / found.sum() if found is not None and drawn is None else drawn
    if shares is not None and reweigh is not None:
        shares = probabilities(reweigh(np.asarray(shares, np.float64)))
    return Debiased(
        trained,
        found,
        journal.history,
        journal.seconds,
        None if shares is None else torch.as_tensor(shares),
        journal.models.get("vanilla"),
        journal.models.get("debiased"),
        journal.comparison,
        tuple(journal.decisions),
    )


def check_trained(trained: nn.Module, task: Task) -> None:
    """Warn where a network is below chance in a class on the very samples that it was trained on, and vanilla is not.

    Methods by name learn from all samples, so none is held out; but a rule that was inverted shows on these too. Such a
    network is what was asked for, so it is what comes out; vanilla is trained and kept beside it.
    """

    def answers(model: nn.Module) -> Rows:
        batches = task.train.batches(max(256, task.recipe.batch_size))
        return np.asarray(forward.predict(model, batches, task.device).flatten(1).argmax(1).numpy())

    y, said, journal = task.train.y.numpy(), answers(trained), task.journal
    classes = int(max(y.max(), said.max())) + 1
    if below_chance(said == y, y, classes):
        vanilla = Vanilla().fit(replace(task, journal=Journal()))  # no stage of the method's
        journal.comparison = compare(answers(vanilla), said, y, None, classes, GuardedPGD().max_cost)
        journal.models |= {"vanilla": vanilla, "debiased": trained}
        journal.comparison.warn("it is returned because you chose this method; a vanilla model is kept as .vanilla")
