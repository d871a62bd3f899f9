"""A person's marks: the samples worth one, and the CSV of marks taken back.

A mark says that a sample is aligned, conflicting or mislabelled; any other word is a tag: the value that the shortcut
has in this sample, such as water or land.
"""

import csv
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from debiaser.data.own import OwnData
from debiaser.data.own.rows import first
from debiaser.errors import Problem
from debiaser.io import numpy_stream, unguarded

if TYPE_CHECKING:
    from debiaser.auditing.verdict import Examined

Rows = NDArray[np.int64]
ALIGNED, CONFLICTING, MISLABELLED = MARKS = ("aligned", "conflicting", "mislabelled")
WORDS = {**{word: word for word in MARKS}, **{word[0]: word for word in MARKS}, "mislabeled": MISLABELLED}
FEW = 10  # marks, below which hardly anything can be learnt from them
LISTED, MANY = 3, 20  # samples that a note names as examples, and for a person to correct
SKIPPED = 0.2  # of the random samples that a person may have left out


@dataclass(frozen=True)
class Marks:
    """Marks by sample number, and sentences about what was ignored or cannot help."""

    by_sample: dict[int, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def counts(self) -> dict[str, int]:
        """How many samples have each mark."""
        return dict(sorted(Counter(self.by_sample.values()).items()))


# --- Marks of an earlier page, found again


@dataclass(frozen=True)
class Line:
    """One line of the file: what it says, and the label and the content that the sample had then ("" if unknown)."""

    id: str
    mark: str
    label: str = ""
    content: str = ""

    @property
    def name(self) -> str:
        """What a note calls the sample."""
        return repr(self.id or self.content)


def match_marks(own: OwnData, path: Path) -> Marks:
    """The marks in a file, by sample of this data: by content where the file has it, else by id.

    What cannot be used is left out with a note.

    Raises:
        Problem: the file cannot be read, holds no marks, or none that is of use here.
    """
    lines = read_lines(path)
    lines, notes = of_one_kind(lines)
    by_sample: dict[int, set[str]] = {}
    by_content: dict[tuple[str, int], set[str]] = {}
    missing: list[Line] = []
    relabelled: list[Line] = []
    changed: list[Line] = []
    find = finder(own)
    for line in lines:
        row, same = find(line)
        if row is None:
            (missing if same else relabelled).append(line)
            continue
        changed += [] if same else [line]
        by_sample.setdefault(row, set()).add(line.mark)
        if own.contents:  # a copy that has another label may be conflicting where the first is aligned
            label = int(own.y[row]) if line.mark in MARKS else -1
            by_content.setdefault((own.contents[row], label), set()).add(line.mark)
    if len(missing) == len(lines):
        raise Problem(
            f"none of the {len(lines):,} marked samples in {path} are in this data (the first: {missing[0].name}); it "
            "was saved for another data set: mark samples in the page of this one"
        )
    twice = {row for row, marks in by_sample.items() if len(marks) > 1}
    clashing = {content for (content, _), marks in by_content.items() if len(marks) > 1}
    twice |= {row for row in by_sample if own.contents and own.contents[row] in clashing}
    found = {row: marks.pop() for row, marks in by_sample.items() if row not in twice}
    for left_out, why in (
        (missing, "not in this data; the other marks are used"),
        (relabelled, "now labelled differently; these marks are left out"),
        (changed, "not the same files as when they were marked; found by their ids, these marks are used"),
    ):
        if left_out:
            told = f"{len(left_out):,} of {len(lines):,} marked samples are {why}"
            notes.append(f"{told} (the first: {left_out[0].name}).")
    if twice:
        notes.append(f"Marked in two ways, and left out: {first([repr(own.ids[row]) for row in sorted(twice)], MANY)}.")
    if not found:
        raise Problem(f"no mark in {path} can be used: {' '.join(notes)[:-1]}; mark samples in the page of this data")
    return Marks(found, [*notes, *doubts(own, found)])


def read_lines(path: Path) -> list[Line]:
    """The marks of a file as they stand there."""
    asked = "give the CSV that the page saved"
    try:
        with path.open(newline="", encoding="utf-8-sig") as stream:
            head = stream.readline()
            between = ";" if ";" in head else ","
            names = [name.strip().lower() for name in next(csv.reader([head], delimiter=between), [])]
            rows = list(csv.DictReader(stream, names, restval="", delimiter=between))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise Problem(f"cannot read {path}: {error}; {asked}") from error
    if "mark" in names and "row" in names:
        raise Problem(
            f"{path} numbers its samples, as pages of older versions did with --redact paths, and numbers change with "
            "the data: mark in the page of a new audit"
        )
    if "mark" not in names or not {"id", "content"} & set(names):
        raise Problem(f"{path} has no columns id and mark; {asked}")
    lines, words = [], dict(WORDS)  # of tags the first spelling: case and spaces make no other tag
    for row in rows:
        mark = " ".join(unguarded(row["mark"].strip()).split())
        told = {name: unguarded(row.get(name, "").strip()) for name in ("label", "content")}
        if mark and (row.get("id") or told["content"]):
            lines.append(Line(unguarded(row.get("id", "")), words.setdefault(mark.casefold(), mark), **told))
    if not lines:
        raise Problem(f"{path} holds no marks: mark some samples in the page, and save them")
    return lines


def of_one_kind(lines: list[Line]) -> tuple[list[Line], list[str]]:
    """The lines without the rarer of the two ways to mark, tags or aligned and conflicting; and a note about that."""
    tags, kinds = ({line for line in lines if (line.mark in WORDS) == known} for known in (False, True))
    kinds = {line for line in kinds if line.mark != MISLABELLED}
    if not tags or not kinds:
        return lines, []
    rarer, other = (kinds, "tags") if len(tags) > len(kinds) else (tags, "aligned or conflicting")
    words = ", ".join(sorted({repr(line.mark) for line in rarer})[:LISTED])
    note = f"Most marks are {other}, so the {len(rarer):,} others ({words}) are ignored: one file holds one kind."
    return [line for line in lines if line not in rarer], [note]


def finder(own: OwnData) -> Callable[[Line], tuple[int | None, bool]]:
    """What finds the sample of a line: its number, and whether it is the same file; or None, and whether it is not
    there at all (else its label has changed)."""
    by_id = {name: row for row, name in enumerate(own.ids)}
    by_content: dict[str, list[int]] = {}
    for row, content in enumerate(own.contents):
        by_content.setdefault(content, []).append(row)
    y = own.y.numpy()

    def find(line: Line) -> tuple[int | None, bool]:
        named = by_id.get(line.id)
        rows = by_content.get(line.content, [])
        same = bool(rows) or not (line.content and own.contents)
        if not rows and named is not None and (same or own.paths[named]):  # an id that is no file may be a line number
            rows = [named]
        fitting = [row for row in rows if line.label in ("", own.classes[y[row]].strip())]
        if not fitting:
            return None, not rows
        return named if named in fitting else fitting[0], same

    return find


def doubts(own: OwnData, found: Mapping[int, str]) -> Iterator[str]:
    """What these marks cannot do, in sentences."""
    y, kinds = own.y.numpy(), {row: mark for row, mark in found.items() if mark != MISLABELLED}
    if len(found) < FEW:
        yield f"Only {len(found):,} samples are marked: mark at least {FEW}, better sixty."
    marked = {own.classes[y[row]] for row in found}
    if without := [repr(name) for name in own.classes if name not in marked]:
        yield f"No sample is marked of {first(without)}: mark some of every class."
    if len(values := set(kinds.values())) < 2:
        all_say = f"All {len(kinds):,} say {values.pop()!r}" if values else "All are mislabelled ones"
        yield f"{all_say}: marks tell groups apart only where there are two kinds."
        return
    by_class: dict[str, set[str]] = {}
    if len(values) > 2 and (once := [repr(mark) for mark, n in Counter(kinds.values()).items() if n == 1]):
        yield f"Only one sample is marked {first(once)}: correct it if it is a typo, else mark more of them."
    for row, mark in kinds.items():
        by_class.setdefault(own.classes[y[row]], set()).add(mark)
    if not set(MARKS) & values and all(len(tags) == 1 for tags in by_class.values()):
        pairs = [f"{next(iter(tags))!r} with {name!r}" for name, tags in sorted(by_class.items())]
        yield (
            f"In every marked sample the tag coincides with the label ({', '.join(pairs[:LISTED])}), so it adds no "
            "information. Mark samples that go against it."
        )


def apply_marks(examined: "Examined", marks: Marks) -> "Examined":
    """The same samples with the kinds that a person confirmed; tags leave the kinds as they are."""
    old, place = examined.diagnosis, examined.place
    kind, wrong, misclassified = old.kind.astype(object), old.wrong_by_seed.copy(), old.misclassified.copy()
    for row, mark in marks.by_sample.items():
        if mark in MARKS and place[row] >= 0:  # held-out samples are not examined
            kind[row], misclassified[row] = mark, mark != ALIGNED
            wrong[:, row] = float(mark == MISLABELLED)
    new = replace(old, kind=kind.astype(str), wrong_by_seed=wrong, misclassified=misclassified)
    return replace(examined, diagnosis=new, marks=marks)


# --- The next samples worth a mark


def random_sequence(y: Rows, k: int, seed: int) -> Rows:
    """The samples of a class in one random order, always the same for the same data and seed."""
    return numpy_stream(seed, "marks", k).permutation(np.flatnonzero(y == k))


def choose_to_mark(
    own_y: Rows, score: NDArray[np.float64], pool: Rows, marked: Collection[int], n: int, seed: int
) -> tuple[Rows, list[str]]:
    """The next samples worth a mark, most useful first, and why each: its "score", or chosen at "random".

    Half and half and balanced over classes, as is every beginning of the list; what a class lacks goes to others.

    Args:
        own_y: (n,) labels of all samples.
        score: (n,) how strongly each goes against the biased model.
        pool: the samples to choose from.
        marked: those that have a mark.
        n: how many are wanted.
        seed: of the random half.
    """
    free = np.zeros(len(own_y), bool)
    free[pool] = True
    free[np.fromiter(marked, np.int64)] = False
    ranked = pool[np.argsort(-score[pool], kind="stable")]
    seen = np.bincount(own_y[np.fromiter(marked, np.int64)], minlength=own_y.max(initial=0) + 1)
    classes = sorted(np.unique(own_y[pool]).tolist(), key=lambda k: int(seen[k]))  # few samples, many classes
    queues = {(k, "score"): ranked[own_y[ranked] == k] for k in classes}
    queues |= {(k, "random"): random_sequence(own_y, k, seed) for k in classes}
    turns = {key: iter(rows[free[rows]].tolist()) for key, rows in queues.items()}
    chosen: dict[int, str] = {}
    for step in count():
        before = len(chosen)
        for number, k in enumerate(classes):
            why = ("score", "random")[(step + number) % 2]
            row = next((row for row in turns[k, why] if row not in chosen), None)
            if row is not None and len(chosen) < n:
                chosen[row] = why
        if len(chosen) in (before, n):
            break
    return np.array(list(chosen), np.int64), list(chosen.values())


def marked_at_random(y: Rows, pool: Rows, marked: Collection[int], seed: int) -> dict[int, Rows]:
    """By class the marked samples that are a random choice, whatever their scores.

    They are the longest beginning of the class's random sequence that is marked, but for a few that were skipped.
    """
    inside, known = np.zeros(len(y), bool), np.zeros(len(y), bool)
    inside[pool], known[np.fromiter(marked, np.int64)] = True, True
    found = {}
    for k in np.unique(y[pool]).tolist():
        rows = random_sequence(y, k, seed)
        rows = rows[inside[rows]]
        done = np.cumsum(known[rows])
        ends = np.flatnonzero(known[rows] & (done >= (1 - SKIPPED) * np.arange(1, len(rows) + 1)))
        found[k] = rows[: ends[-1] + 1][known[rows[: ends[-1] + 1]]] if len(ends) else rows[:0]
    return found
