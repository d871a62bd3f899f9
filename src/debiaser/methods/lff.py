"""LfF: learning from failure (Nam, Cha, Ahn, Lee and Shin, NeurIPS 2020)."""

from dataclasses import dataclass

from torch import Tensor, nn

from debiaser.data.split import Batch
from debiaser.errors import Misuse, known
from debiaser.learn.forward import Outputs, call, features_and_logits, last_layer
from debiaser.learn.gradient_norms import grad_norm
from debiaser.learn.losses import Objective, RowAverage, check_alpha, check_ema, cross_entropy, gce, relative_difficulty
from debiaser.methods.task import Task

SCORES = ("gradient", "loss")
Heads = tuple[nn.Module, nn.Module]


@dataclass(frozen=True)
class LfF:
    """Two networks side by side: one takes the shortcut, the other learns most from the rows where that one fails.

    alpha: exponent of the biased network's GCE, None for cross-entropy; extra_q: the authors' factor; ema: share of the
    past in each row's average; score: what is averaged, loss or gradient norm of the last layer; relative: a row weighs
    what the biased network's average is in the sum of both, or (false) that average alone; length: times as long as
    other one-stage methods; augment: in training. Both networks train in parallel on the same rows, as in the
    authors' code, so a row counts once as a sample seen although it passes through two networks.
    """

    alpha: float | None = 0.7
    extra_q: bool = True
    ema: float = 0.7
    score: str = "loss"
    length: float = 1
    augment: bool = True
    relative: bool = True

    def __post_init__(self) -> None:
        if self.alpha is not None:
            check_alpha(self.alpha)
        check_ema(self.ema)
        if self.score not in SCORES:
            raise known("score", self.score, SCORES)
        if not self.length > 0:
            raise Misuse(f"length must be above 0, got {self.length:g}")

    def fit(self, task: Task) -> nn.Module:
        """The debiased network."""
        task = task if self.augment else task.plain()
        biased, debiased = task.new_model(), task.new_model("debiased")
        heads = find_heads(task, biased, debiased) if self.score == "gradient" else None
        objective = Failure(
            biased, debiased, task.train.y, gce(self.alpha, self.extra_q), self.ema, heads, self.relative
        )
        task.fit(objective, "lff", length=self.length * task.recipe.single_stage)
        task.journal.note("weight", objective.weights())
        return objective.model


class Failure(Objective):
    """mean GCE(f_b) + mean w ce(f_d), w = u_b / (u_b + u_d) from each network's average score of a row; or w = u_b.

    The score is the loss or, where the networks' last layers are given, the norm of the gradient there.
    """

    def __init__(
        self,
        biased: nn.Module,
        debiased: nn.Module,
        labels: Tensor,
        loss: nn.Module,
        ema: float = 0.7,
        heads: Heads | None = None,
        relative: bool = True,
    ) -> None:
        super().__init__()
        self.model, self.biased, self.loss = debiased, biased, loss
        self.biased_scores, self.debiased_scores = RowAverage(labels, ema), RowAverage(labels, ema)
        self.heads = heads  # a tuple, so that the layers are not registered a second time
        self.relative = relative

    def forward(self, batch: Batch) -> Tensor:
        biased_head, debiased_head = self.heads or (None, None)
        biased, biased_score = logits_and_score(self.biased, batch, biased_head)
        debiased, debiased_score = logits_and_score(self.model, batch, debiased_head)
        self.biased_scores.update(batch.rows, biased_score)  # first update, then read
        self.debiased_scores.update(batch.rows, debiased_score)
        weighted = self.weights(batch.rows) * cross_entropy(debiased, batch.y)
        loss: Tensor = self.loss(biased, batch.y).mean() + weighted.mean()
        return loss

    def weights(self, rows: Tensor | slice = slice(None)) -> Tensor:
        """(b,) the weight that these rows (without: all training rows) have by now."""
        if self.relative:
            return relative_difficulty(self.biased_scores, self.debiased_scores, rows)
        return self.biased_scores.relative(rows)

    def extra_repr(self) -> str:
        return f"score={'gradient' if self.heads else 'loss'}" + ("" if self.relative else ", relative=False")


def logits_and_score(model: nn.Module, batch: Batch, head: nn.Module | None) -> tuple[Tensor, Tensor]:
    """(b, k) logits to learn from and (b,) a score beside them: the loss, or the gradient norm of the head."""
    if head is None:
        logits = call(model, batch.x)
        return logits, cross_entropy(logits, batch.y).detach()
    features, logits = features_and_logits(model, batch.x, head)
    return logits, grad_norm()(Outputs(features.detach(), logits.detach().flatten(1), batch.y))


def find_heads(task: Task, biased: nn.Module, debiased: nn.Module) -> Heads:
    """The last layers of both networks."""
    batch = next(task.train.batches(2)).to(task.device)
    return last_layer(biased.to(task.device), batch), last_layer(debiased.to(task.device), batch)
