"""What every source becomes before it is examined: samples of text cells and images, labels, and parts to deal to."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from debiaser.data.images import Contents
from debiaser.errors import Problem
from debiaser.io import numpy_stream

Ints = npt.NDArray[np.int64]

SPLITS = {
    "train": ("train", "training", "trn", "0"),
    "valid": ("valid", "val", "validation", "dev", "1"),
    "test": ("test", "testing", "tst", "2"),
}
SPLIT_OF = {word: split for split, words in SPLITS.items() for word in words}


@dataclass(frozen=True)
class Excluded:
    """A sample that is left out, and why; the reason continues a sentence that begins with the sample."""

    id: str
    reason: str
    kind: str  # "unreadable" | "missing label" | "uncertain label" | "missing split" | "duplicate across splits"


@dataclass(frozen=True, eq=False)
class Rows:
    """Samples as they were found: `texts` or `images`, and a text for each label, split, unit, group and other column.

    `label_name` is the column of the labels, "" where they are names of folders and stand as they are. The last three
    fields are found out later: class numbers, the classes in order, and what was seen of the images.
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
    places: Ints = field(default_factory=lambda: np.zeros(0, np.int64))  # of the samples in the source
    total: int = 0  # samples of the source
    y: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    classes: tuple[str, ...] = ()
    seen: Any = None  # a `Survey`, where there are images

    def __len__(self) -> int:
        return len(self.ids)

    def without(self, reasons: dict[int, tuple[str, str]]) -> "Rows":
        """The samples that have no reason (and its kind) to be left out; the others are listed."""
        if not reasons:
            return self
        kept = np.setdiff1d(np.arange(len(self)), np.fromiter(reasons, np.int64, len(reasons)))

        def picked(value: Any) -> Any:
            if isinstance(value, list):
                return [value[row] for row in kept.tolist()]
            if isinstance(value, dict):
                return {name: picked(each) for name, each in value.items()}
            return value[kept] if isinstance(value, np.ndarray) else value.take(kept)

        by_sample = ("ids", "labels", "texts", "images", "paths", "split", "unit", "group", "columns", "places", "seen")
        values = {name: getattr(self, name) for name in (*by_sample, *(("y",) if len(self.y) else ()))}
        listed = [Excluded(self.ids[row], reason, kind) for row, (reason, kind) in sorted(reasons.items())]
        there = {name: picked(value) for name, value in values.items() if value is not None}
        return replace(self, **there, excluded=[*self.excluded, *listed])

    def noting(self, *notes: str) -> "Rows":
        """The same samples with more said of them."""
        return replace(self, notes=[*self.notes, *notes])


def as_utf8(path: str) -> str:
    """A path as text that can be written anywhere: bytes that are no UTF-8 become question marks."""
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def first(items: Sequence[str], count: int = 3) -> str:
    """The first few, and how many more."""
    more = f" and {len(items) - count:,} more" if len(items) > count else ""
    return ", ".join(" ".join(item.split()) for item in items[:count]) + more


def shown(word: str) -> str:
    """A value on one short line."""
    line = " ".join(word.split())
    return line if len(line) <= SHOWN else line[: SHOWN - 3] + "..."


def digest(*parts: str | bytes) -> str:
    """A name for this content."""
    state = hashlib.blake2b(digest_size=16)
    for part in parts:
        content = part.encode(errors="surrogatepass") if isinstance(part, str) else part
        state.update(len(content).to_bytes(8, "big") + content)  # with its length, so that parts cannot run together
    return state.hexdigest()


# --- Labels

MISSING = frozenset({"", "nan", "NaN", "NAN", "None", "null", "NULL", "NA", "N/A", "n/a", "<NA>", "#N/A", "NaT"})
UNCERTAIN = "-1"
SHOWN = 40  # characters of a value in a message
MOST = 1000  # classes in a column; folders of classes, which somebody made one by one, may be more


class Labels(NamedTuple):
    """Class numbers (n,), -1 for a missing and -2 for an uncertain label; the classes in order; what to say of it."""

    y: Ints
    classes: tuple[str, ...]
    notes: tuple[str, ...] = ()


def as_labels(values: Sequence[str], column: str, plain: bool = False) -> Labels:
    """The labels in a column; `plain` where every text is a class as it stands (names of folders)."""
    words, found, left_out = list(values), set(values), set[str]()
    notes: tuple[str, ...] = ()
    if not plain:
        spelt = _unified({value.strip() for value in values} - MISSING)
        words, found = [spelt.get(value.strip(), "") for value in values], set(spelt.values())
        left_out = {UNCERTAIN} & found
        if left_out and len(found) == 2:
            left_out = set()
            notes = (f"-1 in '{column}' was taken as a class, not as uncertain: there are only two values",)
    found -= left_out
    whole = all(word.removeprefix("-").isdecimal() for word in found)
    classes = tuple(sorted(found, key=lambda word: (int(word) if whole else 0, word)))
    _check(classes, len(words), column, plain)
    number = {word: place for place, word in enumerate(classes)} | dict.fromkeys(left_out, -2)
    return Labels(np.array([number.get(word, -1) for word in words], np.int64), classes, notes)


