"""How long `debias` takes on 4,000 photographs, and how good its first estimates of the time left are.

    python benchmarks/first_run.py --data DIR --work DIR --out results/first_run.json

Two runs with default options: the first with an empty cache, the second with sixty marks that the truth answers. Of
every stage that takes long enough, the time left as it is shown after ten seconds stands beside what was left.
"""

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
from fix import waterbirds

import debiaser
from debiaser.io import write_json
from debiaser.progress import listening

IMAGES = 4000
EARLY = 10.0  # seconds after which an estimate is looked at
LONG = 20.0  # seconds that a stage takes, at least, for its estimate to count


class Stages:
    """A listener that notes how long every piece of work takes, and what was estimated early on."""

    def __init__(self) -> None:
        self.open: dict[str, dict[str, float]] = {}
        self.rows: list[dict[str, Any]] = []

    def __call__(self, what: str, done: int, total: int | None, step: int, unit: str) -> None:  # noqa: ARG002
        now = time.perf_counter()
        if what not in self.open or (not step and done != total):
            self.open[what] = {"start": now, "first": done}
            return
        stage = self.open[what]
        if "left" not in stage and now - stage["start"] >= EARLY and total and done < total:
            stage["at"] = now
            stage["left"] = (now - stage["start"]) / max(done - stage["first"], 1e-9) * (total - done)
        if done == total:
            row: dict[str, Any] = {"stage": what, "seconds": now - stage["start"]}
            if "left" in stage and row["seconds"] >= LONG:
                row |= {"left, estimated after 10 s": stage["left"], "left": now - stage["at"]}
            self.rows.append(row)
            del self.open[what]


def run(name: str, source: Path, out: Path, **more: Any) -> tuple[Any, dict[str, Any]]:
    """The findings of one run, and what is told of it."""
    busy, start, stages = psutil.cpu_percent(interval=1), time.perf_counter(), Stages()
    with listening(stages):
        findings = debiaser.debias(source, image="image", label="label", out=out, **more)
    seconds = time.perf_counter() - start
    long = sorted((row for row in stages.rows if row["seconds"] >= 1), key=lambda row: -row["seconds"])
    return findings, {"run": name, "seconds": seconds, "others busy before, %": busy, "stages": long}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("--data", "--work", "--out"):
        parser.add_argument(name, type=Path, required=True)
    given = parser.parse_args()
    table = waterbirds(given.data, 0)[0].sample(IMAGES, random_state=0)
    given.work.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=given.work) as work:
        source, out, marks = Path(work) / "images.csv", Path(work) / "out", Path(work) / "marks.csv"
        table[["image", "label"]].to_csv(source, index=False)
        os.environ["XDG_CACHE_HOME"] = str(Path(work) / "cache")  # an empty one
        findings, first = run("first", source, out)
        asked, truth = findings.to_mark(60), pd.Series(table.group.to_numpy(), index=table.image)
        pd.DataFrame({"id": asked.id, "mark": truth[asked.id].to_numpy()}).to_csv(marks, index=False)
        _, again = run("again, with 60 marks", source, out, marks=marks)
    rows = [{key: value for key, value in each.items() if key != "stages"} for each in (first, again)]
    write_json(given.out, {"images": IMAGES, "rows": rows, "stages": first["stages"], "again": again["stages"]})


if __name__ == "__main__":
    main()
