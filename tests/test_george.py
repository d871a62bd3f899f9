"""GEORGE: which pieces of clusters stand alone, and clusters within classes."""

import numpy as np
import pytest
import torch

from debiaser.errors import Misuse
from debiaser.learn import groups
from debiaser.learn.groups import Silhouettes
from debiaser.methods.george import GEORGE, hard_pieces


def hard_corner() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Two clusters; one of them has a corner of 60 rows that lies apart and has a high loss."""
    stream = np.random.default_rng(0)
    places = np.repeat([[0.0, 0.0], [1.2, 0.0], [3.0, 0.0]], [300, 60, 300], axis=0)
    points = places + stream.normal(0, 0.1, (660, 2))
    return points, (places[:, 0] == 3).astype(np.int64), np.where(places[:, 0] == 1.2, 3.0, 0.1)


def hard(parents, pieces, losses, points, valid=None) -> list[int]:
    return hard_pieces(parents, pieces, losses, Silhouettes(points, 0), valid).tolist()


def test_a_hard_corner_stands_alone():
    points, parents, losses = hard_corner()
    corner = losses > 1
    pieces, enough = parents * 5 + corner, np.repeat([0, 1], [100, 25])
    assert hard(parents, pieces, losses, points) == hard(parents, pieces, losses, points, enough) == [1]
    assert hard(parents, pieces, losses, points, enough[:-1]) == [], "24 samples in the validation data"
    assert hard(parents, pieces, np.where(corner, 0.0, losses), points) == [], "easier than its parent"
    assert hard(parents, pieces, np.ones(660), points) == [1], "as hard as its parent is enough"
    assert hard(parents, np.where(np.arange(660) % 5, 0, 1) + parents * 5, losses, points) == [], "not separated"
    few = np.flatnonzero(~corner | (corner.cumsum() <= 24))
    assert hard(parents[few], pieces[few], losses[few], points[few]) == [], "24 samples"
    unseen = Silhouettes(points, 0)
    unseen.rows, unseen.distances = np.flatnonzero(~corner), unseen.distances[~corner][:, ~corner]
    assert hard_pieces(parents, pieces, losses, unseen, None).tolist() == [], "nothing of it was looked at"


def test_clusters_of_a_class(monkeypatch):
    monkeypatch.setattr(groups, "unit_rows", lambda features: np.asarray(features, dtype=float))
    points, parents, losses = hard_corner()
    method = GEORGE(reduce="none", cluster="kmeans", largest_k=2)
    features = torch.from_numpy(points)
    whole = GEORGE(reduce="none", cluster="kmeans", largest_k=2, overcluster=False)
    assert len(set(zip(whole.class_clusters(features, losses, None, 0), parents, strict=True))) == 2
    found = method.class_clusters(features, losses, None, 0)
    corner = found[losses > 1]
    assert set(found) == set(range(found.max() + 1)) and found.max() >= 2
    assert not set(corner) & set(found[losses < 1]), "the corner is on its own"
    few = method.class_clusters(features, losses, features[:20], 0)
    assert few.max() == 1, "20 validation rows cannot confirm a piece"
    assert np.array_equal(found, method.class_clusters(features, losses, None, 0))


def test_gaussians_need_few_dimensions():
    with pytest.raises(Misuse, match="needs cluster=kmeans"):
        GEORGE(reduce="none")


def test_fit_without_validation_data_or_balance(tiny_task):
    method = GEORGE(reduce="pca", cluster="kmeans", largest_k=2, balanced=False, adjustment=1)
    assert not method.fit(tiny_task(valid=None)).training
