"""Clusters, silhouettes and balancing weights, with the cases in which they cannot be had."""

import numpy as np
import pytest
import torch
from sklearn.metrics import silhouette_samples

from debiaser.io import numpy_stream
from debiaser.learn import groups as made


def blobs(centres: int = 3, rows: int = 40, d: int = 2, width: float = 0.05, seed: int = 0) -> tuple:
    """Points around distant centres, and which centre."""
    stream = numpy_stream(seed, "blobs")
    where = np.arange(rows) % centres
    angles = 2 * np.pi * where / centres
    points = np.zeros((rows, d))
    points[:, 0], points[:, 1] = np.cos(angles), np.sin(angles)
    return points + width * stream.normal(size=points.shape), where


def agree(one: np.ndarray, two: np.ndarray) -> bool:
    """Whether two clusterings are the same up to names."""
    pairs = set(zip(one.tolist(), two.tolist(), strict=True))
    return len(pairs) == len(set(one.tolist())) == len(set(two.tolist()))


def test_groups_are_numbered_by_their_first_row():
    named = np.array([7, 3, 7, 9, 3, 0])
    assert made.in_order_of_rows(named).tolist() == [0, 1, 0, 2, 1, 3]
    assert made.in_order_of_rows(-named).tolist() == [0, 1, 0, 2, 1, 3], "other names, the same groups"


def test_consecutive_and_balancing_weights():
    groups = made.consecutive(np.array([7, 3, 7, 9, 7, 3]))
    assert groups.tolist() == [1, 0, 1, 2, 1, 0]
    assert np.bincount(groups, made.balancing_weights(groups)).tolist() == [6, 6, 6]


def test_silhouettes_of_some_points_and_those_that_cannot_be_had():
    points, where = blobs()
    assert np.allclose(made.Silhouettes(points, 0).of(where), silhouette_samples(points, where))
    some = made.Silhouettes(points, 0, limit=30)
    assert np.allclose(some.of(where), silhouette_samples(points[some.rows], where[some.rows]))
    assert not made.Silhouettes(points, 0).of(np.zeros(40, np.int64)).any(), "one cluster"
    assert not made.Silhouettes(np.zeros((6, 2)), 0).of(np.arange(6) % 2).any(), "identical points"
    assert not made.Silhouettes(points[:3], 0).of(np.arange(3)).any(), "clusters of one row"


@pytest.mark.parametrize("how", ["gmm", "kmeans"])
@pytest.mark.parametrize("centres", [2, 3, 6])
def test_the_number_of_blobs_is_found(centres, how):
    points, where = blobs(centres, 240)
    for limit in (240, 100):
        assert agree(made.best_clusters(points, 8, how, 0, limit)[0](points), where)


def test_of_equal_scores_the_larger_number_wins(monkeypatch):
    monkeypatch.setattr(made.Silhouettes, "of", lambda self, clusters: np.full(len(self.rows), 0.25))
    points, _ = blobs(width=0.5)
    assert made.best_clusters(points, 7, "kmeans", 0)[0](points).max() + 1 == 7


def test_clusters_count_alike_whatever_their_size():
    """A small, loose cluster beside a large, tight one: the mean over clusters, not over samples, chooses."""
    stream = np.random.default_rng(0)
    points = np.concatenate([stream.normal(0, 0.05, (300, 2)), stream.normal(0, 0.05, (8, 2)) + 5])
    assert made.best_clusters(points, 6, "kmeans", 0)[0](points).max() + 1 == 2


@pytest.mark.parametrize("points", [np.zeros((30, 2)), np.zeros((1, 2)), np.array([[0.0, 0.0], [1.0, 1.0]])])
def test_points_without_clusters_are_one(points, caplog):
    assert not made.best_clusters(points, 10, "gmm", 0)[0](points).any()
    assert "it is one" in caplog.text


def test_reduce_features():
    points, _ = blobs(d=6)
    assert made.reduce_features(points, points[:4], "none", 2, 0)[0] is points
    reduced, others = made.reduce_features(points, points[:4], "pca", 3, 0, limit=20)
    assert reduced.shape == (40, 3) and np.allclose(others, reduced[:4])
    reduced, others = made.reduce_features(points[:2], points[:0], "pca", 5, 0)
    assert reduced.shape == (2, 2) and len(others) == 0


