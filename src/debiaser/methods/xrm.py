"""XRM: discovering environments by twin networks (Pezeshki, Bouchacourt, Ibrahim, Ballas, Vincent and Lopez-Paz,
ICML 2024)."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from debiaser.data.split import Batch
from debiaser.io import derive, log, torch_stream
from debiaser.learn.forward import at_least_single, call, device_of, last_layer
from debiaser.learn.gradient_norms import misclassified
from debiaser.learn.groups import Groups, cell_weights, consecutive
from debiaser.learn.losses import GroupDRO, Objective, Supervised, cross_entropy, group_means
from debiaser.learn.sampler import ScoreSampler
from debiaser.methods.task import Method, Task, bounded, choice


@dataclass(frozen=True)
class XRM(Method):
    """Train two networks on half of the samples each, so that they adopt each other's confident mistakes, then train a
    third to do well both on what they misclassify and on the rest.

    Args:
        learner: how the second stage learns: "groupdro" on class x misclassified by either network, or "balanced" draws
            of these groups.
        eta: step size of GroupDRO's group weights.
        length: length of the first stage, as a multiple of the recipe's epochs.
        augment: augment the training data.

    >>> result = debias(model, dataset, XRM(learner="balanced"))
    """

    learner: str = choice("groupdro", "balanced")
    eta: float = bounded(0.01, at_least=0)
    length: float = bounded(1, above=0)
    augment: bool = True

    def fit(self, task: Task) -> nn.Module:
        """Return the network trained on the groups that the two networks found."""
        twins = Twins(task.new_model(), task.new_model("twin"), task)
        task.fit(twins, "twins", length=self.length)  # phase 1
        wrong = task.scores(twins.model, misclassified) + task.scores(twins.other, misclassified)
        labels, group = task.train.y.numpy(), (wrong > 0).long().numpy()
        task.journal.note("flip", (twins.running.cpu() != task.train.y).to(torch.int8))
        weights = self.weights(labels, group)
        task.journal.note("score", weights)
        fresh, groups = task.new_model("debiased"), torch.from_numpy(consecutive(2 * labels + group))
        learner = GroupDRO(fresh, groups, self.eta) if self.learner == "groupdro" else Supervised(fresh)
        return task.fit(learner, "debiased", ScoreSampler(weights, seed=task.seed))  # phase 2

    def weights(self, labels: Groups, group: Groups) -> NDArray[np.float64]:
        """Return sampling weights (n,): classes are equally likely, and so are both groups of a class that has two."""
        classes, counts = np.unique(labels, return_counts=True)
        wrong = np.bincount(labels, group)[classes]
        if void := int(((wrong == 0) | (wrong == counts)).sum()):
            told = "XRM is void: in %d of %d classes the twins misclassify all samples or none, so one group is empty; "
            log.warning(told + "these are drawn evenly, and its flip rate does not count", void, len(classes))
        return cell_weights(labels, group)


class Twins(Objective):
    """Sum over classes of the mean cross-entropy of whichever network a sample is given to, by running labels.

    After every step the network that a sample was kept from may change its running label to its own answer, with
    probability (p - 1/k) k / (k - 1) of its confidence p.
    """

    assigned: Tensor
    running: Tensor

    def __init__(self, model: nn.Module, other: nn.Module, task: Task) -> None:
        super().__init__()
        self.model, self.other, self.seed, self.epoch = model, other, task.seed, 0
        labels, batch = task.train.y, task.train.batch(torch.arange(min(2, len(task.train))))
        for network in (model, other):
            for parameter in last_layer(network, batch.to(device_of(network))).parameters():
                nn.init.zeros_(parameter)
        halves = torch.rand(len(labels), generator=torch_stream(derive(task.seed, "twins"), "halves")) < 0.5
        self.register_buffer("assigned", halves)
        self.register_buffer("running", labels.clone())

    def begin(self, epoch: int, epochs: int) -> None:  # noqa: ARG002
        self.epoch = epoch  # which flips are drawn

    def forward(self, batch: Batch) -> Tensor:
        one, two = call(self.model, batch.x), call(self.other, batch.x)
        first, labels = self.assigned[batch.rows][:, None], self.running[batch.rows]
        losses = cross_entropy(torch.where(first, one, two), labels)
        if self.training:
            outside = at_least_single(torch.where(first, two, one).detach())
            self.running[batch.rows] = self.flipped(outside, labels, int(batch.rows[0]))
        return group_means(losses, labels, one.shape[1])[0].sum()

    def flipped(self, outside: Tensor, labels: Tensor, word: int) -> Tensor:
        """(b,) the new running labels."""
        k = outside.shape[1]
        confidence, answers = outside.softmax(1).max(1)
        drawn = torch.rand(len(labels), generator=torch_stream(self.seed, "flips", self.epoch, word)).to(confidence)
        return torch.where(drawn < (confidence - 1 / k) * k / (k - 1), answers, labels)
