"""Where samples come from: folders of images, and tables (CSV, Parquet, Hugging Face datasets, DataFrames)."""

import codecs
import csv
import io
import itertools
import os
import re
import sys
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import lru_cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from debiaser.data.images import Embedded, Files
from debiaser.data.own.rows import MISSING, SPLIT_OF, Excluded, Rows, as_utf8, first, shown, too_many
from debiaser.errors import Misuse, Problem, brief
from debiaser.io import optional


@dataclass(frozen=True)
class Columns:
    """The columns as the command's options name them; what is not named is found where that can be done."""

    label: str | None = None
    image: str | None = None
    text: str | None = None
    group: str | None = None
    split: str | None = None
    unit: str | None = None


def find_rows(source: str | Path | pd.DataFrame, columns: Columns) -> Rows:
    """The samples of a source of whatever kind."""
    if isinstance(source, pd.DataFrame):
        return read_table(read_frame(source), type(source).__name__, columns)
    if not str(source):  # as a path it would be the folder one stands in
        raise Misuse("the source is empty; name a folder of images, a table or a dataset")
    path = Path(source)
    try:
        exists, is_folder = path.exists(), path.is_dir()
    except (OSError, ValueError) as error:
        raise Problem(f"'{shown(str(source))}' is not a possible path; check it") from error
    reader = READERS.get(path.suffix.lower())
    notes = ("dataset_dict.json", "state.json", "dataset_info.json")  # of `save_to_disk` of Hugging Face datasets
    saved = {name for name in notes if is_folder and (path / name).exists()}
    if is_folder and "dataset_dict.json" not in saved and len(saved) < 2:
        if columns != Columns():
            raise Misuse(f"{source} is a folder of images: it has no columns to name; give a table for that")
        return read_folder(path)
    if is_folder:
        table = read_saved(path)
    elif not exists and (reader is not None or path.is_absolute()):
        raise Problem(f"no file or folder {source}; check the path")
    elif not exists:
        table = read_hub(str(source))
    elif reader is None or not path.is_file():
        raise Problem(f"cannot tell what {source} is; expected a folder of images or a table ({', '.join(READERS)})")
    else:
        table = reader(path)
    return read_table(table, str(source), columns)


# --- A folder of images: one folder per class, with or without train/ valid/ test/ above them

ENDINGS = "jpg jpeg jpe jfif png webp gif bmp tif tiff ppm pgm pbm pnm avif jp2"
IMAGES = frozenset(f".{ending}" for ending in ENDINGS.split())
JUNK = frozenset({"__MACOSX", "Thumbs.db", "desktop.ini"})


def read_folder(root: Path) -> Rows:
    """The images below each class folder, however deep; what is no image is counted in a note."""
    parts, notes = _parts(root)
    paths, labels, splits = list[str](), list[str](), list[str]()
    folders, loose, passed = list[str](), list[str](), Counter[str]()
    for top, split in parts.items():
        groups, files = _inside(top)
        loose += [as_utf8(name) for name in files if is_image(name)]
        for group in groups:
            for path, is_folder in _walk(top / group):
                if not is_image(path):
                    passed.update([] if is_folder else [Path(path).suffix.lower() or "no extension"])
                elif is_folder:
                    folders.append(path)
                else:
                    paths.append(path)
                    labels.append(as_utf8(group))
                    splits.append(split)
    if len(set(labels)) < 2:
        raise _unusable(root, loose, top, paths)
    if loose:
        notes.append(f"{len(loose):,} images lie outside any class folder and were passed over: {first(loose)}")
    if passed:
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in passed.most_common(5))
        notes.append(f"files that are not images were passed over: {kinds}")
    return Rows(
        source=str(root),
        ids=[as_utf8(os.path.relpath(path, root)) for path in paths],
        labels=labels,
        images=Files(paths),
        paths=[as_utf8(path) for path in paths],
        split=splits if any(splits) else None,
        columns={"extension": [Path(path).suffix.lower() for path in paths]},
        excluded=[Excluded(as_utf8(os.path.relpath(path, root)), "is a folder", "unreadable") for path in folders],
        notes=notes,
        places=np.arange(len(paths)),
        total=len(paths),
    )


def is_image(name: str) -> bool:
    """Whether a file name ends like that of an image."""
    return os.path.splitext(name)[1].lower() in IMAGES  # noqa: PTH122 - twenty times faster than Path


