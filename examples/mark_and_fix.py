"""Audit, marks, debias, predict: `python examples/mark_and_fix.py`.

Two coloured digits as PNG files, the colour going with the digit in 90% of them. A person would mark the samples of
to_mark.csv in the page (`debiaser mark DIR`); here their colour answers in the person's place. As commands:
`debiaser audit FOLDER`, `debiaser debias FOLDER --marks marks.csv`, `debiaser predict DIR/model NEW`.
"""

import tempfile
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

from debiaser import audit, debias

COLOURS = {"red": (255, 40, 40), "green": (40, 255, 40)}


def make_images(folder: Path, per_class: int = 150, aligned: float = 0.9) -> Path:
    """One folder per digit; the colour is in the name of the file, which no model sees."""
    random, digits = np.random.default_rng(0), load_digits()
    for digit in (0, 1):
        for number, row in enumerate(np.flatnonzero(digits.target == digit)[:per_class]):
            colour = list(COLOURS)[digit if random.random() < aligned else 1 - digit]
            grey = np.pad(np.kron(digits.images[row] / 16, np.ones((3, 3))), 2)
            path = folder / f"digit {digit}" / f"{number:03d}-{colour}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray((grey[..., None] * COLOURS[colour]).astype(np.uint8)).save(path)
    return folder


def main(folder: str, **options: int) -> dict[str, object]:
    """What was exported, and its accuracy in the worst group of held-out samples."""
    images, out = str(make_images(Path(folder) / "images")), Path(folder)
    asked = audit(images, out=out / "audit", **options).to_mark(60)
    asked["mark"] = asked["id"].str.extract(r"-(\w+)\.png", expand=False)  # what a person would see
    asked[["id", "mark"]].to_csv(out / "marks.csv", index=False)
    findings = debias(images, marks=out / "marks.csv", out=out / "debias", **options)
    print(findings)
    return {"marks": len(asked), "exported": findings.summary["exported"], "model": findings.summary["model_dir"]}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as empty:
        print(main(empty))
