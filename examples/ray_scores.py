"""Scores with Ray: `python examples/ray_scores.py`; `pip install 'debiaser[ray]'`.

A Ray Dataset is scored by two workers, each of which keeps the model and writes Parquet files of keys and scores; run
again, it skips finished keys. The sampler takes the scores in the order of the dataset that is trained on.
"""

import tempfile
from pathlib import Path

import numpy as np
import ray
import torch
from torch import nn

from debiaser import ScoreSampler, read_scores
from debiaser.integrations.ray import score_dataset


def make_model() -> nn.Module:
    """The biased model; a real one would load its weights here, in every worker."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def main(folder: str, rows: int = 500) -> ScoreSampler:
    """A sampler by the scores of the model."""
    random, keys = np.random.default_rng(0), [f"sample {row:03d}" for row in range(rows)]
    features, labels = random.normal(size=(rows, 6)).astype(np.float32), np.arange(rows) % 3
    data = ray.data.from_items(
        [{"x": x, "label": int(y), "name": key} for x, y, key in zip(features, labels, keys, strict=True)]
    )
    score_dataset(data, make_model, str(Path(folder) / "scores"), key="name", workers=2, cpus=0.5)
    return ScoreSampler(read_scores(str(Path(folder) / "scores"), keys=keys), seed=0)


if __name__ == "__main__":
    ray.init(num_cpus=2, include_dashboard=False)
    with tempfile.TemporaryDirectory() as empty:
        print(main(empty).effective_sample_size)
