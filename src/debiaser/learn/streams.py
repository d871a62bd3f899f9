"""Scoring what does not fit into memory: a stream in, Parquet files of scores out, part by part, resumable.

A folder of scores holds `part-00000.parquet` and so on (columns row, label, score) and `stream.json`, which says what
they were made by and, once the stream has ended, how many rows there are.
"""

import hashlib
import importlib
import inspect
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

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


def score_stream(
    model: nn.Module,
    stream: Iterable[Any],
    path: Path | str,
    *,
    batch_size: int = 256,
    part_rows: int = 2**18,
    **options: Any,
) -> int:
    """How many rows the stream had; their gradient norms are in the folder `path`, for `read_scores`.

    The stream gives (x, y) or dictionaries, or, if it is a DataLoader, batches of them; `options` are those of
    `gradient_norms`. One part of the scores is held at a time. Run again after it was cut short, it goes on after the
    last part that was finished: the stream must then give the same rows in the same order.
    """
    folder, size = Path(path), getattr(stream, "batch_size", None) or batch_size
    if part_rows < 1 or size < 1:
        raise Misuse(f"part_rows and batch_size must be at least 1, got {part_rows} and {size}")
    part_rows = -(-part_rows // size) * size  # whole batches: a resumed pass then sees the very same ones
    with io.locked(folder / ".lock", patience=0), random_state_kept(device_of(model)):
        notes = begin(folder, made_by(model, options) | {"part_rows": part_rows, "batch_size": size})
        if "rows" in notes and rows_in(folder) == notes["rows"]:
            return int(notes["rows"])
        done = finished(folder, part_rows)
        labels: list[Tensor] = []
        scores = norms_of(model, noted(batches_of(stream, size, done), labels), **options)
        rows = write_parts(folder, done, part_rows, scores, labels, options.get("p", 2))
        if not rows:
            raise Misuse("the stream has no rows; give it at least one")
        io.write_json(folder / "stream.json", notes | {"rows": rows})
    return rows


def made_by(model: nn.Module, options: dict[str, Any]) -> dict[str, Any]:
    """What decides the scores, in plain words: the network's weights and the kind of norm."""
    digest = hashlib.blake2b(digest_size=10)
    add_state(digest, bare(model).state_dict())
    usual = {name: each.default for name, each in inspect.signature(norms_of).parameters.items()}
    unusual = {name: value for name, value in options.items() if name != "chunk" and value != usual.get(name)}
    return {"model": digest.hexdigest(), "options": {name: in_words(model, unusual[name]) for name in unusual}}


def in_words(model: nn.Module, option: Any) -> str:
    """An option in words that are the same in another process: a layer by its name, a function by what it chooses."""
    if isinstance(option, nn.Module):
        return repr(next((name for name, module in bare(model).named_modules() if module is option), "foreign"))
    return repr(list(choose(bare(model), option)) if callable(option) else option)


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
    if not place.is_file():
        return {}
    try:
        notes: dict[str, Any] = dict(json.loads(place.read_text()))
    except ValueError as error:
        raise Problem(f"{place} is damaged ({error}); delete {folder}, then run score_stream again") from error
    return notes


@dataclass(frozen=True)
class Done:
    """How many parts and rows are finished, and the label of the last of these rows (-1 where there is none)."""

    parts: int = 0
    rows: int = 0
    label: int = -1


def part_path(folder: Path, number: int) -> Path:
    """Where a part of the scores is."""
    return folder / f"part-{number:05d}.parquet"


def rows_in(folder: Path) -> int:
    """How many rows the parts hold up to the first that is missing or cannot be read."""
    rows = number = 0
    with suppress(OSError, ValueError):
        while True:
            rows += arrow("pyarrow.parquet").read_metadata(part_path(folder, number)).num_rows
            number += 1
    return rows


def finished(folder: Path, part_rows: int) -> Done:
    """What an earlier pass has finished; the last part of a stream, if it is short, is made again."""
    done = Done()
    while part_path(folder, done.parts).exists():
        table = read_part(part_path(folder, done.parts), ["label"])
        if table.num_rows != part_rows:
            break
        done = Done(done.parts + 1, done.rows + part_rows, table.column("label")[-1].as_py())
    return done


def batches_of(stream: Any, size: int, done: Done) -> Iterator[Batch]:
    """The batches of the stream after the rows that are done, numbered from there on."""
    if isinstance(stream, DataLoader) and not isinstance(stream.dataset, IterableDataset):
        as_loader(stream, size)  # refuses one that shuffles
    before = 0 if isinstance(stream, DataLoader) else done.rows
    for item in stream if isinstance(stream, DataLoader) else collated(rest(stream, done), size):
        x, y = split_item(item)
        batch = Batch(x, y, torch.arange(before, before + len(y)))
        before += len(y)
        if before > done.rows:
            skipped = max(0, done.rows - int(batch.rows[0]))
            yield part_of(batch, slice(skipped, None)) if skipped else batch
        elif before == done.rows and int(y[-1]) != done.label:
            raise other_rows(done)
    if before < done.rows:
        raise fewer_rows(done)


def rest(stream: Any, done: Done) -> Iterator[Any]:
    """The items after those that are done, of which the last is looked at; before it, one that can `skip` does."""
    before = max(0, done.rows - 1)
    items: Iterator[Any]
    if before and hasattr(stream, "skip"):
        items = iter(stream.skip(before))
    elif hasattr(stream, "__getitem__") and hasattr(stream, "__len__"):
        items = (stream[row] for row in range(before, len(stream)))
    else:
        items = islice(iter(stream), before, None)
    if done.rows:
        last = next(items, None)
        if last is None:
            raise fewer_rows(done)
        if int(split_item(default_collate([last]))[1][0]) != done.label:
            raise other_rows(done)
    return items


def fewer_rows(done: Done) -> Problem:
    """What to say of a stream that became shorter."""
    return Problem(
        f"the stream ends before row {done.rows}, but so many were scored in the pass that was cut short; give the "
        "same rows, or choose another folder"
    )


def other_rows(done: Done) -> Problem:
    """What to say of a stream that is not what it was."""
    return Problem(
        f"row {done.rows - 1} of the stream has another label than in the pass that was cut short: its order changed; "
        "give the rows in the same order, or choose another folder"
    )


def collated(items: Iterator[Any], size: int) -> Iterator[Any]:
    """The items in batches."""
    while batch := list(islice(items, size)):
        try:
            together = default_collate(batch)
        except (RuntimeError, TypeError, KeyError) as error:
            raise Problem(
                f"the rows of the stream do not make a batch ({error}): give tensors of one "
                "size (Shards and ParquetRows take read=), or a DataLoader with a collate_fn"
            ) from error
        yield together


def noted(batches: Iterable[Batch], labels: list[Tensor]) -> Iterator[Batch]:
    """The batches; their labels are noted as they pass."""
    for batch in batches:
        labels.append(batch.y.cpu())
        yield batch


def write_parts(
    folder: Path, done: Done, part_rows: int, scores: Iterable[Tensor], labels: list[Tensor], p: float
) -> int:
    """How many rows there are in all; every part is written as soon as it is full."""
    number, first, held = done.parts, done.rows, list[Tensor]()
    for score in scores:
        held.append(score.float())
        if sum(map(len, held)) >= part_rows:
            first = write_part(part_path(folder, number), first, held, labels, p)
            number += 1
    return write_part(part_path(folder, number), first, held, labels, p) if held else first


def write_part(path: Path, first: int, held: list[Tensor], labels: list[Tensor], p: float) -> int:
    """Write the rows that are held, forget them, and say which row is next."""
    score, label = checked(torch.cat(held), p, first), torch.cat(labels)
    rows = torch.arange(first, first + len(score))
    table = arrow("pyarrow").table({"row": rows.numpy(), "label": label.numpy(), "score": score.numpy()})
    with io.replacing(path) as temporary:
        arrow("pyarrow.parquet").write_table(table, temporary)
    held.clear()
    labels.clear()
    return first + len(score)


def read_scores(*paths: Path | str) -> Tensor:
    """(n,) the scores in these folders, one after the other, in the order of their streams, as 32-bit floats."""
    counts = []
    for path in map(Path, paths):
        notes = notes_in(path)
        if "rows" not in notes:
            raise Problem(f"{path} holds no finished scores; run score_stream to its end (it goes on where it was)")
        counts.append(int(notes["rows"]))
    scores, first = torch.empty(sum(counts)), 0
    for path, count in zip(map(Path, paths), counts, strict=True):
        end, number = first + count, 0
        while first < end:
            part = torch.from_numpy(read_part(part_path(path, number), ["score"]).column("score").to_numpy().copy())
            scores[first : first + len(part)] = part
            first, number = first + len(part), number + 1
    return scores


def read_part(path: Path, columns: Sequence[str]) -> Any:
    """These columns of a part."""
    try:
        return arrow("pyarrow.parquet").read_table(path, columns=list(columns))
    except (OSError, ValueError) as error:
        raise Problem(f"cannot read {path}: {error}; delete it, then run score_stream again") from error


def arrow(name: str) -> Any:
    """A module of pyarrow, which is optional."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise Problem("Parquet files need pyarrow: pip install 'debiaser[data]'") from error
