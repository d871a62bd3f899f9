"""BPA: unsupervised debiasing with bias-wise pseudo-attributes (Seo, Lee and Han, CVPR 2022)."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from debiaser.data.split import Batch
from debiaser.io import derive
from debiaser.learn.forward import Outputs, call
from debiaser.learn.groups import Groups, spherical_kmeans, within_classes
from debiaser.learn.losses import Objective, Supervised, cross_entropy
from debiaser.methods.task import Method, Task, bounded, choice

SMALLEST = 1e-12  # no weight becomes exactly 0, from where it could never grow again


@dataclass(frozen=True)
class BPA(Method):
    """Train, cluster the features of each class, then train a fresh network that upweights small and poorly fitted
    clusters.

    Args:
        reference: length of the first stage, as a multiple of the recipe's epochs.
        clusters: number of clusters per class.
        average: how a sample's weight is updated from the target that its cluster's size and loss give: "expavg"
            multiplies it by exp(step * target), "avg" mixes the two.
        step: step size of "expavg".
        momentum: share of the target in "avg".
        history: start each update from the previous weight; if False, from the target, as the released code does.
        every: number of steps between updates of the clusters' losses.
        augment: augment the training data.

    >>> result = debias(model, dataset, BPA(clusters=4))
    """

    reference: float = bounded(1, above=0)
    clusters: int = bounded(8, at_least=1)
    average: str = choice("expavg", "avg")
    step: float = bounded(0.05, at_least=0)
    momentum: float = bounded(0.3, at_least=0, at_most=1)
    history: bool = False
    every: int = bounded(10, at_least=1)
    augment: bool = True

    def fit(self, task: Task) -> nn.Module:
        """Return the network trained with cluster weights."""
        reference = task.fit(Supervised(task.new_model()), "reference", length=self.reference)  # stage 1
        with task.journal.timed("groups"):
            clusters = class_clusters(task.outputs(reference), self.clusters, task.seed)  # stage 2
        task.journal.note("cluster", clusters)
        weighted = ClusterWeighted(task.new_model("second"), torch.from_numpy(clusters), self)
        model = task.fit(weighted, "debiased")  # stage 3
        task.journal.note("weight", weighted.weights)
        return model


def class_clusters(outputs: Outputs, k: int, seed: int) -> Groups:
    """(n,) k clusters within each class by the cosine of features, numbered through all classes."""
    features = outputs.features.numpy()
    return within_classes(
        outputs.labels.numpy(), lambda y, rows: spherical_kmeans(features[rows], k, derive(seed, "groups", "bpa", y))
    )


class ClusterWeighted(Objective):
    """Cross-entropy with a weight per sample that follows n / size of its cluster, times the cluster's mean loss.

    Before every sample was visited once the losses of the clusters do not count. Losses are those met in training.
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
        self.steps = 0  # counted within an epoch, so that none need saving
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

    def next_weights(self, rows: Tensor) -> Tensor:
        """(b,) the new weights of these samples, mean 1."""
        rule, cluster = self.rule, self.clusters[rows]
        targets = len(self.clusters) / self.sizes[cluster]
        if bool((self.losses >= 0).all()):
            targets = targets * self.cluster_losses.clamp_min(SMALLEST)[cluster]
        targets = targets / targets.mean()
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
