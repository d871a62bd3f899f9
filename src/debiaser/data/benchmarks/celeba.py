"""CelebA: hair colour as the target, gender as the shortcut, or any other two of its forty attributes."""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from debiaser.data.archives import Bundle, FormatError
from debiaser.data.benchmarks.gallery import Gallery
from debiaser.data.bias import Integers, Part, build_benchmark
from debiaser.data.sources import IMAGES, FolderSet, compare
from debiaser.data.split import Benchmark
from debiaser.errors import Misuse, brief, known

PARTS = ("train", "valid", "test")  # 0, 1 and 2 in the partition file
ATTRIBUTES, PARTITION, FOLDER = "list_attr_celeba", "list_eval_partition", "img_align_celeba"
CROPS = ("square", "whole")
TALL = 218 / 178  # height over width of every image


def read_table(bundle: Bundle, stem: str, allowed: tuple[int, ...]) -> Any:
    """A list of CelebA as its authors wrote it (.txt) or as comma-separated values (.csv), by the names of images."""
    import pandas as pd  # slow to import, so only here

    paths = sorted(n for n in bundle.entries if n.rpartition("/")[2] in (f"{stem}.txt", f"{stem}.csv"))
    if not paths:
        raise FormatError(bundle.path, f"lacks {stem}.txt (or .csv)")
    source, content = bundle.path / paths[0], bundle.read(paths[0])
    form: dict[str, Any] = {"index_col": 0}
    if paths[0].endswith(".txt"):  # a count and the columns above, or neither
        form = (
            {"sep": r"\s+", "skiprows": 1}
            if content.partition(b"\n")[0].strip().isdigit()
            else {"sep": r"\s+", "header": None}
        )
    try:
        table = pd.read_csv(io.BytesIO(content), **form)
    except ValueError as error:  # pandas' own and Unicode's among them
        raise FormatError(source, f"is not a list of numbers ({brief(error)})") from error
    if "header" in form:
        table = table.set_index(0)
    right = table.apply(pd.to_numeric, errors="coerce").isin(allowed).all(axis=1)
    if table.empty or not right.all():
        where = f" for {table.index[~right][0]}" if len(table) else ""
        raise FormatError(source, f"holds something else than {', '.join(map(str, allowed))}{where}")
    return table


def index(bundle: Bundle, counts: Mapping[str, int]) -> tuple[Any, Integers, list[str]]:
    """The table of attributes, the split of each image (n,) and where it lies, checked against each other."""
    table, partition = read_table(bundle, ATTRIBUTES, (-1, 1)), read_table(bundle, PARTITION, (0, 1, 2))
    if list(partition.index) != list(table.index):
        raise FormatError(bundle.path, f"lists other images in {PARTITION} than in {ATTRIBUTES}")
    there = {
        name.rpartition("/")[2]: name
        for name in bundle.entries
        if FOLDER in name.split("/")[:-1] and name.lower().endswith(IMAGES)
    }
    missing = [name for name in table.index if name not in there]
    if missing:
        more = f" and {len(missing) - 1:,} more" if missing[1:] else ""
        raise FormatError(bundle.path, f"lacks the image {FOLDER}/{missing[0]}{more}")
    split = partition.iloc[:, 0].to_numpy(np.int64)
    compare(bundle.path, counts, dict(zip(PARTS, np.bincount(split, minlength=3).tolist(), strict=True)))
    return table, split, [there[name] for name in table.index]


SET = FolderSet(
    name="celeba",
    title="CelebA aligned and cropped faces",
    contents=f"{FOLDER}/ (or {FOLDER}.zip), {ATTRIBUTES}.txt and {PARTITION}.txt",
    page="https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html",
    index=index,
    counts={"train": 162_770, "valid": 19_867, "test": 19_962},
    also=("CelebA", "celebA"),
    limit=1 << 36,
)


def load(
    root: Path | None,
    rho: float | None,  # noqa: ARG001 (the share of conflicting samples is what it is)
    data_seed: int,
    noise: float = 0.0,
    target: str = "Blond_Hair",
    bias: str = "Male",
    size: int = 224,
    crop: str = "square",
    partial: bool = False,
) -> Benchmark:
    """The benchmark in its official split.

    target, bias: two of the forty attributes. crop: `square` is the middle 178 of 218 lines (the setting with
    ResNet-50), `whole` the whole image with `size` pixels across (the setting with ResNet-18). partial: take what is
    there, whatever the counts.
    """
    if crop not in CROPS:
        raise known("crop", crop, CROPS)
    if target == bias:
        raise Misuse(f"target and bias are both {target}; name two attributes")
    with SET.opened(root) as bundle:
        table, split, paths = index(bundle, {} if partial else SET.counts)
    for name in (target, bias):
        if name not in table.columns:
            raise Misuse(f"{ATTRIBUTES} has no attribute '{name}'; it has {', '.join(map(str, table.columns))}")
    y, other = ((table[name].to_numpy() > 0).astype(np.int64) for name in (target, bias))
    # A sample is aligned where target and bias agree: the bias counts as 1 where it goes with the target in training.
    one, two = y[split == 0], other[split == 0]
    against = bool(len(one) * (one * two).sum() < one.sum() * two.sum())
    shape = (size, size) if crop == "square" else (int(size * TALL), size)
    parts = {}
    for number, part in enumerate(PARTS):
        rows = np.flatnonzero(split == number)
        read = Gallery(bundle, [paths[row] for row in rows], shape, "crop" if crop == "square" else "squash")
        parts[part] = Part(y[rows], (other[rows] ^ against)[:, None], read)
    classes, named = (f"not {target}", target), f"not {bias}" if against else bias
    return build_benchmark("celeba", parts, classes, (named,), noise, data_seed)
