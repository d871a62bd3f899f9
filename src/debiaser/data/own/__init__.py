"""A person's own data: a folder of pictures, a table or a Hugging Face dataset, read whole, its oddities told."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from torch import Tensor

from debiaser.data.images import Pictures
from debiaser.data.own.checks import (
    Duplicates,
    Survey,
    apart,
    check_classes,
    check_held_out,
    divided,
    file_columns,
    labelled,
    name_columns,
    readable,
    remarks,
    text_columns,
)
from debiaser.data.own.folder import read_folder
from debiaser.data.own.rows import Excluded, Rows, shown
from debiaser.data.own.table import (
    Columns,
    Table,
    is_saved_dataset,
    read_csv,
    read_frame,
    read_hub,
    read_parquet,
    read_saved,
    read_table,
    shorts,
)
from debiaser.errors import Misuse, Problem

__all__ = ["Columns", "Duplicates", "Excluded", "OwnData", "Pictures", "Texts", "read_own"]

Ints = npt.NDArray[np.int64]

READERS: dict[str, Callable[[Path], Table]] = {
    **dict.fromkeys((".csv", ".tsv", ".tab", ".txt"), read_csv),
    **dict.fromkeys((".parquet", ".pq"), read_parquet),
}
LETTERBOX = 2  # version of how a picture becomes pixels: part of the identity


@dataclass(frozen=True, eq=False)
class Texts:
    """Texts by row."""

    texts: Sequence[str] = field(repr=False)
    identity: str = ""

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, row: int) -> str:
        return self.texts[row]

    def read(self, rows: Tensor) -> list[str]:
        """The texts of these rows, in this order."""
        return [self.texts[row] for row in rows.tolist()]


@dataclass(frozen=True, eq=False)
class OwnData:
    """n rows that can be read and have a label, and everything that was noticed on the way.

    `unit` (n,) numbers what must stay on one side: rows of the same named unit, and copies of the same thing.
    `identity` is a digest of ids, labels and contents; `inputs.identity` of the contents alone, which is what
    cached features depend on.
    """

    source: str
    kind: str  # "image" | "text"
    ids: list[str] = field(repr=False)
    paths: list[str] = field(repr=False)
    y: Tensor = field(repr=False)
    classes: tuple[str, ...]
    split: npt.NDArray[np.str_] = field(repr=False)
    unit: Ints = field(repr=False)
    units_named: bool
    group: npt.NDArray[np.str_] | None = field(repr=False)
    columns: dict[str, npt.NDArray[np.str_]] = field(repr=False)
    inputs: Pictures | Texts
    excluded: list[Excluded] = field(repr=False)
    duplicates: list[Duplicates] = field(repr=False)
    notes: list[str]
    identity: str
    places: Ints = field(default_factory=lambda: np.zeros(0, np.int64), repr=False)  # of the rows in the source
    total: int = 0  # rows of the source, those that were left out among them

    def __len__(self) -> int:
        return len(self.ids)

    def rows(self, split: str) -> Tensor:
        """The row numbers of a split."""
        return torch.from_numpy(np.flatnonzero(self.split == split))


def read_own(
    source: str | Path | pd.DataFrame,
    columns: Columns = Columns(),  # noqa: B008 - frozen
    seed: int = 0,
    fractions: tuple[float, float] = (0.1, 0.2),
    need_test: bool = False,
    cache: Path | None = None,
) -> OwnData:
    """The data in a DataFrame or behind a path or a hub name; what cannot be used is listed, what was decided is noted.

    Splits that are given are kept. A missing validation split is the first fraction of the training rows, a missing
    test split, where one is needed, the second fraction of all rows. `cache` is where the first look at pictures is
    remembered (the user's cache folder by default).
    """
    rows, labels = labelled(_found(source, columns))
    rows, labels, seen = readable(rows, labels, cache)
    rows, labels, seen, unit, copies = apart(rows, labels, seen)
    check_classes(labels, unit, rows)
    split, notes = divided(rows, labels.y, unit, seed, fractions, need_test)
    if need_test:
        check_held_out(split, labels)
    rows = rows.noting(*notes, *remarks(rows, labels, seen, unit, split))
    inputs = _inputs(rows, seen)
    files = {} if seen is None else {**file_columns(seen), **name_columns(rows.paths or [], labels.classes)}
    own_columns = {**files, **text_columns(rows.texts or []), **rows.columns}
    return OwnData(
        source=rows.source,
        kind="image" if seen is not None else "text",
        ids=rows.ids,
        paths=rows.paths or [""] * len(rows),
        y=torch.from_numpy(labels.y),
        classes=labels.classes,
        split=split,
        unit=unit,
        units_named=rows.unit is not None,
        group=None if rows.group is None else shorts(rows.group),
        columns={name: shorts(values) for name, values in own_columns.items()},
        inputs=inputs,
        excluded=rows.excluded,
        duplicates=copies,
        notes=rows.notes,
        identity=_digest(inputs.identity, *rows.ids, "", *(labels.classes[label] for label in labels.y)),
        places=rows.places,
        total=rows.total,
    )


def _inputs(rows: Rows, seen: Survey | None) -> Pictures | Texts:
    if seen is None or rows.images is None:
        texts = rows.texts or []
        return Texts(texts, _digest("text", *texts))
    contents = _digest(f"letterbox {LETTERBOX}", seen.content.tobytes().hex())
    return Pictures(rows.ids, rows.images, seen.sides, contents, seen.content)


def _digest(*words: str) -> str:
    state = hashlib.blake2b(digest_size=16)
    for word in words:
        content = word.encode(errors="surrogatepass")
        state.update(len(content).to_bytes(8, "big") + content)  # with its length, so that words cannot run together
    return state.hexdigest()


def _found(source: str | Path | pd.DataFrame, columns: Columns) -> Rows:
    """The samples of a source of whatever kind."""
    if isinstance(source, pd.DataFrame):
        return read_table(read_frame(source), type(source).__name__, columns)
    if not str(source):  # as a path it would be the folder one stands in
        raise Misuse("the source is empty; name a folder of pictures, a table or a dataset")
    path = Path(source)
    try:
        exists, is_folder = path.exists(), path.is_dir()
    except (OSError, ValueError) as error:
        raise Problem(f"'{shown(str(source))}' is not a possible path; check it") from error
    if is_folder and is_saved_dataset(path):
        return read_table(read_saved(path), str(source), columns)
    if is_folder:
        if columns != Columns():
            raise Misuse(f"{source} is a folder of pictures: it has no columns to name; give a table for that")
        return read_folder(path)
    reader = READERS.get(path.suffix.lower())
    if exists:
        if reader is None or not path.is_file():
            known = ", ".join(READERS)
            raise Problem(f"cannot tell what {source} is; expected a folder of pictures or a table ({known})")
        return read_table(reader(path), str(source), columns)
    if reader is not None or path.is_absolute():
        raise Problem(f"no file or folder {source}; check the path")
    return read_table(read_hub(str(source)), str(source), columns)