def _parts(root: Path) -> tuple[dict[Path, str], list[str]]:
    """The folders that hold class folders, each with its split: the root itself with none, or train, valid, test."""
    tops = _inside(root)[0]
    named = {root / top: SPLIT_OF[top.lower()] for top in tops if top.lower() in SPLIT_OF and not top.isdigit()}
    splits = set(named.values())
    if "train" not in splits or (len(splits) == 1 and len(tops) > 1):
        return {root: ""}, []
    others = [as_utf8(top) for top in tops if root / top not in named]
    return named, [f"folders beside train, valid and test were passed over: {first(others)}"] if others else []


def _unusable(root: Path, loose: list[str], top: Path, paths: list[str]) -> Problem:
    """What to do where there are no two classes; the only folder may be the one that holds the class folders."""
    if paths:
        only = top / Path(paths[0]).relative_to(top).parts[0]
        deeper = [as_utf8(name) for name in _inside(only)[0]]
        hint = f"; if {first(deeper)} are the classes, name the folder {as_utf8(str(only))}" if len(deeper) > 1 else ""
        return Problem(f"only one class, '{shown(as_utf8(only.name))}': a folder for each class is needed{hint}")
    table = next((name for name in _inside(root)[1] if Path(name).suffix.lower() in READERS), None)
    hint = f", or name the table in it: {root / as_utf8(table)}" if table else ""
    if loose:
        what = f"{len(loose):,} images lie directly in {root}, in no class folder"
        return Problem(f"{what}; put each into a folder that is named by its class{hint}")
    return Problem(f"no images in {root}; expected a folder for each class with images in it{hint}")


def _inside(folder: Path | str) -> tuple[list[str], list[str]]:
    """The names of the folders (or links to some) and of the files in a folder, hidden and system files aside."""

    def refuse(error: OSError) -> None:
        raise Problem(f"cannot read {folder}: {error.strerror}; check its permissions") from error

    _, *parts = next(os.walk(folder, onerror=refuse))
    folders, files = (sorted(name for name in part if name[0] != "." and name not in JUNK) for part in parts)
    return folders, files


def _walk(top: Path) -> Iterator[tuple[str, bool]]:
    """Every path below a folder and whether it is a folder; links are followed, but nothing is visited twice."""
    waiting, seen = [str(top)], set[str]()
    while waiting:
        folder = waiting.pop()
        if (real := os.path.realpath(folder)) not in seen:
            seen.add(real)
            below, files = ([os.path.join(folder, name) for name in part] for part in _inside(folder))  # noqa: PTH118
            yield from sorted([*((path, True) for path in below), *((path, False) for path in files)])
            waiting += reversed(below)


# --- Tables as text

DELIMITERS = ",;\t|"
SAMPLE = 1 << 18  # characters that the delimiter is judged by
MANY_LINES = 20  # a cell of more lines in a line of the wrong length: a quote was never closed
SHORT = 64  # characters: texts up to this length are kept once, however often they occur
BATCH = 4096
GROUPS = 2  # row groups of images held in memory
PATIENCE = 10.0  # seconds until a hub that says nothing counts as out of reach
HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")


