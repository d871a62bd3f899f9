"""How much memory an audit of many pictures of 224 px takes: it should not grow with their number.

    python benchmarks/audit_memory.py 2000 10000 --work DIR --out benchmarks/results/audit_memory.json

Pictures are made in two class folders; `debiaser audit` runs as a command, with its workers. Several times a second the
resident memory of each of its processes is looked at, and what all hold together (shared pages counted once).
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
from PIL import Image

GB = 2**30


def make_pictures(folder: Path, count: int, size: int = 224) -> list[str]:
    """JPEGs of smooth shapes and some noise, each its own, about as large as photographs of that size."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{number}.jpg" for number in range(count)]
    for number, path in enumerate(paths):
        if not path.exists():
            rng = np.random.default_rng(number)
            shapes = Image.fromarray(rng.integers(0, 256, (12, 12, 3), dtype=np.uint8)).resize((size, size))
            noisy = np.asarray(shapes, np.float32) + rng.normal(0, 6, (size, size, 3))
            Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(path, quality=90)
    return [str(path) for path in paths]


def held(audit: psutil.Process) -> tuple[int, int]:
    """Bytes that its largest process holds now, and all of them together."""
    largest = together = 0
    for process in [audit, *audit.children(recursive=True)]:
        try:
            facts = process.memory_full_info()
        except psutil.Error:  # it ended just now
            continue
        largest, together = max(largest, facts.rss), together + facts.pss
    return largest, together


def audited(count: int, work: Path) -> dict[str, float]:
    """The peaks over the audit of so many pictures, in GB."""
    source = work / f"pictures-{count}"
    for name in ("one", "two"):
        if not (source / name).exists():
            make_pictures(source / name, count // 2)
    words = [sys.executable, "-m", "debiaser", "audit", str(source), "--out", str(work / f"audit-{count}"), "--quiet"]
    peaks = [(0, 0)]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL) as audit:
        while audit.poll() is None:
            try:
                peaks.append(held(psutil.Process(audit.pid)))
            except psutil.Error:
                break
            time.sleep(0.25)
    assert audit.returncode == 0, "the audit failed"
    largest, together = (max(each) / GB for each in zip(*peaks, strict=True))
    return {"pictures": count, "largest process, GB": largest, "all processes, GB": together}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("counts", type=int, nargs="+")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    rows = [audited(count, asked.work) for count in asked.counts]
    print(json.dumps(rows, indent=2))
    asked.out.write_text(json.dumps({"rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
