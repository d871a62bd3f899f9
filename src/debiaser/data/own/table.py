"""Tables as text (CSV, Parquet, Hugging Face datasets, DataFrames), and which of their columns is what."""

import codecs
import csv
import io
import itertools
import os
import re
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from debiaser.data.images import Embedded, Files
from debiaser.data.own.folder import is_image
from debiaser.data.own.rows import MISSING, SPLIT_OF, Excluded, Rows, distinct, told, too_many
from debiaser.errors import Misuse, Problem

DELIMITERS = ",;\t|"
SAMPLE = 1 << 18  # characters that the delimiter is judged by
SHORT = 64  # characters: texts up to this length are kept once, however often they occur
MANY_LINES = 20  # a cell of more lines in a row of the wrong length: a quote was never closed
BATCH = 4096
GROUPS = 2  # row groups of images held in memory
PATIENCE = 10.0  # seconds until a hub that says nothing counts as out of reach
HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")


@dataclass(frozen=True, eq=False)
class Table:
    """Columns of text by name, '' where a value is missing; `numbers` are the samples' places in the source, from 1.

    `embedded` gives the bytes of images that lie in the table itself, by column, then by place in the table;
    `splits` is the part of the source (train, valid, ...) that a sample comes from, where it has parts.
    """

    path: Path | None
    columns: dict[str, list[str]]
    numbers: list[int]
    splits: list[str] | None = None
    embedded: dict[str, Callable[[int], bytes | None]] = field(default_factory=dict)
    excluded: list[Excluded] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.numbers)


def read_csv(path: Path) -> Table:
    """The table in a text file: its delimiter, encoding and quotes are found out; ragged rows are listed."""
    longest = csv.field_size_limit(sys.maxsize)  # Python refuses cells of more than 128 kB by default
    try:
        with path.open("rb") as stream:
            marked = stream.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
        for encoding in ("utf-16",) if marked else ("utf-8-sig", "cp1252"):
            with suppress(UnicodeDecodeError):
                return _parsed(path, encoding)
        return _parsed(path, "latin-1")
    except OSError as error:
        raise Problem(f"cannot read {path}: {error.strerror}; check its name and permissions") from error
    except (csv.Error, UnicodeError) as error:
        raise Problem(f"{path} is not a table that can be read: {error}; save it again as CSV in UTF-8") from error
    finally:
        csv.field_size_limit(longest)


def _parsed(path: Path, encoding: str) -> Table:
    with path.open(encoding=encoding, newline="") as stream:
        delimiter = _delimiter(stream.read(SAMPLE))
        stream.seek(0)
        records = csv.reader(stream, delimiter=delimiter)
        header = next((record for record in records if any(record)), None)
        if header is None:
            raise Problem(f"{path} is empty; expected a first line with the names of the columns")
        notes, names = [], list[str]()
        if encoding in ("cp1252", "latin-1"):
            notes.append(f"{path.name} is not UTF-8: read as {encoding}; look whether its accents are right")
        for place, name in enumerate(header, 1):
            name = name.strip() or f"column {place}"
            if name in names:
                notes.append(f"two columns are called '{name}': the later one is '{name}.{place}' here")
                name = f"{name}.{place}"
            names.append(name)
        table = Table(path, {name: [] for name in names}, [], notes=notes)
        once: dict[str, str] = {}
        for number, record in enumerate(filter(None, records), 1):
            if len(record) != len(names):
                lines = max(cell.count("\n") for cell in record)
                quote = f"; a quote that is never closed took {lines:,} lines with it" if lines > MANY_LINES else ""
                reason = f"has {len(record)} cells where the first line names {len(names)} columns{quote}"
                table.excluded.append(Excluded(f"row {number}", reason, "unreadable"))
                continue
            table.numbers.append(number)
            for column, cell in zip(table.columns.values(), record, strict=True):
                column.append(once.setdefault(cell, cell) if len(cell) <= SHORT else cell)
    if not table.numbers:
        raise Problem(f"{path} has no rows below its first line; nothing to examine")
    return table


