"""BFFHQ's protocol on FairFace: faces whose age and gender go together in training, but for half a percent."""

from pathlib import Path

import numpy as np

from debiaser.data.archives import Bundle
from debiaser.data.benchmarks.gallery import Files, file_benchmark, read_list, tally
from debiaser.data.bias import check_share
from debiaser.data.sources import FolderSet
from debiaser.data.split import Benchmark
from debiaser.io import numpy_stream

CLASSES = ("young", "old")
AGES = {"10-19": 0, "20-29": 0, "40-49": 1, "50-59": 1}  # BFFHQ's cuts: 10 to 29 and 40 to 59
OTHERS = ("0-2", "3-9", "30-39", "60-69", "more than 70")
GENDERS = {"Female": 0, "Male": 1}  # in training, the young are female and the old are male
TRAIN, HELD_OUT = 9_600, 250  # images of an age in train, and of an age and a gender in valid and in test
CELLS = [(age, gender) for age in (0, 1) for gender in (0, 1)]


def index(bundle: Bundle) -> tuple[dict[str, Files], dict[str, int]]:
    """The images of both lists, by the names these have there; those of other ages have the class -1."""
    found = {}
    for part in ("train", "val"):
        columns = {"age": (*AGES, *OTHERS), "gender": tuple(GENDERS)}
        table, names = read_list(bundle, f"{part}_labels.csv", columns, "file")
        ages, genders = table["age"].map(AGES).fillna(-1), table["gender"].map(GENDERS)
        found[part] = Files(names, ages.to_numpy(np.int64), genders.to_numpy(np.int64))
    return found, tally(found)


SET = FolderSet(
    name="fairface",
    title="FairFace faces",
    contents="its train/, val/, train_labels.csv and val_labels.csv",
    page="https://github.com/joojs/fairface",
    index=index,
    counts={"train": 86_744, "val": 10_954},
    also=("FairFace",),
)


def load(
    root: Path | None,
    rho: float,
    data_seed: int,
    noise: float = 0.0,
    size: int = 224,
    features: str | None = None,  # noqa: ARG001 (the bench trains on this encoder's features instead of images)
) -> Benchmark:
    """BFFHQ's protocol: 9,600 images of an age to train on, rho of them against the shortcut; drawn by the seed.

    valid and test hold 250 images of each age and gender; test is drawn from FairFace's own validation list, the others
    from its training list. size: pixels of a side. From a part of the set, all these numbers are less by one share.
    """
    against = round(check_share("rho", rho) * TRAIN)
    with SET.opened(root) as bundle:
        listed, counts = index(bundle)
    wanted = {
        "train": {(age, gender): TRAIN - against if age == gender else against for age, gender in CELLS},
        "valid": dict.fromkeys(CELLS, HELD_OUT),
        "test": dict.fromkeys(CELLS, HELD_OUT),
    }
    pools = {
        (source, cell): np.flatnonzero((files.target == cell[0]) & (files.bias == cell[1]))
        for source, files in listed.items()
        for cell in CELLS
    }
    taken = {"train": ("train", "valid"), "val": ("test",)}
    share = min(1, *(len(pool) / sum(wanted[part][cell] for part in taken[at]) for (at, cell), pool in pools.items()))
    found = {}
    for source, parts in taken.items():
        drawn = {
            cell: numpy_stream(data_seed, "fairface", source, *map(str, cell)).permutation(pools[source, cell])
            for cell in CELLS
        }
        for part in parts:
            rows = []
            for cell in CELLS:
                count = max(1, int(share * wanted[part][cell]))
                rows.append(drawn[cell][:count])
                drawn[cell] = drawn[cell][count:]
            found[part] = listed[source].chosen(np.sort(np.concatenate(rows)))
    there = SET.there(counts, (name for files in listed.values() for name in files.names))
    notes = ("BFFHQ's protocol on the faces of FairFace: other images than BFFHQ's, not to be taken for it",)
    return file_benchmark(SET, bundle, found, (size, size), CLASSES, "gender", noise, data_seed, notes, there=there)