def too_many(n: int) -> int:
    """More distinct values than this are no label, however many samples there are."""
    return min(max(50, n // 5), MOST)


def _unified(words: set[str]) -> dict[str, str]:
    """Whole numbers without their `.0` and truth values in one spelling, where the whole column is of that kind."""
    numbers = {word: _number(word) for word in words}
    if None not in numbers.values():
        whole = {word: str(int(number)) for word, number in numbers.items() if number is not None and number % 1 == 0}
        return {word: whole.get(word, word) for word in words}
    truth = {word.lower() for word in words} <= {"true", "false"}
    return {word: word.lower() if truth else word for word in words}


def _number(word: str) -> float | None:
    try:
        number = float(word)
    except ValueError:
        return None
    return number if np.isfinite(number) and "_" not in word else None


def _check(classes: tuple[str, ...], n: int, column: str, plain: bool) -> None:
    other = "" if plain else "; name another column with --label"
    if len(classes) < 2:
        what = f"only one class, '{shown(classes[0])}'" if classes else f"no sample has a label in '{column}'"
        raise Problem(f"{what}: there is nothing to tell apart{other}")
    if plain:
        return
    if len(classes) > too_many(n):
        some = ", ".join(shown(word) for word in classes[:3])
        raise Problem(
            f"'{column}' has {len(classes):,} distinct values in {n:,} rows ({some}, ...): probably not a label{other}"
        )
    numbers = [_number(word) for word in classes]
    if None not in numbers and any(number % 1 for number in numbers if number):
        raise Problem(f"'{column}' holds fractions: a number to predict, not a class{other}")


# --- Samples dealt to splits and folds: whole units, classes in proportion, the same for the same seed


def folds(y: npt.ArrayLike, unit: npt.ArrayLike, k: int, seed: int) -> Ints:
    """(n,) fold numbers from 0: no unit in two folds, classes balanced; fewer folds where a class has too few units."""
    count = max(2, min(k, int(units_per_class(y, unit).min(initial=k))))
    return deal(y, unit, [1 / count] * count, seed)


def units_per_class(y: npt.ArrayLike, unit: npt.ArrayLike) -> Ints:
    """How many units hold each of the classes that occur, in the order of the classes."""
    pairs = np.unique(np.stack([np.asarray(y), np.asarray(unit)], 1).astype(np.int64), axis=0)
    return np.unique(pairs[:, 0], return_counts=True)[1].astype(np.int64)


def deal(y: npt.ArrayLike, unit: npt.ArrayLike, shares: Sequence[float], seed: int) -> Ints:
    """(n,) part numbers: each part gets its share of every class, in whole units.

    Units of several samples go first, the largest first, each to the part that is then least full for its classes;
    units of one sample fill up what is left over. A class that has a unit for each part is then in each part.
    """
    _, label = np.unique(np.asarray(y), return_inverse=True)
    _, number = np.unique(np.asarray(unit), return_inverse=True)
    units, total = int(number.max(initial=-1)) + 1, np.bincount(label)
    size, share = np.bincount(number, minlength=units), np.asarray(shares, np.float64)
    filled, part = np.zeros((len(share), len(total))), np.full(units, -1, np.int64)
    shuffled = numpy_stream(seed, "deal").permutation(units)
    large = shuffled[np.argsort(-size[shuffled], kind="stable")]
    large, order = large[size[large] > 1], np.argsort(number, kind="stable")
    starts, ends = (np.searchsorted(number[order], large, side) for side in ("left", "right"))
    for each, start, end in zip(large, starts, ends, strict=True):
        kinds, counts = np.unique(label[order[start:end]], return_counts=True)
        level = ((filled[:, kinds] + counts) / share[:, None] * (counts / total[kinds])).sum(1)
        part[each] = level.argmin()
        filled[part[each], kinds] += counts
    first = np.zeros(units, np.int64)
    first[number] = label
    single = shuffled[size[shuffled] == 1]
    for one in range(len(total)):  # single samples, so that each part comes as near to its share as whole ones can
        chosen = single[first[single] == one]
        level = (filled[:, one, None] + np.arange(len(chosen)) + 0.5) / share[:, None]
        parts = np.repeat(np.arange(len(share)), len(chosen))
        part[chosen] = parts[np.argsort(level.reshape(-1), kind="stable")[: len(chosen)]]
    _visit_all(part, label, number, size, len(share))
    return part[number]


def _visit_all(part: Ints, label: Ints, number: Ints, size: Ints, parts: int) -> None:
    """Moves the smallest units of a class to parts that have none of it, from those that have several."""
    pairs = np.unique(np.stack([label, number], 1), axis=0)
    for one in range(int(label.max(initial=-1)) + 1):
        members = pairs[pairs[:, 0] == one, 1]
        members = members[np.argsort(size[members], kind="stable")]
        for empty in np.setdiff1d(np.arange(parts), part[members]):
            held = np.bincount(part[members], minlength=parts)
            spare = members[held[part[members]] > 1]
            if len(spare):
                part[spare[held[part[spare]] == held[part[spare]].max()][0]] = empty
