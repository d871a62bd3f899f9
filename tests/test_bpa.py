"""BPA: weights against an independent writing, clusters within classes, state that survives a kill."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from debiaser.data.split import Batch
from debiaser.learn.forward import Outputs
from debiaser.learn.losses import cross_entropy
from debiaser.methods.bpa import BPA, ClusterWeighted, class_clusters

CLUSTERS = torch.tensor([0] * 24 + [1] * 6 + [2] * 2)  # sizes 24, 6, 2


def new_objective(rule: BPA | None = None) -> ClusterWeighted:
    torch.manual_seed(0)
    return ClusterWeighted(nn.Linear(4, 3), CLUSTERS, rule or BPA()).train()


def batches(epoch: int = 0) -> list[Batch]:
    stream = torch.Generator().manual_seed(7)
    x, y = torch.randn(32, 4, generator=stream), torch.randint(3, (32,), generator=stream)
    stream = torch.Generator().manual_seed(epoch)
    return [Batch(x[rows], y[rows], rows) for rows in torch.randperm(32, generator=stream).split(8)]


@pytest.mark.parametrize("history", [False, True])
@pytest.mark.parametrize("average", ["expavg", "avg"])
def test_weights_are_their_formula(average, history):
    """Three epochs beside plain lists and loops, cluster losses renewed every third step and after each epoch."""
    objective = new_objective(BPA(average=average, history=history, every=3))
    losses, weights, means = [None] * 32, [1.0] * 32, [0.0] * 3

    def renew() -> None:
        for cluster in range(3):
            own = [loss for loss, where in zip(losses, CLUSTERS, strict=True) if where == cluster and loss is not None]
            means[cluster] = sum(own) / len(own) if own else means[cluster]

    for epoch in range(3):
        objective.begin(epoch, 3)
        for number, batch in enumerate(batches(epoch), 1):
            rows, where = batch.rows.tolist(), CLUSTERS[batch.rows].tolist()
            raw = [32 / [24, 6, 2][cluster] for cluster in where]
            if None not in losses:
                raw = [value * means[cluster] / sum(means) for value, cluster in zip(raw, where, strict=True)]
            raw = [value / (sum(raw) / len(raw)) for value in raw]
            last = [weights[row] for row in rows] if history else raw
            if average == "expavg":
                new = [old * math.exp(0.05 * value) for old, value in zip(last, raw, strict=True)]
            else:
                new = [0.7 * old + 0.3 * value for old, value in zip(last, raw, strict=True)]
            new = [value / (sum(new) / len(new)) for value in new]
            each = cross_entropy(objective.model(batch.x), batch.y).tolist()
            for row, weight, loss in zip(rows, new, each, strict=True):
                weights[row], losses[row] = weight, loss
            if number % 3 == 0:
                renew()
            expected = sum(weight * loss for weight, loss in zip(new, each, strict=True)) / len(each)
            assert objective(batch).item() == pytest.approx(expected, rel=1e-4)
            with torch.no_grad():
                objective.model.weight.mul_(1.1)  # losses that move
        renew()
    assert objective.weights.tolist() == pytest.approx(weights, rel=1e-4)


def test_the_weight_has_no_gradient_and_looking_changes_nothing():
    objective, batch = new_objective(), batches()[0]
    objective(batch).backward()
    found, before = objective.model.weight.grad.clone(), objective.weights.clone()
    objective.model.zero_grad()
    (cross_entropy(objective.model(batch.x), batch.y) * before[batch.rows]).mean().backward()
    assert torch.allclose(found, objective.model.weight.grad)
    objective.eval()(batches()[1])
    assert torch.equal(before, objective.weights)


def test_losses_of_zero_and_endless_compounding_stay_finite():
    objective = new_objective(BPA(history=True, step=50))
    for epoch in range(30):
        objective.begin(epoch, 30)
        for batch in batches(epoch):
            assert math.isfinite(objective(batch).item())
    assert (objective.weights > 0).all()
    objective.losses.zero_()
    objective.renew()
    assert torch.isfinite(objective.next_weights(torch.arange(32))).all()


def test_clusters_lie_within_classes():
    stream = torch.Generator().manual_seed(0)
    labels = torch.tensor([0] * 50 + [2] * 50 + [5] * 3)
    outputs = Outputs(torch.randn(103, 6, generator=stream), torch.randn(103, 6, generator=stream), labels)
    found = class_clusters(outputs, 8, seed=0)
    assert found.max() + 1 == 8 + 8 + 3, "a class of three rows has three clusters"
    assert len(set(zip(found.tolist(), labels.tolist(), strict=True))) == found.max() + 1
    assert np.array_equal(found, class_clusters(outputs, 8, seed=0))
    assert not np.array_equal(found, class_clusters(outputs, 8, seed=1))
