"""LfF against its definition: gradients from an independent formula, scores from autograd, resumed bit for bit."""

import dataclasses
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from debiaser import LfF
from debiaser.data.split import Batch, Split
from debiaser.methods.lff import Failure
from debiaser.methods.task import Task

CLASSES, ROWS, BATCHES = 4, 12, ((0, 1, 2, 3, 4, 5), (6, 7, 8, 9), (5, 0, 7, 11), (2, 10))


def network(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, CLASSES)).double()


def data() -> Split:
    torch.manual_seed(7)
    return Split.of(torch.randn(ROWS, 5, dtype=torch.float64), torch.randint(0, CLASSES, (ROWS,)))


def objective(split: Split, gradient: bool = False, relative: bool = True) -> Failure:
    rule = LfF(score="gradient" if gradient else "loss", relative=relative)
    return Failure(network(1), network(2), split, rule).double()


def scores_by_definition(model: nn.Module, batch: Batch, gradient: bool) -> list[float]:
    """The loss of each row, or the norm of its gradient in the last layer's weight: one backward pass per row."""
    found = []
    for x, y in zip(batch.x, batch.y, strict=True):
        loss = -model(x[None]).softmax(1)[0, y].log()
        weight = list(model.parameters())[-2]
        (slope,) = torch.autograd.grad(loss, weight)
        found.append(float(slope.norm()) if gradient else loss.item())
    return found


class ByHand:
    """The authors' averages, as lists."""

    def __init__(self, labels: Tensor) -> None:
        self.labels, self.mean = labels.tolist(), {}

    def relative(self, batch: Batch, scores: list[float]) -> Tensor:
        for row, score in zip(batch.rows.tolist(), scores, strict=True):
            self.mean[row] = 0.7 * self.mean[row] + 0.3 * score if row in self.mean else score
        largest = {y: max(m for row, m in self.mean.items() if self.labels[row] == y) for y in set(batch.y.tolist())}
        pairs = zip(batch.rows.tolist(), batch.y.tolist(), strict=True)
        return torch.tensor([self.mean[row] / largest[y] for row, y in pairs], dtype=torch.float64)


@pytest.mark.parametrize(("gradient", "relative"), [(False, True), (True, True), (False, False), (True, False)])
def test_both_networks_get_the_gradients_of_the_definition(gradient: bool, relative: bool) -> None:
    split = data()
    found = objective(split, gradient, relative)
    biased, debiased = ByHand(split.y), ByHand(split.y)
    for rows in BATCHES:
        batch = split.batch(torch.tensor(rows))
        u_b = biased.relative(batch, scores_by_definition(found.biased, batch, gradient))
        u_d = debiased.relative(batch, scores_by_definition(found.model, batch, gradient))
        weight = u_b / (u_b + u_d + 1e-8) if relative else u_b
        f = found.biased(batch.x).softmax(1)[range(len(batch)), batch.y]
        loss_b = (0.7 * f.detach() ** 0.7 * -f.log()).mean()  # the authors' form of GCE, which has this gradient
        g = found.model(batch.x).softmax(1)[range(len(batch)), batch.y]
        expected = [
            *torch.autograd.grad((weight * -g.log()).mean(), list(found.model.parameters())),
            *torch.autograd.grad(loss_b, list(found.biased.parameters())),
        ]
        parameters = [*found.model.parameters(), *found.biased.parameters()]
        got = torch.autograd.grad(found(batch), parameters)
        for mine, theirs in zip(got, expected, strict=True):
            torch.testing.assert_close(mine, theirs)
        with torch.no_grad():  # an update, so that later visits see other networks
            for parameter, slope in zip(parameters, got, strict=True):
                parameter -= 0.5 * slope


def test_every_field_is_in_the_representation_that_keys_the_stage() -> None:
    assert all(f"{field.name}=" in repr(objective(data())) for field in dataclasses.fields(LfF))


def test_the_networks_start_differently_and_independently(tiny_task: Callable[..., Task]) -> None:
    seeds: list[int] = []
    task = tiny_task()
    make = task.make_model
    task.make_model = lambda seed: seeds.append(seed) or make(seed)
    LfF().fit(task)
    assert len(set(seeds)) == 2
