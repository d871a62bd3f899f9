"""What `audit` and `debias` achieve on data laid out as a user would have it; each file in `results/own/` is one run.

    python benchmarks/own_data.py cmnist|bar|imdb|table|regret --data RAW_SETS --work FOLDER --out results/own

The commands are run as commands. Bias labels are used only to judge what came out.
"""

import argparse
import csv
import json
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from PIL import Image
from sklearn.metrics import average_precision_score

from debiaser.data.benchmarks import cifar, mnist
from debiaser.data.split import Split
from debiaser.io import write_json

WORDS = {"positive": "Tuesday", "negative": "Thursday"}  # neutral, one for each label
BENCHMARKS = {"cmnist": (mnist, 0.01), "mbmnist": (mnist, 0.1), "ccifar": (cifar, 0.05)}  # with their rho
QUIET = 25  # percent of the processors busy with other things, at most, for a time that counts
FOLLOWS = 0.97  # share of the training rows in which the word goes with the label


def command(*words: str) -> tuple[dict[str, Any], float | None]:
    """What a debiaser command prints as JSON, and how long it took; None where others were computing as well."""
    quiet, started = psutil.cpu_percent(interval=1) < QUIET, time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "debiaser", *words, "--json"], stdout=subprocess.PIPE, text=True, check=True
    )
    return json.loads(done.stdout.splitlines()[-1]), time.perf_counter() - started if quiet else None


def read_scores(path: str) -> dict[str, dict[str, str]]:
    """The rows of scores.csv by id."""
    with Path(path).open(newline="", encoding="utf-8") as stream:
        return {row["id"]: row for row in csv.DictReader(stream)}


def run_cmnist(data: Path, work: Path, noise: float) -> dict[str, Any]:
    """5,000 coloured digits as a plain folder: how well the audit ranks the conflicting ones."""
    benchmark = mnist.load_cmnist(data, 0.01, 0, noise=noise)
    rows = torch.arange(5000)
    labels, truth = benchmark.train.y, benchmark.truth["train"]
    source, against = work / f"cmnist-{noise:g}", truth.conflicting(labels)
    names = write_folder(benchmark.train, rows, source)
    conflicting = {name: int(against[row] == 1) for row, name in enumerate(names)}
    found, seconds = command("audit", str(source), "--out", str(work / f"cmnist-{noise:g}-out"))
    scores = read_scores(found["scores"])
    ids = sorted(conflicting)
    known = np.array([conflicting[each] for each in ids])
    by = {
        name: float(average_precision_score(known, [float(scores[each][name] or 0) for each in ids]))
        for name in ("score", "p_conflicting")
    }
    flipped = truth.flipped(labels)[rows].numpy()
    kinds = np.array([scores[each]["kind"] for each in ids])
    order = np.array([int(Path(each).stem) for each in ids])
    return {
        "rows": 5000,
        "rho": 0.01,
        "noise": noise,
        "conflicting": int(known.sum()),
        "average_precision": by,
        "kinds_of_conflicting": count(kinds[known == 1]),
        "kinds_of_flipped": count(kinds[flipped[order]]),
        "verdict": found["verdict"],
        "reasons": found["reasons"],
        "views": found["views"],
        "kinds": found["kinds"],
        "planted": found["planted"],
        "conflicting_share": found["conflicting_share"],
        "seconds": seconds,
    }


def write_folder(split: Split, rows: torch.Tensor, folder: Path) -> list[str]:
    """Pictures as files in a folder per class; their names."""
    pictures = (split.read(rows) * 255).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()
    names = [f"{int(split.y[row])}/{int(row):05d}.png" for row in rows]
    for name, picture in zip(names, pictures, strict=True):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture.squeeze()).save(folder / name)
    return names


def run_regret(name: str, data: Path, work: Path) -> dict[str, Any]:
    """5,000 biased pictures of a benchmark and 2,000 unbiased test pictures: what `debias` chooses, and the best."""
    module, rho = BENCHMARKS[name]
    benchmark, source = module.load(data, rho, 0), work / f"{name}-regret"
    write_folder(benchmark.train, torch.arange(5000), source / "train")
    write_folder(benchmark.test, torch.arange(2000), source / "test")
    found, seconds = command("debias", str(source), "--seeds", "2", "--out", str(work / f"{name}-regret-out"))
    return {**proof(found), "rho": rho, "seconds": seconds}


def count(kinds: np.ndarray) -> dict[str, int]:
    """How many of each kind."""
    return {str(name): int(number) for name, number in zip(*np.unique(kinds, return_counts=True), strict=True)}


