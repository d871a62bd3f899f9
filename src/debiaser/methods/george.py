"""GEORGE: no subclass left behind (Sohoni, Dunnmon, Angus, Gu and Ré, NeurIPS 2020)."""

import logging
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from debiaser.errors import Misuse, known
from debiaser.learn.forward import collect, look
from debiaser.learn.groups import (
    CLUSTERERS,
    REDUCERS,
    Assign,
    Groups,
    Points,
    balancing_weights,
    chosen_rows,
    cluster_means,
    consecutive,
    distinct,
    fit_clusters,
    in_order_of_rows,
    one_cluster,
    reduce_features,
    silhouettes,
    stream_seed,
    timed,
    unit_rows,
)
from debiaser.learn.losses import GroupDRO, Supervised, check_number, cross_entropy
from debiaser.learn.sampler import ScoreSampler
from debiaser.methods.task import Task

log = logging.getLogger("debiaser")
Losses: TypeAlias = NDArray[np.float64]  # (n,)
SILHOUETTE_ROWS = 4_000  # silhouettes are O(rows^2): of a larger class, those of so many rows drawn once
SMALLEST_ROWS, SMALLEST_SHARE = 25, 0.005  # of a class, for a piece of a cluster to stand alone


@dataclass(frozen=True)
class GEORGE:
    """Train, cluster the features of every class, train a fresh network for the worst cluster.

    reference: length of the first training in times the recipe's epochs; reduce, components: what features are reduced
    by, and to how many; cluster: gmm or kmeans; largest_k: the most clusters per class that are tried; overcluster:
    whether clusters are cut into `pieces` of which the hard ones stand alone; eta, adjustment, balanced: GroupDRO's
    step, its size adjustment C, and whether clusters are drawn equally often; augment: in training.
    """

    reference: float = 1
    reduce: str = "umap"
    components: int = 2
    cluster: str = "gmm"
    largest_k: int = 10
    overcluster: bool = True
    pieces: int = 5
    eta: float = 0.01
    adjustment: float = 0.0
    balanced: bool = True
    augment: bool = True

    def __post_init__(self) -> None:
        check_number("reference", self.reference, 0)
        for name in ("eta", "adjustment"):
            check_number(name, getattr(self, name), 0, closed=True)
        for name, least in (("components", 1), ("largest_k", 2), ("pieces", 2)):
            if getattr(self, name) < least:
                raise Misuse(f"{name} must be at least {least}, got {getattr(self, name)}")
        for name, choices in (("reduce", REDUCERS), ("cluster", CLUSTERERS)):
            if getattr(self, name) not in choices:
                raise known(name, getattr(self, name), choices)
        if self.reduce == "none" and self.cluster == "gmm":
            raise Misuse("reduce=none needs cluster=kmeans: Gaussians over raw features have too many parameters")

    def fit(self, task: Task) -> nn.Module:
        """The network trained for the worst cluster."""
        task = task if self.augment else task.plain()
        reference = task.fit(Supervised(task.new_model()), "reference", length=self.reference)  # stage 1
        with timed(task.journal.seconds):
            clusters = self.clusters(task, reference)  # stage 2
        task.journal.note("cluster", clusters)
        sampler = ScoreSampler(balancing_weights(clusters), seed=task.seed) if self.balanced else None
        robust = GroupDRO(task.new_model("second"), torch.from_numpy(clusters), self.eta, self.adjustment)
        return task.fit(robust, "debiased", sampler=sampler)  # stage 3

    def clusters(self, task: Task, reference: nn.Module) -> Groups:
        """(n,) the cluster of every training row, none of two classes."""
        train = task.outputs(reference)
        valid = collect(look(reference, task.valid.batches(task.look_size), device=task.device)) if task.valid else None
        losses, labels = cross_entropy(train.logits, train.labels).double().numpy(), train.labels.numpy()
        result, first = np.zeros(len(losses), np.int64), 0
        for label in np.unique(labels):
            rows = np.flatnonzero(labels == label)
            others = None if valid is None else valid.features[valid.labels == int(label)]
            seed = stream_seed(task.seed, "george", label)
            result[rows] = first + self.class_clusters(train.features[rows], losses[rows], others, seed)
            first = int(result[rows].max()) + 1
        return result

    def class_clusters(self, features: Tensor, losses: Losses, valid: Tensor | None, seed: int) -> Groups:
        """(n,) the clusters of one class, numbered from 0; one where its features do not hold two."""
        points, others = unit_rows(features), unit_rows(features[:0] if valid is None else valid)
        points, others = reduce_features(points, others, self.reduce, self.components, seed)
        sample = Sample.of(points, seed)
        assign = best_clusters(points, sample, self.largest_k, self.cluster, seed)
        clusters = assign(points)
        if self.overcluster:
            pieces, valid_pieces = self.pieces_of(points, others, assign, seed)
            keep = kept_pieces(clusters, pieces, losses, sample, None if valid is None else valid_pieces)
            clusters = np.where(np.isin(pieces, keep), clusters.max() + 1 + pieces, clusters)  # the others merge back
        return in_order_of_rows(clusters)

    def pieces_of(self, points: Points, others: Points, assign: Assign, seed: int) -> tuple[Groups, Groups]:
        """The piece of every point and of every other point: each cluster cut by a clusterer of the same kind."""
        parents, other_parents = assign(points), assign(others)
        pieces, other_pieces = parents * self.pieces, other_parents * self.pieces
        for parent in np.unique(parents):
            inside, also = parents == parent, other_parents == parent
            k = min(self.pieces, distinct(points[inside]))
            cut = fit_clusters(points[inside], k, self.cluster, stream_seed(seed, parent))
            pieces[inside] += cut(points[inside])
            other_pieces[also] += cut(others[also])
        return pieces, other_pieces


