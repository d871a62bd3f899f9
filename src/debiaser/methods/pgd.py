"""PGD: per-sample gradient debiasing (Ahn, Kim and Yun, ICLR 2023)."""

import math
from dataclasses import dataclass

from torch import Tensor, nn

from debiaser.errors import Misuse, known
from debiaser.learn.gradient_norms import Score, check_norm, grad_norm, loss_score, norms_of, residual_norm
from debiaser.learn.losses import Supervised, check_alpha, gce
from debiaser.learn.sampler import ScoreSampler
from debiaser.methods.task import Task, clone

FLOOR = 1e-8  # no probability is exactly 0
CHOICES = {
    "score": ("gradient", "loss", "residual"),
    "use": ("resample", "reweight"),
    "score_on": ("augmented", "clean"),
    "parameters": ("all", "head"),
}


@dataclass(frozen=True)
class PGD:
    """Train a biased model, score every row by its gradient norm, train on with rows drawn by score.

    alpha: GCE's exponent, None for cross-entropy; extra_q: the released code's factor; p, power, bias: which norm of
    the last layer's gradient; score: gradient, loss, or residual (the norm of softmax - onehot alone); use: resample or
    reweight; joint: both models side by side, scores renewed every epoch; augment: in training; score_on: clean or
    augmented pictures; inherit: the debiased model starts from the biased one; parameters: the gradient of the head
    alone (one forward pass) or of all parameters (a backward pass); rate: times the recipe's learning rate in the
    debiased stage.
    """

    alpha: float | None = 0.7
    extra_q: bool = False
    p: float = 2
    power: float = 1
    bias: bool = False
    score: str = "gradient"
    use: str = "resample"
    joint: bool = False
    augment: bool = True
    score_on: str = "clean"
    inherit: bool = True
    parameters: str = "head"
    rate: float = 1

    def __post_init__(self) -> None:
        if self.alpha is not None:
            check_alpha(self.alpha)
        check_norm(self.p, self.power)
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise known(name, getattr(self, name), choices)
        if self.joint and self.use == "reweight":
            raise Misuse("joint=true draws rows by score; it does not go with use=reweight")
        if self.parameters == "all" and (self.score != "gradient" or self.bias):
            raise Misuse("parameters=all is the gradient of every parameter; leave score and bias as they are")
        if not 0 < self.rate < math.inf:
            raise Misuse(f"rate must be a finite number above 0, got {self.rate:g}")

    def fit(self, task: Task) -> nn.Module:
        """The debiased network."""
        task = task if self.augment else task.plain()
        if self.joint:
            return self.fit_jointly(task)
        biased = task.fit(Supervised(task.new_model(), gce(self.alpha, self.extra_q)), "biased")  # step 1
        scores = self.scores(task, biased)  # step 2: one forward pass
        start = clone(biased) if self.inherit else task.new_model("debiased")
        if self.use == "reweight":
            return task.fit(Supervised(start, weights=scores / scores.mean()), "debiased", rate=self.rate)
        sampler = ScoreSampler(scores, seed=task.seed)
        return task.fit(Supervised(start), "debiased", sampler=sampler, rate=self.rate)  # step 3

    def fit_jointly(self, task: Task) -> nn.Module:
        """The single-stage variant: two networks with a start of their own, scores renewed after every epoch."""
        debiased: nn.Module = task.new_model("debiased")
        for epoch in range(1, task.epochs("debiased") + 1):
            loss = gce(self.alpha, self.extra_q)
            biased = task.fit(Supervised(task.new_model(), loss), "biased", until=epoch, owner=repr(self))
            sampler = ScoreSampler(self.scores(task, biased), seed=task.seed)
            fresh = Supervised(task.new_model("debiased"))
            debiased = task.fit(fresh, "debiased", sampler, until=epoch, owner=repr(self), rate=self.rate)
        return debiased

    def scores(self, task: Task, biased: nn.Module) -> Tensor:
        """(n,) how strongly each row goes against the biased model."""
        augmented = self.score_on == "augmented"
        if self.parameters == "all":
            scores = task.measured(lambda rows: norms_of(biased, rows, self.p, self.power, parameters="all"), augmented)
        else:
            scores = task.scores(biased, self.score_function(), augmented)
        scores = scores.clamp_min(FLOOR)
        task.journal.note("score", scores)
        return scores

    def score_function(self) -> Score:
        """The score of this variant."""
        if self.score == "loss":
            return loss_score
        return (
            residual_norm(self.p, self.power) if self.score == "residual" else grad_norm(self.p, self.power, self.bias)
        )
