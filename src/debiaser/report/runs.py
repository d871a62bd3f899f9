"""Finding and reading finished runs; what cannot be read becomes a sentence, never a crash."""

import csv
import json
import math
import os
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from debiaser.errors import Problem
from debiaser.io import UNREADABLE

Result = dict[str, Any]
Arrays = dict[str, np.ndarray]

# A folder that holds one of these and no result.json is a run that was stopped or is still going.
TRACES = ("history.csv", "vectors.npz", "samples.npz")
NUMBERS = ("epoch", "seen", "lr", "loss", "valid_loss", "valid_accuracy", "unbiased", "aligned", "conflicting")


class Found(list[Path]):
    """Run folders; `left_out` has one sentence for each folder that could not be used, for the end of the page."""

    def __init__(self, folders: Iterable[Path] = (), left_out: Iterable[str] = ()) -> None:
        super().__init__(folders)
        self.left_out = list(left_out)


@dataclass(frozen=True)
class Details:
    """What lies beside a result: curves, vectors, pictures; None where missing, and why in `notes`."""

    history: list[dict[str, Any]] | None
    vectors: Arrays | None
    samples: Arrays | None
    notes: tuple[str, ...]


LARGEST = 1e30  # no count, share, time or accuracy is beyond; sums of such numbers cannot overflow


def number(value: Any) -> float | None:
    """A float of sensible size, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) and abs(value) < LARGEST else None
    except OverflowError:
        return None  # an integer with hundreds of digits


def read_result(folder: Path) -> Result:
    """The content of result.json and its `folder`; an error of UNREADABLE says why it is not one of ours.

    A file in place of a folder is a copy of a result, with nothing beside it.
    """
    path = folder / "result.json" if folder.is_dir() else folder
    content = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict) or "protocol" not in content:
        raise ValueError("no run of debiaser: it names no protocol")
    for name, kind in {"dataset": str, "method": str, "metrics": dict}.items():
        if not isinstance(content.get(name), kind):
            raise ValueError(f"no usable '{name}' in it")  # noqa: TRY004 (one kind of error for the caller)
    for name in ("spec", "seconds", "rows", "environment", "published"):
        if not isinstance(content.get(name), dict):
            content[name] = {}
    for name in ("classes", "notes"):
        if not isinstance(content.get(name), list):
            content[name] = []
    content["folder"] = folder
    return content


def why(error: BaseException) -> str:
    """The reason of an error in a few words, without a path of this machine."""
    if isinstance(error, json.JSONDecodeError):
        return "it is no complete JSON"
    if isinstance(error, UnicodeDecodeError):
        return "it is no text"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return str(error) or type(error).__name__


def survey(folder: Path) -> Found:
    """The run folders and copies of results (`<dataset>/<dataset>-....json`) at any depth below `folder`, sorted."""
    found: list[Path] = []
    left_out: list[str] = []
    for name, subfolders, files in os.walk(folder):
        subfolders.sort()
        here = Path(name)
        shown = here.relative_to(folder).as_posix() if here != folder else here.name
        copies = sorted(each for each in files if each.startswith(f"{here.name}-") and each.endswith(".json"))
        for each in [here] * ("result.json" in files) + [here / copy for copy in copies]:
            try:
                read_result(each)
            except UNREADABLE as error:
                what = f"{shown}: result.json" if each == here else f"{shown}/{each.name}: it"
                left_out.append(f"{what} was left out: {why(error)}.")
            else:
                found.append(each)
        traces = "checkpoint" in subfolders or any(trace in files for trace in TRACES)
        if traces and "result.json" not in files:
            left_out.append(f"{shown}: left out, the run has no result.json: it was stopped or is still going.")
    return Found(found, left_out)


def find_runs(folder: Path) -> Found:
    """Every folder at or below `folder` that holds a readable result; a Problem if there is none."""
    if not folder.is_dir():
        raise Problem(f"cannot report on {folder}: it is not a folder; give the folder that holds your runs")
    found = survey(folder)
    if not found:
        reason = f" ({found.left_out[0].rstrip('.')})" if found.left_out else ""
        raise Problem(f"no finished run in {folder}{reason}; run `debiaser demo` or `debiaser train` first")
    return found


def read_details(folder: Path) -> Details:
    """Everything beside result.json that can be read."""
    notes: list[str] = []
    history = _attempt(folder / "history.csv", _read_history, notes)
    vectors = _attempt(folder / "vectors.npz", _read_vectors, notes)
    samples = _attempt(folder / "samples.npz", _read_samples, notes)
    return Details(history, vectors, samples, tuple(notes))


def _attempt(path: Path, read: Any, notes: list[str]) -> Any:
    if not path.is_file():
        notes.append(f"{path.name} is missing")
        return None
    try:
        return read(path)
    except UNREADABLE as error:
        notes.append(f"{path.name} cannot be read: {why(error)}")
        return None


def _read_history(path: Path) -> list[dict[str, Any]]:
    with path.open(newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    if not rows or "seen" not in rows[0] or "stage" not in rows[0]:
        raise ValueError("it has no rows with a stage and the samples seen")
    return [{"stage": row["stage"] or "", **{name: _cell(row.get(name)) for name in NUMBERS}} for row in rows]


def _cell(text: str | None) -> float | None:
    return number(float(text)) if text else None


def _read_arrays(path: Path, names: tuple[str, ...]) -> Arrays:
    if not zipfile.is_zipfile(path):
        raise ValueError("it is no .npz archive")
    with np.load(path, allow_pickle=False) as archive:
        return {name: np.asarray(archive[name]) for name in names}


def _check_aligned(arrays: Arrays, names: tuple[str, ...]) -> None:
    """One number per row in each of these arrays, and as many rows in all."""
    for name in names:
        if arrays[name].ndim != 1 or not np.issubdtype(arrays[name].dtype, np.number):
            raise ValueError(f"{name} is not one number per row")
    if len({len(arrays[name]) for name in names}) != 1:
        raise ValueError("its arrays differ in length")


def _check_pictures(arrays: Arrays, name: str, rows: int) -> None:
    images = arrays[name]
    if images.shape[:1] != (rows,):
        raise ValueError("its arrays differ in length")
    if rows and (images.ndim != 4 or images.shape[3] != 3 or images.dtype != np.uint8 or not images.size):
        raise ValueError(f"{name} are not 8-bit colour pictures")


def _read_vectors(path: Path) -> Arrays:
    names = ("score", "conflicting", "flipped")
    arrays = _read_arrays(path, names)
    _check_aligned(arrays, names)
    return arrays


def _read_samples(path: Path) -> Arrays:
    train = ("train_rows", "train_labels", "train_scores", "train_conflicting", "train_bias")
    test = ("test_rows", "test_labels", "test_bias", "test_conflicting")
    arrays = _read_arrays(path, (*train, *test, "train_images", "test_images", "test_probabilities"))
    _check_aligned(arrays, train)
    _check_aligned(arrays, test)
    _check_pictures(arrays, "train_images", len(arrays["train_rows"]))
    _check_pictures(arrays, "test_images", len(arrays["test_rows"]))
    table = arrays["test_probabilities"]
    if table.ndim != 2 or len(table) != len(arrays["test_rows"]) or not np.issubdtype(table.dtype, np.number):
        raise ValueError("test_probabilities is not a table with one row per picture")
    if len(table) and not table.shape[1]:
        raise ValueError("test_probabilities has no columns")
    return arrays
