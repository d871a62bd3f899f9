"""Reading what an audit wrote into its folder; only a missing or torn finding is a problem, the rest becomes a note."""

import csv
import hashlib
import json
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from debiaser.errors import Problem
from debiaser.files import UNREADABLE
from debiaser.report.runs import Arrays, why

Findings = dict[str, Any]
KINDS = ("aligned", "conflicting", "mislabelled", "unsure", "unreadable")
COLUMNS = ("id", "path", "label", "predicted", "kind")
NUMBERS = ("score", "probability", "rank", "p_conflicting", "p_mislabelled")
MOST_CHARACTERS = 2_000_000  # of one cell; an id beyond that is a mistake in the table

Read = TypeVar("Read")


@dataclass(frozen=True, eq=False)
class Scores:
    """`scores.csv` by column: text as lists, numbers as float arrays with NaN where a cell is empty."""

    text: dict[str, list[str]]
    numbers: dict[str, np.ndarray]

    def __len__(self) -> int:
        return len(self.text["id"])


@dataclass(frozen=True, eq=False)
class Audit:
    """All that the page is made of; `digest` tells two audits apart, `notes` says what could not be read."""

    findings: Findings
    scores: Scores
    digest: str
    pictures: Arrays | None
    swaps: Arrays | None
    texts: dict[int, dict[str, Any]]
    notes: tuple[str, ...]
    text_swaps: dict[str, list[dict[str, Any]]] = field(default_factory=dict)


def read_audit(folder: Path, with_samples: bool = True) -> Audit:
    """The audit in this folder; without samples no picture and no text is even opened."""
    findings = _needed(folder / "audit.json", _read_findings)
    scores = _needed(folder / "scores.csv", _read_scores)
    digest = hashlib.sha256((folder / "scores.csv").read_bytes()).hexdigest()[:16]
    notes: list[str] = []
    pictures = swaps = None
    texts: dict[int, dict[str, Any]] = {}
    text_swaps: dict[str, list[dict[str, Any]]] = {}
    if with_samples and findings.get("kind") == "text":
        texts = _optional(folder / "texts.json", _read_texts, notes) or {}
        text_swaps = _optional(folder / "swaps.json", _read_text_swaps, notes) or {}
    elif with_samples:
        pictures = _optional(folder / "pictures.npz", _read_pictures, notes)
        swaps = _optional(folder / "swaps.npz", _read_swaps, notes)
    return Audit(findings, scores, digest, pictures, swaps, texts, tuple(notes), text_swaps)


def _needed(path: Path, read: Callable[[Path], Read]) -> Read:
    try:
        return read(path)
    except FileNotFoundError as error:
        raise Problem(f"no {path.name} in {path.parent}: no audit ended there; run `debiaser audit` again") from error
    except (*UNREADABLE, csv.Error) as error:
        raise Problem(f"cannot read {path}: {why(error)}; run `debiaser audit` again") from error


def _optional(path: Path, read: Callable[[Path], Read], notes: list[str]) -> Read | None:
    if not path.exists():
        return None
    try:
        return read(path)
    except UNREADABLE as error:
        notes.append(f"{path.name} cannot be read ({why(error)}), so what it holds is not shown.")
        return None


def _read_findings(path: Path) -> Findings:
    content = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict) or "verdict" not in content:
        raise ValueError("it holds no verdict")
    return content


def _read_scores(path: Path) -> Scores:
    csv.field_size_limit(max(csv.field_size_limit(), MOST_CHARACTERS))
    with path.open(newline="", encoding="utf-8") as stream:
        reader = csv.reader(stream)
        heading = next(reader, [])
        missing = [name for name in (*COLUMNS, *NUMBERS) if name not in heading]
        if missing:
            raise ValueError(f"it has no column {missing[0]}")
        rows = [row for row in reader if row]
    if any(len(row) != len(heading) for row in rows):
        raise ValueError("its rows and its heading differ in length")
    columns = list(zip(*rows, strict=True)) or [()] * len(heading)
    by_name = dict(zip(heading, columns, strict=True))
    numbers = {name: np.array([float(cell) if cell else np.nan for cell in by_name[name]]) for name in NUMBERS}
    return Scores({name: list(by_name[name]) for name in COLUMNS}, numbers)


def _read_arrays(path: Path) -> Arrays:
    if not zipfile.is_zipfile(path):
        raise ValueError("it is no .npz archive")
    with np.load(path, allow_pickle=False) as archive:
        return {name: np.asarray(archive[name]) for name in archive.files}


def _read_pictures(path: Path) -> Arrays:
    arrays = _read_arrays(path)
    rows, picture = arrays["rows"], arrays["picture"]
    if picture.shape[:1] != rows.shape or picture.shape[3:] != (3,) or picture.dtype != np.uint8:
        raise ValueError("it holds no 8-bit colour picture per row")
    for name in ("probability_easy", "probability_debiased"):
        if name in arrays and arrays[name].shape[:1] != rows.shape:
            raise ValueError(f"{name} has not one line per row")
    return arrays


def _read_swaps(path: Path) -> Arrays:
    arrays = _read_arrays(path)
    if len({len(arrays[name]) for name in ("view", "original", "donor", "swapped", "answers")}) != 1:
        raise ValueError("its arrays differ in length")
    return arrays


def _read_texts(path: Path) -> dict[int, dict[str, Any]]:
    content = json.loads(path.read_text(encoding="utf-8"))
    return {int(row): entry for row, entry in content.items()}


def _read_text_swaps(path: Path) -> dict[str, list[dict[str, Any]]]:
    content = json.loads(path.read_text(encoding="utf-8"))
    if any(len(each["texts"]) != 3 or len(each["answers"]) != 3 for strips in content.values() for each in strips):
        raise ValueError("a swap in it has not three texts and three answers")
    return {str(view): strips for view, strips in content.items()}
