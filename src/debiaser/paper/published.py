"""The paper's own numbers, to stand beside ours; `paper.csv` is the only place in the code that holds them.

Rows are in the order of the paper, labelled as its source labels tables and figures. `metric` has our names: `unbiased`
(percent, over all test rows), `group_average` (mean over the groups), `worst_group`, `seconds`, ...; in `hyperparam` it
is the hyperparameter. `mean` is empty where the paper prints a word, a dash or only a picture; then the note says so.
"""

import csv
import math
from dataclasses import dataclass
from functools import cache
from importlib.resources import files


@dataclass(frozen=True)
class Published:
    """One printed number, with what contradicts it in `note` (D1, D2, ... are entries of our list of discrepancies)."""

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


def numbers() -> list[Published]:
    """Every number that the paper prints, in its order."""
    return list(_read())


@cache
def _read() -> tuple[Published, ...]:
    text = (files(__package__) / "paper.csv").read_text(encoding="utf-8")
    return tuple(_published(row) for row in csv.DictReader(text.splitlines()))


def _published(row: dict[str, str]) -> Published:
    rho, mean, std = (float(row[key]) if row[key] else None for key in ("rho", "mean", "std"))
    runs = int(row["runs"]) if row["runs"] else None
    words = {key: row[key] for key in ("label", "dataset", "method", "variant", "metric", "note")}
    return Published(rho=rho, mean=mean, std=std, runs=runs, **words)


def published(
    dataset: str,
    method: str,
    rho: float | None,
    metric: str = "unbiased",
    label: str | None = None,
    variant: str = "",
) -> Published | None:
    """The number to show beside ours, from the table `label` or else from the first that has it: the main one."""
    for number in _read():
        same = (number.dataset, number.method, number.metric, number.variant) == (dataset, method, metric, variant)
        if same and label in (None, number.label) and _alike(number.rho, rho):
            return number
    return None


def table(label: str) -> list[Published]:
    """The numbers of one table or figure, by the label it has in the paper's source; empty if there is none."""
    return [number for number in _read() if number.label == label]


def _alike(one: float | None, other: float | None) -> bool:
    return one is other if one is None or other is None else math.isclose(one, other)
