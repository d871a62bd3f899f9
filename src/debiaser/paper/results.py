"""The result of a run: what is in it, whether one that lies in a folder counts, and what the paper prints for it."""

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from debiaser.io import UNREADABLE, write_text
from debiaser.paper.spec import PROTOCOL, Spec, digest_of
from debiaser.report.runs import Result, number, read_result, why

BINS = 10
WATCHED = ("unbiased", "aligned", "conflicting", "worst_group", "valid_loss", "valid_accuracy")
HISTORY = (
    *("stage", "epoch", "seen", "lr", "loss", "valid_loss", "valid_accuracy"),
    *("unbiased", "aligned", "conflicting", "worst_group", "seconds"),
)


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


def summary(result: Result, run_dir: Path, resumed: bool) -> dict[str, Any]:
    """What `train --json` prints."""
    names = ("dataset", "method", "rho", "seed", "recipe", "metrics", "seconds", "rows", "samples_seen", "published")
    return {**{name: result[name] for name in names}, "run_dir": str(run_dir), "resumed": resumed}


def finished(folder: Path) -> tuple[Result | None, str]:
    """The result of the finished run in a folder; without one None, and why the file there does not count, if any."""
    if not (folder / "result.json").exists():
        return None, ""
    try:
        result = read_result(folder)
    except UNREADABLE as error:
        return None, why(error)
    if wrong := problem_with(result):
        return None, wrong
    del result["folder"]
    return result, ""


def problem_with(result: Result) -> str:
    """Why a result that was read cannot count as that of the run which names its folder or file; empty if it can."""
    folder = result["folder"]
    if result["protocol"] != PROTOCOL:
        return f"it was made under protocol {result['protocol']}, this version has {PROTOCOL}"
    if result.get("key") != (folder.stem if folder.suffix == ".json" else folder.name):
        return "its name is not that of the run in it"
    if not result["key"].endswith(f"-{digest_of(result['spec'])}"):
        return "its settings are not those that its key was made of"
    values = [*result["metrics"].values(), *result["seconds"].values(), *result["rows"].values()]
    if any(value is not None and number(value) is None for value in [*values, result.get("samples_seen", "")]):
        return "its metrics, seconds, rows and samples_seen are not all numbers"
    return ""


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


def measures(history: Sequence[Mapping[str, Any]], vectors: Mapping[str, Any]) -> dict[str, Any]:
    """`stages`: the last epoch of each; `selection`: three ways to choose an epoch; `histogram`: of the scores."""
    found: dict[str, Any] = {"histogram": histogram(vectors)}
    if history:
        found["stages"] = {row["stage"]: watched(row) for row in history}
        found["selection"] = selection([row for row in history if row["stage"] == history[-1]["stage"]])
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
    return {rule: {"epoch": float(row["epoch"]), **watched(row)} for rule, row in chosen.items()}


def watched(row: Mapping[str, Any]) -> dict[str, float]:
    """What an epoch's row says about the model."""
    return {name: float(row[name]) for name in WATCHED if row.get(name) is not None}


def histogram(vectors: Mapping[str, Any]) -> dict[str, Any]:
    """Rows of each kind per tenth of the largest score, and each kind's mean of score over largest score."""
    score = np.asarray(vectors["score"], dtype=float)
    if not len(score) or not np.isfinite(score).all() or not score.max() > 0:
        return {}
    relative = score / score.max()
    kinds = {"aligned": vectors["conflicting"] == 0, "conflicting": vectors["conflicting"] == 1}
    if not all(mask.any() for mask in kinds.values()):
        return {}
    counts = {kind: np.histogram(relative[mask], BINS, (0, 1))[0].tolist() for kind, mask in kinds.items()}
    return {**counts, "mean": {kind: float(relative[mask].mean()) for kind, mask in kinds.items()}}


@dataclass(frozen=True)
class Published:
    """One printed number, with what contradicts it in `note` (D1, D2, ... are entries of our list of discrepancies).

    `metric` has our names: `unbiased` (percent, over all test rows), `group_average` (mean over the groups), `seconds`
    and so on; in the table `hyperparam` it is the hyperparameter. `mean` is None where the paper prints a word, a dash
    or only a picture; then the note says so.
    """

    label: str
    dataset: str
    rho: float | None
    method: str
    variant: str
    metric: str
    mean: float | None
    std: float | None
    runs: int | None
    note: str


@cache
def numbers() -> tuple[Published, ...]:
    """Every number that the paper prints, in its order; `paper.csv` is the only place in the code that holds them."""
    found = []
    for row in csv.DictReader((files(__package__) / "paper.csv").read_text(encoding="utf-8").splitlines()):
        values: dict[str, Any] = {name: float(row[name]) if row[name] else None for name in ("rho", "mean", "std")}
        found.append(Published(**{**row, **values, "runs": int(row["runs"]) if row["runs"] else None}))
    return tuple(found)


def published(
    dataset: str,
    method: str,
    rho: float | None,
    metric: str = "unbiased",
    label: str | None = None,
    variant: str = "",
) -> Published | None:
    """The number to show beside ours, from the table `label` or else from the first that has it: the main one."""
    for each in numbers():
        same = (each.dataset, each.method, each.metric, each.variant) == (dataset, method, metric, variant)
        same_rho = each.rho is rho if each.rho is None or rho is None else math.isclose(each.rho, rho)
        if same and same_rho and label in (None, each.label):
            return each
    return None


def table(label: str) -> list[Published]:
    """The numbers of one table or figure, by the label it has in the paper's source; empty if there is none."""
    return [each for each in numbers() if each.label == label]
