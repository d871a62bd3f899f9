"""GroupDRO against its definition, IRM's penalty against autograd."""

import math

import pytest
import torch
from torch import nn

from debiaser.data.split import Batch
from debiaser.errors import Misuse
from debiaser.learn.losses import IRM, GroupDRO, cross_entropy, group_means, scale_slopes


def batches(n: int = 40, size: int = 8, seed: int = 0) -> list[Batch]:
    stream = torch.Generator().manual_seed(seed)
    x, y = torch.randn(n, 5, generator=stream), torch.randint(3, (n,), generator=stream)
    return [Batch(x[rows], y[rows], rows) for rows in torch.randperm(n, generator=stream).split(size)]


def linear() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(5, 3)


def test_group_means():
    means, present = group_means(torch.tensor([1.0, 3.0, 5.0]), torch.tensor([2, 2, 0]), 4)
    assert means.tolist() == [5, 0, 2, 0]
    assert present.tolist() == [True, False, True, False]


@pytest.mark.parametrize("adjustment", [0.0, 3.0])
def test_groupdro_is_its_formula(adjustment):
    """An independent writing with plain weights and loops; groups of 30, 9 and 1 rows are often absent from a batch."""
    groups = torch.tensor([0] * 30 + [1] * 9 + [2])
    objective, eta, sizes = GroupDRO(linear(), groups, eta=0.3, adjustment=adjustment).train(), 0.3, [30, 9, 1]
    weights = [1 / 3] * 3
    for batch in batches():
        losses = [[], [], []]
        for loss, row in zip(cross_entropy(objective.model(batch.x), batch.y).tolist(), batch.rows, strict=True):
            losses[groups[row]].append(loss)
        means = [sum(each) / len(each) if each else 0.0 for each in losses]
        weights = [
            weight * math.exp(eta * (mean + adjustment / math.sqrt(size)))
            for weight, mean, size in zip(weights, means, sizes, strict=True)
        ]
        weights = [weight / sum(weights) for weight in weights]
        expected = sum(weight * mean for weight, mean in zip(weights, means, strict=True))
        assert objective(batch).item() == pytest.approx(expected, rel=1e-5)
        assert objective.log_weights.exp().tolist() == pytest.approx(weights, rel=1e-5)


def test_groupdro_weighs_the_gradient_by_group():
    groups, batch = torch.arange(40) % 2, batches()[0]
    objective = GroupDRO(linear(), groups, eta=1.0).train()
    objective(batch).backward()
    found = objective.model.weight.grad.clone()
    objective.model.zero_grad()
    losses = cross_entropy(objective.model(batch.x), batch.y)
    parts = [losses[groups[batch.rows] == group].mean() for group in (0, 1)]
    (objective.log_weights.exp() @ torch.stack(parts)).backward()
    assert torch.allclose(found, objective.model.weight.grad, atol=1e-6)


def test_groupdro_state_and_edges():
    objective = GroupDRO(linear(), torch.tensor([0, 0, 3, 3] * 10), eta=0.5)
    assert objective.log_weights.exp().tolist() == [0.5, 0, 0, 0.5], "groups 1 and 2 have no row and no weight"
    objective.train()(batches()[0])
    moved = objective.log_weights.clone()
    assert moved.exp().sum() == pytest.approx(1)
    assert moved[1] == -torch.inf
    objective.eval()(batches()[1])
    assert torch.equal(moved, objective.log_weights), "looking changes nothing"
    assert {"groups", "log_weights", "margins"} <= set(objective.state_dict())
    assert "eta=0.5" in repr(objective), "the key of a stage is made of it"
    for wrong in ({"eta": -1.0}, {"eta": math.nan}, {"adjustment": -1.0}):
        with pytest.raises(Misuse):
            GroupDRO(linear(), torch.zeros(4, dtype=torch.long), **wrong)


def test_scale_slopes_are_the_derivative():
    batch = batches()[0]
    logits = 5 * linear()(batch.x)
    scale = torch.ones(len(batch), requires_grad=True)
    cross_entropy(scale[:, None] * logits, batch.y).sum().backward()
    assert torch.allclose(scale_slopes(logits, batch.y), scale.grad, atol=1e-5)


@pytest.mark.parametrize("strength", [1.0, 100.0])
def test_irm_is_its_definition(strength):
    environments, batch = torch.arange(40) % 2, batches()[0]
    objective = IRM(linear(), environments, penalty=100.0, anneal=0.5)
    objective.begin(0 if strength == 1 else 5, 10)
    loss = objective(batch)
    loss.backward()
    found = objective.model.weight.grad.clone()
    objective.model.zero_grad()
    terms = []
    for environment in (0, 1):
        rows = environments[batch.rows] == environment
        scale = torch.ones((), requires_grad=True)
        risk = cross_entropy(objective.model(batch.x[rows]) * scale, batch.y[rows]).mean()
        (slope,) = torch.autograd.grad(risk, [scale], create_graph=True)
        terms.append(risk + strength * slope**2)
    expected = torch.stack(terms).mean() / strength
    expected.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    assert torch.allclose(found, objective.model.weight.grad, atol=1e-6)


def test_irm_anneals_by_epochs():
    objective = IRM(linear(), torch.zeros(40, dtype=torch.long), penalty=50.0, anneal=0.38)
    strengths = []
    for epoch in range(10):
        objective.begin(epoch, 10)
        strengths.append(objective.strength)
    assert strengths == [1.0] * 4 + [50.0] * 6
    objective.begin(0, 1)
    assert objective.strength == 50.0, "a stage of one epoch has the full penalty"
    assert "penalty=50.0" in repr(objective)


def test_irm_leaves_out_an_absent_environment():
    environments, batch = torch.zeros(40, dtype=torch.long), batches()[0]
    environments[next(row for row in range(40) if row not in batch.rows)] = 1
    one, two = IRM(linear(), torch.zeros(40, dtype=torch.long)), IRM(linear(), environments)
    assert two.count == 2
    assert one(batch).item() == pytest.approx(two(batch).item(), rel=1e-6)
    for wrong in ({"penalty": -1.0}, {"anneal": 1.5}):
        with pytest.raises(Misuse):
            IRM(linear(), environments, **wrong)
