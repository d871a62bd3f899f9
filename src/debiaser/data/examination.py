"""The steps between rows as they were found and rows that can be learnt from: each leaves out, and says so."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path, PurePath

import numpy as np
import numpy.typing as npt

from debiaser.data.duplicates import Duplicates, groups, in_order, joined, near, same, same_text
from debiaser.data.labels import MISSING, Labels, as_labels, shown
from debiaser.data.partition import deal, units_per_class
from debiaser.data.rows import Rows, first
from debiaser.data.survey import FACTS, Progress, Survey, survey
from debiaser.errors import Misuse, Problem

Ints = npt.NDArray[np.int64]

SIDES = ("train", "valid", "test")  # of copies on several sides, those further right stay
TOKENS = 4  # words of a file name that are looked at
FEW = 20  # training rows of a class from which on its scores mean something


def labelled(rows: Rows) -> tuple[Rows, Labels]:
    """The rows that have a label, and their labels."""
    name = rows.label_name
    labels = as_labels(rows.labels, name or "the folders", plain=not name)
    missing = (f"has no label in '{name}'", "missing label")
    uncertain = (f"has an uncertain label (-1) in '{name}'", "uncertain label")
    out = {int(row): missing if labels.y[row] == -1 else uncertain for row in np.flatnonzero(labels.y < 0)}
    return rows.without(out).noting(*labels.notes), replace(labels, y=labels.y[labels.y >= 0])


def readable(
    rows: Rows, labels: Labels, cache: Path | None, progress: Progress | None
) -> tuple[Rows, Labels, Survey | None]:
    """The rows whose picture can be read, or whose text is not empty; with what was seen of the pictures."""
    if rows.pictures is None:
        texts = rows.texts or []
        out = {row: ("has no text", "unreadable") for row, text in enumerate(texts) if not text.strip()}
        return *_rest(rows, labels, out), None
    seen = survey(
        rows.pictures, rows.source if rows.paths is None else str(Path(rows.source).resolve()), cache, progress
    )
    bad = np.flatnonzero(seen.reason != "")
    absent = [rows.ids[row] for row in np.flatnonzero(seen.reason == "is not there")]
    if absent and rows.label_name:
        told = f"{len(absent):,} of {len(rows):,} paths do not exist: {first(absent)}"
        if len(absent) == len(rows):
            raise Problem(f"{told}; paths are relative to the folder of the table, or absolute")
        rows = rows.noting(told)
    if len(bad) == len(rows):
        raise Problem(f"none of {len(rows):,} pictures can be read; the first, {first(rows.ids[:1])}, {seen.reason[0]}")
    rows, labels = _rest(rows, labels, {int(row): (str(seen.reason[row]), "unreadable") for row in bad})
    return rows, labels, seen.take(np.flatnonzero(seen.reason == ""))


def apart(
    rows: Rows, labels: Labels, seen: Survey | None
) -> tuple[Rows, Labels, Survey | None, Ints, list[Duplicates]]:
    """Copies found and kept on one side of given splits; with the units (n,) that must stay together from here on."""
    pairs = [same_text(rows.texts or [])] if seen is None else _same_pictures(seen)
    copies = groups(joined(len(rows), *pairs))
    side = np.array([SIDES.index(split) for split in rows.split]) if rows.split else np.zeros(len(rows), np.int64)
    found, out = [], {}
    for members in copies:
        best = side[members].max()
        across = bool((side[members] != best).any())
        found.append(Duplicates(tuple(rows.ids[row] for row in members), across))
        kept = rows.ids[members[side[members] == best][0]]
        for row in members[side[members] < best].tolist():
            reason = f"is a copy of {kept} in {SIDES[best]}"
            out[row] = (reason, "duplicate across splits")
    rows = rows.noting(*_copies_noted(copies, labels, len(out)))
    kept_rows = np.setdiff1d(np.arange(len(rows)), np.fromiter(out, np.int64, len(out)))
    number = joined(len(rows), *pairs, *([] if rows.unit is None else [_named(rows.unit)]))[kept_rows]
    rows, labels = _rest(rows, labels, out)
    return rows, labels, None if seen is None else seen.take(kept_rows), in_order(number), found


def check_classes(labels: Labels, unit: Ints, rows: Rows) -> None:
    """Every class can be on two sides: it still has rows, and they are not all one thing."""
    counts = np.bincount(labels.y, minlength=len(labels.classes))
    gone = [shown(labels.classes[one]) for one in np.flatnonzero(counts == 0)]
    if gone:
        raise Problem(f"no row that can be read is left of class {first(gone)}; mend its files, or remove it")
    if rows.unit is not None and len(np.unique(unit)) == 1:
        raise Problem("all rows are of one unit, so none can be held apart; name another column as --unit, or none")
    for one in np.flatnonzero(units_per_class(labels.y, unit) < 2):
        name, many = shown(labels.classes[one]), counts[one] > 1
        what = f"all {counts[one]:,} rows are copies or of one unit" if many else "a single row"
        raise Problem(f"class '{name}' cannot be split: {what}; add different ones, or remove the class")
    if rows.split is not None:
        train = {label for label, split in zip(labels.y.tolist(), rows.split, strict=True) if split == "train"}
        lost = [shown(name) for one, name in enumerate(labels.classes) if one not in train]
        if lost:
            raise Problem(f"class {first(lost)} has no row in train; it cannot be learnt: mend the splits")


def divided(
    rows: Rows, y: Ints, unit: Ints, seed: int, fractions: tuple[float, float], need_test: bool
) -> tuple[npt.NDArray[np.str_], list[str]]:
    """(n,) train, valid or test: as given, the missing ones taken from train by whole units; and what to say."""
    valid, test = fractions
    if not (0 < valid < 1 and 0 < test < 1 and valid + test < 1):
        raise Misuse(f"fractions must both be above 0 and less than 1 together, got {fractions}")
    split = np.array(rows.split or ["train"] * len(rows), "<U5")
    train = np.flatnonzero(split == "train")
    shares = {}
    if "valid" not in split:
        shares["valid"] = valid
    if need_test and "test" not in split:
        shares["test"] = min(0.5, test * len(rows) / len(train))
    if not shares:
        return split, []
    parts = ["train", *shares]
    dealt = deal(y[train], unit[train], [1 - sum(shares.values()), *shares.values()], seed)
    split[train] = np.array(parts, "<U5")[dealt]
    made = " and ".join(f"{np.sum(split == name):,} rows for {name}" for name in shares)
    return split, [f"no such split was given: {made} were taken from train at random, classes in proportion"]


def check_held_out(split: npt.NDArray[np.str_], labels: Labels) -> None:
    """Something can be learnt, chosen on and proven: every class in train, and rows in valid and test."""
    lost = np.setdiff1d(np.arange(len(labels.classes)), labels.y[split == "train"])
    empty = [side for side in SIDES if not (split == side).any()]
    what = (
        f"rows for {first(empty)}" if empty else f"class {first([shown(labels.classes[one]) for one in lost])} in train"
    )
    if empty or len(lost):
        raise Problem(f"too few separate units: there are no {what}; add units, or give the splits with --split")


def picture_columns(seen: Survey) -> dict[str, list[str]]:
    """What a model could tell pictures apart by that is no content: size, shape, format, mode, camera, compression."""
    width, height = seen.sides.T
    found = {
        "picture size": [f"{w} x {h}" for w, h in seen.sides.tolist()],
        "picture shape": [f"{ratio:.1f}" for ratio in width / np.maximum(height, 1)],
        **{name: seen.facts[:, place].tolist() for place, name in enumerate(FACTS)},
    }
    return {name: values for name, values in found.items() if len(set(values)) > 1}


def name_columns(paths: Sequence[str], classes: Sequence[str]) -> dict[str, list[str]]:
    """The words of the file names, by their place: who made a picture often stands there.

    Running numbers are left out, and so are words of the classes' names, which repeat the label.
    """
    known = {word for name in classes for word in _words(name)}
    names = [[word for word in _words(PurePath(path).stem) if word not in known] for path in paths]
    found = {
        f"file name token {place + 1}": [words[place] if place < len(words) else "" for words in names]
        for place in range(min(TOKENS, max(map(len, names), default=0)))
    }
    return {name: values for name, values in found.items() if len(set(values)) > 1}


def _words(name: str) -> list[str]:
    """The words of a name in small letters, without long numbers and without words that are numbers."""
    words = (re.sub(r"\d{3,}", "", word) for word in re.split(r"[\W_]+", name.lower()))
    return [word for word in words if word and not word.isdigit()]


def text_columns(texts: Sequence[str]) -> dict[str, list[str]]:
    """What a model could tell texts apart by that is no content: how many words they have."""
    lengths = [str(len(text.split())) for text in texts]
    return {"text length": lengths} if len(set(lengths)) > 1 else {}


def remarks(rows: Rows, labels: Labels, seen: Survey | None, unit: Ints, split: npt.NDArray[np.str_]) -> list[str]:
    """What else a person should know of this data."""
    found = []
    if seen is not None and seen.windowed.any():
        count = int(seen.windowed.sum())
        found.append(f"{count:,} pictures of more than 8 bits were windowed to 8, 1st to 99th percentile of each")
    if rows.unit is not None:
        sides = np.unique(np.stack([unit, np.unique(split, return_inverse=True)[1]], 1), axis=0)
        leaking = int((np.unique(sides[:, 0], return_counts=True)[1] > 1).sum())
        if leaking:
            found.append(f"{leaking:,} units are on several sides of the given splits: the test knows them already")
    counts = np.bincount(labels.y[split == "train"], minlength=len(labels.classes))
    small = [f"{shown(labels.classes[one])} ({counts[one]})" for one in np.flatnonzero(counts < FEW)]
    if small:
        found.append(f"classes with fewer than {FEW} training rows, of which little can be said: {first(small)}")
    return found


def _rest(rows: Rows, labels: Labels, out: dict[int, tuple[str, str]]) -> tuple[Rows, Labels]:
    kept = np.setdiff1d(np.arange(len(rows)), np.fromiter(out, np.int64, len(out)))
    return rows.without(out), replace(labels, y=labels.y[kept])


def _same_pictures(seen: Survey) -> list[Ints]:
    """Pairs of exact and of near copies; of exact ones, only the first is compared with others."""
    contents = seen.content.copy().view("V16")[:, 0]
    firsts = np.unique(in_order(contents), return_index=True)[1]
    return [same(contents), firsts[near(seen.take(firsts))]]


def _named(unit: list[str]) -> Ints:
    """Pairs that chain the rows of a named unit; a row without a name is a unit of its own."""
    named = np.array([row for row, name in enumerate(unit) if name.strip() not in MISSING], np.int64)
    return named[same([unit[row].strip() for row in named.tolist()])] if len(named) else np.zeros((0, 2), np.int64)


def _copies_noted(copies: list[Ints], labels: Labels, out: int) -> list[str]:
    if not copies:
        return []
    rows = sum(len(members) for members in copies)
    torn = sum(len(np.unique(labels.y[members])) > 1 for members in copies)
    found = [f"{rows:,} rows are copies of one another, {len(copies):,} different things; they stay on one side"]
    found += [f"{out:,} copies on another side of the given splits were left out"] if out else []
    return [*found, f"{torn:,} of these things carry different labels: at least one is wrong"] if torn else found
