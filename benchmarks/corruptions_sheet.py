"""A contact sheet of the ten corruptions of Corrupted CIFAR-10: the picture itself, then severities 1 to 5.

python benchmarks/corruptions_sheet.py --data DIR docs/pictures/ccifar.png
"""

import argparse
from pathlib import Path

import numpy as np

from debiaser.data import sources
from debiaser.data.benchmarks.cifar import CLASSES
from debiaser.data.benchmarks.corruptions import NAMES, corrupt
from debiaser.report.figures import write_sheet

SHADES = 75, 110  # mean of the picture shown of each class, the first such in the test file: white hides snow


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path)
    parser.add_argument("--data", type=Path)
    chosen = parser.parse_args()
    cifar = sources.load("cifar10", chosen.data)
    light = cifar.x_test.mean((1, 2, 3))
    good = (light > SHADES[0]) & (light < SHADES[1])
    rows = np.array([np.flatnonzero(good & (cifar.y_test == number))[0] for number in range(len(CLASSES))])
    pictures, kinds = cifar.x_test[rows], np.arange(len(NAMES))
    lines = [("as it is", pictures)]
    lines += [(f"severity {level}", corrupt(pictures, kinds, rows, level)) for level in range(1, 6)]
    write_sheet(chosen.path, NAMES, [(name, list(each.transpose(0, 2, 3, 1))) for name, each in lines])


if __name__ == "__main__":
    main()
