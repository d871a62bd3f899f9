"""Batches in dataset order from whatever people have: a Split, a Dataset of pairs or dictionaries, a DataLoader."""

from collections.abc import Iterator, Mapping, Sized
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, SequentialSampler, TensorDataset

from debiaser.data.split import Batch, Split, each_tensor
from debiaser.errors import Misuse, Problem
from debiaser.learn.calls import LABELS


def as_batches(data: Any, batch_size: int) -> Iterator[Batch]:
    """Batches in dataset order from a Split, a Dataset of (x, y) or of dictionaries, or an unshuffled DataLoader."""
    if batch_size < 1:
        raise Misuse(f"batch_size must be at least 1, got {batch_size}")
    if type(data) is TensorDataset and len(data.tensors) > 1:  # whole batches at once, not row by row
        data = Split(class_numbers(data.tensors[1]), data.tensors[0].__getitem__)
    if isinstance(data, Split):
        yield from data.batches(batch_size) if len(data) else ()
        return
    loader = as_loader(data, batch_size)
    rows = len(loader.dataset) if isinstance(loader.dataset, Sized) else None
    first = 0
    try:
        for item in in_order(loader):
            x, y = split_item(item)
            yield Batch(x, y, torch.arange(first, first + len(y)))
            first += len(y)
    except IndexError as error:
        if isinstance(loader.dataset, Sized) and len(loader.dataset) != rows:
            raise changed_length(rows, len(loader.dataset)) from error
        raise
    if rows is not None and isinstance(loader.dataset, Sized) and not rows == first == len(loader.dataset):
        raise changed_length(rows, first if first != rows else len(loader.dataset))


def in_order(loader: DataLoader[Any]) -> Iterator[Any]:
    """What the loader gives; its own generator, of which it draws a seed for workers, is left as it was."""
    state = loader.generator.get_state() if loader.generator else None
    items = iter(loader)
    if loader.generator and state is not None:
        loader.generator.set_state(state)
    return items


def part_of(batch: Batch, part: slice) -> Batch:
    """A part of a batch, whatever its inputs are."""
    return Batch(each_tensor(batch.x, lambda x: x[part] if x.ndim else x), batch.y[part], batch.rows[part])


def pieces(batch: Batch, size: int) -> Iterator[Batch]:
    """The batch in pieces of at most this many samples."""
    for first in range(0, len(batch), size):
        yield part_of(batch, slice(first, first + size))


def changed_length(before: int | None, after: int) -> Problem:
    """What to say of a dataset that is not the same from beginning to end."""
    return Problem(
        f"the dataset had {before} rows when the pass began and gave {after}: scores would belong to other rows; "
        "keep it unchanged (and its collate_fn from dropping rows) while it is read"
    )


def as_loader(data: Any, batch_size: int) -> DataLoader[Any]:
    """A loader that gives every row once, in order."""
    if isinstance(getattr(data, "dataset", data), IterableDataset):
        raise Misuse(
            "a stream has no numbered rows: score it with debiaser.learn.streams.score_stream(model, stream, folder)"
        )
    if isinstance(data, DataLoader):
        plain = type(data.batch_sampler) is BatchSampler and isinstance(data.sampler, SequentialSampler)
        if not plain or data.drop_last:
            raise Misuse(
                "the DataLoader shuffles, samples, drops or does not batch rows, so scores would lose their rows: "
                "pass the dataset itself, or a DataLoader without shuffle, sampler, drop_last and batch_size=None"
            )
        return data
    if isinstance(data, tuple) and all(isinstance(each, Tensor) for each in data):
        raise Misuse("a tuple of tensors is no dataset of rows; give torch.utils.data.TensorDataset(x, y)")
    if isinstance(data, Dataset) or (hasattr(data, "__getitem__") and hasattr(data, "__len__")):
        return DataLoader(data, batch_size=batch_size)
    raise Misuse(f"expected a Dataset, a DataLoader or a Split, got {type(data).__name__}")


def split_item(item: Any) -> tuple[Any, Tensor]:
    """Inputs and labels of a collated batch: (x, y, ...), or a dictionary with "labels" or "label"."""
    if isinstance(item, Mapping):
        name = next((name for name in LABELS if name in item), None)
        if name is None:
            raise Misuse(f"a batch has no labels under 'labels' or 'label'; it has: {', '.join(map(str, item))}")
        x, y = tensors_only({key: value for key, value in item.items() if key not in LABELS}), item[name]
    elif isinstance(item, tuple | list) and len(item) >= 2:
        x, y = item[0], item[1]
        x = tensors_only(x) if isinstance(x, Mapping) else x
    else:
        raise Misuse(f"a batch must be a pair (x, y) or a dictionary with labels, got {type(item).__name__}")
    return x, class_numbers(y)


def tensors_only(x: Mapping[str, Any]) -> dict[str, Any]:
    """The entries that a network can take; texts and lists beside them are left out."""
    kept = {name: value for name, value in x.items() if isinstance(value, Tensor)}
    if not kept:
        raise Misuse(
            f"no tensor among the entries {', '.join(map(str, x)) or '(none)'} of a batch: give tensors of one length "
            "(for a dataset of Hugging Face: with_format('torch')), or a DataLoader with a collate_fn"
        )
    return kept


def class_numbers(y: Any) -> Tensor:
    """(b,) labels as whole numbers."""
    try:
        labels = torch.as_tensor(y)
    except (TypeError, ValueError, RuntimeError):
        raise Misuse(f"labels must be class numbers from 0 on, got {y!r:.80}; number the classes") from None
    if labels.ndim != 1 or labels.is_floating_point() or labels.is_complex():
        raise Misuse(
            f"labels must be a vector of class numbers from 0 on, got {labels.dtype} of shape {tuple(labels.shape)}; "
            "items must be pairs (x, y), or dictionaries with 'labels' or 'label'"
        )
    return labels.long()
