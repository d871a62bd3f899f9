"""Biased Action Recognition: six actions, each in one place in training and in other places in the test set."""

import re
from pathlib import Path

import numpy as np

from debiaser.data.archives import Bundle
from debiaser.data.benchmarks.gallery import Files, file_benchmark
from debiaser.data.bias import draw_by_class
from debiaser.data.fetch import Web
from debiaser.data.sources import FolderSet, images_in
from debiaser.data.split import Benchmark
from debiaser.io import numpy_stream

CLASSES = ("climbing", "diving", "fishing", "racing", "throwing", "pole vaulting")
NAME = re.compile(rf"(?:train|test)/({'|'.join(CLASSES)})_(\d+)\.\w+")
VALID = 0.1  # of the training images, drawn by class
UNKNOWN, ELSEWHERE = -1, len(CLASSES)  # a place that no class has in training; value k is the usual place of class k


def index(bundle: Bundle) -> tuple[tuple[Bundle, dict[str, Files]], dict[str, int]]:
    """For train and test the images, by class and number, and how many each class has; a renamed one is refused."""
    bundle = bundle.based_on("train", "test")
    found = {}
    for part, place in (("train", UNKNOWN), ("test", ELSEWHERE)):
        matches = images_in(bundle, part, NAME, "<class>_<number>.jpg")
        keys = sorted((CLASSES.index(match[1]), int(match[2]), match.string) for match in matches)
        found[part] = Files([key[2] for key in keys], np.array([key[0] for key in keys]), np.full(len(keys), place))
    counts = {part: tuple(np.bincount(files.target, minlength=len(CLASSES)).tolist()) for part, files in found.items()}
    return (bundle, found), counted(**counts)


def counted(train: tuple[int, ...], test: tuple[int, ...]) -> dict[str, int]:
    """The number of images of each class, in the order of `CLASSES`, as `<part>/<class>`."""
    parts = {"train": train, "test": test}
    return {f"{part}/{each}": n for part, all_n in parts.items() for each, n in zip(CLASSES, all_n, strict=True)}


SET = FolderSet(
    name="bar",
    title="Biased Action Recognition",
    contents="its train/ and test/",
    page="https://github.com/alinlab/BAR",
    index=index,
    counts=counted((326, 520, 163, 336, 317, 279), (105, 159, 42, 132, 85, 131)),
    also=("BAR", "bar_240px", "BAR-master"),
    mirrors=(Web(("https://github.com/alinlab/BAR/archive/refs/heads/master.zip",)),),
)


def load(
    root: Path | None,
    rho: float | None,  # noqa: ARG001 (the share of conflicting samples is what it is, and unknown)
    data_seed: int,
    noise: float = 0.0,
    size: int = 224,
    features: str | None = None,  # noqa: ARG001 (the bench trains on this encoder's features instead of images)
) -> Benchmark:
    """The benchmark; a tenth of the training images, drawn by class, validates. Every test image conflicts.

    size: pixels of a side.
    """
    with SET.opened(root) as opened:
        (bundle, found), counts = index(opened)
    there = SET.there(counts, (name for files in found.values() for name in files.names))
    valid = draw_by_class(found["train"].target, VALID, numpy_stream(data_seed, "bar", "valid"))
    parts = {"train": found["train"].chosen(~valid), "valid": found["train"].chosen(valid), "test": found["test"]}
    notes = ("which training images go against the shortcut is not known; every test image does",)
    return file_benchmark(SET, bundle, parts, (size, size), CLASSES, "place", noise, data_seed, notes, there=there)
