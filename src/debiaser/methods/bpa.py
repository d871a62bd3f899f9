"""BPA: unsupervised debiasing with bias-wise pseudo-attributes (Seo, Lee and Han, CVPR 2022)."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from debiaser.data.split import Batch
from debiaser.errors import Misuse, known
from debiaser.learn.forward import Outputs, call
from debiaser.learn.groups import Groups, spherical_kmeans, stream_seed, timed
from debiaser.learn.losses import Objective, Supervised, check_number, check_share, cross_entropy
from debiaser.methods.task import Task

AVERAGES = ("avg", "expavg")
SMALLEST = 1e-12  # no weight becomes exactly 0, from where it could never grow again


@dataclass(frozen=True)
class BPA:
    """Train, cluster the features of every class, train a fresh network that weighs small and badly fitted clusters up.

    reference: length of the first training in times the recipe's epochs; clusters: per class; average: how a row's
    weight follows its cluster's, expavg (multiply by exp(step * target)) or avg (a share `momentum` of the target);
    history: start each update from the row's last weight, not from the target as the released code does; every: steps
    between updates of the clusters' losses; augment: in training.
    """

    reference: float = 1
    clusters: int = 8
    average: str = "expavg"
    step: float = 0.05
    momentum: float = 0.3
    history: bool = False
    every: int = 10
    augment: bool = True

    def __post_init__(self) -> None:
        check_number("reference", self.reference, 0)
        check_number("step", self.step, 0, closed=True)
        check_share("momentum", self.momentum)
        for name in ("clusters", "every"):
            if getattr(self, name) < 1:
                raise Misuse(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.average not in AVERAGES:
            raise known("average", self.average, AVERAGES)

    def fit(self, task: Task) -> nn.Module:
        """The network trained with weights by cluster."""
        task = task if self.augment else task.plain()
        reference = task.fit(Supervised(task.new_model()), "reference", length=self.reference)  # stage 1
        with timed(task.journal.seconds):
            found = class_clusters(task.outputs(reference), self.clusters, task.seed)  # stage 2
        task.journal.note("cluster", found)
        weighted = ClusterWeighted(task.new_model("second"), torch.from_numpy(found), self)
        model = task.fit(weighted, "debiased")  # stage 3
        task.journal.note("weight", weighted.weights)
        return model


def class_clusters(outputs: Outputs, k: int, seed: int) -> Groups:
    """(n,) k clusters within each class by the cosine of features, numbered through all classes."""
    features, labels = outputs.features.numpy(), outputs.labels.numpy()
    result, first = np.zeros(len(labels), np.int64), 0
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        result[rows] = first + spherical_kmeans(features[rows], k, stream_seed(seed, "bpa", label))
        first = int(result[rows].max()) + 1
    return result


class ClusterWeighted(Objective):
    """Cross-entropy with a weight per row that follows n / size of its cluster, times the cluster's share of the loss.

    Before every row was visited once the share of the loss counts for all alike. Losses are those met in training.
    """

    clusters: Tensor
    sizes: Tensor
    losses: Tensor
    cluster_losses: Tensor
    weights: Tensor

    def __init__(self, model: nn.Module, clusters: Tensor, rule: BPA) -> None:
        super().__init__()
        self.model, self.rule, self.steps = model, rule, 0
        self.register_buffer("clusters", clusters.long())
        self.register_buffer("sizes", torch.bincount(clusters).float())
        self.register_buffer("losses", torch.full((len(clusters),), -1.0))  # -1: not visited yet
        self.register_buffer("cluster_losses", torch.zeros(len(self.sizes)))
        self.register_buffer("weights", torch.ones(len(clusters)))

    def begin(self, epoch: int, epochs: int) -> None:  # noqa: ARG002
        """Cluster losses as of the end of the last epoch; steps are counted within one, so that none need saving."""
        self.steps = 0
        self.renew()

    def forward(self, batch: Batch) -> Tensor:
        losses = cross_entropy(call(self.model, batch.x), batch.y)
        if self.training:
            self.weights[batch.rows] = self.next_weights(batch.rows)
            self.losses[batch.rows] = losses.detach().to(self.losses)
            self.steps += 1
            if self.steps % self.rule.every == 0:
                self.renew()
        return torch.mean(losses * self.weights[batch.rows])

    def targets(self, rows: Tensor) -> Tensor:
        """(b,) n / size of the row's cluster, times its share of the loss once all rows are visited; mean 1."""
        cluster = self.clusters[rows]
        targets = len(self.clusters) / self.sizes[cluster]
        if bool((self.losses >= 0).all()):
            targets = targets * self.cluster_losses.clamp_min(SMALLEST)[cluster]
        return targets / targets.mean()

    def next_weights(self, rows: Tensor) -> Tensor:
        """(b,) the rows' new weights, mean 1."""
        targets, rule = self.targets(rows), self.rule
        last = self.weights[rows] if rule.history else targets
        if rule.average == "expavg":
            weights = last * torch.exp(rule.step * (targets - targets.max()))  # less the largest: none overflows
        else:
            weights = (1 - rule.momentum) * last + rule.momentum * targets
        return (weights / weights.mean()).clamp_min(SMALLEST)

    def renew(self) -> None:
        """The mean of the stored losses in every cluster that was visited; O(n)."""
        seen = self.losses >= 0
        clusters, many = self.clusters[seen], len(self.sizes)
        counts = torch.bincount(clusters, minlength=many)
        sums = torch.bincount(clusters, self.losses[seen], many).to(self.losses)
        self.cluster_losses.copy_(torch.where(counts > 0, sums / counts.clamp_min(1), self.cluster_losses))

    def extra_repr(self) -> str:
        return repr(self.rule)
