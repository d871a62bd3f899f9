"""Biased Action Recognition: six actions, each in one place in training and in other places in the test set."""

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from debiaser.data.archives import Bundle
from debiaser.data.benchmarks.gallery import Gallery
from debiaser.data.bias import Integers, Part, build_benchmark
from debiaser.data.fetch import Web
from debiaser.data.sources import FolderSet, compare, images_in
from debiaser.data.split import Benchmark
from debiaser.io import numpy_stream

CLASSES = ("climbing", "diving", "fishing", "racing", "throwing", "pole vaulting")
NAME = re.compile(rf"(?:train|test)/({'|'.join(CLASSES)})_(\d+)\.\w+")
VALID = 0.1  # of the training images, drawn by class
ELSEWHERE = len(CLASSES)  # a place that no class has in training; value k is the usual place of class k


def index(bundle: Bundle, counts: Mapping[str, int]) -> tuple[Bundle, dict[str, tuple[list[str], Integers]]]:
    """For train and test the names and classes of the images, by class and number; a renamed one is refused."""
    bundle = bundle.based_on("train", "test")
    found = {}
    for part in ("train", "test"):
        matches = images_in(bundle, part, NAME, "<class>_<number>.jpg")
        keys = sorted((CLASSES.index(match[1]), int(match[2]), match.string) for match in matches)
        found[part] = [name for *_, name in keys], np.array([key[0] for key in keys])
    tally = {f"{part}/{each}": int((y == k).sum()) for part, (_, y) in found.items() for k, each in enumerate(CLASSES)}
    compare(bundle.path, counts, tally)
    return bundle, found


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
    partial: bool = False,
    features: str | None = None,  # noqa: ARG001 (the bench trains on this encoder's features instead of images)
) -> Benchmark:
    """The benchmark; a tenth of the training images, drawn by class, validates. Every test image conflicts.

    size: pixels of a side; partial: take what is there, whatever the counts.
    """
    with SET.opened(root) as opened:
        bundle, found = index(opened, {} if partial else SET.counts)
    (names, y), (test_names, test_y) = found["train"], found["test"]
    valid = draw_by_class(y, VALID, data_seed)
    parts = {}
    for part, chosen in (("train", np.flatnonzero(~valid)), ("valid", np.flatnonzero(valid))):
        read = Gallery(bundle, [names[row] for row in chosen], (size, size))
        parts[part] = Part(y[chosen], np.full((len(chosen), 1), -1), read)
    parts["test"] = Part(test_y, np.full((len(test_y), 1), ELSEWHERE), Gallery(bundle, test_names, (size, size)))
    notes = ("which training images go against the shortcut is not known; every test image does",)
    return build_benchmark("bar", parts, CLASSES, ("place",), noise, data_seed, notes)


def draw_by_class(y: Integers, share: float, seed: int) -> np.ndarray:
    """(n,) bool: of each class this share of its samples, at random."""
    rng = numpy_stream(seed, "bar", "valid")
    chosen = np.zeros(len(y), dtype=bool)
    for number in range(int(y.max(initial=-1)) + 1):
        rows = np.flatnonzero(y == number)
        chosen[rng.permutation(rows)[: round(share * len(rows))]] = True
    return chosen
