"""Groups of training samples: reduced features, clusters of them, silhouettes, and weights that make groups equal."""

import importlib
import warnings
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from debiaser.io import log, numpy_stream

Points: TypeAlias = NDArray[np.float64]  # (n, d)
Groups: TypeAlias = NDArray[np.int64]  # (n,)
Assign: TypeAlias = Callable[[Points], Groups]

FIT_ROWS = 20_000  # reducers and clusterers are fitted on at most so many samples, drawn once; the others are assigned
SILHOUETTE_ROWS = 4_000  # of more points, the silhouettes of so many drawn once
NEIGHBOURS = 10  # of UMAP, as in GEORGE's code
ROUNDS = 300  # of k-means, at most
SHIFT = 1e-4  # k-means stops when the squared sum of all centres' moves is below


def consecutive(groups: NDArray[Any]) -> Groups:
    """(n,) the same groups numbered 0, 1, ... without a gap, so that none is empty."""
    return np.unique(groups, return_inverse=True)[1].astype(np.int64)


def in_order_of_rows(groups: NDArray[Any]) -> Groups:
    """(n,) the same groups numbered by their first sample: a clustering that only names them otherwise is the same."""
    _, first, own = np.unique(groups, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[own].astype(np.int64)


def within_classes(labels: Groups, cluster: Callable[[int, Groups], Groups]) -> Groups:
    """(n,) the clusters that `cluster(label, rows)` finds in each class, numbered through all classes."""
    result, first = np.zeros(len(labels), np.int64), 0
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        result[rows] = first + cluster(label, rows)
        first = int(result[rows].max()) + 1
    return result


def balancing_weights(groups: Groups) -> NDArray[np.float64]:
    """(n,) n / size of the sample's group: drawn by these, every group is equally likely."""
    weights: NDArray[np.float64] = len(groups) / np.bincount(groups)[groups]
    return weights


def cell_weights(labels: Groups, cells: Groups, power: float = 1) -> NDArray[np.float64]:
    """(n,) draws by these take every class equally often, and in a class a cell in proportion to size^(1 - power).

    At power 0 as the data has them, at 1 equally often, at 2 in inverted proportion.
    """
    own = consecutive(labels * (int(cells.max()) + 1) + cells)
    weights = np.bincount(own)[own] ** -float(power)
    return np.asarray(weights / np.bincount(labels, weights)[labels])


def unit_rows(features: Tensor | NDArray[Any]) -> Points:
    """(n, h) each row divided by its length, in float64; a row of zeros stays."""
    points = np.array(features.detach().cpu().numpy() if isinstance(features, Tensor) else features, dtype=float)
    points /= np.maximum(np.linalg.norm(points, axis=1, keepdims=True), 1e-12)
    return points


def chosen_rows(n: int, limit: int, seed: int) -> Groups:
    """Row numbers in order: all, or `limit` of them drawn without replacement where there are more."""
    if n <= limit:
        return np.arange(n)
    return np.sort(numpy_stream(seed, "rows", n, limit).choice(n, limit, replace=False))


def distinct(points: Points) -> int:
    """How many different points there are."""
    return len(np.unique(points, axis=0))


class Silhouettes:
    """Silhouettes of clusterings of the same points (n, d): of all of them, or of `limit`, since they are O(n^2)."""

    def __init__(self, points: Points, seed: int, limit: int = SILHOUETTE_ROWS) -> None:
        self.rows = chosen_rows(len(points), limit, seed)
        chosen = torch.from_numpy(points[self.rows])
        self.distances = torch.cdist(chosen, chosen).fill_diagonal_(0).numpy()

    def of(self, clusters: Groups) -> NDArray[np.float64]:
        """(m,) silhouettes of the points `rows` in a clustering (n,); 0 where it is one cluster or single points."""
        from sklearn.metrics import silhouette_samples

        own = clusters[self.rows]
        if not 1 < len(np.unique(own)) < len(own):
            return np.zeros(len(own))
        values: NDArray[np.float64] = silhouette_samples(self.distances, own, metric="precomputed")
        return values


def best_clusters(
    points: Points, largest: int, how: str, seed: int, limit: int = SILHOUETTE_ROWS
) -> tuple[Assign, Silhouettes]:
    """The clustering into 2 to `largest` with the highest mean over clusters of mean silhouettes; ties: more."""
    silhouettes, most = Silhouettes(points, seed, limit), min(largest, distinct(points), len(points) - 1)
    best: Assign = one_cluster
    highest = -np.inf
    for k in range(2, most + 1):
        assign = fit_clusters(points, k, how, seed)
        clusters = assign(points)
        own = consecutive(clusters[silhouettes.rows])
        if own.max() == 0:
            continue
        score = (np.bincount(own, silhouettes.of(clusters)) / np.bincount(own)).mean()
        if score >= highest:
            best, highest = assign, score
    if best is one_cluster:
        log.warning("%d points (the features of a class) do not fall into clusters: it is one", len(points))
    return best, silhouettes


def reduce_features(
    points: Points, others: Points, how: str, components: int, seed: int, limit: int = FIT_ROWS
) -> tuple[Points, Points]:
    """Both sets of points in fewer dimensions; the map is learnt on (at most `limit` of) the first."""
    if how == "none" or len(points) == 1:  # of one row there is nothing to learn
        return points, others
    from sklearn.decomposition import PCA

    sample, threads = points[chosen_rows(len(points), limit, seed)], torch.get_num_threads()
    reducer: Any = PCA(min(components, *sample.shape), random_state=seed % 2**32)
    if how == "umap" and len(sample) <= 2 * NEIGHBOURS:
        log.warning("%d samples are too few for UMAP (over %d): PCA instead", len(sample), 2 * NEIGHBOURS)
    elif how == "umap":
        try:
            reducer = importlib.import_module("umap").UMAP(
                n_neighbors=NEIGHBOURS, min_dist=0.0, n_components=components, random_state=seed % 2**32, n_jobs=1
            )
        except ImportError as error:
            log.warning("UMAP is not installed (%s): PCA instead; for UMAP: pip install 'debiaser[umap]'", error)
    reducer.fit(sample)
    reduced = [reducer.transform(each) if len(each) else np.empty((0, components)) for each in (points, others)]
    torch.set_num_threads(threads)  # UMAP's compiler sets the number of all cores for the whole process
    return np.asarray(reduced[0], dtype=np.float64), np.asarray(reduced[1], dtype=np.float64)


def fit_clusters(points: Points, k: int, how: str, seed: int, starts: int = 3, limit: int = FIT_ROWS) -> Assign:
    """A function that gives points their cluster, of k at most: as many as there are different points."""
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.mixture import GaussianMixture

    sample = points[chosen_rows(len(points), limit, seed)]
    if (most := distinct(sample)) < k:
        log.warning("%d clusters asked for, but only %d different points: %d clusters", k, most, most)
        k = most
    if k == 1:
        return one_cluster
    random = {"n_init": starts, "random_state": seed % 2**32}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the last round is as good as any other stop
        model: Any = GaussianMixture(k, **random) if how == "gmm" else KMeans(k, **random)
        try:
            model.fit(sample)
        except ValueError as error:  # a covariance that collapsed
            log.warning("the mixture of %d Gaussians cannot be fitted (%s): k-means instead", k, error)
            model = KMeans(k, **random).fit(sample)
    return lambda given: model.predict(given).astype(np.int64) if len(given) else np.empty(0, np.int64)


def one_cluster(points: Points) -> Groups:
    """(n,) zeros."""
    return np.zeros(len(points), np.int64)


def spherical_kmeans(points: Points, k: int, seed: int) -> Groups:
    """(n,) clusters by cosine: unit rows, centres that are unit means, random points as first centres, one start.

    Clusters that come out empty are left out; with fewer different points than k there are fewer clusters.
    """
    points = unit_rows(points)
    starts = np.unique(points[chosen_rows(len(points), FIT_ROWS, seed)], axis=0)
    centres = starts[numpy_stream(seed, "centres").permutation(len(starts))[:k]]
    if len(centres) < k:
        log.warning("%d clusters asked for, but only %d different points: %d clusters", k, len(centres), len(centres))
    for _ in range(ROUNDS):
        nearest = (points @ centres.T).argmax(1)
        sums = np.eye(len(centres))[nearest].T @ points
        empty = np.linalg.norm(sums, axis=1, keepdims=True) == 0
        moved = np.where(empty, centres, unit_rows(sums))
        shift = np.linalg.norm(moved - centres, axis=1).sum() ** 2
        centres = moved
        if shift < SHIFT:
            break
    nearest = (points @ centres.T).argmax(1)
    return consecutive(nearest)
