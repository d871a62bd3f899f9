"""Waterbirds: birds cut out of photographs and put before land or water, which goes with the bird in training."""

from pathlib import Path

import numpy as np

from debiaser.data.archives import Bundle
from debiaser.data.benchmarks.gallery import Files, by_part, file_benchmark, read_list, tally
from debiaser.data.sources import FolderSet
from debiaser.data.split import Benchmark

LIST = "metadata.csv"
COLUMNS = {"y": (0, 1), "split": (0, 1, 2), "place": (0, 1)}
CLASSES = ("landbird", "waterbird")  # 0 and 1; so are places: 0 is land, 1 is water


def index(bundle: Bundle) -> tuple[dict[str, Files], dict[str, int]]:
    """The images of each part, by the list of the set."""
    table, names = read_list(bundle, LIST, COLUMNS, "img_filename")
    bird, split, place = (table[name].to_numpy(np.int64) for name in COLUMNS)
    found = by_part(Files(names, bird, place), split)
    return found, tally(found)


SET = FolderSet(
    name="waterbirds",
    title="Waterbirds",
    contents=f"{LIST} and the folders of its 200 species",
    page="https://wilds.stanford.edu/get_started/",
    index=index,
    counts={"train": 4_795, "valid": 1_199, "test": 5_794},
    also=("waterbirds_v1.0", "waterbird_complete95_forest2water2"),
)


def load(
    root: Path | None,
    rho: float | None,  # noqa: ARG001 (the share of conflicting samples is what it is)
    data_seed: int,
    noise: float = 0.0,
    size: int = 224,
    features: str | None = None,  # noqa: ARG001 (the bench trains on this encoder's features instead of images)
) -> Benchmark:
    """The benchmark in its official split; size: pixels of a side."""
    with SET.opened(root) as bundle:
        found, _ = index(bundle)
    return file_benchmark(SET, bundle, found, (size, size), CLASSES, "place", noise, data_seed)
