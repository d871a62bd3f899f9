"""How fast a training step and the scoring are, as ratios to the usual ways, measured in one run, interleaved.

    python benchmarks/cmnist_speed.py --data DIR --out benchmarks/results/cmnist_speed.json

The reference is what people write: a Dataset that augments each picture with Pillow (one affine transform for crop and
rotation, ImageEnhance for saturation, HSV for hue), a DataLoader with two persistent workers, batch 128, stock layers.
Each round times the same number of steps of both; the ratio of a round is what is reported, with its spread.
"""

import argparse
import json
import math
import resource
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageEnhance
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import DataLoader, Dataset

from debiaser.data import cmnist
from debiaser.data.augment import PAPER
from debiaser.data.split import Benchmark
from debiaser.learn.engine import Stage, split_rows, step
from debiaser.learn.nets import SimConv1
from debiaser.learn.objectives import Supervised
from debiaser.learn.outputs import evaluating
from debiaser.learn.recipe import Recipe
from debiaser.learn.sampling import Shuffle
from debiaser.learn.scores import gradient_norms

BATCH = 128


def stock_simconv1() -> nn.Sequential:
    """SimConv-1 of stock layers."""
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 4), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.5), nn.AvgPool2d(2)),
        *(nn.Conv2d(8, 32, 4), nn.BatchNorm2d(32), nn.ReLU(), nn.Dropout(0.5), nn.AvgPool2d(2)),
        *(nn.Conv2d(32, 64, 4), nn.ReLU(), nn.BatchNorm2d(64), nn.Dropout(0.5), nn.AdaptiveAvgPool2d(1)),
        *(nn.Flatten(), nn.Linear(64, 10)),
    )


class PillowDataset(Dataset):
    """One picture at a time, as 8-bit Pillow images."""

    def __init__(self, pictures: np.ndarray, labels: np.ndarray) -> None:
        self.pictures, self.labels = pictures, labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, row: int) -> tuple[torch.Tensor, int]:
        image = augment(Image.fromarray(self.pictures[row]), np.random.default_rng(torch.randint(2**62, ()).item()))
        return torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255, int(self.labels[row])


def augment(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    """Crop and rotation as one affine transform, then saturation and hue."""
    width, height = image.size
    w, h, left, top = width, height, 0, 0
    for _ in range(10):
        area, ratio = width * height * rng.uniform(0.9, 1.1), math.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if w <= width and h <= height:
            left, top = int(rng.integers(width - w + 1)), int(rng.integers(height - h + 1))
            break
    else:
        w, h = width, height
    angle = math.radians(rng.uniform(-10, 10))
    a, b = w / width * math.cos(angle), w / width * math.sin(angle)
    d, e = -h / height * math.sin(angle), h / height * math.cos(angle)
    c = left + w / 2 - (a * width + b * height) / 2
    f = top + h / 2 - (d * width + e * height) / 2
    image = image.transform((width, height), Image.Transform.AFFINE, (a, b, c, d, e, f), Image.Resampling.BILINEAR)
    image = ImageEnhance.Color(image).enhance(rng.uniform(0.95, 1.05))
    hue, saturation, value = image.convert("HSV").split()
    shifted = (np.asarray(hue, dtype=np.int16) + round(rng.uniform(-0.05, 0.05) * 255)).astype(np.uint8)
    return Image.merge("HSV", (Image.fromarray(shifted), saturation, value)).convert("RGB")


def reference_steps(benchmark: Benchmark) -> Callable[[int], float]:
    """Seconds of so many training steps of the usual pipeline."""
    pictures = torch.cat([batch.x for batch in benchmark.train.batches(2000)])
    pixels = (pictures * 255).byte().permute(0, 2, 3, 1).contiguous().numpy()
    dataset = PillowDataset(pixels, benchmark.train.y.numpy())
    loader = DataLoader(dataset, BATCH, shuffle=True, num_workers=2, persistent_workers=True)
    model = stock_simconv1().train()
    optimizer = torch.optim.SGD(model.parameters(), 0.02, momentum=0.9, weight_decay=1e-3)

    def forever() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        while True:
            yield from loader

    batches = forever()

    def run(steps: int) -> float:
        started = time.perf_counter()
        for _ in range(steps):
            x, y = next(batches)
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        return time.perf_counter() - started

    return run


def our_steps(benchmark: Benchmark) -> Callable[[int], float]:
    """Seconds of so many training steps of ours."""
    objective = Supervised(SimConv1()).train()
    optimizer = torch.optim.SGD(objective.parameters(), 0.02, momentum=0.9, weight_decay=1e-3, fused=True)
    stage = Stage("speed", benchmark.train, Recipe(batch_size=BATCH), 0, augment=PAPER)
    generator, parts = torch.Generator(), split_rows(Shuffle(len(benchmark.train)).draw(0), BATCH)

    def run(steps: int) -> float:
        started = time.perf_counter()
        for number in range(steps):
            step(objective, optimizer, stage, parts[number % len(parts)], generator)
        return time.perf_counter() - started

    return run


def scoring(benchmark: Benchmark, rows: int) -> dict[str, Callable[[], float]]:
    """Seconds of scoring this many rows: by the closed form, a bare forward pass, one backward pass per sample."""
    model, part = SimConv1().eval(), benchmark.train.subset(torch.arange(rows))
    few = benchmark.train.subset(torch.arange(rows // 40))

    def closed_form() -> None:
        gradient_norms(model, part)

    def forward() -> None:
        with evaluating(model):
            for batch in part.batches(256):
                model(batch.x)

    def backward() -> None:
        for batch in few.batches(1):
            model.zero_grad()
            F.cross_entropy(model(batch.x), batch.y).backward()
            model.fc.weight.grad.norm()

    def timed(function: Callable[[], None], factor: int = 1) -> Callable[[], float]:
        def run() -> float:
            started = time.perf_counter()
            function()
            return (time.perf_counter() - started) * factor

        return run

    return {"closed form": timed(closed_form), "forward": timed(forward), "backward each": timed(backward, 40)}


def spread(ratios: list[float]) -> dict[str, float]:
    return {"median": statistics.median(ratios), "low": min(ratios), "high": max(ratios), "rounds": len(ratios)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=100)
    chosen = parser.parse_args()
    benchmark = cmnist.load(chosen.data, 0.005, 0)
    ours = our_steps(benchmark)
    ours(10)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    reference = reference_steps(benchmark)
    reference(20)
    epoch = [reference(chosen.steps) / ours(chosen.steps) for _ in range(chosen.rounds)]
    timers = scoring(benchmark, 10_000)
    rounds = [{name: run() for name, run in timers.items()} for _ in range(chosen.rounds)]
    found = {
        "training epoch: usual pipeline over ours": spread(epoch),
        "scoring: closed form over a bare forward pass": spread([r["closed form"] / r["forward"] for r in rounds]),
        "scoring: one backward per sample over closed form": spread(
            [r["backward each"] / r["closed form"] for r in rounds]
        ),
        "peak resident memory while training, GB": memory,
        "threads": torch.get_num_threads(),
    }
    print(json.dumps(found, indent=2))
    if chosen.out:
        chosen.out.parent.mkdir(parents=True, exist_ok=True)
        chosen.out.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
