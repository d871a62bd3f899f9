"""CelebA: hair colour as the target, gender as the shortcut, or any other two of its forty attributes."""

import csv
import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from debiaser.data.archives import Bundle, FormatError
from debiaser.data.benchmarks.gallery import Gallery
from debiaser.data.bias import Integers, Part, build_benchmark
from debiaser.data.sources import FolderSet, compare
from debiaser.data.split import Benchmark
from debiaser.errors import Misuse, known

PARTS = ("train", "valid", "test")  # 0, 1 and 2 in the partition file
ATTRIBUTES, PARTITION, FOLDER = "list_attr_celeba", "list_eval_partition", "img_align_celeba"
CROPS = ("square", "whole")
TALL = 218 / 178  # height over width of every image


@dataclass(frozen=True, eq=False)
class Table:
    """A table of whole numbers: file names, columns, values (n, c), and where it was read from."""

    source: Path
    names: list[str]
    columns: tuple[str, ...]
    values: npt.NDArray[np.int8]


def read_table(bundle: Bundle, stem: str, allowed: tuple[int, ...]) -> Table:
    """A list of CelebA as its authors wrote it (.txt), or as comma-separated values (.csv); its values are checked."""
    paths = sorted(n for n in bundle.entries if n.rpartition("/")[2] in (f"{stem}.txt", f"{stem}.csv"))
    if not paths:
        raise FormatError(bundle.path, f"lacks {stem}.txt (or .csv)")
    source = bundle.path / paths[0]
    try:
        text = bundle.read(paths[0]).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FormatError(source, "is not a text file") from error
    rows = _comma_rows(text) if paths[0].endswith(".csv") else _spaced_rows(text)
    _, columns = next(rows, (0, []))
    known_values = {str(value): value for value in allowed}
    names, values = [], []
    for line, cells in rows:
        if columns and len(cells) != len(columns) + 1:
            raise FormatError(source, f"has {len(cells) - 1} values in line {line} where {len(columns)} are expected")
        try:
            values.append([known_values[cell] for cell in cells[1:]])
        except KeyError as error:
            raise FormatError(source, f"holds {error.args[0]!r} in line {line}, which is none of {allowed}") from error
        names.append(cells[0])
    if not names or len({len(each) for each in values}) != 1:
        raise FormatError(source, "holds no rows, or rows of different lengths")
    return Table(source, names, tuple(columns), np.array(values, np.int8))


def _comma_rows(text: str) -> Iterator[tuple[int, list[str]]]:
    """Line number and cells: first the columns, then file name and values of each image."""
    for cells in (reader := csv.reader(io.StringIO(text))):
        if cells:
            yield reader.line_num, [cell.strip() for cell in cells][reader.line_num == 1 :]


def _spaced_rows(text: str) -> Iterator[tuple[int, list[str]]]:
    """The same from the authors' own files: a count and the columns above the rows, or the rows alone."""
    lines = text.splitlines()
    headed = bool(lines) and lines[0].strip().isdigit()
    yield 2, lines[1].split() if headed and len(lines) > 1 else []
    for number, line in enumerate(lines[2 * headed :], 1 + 2 * headed):
        if line.strip():
            yield number, line.split()


def images(bundle: Bundle) -> dict[str, str]:
    """Where each image lies, by its file name: in img_align_celeba/, however deep."""
    found = {}
    for name in bundle.entries:
        *folders, last = name.split("/")
        if FOLDER in folders and last.lower().endswith((".jpg", ".jpeg", ".png")):
            found[last] = name
    if not found:
        raise FormatError(bundle.path, f"has no pictures in {FOLDER}/")
    return found


@dataclass(frozen=True, eq=False)
class Index:
    """The attributes, the split of each row (n,) and where its image lies."""

    table: Table
    split: Integers
    paths: list[str]


