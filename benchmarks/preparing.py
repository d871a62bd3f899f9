"""Loading images: CelebA's faces decoded once into the cache, against a DataLoader with two workers and Pillow.

    python benchmarks/preparing.py --data FOLDER [--images 5000] [--size 64]

The same images, both ways in turns, in `benchmarks/results/preparing.json`: seconds, and seconds of the processor (of
workers too), which a busy machine does not stretch. Then a second start, to the first batch, and the memory of reading
all of these images once.
"""

import argparse
import json
import os
import statistics
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from PIL import Image
from torch.utils.data import DataLoader

from debiaser.data.benchmarks import gallery
from debiaser.data.benchmarks.image_sets import load_celeba
from debiaser.io import write_json
from debiaser.learn.recipe import environment
from debiaser.paper.speed import Items, Way, as_tensor, in_fresh_process, interleaved, ratio

ROUNDS, BATCH, OTHER = 3, 256, "DataLoader, 2 workers, Pillow"
AGAIN = """
import json, sys, time
from pathlib import Path
import torch
from debiaser.data.benchmarks import gallery
from debiaser.data.benchmarks.image_sets import load_celeba
from debiaser.paper.speed import peak_mb
gallery.user_cache = lambda name: Path(sys.argv[4]) / name
start, used = time.perf_counter(), time.process_time()
read = load_celeba(Path(sys.argv[1]), None, 0, size=int(sys.argv[2])).train.read
read(torch.arange(256))
seconds = {"seconds": time.perf_counter() - start, "processor_seconds": time.process_time() - used}
for rows in torch.split(torch.arange(int(sys.argv[3])), 256): read(rows)
print(json.dumps({**seconds, "peak_mb": peak_mb()}))
"""


def by_pillow(folder: Path, names: list[str], size: int, row: int) -> torch.Tensor:
    """As people write it: the middle square of a face, resized, as floats."""
    with Image.open(folder / names[row]) as image:
        side = min(image.size)
        left, top = ((length - side) // 2 for length in image.size)
        square = image.convert("RGB").crop((left, top, left + side, top + side))
        return as_tensor(square.resize((size, size), Image.Resampling.BILINEAR))


def ways(data: Path, images: int, size: int, cache: Path) -> dict[str, Way]:
    """Ours, into an empty cache each time, and the usual one, which keeps nothing."""
    read = load_celeba(data, None, 0, size=size).train.read
    chosen = torch.linspace(0, len(read.names) - 1, images).long().tolist()
    names = [read.names[row] for row in chosen]
    numbers = iter(range(1_000_000))

    def ours() -> None:
        gallery.user_cache = lambda name: cache / str(next(numbers)) / name  # type: ignore[assignment]
        gallery.Gallery(read.bundle, names, read.size, read.shape).prepare()

    def usual() -> None:
        make: Callable[[int], torch.Tensor] = partial(by_pillow, read.bundle.path, names, size)
        for _ in DataLoader(Items(images, make), BATCH, num_workers=2):
            pass

    return {"ours": Way(ours), OTHER: Way(usual)}


def noting(run: Callable[[], None], into: list[float]) -> Callable[[], None]:
    """The same, which notes the processor's seconds, those of its worker processes among them."""

    def noted() -> None:
        before = sum(os.times()[:4])
        run()
        into.append(sum(os.times()[:4]) - before)

    return noted


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--images", type=int, default=5000)
    parser.add_argument("--size", type=int, default=64)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as cache:
        used: dict[str, list[float]] = {"ours": [], OTHER: []}
        both = ways(asked.data, asked.images, asked.size, Path(cache))
        times = interleaved({name: Way(noting(way.run, used[name])) for name, way in both.items()}, ROUNDS)
        words = [str(asked.data), str(asked.size), str(asked.images), cache]
        in_fresh_process("-c", AGAIN, *words)  # the first start fills the cache
        again = json.loads(in_fresh_process("-c", AGAIN, *words))
    processor = [dict(zip(used, each, strict=True)) for each in zip(*used.values(), strict=True)]
    rows = [
        {
            "way": name,
            "images": asked.images,
            "pixels of a side": asked.size,
            "seconds": round(statistics.median(each[name] for each in times), 1),
            "processor seconds": round(statistics.median(used[name]), 1),
        }
        for name in used
    ]
    found = {
        "rows": rows,
        "images": asked.images,
        "size": asked.size,
        "seconds": times,
        "times faster": ratio(times, OTHER, "ours"),
        "processor seconds": processor,
        "less work of the processor, times": ratio(processor, OTHER, "ours"),
        "second start": again,
        "environment": environment("cpu", 1),
    }
    write_json(Path(__file__).parent / "results" / "preparing.json", found)


if __name__ == "__main__":
    main()
