"""How fast pictures become batches, as a ratio to the usual way, measured in one run, interleaved.

    python benchmarks/decode_speed.py --data DIR --out benchmarks/results/decode_speed.json

The pictures are JPEGs whose longer side is 224 px, crops of BAR with noise. The reference is what people write: a
Dataset that opens each file with Pillow, resizes it and makes a float tensor, in a DataLoader with two persistent
workers. Ours is `Pictures.stream` with two threads, turned to float as well. A second pair does the same on pictures of
1024 px, which a phone or a scanner gives.
"""

import argparse
import json
import statistics
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from debiaser.data.pictures import Files, Pictures

SIZE, BATCH, WORKERS = 224, 64, 2


class PillowDataset(Dataset):
    """One picture at a time: open, convert, resize, to a float tensor."""

    def __init__(self, paths: list[str]) -> None:
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, row: int) -> torch.Tensor:
        with Image.open(self.paths[row]) as image:
            resized = image.convert("RGB").resize((SIZE, SIZE), Image.Resampling.BILINEAR)
        return torch.from_numpy(np.array(resized)).permute(2, 0, 1).contiguous().float() / 255


def make_pictures(archive: Path, folder: Path, count: int, side: int) -> list[str]:
    """So many square JPEGs: crops of BAR, enlarged, with noise."""
    rng, paths = np.random.default_rng(0), []
    with tarfile.open(archive) as members:
        names = [member for member in members if member.name.endswith(".jpg")][:count]
        for number, member in enumerate(names):
            image = Image.open(members.extractfile(member)).convert("RGB").resize((side, side))
            noisy = np.asarray(image, np.int16) + rng.integers(-8, 9, (side, side, 3))
            paths.append(str(folder / f"{number}.jpg"))
            Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(paths[-1], quality=90)
    return paths


def usual(paths: list[str]) -> Callable[[], float]:
    """Seconds of one pass of the usual pipeline."""
    loader = DataLoader(PillowDataset(paths), BATCH, num_workers=WORKERS, persistent_workers=True)

    def run() -> float:
        started = time.perf_counter()
        assert sum(len(batch) for batch in loader) == len(paths)
        return time.perf_counter() - started

    return run


def ours(paths: list[str]) -> Callable[[], float]:
    """Seconds of one pass of ours."""
    pictures = Pictures(paths, Files(paths), np.zeros((len(paths), 2), np.int32))
    rows = torch.arange(len(paths))

    def run() -> float:
        started = time.perf_counter()
        assert sum(len(batch.float() / 255) for _, batch in pictures.stream(rows, SIZE, BATCH, WORKERS)) == len(paths)
        assert not pictures.failed
        return time.perf_counter() - started

    return run


def measure(archive: Path, count: int, side: int, rounds: int) -> dict[str, float]:
    """The ratio of each round, its median and spread."""
    with tempfile.TemporaryDirectory() as folder:
        paths = make_pictures(archive, Path(folder), count, side)
        reference, own = usual(paths), ours(paths)
        reference(), own()
        ratios = [reference() / own() for _ in range(rounds)]
    return {"median": statistics.median(ratios), "low": min(ratios), "high": max(ratios), "rounds": rounds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--pictures", type=int, default=1000)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    archive = chosen.data / "bar_240px.tar"
    found = {
        "batches of 224 px pictures: usual pipeline over ours": measure(archive, chosen.pictures, 224, chosen.rounds),
        "batches of 1024 px pictures: usual pipeline over ours": measure(
            archive, chosen.pictures // 5, 1024, chosen.rounds
        ),
        "workers": WORKERS,
    }
    print(json.dumps(found, indent=2))
    if chosen.out:
        chosen.out.parent.mkdir(parents=True, exist_ok=True)
        chosen.out.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
