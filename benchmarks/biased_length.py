"""How long should the biased model of an audit learn? How well its scores rank the rarer group of each class.

    python benchmarks/biased_length.py celeba_blond waterbirds --data DIR --work DIR

Heads on frozen features, trained for several numbers of updates on the training samples of the sets of `fix.py`; groups
are read for nothing but this evaluation. Sets that are in the file are not run again.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from fix import SETS
from sklearn.metrics import average_precision_score

from debiaser.auditing import inputs
from debiaser.auditing.crossval import Trainer, train_biased_models
from debiaser.auditing.inputs import prepare
from debiaser.data.own import Columns, read_own
from debiaser.data.own.rows import folds
from debiaser.io import write_json

UPDATES, SEEDS = (20, 40, 80, 200), 2


def measure(name: str, data: Path, work: Path) -> dict[str, Any]:
    """Average precision of the score in each class, and accuracy over classes, by the number of updates."""
    kind, (train, _) = SETS[name].kind, SETS[name].draw(data, 0)
    work.mkdir(parents=True, exist_ok=True)
    source = work / f"{name}.csv"
    train[[kind, "label", "group"]].to_csv(source, index=False)
    own = read_own(source, Columns(**{kind: kind, "label": "label", "group": "group"}))
    y, group = own.y.numpy(), np.asarray(own.group)
    fold = folds(y, own.unit, 5, 0)
    found: dict[str, Any] = {"set": name, "n": len(y), "updates": {}}
    for updates in UPDATES:
        inputs.STEPS["mlp"]["biased"] = updates
        trainer = Trainer(prepare(own, None).material, y, fold, work / "models")
        biased = train_biased_models(trainer, SEEDS)
        told: dict[str, float] = {}
        for number, label in enumerate(own.classes):
            mine = y == number
            rare = pd.Series(group[mine]).value_counts().index[-1]
            precision = average_precision_score(group[mine] == rare, biased.score[mine])
            told[f"{label}, {rare}"] = float(precision)
        right = pd.Series(biased.answer == y).groupby(y).mean()
        found["updates"][str(updates)] = {"average_precision": told, "class_mean_accuracy": 100 * float(right.mean())}
        print(name, updates, told, f"{100 * right.mean():.1f}", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", choices=SETS)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("results/search/biased_length.json"))
    given = parser.parse_args()
    found = json.loads(given.out.read_text()) if given.out.is_file() else []
    for name in given.names:
        if name not in [each["set"] for each in found]:
            found.append(measure(name, given.data, given.work))
            write_json(given.out, found)


if __name__ == "__main__":
    main()
