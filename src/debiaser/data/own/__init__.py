"""A person's own data: a folder of images, a table or a Hugging Face dataset, read whole, its oddities told."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from torch import Tensor

from debiaser.data.images import RESIZED, Files, Images
from debiaser.data.own import checks
from debiaser.data.own.checks import Duplicates
from debiaser.data.own.reading import Columns, find_rows
from debiaser.data.own.rows import Excluded, Ints, Rows, as_utf8, digest

__all__ = ["Columns", "Duplicates", "Excluded", "Images", "OwnData", "Texts", "read_own"]

CELL = 64  # characters kept of a cell that only a search for suspects will read


@dataclass(frozen=True, eq=False)
class Texts:
    """Texts by sample."""

    texts: Sequence[str] = field(repr=False)
    identity: str = ""

    def __len__(self) -> int:
        return len(self.texts)

    def read(self, rows: Tensor, _: int = 0) -> list[str]:
        """The texts of these samples, in this order; what an image has as its size is nothing here."""
        return [self.texts[row] for row in rows.tolist()]


@dataclass(frozen=True, eq=False)
class OwnData:
    """n samples that can be read and have a label, and everything that was noticed on the way.

    `unit` (n,) numbers what must stay on one side: samples of the same named unit, and copies of the same thing.
    `identity` is a digest of ids, labels and contents; `inputs.identity` of the contents alone, which is what
    cached features depend on.
    """

    source: str
    kind: str  # "image" | "text" | "answers": of a model, and nothing else
    ids: list[str] = field(repr=False)
    paths: list[str] = field(repr=False)
    y: Tensor = field(repr=False)
    classes: tuple[str, ...]
    split: npt.NDArray[np.str_] = field(repr=False)
    unit: Ints = field(repr=False)
    inputs: Any  # `Images` or `Texts`
    identity: str
    group: npt.NDArray[np.str_] | None = field(default=None, repr=False)
    columns: dict[str, npt.NDArray[np.str_]] = field(default_factory=dict, repr=False)
    excluded: list[Excluded] = field(default_factory=list, repr=False)
    duplicates: list[Duplicates] = field(default_factory=list, repr=False)
    notes: list[str] = field(default_factory=list)
    places: Ints = field(default_factory=lambda: np.zeros(0, np.int64), repr=False)  # of the samples in the source
    total: int = 0  # samples of the source, those that were left out among them; 0 where it lies in memory
    contents: list[str] = field(default_factory=list, repr=False)  # digests: the same sample in another run

    def __len__(self) -> int:
        return len(self.ids)

    def rows(self, split: str) -> Tensor:
        """The numbers of a split's samples."""
        return torch.from_numpy(np.flatnonzero(self.split == split))


def read_own(
    source: str | Path | pd.DataFrame,
    columns: Columns = Columns(),  # noqa: B008 - frozen
    seed: int = 0,
    need_test: bool = False,
    cache: Path | None = None,
) -> OwnData:
    """The data in a DataFrame or behind a path or a hub name; what cannot be used is listed, what was decided is noted.

    Splits that are given are kept. A missing validation split is a tenth of the training samples, a missing test split,
    where one is needed, a fifth of all. `cache` is where the first look at images is remembered (the user's cache
    folder by default).
    """
    return gather(find_rows(source, columns), seed, need_test, cache)


def gather(rows: Rows, seed: int = 0, need_test: bool = False, cache: Path | None = None) -> OwnData:
    """Samples as they were found, checked and divided."""
    rows, unit, copies = checks.apart(checks.readable(checks.labelled(rows), cache))
    checks.check_classes(rows, unit)
    split, notes = checks.divided(rows, unit, seed, need_test)
    rows = rows.noting(*notes, *checks.remarks(rows, unit, split))
    inputs: Any = Texts(texts := rows.texts or [], digest("text", *texts))
    samples = [digest(text) for text in texts]
    if rows.images is not None:
        samples = [content.tobytes().hex() for content in rows.seen.content]
        contents = digest(RESIZED, rows.seen.content.tobytes().hex())
        seen = rows.seen.content.copy() if isinstance(rows.images, Files) else None  # only files change meanwhile
        inputs = Images(rows.ids, rows.images, rows.seen.sides.copy(), contents, seen)
    return OwnData(
        source=rows.source,
        kind="text" if rows.images is None else "image",
        ids=rows.ids,
        paths=rows.paths or [""] * len(rows),
        y=torch.from_numpy(rows.y),
        classes=rows.classes,
        split=split,
        unit=unit,
        group=None if rows.group is None else _short(rows.group),
        columns={name: _short(values) for name, values in {**checks.found_columns(rows), **rows.columns}.items()},
        inputs=inputs,
        excluded=rows.excluded,
        duplicates=copies,
        notes=rows.notes,
        identity=digest(inputs.identity, *rows.ids, "", *(rows.classes[label] for label in rows.y)),
        places=rows.places,
        total=rows.total,
        contents=samples,
    )


def _short(values: Sequence[str]) -> npt.NDArray[np.str_]:
    """(n,) texts, none longer than a cell that a search for suspects can use."""
    return np.array([as_utf8(value[:CELL]) for value in values], np.str_)
