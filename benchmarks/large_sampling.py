"""A sampler over very many samples: time and memory, each size in a fresh process, against the calculated ones.

    python benchmarks/large_sampling.py     # writes results/large_sampling.json and the table in docs/large_data.md

On paper: 4 bytes a row for the scores, 8 for the probabilities, 8 for their sums, and what Python and torch take. The
time to prepare grows with the rows; that of a draw with its length, and a little with the logarithm of the rows.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE, RESULT = ROOT / "docs" / "large_data.md", ROOT / "benchmarks" / "results" / "large_sampling.json"
SIZES, LARGEST = (10**6, 10**7, 10**8), 10**9
DRAWN, BYTES_A_ROW = 10**6, 4 + 8 + 8
BEGIN, END = "<!-- measured: large sampling -->", "<!-- end of measured -->"


def measure(rows: int) -> dict[str, float]:
    """Seconds and GB of one size, in this process."""
    import torch

    from debiaser import ScoreSampler
    from debiaser.paper.speed import peak_mb

    empty = peak_mb() / 1024
    scores = torch.empty(rows).exponential_(generator=torch.Generator().manual_seed(0))
    started = time.perf_counter()
    sampler = ScoreSampler(scores, num_samples=DRAWN)
    prepared = time.perf_counter()
    sampler.draw(0)
    drawn = time.perf_counter()
    peak = peak_mb() / 1024
    return {
        "rows": rows,
        "prepare_s": prepared - started,
        "draw_s": drawn - prepared,
        "peak_gb": peak,
        "empty_gb": empty,
        "paper_gb": empty + rows * BYTES_A_ROW / 2**30,
    }


def on_paper(largest: dict[str, float]) -> dict[str, float]:
    """What a billion rows take, from the largest size that was measured."""
    times = LARGEST / largest["rows"]
    return {
        "rows": LARGEST,
        "prepare_s": largest["prepare_s"] * times,
        "draw_s": largest["draw_s"] * 30 / 27,  # log2 of the rows
        "paper_gb": largest["empty_gb"] + LARGEST * BYTES_A_ROW / 2**30,
    }


def table(found: dict[str, Any]) -> str:
    """The measured sizes and the calculated one, in Markdown."""
    lines = [
        "| Samples | Prepare, s | Draw a million, s | Peak memory, GB | On paper, GB |",
        "| --: | --: | --: | --: | --: |",
    ]
    for each in [*found["measured"], found["calculated"]]:
        peak = f"{each['peak_gb']:.2f}" if "peak_gb" in each else "calculated"
        lines.append(
            f"| {each['rows']:,} | {each['prepare_s']:.2g} | {each['draw_s']:.2g} | {peak} | {each['paper_gb']:.2f} |"
        )
    return "\n".join(lines)


def renewed(text: str, found: dict[str, Any]) -> str:
    """The page with the table of these results."""
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n\n{table(found)}\n\n{END}{rest.split(END)[1]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, help="measure this size here and print it")
    chosen = parser.parse_args()
    if chosen.rows:
        print(json.dumps(measure(chosen.rows)))
        return
    line = [sys.executable, __file__, "--rows"]
    runs = [subprocess.run([*line, str(rows)], capture_output=True, text=True, check=True) for rows in SIZES]
    measured = [json.loads(run.stdout.splitlines()[-1]) for run in runs]
    found = {"measured": measured, "calculated": on_paper(measured[-1])}
    RESULT.write_text(json.dumps(found, indent=2) + "\n")
    PAGE.write_text(renewed(PAGE.read_text(), found))
    print(table(found))


if __name__ == "__main__":
    main()