def index(bundle: Bundle, counts: Mapping[str, int]) -> Index:
    """The two lists and the images, checked against each other."""
    table = read_table(bundle, ATTRIBUTES, (-1, 1))
    partition = read_table(bundle, PARTITION, (0, 1, 2))
    if partition.names != table.names:
        odd = next((a for a, b in zip(table.names, partition.names, strict=False) if a != b), "the last rows")
        raise FormatError(partition.source, f"does not list the same pictures as {table.source.name}: see {odd}")
    there = images(bundle)
    missing = [name for name in table.names if name not in there]
    if missing:
        more = f" and {len(missing) - 1:,} more" if missing[1:] else ""
        raise FormatError(bundle.path, f"lacks the picture {FOLDER}/{missing[0]}{more}")
    split = partition.values[:, 0].astype(np.int64)
    compare(bundle.path, counts, dict(zip(PARTS, np.bincount(split, minlength=3).tolist(), strict=True)))
    return Index(table, split, [there[name] for name in table.names])


def check(bundle: Bundle, counts: Mapping[str, int]) -> dict[str, list[int]]:
    """Images that are not blond, and that are, in each part."""
    found = index(bundle, counts)
    blond = attribute(found.table, "Blond_Hair")
    return {part: np.bincount(blond[found.split == k], minlength=2).tolist() for k, part in enumerate(PARTS)}


def attribute(table: Table, name: str) -> Integers:
    """(n,) 1 where an image has the attribute."""
    if name not in table.columns:
        raise Misuse(f"{table.source} has no attribute '{name}'; it has {', '.join(table.columns) or 'none'}")
    return (table.values[:, table.columns.index(name)] > 0).astype(np.int64)


SET = FolderSet(
    name="celeba",
    title="CelebA aligned and cropped faces",
    licence="non-commercial research",
    contents=f"{FOLDER}/ (or {FOLDER}.zip), {ATTRIBUTES}.txt and {PARTITION}.txt",
    page="https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html",
    check=check,
    counts={"train": 162_770, "valid": 19_867, "test": 19_962},
    also=("CelebA", "celebA"),
    limit=1 << 36,
)


def load(
    root: Path | None,
    rho: float | None,  # noqa: ARG001 (the share of conflicting rows is what it is)
    data_seed: int,
    noise: float = 0.0,
    target: str = "Blond_Hair",
    bias: str = "Male",
    size: int = 224,
    crop: str = "square",
    partial: bool = False,
) -> Benchmark:
    """The benchmark in its official split.

    target, bias: two of the forty attributes. crop: `square` is the middle 178 of 218 rows (the setting with
    ResNet-50), `whole` the whole image with `size` pixels across (the setting with ResNet-18). partial: take what is
    there, whatever the counts.
    """
    if crop not in CROPS:
        raise known("crop", crop, CROPS)
    if target == bias:
        raise Misuse(f"target and bias are both {target}; name two attributes")
    with SET.opened(root) as bundle:
        found = index(bundle, {} if partial else SET.counts)
    y, other = attribute(found.table, target), attribute(found.table, bias)
    train = found.split == 0
    # A row is aligned where target and bias agree: the bias counts as 1 where it goes with the target in training.
    against = not agree(y[train], other[train])
    shape = (size, size) if crop == "square" else (int(size * TALL), size)
    parts = {}
    for number, part in enumerate(PARTS):
        rows = np.flatnonzero(found.split == number)
        read = Gallery(bundle, [found.paths[row] for row in rows], shape, "crop" if crop == "square" else "squash")
        parts[part] = Part(y[rows], (other[rows] ^ against)[:, None], read)
    classes, named = (f"not {target}", target), f"not {bias}" if against else bias
    return build_benchmark("celeba", parts, classes, (named,), noise, data_seed)


def agree(one: Integers, other: Integers) -> bool:
    """Whether two attributes of 0 and 1 go together more often than not."""
    if len(one) == 0 or one.std() == 0 or other.std() == 0:
        return True
    return float(np.corrcoef(one, other)[0, 1]) >= 0
