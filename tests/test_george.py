"""GEORGE: how many clusters, which pieces stand alone, and classes that do not fall into any."""

import logging
from itertools import product

import numpy as np
import pytest
import torch
from sklearn.datasets import make_blobs

from debiaser.errors import Misuse
from debiaser.methods import george
from debiaser.methods.george import GEORGE, Sample, best_clusters, kept_pieces, stands_alone
from two_stages import check_fit


@pytest.mark.parametrize("how", ["gmm", "kmeans"])
@pytest.mark.parametrize("centres", [2, 3, 6])
def test_the_number_of_blobs_is_found(centres, how):
    points, where = make_blobs(
        240, 2, centers=20 * np.eye(6)[:centres, :2] + 7 * np.arange(centres)[:, None], random_state=0
    )
    for sample in (Sample.of(points, 0), Sample.of(points, 0, limit=100)):
        found = best_clusters(points, sample, 8, how, 0)(points)
        assert found.max() + 1 == centres
        assert len(set(zip(found, where, strict=True))) == centres


def test_of_equal_scores_the_larger_number_wins(monkeypatch):
    monkeypatch.setattr(george, "silhouettes", lambda distances, clusters: np.full(len(clusters), 0.25))
    points, _ = make_blobs(100, random_state=0)
    assert best_clusters(points, Sample.of(points, 0), 7, "kmeans", 0)(points).max() + 1 == 7


def test_clusters_count_alike_whatever_their_size():
    """A small, loose cluster beside a large, tight one: the mean over clusters, not over rows, chooses."""
    stream = np.random.default_rng(0)
    points = np.concatenate([stream.normal(0, 0.05, (300, 2)), stream.normal(0, 0.05, (8, 2)) + 5])
    assert best_clusters(points, Sample.of(points, 0), 6, "kmeans", 0)(points).max() + 1 == 2


@pytest.mark.parametrize("points", [np.zeros((30, 2)), np.zeros((1, 2)), np.array([[0.0, 0.0], [1.0, 1.0]])])
def test_a_class_without_clusters_is_one(points, caplog):
    with caplog.at_level(logging.WARNING, "debiaser"):
        assert not best_clusters(points, Sample.of(points, 0), 10, "gmm", 0)(points).any()
    assert "it is one" in caplog.text


def test_fewer_rows_than_clusters(caplog):
    points, _ = make_blobs(5, random_state=0)
    with caplog.at_level(logging.WARNING, "debiaser"):
        assert 1 <= best_clusters(points, Sample.of(points, 0), 10, "kmeans", 0)(points).max() <= 3
    assert "at most 4 clusters, not 10" in caplog.text


@pytest.mark.parametrize(("separated", "hard", "large", "seen"), list(product([True, False], repeat=4)))
def test_filter_truth_table(separated, hard, large, seen):
    found = stands_alone(
        silhouette=(0.2, 0.3 if separated else 0.2),
        loss=(1.0, 1.0 if hard else 0.9),
        rows=50 if large else 49,
        rows_of_class=10_000,
        valid_rows=25 if seen else 24,
    )
    assert found == (separated and hard and large and seen)


def test_filter_borders():
    good = {"silhouette": (0.2, 0.3), "loss": (1.0, 2.0), "rows": 25, "rows_of_class": 1000, "valid_rows": 25}
    assert stands_alone(**good)
    assert stands_alone(**{**good, "valid_rows": None}), "without validation data its size there does not count"
    assert not stands_alone(**{**good, "rows": 24}), "25 rows at least in a small class"
    assert not stands_alone(**{**good, "silhouette": (-0.5, 0.0)}), "better than before is not enough below 0"
    assert not stands_alone(**{**good, "silhouette": (float("nan"), float("nan"))})


def hard_corner() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Two clusters; one of them has a corner of 60 rows that lies apart and has a high loss."""
    stream = np.random.default_rng(0)
    places = np.repeat([[0.0, 0.0], [1.2, 0.0], [3.0, 0.0]], [300, 60, 300], axis=0)
    points = places + stream.normal(0, 0.1, (660, 2))
    return points, (places[:, 0] == 3).astype(np.int64), np.where(places[:, 0] == 1.2, 3.0, 0.1)


def test_a_hard_corner_stands_alone():
    points, parents, losses = hard_corner()
    corner = losses > 1
    pieces = parents * 5 + corner
    assert kept_pieces(parents, pieces, losses, Sample.of(points, 0), None) == [1]
    assert kept_pieces(parents, pieces, losses, Sample.of(points, 0), np.repeat([0, 1], [100, 24])) == []
    unseen = Sample(np.flatnonzero(~corner), Sample.of(points[~corner], 0).distances)
    assert kept_pieces(parents, pieces, losses, unseen, None) == [], "no row of it was looked at"


def test_clusters_of_a_class(monkeypatch):
    monkeypatch.setattr(george, "unit_rows", lambda features: np.asarray(features, dtype=float))
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


def test_hyperparameters_are_checked():
    for wrong in ({"reference": 0}, {"reduce": "tsne"}, {"cluster": "x"}, {"largest_k": 1}, {"pieces": 1}, {"eta": -1}):
        with pytest.raises(Misuse):
            GEORGE(**wrong)
    with pytest.raises(Misuse, match="needs cluster=kmeans"):
        GEORGE(reduce="none")


@pytest.mark.parametrize(("reduce", "cluster"), [("pca", "gmm"), ("none", "kmeans")])
def test_fit(reduce, cluster, tiny_task, tmp_path):
    journal = check_fit(GEORGE(reduce=reduce, cluster=cluster, largest_k=3), tiny_task, tmp_path)
    labels, clusters = tiny_task().train.y.numpy(), journal.vectors["cluster"]
    assert set(clusters) == set(range(clusters.max() + 1))
    assert len(set(zip(labels, clusters, strict=True))) == clusters.max() + 1, "no cluster has rows of two classes"
    assert {"reference", "groups", "debiased"} <= set(journal.seconds)


def test_fit_without_validation_data_or_balance(tiny_task):
    method = GEORGE(reduce="pca", cluster="kmeans", largest_k=2, balanced=False, adjustment=1, augment=False)
    assert not method.fit(tiny_task(valid=None)).training
