"""Time of every method against PGD's, trained one after the other on the same machine, one thread each.

    python benchmarks/method_times.py --data DIR --work DIR --out benchmarks/results/method_times.json

Each trains `--epochs` epochs per stage on all 54,000 rows of Colored MNIST; what grows with the epochs is scaled to the
20 epochs of the recipe `fast`, what does not (scores, environments, clusters) is added as it is.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

from debiaser.io import write_json
from debiaser.methods import METHODS

ONCE = ("score", "groups")  # done once, however long the training
RECIPE = 20  # epochs of `fast`, all stages


def seconds_of(method: str, epochs: int, data: Path, work: Path) -> dict[str, float]:
    """Seconds of each stage; a run that is there already is read."""
    words = ["train", "cmnist", "--method", method, "--rho", "0.005", "--epochs", str(epochs), "--json", "--quiet"]
    line = [sys.executable, "-m", "debiaser", *words, "--data", str(data), "--out", str(work)]
    done = subprocess.run(line, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])["seconds"]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--epochs", type=int, default=2)
    for name in ("--data", "--work", "--out"):
        parser.add_argument(name, type=Path, required=True)
    chosen = parser.parse_args()
    rows = []
    for method in dict.fromkeys(["pgd", *chosen.methods]):
        seconds = seconds_of(method, chosen.epochs, chosen.data, chosen.work)
        once = sum(seconds.get(name, 0.0) for name in ONCE)
        training = (sum(seconds.values()) - once) * RECIPE / (2 * chosen.epochs)
        rows.append({"method": method, "training": training, "once": once})
        whole = rows[0]["training"] + rows[0]["once"]
        rows[-1]["times PGD"] = (training + once) / whole
        rows[-1]["times PGD, training alone"] = training / rows[0]["training"]
        print(json.dumps(rows[-1]), flush=True)
    for row in rows:  # seconds are this machine's, ratios travel
        row["once, of PGD's whole time"] = row.pop("once") / whole
        del row["training"]
    write_json(chosen.out, {"epochs per stage": chosen.epochs, "rows": rows})


if __name__ == "__main__":
    main()
