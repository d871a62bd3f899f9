"""What the clusters of finished runs contain: whether conflicting samples have clusters of their own.

    python benchmarks/clusters.py RUN_FOLDER... --out results/search/george_clusters.json

Reads the vectors that the runs kept; bias labels are used only to judge what a method found.
"""

import argparse
import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

from debiaser.io import write_json


def conflicting_in(clusters: NDArray[np.int64], conflicting: NDArray[np.bool_]) -> dict[str, float]:
    """How the conflicting rows lie in the clusters."""
    sizes = np.bincount(clusters)
    caught = np.bincount(clusters, conflicting, len(sizes))
    weights = len(clusters) / sizes[clusters]
    mostly = caught > sizes / 2  # clusters that hold conflicting rows above all
    return {
        "largest conflicting share of a cluster": float((caught / np.maximum(sizes, 1)).max()),
        "conflicting rows in mostly conflicting clusters": float(caught[mostly].sum() / conflicting.sum()),
        "weight of a conflicting over an aligned row": float(
            weights[conflicting].mean() / weights[~conflicting].mean()
        ),
        "AUROC of the weight": float(roc_auc_score(conflicting, weights)),
    }


def row_of(folder: Path) -> dict[str, object]:
    """A run's clusters in figures."""
    result = json.loads((folder / "result.json").read_text())
    with np.load(folder / "vectors.npz") as vectors:
        clusters, conflicting = vectors["cluster"], vectors["conflicting"] == 1
    return {
        "method": result["method"],
        "rho": result["rho"],
        "seed": result["seed"],
        "unbiased accuracy": result["metrics"]["unbiased"],
        "clusters": len(np.unique(clusters)),
        **conflicting_in(clusters.astype(np.int64), conflicting),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    chosen = parser.parse_args()
    rows = sorted((row_of(run) for run in chosen.runs), key=lambda row: (row["method"], row["rho"], row["seed"]))
    write_json(chosen.out, {"rows": rows})
    print(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
