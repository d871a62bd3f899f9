"""Drawing an epoch by score against a scan over all rows for every draw, as ratios, interleaved.

    python benchmarks/sampling.py --out benchmarks/results/sampling.json

The scan is what people write: `rng.choice(n, p=shares)` for one row at a time. It is timed on a part of the epoch.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import numpy as np

from debiaser import ScoreSampler

ROWS, SCANNED = 54_000, 300


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    chosen = parser.parse_args()
    rng = np.random.default_rng(0)
    sampler = ScoreSampler(rng.lognormal(0, 2, ROWS))
    ratios, drawn, passed = [], [], []
    for epoch in range(chosen.rounds):
        started = time.perf_counter()
        for _ in range(SCANNED):
            rng.choice(ROWS, p=sampler.probabilities)
        scan = (time.perf_counter() - started) * ROWS / SCANNED
        started = time.perf_counter()
        sampler.draw(epoch)
        drawn.append(time.perf_counter() - started)
        started = time.perf_counter()
        list(sampler)
        passed.append(time.perf_counter() - started)
        ratios.append(scan / drawn[-1])
    found = {
        "rows": ROWS,
        "scan per draw over one draw of an epoch": {
            "median": statistics.median(ratios),
            "low": min(ratios),
            "high": max(ratios),
        },
        "seconds of a draw": statistics.median(drawn),
        "seconds of a pass, row by row": statistics.median(passed),
    }
    print(json.dumps(found, indent=2))
    if chosen.out:
        chosen.out.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