@dataclass(frozen=True, eq=False)
class Table:
    """Columns of n texts by name, '' where a value is missing.

    `embedded` gives the bytes of images that lie in the table itself, by column, then by place in the table;
    `splits` is the part of the source (train, valid, ...) that a sample comes from, where it has parts;
    `damaged`, by place, why a line could not be read (its cells are empty).
    """

    path: Path | None
    columns: dict[str, list[str]]
    n: int
    splits: list[str] | None = None
    embedded: dict[str, Callable[[int], bytes | None]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    damaged: dict[int, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return self.n


def read_csv(path: Path) -> Table:
    """The table in a text file: delimiter, encoding and quotes are found out; lines of other lengths are damaged."""
    longest = csv.field_size_limit(sys.maxsize)  # Python refuses cells of more than 128 kB by default
    try:
        with path.open("rb") as stream:
            marked = stream.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
        for encoding in ("utf-16" if marked else "utf-8-sig", "cp1252"):
            with suppress(UnicodeDecodeError):
                return _parsed(path, encoding)
        return _parsed(path, "latin-1")
    except OSError as error:
        raise Problem(f"cannot read {path}: {error.strerror}; check its name and permissions") from error
    except (csv.Error, UnicodeError) as error:
        raise Problem(f"{path} is not a table that can be read: {brief(error)}; save it as CSV in UTF-8") from error
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
        columns: dict[str, list[str]] = {name: [] for name in names}
        damaged, once = dict[int, str](), dict[str, str]()
        for place, record in enumerate(filter(None, records)):
            if len(record) != len(names):
                lines = max(cell.count("\n") for cell in record)
                quote = f"; a quote that is never closed took {lines:,} lines with it" if lines > MANY_LINES else ""
                damaged[place] = f"has {len(record)} cells where the first line names {len(names)} columns{quote}"
                record = [""] * len(names)
            for column, cell in zip(columns.values(), record, strict=True):
                column.append(once.setdefault(cell, cell) if len(cell) <= SHORT else cell)
    n = len(next(iter(columns.values())))
    if n == len(damaged):
        raise Problem(f"{path} has no samples below its first line; nothing to examine")
    return Table(path, columns, n, notes=notes, damaged=damaged)


def _delimiter(sample: str) -> str:
    """The delimiter that cuts the most lines of the sample into as many cells as the first, and into the most cells."""

    def judged(delimiter: str) -> tuple[float, int]:
        lines = [line for line in itertools.islice(csv.reader(io.StringIO(sample), delimiter=delimiter), 50) if line]
        width = len(lines[0]) if lines else 0
        whole = lines[:-1] if len(sample) == SAMPLE and len(lines) > 1 else lines  # the last may be cut off
        return (sum(len(line) == width for line in whole) / len(whole), width) if width > 1 else (0.0, 0)

    return max(DELIMITERS, key=judged)


def read_frame(frame: pd.DataFrame) -> Table:
    """A pandas DataFrame as a table of text; the index is not read."""
    if not len(frame):
        raise Problem("the DataFrame has no rows; nothing to examine")
    if twice := sorted({str(name) for name in frame.columns[frame.columns.duplicated()]}):
        raise Problem(f"two columns of the DataFrame are called {_listed(twice)}; give each a name of its own")
    missing = frame.isna()
    columns = {
        str(name): ["" if absent else str(value) for value, absent in zip(frame[name], missing[name], strict=True)]
        for name in frame.columns
    }
    return Table(None, columns, len(frame))


def needed(module: str, what: str) -> Any:
    """A module of the extra, or the line that says how to install it."""
    return optional(module, f"{what} needs {module.split('.')[0]}; install it with: pip install 'debiaser[data]'")


def read_parquet(path: Path) -> Table:
    """The table in a Parquet file; columns of images (bytes, or bytes and a path) are left in the file."""
    parquet = needed("pyarrow.parquet", "reading Parquet")

    @lru_cache(GROUPS)
    def group(place: int, column: str) -> Any:
        return parquet.ParquetFile(path).read_row_group(place, columns=[column]).column(column)

    def cell(column: str, row: int) -> Any:
        place = bisect_right(starts, row) - 1
        return group(place, column)[row - starts[place]].as_py()

    try:
        file = parquet.ParquetFile(path)
        sizes = [file.metadata.row_group(place).num_rows for place in range(file.metadata.num_row_groups)]
        starts = list(itertools.accumulate(sizes, initial=0))
        return _of_arrow(
            path, file.schema_arrow, lambda names: file.iter_batches(BATCH, columns=names), cell, starts[-1]
        )
    except (OSError, ValueError, NotImplementedError) as error:  # pyarrow's own errors are ValueErrors
        raise Problem(f"cannot read {path}: {brief(error)}; is it a whole Parquet file?") from error


def _of_arrow(
    path: Path | None,
    schema: Any,
    batches: Callable[[list[str]], Iterable[Any]],
    cell: Callable[[str, int], Any],
    n: int,
    splits: list[str] | None = None,
) -> Table:
    """A table in Arrow's format: plain columns as text, missing values as ''; images, bytes or a structure of bytes
    and a path, are read when they are asked for by `cell(column, row)`."""
    types = needed("pyarrow.types", "Parquet or a Hugging Face dataset")

    def is_binary(kind: Any) -> bool:
        return bool(types.is_binary(kind) or types.is_large_binary(kind))

    def read(name: str, row: int) -> bytes | None:
        value = cell(name, row)
        if not isinstance(value, dict):
            return value if isinstance(value, bytes) else None
        inside, file, base = value.get("bytes"), value.get("path"), path.parent if path else Path()
        return inside if inside is not None or not file else Files([str(base / file)]).read(0)

    kinds = {each.name: each.type for each in schema}
    parts = {name: list(kind) if types.is_struct(kind) else [] for name, kind in kinds.items()}
    images = [
        name for name, kind in kinds.items()
        if is_binary(kind) or any(part.name == "bytes" and is_binary(part.type) for part in parts[name])
    ]  # fmt: skip
    plain = [name for name, kind in kinds.items() if name not in images and not types.is_nested(kind)]
    columns, once = {name: list[str]() for name in plain}, dict[str, str]()
    for batch in batches(plain) if plain else ():
        for name in plain:
            values = ("" if value is None else str(value) for value in batch.column(name).to_pylist())
            columns[name] += [once.setdefault(text, text) if len(text) <= SHORT else text for text in values]
    nested = [name for name in kinds if name not in plain and name not in images]
    notes = [f"columns of lists or structures were passed over: {', '.join(nested)}"] if nested else []
    if not n:
        raise Problem(f"{path or 'the dataset'} has no rows; nothing to examine")
    return Table(path, columns, n, splits, {name: partial(read, name) for name in images}, notes=notes)


def read_saved(folder: Path) -> Table:
    """The table in a dataset that was saved to disk."""
    datasets = needed("datasets", "a Hugging Face dataset")
    try:
        return _of_dataset(datasets, datasets.load_from_disk(str(folder)), folder / "inside")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Problem(
            f"cannot read the dataset in {folder}: {brief(error)}; save it again with save_to_disk"
        ) from error


def read_hub(name: str) -> Table:
    """The table behind a name on the Hugging Face hub."""
    unknown = f"'{name}' is no file or folder here"
    if not HUB_NAME.fullmatch(name):
        raise Problem(f"{unknown}, and cannot be a name on the Hugging Face hub; check the path")
    datasets = needed("datasets", f"{unknown}; a dataset of the Hugging Face hub")
    datasets.disable_progress_bars()
    hub = import_module("huggingface_hub")
    try:
        hub.HfApi().dataset_info(name, timeout=PATIENCE)
    except Exception as error:  # whatever it is, `load_dataset` below meets it too, and that is told
        if not isinstance(error, hub.errors.HfHubHTTPError):  # out of reach: no half minute of tries, only the cache
            hub.constants.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = True
    try:
        return _of_dataset(datasets, datasets.load_dataset(name), None)
    except Problem:
        raise
    except Exception as error:  # the hub's client raises a dozen kinds, of several libraries
        raise Problem(
            f"{unknown}, and the Hugging Face hub did not give it ({brief(error)}); check the name, or the network"
        ) from error


def _of_dataset(datasets: Any, found: Any, path: Path | None) -> Table:
    parts = dict(found) if isinstance(found, dict) else {"": found}
    split_of = {name: "" if name.isdigit() else SPLIT_OF.get(name.lower(), "") for name in parts}
    passed = [f"part '{name}' was passed over" for name in parts if name and not split_of[name]]
    parts = {name: part for name, part in parts.items() if not name or split_of[name]}
    if not any(map(len, parts.values())):
        raise Problem("the dataset has no rows in train, valid or test; nothing to examine")
    whole = datasets.concatenate_datasets(list(parts.values())).with_format("arrow")
    splits = [split_of[name] for name, part in parts.items() for _ in range(len(part))] if "" not in parts else None
    table = _of_arrow(
        path,
        whole.features.arrow_schema,
        lambda names: whole.select_columns(names).iter(BATCH),
        lambda column, row: whole[row].column(column)[0].as_py(),
        len(whole),
        splits,
    )
    for name, feature in whole.features.items():
        if isinstance(feature, datasets.ClassLabel):
            words = {str(number): word for number, word in enumerate(feature.names)}
            table.columns[name] = [words.get(value, value) for value in table.columns[name]]
    table.notes[:] = passed
    return table


READERS: dict[str, Callable[[Path], Table]] = {
    **dict.fromkeys((".csv", ".tsv", ".tab", ".txt"), read_csv),
    **dict.fromkeys((".parquet", ".pq"), read_parquet),
}


# --- Which column is what

NAMES = {  # of columns, the likeliest first
    "label": ("label labels", "target class y category class_name label_name sentiment diagnosis"),
    "image": ("image img image_path img_path picture path file filename file_name filepath",),
    "text": ("text", "sentence review comment comment_text content body document tweet message"),
}
NAMED = {kind: " ".join(tiers).split() for kind, tiers in NAMES.items()}
SPLIT = ("split", "partition", "subset", "set")
UNIT = {f"{each}{end}" for each in ("patient", "subject", "video", "store") for end in ("", "_id")}
UNIT |= {"patientid", "user_id"}
ID = ("id", "uid", "uuid", "guid", "key", "image_id", "sample_id", "row_id")
SAMPLED = 100  # values that are looked at to judge a column
LONG = 24  # characters: the mean length from which a column reads like text


def read_table(table: Table, source: str, columns: Columns) -> Rows:
    """The samples of a table in their roles; what was found by itself is said in a note."""
    known = [*table.columns, *table.embedded]
    _check(columns, known)
    notes = list(table.notes)
    image, text = _input(table, columns, notes)
    split = columns.split or _found_split(table, columns, notes)
    label = columns.label or _label(table, {image, text, split}, columns, notes)
    if label not in table.columns:
        raise Misuse(f"'{label}' holds images, not labels; known columns: {_listed(known)}")
    if not columns.unit:
        likely = [name for name in table.columns if name.lower() in UNIT and name not in {label, image, text}]
        notes += [f"rows of one '{name}' may belong together: keep them so with --unit {name}" for name in likely[:1]]
    paths = [as_utf8(path) for path in table.columns[image]] if image in table.columns else None
    named, ids = _ids(table, paths)
    used = {label, image, text, split, columns.unit, columns.group, named}
    images: Files | Embedded | None = None
    if image in table.embedded:
        images = Embedded(table.embedded[image], np.arange(len(table), dtype=np.int64))
    elif image:
        base = str(table.path.parent) if table.path else ""
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
        unit=table.columns[columns.unit] if columns.unit else None,
        group=table.columns[columns.group] if columns.group else None,
        columns={name: values for name, values in table.columns.items() if name not in used},
        notes=notes,
        places=np.arange(len(table)),
        total=len(table),
    )
    reasons = {}
    if rows.split is not None:
        if "train" not in rows.split:
            raise Problem("no sample is in the split 'train'; there is nothing to learn from")
        reasons = {row: ("has no split", "missing split") for row, split in enumerate(rows.split) if not split}
    return rows.without(reasons | {place: (reason, "unreadable") for place, reason in table.damaged.items()})


def _check(columns: Columns, known: list[str]) -> None:
    asked = {option: name for option, name in asdict(columns).items() if name}
    for option, name in asked.items():
        if name not in known:
            raise Problem(f"no column '{name}' (--{option}); known: {_listed(known)}")
    for one, other in itertools.combinations(asked, 2):
        if asked[one] == asked[other]:
            raise Misuse(f"'{asked[one]}' is named twice, as --{one} and as --{other}; each column has one role")
    if columns.image and columns.text:
        raise Misuse("--image and --text were both given; examine images or texts, one at a time")


def _input(table: Table, columns: Columns, notes: list[str]) -> tuple[str | None, str | None]:
    """The column of images or the column of texts."""
    if columns.image or columns.text:
        return columns.image, columns.text
    used = {columns.label, columns.group, columns.split, columns.unit}
    free = [name for name in table.columns if name not in used]
    images = _candidates(table, "image", free)
    texts = [name for name in _candidates(table, "text", free) if name not in images]
    if image := _chosen(images, "image", notes):
        notes += [f"there are texts too: examine those with --text {texts[0]}"] if texts else []
        return image, None
    if text := _chosen(texts, "text", notes):
        return None, text
    raise Problem(f"no column of images or texts found; name one with --image or --text: {_listed(table.columns)}")


def find_input(table: Table, kind: str, asked: str | None) -> list[str]:
    """The cells of the column with inputs of a kind: the one that is asked for, else the one an audit would take."""
    if asked and asked not in table.columns:
        raise Problem(f"no column '{asked}' (--{kind}); known: {_listed(table.columns)}")
    name = asked or _chosen(_candidates(table, kind, list(table.columns)), kind, [])
    if name is None:
        raise Problem(f"no column of {kind}s found; name one with --{kind}: {_listed(table.columns)}")
    if name in table.embedded:
        raise Problem(f"the images in '{name}' lie inside the table; save them as files first")
    return table.columns[name]


def _candidates(table: Table, kind: str, names: list[str]) -> list[str]:
    """The columns of images (most values end like images; in one that is named for it, are files), or those that read
    like texts, else the first that is named so; judged by up to a hundred values from all over the column."""
    known, base = NAMED[kind], table.path.parent if table.path else Path()

    def is_file(value: str) -> bool:
        with suppress(OSError, ValueError):
            return (base / value).is_file()
        return False

    found = []
    for name in names:
        values = table.columns[name]
        some = [value for value in values[:: max(1, len(values) // SAMPLED)] if value.strip() not in MISSING]
        if kind == "image":
            fits = [is_image(value) or (name.lower() in known and is_file(value)) for value in some]
        else:
            long = sum(map(len, some)) >= LONG * len(some)
            fits = [long and " " in value.strip() for value in some]
        if sum(fits) > len(some) / 2:
            found.append(name)
    if kind == "image":
        return [*table.embedded, *found]
    return found or [name for name in names if name.lower() in known][:1]


def _label(table: Table, taken: set[str | None], columns: Columns, notes: list[str]) -> str:
    free = [name for name in table.columns if name not in {*taken, columns.group, columns.unit}]
    by_name = [name for name in free if name.lower() in NAMED["label"]]
    distinct = {name: len({value.strip() for value in table.columns[name]} - MISSING) for name in free}
    few = [name for name in free if 2 <= distinct[name] <= too_many(len(table)) and name.lower() not in (*ID, *UNIT)]
    found = _chosen(by_name or few, "label", notes)
    if found is None:
        raise Problem(f"no column of labels found; name one with --label: {_listed(free)}")
    up_to = [*itertools.accumulate(map(str.split, NAMES["label"]))]  # the likeliest names, and the likely ones too
    rank = {name: sum(name.lower() not in each for each in up_to) for name in table.columns}
    if better := [name for name in (columns.group, columns.unit) if name and rank[name] < rank[found]]:
        raise Misuse(f"'{better[0]}' looks like the labels, not '{found}'; say which column they are with --label")
    return found


def _found_split(table: Table, columns: Columns, notes: list[str]) -> str | None:
    used = {columns.label, columns.group, columns.unit, columns.image, columns.text}
    for name, values in table.columns.items():
        if name.lower() in SPLIT and name not in used and table.splits is None:
            words = {value.strip().lower() for value in values} - {word.lower() for word in MISSING}
            if words and words <= set(SPLIT_OF) and not all(word.isdigit() for word in words):
                notes.append(f"the splits in '{name}' are used as they are")
                return name
    return None


def _chosen(candidates: list[str], option: str, notes: list[str]) -> str | None:
    """The one candidate with the best name; where several are as good, the person is asked."""
    for tier in (*map(str.split, NAMES[option]), candidates):
        best = [name for name in candidates if name.lower() in tier or tier is candidates]
        if len(best) > 1:
            raise Problem(f"several columns could be the {option}; name one with --{option}: {_listed(best)}")
        if best:
            notes.append(f"column '{best[0]}' was taken as the {option}; name another with --{option}")
            return best[0]
    return None


def _ids(table: Table, paths: list[str] | None) -> tuple[str | None, list[str]]:
    """The name of each sample, all different: a column of IDs, else the path, else the number of the row."""
    rows = [f"row {number + 1}" if number in table.damaged else str(number + 1) for number in range(len(table))]

    def readable(values: Iterable[str]) -> list[str]:
        return [rows[number] if number in table.damaged else value for number, value in enumerate(values)]

    if paths is not None:
        firsts = ~pd.Series(paths).duplicated()
        ids = readable(
            path if one else f"{path} (row {row})" for path, row, one in zip(paths, rows, firsts, strict=True)
        )
        return None, ids if len(set(ids)) == len(ids) else rows
    for name in [name for name in table.columns if name.lower() in ID]:
        values = readable(value.strip() for value in table.columns[name])
        if len(set(values)) == len(values) and "" not in values:
            return name, values
    return None, rows


def _splits(values: Sequence[str], name: str) -> list[str]:
    words = [value.strip().lower().removesuffix(".0") for value in values]
    unknown = sorted(set(words) - set(SPLIT_OF) - {word.lower() for word in MISSING})
    if unknown:
        raise Problem(f"'{name}' (--split) has values that are no split: {_listed(unknown)}; known: train, valid, test")
    return [SPLIT_OF.get(word, "") for word in words]


def _listed(names: Sequence[str] | dict[str, list[str]]) -> str:
    shown = [" ".join(name.split())[:40] for name in list(names)[:30]]
    return ", ".join(shown) + (", ..." if len(names) > len(shown) else "")
