"""What sixty and a hundred and twenty marks bring on real sets whose groups are known, beside no marks and all labels.

    python benchmarks/fix.py waterbirds --data DIR --work DIR --draws 3 --out results/fix

For each draw `debias` runs with default options on the training images, four times: without anything, with 60 marks
(`findings.to_mark(60)`, answered by the truth), with 60 more, and with the group of every sample (`--use-groups`).
Every candidate's exported model answers the official test set: mean and worst over class x group. Truth is read for
nothing but the answers to marks and this evaluation.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

import debiaser
from debiaser.auditing.export import read_exported
from debiaser.auditing.inputs import prepare
from debiaser.data.own import Columns, read_own
from debiaser.io import write_json

MARKS = (60, 120)


def waterbirds(data: Path, _: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """All 4,795 training images and the official test set: image, label, place."""
    table = pd.read_csv(data / "waterbirds" / "metadata.csv")
    table["image"] = [str((data / "waterbirds" / name).resolve()) for name in table.img_filename]
    table["label"] = np.where(table.y == 1, "waterbird", "landbird")
    table["group"] = np.where(table.place == 1, "water", "land")
    return table[table.split == 0], table[table.split == 2]


def celeba(target: str, bias: str, count: int) -> Callable[[Path, int], tuple[pd.DataFrame, pd.DataFrame]]:
    """So many random training faces, and 6,000 of the official test set."""

    def read(data: Path, draw: int) -> tuple[pd.DataFrame, pd.DataFrame]:
        folder = data / "celeba"
        table = pd.read_csv(folder / "list_attr_celeba.csv").merge(pd.read_csv(folder / "list_eval_partition.csv"))
        table["image"] = [str((folder / "img_align_celeba" / name).resolve()) for name in table.image_id]
        table["label"] = np.where(table[target] == 1, target.lower(), f"not_{target.lower()}")
        table["group"] = np.where(table[bias] == 1, bias.lower(), f"not_{bias.lower()}")
        return (
            table[table.partition == 0].sample(count, random_state=draw),
            table[table.partition == 2].sample(6000, random_state=0),
        )

    return read


SETS = {
    "waterbirds": waterbirds,
    "celeba_blond": celeba("Blond_Hair", "Male", 10_000),
    "celeba_attractive": celeba("Attractive", "Male", 4_000),
}


def cells(answer: Any, test: pd.DataFrame) -> dict[str, float]:
    """Mean and worst accuracy over class x group, in percent."""
    right = 100.0 * (np.asarray(answer) == test.label.to_numpy())
    by = pd.Series(right).groupby([test.label.to_numpy(), test.group.to_numpy()]).mean()
    return {"mean": float(by.mean()), "worst": float(by.min()), "overall": float(right.mean())}


def test_features(test: pd.DataFrame, work: Path) -> Any:
    """(m, h) the features of the test images, in their order."""
    path = work / "test.csv"
    test[["image", "label"]].to_csv(path, index=False)
    own = read_own(path, Columns(image="image", label="label"))
    subject = prepare(own, None)
    place = {name: number for number, name in enumerate(own.paths)}
    return torch.from_numpy(np.array(subject.material.inputs))[[place[name] for name in test.image]]


def evaluate(folder: Path, features: Any, test: pd.DataFrame) -> dict[str, dict[str, float]]:
    """Every exported candidate, and the one that was chosen, on the test set."""
    found = {}
    for each in [folder / "model", *sorted((folder / "models").iterdir())]:
        exported = read_exported(each)
        with torch.no_grad():
            answer = exported.model(features.float()).argmax(1)
        found[each.name] = cells([exported.classes[k] for k in answer.tolist()], test)
    return found


def one_draw(name: str, data: Path, work: Path, draw: int) -> dict[str, Any]:
    """Everything about one draw of a set."""
    train, test = SETS[name](data, draw)
    work.mkdir(parents=True, exist_ok=True)
    features, source, rows = test_features(test, work), work / f"train-{draw}.csv", []
    train[["image", "label", "group"]].to_csv(source, index=False)
    truth = dict(zip(train.image, train.group, strict=True))
    named = {"image": "image", "label": "label", "group": "group", "seed": draw}
    marks = pd.DataFrame({"id": [], "mark": []})
    for stage in ("none", *MARKS, "all"):
        with tempfile.TemporaryDirectory(dir=work) as scratch:
            start, more = time.perf_counter(), {}
            if isinstance(stage, int):
                new = findings.to_mark(60).iloc[: stage - len(marks)]  # noqa: F821 - of the stage before
                marks = pd.concat([marks, pd.DataFrame({"id": new.id, "mark": [truth[p] for p in new.path]})])
                marks.to_csv(Path(scratch) / "marks.csv", index=False)
                more = {"marks": Path(scratch) / "marks.csv"}
            out = work / f"out-{draw}"
            findings = debiaser.debias(source, out=out, use_groups=stage == "all", **more, **named)
            summary = findings.summary
            rows.append(
                {
                    "stage": stage,
                    "seconds": time.perf_counter() - start,
                    "verdict": summary["verdict"],
                    "exported": summary["exported"],
                    "propagation": summary["propagation"],
                    "selection": summary["selection"],
                    "test": evaluate(out, features, test),
                }
            )
            told = rows[-1]["test"]["model"]
            print(f"{name} {draw}, {stage}: {summary['exported']}, worst {told['worst']:.1f}, mean {told['mean']:.1f}")
    return {"set": name, "draw": draw, "n": len(train), "test": len(test), "stages": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", choices=SETS)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("results/fix"))
    given = parser.parse_args()
    for name in given.names:
        for draw in range(given.draws):
            write_json(given.out / f"{name}-{draw}.json", one_draw(name, given.data, given.work / name, draw))


if __name__ == "__main__":
    main()
