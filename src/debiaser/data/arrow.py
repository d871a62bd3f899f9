"""Parquet files and Hugging Face datasets (the extra `data`): read in batches, as text; pictures stay there."""

import itertools
import re
import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from debiaser.data.pictures import Files
from debiaser.data.rows import SPLIT_OF
from debiaser.data.tables import SHORT, Table
from debiaser.errors import Problem

BATCH = 4096
GROUPS = 2  # row groups of pictures held in memory
PATIENCE = 10.0  # seconds until a hub that says nothing counts as out of reach
HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")

Get = Callable[[int], bytes | None]


def needed(module: str, what: str) -> Any:
    """A module of the extra, or the line that says how to install it."""
    try:
        return import_module(module)
    except ImportError as error:
        raise Problem(f"{what} needs {module.split('.')[0]}; install it with: pip install 'debiaser[data]'") from error


def read_parquet(path: Path) -> Table:
    """The table in a Parquet file; columns of pictures (bytes, or bytes and a path) are left in the file."""
    parquet, arrow = needed("pyarrow.parquet", "reading Parquet"), needed("pyarrow", "reading Parquet")
    try:
        file = parquet.ParquetFile(path)
        kinds = {field.name: field.type for field in file.schema_arrow}
        pictures = [name for name, kind in kinds.items() if _holds_pictures(arrow, kind)]
        plain = [name for name, kind in kinds.items() if name not in pictures and not arrow.types.is_nested(kind)]
        columns = _columns(plain, file.iter_batches(BATCH, columns=plain))
        n = file.metadata.num_rows
    except (OSError, ValueError, NotImplementedError) as error:  # pyarrow's own errors are ValueErrors
        raise Problem(f"cannot read {path}: {_line(error)}; is it a whole Parquet file?") from error
    if not n:
        raise Problem(f"{path} has no rows; nothing to examine")
    embedded = {name: _row_groups(path, name, file.metadata) for name in pictures}
    nested = [name for name in kinds if name not in plain and name not in pictures]
    notes = [f"columns of lists or structures were passed over: {', '.join(nested)}"] if nested else []
    return Table(path, columns, list(range(1, n + 1)), embedded=embedded, notes=notes)


def _holds_pictures(arrow: Any, kind: Any) -> bool:
    binary = arrow.types.is_binary, arrow.types.is_large_binary
    if arrow.types.is_struct(kind):
        return any(field.name == "bytes" and any(test(field.type) for test in binary) for field in kind)
    return any(test(kind) for test in binary)


def _columns(names: list[str], batches: Iterable[Any]) -> dict[str, list[str]]:
    """Every column as text, missing values as ''."""
    columns: dict[str, list[str]] = {name: [] for name in names}
    once: dict[str, str] = {}
    for batch in batches:
        for name in names:
            values = ("" if value is None else str(value) for value in batch.column(name).to_pylist())
            columns[name] += [once.setdefault(text, text) if len(text) <= SHORT else text for text in values]
    return columns


def _row_groups(path: Path, column: str, metadata: Any) -> Get:
    """The bytes of a row's picture; the last row groups that were used are held, so that reading in order is quick."""
    parquet = needed("pyarrow.parquet", "reading Parquet")
    sizes = [metadata.row_group(place).num_rows for place in range(metadata.num_row_groups)]
    starts = list(itertools.accumulate(sizes, initial=0))
    held: OrderedDict[int, Any] = OrderedDict()
    lock = threading.Lock()

    def get(row: int) -> bytes | None:
        place = bisect_right(starts, row) - 1
        with lock:
            if place not in held:
                held[place] = parquet.ParquetFile(path).read_row_group(place, columns=[column]).column(column)
                while len(held) > GROUPS:
                    held.popitem(last=False)
            held.move_to_end(place)
            value = held[place][row - starts[place]].as_py()
        return _bytes(value, path.parent)

    return get


def _bytes(value: Any, folder: Path) -> bytes | None:
    """The bytes of a cell: bytes, or a structure of bytes and a path."""
    if isinstance(value, dict):
        inside, path = value.get("bytes"), value.get("path")
        return inside if inside is not None or not path else Files([str(folder / path)]).read(0)
    return value if isinstance(value, bytes) else None