def _delimiter(sample: str) -> str:
    """The delimiter that cuts the most rows of the sample into as many cells as the first, and into the most cells."""

    def judged(delimiter: str) -> tuple[float, int]:
        rows = [row for row in itertools.islice(csv.reader(io.StringIO(sample), delimiter=delimiter), 50) if row]
        width = len(rows[0]) if rows else 0
        whole = rows[:-1] if len(sample) == SAMPLE and len(rows) > 1 else rows  # the last may be cut off
        return (sum(len(row) == width for row in whole) / len(whole), width) if width > 1 else (0.0, 0)

    return max(DELIMITERS, key=judged)


def read_frame(frame: pd.DataFrame) -> Table:
    """A pandas DataFrame as a table of text; the index is not read."""
    if not len(frame):
        raise Problem("the DataFrame has no rows; nothing to examine")
    missing = frame.isna()
    columns = {
        str(name): ["" if absent else str(value) for value, absent in zip(frame[name], missing[name], strict=True)]
        for name in frame.columns
    }
    return Table(None, columns, list(range(1, len(frame) + 1)))


def needed(module: str, what: str) -> Any:
    """A module of the extra, or the line that says how to install it."""
    try:
        return import_module(module)
    except ImportError as error:
        raise Problem(f"{what} needs {module.split('.')[0]}; install it with: pip install 'debiaser[data]'") from error


def read_parquet(path: Path) -> Table:
    """The table in a Parquet file; columns of images (bytes, or bytes and a path) are left in the file."""
    parquet, types = needed("pyarrow.parquet", "reading Parquet"), needed("pyarrow.types", "reading Parquet")

    def is_binary(kind: Any) -> bool:
        return bool(types.is_binary(kind) or types.is_large_binary(kind))

    def holds_images(kind: Any) -> bool:
        return any(f.name == "bytes" and is_binary(f.type) for f in kind) if types.is_struct(kind) else is_binary(kind)

    try:
        file = parquet.ParquetFile(path)
        kinds = {field.name: field.type for field in file.schema_arrow}
        images = [name for name, kind in kinds.items() if holds_images(kind)]
        plain = [name for name, kind in kinds.items() if name not in images and not types.is_nested(kind)]
        columns = _as_text(plain, file.iter_batches(BATCH, columns=plain))
        n = file.metadata.num_rows
    except (OSError, ValueError, NotImplementedError) as error:  # pyarrow's own errors are ValueErrors
        raise Problem(f"cannot read {path}: {_line(error)}; is it a whole Parquet file?") from error
    if not n:
        raise Problem(f"{path} has no rows; nothing to examine")
    sizes = [file.metadata.row_group(place).num_rows for place in range(file.metadata.num_row_groups)]
    starts = list(itertools.accumulate(sizes, initial=0))

    @lru_cache(GROUPS)
    def group(place: int, column: str) -> Any:
        return parquet.ParquetFile(path).read_row_group(place, columns=[column]).column(column)

    def reader(column: str) -> Callable[[int], bytes | None]:
        def read(row: int) -> bytes | None:
            place = bisect_right(starts, row) - 1
            return _bytes(group(place, column)[row - starts[place]].as_py(), path.parent)

        return read

    nested = [name for name in kinds if name not in plain and name not in images]
    notes = [f"columns of lists or structures were passed over: {', '.join(nested)}"] if nested else []
    embedded = {name: reader(name) for name in images}
    return Table(path, columns, list(range(1, n + 1)), embedded=embedded, notes=notes)


def _as_text(names: list[str], batches: Iterable[Any]) -> dict[str, list[str]]:
    """Every column of Arrow batches as text, missing values as ''."""
    columns: dict[str, list[str]] = {name: [] for name in names}
    once: dict[str, str] = {}
    for batch in batches:
        for name in names:
            values = ("" if value is None else str(value) for value in batch.column(name).to_pylist())
            columns[name] += [once.setdefault(text, text) if len(text) <= SHORT else text for text in values]
    return columns


def _bytes(value: Any, folder: Path) -> bytes | None:
    """The bytes of a cell: bytes, or a structure of bytes and a path."""
    if isinstance(value, dict):
        inside, path = value.get("bytes"), value.get("path")
        return inside if inside is not None or not path else Files([str(folder / path)]).read(0)
    return value if isinstance(value, bytes) else None


def is_saved_dataset(folder: Path) -> bool:
    """Whether a folder was written by `save_to_disk` of Hugging Face datasets."""
    inside = {"dataset_dict.json", "state.json", "dataset_info.json"} & {path.name for path in folder.iterdir()}
    return "dataset_dict.json" in inside or len(inside) == 2


