"""An audit of a folder of images: `python examples/own_data.py [FOLDER]`.

Without a folder, one is made: two digits as PNG files, drawn in a colour that goes with the digit in 95% of them. The
audit is not told about the colour. The same as a command: `debiaser audit FOLDER`.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

from debiaser import audit
from debiaser.data.benchmarks import digits


def make_images(folder: Path, classes: tuple[int, ...] = (0, 1), rho: float = 0.05) -> Path:
    """One folder per class, with the coloured digits of that class that ship with the package."""
    train = digits.load(None, rho, 0).train
    for batch in train.batches(256):
        pixels = (batch.x * 255).round().byte().permute(0, 2, 3, 1).numpy()
        for image, label, row in zip(pixels, batch.y.tolist(), batch.rows.tolist(), strict=True):
            if label in classes:
                path = folder / f"digit {label}" / f"{row}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(np.ascontiguousarray(image)).save(path)
    return folder


def main(source: str | None = None, out: str | None = None, **options: int) -> dict[str, object]:
    """The verdict with its reasons, and which images go against the shortcut."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = source or str(make_images(Path(temporary) / "images"))
        findings = audit(folder, out=out, **options)
    print(findings)
    return {"verdict": findings.verdict, "conflicting": findings.of_kind("conflicting")}


if __name__ == "__main__":
    print(main(sys.argv[1] if len(sys.argv) > 1 else None, out="debiaser-audit"))
