"""Which column of a table is what: as the person says, else by name, else by content; where unsure, ask."""

import itertools
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np

from debiaser.data.folders import is_picture
from debiaser.data.labels import MISSING, distinct, too_many
from debiaser.data.pictures import Embedded, Files
from debiaser.data.rows import SPLIT_OF, Rows, told
from debiaser.data.tables import Table
from debiaser.errors import Misuse, Problem

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
