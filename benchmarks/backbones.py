"""How well frozen encoders tell photographs apart: 5 nearest neighbours by cosine, one left out.

    python benchmarks/backbones.py --bar DIR --waterbirds DIR --out results/search/backbones.json

Forty training images of each of BAR's six actions, and forty of Waterbirds as the seventh class, drawn with seed 0.
"""

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F  # noqa: N812

from debiaser.data.benchmarks.image_sets import load_bar, load_waterbirds
from debiaser.io import write_json
from debiaser.learn.encoders import find_encoder

IMAGES, NEIGHBOURS, BACKBONES = 40, 5, ("resnet50", "efficientnet_lite0")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("bar", "waterbirds", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    given = parser.parse_args()
    actions, birds = load_bar(given.bar, None, 0).train, load_waterbirds(given.waterbirds, None, 0).train
    stream, classes = np.random.default_rng(0), int(actions.y.max()) + 1
    mine = [np.flatnonzero(actions.y.numpy() == k) for k in range(classes)]
    picked = [(actions.read, stream.choice(rows, IMAGES, False)) for rows in mine]
    picked.append((birds.read, stream.choice(len(birds), IMAGES, False)))
    y, rows = np.repeat(np.arange(classes + 1), IMAGES), []
    for name in BACKBONES:
        encoder, start = find_encoder("image", name), time.process_time()
        parts = [
            encoder.encode(read.resized(encoder.size).pixels(torch.from_numpy(np.sort(own)))) for read, own in picked
        ]
        seconds, features = time.process_time() - start, F.normalize(torch.cat(parts))
        alike = (features @ features.T).fill_diagonal_(-2)
        votes = y[alike.topk(NEIGHBOURS).indices.numpy()]
        right = np.array([np.bincount(each).argmax() for each in votes]) == y
        rows.append(
            {
                "backbone": name,
                "features": features.shape[1],
                "images": len(y),
                "accuracy, seven classes": round(float(right.mean()), 4),
                "accuracy, BAR's six actions": round(float(right[: classes * IMAGES].mean()), 4),
                "processor seconds": round(seconds, 1),
            }
        )
    write_json(given.out, {"what": " ".join((__doc__ or "").split()), "rows": rows})


if __name__ == "__main__":
    main()
