"""Losses, objectives over groups and averages per sample, each against its definition or autograd."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from debiaser import GCELoss
from debiaser.data.split import Batch
from debiaser.errors import Misuse
from debiaser.learn.losses import IRM, CrossEntropy, GroupDRO, SampleAverage, cross_entropy, gce, relative_difficulty

# GCE: its value by the paper's formula, its gradient as f^alpha times that of cross-entropy


def gradient(loss: torch.nn.Module, logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    leaf = logits.clone().requires_grad_()
    loss(leaf, y).sum().backward()
    return leaf.grad


@pytest.mark.parametrize("alpha", [0.1, 0.3, 0.7, 1.0])
@pytest.mark.parametrize("extra_q", [False, True])
def test_value_and_gradient(alpha: float, extra_q: bool) -> None:
    torch.manual_seed(0)
    logits, y = torch.randn(6, 4, dtype=torch.float64) * 3, torch.randint(0, 4, (6,))
    likelihood = logits.softmax(1)[torch.arange(6), y]
    factor = alpha if extra_q else 1
    loss = GCELoss(alpha, extra_q, reduction="none")
    assert torch.allclose(loss(logits, y), factor * (1 - likelihood**alpha) / alpha)
    expected = factor * likelihood[:, None] ** alpha * gradient(CrossEntropy(), logits, y)
    assert torch.allclose(gradient(loss, logits, y), expected)


def test_small_alpha_tends_to_cross_entropy_and_none_is_cross_entropy() -> None:
    logits, y = torch.randn(5, 3, dtype=torch.float64), torch.tensor([0, 1, 2, 0, 1])
    truth = F.cross_entropy(logits, y, reduction="none")
    assert torch.allclose(GCELoss(1e-6, reduction="none")(logits, y), truth, rtol=1e-4)
    assert torch.equal(gce(None)(logits, y), truth)


def test_reductions_and_extreme_logits() -> None:
    logits, y = torch.tensor([[200.0, -200.0], [-200.0, 200.0]], requires_grad=True), torch.tensor([0, 0])
    values = GCELoss(reduction="none")(logits, y)
    assert values.tolist() == pytest.approx([0, 1 / 0.7])
    assert GCELoss()(logits, y) == values.mean()
    assert GCELoss(reduction="sum")(logits, y) == values.sum()
    values.sum().backward()
    assert torch.isfinite(logits.grad).all()


@pytest.mark.parametrize("alpha", [0, -0.1, 1.1])
def test_alpha_outside_is_refused(alpha: float) -> None:
    with pytest.raises(Misuse, match="alpha"):
        GCELoss(alpha)
    with pytest.raises(Misuse, match="reduction"):
        GCELoss(reduction="median")


def test_labels_that_the_model_has_no_logit_for() -> None:
    with pytest.raises(Misuse, match=r"between 1 and 5, but the model gives 3 logits: .* from 0 to 2$"):
        GCELoss()(torch.randn(4, 3), torch.tensor([1, 2, 5, 1]))


# GroupDRO against its definition, IRM's penalty against autograd


def batches(n: int = 40, size: int = 8, seed: int = 0) -> list[Batch]:
    stream = torch.Generator().manual_seed(seed)
    x, y = torch.randn(n, 5, generator=stream), torch.randint(3, (n,), generator=stream)
    return [Batch(x[rows], y[rows], rows) for rows in torch.randperm(n, generator=stream).split(size)]


def linear() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(5, 3)


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


# The averages of samples against their definition, written as a plain loop

LABELS = torch.tensor([0, 0, 1, 1, 3, 3])  # class 2 has no rows at all


def visited(*visits: tuple[list[int], list[float]], ema: float = 0.7) -> SampleAverage:
    average = SampleAverage(LABELS, ema)
    for rows, values in visits:
        average.update(torch.tensor(rows), torch.tensor(values))
    return average


def test_a_value_of_zero_counts_as_a_visit() -> None:
    average = visited(([0], [0.0]), ([0], [1.0]))
    assert average.average[0].item() == pytest.approx(0.3)


@pytest.mark.parametrize("ema", [0.0, 0.7, 0.99])
def test_many_visits_follow_the_definition(ema: float) -> None:
    torch.manual_seed(0)
    labels = torch.randint(0, 7, (50,))
    average, kept = SampleAverage(labels, ema), [0.0] * 50
    seen = [0] * 50
    for _ in range(30):
        rows = torch.randperm(50)[:13]
        values = torch.rand(13) * 10
        average.update(rows, values)
        for row, value in zip(rows.tolist(), values.tolist(), strict=True):
            kept[row] = ema * kept[row] + (1 - ema * seen[row]) * value
            seen[row] = 1
        largest = [max((m for m, y in zip(kept, labels.tolist(), strict=True) if y == c), default=0) for c in range(7)]
        expected = torch.tensor([kept[row] / largest[int(labels[row])] for row in rows.tolist()])
        torch.testing.assert_close(average.relative(rows), expected)
    torch.testing.assert_close(average.average, torch.tensor(kept))


def test_a_class_that_is_fitted_perfectly_gives_zero_and_no_nan() -> None:
    nothing, something = visited(([0, 1], [0.0, 0.0])), visited(([0, 1], [1.0, 0.5]))
    rows = torch.tensor([0, 1])
    assert nothing.relative(rows).tolist() == [0, 0]
    assert relative_difficulty(nothing, nothing, rows).tolist() == [0, 0]
    assert relative_difficulty(nothing, something, rows).tolist() == [0, 0]
    assert relative_difficulty(something, nothing, rows).tolist() == pytest.approx([1, 1])


def test_no_gradient_is_kept() -> None:
    average, value = SampleAverage(LABELS), torch.tensor([2.0], requires_grad=True)
    average.update(torch.tensor([0]), value * 3)
    assert not average.average.requires_grad and not average.relative().requires_grad
