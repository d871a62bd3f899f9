"""Groups of training rows: reduced features, clusters of them, silhouettes, and weights that make groups equal."""

import importlib
import logging
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from debiaser.io import derive, numpy_stream

log = logging.getLogger("debiaser")

Points: TypeAlias = NDArray[np.float64]  # (n, d)
Groups: TypeAlias = NDArray[np.int64]  # (n,)
Assign: TypeAlias = Callable[[Points], Groups]

REDUCERS = ("none", "pca", "umap")
CLUSTERERS = ("gmm", "kmeans")
FIT_ROWS = 20_000  # reducers and clusterers are fitted on at most so many rows, drawn once; the others are assigned
NEIGHBOURS = 10  # of UMAP, as in GEORGE's code
ROUNDS = 300  # of k-means, at most
SHIFT = 1e-4  # k-means stops when the squared sum of all centres' moves is below


@contextmanager
def timed(seconds: dict[str, float], name: str = "groups") -> Iterator[None]:
    """Adds the seconds that the block takes under this name."""
    started = time.perf_counter()
    yield
    seconds[name] = seconds.get(name, 0) + time.perf_counter() - started


def consecutive(groups: NDArray[Any]) -> Groups:
    """(n,) the same groups numbered 0, 1, ... without a gap, so that none is empty."""
    return np.unique(groups, return_inverse=True)[1].astype(np.int64)


def in_order_of_rows(groups: NDArray[Any]) -> Groups:
    """(n,) the same groups numbered by their first row: a clustering that only names them otherwise is the same."""
    _, first, own = np.unique(groups, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[own].astype(np.int64)


def balancing_weights(groups: Groups) -> NDArray[np.float64]:
    """(n,) n / size of the row's group: drawn by these, every group is equally likely."""
    weights: NDArray[np.float64] = len(groups) / np.bincount(groups)[groups]
    return weights


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


def silhouettes(distances: Tensor, clusters: Groups) -> NDArray[np.float64]:
    """(n,) (b - a) / max(a, b): a, b the mean distance to the own and to the nearest other cluster, from (n, n).

    0 in a cluster of one row, where all points coincide, and where there is one cluster only.
    """
    own = torch.from_numpy(consecutive(clusters))
    member = torch.nn.functional.one_hot(own).to(distances)
    sums, sizes = distances @ member, member.sum(0)
    others = sizes[own] - 1
    within = sums.gather(1, own[:, None])[:, 0] / others.clamp_min(1)
    between = (sums / sizes).masked_fill(member.bool(), torch.inf).amin(1)
    larger = torch.maximum(within, between)
    defined = (others > 0) & (larger > 0) & torch.isfinite(between)
    result: NDArray[np.float64] = torch.where(defined, (between - within) / larger, 0.0).numpy()
    return result


def cluster_means(values: NDArray[np.float64], clusters: Groups) -> NDArray[np.float64]:
    """(k,) the mean of the values in each cluster; NaN in one without rows."""
    with np.errstate(invalid="ignore"):
        means: NDArray[np.float64] = np.bincount(clusters, values) / np.bincount(clusters)
    return means


def reduce_features(
    points: Points, others: Points, how: str, components: int, seed: int, limit: int = FIT_ROWS
) -> tuple[Points, Points]:
    """Both sets of points in fewer dimensions; the map is learnt on (at most `limit` of) the first."""
    if how == "none" or len(points) == 1:  # of one row there is nothing to learn
        return points, others
    sample = points[chosen_rows(len(points), limit, seed)]
    reducer, threads = new_reducer(how, sample, components, seed), torch.get_num_threads()
    reducer.fit(sample)
    reduced = [reducer.transform(each) if len(each) else np.empty((0, components)) for each in (points, others)]
    torch.set_num_threads(threads)  # UMAP's compiler sets the number of all cores for the whole process
    return np.asarray(reduced[0], dtype=np.float64), np.asarray(reduced[1], dtype=np.float64)


def new_reducer(how: str, sample: Points, components: int, seed: int) -> Any:
    """UMAP where it is asked for, installed and has rows enough; else PCA, and a warning says so."""
    from sklearn.decomposition import PCA

    if how == "umap":
        if len(sample) <= 2 * NEIGHBOURS:
            log.warning("%d rows are too few for UMAP (over %d): PCA instead", len(sample), 2 * NEIGHBOURS)
        elif umap := find_umap():
            return umap.UMAP(
                n_neighbors=NEIGHBOURS, min_dist=0.0, n_components=components, random_state=seed % 2**32, n_jobs=1
            )
    return PCA(min(components, *sample.shape), random_state=seed % 2**32)


def find_umap() -> Any:
    """The module umap, or None and a warning."""
    try:
        return importlib.import_module("umap")
    except ImportError as error:
        log.warning("UMAP is not installed (%s): PCA instead; for UMAP: pip install 'debiaser[umap]'", error)
        return None


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
        model = KMeans(k, **random)
        if how == "gmm":
            try:
                mixture = GaussianMixture(k, **random).fit(sample)
            except ValueError as error:  # a covariance that collapsed
                log.warning("the mixture of %d Gaussians cannot be fitted (%s): k-means instead", k, error)
            else:
                return lambda given: predict_clusters(mixture, given)
        model.fit(sample)
    return lambda given: predict_clusters(model, given)


def one_cluster(points: Points) -> Groups:
    """(n,) zeros."""
    return np.zeros(len(points), np.int64)


def predict_clusters(model: Any, points: Points) -> Groups:
    """(n,) the model's cluster of each point, also where there is none."""
    return model.predict(points).astype(np.int64) if len(points) else np.empty(0, np.int64)


def spherical_kmeans(points: Points, k: int, seed: int) -> Groups:
    """(n,) clusters by cosine: unit rows, centres that are unit means, random rows as first centres, one start.

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
    if (found := len(np.unique(nearest))) < len(centres):
        log.warning("%d of %d clusters came out empty and are left out", len(centres) - found, len(centres))
    return consecutive(nearest)


def stream_seed(seed: int, *names: object) -> int:
    """A seed of its own for a clustering of this name."""
    return derive(seed, "groups", *names)
