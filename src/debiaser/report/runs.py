"""Finding and reading finished runs: the one reader of `result.json`, for pages, studies and documents alike.

What cannot be read becomes a sentence, never a crash.
"""

import csv
import json
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from debiaser.errors import Problem
from debiaser.io import UNREADABLE, read_arrays

Result = dict[str, Any]
Arrays = dict[str, np.ndarray]

# A folder that holds one of these and no result.json is a run that was stopped or is still going.
TRACES = ("history.csv", "vectors.npz", "samples.npz")
STAGES = "stages"  # the folder below a folder of runs that keeps stages for other runs; it holds no results
LARGEST = 1e30  # no count, share, time or accuracy is beyond; sums of such numbers cannot overflow
PARTS = {"key": str, "dataset": str, "method": str, "recipe": str, "seed": int, "spec": dict, "metrics": dict}
PARTS |= {"seconds": dict, "rows": dict, "environment": dict}


def is_number(value: Any) -> bool:
    """Whether this is a number of sensible size."""
    return isinstance(value, int | float) and abs(value) < LARGEST


def read_result(folder: Path) -> Result:
    """The content of result.json and its `folder`; an error of UNREADABLE says why it is not one of ours.

    A file in place of a folder is a copy of a result, with nothing beside it.
    """
    path = folder / "result.json" if folder.is_dir() else folder
    content = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict) or "protocol" not in content:
        raise ValueError("it is no result of debiaser")
    for name, kind in PARTS.items():
        if not isinstance(content.get(name), kind):
            raise ValueError(f"no usable '{name}' in it")  # noqa: TRY004 (one kind of error for the caller)
    found = [*content["metrics"].values(), *content["seconds"].values(), *content["rows"].values()]
    found += [content.get("rho"), content.get("samples_seen", "")]
    if not all(value is None or is_number(value) for value in found):
        raise ValueError("its metrics, seconds, rows, rho and samples_seen are not all numbers")
    return {"classes": [], "notes": [], "published": None, **content, "folder": folder}


def why(error: BaseException) -> str:
    """The reason of an error in a few words, without a path of this machine."""
    if isinstance(error, json.JSONDecodeError):
        return "it is no complete JSON"
    if isinstance(error, UnicodeDecodeError):
        return "it is no text"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return str(error) or type(error).__name__


@dataclass
class Found:
    """Results, each with its `folder`; a sentence for each file that cannot be used, and for each unfinished run."""

    results: list[Result] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    stopped: list[str] = field(default_factory=list)


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
            except UNREADABLE as error:
                what = f"{shown}: result.json" if path == here else f"{shown}/{path.name}: it"
                found.left_out.append(f"{what} was left out: {why(error)}.")
        traces = "checkpoint" in subfolders or any(trace in files for trace in TRACES)
        if traces and "result.json" not in files:
            found.stopped.append(f"{shown}: left out, the run has no result.json: it was stopped or is still going.")
    return found


def find_runs(folder: Path) -> Found:
    """Every readable result at or below `folder`; a Problem if there is none."""
    if not folder.is_dir():
        raise Problem(f"cannot report on {folder}: it is not a folder; give the folder that holds your runs")
    found = survey(folder)
    found.left_out += found.stopped
    if not found.results:
        reason = f" ({found.left_out[0].rstrip('.')})" if found.left_out else ""
        raise Problem(f"no finished run in {folder}{reason}; run `debiaser demo` or `debiaser train` first")
    return found


@dataclass(frozen=True)
class Details:
    """What lies beside a result: curves, vectors, images; None where missing, and why in `notes`, by file."""

    history: list[dict[str, Any]] | None
    vectors: Arrays | None
    samples: Arrays | None
    notes: dict[str, str]


def read_details(folder: Path) -> Details:
    """Everything beside result.json that can be read."""
    notes: dict[str, str] = {}

    def attempt(name: str, read: Callable[[Path], Any]) -> Any:
        try:
            return read(folder / name)
        except (FileNotFoundError, NotADirectoryError):
            notes[name] = f"{name} is missing"
        except UNREADABLE as error:
            notes[name] = f"{name} cannot be read: {why(error)}"
        return None

    vectors = ("score", "conflicting", "flipped")
    samples = [f"{part}_{name}" for part in ("train", "test") for name in ("rows", "labels", "conflicting", "bias")]
    samples += ["train_images", "test_images", "train_scores", "test_probabilities"]
    return Details(
        attempt("history.csv", _read_history),
        attempt("vectors.npz", lambda path: _read_arrays(path, vectors)),
        attempt("samples.npz", lambda path: _read_arrays(path, samples)),
        notes,
    )


def _read_history(path: Path) -> list[dict[str, Any]]:
    """The stage of every epoch, samples seen so far and accuracies; None where one was not measured."""
    epochs = []
    with path.open(newline="", encoding="utf-8") as stream:
        for row in csv.DictReader(stream):
            numbers = {name: float(row[name]) if row[name] else None for name in ("seen", "unbiased", "conflicting")}
            if not all(value is None or is_number(value) for value in numbers.values()):
                raise ValueError("not all in it are numbers")
            epochs.append({"stage": row["stage"], **numbers})
    return epochs


def _read_arrays(path: Path, names: Iterable[str]) -> Arrays:
    archive = read_arrays(path)
    return {name: archive[name] for name in names}
