"""Scoring what does not fit into memory: a stream in, Parquet files of scores out, part by part, resumable.

A folder of scores holds `part-00000.parquet` and so on (columns row, label, score) and `stream.json`, which says what
they were made by and, once the stream has ended, how many rows there are.
"""

import hashlib
import inspect
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
from debiaser.learn.gradient_norms import checked, norms_of
from debiaser.learn.layerwise import choose

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
        finished = finished_parts(folder)
        if notes.get("rows") == sum(rows for rows, _ in finished):
            return int(notes["rows"])
        while finished and finished[-1][0] < part_rows:  # the last part of a stream is made again
            finished.pop()
        first, number, held = sum(rows for rows, _ in finished), len(finished), list[pd.DataFrame]()
        batches, labelled = tee(batches_of(stream, size, first, finished[-1][1] if finished else None))
        for scores, batch in zip(norms_of(model, batches, **options), labelled, strict=True):
            held.append(
                pd.DataFrame(
                    {"row": batch.rows.numpy(), "label": batch.y.cpu().numpy(), "score": scores.float().numpy()}
                )
            )
            if sum(map(len, held)) >= part_rows:
                first = write_part(folder, number, held, options.get("p", 2))
                held, number = [], number + 1
        rows = write_part(folder, number, held, options.get("p", 2)) if held else first
        if not rows:
            raise Misuse("the stream has no rows; give it at least one")
        io.write_json(folder / "stream.json", notes | {"rows": rows})
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
    ends = [0]
    for path in map(Path, paths):
        notes = notes_in(path)
        if "rows" not in notes:
            raise Problem(f"{path} holds no finished scores; run score_stream to its end (it goes on where it was)")
        ends.append(ends[-1] + int(notes["rows"]))
    scores, first = torch.empty(ends[-1]), 0
    for path, end in zip(map(Path, paths), ends[1:], strict=True):
        for number in count():
            if first >= end:
                break
            part = torch.tensor(read_part(path, number, "score"))
            scores[first : first + len(part)] = part
            first += len(part)
    return scores


def made_by(model: nn.Module, options: dict[str, Any]) -> dict[str, Any]:
    """What decides the scores, in words that are the same in another process: weights, and options that are unusual."""
    digest = hashlib.blake2b(digest_size=10)
    add_state(digest, bare(model).state_dict())
    words, usual = {}, inspect.signature(norms_of).parameters
    for name, option in options.items():
        if isinstance(option, nn.Module):  # a layer by its name
            option = next((name for name, module in bare(model).named_modules() if module is option), "foreign")
        elif callable(option):  # a function by what it chooses
            option = list(choose(bare(model), option))
        if name != "chunk" and (name not in usual or option != usual[name].default):
            words[name] = repr(option)
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


def batches_of(stream: Any, size: int, done: int, last_label: int | None) -> Iterator[Batch]:
    """The batches after the samples that are done, if the last of those has the label that it had."""
    if isinstance(stream, DataLoader) and not isinstance(stream.dataset, IterableDataset):
        as_loader(stream, size)  # refuses one that shuffles
    first = 0
    for item in stream if isinstance(stream, DataLoader) else collated(iter(stream), size):
        x, y = split_item(item)
        batch, before = Batch(x, y, torch.arange(first, first + len(y))), done - first
        if 0 < before <= len(y) and int(y[before - 1]) != last_label:
            raise Problem(
                f"row {done - 1} of the stream has another label than in the pass that was cut short: its order "
                "changed; give the rows in the same order, or choose another folder"
            )
        first += len(y)
        if before < len(y):
            yield part_of(batch, slice(before, None)) if before > 0 else batch
    if first < done:
        raise Problem(
            f"the stream ends before row {done}, but so many were scored in the pass that was cut short; give the "
            "same rows, or choose another folder"
        )


def collated(items: Iterator[Any], size: int) -> Iterator[Any]:
    """The items in batches."""
    while batch := list(islice(items, size)):
        try:
            together = default_collate(batch)
        except (RuntimeError, TypeError, KeyError) as error:
            raise Problem(
                f"the rows of the stream do not make a batch ({error}): give tensors of one size, or a DataLoader "
                "with a collate_fn"
            ) from error
        yield together


def part_path(folder: Path, number: int) -> Path:
    """Where a part of the scores is."""
    return folder / f"part-{number:05d}.parquet"


def finished_parts(folder: Path) -> list[tuple[int, int]]:
    """How many samples each part holds, and the last one's label; up to the first part that is missing."""
    parts: list[tuple[int, int]] = []
    while part_path(folder, len(parts)).exists():
        labels = read_part(folder, len(parts), "label")
        parts.append((len(labels), int(labels[-1])))
    return parts


def write_part(folder: Path, number: int, held: list[pd.DataFrame], p: float) -> int:
    """Write these scores if all of them are numbers; the number of the next sample."""
    part = pd.concat(held, ignore_index=True)
    first = int(part["row"].iloc[0])
    checked(torch.tensor(part["score"].to_numpy()), p, first)
    with io.replacing(part_path(folder, number)) as temporary:
        part.to_parquet(temporary, index=False)
    return first + len(part)


def read_part(folder: Path, number: int, column: str) -> Any:
    """(m,) one column of a part."""
    path = part_path(folder, number)
    try:
        return pd.read_parquet(path, columns=[column])[column].to_numpy()
    except ImportError as error:
        raise Problem(NO_ARROW) from error
    except (OSError, ValueError) as error:
        raise Problem(f"cannot read {path}: {error}; delete it, then run score_stream again") from error
