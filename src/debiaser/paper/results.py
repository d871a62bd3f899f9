"""Whether a result that lies in a folder counts as that of a run, and what the paper prints for it."""

import csv
import math
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from debiaser.io import UNREADABLE
from debiaser.paper.spec import PROTOCOL, digest_of
from debiaser.report.runs import Result, read_result, why

BINS = 10  # of the histogram of scores


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
    return ""


@dataclass(frozen=True)
class Published:
    """One printed number, with what contradicts it in `note` (D1, D2, ... are entries of our list of discrepancies).

    `metric` has our names: `unbiased` (percent, over test samples), `group_average` (mean over the groups), `seconds`
    and so on; in the table `hyperparam` it is the hyperparameter. `mean` is None where the paper prints a word, a dash
    or only a figure; then the note says so.
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
