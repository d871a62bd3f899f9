"""How often the verdict is right: a bank of sets without a shortcut, and coloured digits with one, thresholds frozen.

    python benchmarks/bank.py --data FOLDER_WITH_RAW_SETS --work FOLDER --out results/verdict/bank.jsonl
    python benchmarks/bank.py --out results/verdict/bank.jsonl --summary

One JSON line per set; sets that are in the file are not run again, so the same command goes on after a stop, and given
twice, in two terminals, the two share the work. Every line
carries the thresholds it was ruled by, and a file made under others is refused. Only what the verdict needs is trained:
the swap test first, then, where that alone would say "no evidence", the easy and the judging models.
"""

import argparse
import hashlib
import json
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock, Timeout

from debiaser.auditing import api, diagnosis, swap_test
from debiaser.auditing import verdict as rules
from debiaser.auditing.crossval import Trainer, train_biased_models, train_plain_models
from debiaser.auditing.diagnosis import diagnose
from debiaser.auditing.inputs import Material, Subject, own_of
from debiaser.auditing.swap_test import SwapTest, find_views, swap_plain_models
from debiaser.auditing.verdict import BIASED, CANNOT_TELL, NO_EVIDENCE, Health
from debiaser.data import bias, raw
from debiaser.data.benchmarks import digits
from debiaser.data.own.rows import folds, units_per_class
from debiaser.data.split import Split
from debiaser.io import derive, locked, numpy_stream, write_text

IMBALANCE = 20  # rows of the largest class to those of the smallest, sizes in geometric steps
DRAWS = 10  # of every set with a shortcut
NOT_BIASED = "not biased, no more asked"
SUBSET = 5  # classes of a random subset
SIZES = {"digits": (1000, 1700)}
USUAL_SIZES = (3500, 5000)
NAMES = {
    ("digits", None): "scikit-learn's digits",
    ("mnist", None): "plain MNIST",
    ("fashion_mnist", None): "plain Fashion-MNIST",
    ("mnist", 0.9): "MNIST in colours drawn at random",
    ("subset", None): "five classes of MNIST or Fashion-MNIST",
}  # of sets without a shortcut


@dataclass(frozen=True)
class Set:
    """One set of the bank; rho is the share of rows whose colour is not that of their digit, None without colours."""

    source: str
    rows: int
    imbalanced: bool
    flips: float
    rho: float | None
    draw: int

    @property
    def key(self) -> str:
        colour = "grey" if self.rho is None else f"rho{self.rho:g}"
        balance = f"{IMBALANCE}to1" if self.imbalanced else "balanced"
        return f"{self.source}-{colour}-{balance}-{self.rows}-flips{self.flips:g}-draw{self.draw}"


def shortcut(rho: float | None) -> bool:
    """Whether a shortcut was put in."""
    return rho is not None and rho < 0.5


def bank() -> list[Set]:
    """All sets, in an order in which any beginning is a fair sample."""
    unbiased = [
        Set(source, rows, imbalanced, flips, rho, draw)
        for source, rho in NAMES
        for imbalanced in (False, True)
        for flips in (0.0, 0.02, 0.05, 0.1)
        for draw, rows in enumerate(SIZES.get(source, USUAL_SIZES))
    ]
    biased = [
        Set("mnist", 5000, False, flips, rho, draw)
        for rho in (0.0, 0.01, 0.05)
        for flips in (0.0, 0.05)
        for draw in range(DRAWS)
    ]
    return sorted([*unbiased, *biased], key=lambda each: hashlib.blake2b(each.key.encode()).digest())


def frozen() -> dict[str, float]:
    """Every number that a verdict depends on."""
    return {
        "matters_points": rules.MATTERS,
        "level": swap_test.LEVEL,
        "off_data": rules.OFF_DATA,
        "eligible": rules.ELIGIBLE,
        "units": rules.UNITS,
        "weak": diagnosis.WEAK,
        "few_errors": diagnosis.FEW,
        "confident": rules.CONFIDENT,
        "recoverable": rules.RECOVERABLE,
        "permutations": swap_test.PERMUTATIONS,
        "folds": api.FOLDS,
        "plain_seeds": api.PLAIN_SEEDS,
        "easy_seeds": api.BIASED_SEEDS,
        "judge_seeds": api.JUDGE_SEEDS,
    }


