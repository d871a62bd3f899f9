"""Which column of a table is what: as the person says, else by name, else by content; where unsure, ask."""

import codecs
import csv
import io
import itertools
import os
import re
import sys
import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from debiaser.data.images import Embedded, Files
from debiaser.data.own.folder import is_picture
from debiaser.data.own.rows import MISSING, SPLIT_OF, Excluded, Rows, distinct, told, too_many
from debiaser.errors import Misuse, Problem

# --- Tables as text: CSV in whatever dialect and encoding it comes; '' is a missing value, odd rows are listed

DELIMITERS = ",;\t|"
SAMPLE = 1 << 18  # characters that the delimiter is judged by
SHORT = 64  # characters: texts up to this length are kept once, however often they occur
MANY_LINES = 20  # a cell of more lines in a row of the wrong length: a quote was never closed


@dataclass(frozen=True, eq=False)
class Table:
    """Columns of text by name; `numbers` are the rows' places in the source, counted from 1.

    `embedded` gives the bytes of pictures that lie in the table itself, by column, then by place in the table;
    `splits` is the part of the source (train, valid, ...) that a row comes from, where it has parts.
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
    try:
        encoding, notes = _encoding(path)
        with path.open(encoding=encoding, newline="") as stream, _long_cells():
            delimiter = _delimiter(stream.read(SAMPLE))
            stream.seek(0)
            records = csv.reader(stream, delimiter=delimiter)
            header = next((record for record in records if any(record)), None)
            if header is None:
                raise Problem(f"{path} is empty; expected a first line with the names of the columns")
            names = _names(header, notes)
            return _filled(path, names, records, notes)
    except OSError as error:
        raise Problem(f"cannot read {path}: {error.strerror}; check its name and permissions") from error
    except (csv.Error, UnicodeDecodeError) as error:
        raise Problem(f"{path} is not a table that can be read: {error}; save it again as CSV in UTF-8") from error


def _filled(path: Path, names: list[str], records: Iterator[list[str]], notes: list[str]) -> Table:
    columns: list[list[str]] = [[] for _ in names]
    numbers, excluded = [], []
    once: dict[str, str] = {}
    for number, record in enumerate(filter(None, records), 1):
        if len(record) != len(names):
            excluded.append(Excluded(f"row {number}", _ragged(record, len(names)), "unreadable"))
            continue
        numbers.append(number)
        for column, cell in zip(columns, record, strict=True):
            column.append(once.setdefault(cell, cell) if len(cell) <= SHORT else cell)
    if not numbers:
        raise Problem(f"{path} has no rows below its first line; nothing to examine")
    return Table(path, dict(zip(names, columns, strict=True)), numbers, excluded=excluded, notes=notes)


def _ragged(record: list[str], width: int) -> str:
    lines = max(cell.count("\n") for cell in record)
    open_quote = f"; a quote that is never closed took {lines:,} lines with it" if lines > MANY_LINES else ""
    return f"has {len(record)} cells where the first line names {width} columns{open_quote}"


def _names(header: list[str], notes: list[str]) -> list[str]:
    """The names of the columns, each once; a nameless column is called by its place."""
    names: list[str] = []
    for place, name in enumerate(header, 1):
        name = name.strip() or f"column {place}"
        if name in names:
            notes.append(f"two columns are called '{name}': the later one is '{name}.{place}' here")
            name = f"{name}.{place}"
        names.append(name)
    return names


def _encoding(path: Path) -> tuple[str, list[str]]:
    """How the file is encoded: by its mark, else UTF-8 if it is valid all through, else the usual Western ones."""
    with path.open("rb") as stream:
        start = stream.read(4)
        if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            return "utf-16", []
        for encoding in ("utf-8-sig", "cp1252"):
            stream.seek(0)
            decoder = codecs.getincrementaldecoder(encoding)()
            try:
                while block := stream.read(1 << 20):
                    decoder.decode(block)
                decoder.decode(b"", final=True)
            except UnicodeDecodeError:
                continue
            return encoding, [] if encoding == "utf-8-sig" else [_not_utf8(path, encoding)]
    return "latin-1", [_not_utf8(path, "latin-1")]


def _not_utf8(path: Path, encoding: str) -> str:
    return f"{path.name} is not UTF-8: read as {encoding}; look whether its accents are right"


def _delimiter(sample: str) -> str:
    """The delimiter that cuts the most rows of the sample into as many cells as the first, and into the most cells."""

    def judged(delimiter: str) -> tuple[float, int]:
        rows = [row for row in itertools.islice(csv.reader(io.StringIO(sample), delimiter=delimiter), 50) if row]
        width = len(rows[0]) if rows else 0
        whole = rows[:-1] if len(sample) == SAMPLE and len(rows) > 1 else rows  # the last may be cut off
        return (sum(len(row) == width for row in whole) / len(whole), width) if width > 1 else (0.0, 0)

    return max(DELIMITERS, key=judged)


@contextmanager
def _long_cells() -> Iterator[None]:
    """Cells of any length; Python refuses more than 128 kB by default."""
    former = csv.field_size_limit(sys.maxsize)
    try:
        yield
    finally:
        csv.field_size_limit(former)


# --- Parquet files and Hugging Face datasets (the extra `data`): read in batches, as text; pictures stay there

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
    rows = Rows(
        source=source,
        ids=ids,
        labels=table.columns[label],
        label_name=label,
        texts=table.columns[text] if text else None,
        pictures=_pictures(table, image) if image else None,
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
    return _without_missing_split(rows)


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
    pictures = _of_pictures(table, free)
    image = _chosen(pictures, IMAGE, "image", notes)
    texts = [name for name in _of_texts(table, free) if name not in pictures]
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
    found = _of_pictures(table, free) if kind == "image" else _of_texts(table, free)
    name = asked or _chosen(found, IMAGE if kind == "image" else TEXT, kind, [])
    if name is None:
        raise Problem(f"no column of {kind}s found; name one with --{kind}: {_listed(table.columns)}")
    if name in table.embedded:
        raise Problem(f"the pictures in '{name}' lie inside the table; save them as files first")
    return table.columns[name]


def _of_pictures(table: Table, names: list[str]) -> list[str]:
    return [*table.embedded, *(name for name in names if _names_pictures(table, name))]


def _of_texts(table: Table, names: list[str]) -> list[str]:
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


def _names_pictures(table: Table, name: str) -> bool:
    values = list(_some(table.columns[name]))
    base = table.path.parent if table.path else Path()
    return bool(values) and sum(is_picture(v) or _there(base, v, name) for v in values) > len(values) / 2


def _there(base: Path, value: str, name: str) -> bool:
    """Whether a value without a picture's ending is a file after all; asked only of columns that are named for it."""
    try:
        return name.lower() in IMAGE[0] and (base / value).is_file()
    except (OSError, ValueError):
        return False


