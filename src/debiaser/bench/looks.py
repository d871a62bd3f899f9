"""What a benchmark is made of, in numbers and in pictures, for `data check` and `data show`."""

from pathlib import Path
from typing import Any

import numpy as np

from debiaser.bench.samples import as_pictures
from debiaser.data import Benchmark
from debiaser.report.sheet import write_sheet

ALIGNED_ROWS = 3


def statistics(benchmark: Benchmark) -> dict[str, dict[str, Any]]:
    """Per split: rows, rows that go against the shortcut (None where unknown), flipped labels, rows per class."""
    found = {}
    for part in ("train", "valid", "test"):
        split, truth = getattr(benchmark, part), benchmark.truth[part]
        kind = truth.conflicting(split.y)
        found[part] = {
            "rows": len(split),
            "conflicting": None if (kind < 0).any() else int(kind.sum()),
            "flipped": int(truth.flipped(split.y).sum()),
            "per_class": np.bincount(split.y.numpy(), minlength=len(benchmark.classes)).tolist(),
        }
    return found


def draw(benchmark: Benchmark, path: Path) -> Path:
    """The training set as the paper draws it: rows of aligned samples, then a row of conflicting ones."""
    split, truth = benchmark.train, benchmark.truth["train"]
    kind, label = truth.conflicting(split.y).numpy(), split.y.numpy()

    def of(number: int, wanted: int, count: int) -> list[np.ndarray | None]:
        rows = np.flatnonzero((label == number) & (kind == wanted))[:count]
        pictures: list[np.ndarray | None] = list(as_pictures(split, rows))
        return pictures + [None] * (count - len(pictures))

    classes = range(len(benchmark.classes))
    aligned, conflicting = ([of(number, wanted, ALIGNED_ROWS) for number in classes] for wanted in (0, 1))
    rows = [("aligned", [column[row] for column in aligned]) for row in range(ALIGNED_ROWS)]
    rows.append(("conflicting", [column[0] for column in conflicting]))
    return write_sheet(path, benchmark.classes, rows)
