"""The store: one folder per finished run; `result.json` is written last, so its presence means done."""

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from debiaser.io import UNREADABLE, write_text
from debiaser.paper.spec import PROTOCOL, Spec

# --- What is read from a finished run besides its metrics: accuracy by stage, selection rules, a histogram of scores

BINS = 10
WATCHED = ("unbiased", "aligned", "conflicting", "worst_group", "valid_loss", "valid_accuracy")
MEASURED_PARTS = ("stages", "selection", "histogram")


def measures(history: Sequence[Mapping[str, Any]], vectors: Mapping[str, Any]) -> dict[str, Any]:
    """`stages`: the last epoch of each; `selection`: three ways to choose an epoch; `histogram`: of the scores."""
    rows = [{name: as_number(value) for name, value in row.items()} | {"stage": row["stage"]} for row in history]
    found: dict[str, Any] = {"histogram": histogram(vectors)}
    if rows:
        ends = {row["stage"]: row for row in rows}
        found["stages"] = {stage: watched(row) for stage, row in ends.items()}
        found["selection"] = selection([row for row in rows if row["stage"] == rows[-1]["stage"]])
    return {name: value for name, value in found.items() if value}


def selection(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The epochs that three rules would report: the last, the lowest biased validation loss, the oracle (D6)."""
    told = [row for row in rows if row.get("valid_loss") is not None and row.get("unbiased") is not None]
    if not told:
        return {}
    chosen = {
        "last": told[-1],
        "best_valid": min(told, key=lambda row: row["valid_loss"]),
        "oracle": max(told, key=lambda row: row["unbiased"]),
    }
    return {rule: {"epoch": row["epoch"], **watched(row)} for rule, row in chosen.items()}


def watched(row: Mapping[str, Any]) -> dict[str, float]:
    """What an epoch's row says about the model."""
    return {name: row[name] for name in WATCHED if row.get(name) is not None}


def histogram(vectors: Mapping[str, Any]) -> dict[str, Any]:
    """Rows of each kind per tenth of the largest score, and each kind's mean of score over largest score."""
    import numpy as np

    score = np.asarray(vectors["score"], dtype=float)
    if not len(score) or not np.isfinite(score).all() or not score.max() > 0:
        return {}
    relative = score / score.max()
    kinds = {"aligned": vectors["conflicting"] == 0, "conflicting": vectors["conflicting"] == 1}
    if not all(mask.any() for mask in kinds.values()):
        return {}
    counts = {kind: np.histogram(relative[mask], BINS, (0, 1))[0].tolist() for kind, mask in kinds.items()}
    return {**counts, "mean": {kind: float(relative[mask].mean()) for kind, mask in kinds.items()}}


def measured(folder: Path) -> dict[str, Any]:
    """The measures of a run from the files in its folder; nothing where they cannot be read."""
    import numpy as np

    try:
        with (folder / "history.csv").open(newline="", encoding="utf-8") as stream:
            history = list(csv.DictReader(stream))
        with np.load(folder / "vectors.npz", allow_pickle=False) as archive:
            return measures(history, {name: archive[name] for name in ("score", "conflicting")})
    except UNREADABLE:
        return {}


def as_number(value: Any) -> float | None:
    """A number, or None for what is not one."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


Result = dict[str, Any]
PARTS: dict[str, Any] = {
    **dict.fromkeys(("spec", "metrics", "seconds", "rows", "environment"), dict),
    **dict.fromkeys(("dataset", "method", "recipe"), str),
    **dict.fromkeys(("seed", "samples_seen"), int | float),
    "rho": int | float | None,
}
ACCURACIES = ("unbiased", "group_average", "worst_group")
LARGEST = 1e30  # no count, time or accuracy is beyond; 1e999 is read as infinity
HISTORY = (
    *("stage", "epoch", "seen", "lr", "loss", "valid_loss", "valid_accuracy"),
    *("unbiased", "aligned", "conflicting", "worst_group", "seconds"),
)


def read_result(run_dir: Path) -> Result | None:
    """The result of a finished run; None where there is none, or none that is whole and this folder's."""
    try:
        return examine(run_dir / "result.json", run_dir.name)
    except (OSError, ValueError, RecursionError):
        return None


def why_unusable(run_dir: Path) -> str:
    """What is wrong with the result that lies in a folder; empty where there is none, or a good one."""
    try:
        examine(run_dir / "result.json", run_dir.name)
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"it cannot be read: {error.strerror}"
    except (ValueError, RecursionError) as error:
        return str(error)
    return ""


def examine(path: Path, key: str) -> Result:  # noqa: C901
    """The result in a file that should be that of the run `key`; a ValueError says what is wrong with it."""
    try:
        result: Result = json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)
    except json.JSONDecodeError as error:
        raise ValueError("it is no complete JSON") from error
    if not isinstance(result, dict) or "protocol" not in result:
        raise ValueError("it is no result of debiaser")
    if result["protocol"] != PROTOCOL:
        raise ValueError(f"it was made under protocol {result['protocol']}, this version has {PROTOCOL}")
    if result.get("key") != key:
        raise ValueError("its name is not that of the run in it")
    for name, kind in PARTS.items():
        if not isinstance(result.get(name), kind):
            raise ValueError(f"it has no usable '{name}'")  # noqa: TRY004 (one kind of error for the caller)
    for name in ("metrics", "seconds", "rows"):
        if not all(value is None or is_number(value) for value in result[name].values()):
            raise ValueError(f"its {name} are not all numbers")
    if None in result["seconds"].values() or not is_number(result["samples_seen"]):
        raise ValueError("its seconds or samples_seen are not all numbers")
    if any(not 0 <= (result["metrics"].get(name) or 0) <= 100 for name in ACCURACIES):
        raise ValueError("its accuracies are no percentages")
    if result.get("histogram") and not is_histogram(result["histogram"]):
        raise ValueError("its histogram is none")
    return result


def is_histogram(value: object) -> bool:
    """Whether it has counts of both kinds of rows, by the same bins, and their means."""
    if not isinstance(value, dict) or not isinstance(value.get("mean"), dict):
        return False
    aligned, conflicting = value.get("aligned"), value.get("conflicting")
    if not isinstance(aligned, list) or not isinstance(conflicting, list) or len(aligned) != len(conflicting):
        return False
    return all(map(is_number, [*aligned, *conflicting, *value["mean"].values()]))


def refuse(constant: str) -> float:
    """NaN and infinity have no place in a result."""
    raise ValueError(constant)


def is_number(value: object) -> bool:
    """Whether it is a finite number, truth values aside."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < LARGEST


def write_history(path: Path, history: Iterable[dict[str, Any]]) -> None:
    """One line per epoch; `seen` counts the samples of all stages so far."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, HISTORY, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    seen = 0
    for row in history:
        seen += row["seen"]
        writer.writerow({**row, "seen": seen})
    write_text(path, stream.getvalue())


def summary(result: Result, run_dir: Path, resumed: bool) -> dict[str, Any]:
    """What `train --json` prints."""
    names = ("dataset", "method", "rho", "seed", "recipe", "metrics", "seconds", "rows", "samples_seen", "published")
    return {**{name: result[name] for name in names}, "run_dir": str(run_dir), "resumed": resumed}


def new_result(spec: Spec, **found: Any) -> Result:
    """The result of a run: its identity and what was found."""
    return {
        "protocol": PROTOCOL,
        "key": spec.key,
        "spec": spec.plain(),
        "dataset": spec.dataset,
        "method": spec.label,
        "rho": spec.rho,
        "seed": spec.seed,
        "recipe": spec.recipe.name,
        **found,
    }
