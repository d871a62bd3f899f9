"""What every source becomes before it is examined: samples of text cells and images, and labels as class numbers."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from debiaser.data.images import Contents
from debiaser.errors import Problem

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
    """Rows as they were found: `texts` or `images`, and a text for each label, split, unit, group and other column.

    `label_name` is the column of the labels, "" where they are names of folders and stand as they are.
    """

    source: str
    ids: list[str]
    labels: list[str]
    label_name: str = ""
    texts: list[str] | None = None
    images: Contents | None = None
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

        def pick(values: list[str]) -> list[str]:
            return [values[row] for row in chosen.tolist()]

        lists = ("ids", "labels", "texts", "paths", "split", "unit", "group")
        picked: dict[str, Any] = {name: pick(getattr(self, name)) for name in lists if getattr(self, name) is not None}
        if self.images is not None:
            picked["images"] = self.images.take(chosen)
        columns = {name: pick(values) for name, values in self.columns.items()}
        return replace(self, columns=columns, places=self.places[chosen], **picked)

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


def told(path: str) -> str:
    """A path as text that can be written anywhere: bytes that are no UTF-8 become question marks."""
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def first(items: Sequence[str], count: int = 3) -> str:
    """The first few, and how many more."""
    more = f" and {len(items) - count:,} more" if len(items) > count else ""
    return ", ".join(" ".join(item.split()) for item in items[:count]) + more


MISSING = frozenset({"", "nan", "NaN", "NAN", "None", "null", "NULL", "NA", "N/A", "n/a", "<NA>", "#N/A", "NaT"})
UNCERTAIN = "-1"
SHOWN = 40  # characters of a value in a message
MOST = 1000  # classes in a column; folders of classes, which somebody made one by one, may be more


@dataclass(frozen=True, eq=False)
class Labels:
    """Class numbers (n,), -1 for a missing and -2 for an uncertain label; the classes in order; what to say of it."""

    y: npt.NDArray[np.int64]
    classes: tuple[str, ...]
    notes: tuple[str, ...] = ()


def as_labels(values: Sequence[str], column: str, plain: bool = False) -> Labels:
    """The labels in a column; `plain` where every text is a class as it stands (names of folders)."""
    words = list(values) if plain else _unified([value.strip() for value in values])
    missing = set() if plain else MISSING
    found = {word for word in words if word not in missing}
    notes: tuple[str, ...] = ()
    left_out = set() if plain else {UNCERTAIN} & found
    if left_out and len(found) == 2:
        left_out = set()
        notes = (f"-1 in '{column}' was taken as a class, not as uncertain: there are only two values",)
    classes = _ordered(found - left_out)
    _check(classes, len(words), column, plain)
    number = {word: place for place, word in enumerate(classes)} | dict.fromkeys(left_out, -2)
    return Labels(np.array([number.get(word, -1) for word in words], np.int64), classes, notes)


def distinct(values: Sequence[str]) -> int:
    """How many different values there are, the missing ones aside."""
    return len({value.strip() for value in values} - MISSING)


def too_many(n: int) -> int:
    """More distinct values than this are no label, however many rows there are."""
    return min(max(50, n // 5), MOST)


def _unified(words: list[str]) -> list[str]:
    """Whole numbers without their `.0` and truth values in one spelling, where the whole column is of that kind."""
    kinds = {word: _number(word) for word in set(words) - MISSING}
    if kinds and all(number is not None for number in kinds.values()):
        whole = {word: str(int(number)) for word, number in kinds.items() if number is not None and number % 1 == 0}
        return [whole.get(word, word) for word in words]
    if {word.lower() for word in kinds} <= {"true", "false"}:
        return [word.lower() if word in kinds else word for word in words]
    return words


def _number(word: str) -> float | None:
    try:
        number = float(word)
    except ValueError:
        return None
    return number if np.isfinite(number) and "_" not in word else None


def _ordered(words: set[str]) -> tuple[str, ...]:
    """In order of their numbers where all are whole numbers, else of their letters."""
    if all(word.removeprefix("-").isdecimal() for word in words):
        return tuple(sorted(words, key=lambda word: (int(word), word)))
    return tuple(sorted(words))


def _check(classes: tuple[str, ...], n: int, column: str, plain: bool) -> None:
    other = "" if plain else "; name another column with --label"
    if not classes:
        raise Problem(f"no row has a label in '{column}'{other}")
    if len(classes) == 1:
        more = "a folder for each class is needed" if plain else "there is nothing to tell apart"
        raise Problem(f"only one class, '{shown(classes[0])}': {more}{other}")
    if plain:
        return
    if len(classes) > too_many(n):
        some = ", ".join(shown(word) for word in classes[:3])
        raise Problem(
            f"'{column}' has {len(classes):,} distinct values in {n:,} rows ({some}, ...): probably not a label{other}"
        )
    fraction = next((word for word in classes if (number := _number(word)) is not None and number % 1), None)
    if fraction is not None and all(_number(word) is not None for word in classes):
        raise Problem(f"'{column}' holds fractions such as {fraction}: a number to predict, not a class{other}")


def shown(word: str) -> str:
    """A value on one short line."""
    line = " ".join(word.split())
    return line if len(line) <= SHOWN else line[: SHOWN - 3] + "..."
