"""Scoring what does not fit into memory: a stream in, Parquet files of scores out, part by part, resumable.

A folder of scores holds `part-00000.parquet` and so on (columns row, label, score) and `stream.json`, which says what
they were made by and, once the stream has ended, how many samples there are.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from itertools import count, islice, tee
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, default_collate

from debiaser import io
from debiaser.data.split import Batch
from debiaser.errors import Misuse, Problem
from debiaser.learn.checkpoint import add_state
from debiaser.learn.forward import as_loader, bare, device_of, part_of, random_state_kept, split_item
from debiaser.learn.gradient_norms import checked, choose, norms_of

NO_ARROW = "Parquet files need pyarrow: pip install 'debiaser[data]'"


def score_stream(
    model: nn.Module,
    stream: Iterable[Any],
    path: Path | str,
    *,
    batch_size: int = 256,
    part_rows: int = 2**18,
    **options: Any,
) -> int:
    """Write the gradient norms of a stream that need not fit into memory to a folder, for `read_scores`.

    One part of the scores is held at a time. Run again after it was cut short, it goes on after the last part that was
    finished: the stream must then give the same samples in the same order.

    Args:
        model: a classifier.
        stream: any iterable of (x, y) or dictionaries, or a DataLoader, which gives batches of them.
        path: the folder, which gets Parquet files.
        batch_size: samples of a forward pass; that of a DataLoader counts instead.
        part_rows: samples of a file.
        **options: p, power, bias, parameters, head and chunk of `gradient_norms`.

    Returns:
        How many samples the stream had.

    Raises:
        Misuse: the stream is empty, or a number cannot be meant.
        Problem: the folder holds scores of another model or norm, or the stream is another.

    Example:
        >>> import tempfile
        >>> import torch
        >>> from debiaser import ScoreSampler, read_scores, score_stream
        >>> stream = ((torch.randn(3), torch.tensor(i % 2)) for i in range(100))
        >>> folder = tempfile.mkdtemp()
        >>> score_stream(torch.nn.Linear(3, 2), stream, folder)
        100
        >>> sampler = ScoreSampler(read_scores(folder))
    """
    folder, size = Path(path), getattr(stream, "batch_size", None) or batch_size
    if part_rows < 1 or size < 1:
        raise Misuse(f"part_rows and batch_size must be at least 1, got {part_rows} and {size}")
    if find_spec("pyarrow") is None:
        raise Problem(NO_ARROW)
    part_rows = -(-part_rows // size) * size  # whole batches: a resumed pass then sees the very same ones
    with io.locked(folder / ".lock", patience=0), random_state_kept(device_of(model)):
        notes = begin(folder, made_by(model, options) | {"part_rows": part_rows, "batch_size": size})
        number = next(number for number in count() if not part_path(folder, number).exists())
        if number * part_rows >= notes.get("rows", float("inf")):
            return int(notes["rows"])
        first, rows, held = number * part_rows, number * part_rows, list[pd.DataFrame]()
        batches, labelled = tee(batches_of(stream, size, first))
        for scores, batch in zip(norms_of(model, batches, **options), labelled, strict=True):
            checked(scores, options.get("p", 2), rows)
            columns = {"row": batch.rows, "label": batch.y.cpu(), "score": scores.float()}
            held.append(pd.DataFrame({name: column.numpy() for name, column in columns.items()}))
            rows += len(batch)
            if rows - first >= part_rows:
                held = [write_part(folder, number, held, part_rows)]
                first, number = first + part_rows, number + 1
        if not rows:
            raise Misuse("the stream has no samples; give it at least one")
        io.write_json(folder / "stream.json", notes | {"rows": rows})  # first: a part that is shorter is the last one
        if rows > first:
            write_part(folder, number, held, part_rows)
    return rows


def read_scores(*paths: Path | str) -> Tensor:
    """Read the scores that `score_stream` wrote.

    Args:
        *paths: its folders.

    Returns:
        A tensor (n,) of 32-bit floats: the scores of one folder after the other, each in the order of its stream.

    Raises:
        Problem: a folder holds no scores, or they are not finished.

    Example:
        >>> import tempfile
        >>> import torch
        >>> from debiaser import read_scores, score_stream
        >>> folder = tempfile.mkdtemp()
        >>> _ = score_stream(torch.nn.Linear(3, 2), [(torch.randn(3), 1)] * 5, folder)
        >>> read_scores(folder).shape
        torch.Size([5])
    """
    scores: list[Tensor] = []
    for folder in map(Path, paths):
        notes = notes_in(folder)
        if "rows" not in notes:
            raise Problem(f"{folder} holds no finished scores; run score_stream to its end (it goes on where it was)")
        for number in range(-(-notes["rows"] // notes["part_rows"])):
            part = part_path(folder, number)
            try:
                scores.append(torch.tensor(pd.read_parquet(part, columns=["score"])["score"].to_numpy()))
            except ImportError as error:
                raise Problem(NO_ARROW) from error
            except (OSError, ValueError) as error:
                raise Problem(f"cannot read {part}: {error}; delete it, then run score_stream again") from error
    return torch.cat(scores)


def made_by(model: nn.Module, options: dict[str, Any]) -> dict[str, Any]:
    """What decides the scores, in words that are the same in another process: the weights, and the options given."""
    digest = hashlib.blake2b(digest_size=10)
    add_state(digest, bare(model).state_dict())
    words = {name: repr(each) for name, each in options.items() if name != "chunk"}
    if callable(options.get("parameters")):  # a function by what it chooses
        words["parameters"] = repr(list(choose(bare(model), options["parameters"])))
    return {"model": digest.hexdigest(), "options": words}


def begin(folder: Path, notes: dict[str, Any]) -> dict[str, Any]:
    """The notes of the folder; new ones are written, and those of another model or norm are refused."""
    if not part_path(folder, 0).exists():  # nothing is lost where nothing was finished
        io.write_json(folder / "stream.json", notes)
        return notes
    kept = notes_in(folder)
    if {**kept, "rows": 0} != {**notes, "rows": 0}:
        differing = ", ".join(sorted(name for name in notes if kept.get(name) != notes[name]))
        raise Problem(f"{folder} holds scores of another {differing}; choose another folder, or delete it")
    return kept


def notes_in(folder: Path) -> dict[str, Any]:
    """What the folder says of its scores; nothing where it says nothing."""
    place = folder / "stream.json"
    return dict(json.loads(place.read_text())) if place.is_file() else {}


def batches_of(stream: Any, size: int, done: int) -> Iterator[Batch]:
    """The batches after the samples that are done."""
    if isinstance(stream, DataLoader) and not isinstance(stream.dataset, IterableDataset):
        as_loader(stream, size)  # refuses one that shuffles
    if not isinstance(stream, DataLoader):
        items = iter(stream)
        stream = map(default_collate, iter(lambda: list(islice(items, size)), []))
    first = 0
    for item in stream:
        x, y = split_item(item)
        before = max(0, done - first)
        if before < len(y):
            yield part_of(Batch(x, y, torch.arange(first, first + len(y))), slice(before, None))
        first += len(y)
    if first < done:
        raise Problem(
            f"the stream ends before sample {done}, but so many were scored in the pass that was cut short; give the "
            "same samples, or choose another folder"
        )


def part_path(folder: Path, number: int) -> Path:
    """Where a part of the scores is."""
    return folder / f"part-{number:05d}.parquet"


def write_part(folder: Path, number: int, held: list[pd.DataFrame], rows: int) -> pd.DataFrame:
    """Write so many of these scores; the others."""
    table = pd.concat(held, ignore_index=True)
    with io.replacing(part_path(folder, number)) as temporary:
        table[:rows].to_parquet(temporary, index=False)
    return table[rows:]
