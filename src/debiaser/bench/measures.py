"""What is read from a finished run besides its metrics: accuracy by stage, selection rules, a histogram of scores.

Plain numbers from `history.csv` and `vectors.npz`, kept in `result.json`, so that a study needs nothing else.
"""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from debiaser.files import UNREADABLE

BINS = 10
WATCHED = ("unbiased", "aligned", "conflicting", "worst_group", "valid_loss", "valid_accuracy")
PARTS = ("stages", "selection", "histogram")


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
