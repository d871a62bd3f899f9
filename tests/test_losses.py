"""GCE: its value by the paper's formula, its gradient as f^alpha times that of cross-entropy."""

import pytest
import torch
from torch.nn import functional as F  # noqa: N812

from debiaser import GCELoss
from debiaser.errors import Misuse
from debiaser.learn.losses import CrossEntropy, gce


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
