"""What a person marked in the page, taken back: a CSV of ids and marks."""

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np

from debiaser.auditing.crossval import Rows
from debiaser.auditing.verdict import Examined
from debiaser.data.own import OwnData
from debiaser.errors import Problem

MARKS = ("aligned", "conflicting", "mislabelled")
Marks = dict[tuple[str, str], tuple[str, str | None]]  # by ("id" or "row", its value): the mark, and the label then


def read_marks(path: Path, examined: int | None = None) -> Marks:
    """The mark of every sample in the file, and the label that it had in the page (None in files that do not say it).

    Row numbers are of `examined` samples.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as stream:
            rows = list(csv.DictReader(stream))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise Problem(f"cannot read {path}: {error}; give the CSV that the page saved") from error
    name = "row" if rows and "row" in rows[0] else "id"  # a page without paths knows only row numbers
    if not rows or not {name, "mark"} <= set(rows[0]):
        raise Problem(f"{path} has no columns id and mark; give the CSV that the page saved")
    if name == "row" and rows[0].get("rows") not in (None, str(examined)):
        raise Problem(
            f"the numbers in {path} are of a page of {rows[0]['rows']} samples, and this run examines {examined}: "
            "mark in the page of the same command (debias holds test samples out), or in one with paths"
        )
    marks: Marks = {}
    for row in rows:
        mark = str(row["mark"])
        if marks.setdefault((name, str(row[name])), (mark, row.get("label")))[0] != mark:
            raise Problem(f"{path} marks {row[name]!r} in two ways; keep one of its lines")
    for unknown in sorted({mark for mark, _ in marks.values()} - set(MARKS)):
        raise Problem(f"{path} has the mark '{unknown}'; known: {', '.join(MARKS)}")
    return marks


def match_marks(own: OwnData, pool: Rows, path: Path) -> dict[int, str]:
    """The mark of every sample in the file, by row number; a file about other data is refused."""
    marks = read_marks(path, len(pool))
    number = {("row", str(place)): int(row) for place, row in enumerate(pool)}
    number |= {("id", name): row for row, name in enumerate(own.ids)}
    if foreign := [name for name in marks if name not in number]:
        raise Problem(
            f"{len(foreign):,} of {len(marks):,} ids in {path} are not in this data (the first: {foreign[0][1]!r}); "
            "it was saved for another dataset"
        )
    labels = {name: own.classes[int(own.y[number[name]])] for name in marks}
    if other := [name for name, (_, label) in marks.items() if label not in (None, labels[name])]:
        raise Problem(
            f"{len(other):,} of {len(marks):,} rows in {path} have another label here (the first: {other[0][1]!r}, "
            f"'{labels[other[0]]}'); it was saved for another dataset, or remove the samples whose label you have fixed"
        )
    return {number[name]: mark for name, (mark, _) in marks.items()}


def apply_marks(examined: Examined, path: Path) -> Examined:
    """The same samples with the kinds that a person confirmed."""
    found = match_marks(examined.subject.own, examined.pool, path)
    marks = {row: mark for row, mark in found.items() if examined.place[row] >= 0}  # held-out samples are not examined
    old = examined.diagnosis
    kind, wrong, misclassified = old.kind.astype(object), old.wrong_by_seed.copy(), old.misclassified.copy()
    for row, mark in marks.items():
        kind[row], misclassified[row] = mark, mark != "aligned"
        wrong[:, row] = float(mark == "mislabelled")
    new = replace(old, kind=kind.astype(str), wrong_by_seed=wrong, misclassified=misclassified)
    return replace(examined, diagnosis=new, confirmed=np.array(list(marks), np.int64))
