"""LfF: learning from failure (Nam, Cha, Ahn, Lee and Shin, NeurIPS 2020)."""

from dataclasses import dataclass

from torch import Tensor, nn

from debiaser.data.split import Batch, Split
from debiaser.learn.forward import Outputs, call, device_of, features_and_logits, last_layer
from debiaser.learn.gradient_norms import grad_norm
from debiaser.learn.losses import Objective, SampleAverage, cross_entropy, gce, relative_difficulty
from debiaser.methods.task import Method, Task, bounded, choice


@dataclass(frozen=True)
class LfF(Method):
    """Train two networks in parallel: one takes the shortcut, the other learns most from the samples on which the first
    fails.

    Both are trained on the same batches, as in the authors' code; a sample counts as seen once, although it passes
    through two networks.

    Args:
        alpha: exponent of the biased network's GCE; None for cross-entropy.
        extra_q: multiply GCE by alpha, as the authors' code does.
        ema: weight of the past in each sample's moving average of scores.
        score: what is averaged: the loss, or the gradient norm of the last layer.
        length: training length, as a multiple of that of other one-stage methods.
        augment: augment the training data.
        relative: weight a sample by the biased network's average divided by the sum of both networks' averages; if
            False, by the biased network's average alone.

    >>> result = debias(model, dataset, LfF(score="gradient"))
    """

    alpha: float | None = bounded(0.7, above=0, at_most=1)
    extra_q: bool = True
    ema: float = bounded(0.7, at_least=0, below=1)
    score: str = choice("loss", "gradient")
    length: float = bounded(1, above=0)
    augment: bool = True
    relative: bool = True

    def fit(self, task: Task) -> nn.Module:
        """Return the debiased network."""
        objective = Failure(task.new_model(), task.new_model("debiased"), task.train, self)
        task.fit(objective, "lff", length=self.length * task.recipe.single_stage)
        task.journal.note("weight", objective.weights())
        return objective.model


class Failure(Objective):
    """mean GCE(f_b) + mean w ce(f_d), w = u_b / (u_b + u_d) from the networks' average scores of a sample; or u_b."""

    def __init__(self, biased: nn.Module, debiased: nn.Module, split: Split, rule: LfF) -> None:
        super().__init__()
        self.model, self.biased, self.rule, self.loss = debiased, biased, rule, gce(rule.alpha, rule.extra_q)
        self.biased_scores, self.debiased_scores = SampleAverage(split.y, rule.ema), SampleAverage(split.y, rule.ema)
        self.heads: tuple[nn.Module | None, ...] = (None, None)  # a tuple, so that no layer is registered a second time
        if rule.score == "gradient":
            batch = next(split.batches(2)).to(device_of(biased))
            self.heads = last_layer(biased, batch), last_layer(debiased, batch)

    def forward(self, batch: Batch) -> Tensor:
        biased, biased_score = logits_and_score(self.biased, batch, self.heads[0])
        debiased, debiased_score = logits_and_score(self.model, batch, self.heads[1])
        self.biased_scores.update(batch.rows, biased_score)  # first update, then read
        self.debiased_scores.update(batch.rows, debiased_score)
        weighted = self.weights(batch.rows) * cross_entropy(debiased, batch.y)
        loss: Tensor = self.loss(biased, batch.y).mean() + weighted.mean()
        return loss

    def weights(self, rows: Tensor | slice = slice(None)) -> Tensor:
        """(b,) the weight that these samples (without: all) have by now."""
        if self.rule.relative:
            return relative_difficulty(self.biased_scores, self.debiased_scores, rows)
        return self.biased_scores.relative(rows)


def logits_and_score(model: nn.Module, batch: Batch, head: nn.Module | None) -> tuple[Tensor, Tensor]:
    """(b, k) logits to learn from and (b,) a score beside them: the loss, or the gradient norm of the head."""
    if head is None:
        logits = call(model, batch.x)
        return logits, cross_entropy(logits, batch.y).detach()
    features, logits = features_and_logits(model, batch.x, head)
    return logits, grad_norm()(Outputs(features.detach(), logits.detach().flatten(1), batch.y))
