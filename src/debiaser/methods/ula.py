"""uLA: unsupervised logit adjustment (Tsirigotis, Monteiro, Rodriguez, Vazquez and Courville, NeurIPS 2023)."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from debiaser.data.split import Batch
from debiaser.errors import Problem
from debiaser.learn.forward import Outputs, call
from debiaser.learn.losses import Objective, Supervised, cross_entropy, gce
from debiaser.methods.task import Method, Task, bounded


@dataclass(frozen=True)
class ULA(Method):
    """Train a biased model, estimate how likely each label is given its prediction, then train a fresh network with the
    log of these probabilities added to its logits.

    Args:
        alpha: exponent of the biased model's GCE; None for cross-entropy.
        temperature: temperature of the biased model's softmax in the estimate.
        strength: factor of the logarithm.
        cap: largest absolute value of the offset.
        augment: augment the training data.

    >>> result = debias(model, dataset, ULA(strength=0.5))
    """

    alpha: float | None = bounded(0.7, above=0, at_most=1)
    temperature: float = bounded(1, above=0)
    strength: float = bounded(1, at_least=0)
    cap: float = bounded(5, above=0)
    augment: bool = True

    def fit(self, task: Task) -> nn.Module:
        """Return the network, which has learnt what the biased model's prediction does not explain."""
        biased = task.fit(Supervised(task.new_model(), gce(self.alpha)), "biased")  # stage 1
        seen = task.outputs(biased)
        answers = seen.logits.argmax(1)
        task.journal.note("error", (answers != seen.labels).to(torch.int8))
        offsets = (self.strength * label_given_answer(seen, self.temperature).log()).clamp(-self.cap, self.cap)
        return task.fit(Adjusted(task.new_model("debiased"), offsets[answers]), "debiased")  # stage 2


def label_given_answer(seen: Outputs, temperature: float) -> Tensor:
    """(k, k) P(y | b) of a label given the biased answer, from soft counts of answers with one more in every cell."""
    if not bool(seen.logits.isfinite().all()):
        raise Problem("the biased model's logits are not finite, so its answers cannot be counted; lower lr or clip")
    k = seen.logits.shape[1]
    soft = (seen.logits.double() / temperature).softmax(1)
    joint = soft.T @ F.one_hot(seen.labels, k).double() + 1  # Dirichlet(1): no cell is empty, no logarithm infinite
    return joint / joint.sum(1, keepdim=True)


class Adjusted(Objective):
    """Cross-entropy of the logits plus an offset (n, k) per sample; the network alone, without it, comes out."""

    offsets: Tensor

    def __init__(self, model: nn.Module, offsets: Tensor) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("offsets", offsets.float())

    def forward(self, batch: Batch) -> Tensor:
        return cross_entropy(call(self.model, batch.x) + self.offsets[batch.rows], batch.y).mean()
