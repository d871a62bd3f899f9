"""GEORGE: no subclass left behind (Sohoni, Dunnmon, Angus, Gu and Ré, NeurIPS 2020)."""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from debiaser.errors import Misuse
from debiaser.io import derive
from debiaser.learn import groups
from debiaser.learn.groups import Assign, Groups, Points, Silhouettes, distinct, fit_clusters
from debiaser.learn.losses import GroupDRO, Supervised, cross_entropy
from debiaser.learn.sampler import ScoreSampler
from debiaser.methods.task import Method, Task, bounded, choice

Losses: TypeAlias = NDArray[np.float64]  # (n,)
SMALLEST_ROWS, SMALLEST_SHARE = 25, 0.005  # of a class, for a piece of a cluster to stand alone


@dataclass(frozen=True)
class GEORGE(Method):
    """Train, cluster the features of each class, then train a fresh network for the worst cluster.

    Args:
        reference: length of the first stage, as a multiple of the recipe's epochs.
        reduce: how features are reduced before clustering.
        components: number of dimensions they are reduced to.
        cluster: Gaussian mixture or k-means.
        largest_k: largest number of clusters per class that is tried.
        overcluster: cut clusters into pieces, and keep the hard pieces as clusters of their own.
        pieces: pieces per cluster.
        eta: step size of GroupDRO's group weights.
        adjustment: C of GroupDRO's size adjustment.
        balanced: draw the clusters equally often.
        augment: augment the training data.

    >>> result = debias(model, dataset, GEORGE(reduce="pca", largest_k=3))
    """

    reference: float = bounded(1, above=0)
    reduce: str = choice("umap", "none", "pca")
    components: int = bounded(2, at_least=1)
    cluster: str = choice("gmm", "kmeans")
    largest_k: int = bounded(10, at_least=2)
    overcluster: bool = True
    pieces: int = bounded(5, at_least=2)
    eta: float = bounded(0.01, at_least=0)
    adjustment: float = bounded(0.0, at_least=0)
    balanced: bool = True
    augment: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.reduce == "none" and self.cluster == "gmm":
            raise Misuse("reduce=none needs cluster=kmeans: Gaussians over raw features have too many parameters")

    def fit(self, task: Task) -> nn.Module:
        """Return the network trained for the worst cluster."""
        reference = task.fit(Supervised(task.new_model()), "reference", length=self.reference)  # stage 1
        with task.journal.timed("groups"):
            clusters = self.clusters(task, reference)  # stage 2
        task.journal.note("cluster", clusters)
        sampler = ScoreSampler(groups.balancing_weights(clusters), seed=task.seed) if self.balanced else None
        robust = GroupDRO(task.new_model("second"), torch.from_numpy(clusters), self.eta, self.adjustment)
        return task.fit(robust, "debiased", sampler)  # stage 3

    def clusters(self, task: Task, reference: nn.Module) -> Groups:
        """Return the cluster (n,) of every training sample; no cluster spans two classes."""
        train, valid = task.outputs(reference), task.outputs(reference, task.valid) if task.valid else None
        losses = cross_entropy(train.logits, train.labels).double().numpy()

        def of_class(label: int, rows: Groups) -> Groups:
            others = None if valid is None else valid.features[valid.labels == int(label)]
            seed = derive(task.seed, "groups", "george", label)
            return self.class_clusters(train.features[rows], losses[rows], others, seed)

        return groups.within_classes(train.labels.numpy(), of_class)

    def class_clusters(self, features: Tensor, losses: Losses, valid: Tensor | None, seed: int) -> Groups:
        """Return the clusters (n,) of one class, numbered from 0; a single one if its features do not form two."""
        points, others = (groups.unit_rows(each) for each in (features, features[:0] if valid is None else valid))
        points, others = groups.reduce_features(points, others, self.reduce, self.components, seed)
        assign, sampled = groups.best_clusters(points, self.largest_k, self.cluster, seed)
        clusters = assign(points)
        if self.overcluster:
            pieces, valid_pieces = self.pieces_of(points, others, assign, seed)
            keep = hard_pieces(clusters, pieces, losses, sampled, None if valid is None else valid_pieces)
            clusters = np.where(np.isin(pieces, keep), clusters.max() + 1 + pieces, clusters)  # the others merge back
        return groups.in_order_of_rows(clusters)

    def pieces_of(self, points: Points, others: Points, assign: Assign, seed: int) -> tuple[Groups, Groups]:
        """Cut each cluster with a clusterer of the same kind; return the pieces of `points` and of `others`."""
        parents, other_parents = assign(points), assign(others)
        pieces, other_pieces = parents * self.pieces, other_parents * self.pieces
        for parent in np.unique(parents):
            inside, also = parents == parent, other_parents == parent
            k = min(self.pieces, distinct(points[inside]))
            cut = fit_clusters(points[inside], k, self.cluster, derive(seed, "groups", parent))
            pieces[inside] += cut(points[inside])
            other_pieces[also] += cut(others[also])
        return pieces, other_pieces


def hard_pieces(parents: Groups, pieces: Groups, losses: Losses, sampled: Silhouettes, valid: Groups | None) -> Groups:
    """The pieces that stand alone: better separated than before the cut, as hard as their parent, and large enough.

    A piece of which nothing is in the sample does not; without validation data its size there does not count.
    """
    before, after = sampled.of(parents), sampled.of(pieces)
    kept: list[int] = []
    for piece in np.unique(pieces):
        inside, looked = pieces == piece, pieces[sampled.rows] == piece
        parent = parents == parents[inside][0]
        if (
            looked.any()
            and after[looked].mean() > max(before[looked].mean(), 0)
            and losses[inside].mean() >= losses[parent].mean()
            and inside.sum() >= max(SMALLEST_SHARE * len(pieces), SMALLEST_ROWS)
            and (valid is None or (valid == piece).sum() >= SMALLEST_ROWS)
        ):
            kept.append(piece)
    return np.array(kept, np.int64)
