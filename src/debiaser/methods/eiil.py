"""EIIL: environment inference for invariant learning (Creager, Jacobsen and Zemel, ICML 2021)."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from debiaser.io import log, torch_stream
from debiaser.learn.gradient_norms import scale_slope
from debiaser.learn.groups import balancing_weights, consecutive
from debiaser.learn.losses import IRM, GroupDRO, Supervised
from debiaser.learn.sampler import ScoreSampler
from debiaser.methods.task import Method, Task, bounded, choice


@dataclass(frozen=True)
class EIIL(Method):
    """Train briefly, split the samples into two environments that the model fits unequally well, then learn what holds
    in both.

    Args:
        reference: length of the first stage, as a multiple of the recipe's epochs; a model that fits every sample
            cannot tell environments apart.
        steps: steps of Adam in the inference of environments.
        lr: learning rate of these steps.
        epsilon: epsilon of Adam in these steps.
        learner: "groupdro" on environment x label, or "irm" on environments.
        eta: step size of GroupDRO's group weights.
        adjustment: C of GroupDRO's size adjustment.
        balanced: draw the groups equally often.
        penalty: weight of IRM's penalty.
        anneal: share of the epochs, at the start, in which the penalty has weight 1.
        augment: augment the training data.

    >>> result = debias(model, dataset, EIIL(steps=100))
    """

    reference: float = bounded(0.1, above=0)
    steps: int = bounded(10_000, at_least=1)
    lr: float = bounded(1e-3, above=0)
    epsilon: float = bounded(1e-8, above=0)
    learner: str = choice("groupdro", "irm")
    eta: float = bounded(0.01, at_least=0)
    adjustment: float = bounded(0.0, at_least=0)
    balanced: bool = True
    penalty: float = bounded(1e4, at_least=0)
    anneal: float = bounded(0.38, at_least=0, at_most=1)
    augment: bool = True

    def fit(self, task: Task) -> nn.Module:
        """Return the network trained on the inferred environments."""
        reference = task.fit(Supervised(task.new_model()), "reference", length=self.reference)  # stage 1
        slopes = task.scores(reference, scale_slope)
        with task.journal.timed("groups"):
            environment = self.environments(slopes, task.seed)  # stage 2
        task.journal.note("environment", environment.to(torch.int8))
        fresh, dro = task.new_model("second"), self.learner == "groupdro"  # on environment x label; IRM on environments
        groups = torch.from_numpy(consecutive((task.train.y * 2 * dro + environment).numpy()))
        robust = (
            GroupDRO(fresh, groups, self.eta, self.adjustment) if dro else IRM(fresh, groups, self.penalty, self.anneal)
        )
        sampler = ScoreSampler(balancing_weights(groups.numpy()), seed=task.seed) if self.balanced else None
        return task.fit(robust, "debiased", sampler)  # stage 3

    def environments(self, slopes: Tensor, seed: int) -> Tensor:
        """Return 1 for the samples (n,) that the first model fits worse (higher mean slope), 0 for the others."""
        first = infer(slopes, self.steps, self.lr, self.epsilon, torch_stream(seed, "environments")) > 0.5
        if not first.any() or first.all() or not slopes.any():
            log.warning("EIIL found one environment only: the reference suits all samples alike; change reference=")
            return torch.zeros(len(slopes), dtype=torch.long)
        environment = (first if slopes[first].mean() >= slopes[~first].mean() else ~first).long()
        astray = float((environment != (slopes > 0)).float().mean())
        if astray > 0.1:
            log.warning(
                "EIIL left %.0f%% of samples where chance had put them: lower reference= or epsilon=", 100 * astray
            )
        return environment


def infer(slopes: Tensor, steps: int, lr: float, epsilon: float, stream: torch.Generator) -> Tensor:
    """(n,) the soft membership a in the first environment, where Adam leaves it that raises (D1^2 + D2^2) / 2.

    With slopes d: D1 = mean(a d), D2 = mean((1 - a) d). The gradient in a_i is (D1 - D2) d_i / n: O(n), no network.
    """
    d = slopes.double()
    free = nn.Parameter(torch.randn(len(d), generator=stream, dtype=torch.float64))
    optimizer = torch.optim.Adam([free], lr, eps=epsilon, maximize=True, fused=True)
    per_sample, mean = d / len(d), d.mean()
    for _ in range(steps):
        membership = free.detach().sigmoid()
        difference = 2 * (membership @ per_sample) - mean
        free.grad = membership.mul(1 - membership).mul_(per_sample).mul_(difference)
        optimizer.step()
    return free.detach().sigmoid()
