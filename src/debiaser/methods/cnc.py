"""CNC: correct-n-contrast (Zhang, Sohoni, Zhang, Finn and Ré, ICML 2022)."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from debiaser.data.split import Batch
from debiaser.errors import Misuse
from debiaser.io import derive, log, numpy_stream
from debiaser.learn.forward import Outputs, features_and_logits, last_layer
from debiaser.learn.groups import Groups, fit_clusters, reduce_features
from debiaser.learn.losses import Objective, Supervised, cross_entropy
from debiaser.methods.task import Method, Task, bounded, choice

ROLES = 4  # anchors, positives, negatives, easy negatives


@dataclass(frozen=True)
class CNC(Method):
    """Train, guess each sample's shortcut, then train a fresh network that pulls together samples of a class with
    different shortcuts.

    Args:
        reference: length of the first stage, as a multiple of the recipe's epochs.
        slice_by: the guess: the first network's prediction, or the cluster of its features (UMAP and a Gaussian
            mixture, matched to the labels).
        temperature: temperature of the contrastive loss.
        contrast: weight of the contrastive loss (the paper's lambda); cross-entropy gets the rest.
        tasks: contrastive tasks per batch; the batch size must be a multiple of 4 * tasks.
        frozen_statistics: keep all but the last layer in eval mode, as the authors do with pretrained networks.
        augment: augment the training data.

    >>> result = debias(model, dataset, CNC(tasks=2))
    """

    reference: float = bounded(1, above=0)
    slice_by: str = choice("prediction", "features")
    temperature: float = bounded(0.05, above=0)
    contrast: float = bounded(0.75, at_least=0, at_most=1)
    tasks: int = bounded(4, at_least=1)
    frozen_statistics: bool = False
    augment: bool = True

    def fit(self, task: Task) -> nn.Module:
        """Return the network trained contrastively."""
        labels, size = task.train.y.numpy(), task.recipe.of_stage("debiased").batch_size
        if len(np.unique(labels)) < 2:
            raise Misuse("CNC contrasts classes, but the labels hold only one; give two or more")
        if size % (parts := ROLES * self.tasks):
            raise Misuse(f"batch_size must be a multiple of {parts} (four parts of {self.tasks} tasks), got {size}")
        reference = task.fit(Supervised(task.new_model()), "reference", length=self.reference)  # stage 1
        with task.journal.timed("groups"):
            slices = self.slices(task.outputs(reference), task.seed)  # stage 2
        task.journal.note("slice", slices)
        task.journal.note("error", (slices != labels).astype(np.int8))
        fresh = task.new_model("second")
        head = last_layer(fresh, task.train.batch(torch.arange(2)))
        sampler = TaskSampler(labels, slices, size, self.tasks, task.seed)
        return task.fit(Contrast(fresh, head, self), "debiased", sampler)  # stage 3

    def slices(self, outputs: Outputs, seed: int) -> Groups:
        """Return the predicted class (n,), or the cluster of the features, named after its best-matching class."""
        if self.slice_by == "prediction":
            return outputs.logits.argmax(1).numpy()
        from scipy.optimize import linear_sum_assignment
        from sklearn.metrics import confusion_matrix

        features, labels, classes = outputs.features.double().numpy(), outputs.labels.numpy(), outputs.logits.shape[1]
        points, _ = reduce_features(features, features[:0], "umap", 2, derive(seed, "groups", "cnc", "reduce"))
        clusters = fit_clusters(points, classes, "gmm", derive(seed, "groups", "cnc", "clusters"), starts=10)(points)
        agreement = confusion_matrix(clusters, labels, labels=range(classes))
        _, names = linear_sum_assignment(agreement, maximize=True)  # the best of all permutations, without trying them
        return names[clusters].astype(np.int64)  # type: ignore[no-any-return]


class TaskSampler:
    """Lays an epoch of n samples out as contrastive tasks: [anchors | positives | negatives | easy negatives].

    Every batch holds `tasks` of them; the last has smaller ones, and up to 4 * tasks - 1 samples of n are left over.

    With label y and slice s of a sample, and k the anchors' class: anchors y = s = k; positives y = k != s; negatives
    s = k != y; easy negatives y = s = the slice of the first positive. A class without positives lends all its samples,
    an empty pool of negatives of either kind becomes all samples of other classes.
    """

    def __init__(self, labels: Groups, slices: Groups, batch_size: int, tasks: int, seed: int = 0) -> None:
        self.labels, self.seed, self.tasks, self.size = labels, seed, tasks, batch_size // (ROLES * tasks)
        if not (labels == slices).any():
            log.warning("CNC: the reference predicts no sample right, so there are no anchors: all count as anchors")
            slices = labels
        self.slices = slices
        self.anchors, self.positives, self.negatives, lacking = list[Groups](), list[Groups](), list[Groups](), 0
        for k in range(int(max(labels.max(), slices.max())) + 1):
            own, taken = labels == k, slices == k
            self.anchors.append(np.flatnonzero(own & taken))
            positives, negatives = own & ~taken, ~own & taken
            self.positives.append(np.flatnonzero(positives if positives.any() else own))
            self.negatives.append(np.flatnonzero(negatives if negatives.any() else ~own))
            lacking += own.any() and not (positives.any() and negatives.any() and len(self.anchors[k]))
        if lacking:
            log.warning(
                "CNC: %d classes lack anchors (no tasks then), positives or negatives (all others serve)", lacking
            )
        full, rest = divmod(len(labels), batch_size)
        self.full, self.last = full * tasks, max(rest // (ROLES * tasks), 0 if full else 1)

    @property
    def identity(self) -> bytes:
        """What decides the draws, for the key of the stage."""
        return self.slices.tobytes() + f"{self.tasks} {self.size} {self.seed}".encode()

    def draw(self, epoch: int) -> Tensor:
        """(m,) samples: whole batches of whole tasks."""
        stream = numpy_stream(self.seed, "contrast", epoch)
        tasks = self.draw_tasks(self.full + (self.tasks if self.last else 0), stream)
        return torch.from_numpy(np.append(tasks[: self.full], tasks[self.full :, :, : self.last]))

    def draw_tasks(self, count: int, stream: np.random.Generator) -> NDArray[np.int64]:
        """(count, 4, size) samples; a task's class is that of an anchor drawn from all anchors."""
        sizes = np.array([len(pool) for pool in self.anchors])
        classes = stream.choice(len(sizes), count, p=sizes / sizes.sum())
        tasks = np.empty((count, ROLES, self.size), np.int64)

        def fill(role: int, chosen: Groups, pool: Callable[[int], Groups]) -> None:
            """Deal samples of `pool(k)` to this role of the tasks for which k was chosen; -1: none."""
            for k in np.unique(chosen[chosen >= 0]):
                tasks[chosen == k, role] = deal(pool(k), int((chosen == k).sum()), self.size, stream)

        for role, pools in enumerate((self.anchors, self.positives, self.negatives)):
            fill(role, classes, pools.__getitem__)
        source = self.slices[tasks[:, 1, 0]]
        easy = (source != classes) & (sizes[source] > 0)
        fill(3, np.where(easy, source, -1), self.anchors.__getitem__)
        fill(3, np.where(easy, -1, classes), lambda k: np.flatnonzero(self.labels != k))
        return tasks


def deal(pool: Groups, hands: int, size: int, stream: np.random.Generator) -> NDArray[np.int64]:
    """(hands, size) samples of the pool, dealt like cards: none twice in a hand unless the pool is smaller."""
    if len(pool) < size:
        pool = np.tile(pool, -(-size // len(pool)))
    in_pack = len(pool) // size
    packs = np.tile(pool, (-(-hands // in_pack), 1))
    return stream.permuted(packs, axis=1)[:, : in_pack * size].reshape(-1, size)[:hands]


class Contrast(Objective):
    """lambda * both sides of the contrast in each task + (1 - lambda) * cross-entropy over the whole batch.

    Features are what enters the last layer, so the contrast reaches all layers but that one.
    """

    def __init__(self, model: nn.Module, head: nn.Module, rule: CNC) -> None:
        super().__init__()
        self.model, self.rule = model, rule
        self.heads = (head,)  # a tuple, so that the layer is not registered a second time

    def train(self, mode: bool = True) -> "Contrast":
        super().train(mode)
        if self.rule.frozen_statistics:
            self.model.eval()
            self.heads[0].train(mode)
        return self

    def forward(self, batch: Batch) -> Tensor:
        rule: CNC = self.rule
        features, logits = features_and_logits(self.model, batch.x, self.heads[0])
        near = F.normalize(features, dim=1)
        anchors, positives, negatives, easy = near.view(rule.tasks, ROLES, -1, near.shape[1]).unbind(1)
        pull = contrastive(anchors[:, 0], positives, negatives, rule.temperature)
        push = contrastive(positives[:, 0], anchors, easy, rule.temperature)
        return rule.contrast * (pull + push).mean() + (1 - rule.contrast) * cross_entropy(logits, batch.y).mean()


def contrastive(anchor: Tensor, positives: Tensor, negatives: Tensor, temperature: float) -> Tensor:
    """(t,) minus the mean over positives of log(e^s / sum of e^s over all), s = cosine / temperature.

    Unit vectors in: anchor (t, h), positives (t, p, h), negatives (t, m, h).
    """
    towards, against = (torch.einsum("th,tph->tp", anchor, each) / temperature for each in (positives, negatives))
    return torch.cat([towards, against], 1).logsumexp(1) - towards.mean(1)
