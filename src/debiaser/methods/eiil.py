"""EIIL: environment inference for invariant learning (Creager, Jacobsen and Zemel, ICML 2021)."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from debiaser.errors import Misuse, known
from debiaser.io import torch_stream
from debiaser.learn.forward import Outputs
from debiaser.learn.groups import balancing_weights, consecutive, timed
from debiaser.learn.losses import IRM, GroupDRO, Objective, Supervised, check_number, check_share
from debiaser.learn.sampler import ScoreSampler
from debiaser.methods.task import Task

log = logging.getLogger("debiaser")
LEARNERS = ("groupdro", "irm")
UNDECIDED = 0.1  # a share of rows left where chance had put them that is worth a warning


@dataclass(frozen=True)
class EIIL:
    """Train a little, split the rows where this model suits one half worse, learn what holds in both.

    reference: length of the first training in times the recipe's epochs, short since a model that fits every row tells
    nothing; steps, lr, epsilon: Adam's, in the inference; learner: groupdro on environment x label, or irm; eta,
    adjustment: GroupDRO's step and size adjustment C; penalty, anneal: IRM's weight and the share of epochs before it;
    balanced: whether groups (irm: environments) are drawn equally often; augment: in training.
    """

    reference: float = 0.1
    steps: int = 10_000
    lr: float = 1e-3
    epsilon: float = 1e-8
    learner: str = "groupdro"
    eta: float = 0.01
    adjustment: float = 0.0
    balanced: bool = True
    penalty: float = 1e4
    anneal: float = 0.38
    augment: bool = True

    def __post_init__(self) -> None:
        for name in ("reference", "lr", "epsilon"):
            check_number(name, getattr(self, name), 0)
        for name in ("eta", "adjustment", "penalty"):
            check_number(name, getattr(self, name), 0, closed=True)
        check_share("anneal", self.anneal)
        if self.steps < 1:
            raise Misuse(f"steps must be at least 1, got {self.steps}")
        if self.learner not in LEARNERS:
            raise known("learner", self.learner, LEARNERS)

    def fit(self, task: Task) -> nn.Module:
        """The network that learnt from the inferred environments."""
        task = task if self.augment else task.plain()
        reference = task.fit(Supervised(task.new_model()), "reference", length=self.reference)  # stage 1
        slopes = task.scores(reference, slope)
        with timed(task.journal.seconds):
            environment = self.environments(slopes, task.seed)  # stage 2
        task.journal.note("environment", environment.to(torch.int8))
        fresh = task.new_model("second")
        if self.learner == "irm":
            groups = environment.numpy()
            robust: Objective = IRM(fresh, environment, self.penalty, self.anneal)
        else:
            groups = consecutive((task.train.y * 2 + environment).numpy())
            robust = GroupDRO(fresh, torch.from_numpy(groups), self.eta, self.adjustment)
        sampler = ScoreSampler(balancing_weights(groups), seed=task.seed) if self.balanced else None
        return task.fit(robust, "debiased", sampler=sampler)  # stage 3

    def environments(self, slopes: Tensor, seed: int) -> Tensor:
        """(n,) 1 for the rows that the reference suits worse (a higher mean slope), 0 for the others."""
        *_, membership = infer(slopes, self.steps, self.lr, self.epsilon, torch_stream(seed, "environments"))
        first = membership > 0.5
        if not first.any() or first.all() or not slopes.any():
            log.warning(
                "EIIL found one environment only: the reference model is equally wrong, or right, about all %d rows; "
                "change its length (reference=)",
                len(slopes),
            )
            return torch.zeros(len(slopes), dtype=torch.long)
        environment = (first if slopes[first].mean() >= slopes[~first].mean() else ~first).long()
        astray = float((environment != (slopes > 0)).float().mean())
        if astray > UNDECIDED:
            log.warning(
                "EIIL left %.0f%% of the rows where chance had put them: the reference model fits most rows too well; "
                "shorten it (reference=), raise steps or lower epsilon",
                100 * astray,
            )
        return environment


def slope(outputs: Outputs) -> Tensor:
    """(n,) how fast a row's cross-entropy grows with a scale of all logits, at 1; above 0 mostly where wrong."""
    return (outputs.residual * outputs.logits).sum(1)


def invariance_gap(membership: Tensor, slopes: Tensor) -> Tensor:
    """(D1^2 + D2^2) / 2 with D1 = mean(a d), D2 = mean((1 - a) d): what the inference makes large."""
    return ((membership * slopes).mean() ** 2 + ((1 - membership) * slopes).mean() ** 2) / 2


def infer(slopes: Tensor, steps: int, lr: float, epsilon: float, stream: torch.Generator) -> Iterator[Tensor]:
    """The soft membership (n,) in the first environment before each step of Adam, and after the last.

    Its gradient in the membership a_i is (D1 - D2) d_i / n: a step costs O(n), and no network is asked.
    """
    d = slopes.detach().cpu().double()
    free = nn.Parameter(torch.randn(len(d), generator=stream, dtype=torch.float64))
    optimizer = torch.optim.Adam([free], lr, eps=epsilon, maximize=True, fused=True)
    per_row, mean = d / len(d), d.mean()
    for _ in range(steps):
        membership = free.detach().sigmoid()
        yield membership
        difference = 2 * (membership @ per_row) - mean
        free.grad = membership.mul(1 - membership).mul_(per_row).mul_(difference)
        optimizer.step()
    yield free.detach().sigmoid()
