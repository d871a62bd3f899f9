"""What every source is turned into before it is examined: rows of text cells and the contents of pictures."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from debiaser.data.pictures import Contents

SPLITS = {
    "train": ("train", "training", "trn", "0"),
    "valid": ("valid", "val", "validation", "dev", "1"),
    "test": ("test", "testing", "tst", "2"),
}
SPLIT_OF = {word: split for split, words in SPLITS.items() for word in words}


@dataclass(frozen=True)
class Excluded:
    """A row that is left out, and why; the reason continues a sentence that begins with the row."""

    id: str
    reason: str
    kind: str  # "unreadable" | "missing label" | "uncertain label" | "missing split" | "duplicate across splits"


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows as they were found: `texts` or `pictures`, and a text for each label, split, unit, group and other column.

    `label_name` is the column of the labels, "" where they are names of folders and stand as they are.
    """

    source: str
    ids: list[str]
    labels: list[str]
    label_name: str = ""
    texts: list[str] | None = None
    pictures: Contents | None = None
    paths: list[str] | None = None
    split: list[str] | None = None  # train, valid or test; "" where it is missing
    unit: list[str] | None = None
    group: list[str] | None = None
    columns: dict[str, list[str]] = field(default_factory=dict)
    excluded: list[Excluded] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    places: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))  # of the rows in the source
    total: int = 0  # rows of the source

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, chosen: npt.NDArray[np.int64]) -> "Rows":
        """These rows alone, with everything that was said so far."""
        return replace(
            self,
            ids=pick(self.ids, chosen),
            labels=pick(self.labels, chosen),
            texts=None if self.texts is None else pick(self.texts, chosen),
            pictures=None if self.pictures is None else self.pictures.take(chosen),
            paths=None if self.paths is None else pick(self.paths, chosen),
            split=None if self.split is None else pick(self.split, chosen),
            unit=None if self.unit is None else pick(self.unit, chosen),
            group=None if self.group is None else pick(self.group, chosen),
            columns={name: pick(values, chosen) for name, values in self.columns.items()},
            places=self.places[chosen],
        )

    def without(self, reasons: dict[int, tuple[str, str]]) -> "Rows":
        """The rows that have no reason (and its kind) to be left out; the others are listed."""
        if not reasons:
            return self
        listed = [Excluded(self.ids[row], reason, kind) for row, (reason, kind) in sorted(reasons.items())]
        kept = np.setdiff1d(np.arange(len(self)), np.fromiter(reasons, np.int64, len(reasons)))
        return replace(self.take(kept), excluded=[*self.excluded, *listed])

    def noting(self, *notes: str) -> "Rows":
        """The same rows with more said of them."""
        return replace(self, notes=[*self.notes, *notes])


def pick(values: Sequence[str], chosen: npt.NDArray[np.int64]) -> list[str]:
    """The values of these rows."""
    return [values[row] for row in chosen.tolist()]


def told(path: str) -> str:
    """A path as text that can be written anywhere: bytes that are no UTF-8 become question marks."""
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def first(items: Sequence[str], count: int = 3) -> str:
    """The first few, and how many more."""
    more = f" and {len(items) - count:,} more" if len(items) > count else ""
    return ", ".join(" ".join(item.split()) for item in items[:count]) + more