def read_saved(folder: Path) -> Table:
    """The table in a dataset that was saved to disk."""
    datasets = needed("datasets", "a Hugging Face dataset")
    try:
        return _of_dataset(datasets, datasets.load_from_disk(str(folder)), folder)
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
    hub = import_module("huggingface_hub")
    try:
        hub.HfApi().dataset_info(name, timeout=PATIENCE)
    except hub.errors.HfHubHTTPError:
        pass  # an answer that refuses is an answer: `load_dataset` has the words for it
    except Exception:  # out of reach: what was fetched before is looked for, without half a minute of further tries
        hub.constants.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = True
    try:
        return _of_dataset(datasets, datasets.load_dataset(name), None)
    except Problem:
        raise
    except Exception as error:  # the hub's client raises a dozen kinds, of several libraries
        raise Problem(
            f"{unknown}, and the Hugging Face hub did not give it ({_line(error)}); check the name, or the network"
        ) from error


def _of_dataset(datasets: Any, found: Any, folder: Path | None) -> Table:
    parts = dict(found) if isinstance(found, dict) else {"": found}
    split_of = {name: "" if name.isdigit() else SPLIT_OF.get(name.lower(), "") for name in parts}
    notes = [f"part '{name}' was passed over" for name in parts if name and not split_of[name]]
    parts = {name: part for name, part in parts.items() if not name or split_of[name]}
    whole = datasets.concatenate_datasets(list(parts.values())) if len(parts) > 1 else next(iter(parts.values()), None)
    if whole is None or not len(whole):
        raise Problem("the dataset has no rows in train, valid or test; nothing to examine")
    types = needed("pyarrow.types", "a Hugging Face dataset")
    kinds = {field.name: field.type for field in whole.features.arrow_schema}
    images = [name for name, feature in whole.features.items() if isinstance(feature, datasets.Image)]
    plain = [name for name in whole.column_names if name not in images and not types.is_nested(kinds[name])]
    columns = _as_text(plain, whole.select_columns(plain).with_format("arrow").iter(BATCH)) if plain else {}
    for name in plain:
        if isinstance(whole.features[name], datasets.ClassLabel):
            words = dict(enumerate(whole.features[name].names))
            columns[name] = [words.get(int(value), value) if value else "" for value in columns[name]]
    raw = {name: whole.select_columns([name]).cast_column(name, datasets.Image(decode=False)) for name in images}

    def reader(name: str) -> Callable[[int], bytes | None]:
        return lambda row: _bytes(raw[name][row][name], folder or Path())

    splits = [split_of[name] for name, part in parts.items() for _ in range(len(part))] if "" not in parts else None
    embedded = {name: reader(name) for name in images}
    return Table(folder, columns, list(range(1, len(whole) + 1)), splits, embedded, notes=notes)


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


LABEL = (
    ("label", "labels"),
    ("target", "class", "y", "category", "class_name", "label_name", "sentiment", "diagnosis"),
)
IMAGE = (("image", "img", "image_path", "img_path", "picture", "path", "file", "filename", "file_name", "filepath"),)
TEXT = (("text",), ("sentence", "review", "comment", "comment_text", "content", "body", "document", "tweet", "message"))
SPLIT = ("split", "partition", "subset", "set")
UNIT = (
    "patient",
    "patient_id",
    "patientid",
    "subject",
    "subject_id",
    "video",
    "video_id",
    "store",
    "store_id",
    "user_id",
)
ID = ("id", "uid", "uuid", "guid", "key", "image_id", "sample_id", "row_id")
SAMPLED = 100  # values that are looked at to judge a column
LONG = 24  # characters: the mean length from which a column reads like text
CELL = 64  # characters kept of a cell that only a search for suspects will read


@dataclass(frozen=True)
class Columns:
    """The columns as the command's options name them; what is not named is found where that can be done."""

    label: str | None = None
    image: str | None = None
    text: str | None = None
    group: str | None = None
    split: str | None = None
    unit: str | None = None


