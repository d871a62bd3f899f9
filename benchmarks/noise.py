"""Wrong labels and conflicting samples: Colored MNIST with flipped labels, how samples are called, and accuracy.

    python benchmarks/noise.py --data FOLDER_WITH_RAW_SETS --work FOLDER --out results/verdict/noise.json

For every setting (rho, share of labels flipped) the rows are examined as `audit` does, then trained: vanilla, plain PGD
(all draws by score) and PGD whose likely mislabelled rows weigh less. The unbiased test set has clean labels. Models
are kept in the work folder and finished settings in the file: the same command goes on after a stop.
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from debiaser.auditing.api import Request, examine
from debiaser.auditing.candidates import VANILLA, Training, train_candidates, world_of
from debiaser.auditing.crossval import Trainer
from debiaser.auditing.diagnosis import KINDS, name_kinds
from debiaser.auditing.inputs import Material, Subject, own_of
from debiaser.auditing.verdict import Examined
from debiaser.data.benchmarks import mnist
from debiaser.data.split import Benchmark
from debiaser.io import write_text
from debiaser.learn.recipe import Recipe
from debiaser.learn.sampler import effective_sample_size

SETTINGS = ((0.01, 0.05), (0.05, 0.02), (0.05, 0.0), (0.01, 0.0))  # rho, flips
PLAIN_PGD = "plain PGD"
WEIGHED = "PGD, likely mislabelled rows weigh less"
EPOCHS = 6  # of the debiased stage; vanilla gets as many more as the first stage takes


@dataclass(frozen=True, eq=False)
class Longer(Material):
    """The same material, debiased for more epochs: what 54,000 rows need."""

    epochs: int = EPOCHS

    def recipes(self, stage: str, rows: int) -> list[Recipe]:
        found = super().recipes(stage, rows)
        return [replace(each, epochs=self.epochs) for each in found] if stage == "long" else found


def pictures(benchmark: Benchmark, rows: int, folder: Path) -> tuple[Path, int]:
    """Training rows, then all test rows, as bytes in one array on disk; how many are for training."""
    train = min(rows, len(benchmark.train.y))
    path = folder / "pixels.npy"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        parts = [
            (split.read(part) * 255).round().to(torch.uint8).numpy()
            for split, n in ((benchmark.train, train), (benchmark.test, len(benchmark.test.y)))
            for part in torch.split(torch.arange(n), 2000)
        ]
        temporary = path.with_suffix(".part.npy")
        np.save(temporary, np.concatenate(parts))
        temporary.replace(path)
    return path, train


def look(benchmark: Benchmark, rows: int, folder: Path, workers: int) -> tuple[Examined, Material, int]:
    """The training rows examined."""
    path, train = pictures(benchmark, rows, folder)
    own = own_of(benchmark.train.subset(torch.arange(train)))
    material = Material(path, own.classes, own.identity)
    examined = examine(Subject(own, material, None, 28), np.arange(train), Request(workers=workers, out=folder))
    return examined, material, train


def measure(
    rho: float, noise: float, data: Path, work: Path, rows: int, seeds: int, epochs: int, workers: int
) -> dict[str, Any]:
    """One setting: what the kinds were called, and the unbiased accuracy of the models."""
    benchmark = mnist.load_cmnist(data, rho, 0, noise=noise)
    examined, material, train = look(benchmark, rows, work / f"rho{rho:g}-flips{noise:g}-{rows}", workers)
    y, truth = benchmark.train.y, benchmark.truth["train"]
    flipped = truth.flipped(y)[:train].numpy()
    conflicting = (truth.conflicting(y)[:train] == 1).numpy() & ~flipped
    diagnosis = examined.diagnosis
    raw = name_kinds(examined.trainer.fold >= 0, diagnosis.misclassified, diagnosis.wrong_by_seed)
    world = world_of(examined)
    by_score = replace(world, trust=np.ones(train)).by_score(1.0)
    draws = {PLAIN_PGD: by_score, WEIGHED: world.by_score(1.0)}
    everything = np.concatenate([benchmark.train.y[:train].numpy(), benchmark.test.y.numpy()])
    longer = Longer(material.array, material.classes, material.identity, epochs)
    trainer = Trainer(longer, everything, np.full(len(everything), -1), examined.trainer.folder, workers)
    none = np.zeros(len(everything) - train)
    trainings = {VANILLA: Training(np.concatenate([world.equal(world.y), none]))} | {
        name: Training(np.concatenate([each, none]), True, augmented=True) for name, each in draws.items()
    }
    asked = np.arange(train, len(everything))
    evaluation = train_candidates(trainer, [(np.arange(train), asked)], trainings, np.arange(len(everything)), seeds)
    accuracy = {
        name: [100 * float(each) for each in (evaluation.candidates[name].answers == evaluation.labels).mean(1)]
        for name in (VANILLA, PLAIN_PGD, WEIGHED)
    }
    return {
        "rows": train,
        "rho": rho,
        "flips": noise,
        "seeds": seeds,
        "verdict": examined.verdict,
        "reasons": examined.reasons,
        "abstains": diagnosis.abstains,
        "planted": examined.controls.plain if examined.controls else None,
        "noise_among_missed": None if diagnosis.noise is None else diagnosis.noise.tolist(),
        "flipped": counted(raw[flipped]),
        "conflicting": counted(raw[conflicting]),
        "others": counted(raw[~flipped & ~conflicting]),
        "mass_on_flipped": {name: float(weight[flipped].sum()) for name, weight in draws.items()},
        "effective_rows": effective_sample_size(by_score),
        "unbiased": accuracy,
    }


def counted(kinds: np.ndarray) -> dict[str, int]:
    """How many rows of each kind, before any abstention."""
    return {kind: int((kinds == kind).sum()) for kind in KINDS} | {"all": len(kinds)}


def as_row(found: dict[str, Any]) -> dict[str, Any]:
    """One setting as a line of the table in docs/verdict.md."""
    shares = [f"{found[who]['mislabelled']:,} of {found[who]['all']:,}" for who in ("flipped", "conflicting")]
    return {
        "against the colour": f"{found['rho']:.0%}",
        "labels flipped": f"{found['flips']:.0%}",
        "flipped rows called mislabelled": shares[0],
        "conflicting rows called mislabelled": shares[1],
        "kinds asserted": "no" if found["abstains"] else "yes",
        **{f"{name}, unbiased %": spread(each) for name, each in found["unbiased"].items()},
    }


def spread(values: list[float]) -> str:
    """Mean and standard deviation over the seeds."""
    return f"{np.mean(values):.1f} ± {np.std(values, ddof=1):.1f}" if len(values) > 1 else f"{values[0]:.1f}"


def run(chosen: argparse.Namespace) -> Iterator[str]:
    """Every setting that is not in the file; a word on each."""
    found: dict[str, Any] = json.loads(chosen.out.read_text()) if chosen.out.exists() else {"settings": {}}
    for rho, noise in SETTINGS:
        key = f"rho {rho:g}, flips {noise:g}, rows {chosen.rows}, seeds {chosen.seeds}, epochs {chosen.epochs}"
        if key not in found["settings"]:
            found["settings"][key] = measure(
                rho, noise, chosen.data, chosen.work, chosen.rows, chosen.seeds, chosen.epochs, chosen.workers
            )
            found["rows"] = [as_row(each) for each in found["settings"].values()]
            write_text(chosen.out, json.dumps(found, indent=2) + "\n")  # in the order of the table's columns
        yield f"{key}: {as_row(found['settings'][key])}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=54_000)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--workers", type=int, default=1)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    for told in run(chosen):
        print(told, flush=True)


if __name__ == "__main__":
    main()