def test_pca_stands_in_for_umap_and_says_so(monkeypatch, caplog):
    def missing(name: str) -> None:
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(made.importlib, "import_module", missing)
    points, _ = blobs(d=6)
    found, _ = made.reduce_features(points, points[:0], "umap", 2, 0)
    assert "UMAP is not installed" in caplog.text and "debiaser[umap]" in caplog.text
    assert np.array_equal(found, made.reduce_features(points, points[:0], "pca", 2, 0)[0])


def test_too_few_rows_for_umap(caplog):
    found, _ = made.reduce_features(blobs(rows=20)[0], np.empty((0, 2)), "umap", 2, 0)
    assert found.shape == (20, 2) and "too few for UMAP" in caplog.text


@pytest.mark.long
def test_umap_keeps_blobs_apart_and_is_seeded():
    pytest.importorskip("umap", reason="umap-learn is not installed: this test did not run")
    points, where = blobs(3, 90, d=8)
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)  # a number that nobody else would set
    try:
        one, others = made.reduce_features(points, points[:5] + 1e-3, "umap", 2, 3)
        assert torch.get_num_threads() == threads + 1, "training after it would give other sums"
    finally:
        torch.set_num_threads(threads)
    two, _ = made.reduce_features(points, points[:5] + 1e-3, "umap", 2, 3)
    assert np.array_equal(one, two) and others.shape == (5, 2)
    assert agree(made.fit_clusters(one, 3, "gmm", 0)(one), where)


@pytest.mark.parametrize("how", ["gmm", "kmeans"])
def test_fit_clusters_finds_blobs_and_is_seeded(how):
    points, where = blobs(4, 80)
    found = made.fit_clusters(points, 4, how, 0)(points)
    assert agree(found, where)
    assert np.array_equal(found, made.fit_clusters(points, 4, how, 0)(points))
    assert agree(made.fit_clusters(points, 4, how, 0, limit=40)(points), where), "most rows are only assigned"
    assert len(made.fit_clusters(points, 4, how, 0)(points[:0])) == 0


@pytest.mark.parametrize("how", ["gmm", "kmeans"])
def test_fewer_points_than_clusters(how, caplog):
    points = np.repeat([[0.0, 0.0], [1.0, 1.0], [5.0, 0.0]], 3, axis=0)
    found = made.fit_clusters(points, 8, how, 0)(points)
    assert not made.fit_clusters(points[:3], 3, how, 0)(points).any(), "one point, one cluster"
    assert agree(found, np.repeat(np.arange(3), 3)) and "only 3 different points" in caplog.text


def test_a_mixture_that_collapses_becomes_k_means(monkeypatch, caplog):
    from sklearn.mixture import GaussianMixture

    def collapse(*_: object) -> None:
        raise ValueError("ill-defined empirical covariance")

    monkeypatch.setattr(GaussianMixture, "fit", collapse)
    points, where = blobs()
    assert agree(made.fit_clusters(points, 3, "gmm", 0)(points), where)
    assert "k-means instead" in caplog.text


def test_spherical_kmeans_sees_directions_not_lengths():
    points, where = blobs(3, 60)
    lengths = numpy_stream(1, "lengths").uniform(0.1, 50, size=(60, 1))
    found = made.spherical_kmeans(points * lengths, 3, seed=1)
    assert agree(found, where)
    assert np.array_equal(found, made.spherical_kmeans(points, 3, seed=1)), "the same directions, the same clusters"


def test_spherical_kmeans_with_few_points(caplog):
    found = made.spherical_kmeans(np.array([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0]]), 8, seed=0)
    assert made.spherical_kmeans(np.zeros((5, 3)), 8, seed=0).tolist() == [0] * 5
    assert agree(found, np.array([0, 0, 1])) and "only 2 different points" in caplog.text


def test_spherical_kmeans_leaves_empty_clusters_out():
    # Two opposite pairs: the centre that starts on (0, 0), of no direction, keeps no row once the others have theirs.
    points = np.array([[1.0, 0.0], [1.0, 1e-9], [-1.0, 0.0], [0.0, 0.0]])
    seen = set()
    for seed in range(8):
        found = made.spherical_kmeans(points, 4, seed)
        assert sorted(set(found.tolist())) == list(range(found.max() + 1)), "numbered without a gap"
        seen.add(int(found.max()) + 1)
    assert min(seen) < 4
