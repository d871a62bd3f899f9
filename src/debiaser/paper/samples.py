"""What `data check` and `data show` tell of a benchmark."""

from pathlib import Path
from typing import Any

import numpy as np

from debiaser.data.benchmarks.civilcomments import Tokens
from debiaser.data.split import Benchmark, Split
from debiaser.errors import Problem
from debiaser.paper.experiment import as_images

ALIGNED_ROWS = 3  # of a sheet


def statistics(benchmark: Benchmark) -> dict[str, dict[str, Any]]:
    """Per split: samples, those against the shortcut (None where unknown), flipped labels, samples per class."""
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
    """The training set as the paper draws it: rows of aligned samples, then a row of conflicting ones.

    Where it is not known which rows conflict: rows of training samples, then a row of conflicting test samples.
    """
    from debiaser.report.figures import write_sheet  # matplotlib takes a while to load

    if isinstance(benchmark.train.read, Tokens):
        raise Problem(f"{benchmark.name} holds texts, so there is nothing to draw; see `debiaser data check`")
    unknown = bool((benchmark.truth["train"].conflicting(benchmark.train.y) < 0).all())
    upper, lower = ("training", "test") if unknown else ("aligned", "conflicting")

    def column(part: str, number: int, wanted: int, count: int) -> list[np.ndarray | None]:
        split: Split = getattr(benchmark, part)
        kind = benchmark.truth[part].conflicting(split.y)
        rows = np.flatnonzero(((split.y == number) & (kind == wanted)).numpy())[:count]
        images: list[np.ndarray | None] = list(as_images(split, rows))
        return images + [None] * (count - len(images))

    classes = range(len(benchmark.classes))
    above = [column("train", number, -1 if unknown else 0, ALIGNED_ROWS) for number in classes]
    below = [column("test" if unknown else "train", number, 1, 1) for number in classes]
    rows = [(upper, [images[row] for images in above]) for row in range(ALIGNED_ROWS)]
    return write_sheet(path, benchmark.classes, [*rows, (lower, [images[0] for images in below])])
