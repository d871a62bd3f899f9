"""PGD: per-sample gradient debiasing (Ahn, Kim and Yun, ICLR 2023)."""

import copy
from dataclasses import dataclass

from torch import Tensor, nn

from debiaser.errors import Misuse
from debiaser.learn.gradient_norms import check_norm, loss_score, norms_of, residual_norm
from debiaser.learn.losses import Supervised, gce
from debiaser.learn.sampler import ScoreSampler
from debiaser.methods.task import Method, Task, bounded, choice


@dataclass(frozen=True)
class PGD(Method):
    """Train a biased model, score samples by their gradient norm, then continue training on samples drawn by score.

    Args:
        alpha: exponent of GCE; None for cross-entropy.
        extra_q: multiply GCE by alpha, as the released code does.
        p: the norm of the gradient, as in `gradient_norms`.
        power: power that the norm is raised to.
        bias: include the gradient of the last layer's bias.
        score: gradient norm, loss, or residual (the norm of softmax - onehot alone).
        use: draw samples in proportion to their scores, or weight their losses by them.
        joint: train both models in parallel and renew the scores after every epoch.
        augment: augment the training data.
        score_on: score clean or augmented images.
        inherit: start the debiased model from the biased one.
        parameters: gradient of the last layer (one forward pass) or of all parameters (also a backward pass).
        rate: learning rate of the debiased stage, as a multiple of the recipe's.

    >>> result = debias(model, dataset, PGD(p=1))
    """

    alpha: float | None = bounded(0.7, above=0, at_most=1)
    extra_q: bool = False
    p: float = 2
    power: float = 1
    bias: bool = False
    score: str = choice("gradient", "loss", "residual")
    use: str = choice("resample", "reweight")
    joint: bool = False
    augment: bool = True
    score_on: str = choice("clean", "augmented")
    inherit: bool = True
    parameters: str = choice("head", "all")
    rate: float = bounded(1, above=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_norm(self.p, self.power)
        if self.joint and self.use == "reweight":
            raise Misuse("joint=true draws samples by score; it does not go with use=reweight")
        if self.parameters == "all" and (self.score != "gradient" or self.bias):
            raise Misuse("parameters=all is the gradient of every parameter; leave score and bias as they are")

    def fit(self, task: Task) -> nn.Module:
        """Return the debiased network."""
        if self.joint:
            return self.fit_jointly(task)
        biased = task.fit(Supervised(task.new_model(), gce(self.alpha, self.extra_q)), "biased")  # step 1
        scores = self.scores(task, biased)  # step 2: one forward pass
        start = copy.deepcopy(biased) if self.inherit else task.new_model("debiased")
        if self.use == "reweight":
            return task.fit(Supervised(start, weights=scores / scores.mean()), "debiased", rate=self.rate)
        return task.fit(Supervised(start), "debiased", ScoreSampler(scores, seed=task.seed), rate=self.rate)  # step 3

    def fit_jointly(self, task: Task) -> nn.Module:
        """Train both networks in parallel, from different weights, and renew the scores after every epoch."""
        for epoch in range(1, task.recipe.of_stage("debiased").epochs + 1):
            loss = gce(self.alpha, self.extra_q)
            biased = task.fit(Supervised(task.new_model(), loss), "biased", until=epoch, owner=repr(self))
            sampler, fresh = ScoreSampler(self.scores(task, biased), seed=task.seed), task.new_model("debiased")
            model = task.fit(Supervised(fresh), "debiased", sampler, until=epoch, owner=repr(self), rate=self.rate)
        return model

    def scores(self, task: Task, biased: nn.Module) -> Tensor:
        """Return how strongly each sample (n,) goes against the biased model."""
        augmented, norm = self.score_on == "augmented", (self.p, self.power)
        if self.score == "gradient":
            scores = task.measured(lambda each: norms_of(biased, each, *norm, self.bias, self.parameters), augmented)
        else:
            scores = task.scores(biased, loss_score if self.score == "loss" else residual_norm(*norm), augmented)
        scores = scores.clamp_min(1e-8)  # no probability is exactly 0
        task.journal.note("score", scores)
        return scores
