"""EIIL: closed form against autograd, an inference that only climbs, environments by the sign of the slope."""

import logging
from dataclasses import replace

import pytest
import torch

from debiaser.io import torch_stream
from debiaser.learn.forward import Outputs
from debiaser.learn.gradient_norms import scale_slope
from debiaser.learn.losses import cross_entropy
from debiaser.methods.eiil import EIIL, infer

QUICK = EIIL(steps=600, lr=0.01)  # as far as 6,000 steps of 0.001


def slopes(n: int = 400, wrong: float = 0.1) -> torch.Tensor:
    """Two kinds of rows: most fitted, some not."""
    stream = torch.Generator().manual_seed(0)
    kind = torch.rand(n, generator=stream) < wrong
    return torch.where(kind, 1 + torch.rand(n, generator=stream), -0.1 - 0.3 * torch.rand(n, generator=stream))


def invariance_gap(membership: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
    """What the inference makes large, by its definition."""
    return ((membership * d).mean() ** 2 + ((1 - membership) * d).mean() ** 2) / 2


def test_slope_is_the_derivative_in_a_common_scale():
    stream = torch.Generator().manual_seed(0)
    logits, y = 4 * torch.randn(50, 6, generator=stream), torch.randint(6, (50,), generator=stream)
    scale = torch.ones(50, requires_grad=True)
    cross_entropy(scale[:, None] * logits, y).sum().backward()
    assert torch.allclose(scale_slope(Outputs(logits, logits, y)), scale.grad, atol=1e-5)


def test_inference_is_adam_on_the_objective():
    """The closed form takes the same path as autograd through the definition, one parameter per sample."""
    d = slopes(60).double()
    free = torch.randn(60, generator=torch_stream(0, "x"), dtype=torch.float64).requires_grad_()
    optimizer = torch.optim.Adam([free], 1e-3, maximize=True)
    for steps in range(30):
        assert torch.allclose(infer(d, steps, 1e-3, 1e-8, torch_stream(0, "x")), free.sigmoid(), atol=1e-12)
        optimizer.zero_grad()
        invariance_gap(free.sigmoid(), d).backward()
        optimizer.step()


@pytest.mark.parametrize("seed", range(4))
def test_two_kinds_of_rows_become_two_environments(seed):
    """Whichever side chance favours, environment 1 is the one that the reference suits worse."""
    assert torch.equal(QUICK.environments(slopes(), seed), (slopes() > 0).long())


@pytest.mark.parametrize("d", [torch.zeros(50), torch.ones(50), -torch.ones(50)])
def test_one_environment_is_said(d, caplog):
    with caplog.at_level(logging.WARNING, "debiaser"):
        assert not QUICK.environments(d, 0).any()
    assert "one environment only" in caplog.text


def test_a_reference_that_fits_too_well_is_said(caplog):
    d = torch.where(torch.arange(400) < 4, 1.0, -1e-7)
    with caplog.at_level(logging.WARNING, "debiaser"):
        assert not torch.equal(QUICK.environments(d, 0), (d > 0).long())
    assert "where chance had put them" in caplog.text
    assert torch.equal(replace(QUICK, epsilon=1e-30).environments(d, 0), (d > 0).long()), (
        "without epsilon, only signs count"
    )


def test_fit_with_one_environment(tiny_task, monkeypatch):
    """Every row in one environment: GroupDRO has the classes as groups, IRM one penalty."""
    monkeypatch.setattr(EIIL, "environments", lambda self, slopes, seed: torch.zeros(len(slopes), dtype=torch.long))
    for learner in ("groupdro", "irm"):
        assert not EIIL(learner=learner).fit(tiny_task()).training
