"""What an audit found: the same for the page, for scripts and for Python."""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from debiaser.files import write_json, write_text

COLUMNS = (
    *("id", "path", "label", "predicted", "score", "probability", "rank"),
    *("p_conflicting", "p_mislabelled", "kind"),
)


@dataclass(frozen=True, eq=False)
class Findings:
    """Verdict, reasons and everything else that `audit --json` prints, and one number per row.

    `rows` has the columns of scores.csv, each (n,): score is larger where a row goes more against the easy rule.
    """

    summary: dict[str, Any]
    rows: dict[str, NDArray[Any]] = field(repr=False)
    folder: Path | None = None

    @property
    def verdict(self) -> str:
        """biased, no evidence, or cannot tell."""
        return str(self.summary["verdict"])

    @property
    def reasons(self) -> list[str]:
        return list(self.summary["reasons"])

    @property
    def scores(self) -> NDArray[np.float64]:
        """(n,) in the order of the data."""
        return np.asarray(self.rows["score"], np.float64)

    @property
    def page(self) -> Path | None:
        """The page, where one was written."""
        return None if self.folder is None else self.folder / "report.html"

    def of_kind(self, kind: str) -> list[str]:
        """The ids of rows of a kind, those that stand out most first."""
        chosen = np.flatnonzero(self.rows["kind"] == kind)
        order = chosen[np.argsort(-self.scores[chosen], kind="stable")]
        return [str(each) for each in self.rows["id"][order]]

    def __repr__(self) -> str:
        counts = {kind: int((self.rows["kind"] == kind).sum()) for kind in ("conflicting", "mislabelled", "unsure")}
        told = ", ".join(f"{count:,} {kind}" for kind, count in counts.items())
        lines = [f"Findings: {self.verdict} ({self.summary['n']:,} rows: {told})"]
        lines += [f"  {reason}" for reason in self.reasons]
        if self.summary.get("repair"):
            lines.append(f"  {self.summary['repair']['sentence']}")
        if self.page:
            lines.append(f"  page: {self.page}")
        return "\n".join(lines)


def write_rows(path: Path, rows: dict[str, NDArray[Any]], unreadable: Sequence[dict[str, str]]) -> None:
    """scores.csv: one line per row, then one per file that could not be read."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(COLUMNS)
    for values in zip(*(rows[name].tolist() for name in COLUMNS), strict=True):
        writer.writerow([plain_cell(value) for value in values])
    for each in unreadable:
        writer.writerow([each["id"], each.get("path", ""), *[""] * (len(COLUMNS) - 3), "unreadable"])
    write_text(path, stream.getvalue())


def plain_cell(value: object) -> object:
    """Numbers short, NaN as nothing."""
    if isinstance(value, float):
        return "" if np.isnan(value) else f"{value:.6g}"
    return value


def write_weights(path: Path, ids: NDArray[np.str_], probability: NDArray[np.float64]) -> None:
    """weights.csv: with which probability each row would be drawn, for any other training loop."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(("id", "probability"))
    writer.writerows((name, f"{value:.9g}") for name, value in zip(ids.tolist(), probability.tolist(), strict=True))
    write_text(path, stream.getvalue())


def write_findings(findings: Findings, folder: Path) -> None:
    """audit.json: the whole summary."""
    write_json(folder / "audit.json", findings.summary)
