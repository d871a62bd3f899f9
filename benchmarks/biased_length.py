"""How long should the biased model of an audit learn? How well its scores rank the rarer group of each class.

    python benchmarks/biased_length.py celeba_blond waterbirds --data DIR --work DIR

Heads on frozen features, trained for several numbers of updates on the training samples of the sets of `fix.py`; groups
are read for nothing but this evaluation.
"""

import argparse
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

UPDATES, SEEDS = (20, 30, 40, 80, 200), 2


def measure(name: str, data: Path, work: Path) -> dict[int, dict[str, float]]:
    """By the number of updates, the average precision of the score in each class."""
    kind, (train, _) = SETS[name].kind, SETS[name].draw(data, 0)
    work.mkdir(parents=True, exist_ok=True)
    source = work / f"{name}.csv"
    train[[kind, "label", "group"]].to_csv(source, index=False)
    own = read_own(source, Columns(**{kind: kind, "label": "label", "group": "group"}))
    y, group = own.y.numpy(), np.asarray(own.group)
    fold, found = folds(y, own.unit, 5, 0), {}
    for updates in UPDATES:
        inputs.STEPS["mlp"]["biased"] = updates
        biased = train_biased_models(Trainer(prepare(own, None).material, y, fold, work / "models"), SEEDS)
        found[updates] = {}
        for number, label in enumerate(own.classes):
            mine = y == number
            rare = pd.Series(group[mine]).value_counts().index[-1]
            precision = average_precision_score(group[mine] == rare, biased.score[mine])
            found[updates][f"{name.replace('_', ' ')}: {rare} in {label}"] = float(precision)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", choices=SETS)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("results/search/biased_length.json"))
    given = parser.parse_args()
    rows: list[dict[str, Any]] = [{"after updates": updates} for updates in UPDATES]
    for name in given.names:
        found = measure(name, given.data, given.work)
        for row in rows:
            row |= found[row["after updates"]]
    write_json(given.out, {"rows": rows})


if __name__ == "__main__":
    main()