def grey(source: str, data: Path, stream: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Pictures (n, 28, 28) and labels of a source."""
    if source == "digits":
        parts = digits.parts().values()
        return np.concatenate([part.images for part in parts]), np.concatenate([part.target for part in parts])
    name = ("mnist", "fashion_mnist")[stream.integers(2)] if source == "subset" else source
    found = raw.load(name, data)
    x, y = found.x_train, found.y_train.astype(np.int64)
    if source == "subset":
        kept = np.sort(stream.permutation(10)[:SUBSET])
        inside = np.isin(y, kept)
        x, y = x[inside], np.searchsorted(kept, y[inside])
    return x, y


def make(chosen: Set, data: Path) -> Split:
    """The set as pictures with labels."""
    stream = numpy_stream(derive(0, "bank", chosen.key), "rows")
    x, target = grey(chosen.source, data, stream)
    classes = int(target.max()) + 1
    share = np.ones(classes) if not chosen.imbalanced else IMBALANCE ** (-np.arange(classes) / (classes - 1))
    sizes = (chosen.rows * stream.permutation(share) / share.sum()).round().astype(int)
    mixed = stream.permutation(len(target))
    rows = np.sort(np.concatenate([mixed[target[mixed] == k][:size] for k, size in enumerate(sizes)]))
    x, target = torch.from_numpy(np.ascontiguousarray(x[rows])), target[rows]
    colours = np.ones((len(rows), 3), np.float32)
    if chosen.rho is not None:
        colours = bias.draw_colours(bias.draw_bias(target, chosen.rho, classes, stream), stream)
    labels = bias.draw_bias(target, chosen.flips, classes, stream)
    pictures = bias.coloured(x, torch.from_numpy(colours))(torch.arange(len(rows)))
    pictures = (pictures * 255).round().to(torch.uint8)
    return Split.of(pictures, torch.from_numpy(labels), tuple(str(k) for k in range(classes)))


def rule(split: Split, folder: Path, hasty: bool) -> tuple[str, list[str], SwapTest | None, str]:
    """What `audit` would say of this set, its reasons, the swap test, and how far one had to go for it."""
    own = own_of(split)
    y, unit = own.y.numpy(), own.unit
    if (fewest := int(units_per_class(y, unit).min())) < rules.UNITS:
        return CANNOT_TELL, [f"A class has only {fewest:,} separate units; {rules.UNITS} are needed."], None, "units"
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / "pixels.npy", split.read(torch.arange(len(y))).numpy())
    subject = Subject(own, Material(folder / "pixels.npy", own.classes, own.identity), None, 28)
    trainer = Trainer(subject.material, y, folds(y, unit, api.FOLDS, 0), folder / "work")
    plain = train_plain_models(trainer, api.PLAIN_SEEDS)
    swaps = swap_plain_models(subject, trainer, plain, find_views(subject, trainer, ()))
    if not isinstance(swaps, SwapTest):
        return CANNOT_TELL, [str(swaps)], None, "swaps"
    skill = diagnosis.above_chance(plain.answer == y, y)
    word, reasons = rules.verdict(swaps, Health(skill, diagnosis.FEW))
    if word != NO_EVIDENCE:  # what the easy model says could not change it
        return word, reasons, swaps, "swaps"
    if hasty:
        return NOT_BIASED, reasons, swaps, "swaps"
    trainer, biased = train_biased_models(trainer, api.BIASED_SEEDS)
    misclassified, stage = int((biased.answer != y).sum()), "easy"
    rest, sure = False, (biased.answer != y) & (biased.probability.max(1) >= rules.CONFIDENT)
    if misclassified >= diagnosis.FEW and sure.sum() >= max(diagnosis.FEW, rules.RECOVERABLE * len(y)):
        rest, stage = (
            rules.recoverable(biased, diagnose(trainer, biased, api.JUDGE_SEEDS), np.arange(len(y)), y),
            "judge",
        )
    return *rules.verdict(swaps, Health(skill, misclassified, rest)), swaps, stage


def line_of(chosen: Set, data: Path, work: Path, hasty: bool) -> dict[str, Any]:
    """One set ruled on: what goes into the file."""
    started, busy = time.perf_counter(), time.process_time()
    folder = work / chosen.key
    word, reasons, swaps, stage = rule(make(chosen, data), folder, hasty)
    if word != NOT_BIASED:
        shutil.rmtree(folder, ignore_errors=True)
    fired = [each for each in swaps.reliances if rules.fires(each)] if swaps else []
    views = [
        {"name": each.name, "follows": each.follows, "chance": each.chance, "p": each.p}
        | {"low": each.excess.low, "high": each.excess.high}
        for each in (swaps.reliances if swaps else ())
    ]
    return {
        **asdict(chosen),
        "key": chosen.key,
        "verdict": word,
        "reasons": reasons,
        "named": fired[0].name if fired else None,
        "views": views,
        "stage": stage,
        "seconds": round(time.perf_counter() - started, 1),
        "cpu_seconds": round(time.process_time() - busy, 1),
        "thresholds": frozen(),
    }


def read_lines(path: Path) -> list[dict[str, Any]]:
    """What is in the file, the last of each set; a line that a stop cut off is left out."""
    found = {}
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            read = json.loads(line)
        except ValueError:
            continue
        found[read["key"]] = read
    return list(found.values())


def append(path: Path, line: dict[str, Any]) -> None:
    """One more line in the file, on a line of its own even where a stop cut the last one off."""
    with locked(path.with_suffix(".lock")):
        torn = path.exists() and not path.read_bytes().endswith(b"\n")
        with path.open("a") as stream:
            stream.write("\n" * torn + json.dumps(line) + "\n")


def done(path: Path, hasty: bool) -> set[str]:
    """The sets in the file, all ruled by the thresholds of now; unless in haste, only those ruled to the end."""
    lines = read_lines(path)
    if any(line["thresholds"] != frozen() for line in lines):
        sys.exit(f"{path} was made under other thresholds; start a new file")
    return {line["key"] for line in lines if hasty or line["verdict"] != NOT_BIASED}


def run(path: Path, data: Path, work: Path, sets: list[Set], hasty: bool = False) -> Iterator[str]:
    """Rule on every set that is not in the file and that no other process is at; a word on each."""
    waiting = [each for each in sets if each.key not in done(path, hasty)]
    for folder in (path.parent, work):
        folder.mkdir(parents=True, exist_ok=True)
    for number, chosen in enumerate(waiting, 1):
        claim = FileLock(work / f"{chosen.key}.lock")
        try:
            with claim.acquire(timeout=0):
                if chosen.key not in done(path, hasty):
                    line = line_of(chosen, data, work, hasty)
                    append(path, line)
                    told = f"{line['verdict']} ({line['named'] or '-'}), {line['cpu_seconds']} s"
                    yield f"{number}/{len(waiting)} {chosen.key}: {told}"
        except Timeout:  # another process is at it
            continue


def summary(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """How often each verdict was given, kind of set by kind of set; false alarms by name."""
    without = [line for line in lines if not shortcut(line["rho"])]
    groups: dict[str, list[dict[str, Any]]] = {}
    for line in without:
        groups.setdefault(
            f"{NAMES[line['source'], line['rho']]}, {'20:1' if line['imbalanced'] else 'balanced'}", []
        ).append(line)
    groups |= {"all without a shortcut": without}
    settings = sorted({(line["rho"], line["flips"]) for line in lines if shortcut(line["rho"])})
    for rho, flips in settings:
        told = f", {flips:.0%} of labels flipped" if flips else ""
        groups[f"coloured digits, {rho:.0%} against the colour{told}"] = [
            line for line in lines if (line["rho"], line["flips"]) == (rho, flips)
        ]
    return {
        "sets": len(lines),
        "of": len(bank()),
        "false_alarms": [line["key"] for line in without if line["verdict"] == BIASED],
        "rows": [{"sets": name, "number": len(mine), **counted(mine)} for name, mine in sorted(groups.items())],
        "cpu_seconds": round(sum(line["cpu_seconds"] for line in lines)),
        "thresholds": frozen(),
    }


def counted(lines: list[dict[str, Any]]) -> dict[str, int]:
    """How many of each verdict, and how often it came with the colour's name."""
    coloured = sum(line["verdict"] == BIASED and line["named"] == "colour" for line in lines)
    return {
        BIASED: sum(line["verdict"] == BIASED for line in lines),
        "colour named": coloured,
        **{word: sum(line["verdict"] == word for line in lines) for word in (NO_EVIDENCE, CANNOT_TELL, NOT_BIASED)},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--work", type=Path, default=Path("bank-work"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default="", help="only sets whose names begin so, such as mnist-grey")
    parser.add_argument("--hasty", action="store_true", help="the swap test alone: biased or not; the rest may follow")
    parser.add_argument("--summary", action="store_true", help="only say what is in the file")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    if not chosen.summary:
        sets = [each for each in bank() if each.key.startswith(chosen.only)]
        for told in run(chosen.out, chosen.data, chosen.work, sets, chosen.hasty):
            print(told, flush=True)
    found = summary(read_lines(chosen.out))
    told = json.dumps(found, indent=2)  # in the order of the table's columns
    write_text(chosen.out.with_suffix(".json"), told + "\n")
    print(told)


if __name__ == "__main__":
    main()
