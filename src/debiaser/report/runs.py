"""Finding and reading finished runs: the one reader of `result.json`, for pages, studies and documents alike.

What cannot be read becomes a sentence, never a crash.
"""

import csv
import json
import math
import os
from collections.abc import Callable, Iterable, Sequence
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
STAGES = "stages"  # the folder below a folder of runs that keeps stages for other runs; it holds no results
NUMBERS = ("epoch", "seen", "lr", "loss", "valid_loss", "valid_accuracy", "unbiased", "aligned", "conflicting")
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
        raise ValueError("it is no result of debiaser")
    for name, kind in {"dataset": str, "method": str, "metrics": dict}.items():
        if not isinstance(content.get(name), kind):
            raise ValueError(f"no usable '{name}' in it")  # noqa: TRY004 (one kind of error for the caller)
    parts: dict[str, Any] = {name: {} for name in ("spec", "seconds", "rows", "environment")}
    parts |= {"classes": [], "notes": [], "published": None}
    for name, usual in parts.items():
        if not isinstance(content.get(name), list if usual == [] else dict):
            content[name] = usual
    return {**content, "folder": folder}


def why(error: BaseException) -> str:
    """The reason of an error in a few words, without a path of this machine."""
    if isinstance(error, json.JSONDecodeError):
        return "it is no complete JSON"
    if isinstance(error, UnicodeDecodeError):
        return "it is no text"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return str(error) or type(error).__name__


class Found(list[Path]):
    """Run folders with their `results`, in the same order; `left_out` has one sentence for each that cannot be used.

    `stopped` has one for each run without a result.
    """

    def __init__(self) -> None:
        super().__init__()
        self.results: list[Result] = []
        self.left_out: list[str] = []
        self.stopped: list[str] = []


def survey(folder: Path) -> Found:
    """The run folders and copies of results (`<dataset>/<dataset>-....json`) at any depth below `folder`, sorted."""
    found = Found()
    for name, subfolders, files in os.walk(folder):
        subfolders[:] = sorted(each for each in subfolders if each != STAGES)
        here = Path(name)
        shown = here.relative_to(folder).as_posix() if here != folder else here.name
        copies = sorted(each for each in files if each.startswith(f"{here.name}-") and each.endswith(".json"))
        for path in [here] * ("result.json" in files) + [here / copy for copy in copies]:
            try:
                found.results.append(read_result(path))
                found.append(path)
            except UNREADABLE as error:
                what = f"{shown}: result.json" if path == here else f"{shown}/{path.name}: it"
                found.left_out.append(f"{what} was left out: {why(error)}.")
        traces = "checkpoint" in subfolders or any(trace in files for trace in TRACES)
        if traces and "result.json" not in files:
            found.stopped.append(f"{shown}: left out, the run has no result.json: it was stopped or is still going.")
    return found


def find_runs(folder: Path) -> Found:
    """Every folder at or below `folder` that holds a readable result; a Problem if there is none."""
    if not folder.is_dir():
        raise Problem(f"cannot report on {folder}: it is not a folder; give the folder that holds your runs")
    found = survey(folder)
    found.left_out += found.stopped
    if not found:
        reason = f" ({found.left_out[0].rstrip('.')})" if found.left_out else ""
        raise Problem(f"no finished run in {folder}{reason}; run `debiaser demo` or `debiaser train` first")
    return found


@dataclass(frozen=True)
class Details:
    """What lies beside a result: curves, vectors, pictures; None where missing, and why in `notes`."""

    history: list[dict[str, Any]] | None
    vectors: Arrays | None
    samples: Arrays | None
    notes: tuple[str, ...]


def read_details(folder: Path) -> Details:
    """Everything beside result.json that can be read."""
    notes: list[str] = []

    def attempt(name: str, read: Callable[[Path], Any]) -> Any:
        try:
            return read(folder / name)
        except (FileNotFoundError, NotADirectoryError):
            notes.append(f"{name} is missing")
        except UNREADABLE as error:
            notes.append(f"{name} cannot be read: {why(error)}")
        return None

    history, vectors = attempt("history.csv", _read_history), attempt("vectors.npz", _read_vectors)
    return Details(history, vectors, attempt("samples.npz", _read_samples), tuple(notes))


def _read_history(path: Path) -> list[dict[str, Any]]:
    with path.open(newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    if not rows or "seen" not in rows[0] or "stage" not in rows[0]:
        raise ValueError("it has no rows with a stage and the samples seen")
    numbers = [{name: number(float(row[name])) if row.get(name) else None for name in NUMBERS} for row in rows]
    return [{"stage": row["stage"] or "", **each} for row, each in zip(rows, numbers, strict=True)]


def _read_arrays(path: Path, names: Iterable[str]) -> Arrays:
    with path.open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
        return {name: np.asarray(archive[name]) for name in names}


def _read_vectors(path: Path) -> Arrays:
    names = ("score", "conflicting", "flipped")
    arrays = _read_arrays(path, names)
    _check_lengths(arrays, names)
    return arrays


def _read_samples(path: Path) -> Arrays:
    names = {
        part: [f"{part}_{name}" for name in ("rows", "labels", "conflicting", "bias", "images", own)]
        for part, own in (("train", "scores"), ("test", "probabilities"))
    }
    arrays = _read_arrays(path, [*names["train"], *names["test"]])
    for part, columns in names.items():
        _check_lengths(arrays, columns)
        images = arrays[f"{part}_images"]
        if len(images) and (images.ndim != 4 or images.shape[3] != 3 or images.dtype != np.uint8 or not images.size):
            raise ValueError(f"{part}_images are not 8-bit colour pictures")
    if arrays["test_probabilities"].ndim != 2:
        raise ValueError("test_probabilities is not a table with one row per picture")
    return arrays


def _check_lengths(arrays: Arrays, names: Sequence[str]) -> None:
    """Numbers in each of these arrays, and as many rows in all."""
    if not all(arrays[name].ndim and np.issubdtype(arrays[name].dtype, np.number) for name in names):
        raise ValueError(f"not all of {', '.join(names)} are rows of numbers")
    if len({len(arrays[name]) for name in names}) != 1:
        raise ValueError("its arrays differ in length")
