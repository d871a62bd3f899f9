"""How long the generated benchmarks take to make and to load again, and JPEGs to decode, against the usual way.

    python benchmarks/generation.py --data DIR --out benchmarks/results/generation.json

DIR holds the raw sets of Multi-bias MNIST and CIFAR-10. Every start is a process of its own, imports included, with an
empty cache the first time; it hands out every picture of all three splits once. Wall clock and processor time are told
apart: another program on the machine lengthens the one and not the other. Decoding: pictures of 224 pixels in BAR's
layout as `train` reads them, against a DataLoader with two workers that opens, resizes and normalises them with Pillow,
in turns. With --only, what else the file has stays.
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader

from debiaser.data.benchmarks import DATASETS, gallery
from debiaser.data.benchmarks.image_sets import ACTIONS, load_bar
from debiaser.data.split import Split
from debiaser.learn.recipe import keep_freed_memory
from debiaser.paper.speed import Items, as_tensor, in_fresh_process, spread

SIZE, BATCH, WORKERS = 224, 32, 2
RHO = {"mbmnist": 0.1, "ccifar": 0.01}


def processor_time() -> float:
    """Seconds of processors so far, those of finished workers included."""
    return sum(os.times()[:4])


def start(name: str, data: Path) -> None:
    """Loads a benchmark and hands out all of its pictures; prints processor seconds since the process began."""
    benchmark = DATASETS[name].load(data, RHO[name], 0)
    splits = benchmark.train, benchmark.valid, benchmark.test
    rows = sum(len(batch) for split in splits for batch in split.batches(512))
    print(json.dumps({"pictures": rows, "processor": processor_time()}))


def starts(name: str, data: Path) -> dict[str, Any]:
    """The first start, with an empty cache, and the second."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as cache:
        os.environ["XDG_CACHE_HOME"] = cache
        for which in ("first start", "second start"):
            began = time.perf_counter()
            told = json.loads(in_fresh_process(__file__, "--data", str(data), "--start", name))
            seconds = {"wall": time.perf_counter() - began, "processor": told["processor"]}
            found |= {"pictures": told["pictures"], f"{which}, seconds": seconds}
    return found


@contextmanager
def jpegs(count: int, side: int) -> Iterator[list[str]]:
    """Paths of so many square JPEGs of smooth shapes with some noise, for as long as it is open."""
    with tempfile.TemporaryDirectory(prefix="debiaser-bench-") as folder:
        rng, paths = np.random.default_rng(0), [str(Path(folder) / f"{number}.jpg") for number in range(count)]
        noise = rng.normal(0, 6, (side, side, 3)).astype(np.float32)
        for path in paths:
            shapes = Image.fromarray(rng.integers(0, 256, (12, 12, 3), dtype=np.uint8)).resize((side, side))
            noisy = np.asarray(shapes, np.float32) + np.roll(noise, int(rng.integers(side)), axis=1)
            Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(path, quality=90)
        yield paths


def opened(paths: Sequence[str], size: int, row: int) -> torch.Tensor:
    """An image file opened, resized and made a float tensor."""
    with Image.open(paths[row]) as image:
        return as_tensor(image.convert("RGB").resize((size, size), Image.Resampling.BILINEAR))


def normalised(x: torch.Tensor) -> torch.Tensor:
    """In place: new memory for every batch would take longer than the arithmetic, on either side."""
    return x.sub_(0.5).div_(0.25)


def decoding(rounds: int, count: int) -> dict[str, Any]:
    """The usual way's seconds over ours, round by round; both give batches of normalised floats.

    Processor time is that of the usual way without workers, whose own cannot be seen while they live.
    """
    keep_freed_memory()  # as the commands that train do
    torch.set_num_threads(1)  # as in the loader's workers: the threads that decode are our own
    with jpegs(count, SIZE) as paths, tempfile.TemporaryDirectory() as folder:
        for number, path in enumerate(paths):
            at = Path(folder, "bar", "test" if number % 8 == 0 else "train", f"{ACTIONS[number % 6]}_{number}.jpg")
            at.parent.mkdir(parents=True, exist_ok=True)
            at.symlink_to(path)
        gallery.ROOM = 0  # nothing is kept: every round decodes
        split: Split = load_bar(Path(folder), None, 0, partial=True).train
        own = [str(Path(folder, "bar", name)) for name in split.read.names]  # type: ignore[attr-defined]
        usual = Items(len(own), lambda row: normalised(opened(own, SIZE, row)))  # as people write it
        loader = DataLoader(usual, BATCH, num_workers=WORKERS, persistent_workers=True)
        alone = DataLoader(usual, BATCH)

        def timed(batches: Any) -> tuple[float, float]:
            began, before = time.perf_counter(), processor_time()
            rows = sum(len(batch) for batch in batches)
            assert rows == len(own), "every picture once"
            return time.perf_counter() - began, processor_time() - before

        def ours() -> tuple[float, float]:
            return timed(normalised(batch.x) for batch in split.batches(BATCH))

        timed(loader)  # workers start once
        turns = [(timed(loader), ours(), timed(alone)) for _ in range(rounds)]
    return {
        "wall clock: DataLoader with 2 workers over ours": spread([u[0] / o[0] for u, o, _ in turns]),
        "processor time: DataLoader without workers over ours": spread([a[1] / o[1] for _, o, a in turns]),
        "pictures per second of processor time, ours": len(own) / float(np.median([o[1] for _, o, _ in turns])),
        "pictures per round": len(own),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--count", type=int, default=1024, help="Pictures to decode.")
    parser.add_argument("--only", choices=[*RHO, "decoding"], nargs="+", default=[*RHO, "decoding"])
    parser.add_argument("--start", choices=RHO, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.start:
        start(chosen.start, chosen.data)
        return
    found = json.loads(chosen.out.read_text()) if chosen.out and chosen.out.exists() else {}
    for part in chosen.only:
        measured = decoding(chosen.rounds, chosen.count) if part == "decoding" else starts(part, chosen.data)
        machine = {"cores": os.cpu_count(), "threads": torch.get_num_threads(), "load average": os.getloadavg()[0]}
        found[part] = {**measured, "machine": machine}
    text = json.dumps(found, indent=2)
    print(text)
    if chosen.out:
        chosen.out.parent.mkdir(parents=True, exist_ok=True)
        chosen.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
