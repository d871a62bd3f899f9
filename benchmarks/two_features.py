"""Two features, one of them a shortcut: does `DebiasedClassifier()` ever do worse than a plain classifier?

    python benchmarks/two_features.py --out results/guarded/two_features.json

The core feature is the label plus noise; the shortcut is the label, or with probability rho the other one, plus noise
of 0.1. Accuracy is unbiased: in the test set the shortcut says nothing. Finished settings are kept in the file: the
same command goes on after a stop.
"""

import argparse
import json
import time
import warnings
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier

from debiaser import PGD
from debiaser.errors import DebiasingWarning
from debiaser.integrations.sklearn import DebiasedClassifier
from debiaser.io import write_json

CORE_NOISE, RHO, SIZES, SEEDS, TEST = (0.2, 0.4, 0.9), (0.05, 0.2, 0.5), (1200, 10_000), (0, 1, 2), 20_000


def two_features(n: int, noise: float, rho: float, stream: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Features (n, 2), core and shortcut, and labels (n,)."""
    y = stream.integers(0, 2, n)
    shown = np.where(stream.random(n) < rho, 1 - y, y)
    return np.stack([y + noise * stream.standard_normal(n), shown + 0.1 * stream.standard_normal(n)], 1), y


def measure(n: int, noise: float, rho: float, seed: int, plain_pgd: bool = False) -> dict[str, Any]:
    """Unbiased accuracies in percent."""
    stream = np.random.default_rng([n, round(100 * noise), round(100 * rho), seed])
    (x, y), (test, truth) = two_features(n, noise, rho, stream), two_features(TEST, noise, 0.5, stream)
    models: dict[str, Any] = {
        "logistic regression": LogisticRegression(),
        "MLP": MLPClassifier(random_state=seed),
        "guarded": DebiasedClassifier(random_state=seed),
    }
    if plain_pgd:
        models["PGD"] = DebiasedClassifier(method=PGD(), random_state=seed)
    found, seconds = {}, {}
    for name, model in models.items():
        started = time.perf_counter()
        found[name] = 100 * float(model.fit(x, y).score(test, truth))
        seconds[name] = time.perf_counter() - started
    better = max(found["logistic regression"], found["MLP"])
    kept = models["guarded"]
    facts = {"n": n, "core_noise": noise, "rho": rho, "seed": seed, "unbiased": found, "seconds": seconds}
    return {**facts, "difference": found["guarded"] - better, "told": list(kept.decisions_)}


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The worst difference from the better plain classifier, the lowest accuracy, and the mean gain by rho."""
    gains = {str(rho): [each["difference"] for each in runs if each["rho"] == rho] for rho in RHO}
    return {
        "worst_difference": min(each["difference"] for each in runs),
        "lowest_accuracy": min(each["unbiased"]["guarded"] for each in runs),
        "mean_difference_by_rho": {rho: float(np.mean(each)) for rho, each in gains.items() if each},
        "runs": len(runs),
    }


def by_setting(runs: list[dict[str, Any]]) -> list[dict[str, str]]:
    """A row per setting: means over seeds, and the worst difference."""
    settings: dict[tuple[float, ...], list[dict[str, Any]]] = {}
    for each in runs:
        settings.setdefault((each["n"], each["core_noise"], each["rho"]), []).append(each)
    rows = []
    for (n, noise, rho), each in sorted(settings.items()):
        means = {name: f"{np.mean([one['unbiased'][name] for one in each]):.1f}" for name in each[0]["unbiased"]}
        row = {"samples": f"{n:,}", "core noise": f"{noise:g}", "rho": f"{rho:.0%}", "seeds": str(len(each)), **means}
        rows.append({**row, "worst difference": f"{min(one['difference'] for one in each):+.1f}"})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=len(SEEDS))
    parser.add_argument("--sizes", type=int, nargs="*", default=SIZES)
    parser.add_argument("--pgd", action="store_true", help="also run plain PGD")
    given = parser.parse_args()
    runs = json.loads(given.out.read_text())["runs"] if given.out.exists() else []
    done = {(each["n"], each["core_noise"], each["rho"], each["seed"]) for each in runs}
    warnings.simplefilter("ignore", ConvergenceWarning)
    warnings.simplefilter("ignore", DebiasingWarning)  # which model was taken is in `told`
    given.out.parent.mkdir(parents=True, exist_ok=True)
    for seed, n, noise, rho in product(range(given.seeds), given.sizes, CORE_NOISE, RHO):
        if (n, noise, rho, seed) not in done:
            runs.append(measure(n, noise, rho, seed, given.pgd))
            write_json(given.out, {"summary": summary(runs), "rows": by_setting(runs), "runs": runs})
            print(runs[-1], flush=True)
    print(json.dumps(summary(runs), indent=1))


if __name__ == "__main__":
    main()