def read_table(table: Table, source: str, columns: Columns) -> Rows:
    """The rows of a table in their roles; what was found by itself is said in a note."""
    known = [*table.columns, *table.embedded]
    _check(columns, known)
    notes = list(table.notes)
    image, text = _input(table, columns, notes)
    split = columns.split or _found_split(table, columns, notes)
    taken = {image, text, split, columns.group, columns.unit}
    label = columns.label or _label(table, taken, notes)
    if label not in table.columns:
        raise Misuse(f"'{label}' holds pictures, not labels; known columns: {_listed(known)}")
    unit = columns.unit and table.columns[columns.unit]
    if not columns.unit:
        likely = [name for name in table.columns if name.lower() in UNIT and name not in {label, image, text}]
        notes += [f"rows of one '{name}' may belong together: keep them so with --unit {name}" for name in likely[:1]]
    paths = [told(path) for path in table.columns[image]] if image in table.columns else None
    named, ids = _ids(table, paths)
    used = {label, image, text, split, columns.unit, columns.group, named}
    base = str(table.path.parent) if table.path else ""
    images: Files | Embedded | None = None
    if image in table.embedded:
        images = Embedded(table.embedded[image], np.arange(len(table), dtype=np.int64))
    elif image:
        images = Files([os.path.join(base, path) for path in table.columns[image]])  # noqa: PTH118 - may be anything
    rows = Rows(
        source=source,
        ids=ids,
        labels=table.columns[label],
        label_name=label,
        texts=table.columns[text] if text else None,
        images=images,
        paths=paths,
        split=_splits(table.columns[split], split) if split else table.splits,
        unit=unit or None,
        group=table.columns[columns.group] if columns.group else None,
        columns={name: values for name, values in table.columns.items() if name not in used},
        excluded=list(table.excluded),
        notes=notes,
        places=np.array(table.numbers) - 1,
        total=len(table) + len(table.excluded),
    )
    if rows.split is None:
        return rows
    if "train" not in rows.split:
        raise Problem("no row is in the split 'train'; there is nothing to learn from")
    return rows.without({row: ("has no split", "missing split") for row, split in enumerate(rows.split) if not split})


def shorts(values: Sequence[str]) -> np.ndarray:
    """(n,) texts, none longer than a cell that a search for suspects can use."""
    return np.array([told(value[:CELL]) for value in values], np.str_) if len(values) else np.zeros(0, "<U1")


def _check(columns: Columns, known: list[str]) -> None:
    asked = {each.name: getattr(columns, each.name) for each in fields(columns) if getattr(columns, each.name)}
    for option, name in asked.items():
        if name not in known:
            raise Problem(f"no column '{name}' (--{option}); known: {_listed(known)}")
    for one, other in itertools.combinations(asked, 2):
        if asked[one] == asked[other]:
            raise Misuse(f"'{asked[one]}' is named twice, as --{one} and as --{other}; each column has one role")
    if columns.image and columns.text:
        raise Misuse("--image and --text were both given; examine pictures or texts, one at a time")


def _input(table: Table, columns: Columns, notes: list[str]) -> tuple[str | None, str | None]:
    """The column of pictures or the column of texts."""
    if columns.image or columns.text:
        return columns.image, columns.text
    used = {columns.label, columns.group, columns.split, columns.unit}
    free = [name for name in table.columns if name not in used]
    images = _image_columns(table, free)
    image = _chosen(images, IMAGE, "image", notes)
    texts = [name for name in _text_columns(table, free) if name not in images]
    if image:
        notes += [f"there are texts too: examine those with --text {texts[0]}"] if texts else []
        return image, None
    text = _chosen(texts, TEXT, "text", notes)
    if text is None:
        raise Problem(
            f"no column of pictures or texts found; name one with --image or --text: {_listed(table.columns)}"
        )
    return None, text


def find_input(table: Table, kind: str, asked: str | None) -> list[str]:
    """The cells of the column with inputs of a kind: the one that is asked for, else the one an audit would take."""
    if asked and asked not in table.columns:
        raise Problem(f"no column '{asked}' (--{kind}); known: {_listed(table.columns)}")
    free = list(table.columns)
    found = _image_columns(table, free) if kind == "image" else _text_columns(table, free)
    name = asked or _chosen(found, IMAGE if kind == "image" else TEXT, kind, [])
    if name is None:
        raise Problem(f"no column of {kind}s found; name one with --{kind}: {_listed(table.columns)}")
    if name in table.embedded:
        raise Problem(f"the pictures in '{name}' lie inside the table; save them as files first")
    return table.columns[name]


def _image_columns(table: Table, names: list[str]) -> list[str]:
    return [*table.embedded, *(name for name in names if _names_images(table, name))]