@dataclass(frozen=True)
class Sample:
    """The rows of a class whose silhouettes are looked at, and the distances (m, m) between their points."""

    rows: Groups
    distances: Tensor

    @classmethod
    def of(cls, points: Points, seed: int, limit: int = SILHOUETTE_ROWS) -> "Sample":
        rows = chosen_rows(len(points), limit, seed)
        chosen = torch.from_numpy(points[rows])
        return cls(rows, torch.cdist(chosen, chosen))

    def silhouettes(self, clusters: Groups) -> NDArray[np.float64]:
        """(m,) silhouettes of these rows, of the clusters (n,) of all."""
        return silhouettes(self.distances, clusters[self.rows])


def best_clusters(points: Points, sample: Sample, largest: int, how: str, seed: int) -> Assign:
    """The clustering into 2 to `largest` with the highest mean over clusters of mean silhouettes; ties: more."""
    most = min(largest, distinct(points), len(points) - 1)
    if most < largest:
        log.warning("GEORGE: a class of %d rows holds at most %d clusters, not %d", len(points), max(most, 1), largest)
    best: Assign = one_cluster
    highest = -np.inf
    for k in range(2, most + 1):
        assign = fit_clusters(points, k, how, seed)
        clusters = consecutive(assign(points)[sample.rows])
        if clusters.max() == 0:
            continue
        score = cluster_means(silhouettes(sample.distances, clusters), clusters).mean()
        if score >= highest:
            best, highest = assign, score
    if best is one_cluster:
        log.warning("GEORGE: the features of a class of %d rows do not fall into clusters: it is one", len(points))
    return best


def kept_pieces(parents: Groups, pieces: Groups, losses: Losses, sample: Sample, valid: Groups | None) -> list[int]:
    """The pieces that stand alone; one of which no row is in the sample does not."""
    before, after = sample.silhouettes(parents), sample.silhouettes(pieces)
    kept = []
    for piece in np.unique(pieces):
        inside, looked = pieces == piece, pieces[sample.rows] == piece
        parent = parents == parents[inside][0]
        if looked.any() and stands_alone(
            silhouette=(float(before[looked].mean()), float(after[looked].mean())),
            loss=(float(losses[parent].mean()), float(losses[inside].mean())),
            rows=int(inside.sum()),
            rows_of_class=len(pieces),
            valid_rows=None if valid is None else int((valid == piece).sum()),
        ):
            kept.append(int(piece))
    return kept


def stands_alone(
    silhouette: tuple[float, float],
    loss: tuple[float, float],
    rows: int,
    rows_of_class: int,
    valid_rows: int | None,
) -> bool:
    """Whether a piece is better separated than before the cut, as hard as its parent, and large enough.

    `silhouette` is before and after the cut, `loss` the parent's and the piece's; without validation data its size
    there does not count.
    """
    return (
        silhouette[1] > max(silhouette[0], 0)
        and loss[1] >= loss[0]
        and rows >= max(SMALLEST_SHARE * rows_of_class, SMALLEST_ROWS)
        and (valid_rows is None or valid_rows >= SMALLEST_ROWS)
    )