def _reads_like_text(values: Sequence[str]) -> bool:
    some = list(_some(values))
    mean = sum(map(len, some)) / max(len(some), 1)
    return mean >= LONG and sum(" " in value.strip() for value in some) > len(some) / 2


def _some(values: Sequence[str]) -> Iterator[str]:
    """Up to a hundred values that are not missing, from all over the column."""
    return (value for value in values[:: max(1, len(values) // SAMPLED)] if value.strip() not in MISSING)


def _pictures(table: Table, image: str) -> Files | Embedded:
    if image in table.embedded:
        return Embedded(table.embedded[image], np.arange(len(table), dtype=np.int64))
    base = str(table.path.parent) if table.path else ""
    return Files([os.path.join(base, path) for path in table.columns[image]])  # noqa: PTH118 - a path may be anything


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


def _without_missing_split(rows: Rows) -> Rows:
    if rows.split is None:
        return rows
    if "train" not in rows.split:
        raise Problem("no row is in the split 'train'; there is nothing to learn from")
    missing = ("has no split", "missing split")
    return rows.without({row: missing for row, split in enumerate(rows.split) if not split})


def _listed(names: Sequence[str] | dict[str, list[str]]) -> str:
    shown = [" ".join(name.split())[:40] for name in list(names)[:30]]
    return ", ".join(shown) + (", ..." if len(names) > len(shown) else "")