def is_saved_dataset(folder: Path) -> bool:
    """Whether a folder was written by `save_to_disk` of Hugging Face datasets."""
    return (folder / "dataset_dict.json").is_file() or (
        (folder / "state.json").is_file() and (folder / "dataset_info.json").is_file()
    )


def read_saved(folder: Path) -> Table:
    """The table in a dataset that was saved to disk."""
    datasets = needed("datasets", "a Hugging Face dataset")
    try:
        return _as_table(datasets, datasets.load_from_disk(str(folder)), folder)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Problem(
            f"cannot read the dataset in {folder}: {_line(error)}; save it again with save_to_disk"
        ) from error


def read_hub(name: str) -> Table:
    """The table behind a name on the Hugging Face hub."""
    unknown = f"'{name}' is no file or folder here"
    if not HUB_NAME.fullmatch(name):
        raise Problem(f"{unknown}, and cannot be a name on the Hugging Face hub; check the path")
    try:
        datasets = needed("datasets", "a dataset of the Hugging Face hub")
    except Problem as problem:
        raise Problem(f"{unknown}; {problem}") from problem
    datasets.disable_progress_bars()
    try:
        with _asked_once(datasets, name):
            return _as_table(datasets, datasets.load_dataset(name), None)
    except Problem:
        raise
    except Exception as error:  # the hub's client raises a dozen kinds, of several libraries
        raise Problem(
            f"{unknown}, and the Hugging Face hub did not give it ({_line(error)}); check the name, or the network"
        ) from error


@contextmanager
def _asked_once(datasets: Any, name: str) -> Iterator[None]:
    """Where the hub cannot be reached, only what was fetched before is looked for meanwhile: the client would try again
    for half a minute, and say so line by line, when a path is mistyped."""
    hub = import_module("huggingface_hub")
    settings = (hub.constants, datasets.config)
    before = [each.HF_HUB_OFFLINE for each in settings]
    try:
        hub.HfApi().dataset_info(name, timeout=PATIENCE)
        offline = False
    except Exception as error:  # an answer that refuses is an answer: `load_dataset` has the words for it
        offline = not isinstance(error, hub.errors.HfHubHTTPError)
    try:
        for each, was in zip(settings, before, strict=True):
            each.HF_HUB_OFFLINE = was or offline
        yield
    finally:
        for each, was in zip(settings, before, strict=True):
            each.HF_HUB_OFFLINE = was


def _as_table(datasets: Any, found: Any, folder: Path | None) -> Table:
    parts = dict(found) if isinstance(found, dict) else {"": found}
    notes = [f"part '{name}' was passed over" for name in parts if name and _split(name) is None]
    parts = {name: part for name, part in parts.items() if not name or _split(name) is not None}
    whole = datasets.concatenate_datasets(list(parts.values())) if len(parts) > 1 else next(iter(parts.values()), None)
    if whole is None or not len(whole):
        raise Problem("the dataset has no rows in train, valid or test; nothing to examine")
    arrow = needed("pyarrow", "a Hugging Face dataset")
    pictures = [name for name, feature in whole.features.items() if isinstance(feature, datasets.Image)]
    kinds = {field.name: field.type for field in whole.features.arrow_schema}
    plain = [name for name in whole.column_names if name not in pictures and not arrow.types.is_nested(kinds[name])]
    columns = _columns(plain, whole.select_columns(plain).with_format("arrow").iter(BATCH)) if plain else {}
    for name in plain:
        if isinstance(whole.features[name], datasets.ClassLabel):
            words = dict(enumerate(whole.features[name].names))
            columns[name] = [words.get(int(value), value) if value else "" for value in columns[name]]
    raw = {name: whole.select_columns([name]).cast_column(name, datasets.Image(decode=False)) for name in pictures}
    embedded = {name: _rows_of(raw[name], name, folder or Path()) for name in pictures}
    splits = [_split(name) or "" for name, part in parts.items() for _ in range(len(part))] if "" not in parts else None
    return Table(folder, columns, list(range(1, len(whole) + 1)), splits, embedded, notes=notes)


def _rows_of(part: Any, name: str, folder: Path) -> Get:
    return lambda row: _bytes(part[row][name], folder)


def _split(name: str) -> str | None:
    return None if name.isdigit() else SPLIT_OF.get(name.lower())


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