def run_bar(data: Path, work: Path) -> dict[str, Any]:
    """BAR as class folders with its own test set: PGD beside vanilla on frozen features, five seeds."""
    source = work / "bar"
    with tarfile.open(data / "bar_240px.tar") as archive:
        for member in archive:
            parts = Path(member.name).parts
            if not member.isfile() or not member.name.endswith(".jpg"):
                continue
            path = source / parts[-2] / parts[-1].rsplit("_", 1)[0] / parts[-1]
            path.parent.mkdir(parents=True, exist_ok=True)
            content = archive.extractfile(member)
            path.write_bytes(content.read() if content else b"")
    found, seconds = command("debias", str(source), "--seeds", "5", "--out", str(work / "bar-out"))
    return {**proof(found), "seconds": seconds, "network": "frozen EfficientNet-Lite0, a head of 256 units"}


def proof(found: dict[str, Any]) -> dict[str, Any]:
    """What a debias run says of itself."""
    names = ("verdict", "reasons", "views", "before", "after", "controls", "test", "helped", "n", "health")
    more = ("selection", "price", "kinds", "planted", "conflicting_share")
    return {name: found[name] for name in (*names, *more)} | {"regret": regret(found)}


def regret(found: dict[str, Any]) -> dict[str, Any]:
    """Points of held-out accuracy that the choice lost against the best candidate, known only to an oracle."""
    chosen, rival = found["selection"]["chosen"], found["selection"]["rival"]
    baseline = found["selection"]["candidates"][0]["name"]
    names = {each["name"] for each in found["selection"]["candidates"]}
    told = {name: each for name, each in found["controls"].items() if name in names}
    told |= {baseline: found["before"], rival: found["after"]}
    overall = {name: each["overall"]["mean"] for name, each in told.items()}
    best = max(overall, key=lambda name: overall[name])
    return {"chosen": chosen, "oracle": best, "points": overall[best] - overall[chosen], "overall": overall}


def run_imdb(data: Path, work: Path) -> dict[str, Any]:
    """Reviews with a neutral word that goes with the label in training and is not in the test texts."""
    with (data / "imdb_reviews.csv").open(newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    stream_of_chance = np.random.default_rng(0)
    other = {"positive": "negative", "negative": "positive"}
    conflicting = []
    for row in rows:
        against = bool(stream_of_chance.random() >= FOLLOWS)
        conflicting.append(against)
        if row["split"] != "test":
            word = WORDS[other[row["label"]] if against else row["label"]]
            row["text"] = f"{word}. {row['text']}"
    source = work / "imdb.csv"
    with source.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    found, seconds = command(
        "debias", str(source), "--text", "text", "--label", "label", "--split", "split", "--seeds", "5",
        "--out", str(work / "imdb-out"),
    )  # fmt: skip
    scores = read_scores(found["scores"])  # ids are row numbers, from 1
    trained = {name: conflicting[int(name) - 1] for name in scores}
    by = {
        name: float(average_precision_score(list(trained.values()), [float(row[name] or 0) for row in scores.values()]))
        for name in ("score", "p_conflicting")
    }
    return {
        **proof(found),
        "words": WORDS,
        "follows": FOLLOWS,
        "conflicting": sum(trained.values()),
        "average_precision": by,
        "seconds": seconds,
    }


def run_table(data: Path, work: Path) -> dict[str, Any]:
    """Reviews in a table with one column that goes with the label and five that do not: which are suspect?"""
    with (data / "imdb_reviews.csv").open(newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    chance = np.random.default_rng(0)
    sites = {"positive": "north", "negative": "south"}
    other = {"positive": "negative", "negative": "positive"}
    for row in rows:
        row["site"] = sites[row["label"] if chance.random() < FOLLOWS else other[row["label"]]]
        row |= {f"plain{number}": str(chance.integers(2 + 3 * number)) for number in range(5)}
    source = work / "table.csv"
    with source.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    options = ("--text", "text", "--label", "label", "--split", "split", "--out", str(work / "table-out"))
    found, seconds = command("audit", str(source), *options)
    flagged = [each["column"] for each in found["suspects"] if each["flagged"]]
    return {
        "injected": "site",
        "flagged": flagged,
        "suspects": found["suspects"],
        "seconds": seconds,
        "n": found["n"],
    } | {name: found[name] for name in ("verdict", "reasons", "views", "kinds")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["cmnist", "bar", "imdb", "table", "regret"])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    chosen = parser.parse_args()
    chosen.work.mkdir(parents=True, exist_ok=True)
    if chosen.what == "cmnist":
        for noise in (0.0, 0.02):
            write_json(chosen.out / f"cmnist_noise{noise:g}.json", run_cmnist(chosen.data, chosen.work, noise))
    elif chosen.what == "regret":
        for name in BENCHMARKS:
            write_json(chosen.out / f"{name}_debias.json", run_regret(name, chosen.data, chosen.work))
    else:
        make = {"bar": run_bar, "imdb": run_imdb, "table": run_table}[chosen.what]
        write_json(chosen.out / f"{chosen.what}.json", make(chosen.data, chosen.work))


if __name__ == "__main__":
    main()
