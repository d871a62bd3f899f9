"""How fast features of 224 px JPEGs are computed, as a ratio to the usual way, and what memory they take.

    python benchmarks/feature_speed.py --out benchmarks/results/feature_speed.json

The reference is what people write: a Dataset that opens, resizes and normalises each picture with Pillow, a DataLoader
with two workers, batches of 64, the same network as published, in eval mode without gradients. Each round times both
over the same pictures, in turns; wall clock and processor time (with workers) are told apart, since another program on
the machine slows the one and not the other. Memory is the peak of a fresh process per number of pictures.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file
from torch.utils.data import DataLoader, Dataset

from debiaser.data import weights
from debiaser.data.images import Files, Pictures
from debiaser.learn.encoders import EfficientNetLite0, Encoder, find_encoder
from debiaser.learn.features import features
from debiaser.paper.speed.timing import Spread, in_fresh_process, peak_mb

SIZE, BATCH = 224, 64


def make_pictures(folder: Path, count: int) -> list[str]:
    """JPEGs of smooth shapes and some noise, each its own, about as large as photographs of that size."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{number}.jpg" for number in range(count)]
    for number, path in enumerate(paths):
        if not path.exists():
            rng = np.random.default_rng(number)
            shapes = Image.fromarray(rng.integers(0, 256, (12, 12, 3), dtype=np.uint8)).resize((SIZE, SIZE))
            noisy = np.asarray(shapes, np.float32) + rng.normal(0, 6, (SIZE, SIZE, 3))
            Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(path, quality=90)
    return [str(path) for path in paths]


class PillowDataset(Dataset):
    """One picture at a time: opened, resized, normalised."""

    def __init__(self, paths: list[str]) -> None:
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, row: int) -> torch.Tensor:
        image = Image.open(self.paths[row]).convert("RGB").resize((SIZE, SIZE), Image.Resampling.BILINEAR)
        return (torch.from_numpy(np.array(image)).permute(2, 0, 1).float() - 127) / 128


def usual(paths: list[str]) -> torch.Tensor:
    """Features by the usual pipeline."""
    net = EfficientNetLite0().eval()
    net.load_published(load_file(weights.fetch("efficientnet_lite0") / weights.KEPT))
    with torch.no_grad():
        return torch.cat([net(x) for x in DataLoader(PillowDataset(paths), BATCH, num_workers=2)])


def ours(encoder: Encoder, paths: list[str], folder: Path) -> np.ndarray:
    """The first features by ours, all of them written to a new file in the folder."""
    pictures = Pictures(paths, Files(paths), np.full((len(paths), 2), SIZE, np.int32))
    with tempfile.TemporaryDirectory(dir=folder) as cache:

        def stream(rows: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
            return pictures.stream(rows, SIZE, BATCH)

        return np.array(features(encoder, "speed", len(paths), stream, Path(cache))[:BATCH])


def timed(function: Callable[[], object]) -> tuple[float, float]:
    """Seconds of the wall clock, and of processors with those of finished workers."""
    before, started = os.times(), time.perf_counter()
    function()
    after = os.times()
    return time.perf_counter() - started, sum(after[:4]) - sum(before[:4])


def memory(folder: Path, count: int) -> float:
    """Peak memory in GB of a fresh process that computes the features of so many pictures."""
    return float(in_fresh_process(__file__, "--folder", str(folder), "--only", str(count)))


def spread(ratios: list[float]) -> dict[str, float]:
    return Spread.of(ratios).plain()


def compare(folder: Path, rounds: int, count: int) -> dict[str, object]:
    """The ratios, round by round."""
    encoder, paths = find_encoder("image"), make_pictures(folder, count)
    difference = np.abs(usual(paths[:BATCH]).numpy() - ours(encoder, paths[:BATCH], folder)).max()
    pairs = [(timed(lambda: usual(paths)), timed(lambda: ours(encoder, paths, folder))) for _ in range(rounds)]
    return {
        "features, wall clock: usual pipeline over ours": spread([theirs[0] / own[0] for theirs, own in pairs]),
        "features, processor time: usual pipeline over ours": spread([theirs[1] / own[1] for theirs, own in pairs]),
        "pictures per second of processor time, ours": count / statistics.median(own[1] for _, own in pairs),
        "largest difference between the features": float(difference),
        "pictures per round": count,
        "threads": torch.get_num_threads(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="Where the pictures are made, and found the next time.")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--count", type=int, default=256, help="Pictures per round.")
    parser.add_argument("--sizes", type=int, nargs="*", default=[2_000, 10_000], help="Pictures of the memory runs.")
    parser.add_argument("--only", type=int, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = chosen.folder or Path(temporary)
        if chosen.only:
            ours(find_encoder("image"), make_pictures(folder, chosen.only), folder)
            print(peak_mb() / 1024)
            return
        found = compare(folder, chosen.rounds, chosen.count)
        found["peak resident memory, GB, by number of pictures"] = {str(n): memory(folder, n) for n in chosen.sizes}
    print(json.dumps(found, indent=2))
    if chosen.out:
        chosen.out.parent.mkdir(parents=True, exist_ok=True)
        chosen.out.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
