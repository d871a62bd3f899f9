"""What a person marked in the page, taken back: a CSV of ids and marks."""

import csv
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from debiaser.auditing.examine import Examined
from debiaser.auditing.jobs import Rows
from debiaser.data.own import OwnData
from debiaser.errors import Problem

MARKS = ("aligned", "conflicting", "mislabelled")


@dataclass(frozen=True)
class Mark:
    """What a person called a row, and the label that it had in the page (None in files that do not say it)."""

    word: str
    label: str | None = None


def read_marks(path: Path, examined: int | None = None) -> dict[tuple[str, str], Mark]:
    """The mark of every row in the file, by ("id" or "row", its value); row numbers are of `examined` rows."""
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
            f"the row numbers in {path} are of a page of {rows[0]['rows']} rows, and this run examines {examined}: "
            "mark in the page of the same command (debias holds test rows out), or in one with paths"
        )
    marks = {(name, str(row[name])): Mark(str(row["mark"]), row.get("label")) for row in rows}
    if torn := [row[name] for row in rows if marks[name, str(row[name])].word != str(row["mark"])]:
        raise Problem(f"{path} marks {torn[0]!r} in two ways; keep one of its lines")
    unknown = sorted({mark.word for mark in marks.values()} - set(MARKS))
    if unknown:
        raise Problem(f"{path} has the mark '{unknown[0]}'; known: {', '.join(MARKS)}")
    return marks


def match_marks(own: OwnData, pool: Rows, path: Path) -> dict[int, str]:
    """The mark of every row in the file, by row number; a file about other data is refused."""
    marks = read_marks(path, len(pool))
    number = {("row", str(place)): int(row) for place, row in enumerate(pool)}
    number |= {("id", name): row for row, name in enumerate(own.ids)}
    foreign = [name for name in marks if name not in number]
    if foreign:
        raise Problem(
            f"{len(foreign):,} of {len(marks):,} ids in {path} are not in this data (the first: {foreign[0][1]!r}); "
            "it was saved for another dataset"
        )
    labels = {name: own.classes[int(own.y[number[name]])] for name in marks}
    other = [name for name, mark in marks.items() if mark.label not in (None, labels[name])]
    if other:
        raise Problem(
            f"{len(other):,} of {len(marks):,} rows in {path} have another label here (the first: {other[0][1]!r}, "
            f"'{labels[other[0]]}'); it was saved for another dataset, or remove the rows whose label you have mended"
        )
    return {number[name]: mark.word for name, mark in marks.items()}


def apply_marks(examined: Examined, path: Path) -> Examined:
    """The same rows with the kinds that a person confirmed."""
    found = match_marks(examined.subject.own, examined.pool, path)
    marks = {row: mark for row, mark in found.items() if examined.place[row] >= 0}  # held-out rows are not examined
    diagnosis = examined.diagnosis
    kind, wrong, misclassified = (
        diagnosis.kind.copy().astype(object),
        diagnosis.wrong_by_seed.copy(),
        diagnosis.misclassified.copy(),
    )
    for row, mark in marks.items():
        kind[row], misclassified[row] = mark, mark != "aligned"
        wrong[:, row] = float(mark == "mislabelled")
    named = replace(diagnosis, kind=kind.astype(str), wrong_by_seed=wrong, misclassified=misclassified)
    return replace(examined, diagnosis=named, confirmed=np.array(list(marks), np.int64))