def _text_columns(table: Table, names: list[str]) -> list[str]:
    """The columns that read like texts, else the first that is named so."""
    texts = [name for name in names if _reads_like_text(table.columns[name])]
    return texts or [name for name in names if name.lower() in itertools.chain(*TEXT)][:1]


def _label(table: Table, taken: set[str | None], notes: list[str]) -> str:
    free = [name for name in table.columns if name not in taken]
    by_name = [name for name in free if name.lower() in itertools.chain(*LABEL)]
    most = too_many(len(table))
    few = [name for name in free if 2 <= distinct(table.columns[name]) <= most and name.lower() not in (*ID, *UNIT)]
    found = _chosen(by_name or few, LABEL, "label", notes)
    if found is None:
        raise Problem(f"no column of labels found; name one with --label: {_listed(free)}")
    return found


def _found_split(table: Table, columns: Columns, notes: list[str]) -> str | None:
    used = {columns.label, columns.group, columns.unit, columns.image, columns.text}
    for name, values in table.columns.items():
        if name.lower() in SPLIT and name not in used and table.splits is None:
            words = {value.strip().lower() for value in values} - {"", *(word.lower() for word in MISSING)}
            if words and words <= set(SPLIT_OF) and not all(word.isdigit() for word in words):
                notes.append(f"the splits in '{name}' are used as they are")
                return name
    return None


def _chosen(candidates: list[str], tiers: Sequence[Sequence[str]], option: str, notes: list[str]) -> str | None:
    """The one candidate with the best name; where several are as good, the person is asked."""
    ranks = [next((rank for rank, tier in enumerate(tiers) if name.lower() in tier), len(tiers)) for name in candidates]
    best = [name for name, rank in zip(candidates, ranks, strict=True) if rank == min(ranks)]
    if len(best) > 1:
        raise Problem(f"several columns could be the {option}; name one with --{option}: {_listed(best)}")
    if best:
        notes.append(f"column '{best[0]}' was taken as the {option}; name another with --{option}")
    return best[0] if best else None


def _names_images(table: Table, name: str) -> bool:
    """Whether most values end like images; in a column that is named for it, whether they are files."""
    values = list(_some(table.columns[name]))
    base = table.path.parent if table.path else Path()
    named = name.lower() in IMAGE[0]
    found = 0
    for value in values:
        with suppress(OSError, ValueError):
            found += is_image(value) or (named and (base / value).is_file())
    return bool(values) and found > len(values) / 2


def _reads_like_text(values: Sequence[str]) -> bool:
    some = list(_some(values))
    mean = sum(map(len, some)) / max(len(some), 1)
    return mean >= LONG and sum(" " in value.strip() for value in some) > len(some) / 2


def _some(values: Sequence[str]) -> Iterator[str]:
    """Up to a hundred values that are not missing, from all over the column."""
    return (value for value in values[:: max(1, len(values) // SAMPLED)] if value.strip() not in MISSING)


def _ids(table: Table, paths: list[str] | None) -> tuple[str | None, list[str]]:
    """The name of each row, all different: a column of IDs, else the path, else the number of the row."""
    rows = [str(number) for number in table.numbers]
    for name in [name for name in table.columns if name.lower() in ID] if paths is None else []:
        values = [value.strip() for value in table.columns[name]]
        if len(set(values)) == len(values) and "" not in values:
            return name, values
    if paths is None:
        return None, rows
    seen: set[str] = set()
    ids = []
    for path, row in zip(paths, rows, strict=True):
        ids.append(f"{path} (row {row})" if path in seen else path)
        seen.add(path)
    return None, ids if len(set(ids)) == len(ids) else rows


def _splits(values: Sequence[str], name: str) -> list[str]:
    words = [value.strip().lower().removesuffix(".0") for value in values]
    missing = {word.lower() for word in MISSING}
    unknown = sorted(set(words) - set(SPLIT_OF) - missing)
    if unknown:
        raise Problem(f"'{name}' (--split) has values that are no split: {_listed(unknown)}; known: train, valid, test")
    return [SPLIT_OF.get(word, "") for word in words]


def _listed(names: Sequence[str] | dict[str, list[str]]) -> str:
    shown = [" ".join(name.split())[:40] for name in list(names)[:30]]
    return ", ".join(shown) + (", ..." if len(names) > len(shown) else "")
