"""Tables as text: CSV in whatever dialect and encoding it comes; '' is a missing value, odd rows are listed."""

import codecs
import csv
import io
import itertools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from debiaser.data.rows import Excluded
from debiaser.errors import Problem

DELIMITERS = ",;\t|"
SAMPLE = 1 << 18  # characters that the delimiter is judged by
SHORT = 64  # characters: texts up to this length are kept once, however often they occur
MANY_LINES = 20  # a cell of more lines in a row of the wrong length: a quote was never closed


@dataclass(frozen=True, eq=False)
class Table:
    """Columns of text by name; `numbers` are the rows' places in the source, counted from 1.

    `embedded` gives the bytes of pictures that lie in the table itself, by column, then by place in the table;
    `splits` is the part of the source (train, valid, ...) that a row comes from, where it has parts.
    """

    path: Path | None
    columns: dict[str, list[str]]
    numbers: list[int]
    splits: list[str] | None = None
    embedded: dict[str, Callable[[int], bytes | None]] = field(default_factory=dict)
    excluded: list[Excluded] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.numbers)


def read_csv(path: Path) -> Table:
    """The table in a text file: its delimiter, encoding and quotes are found out; ragged rows are listed."""
    try:
        encoding, notes = _encoding(path)
        with path.open(encoding=encoding, newline="") as stream, _long_cells():
            delimiter = _delimiter(stream.read(SAMPLE))
            stream.seek(0)
            records = csv.reader(stream, delimiter=delimiter)
            header = next((record for record in records if any(record)), None)
            if header is None:
                raise Problem(f"{path} is empty; expected a first line with the names of the columns")
            names = _names(header, notes)
            return _filled(path, names, records, notes)
    except OSError as error:
        raise Problem(f"cannot read {path}: {error.strerror}; check its name and permissions") from error
    except (csv.Error, UnicodeDecodeError) as error:
        raise Problem(f"{path} is not a table that can be read: {error}; save it again as CSV in UTF-8") from error


def _filled(path: Path, names: list[str], records: Iterator[list[str]], notes: list[str]) -> Table:
    columns: list[list[str]] = [[] for _ in names]
    numbers, excluded = [], []
    once: dict[str, str] = {}
    for number, record in enumerate(filter(None, records), 1):
        if len(record) != len(names):
            excluded.append(Excluded(f"row {number}", _ragged(record, len(names)), "unreadable"))
            continue
        numbers.append(number)
        for column, cell in zip(columns, record, strict=True):
            column.append(once.setdefault(cell, cell) if len(cell) <= SHORT else cell)
    if not numbers:
        raise Problem(f"{path} has no rows below its first line; nothing to examine")
    return Table(path, dict(zip(names, columns, strict=True)), numbers, excluded=excluded, notes=notes)


def _ragged(record: list[str], width: int) -> str:
    lines = max(cell.count("\n") for cell in record)
    open_quote = f"; a quote that is never closed took {lines:,} lines with it" if lines > MANY_LINES else ""
    return f"has {len(record)} cells where the first line names {width} columns{open_quote}"


def _names(header: list[str], notes: list[str]) -> list[str]:
    """The names of the columns, each once; a nameless column is called by its place."""
    names: list[str] = []
    for place, name in enumerate(header, 1):
        name = name.strip() or f"column {place}"
        if name in names:
            notes.append(f"two columns are called '{name}': the later one is '{name}.{place}' here")
            name = f"{name}.{place}"
        names.append(name)
    return names


def _encoding(path: Path) -> tuple[str, list[str]]:
    """How the file is encoded: by its mark, else UTF-8 if it is valid all through, else the usual Western ones."""
    with path.open("rb") as stream:
        start = stream.read(4)
        if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            return "utf-16", []
        for encoding in ("utf-8-sig", "cp1252"):
            stream.seek(0)
            decoder = codecs.getincrementaldecoder(encoding)()
            try:
                while block := stream.read(1 << 20):
                    decoder.decode(block)
                decoder.decode(b"", final=True)
            except UnicodeDecodeError:
                continue
            return encoding, [] if encoding == "utf-8-sig" else [_not_utf8(path, encoding)]
    return "latin-1", [_not_utf8(path, "latin-1")]


def _not_utf8(path: Path, encoding: str) -> str:
    return f"{path.name} is not UTF-8: read as {encoding}; look whether its accents are right"


def _delimiter(sample: str) -> str:
    """The delimiter that cuts the most rows of the sample into as many cells as the first, and into the most cells."""

    def judged(delimiter: str) -> tuple[float, int]:
        rows = [row for row in itertools.islice(csv.reader(io.StringIO(sample), delimiter=delimiter), 50) if row]
        width = len(rows[0]) if rows else 0
        whole = rows[:-1] if len(sample) == SAMPLE and len(rows) > 1 else rows  # the last may be cut off
        return (sum(len(row) == width for row in whole) / len(whole), width) if width > 1 else (0.0, 0)

    return max(DELIMITERS, key=judged)


@contextmanager
def _long_cells() -> Iterator[None]:
    """Cells of any length; Python refuses more than 128 kB by default."""
    former = csv.field_size_limit(sys.maxsize)
    try:
        yield
    finally:
        csv.field_size_limit(former)
