"""CelebA: hair colour as the target, gender as the shortcut, or any other two of its forty attributes."""

import io
from pathlib import Path
from typing import Any

import numpy as np

from debiaser.data.archives import Bundle, FormatError
from debiaser.data.benchmarks.gallery import PARTS, Files, by_part, check_values, file_benchmark, present
from debiaser.data.bias import Integers
from debiaser.data.sources import FolderSet
from debiaser.data.split import Benchmark
from debiaser.errors import Misuse, brief, known

ATTRIBUTES, PARTITION, FOLDER = "list_attr_celeba", "list_eval_partition", "img_align_celeba"
CROPS = ("square", "whole")
TALL = 218 / 178  # height over width of every image


def read_table(bundle: Bundle, stem: str, allowed: tuple[int, ...]) -> Any:
    """A list of CelebA as its authors wrote it (.txt) or as comma-separated values (.csv), by the names of images."""
    import pandas as pd  # slow to import, so only here

    ends = f"{stem}.txt", f"{stem}.csv"
    paths = sorted(n for n in bundle.entries if n.endswith(ends) and n.rpartition("/")[2] in ends)
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
    check_values(source, table.apply(pd.to_numeric, errors="coerce"), allowed)
    return table


def index(bundle: Bundle) -> tuple[tuple[Any, Integers, list[str]], dict[str, int]]:
    """The table of attributes, the split of each image (n,) and where it lies, checked against each other."""
    table, partition = read_table(bundle, ATTRIBUTES, (-1, 1)), read_table(bundle, PARTITION, (0, 1, 2))
    if not partition.index.equals(table.index):
        both = f"{len(partition):,} images in {PARTITION} than in {ATTRIBUTES}, which has {len(table):,}"
        raise FormatError(bundle.path, f"lists other {both}")
    images = (name for name in bundle.entries if f"/{name}".rpartition("/")[0].endswith(f"/{FOLDER}"))
    start = next(images, f"{FOLDER}/").rpartition("/")[0]
    table, paths = present(bundle, table, [f"{start}/{name}" for name in table.index])
    split = partition.loc[table.index].iloc[:, 0].to_numpy(np.int64)
    counts = dict(zip(PARTS, np.bincount(split, minlength=3).tolist(), strict=True))
    return (table, split, paths), counts


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
    features: str | None = None,  # noqa: ARG001 (the bench trains on this encoder's features instead of images)
) -> Benchmark:
    """The benchmark in its official split.

    target, bias: two of the forty attributes. crop: `square` is the middle 178 of 218 lines (the setting with
    ResNet-50), `whole` the whole image with `size` pixels across (the setting with ResNet-18).
    """
    if crop not in CROPS:
        raise known("crop", crop, CROPS)
    if target == bias:
        raise Misuse(f"target and bias are both {target}; name two attributes")
    with SET.opened(root) as bundle:
        (table, split, paths), _ = index(bundle)
    for name in (target, bias):
        if name not in table.columns:
            raise Misuse(f"{ATTRIBUTES} has no attribute '{name}'; it has {', '.join(map(str, table.columns))}")
    y, other = ((table[name].to_numpy() > 0).astype(np.int64) for name in (target, bias))
    # A sample is aligned where target and bias agree: the bias counts as 1 where it goes with the target in training.
    one, two = y[split == 0], other[split == 0]
    against = bool(len(one) * (one * two).sum() < one.sum() * two.sum())
    shape = (size, size) if crop == "square" else (int(size * TALL), size)
    found, fit = by_part(Files(paths, y, other ^ against), split), "crop" if crop == "square" else "squash"
    classes, named = (f"not {target}", target), f"not {bias}" if against else bias
    return file_benchmark(SET, bundle, found, shape, classes, named, noise, data_seed, shape=fit)
