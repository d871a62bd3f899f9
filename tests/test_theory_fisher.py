"""The Fisher information against its definition, and the trace of its inverse against dense linear algebra."""

from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from debiaser.data.split import Batch
from debiaser.errors import Misuse, Problem
from debiaser.learn.forward import Outputs
from debiaser.paper.theory import fisher
from debiaser.paper.theory.fisher import (
    Fisher,
    damped_sweep,
    head_fisher,
    inverse_trace,
    network_fisher,
)

ROWS, WIDTH, CLASSES = 40, 5, 4


def drawn(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    stream = torch.Generator().manual_seed(seed)
    features = torch.randn(ROWS, WIDTH, dtype=torch.float64, generator=stream)
    logits = torch.randn(ROWS, CLASSES, dtype=torch.float64, generator=stream)
    labels = torch.randint(CLASSES, (ROWS,), generator=stream)
    return features, logits, labels, torch.rand(ROWS, dtype=torch.float64, generator=stream)


def by_definition(model: nn.Module, x: torch.Tensor, y: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """sum_i h_i g_i g_i^T, one backward pass per sample."""
    total = 0
    for i in range(len(y)):
        grads = torch.autograd.grad(cross_entropy(model(x[i : i + 1]), y[i : i + 1]), list(model.parameters()))
        flat = torch.cat([each.flatten() for each in grads]).double()
        total = total + weights[i] / weights.sum() * torch.outer(flat, flat)
    return total


def same_spectrum(found: Fisher, dense: torch.Tensor) -> None:
    assert found.parameters == len(dense)
    zeros = found.eigenvalues.new_zeros(found.parameters - len(found.matrix))
    expected = torch.linalg.eigvalsh(dense)
    assert torch.allclose(torch.cat([zeros, found.eigenvalues]).sort().values, expected, atol=1e-12)


@pytest.mark.parametrize("bias", [False, True])
def test_a_head_is_what_autograd_finds(bias: bool) -> None:
    features, _, labels, weights = drawn()
    head = nn.Linear(WIDTH, CLASSES, bias=bias).double()
    dense = by_definition(head, features, labels, weights)
    found = head_fisher(Outputs(features, head(features).detach(), labels), weights, bias)
    assert found.parameters == CLASSES * (WIDTH + bias)
    assert found.rank == len(found.matrix) == (CLASSES - 1) * (WIDTH + bias)
    same_spectrum(found, dense)
    if not bias:  # the matrix itself, not only its eigenvalues: class by class in the basis of the contrasts
        basis = torch.kron(fisher.contrasts(CLASSES), torch.eye(WIDTH, dtype=torch.float64))
        assert torch.allclose(basis @ found.matrix @ basis.T, dense, atol=1e-14)


def test_batches_pieces_and_probabilities_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    features, logits, labels, weights = drawn(1)
    whole = head_fisher(Outputs(features, logits, labels), weights)
    parts = [Outputs(features[at], logits[at], labels[at]) for at in torch.arange(ROWS).split(7)]
    assert torch.allclose(head_fisher(parts, 3 * weights).matrix, whole.matrix, atol=1e-15)
    given = Outputs(features, logits.softmax(1).log(), labels)
    monkeypatch.setattr(fisher, "PIECE", 8 * len(whole.matrix) * 3)
    assert torch.allclose(head_fisher(given, weights).matrix, whole.matrix, atol=1e-15)
    alike = head_fisher(iter(parts)).matrix
    assert torch.allclose(alike, head_fisher(parts, torch.ones(ROWS)).matrix, atol=1e-15)


def test_a_whole_network_is_what_autograd_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    features, _, labels, weights = drawn(2)
    model = nn.Sequential(nn.Linear(WIDTH, 3), nn.Tanh(), nn.Dropout(0.5), nn.Linear(3, CLASSES)).double()
    model.train()
    batches = [Batch(features[at], labels[at], at) for at in torch.arange(ROWS).split(16)]
    monkeypatch.setattr(fisher, "PIECE", 8 * 34 * 5)
    found = network_fisher(model, batches, weights)
    assert model.training
    dense = by_definition(model.eval(), features, labels, weights)
    assert torch.allclose(found.matrix, dense, atol=1e-14)
    head = network_fisher(model, batches, weights, "3.weight")
    with torch.no_grad():
        entering = model[:3](features)
        closed = head_fisher(Outputs(entering, model[3](entering), labels), weights)
    assert head.parameters == closed.parameters == 3 * CLASSES
    same_spectrum(closed, head.matrix)


def test_the_trace_of_the_inverse_is_the_dense_one() -> None:
    features, logits, labels, weights = drawn(3)
    features[:, 0] = 0  # a dead unit: zero, but not by construction
    found = head_fisher(Outputs(features, logits, labels), weights)
    residual = logits.softmax(1) - nn.functional.one_hot(labels, CLASSES)
    gradients = (residual[:, :, None] * features[:, None]).flatten(1)
    dense = gradients.T @ (gradients * (weights / weights.sum())[:, None])
    assert found.rank == (CLASSES - 1) * (WIDTH - 1) < len(found.matrix)
    assert inverse_trace(found) == pytest.approx(float(torch.linalg.pinv(dense, hermitian=True).trace()), rel=1e-9)
    eye = torch.eye(len(dense), dtype=torch.float64)
    for damping in (1e-3, 0.1, 10.0):
        expected = float(torch.linalg.inv(dense + damping * eye).trace())
        assert inverse_trace(found, damping) == pytest.approx(expected - WIDTH / damping, rel=1e-9)
    assert found.mean_eigenvalue == pytest.approx(float(dense.trace()) / len(dense))


def test_a_sweep_damps_all_alike_and_falls() -> None:
    both = [head_fisher(Outputs(*drawn(seed)[:3])) for seed in (4, 5)]
    rows = damped_sweep(both)
    assert [row.relative for row in rows] == list(fisher.RELATIVE)
    mean = sum(each.mean_eigenvalue for each in both) / 2
    for row in rows:
        assert row.damping == pytest.approx(row.relative * mean)
        assert row.traces == tuple(inverse_trace(each, row.damping) for each in both)
    assert all(a > b for x, y in pairwise(rows) for a, b in zip(x.traces, y.traces, strict=True))


def test_what_cannot_be_meant_is_refused() -> None:
    features, logits, labels, weights = drawn()
    outputs = Outputs(features, logits, labels)
    for wrong in (weights[:-1], torch.cat([weights, weights]), -weights, weights * 0, weights * float("nan")):
        with pytest.raises(Misuse, match="weights"):
            head_fisher(outputs, wrong)
    with pytest.raises(Misuse, match="no rows"):
        head_fisher([])
    with pytest.raises(Misuse, match="damping"):
        inverse_trace(head_fisher(outputs), -1)
    with pytest.raises(Problem, match="NaN"):
        head_fisher(Outputs(features * float("nan"), logits, labels))
    with pytest.raises(Problem, match="GiB"):
        network_fisher(nn.Linear(3000, 10), [])
    with pytest.raises(Problem, match="every gradient is zero"):
        damped_sweep([head_fisher(Outputs(features * 0, logits, labels))])
