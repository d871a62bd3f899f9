"""Networks: the paper's parameter counts, dropout's distribution, reproducible starts."""

import pytest
import torch
from torch import nn

from debiaser.errors import Misuse, Problem
from debiaser.learn.nets import NETS, HalfDropout, HalfDropoutPool, SimConv1, _GatedPool, half_mask, new_net


def test_simconv1_has_the_papers_parameters() -> None:
    assert sum(parameter.numel() for parameter in SimConv1(10).parameters()) == 38_210
    assert SimConv1(10)(torch.rand(2, 3, 28, 28)).shape == (2, 10)
    assert SimConv1(3).eval()(torch.rand(1, 3, 56, 56)).shape == (1, 3)
    with pytest.raises(Problem, match="25x25"):
        SimConv1()(torch.rand(2, 3, 24, 24))


def test_simconv1_is_the_layers_of_the_specification() -> None:
    """The same function, in eval mode, as the stock layers in the printed order."""
    torch.manual_seed(0)
    ours = SimConv1().eval()
    conv1, norm1, conv2, norm2, conv3, norm3 = (m for m in ours.body if isinstance(m, nn.Conv2d | nn.BatchNorm2d))
    stock = nn.Sequential(
        *(conv1, norm1, nn.ReLU(), nn.Dropout(0.5), nn.AvgPool2d(2)),
        *(conv2, norm2, nn.ReLU(), nn.Dropout(0.5), nn.AvgPool2d(2)),
        *(conv3, nn.ReLU(), norm3, nn.Dropout(0.5), nn.AdaptiveAvgPool2d(1), nn.Flatten(), ours.fc),
    ).eval()
    x = torch.rand(4, 3, 28, 28)
    assert torch.allclose(ours(x), stock(x), atol=1e-6)


def test_half_dropout_is_dropout() -> None:
    layer, x = HalfDropout().train(), torch.ones(1000, 1001)
    torch.manual_seed(0)
    out = layer(x)
    assert set(out.unique().tolist()) == {0.0, 2.0}
    kept = (out > 0).double()
    assert abs(kept.mean() - 0.5) < 0.002
    # neighbours are independent, also across the 64 elements that share a random word, and along each bit of a byte
    for lag in (1, 7, 8, 63, 64):
        flat = kept.flatten()
        assert abs((flat[:-lag] * flat[lag:]).mean() - 0.25) < 0.003
    positions = kept.flatten()[: 1_000_000 // 64 * 64].view(-1, 64).mean(0)
    assert (positions - 0.5).abs().max() < 0.02, "every bit of a word is used alike, the sign bit too"
    again = HalfDropout().train()
    torch.manual_seed(0)
    assert torch.equal(again(x), out)
    assert torch.equal(layer.eval()(x), x)
    leaf = torch.rand(3, 5, requires_grad=True)
    out = HalfDropout().train()(leaf)
    out.sum().backward()
    assert torch.equal(leaf.grad, (out > 0) * 2.0)


def test_the_pooling_layer_is_its_three_layers() -> None:
    """Value and gradient against stock ReLU, a product with the same mask, and AvgPool2d; sizes even and odd."""
    for size in ((2, 3, 25, 25), (2, 3, 8, 9), (1, 2, 2, 2)):
        torch.manual_seed(0)
        x = torch.randn(size, dtype=torch.float64, requires_grad=True)
        mask = half_mask(x.detach())
        ours = _GatedPool.apply(x, mask)
        stock = nn.functional.avg_pool2d(torch.relu(x) * mask, 2)
        assert torch.allclose(ours, stock)
        weight = torch.randn_like(ours)
        (expected,) = torch.autograd.grad((stock * weight).sum(), x, retain_graph=True)
        (found,) = torch.autograd.grad((ours * weight).sum(), x)
        assert torch.allclose(found, expected)
    layer, x = HalfDropoutPool(), torch.randn(2, 3, 7, 7)
    assert torch.equal(layer.eval()(x), nn.functional.avg_pool2d(torch.relu(x), 2))
    torch.manual_seed(1)
    mask = half_mask(x)
    torch.manual_seed(1)
    assert torch.allclose(layer.train()(x), nn.functional.avg_pool2d(torch.relu(x) * mask, 2))


def test_a_new_net_depends_on_its_seed_alone() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    one = new_net("simconv1", 10, 3)
    assert torch.equal(before, torch.get_rng_state())
    torch.rand(7)
    two, other = new_net("simconv1", 10, 3), new_net("simconv1", 10, 4)
    assert torch.equal(one.fc.weight, two.fc.weight) and not torch.equal(one.fc.weight, other.fc.weight)
    with pytest.raises(Misuse, match="simconv1"):
        new_net("nosuch", 10, 0)
    assert "simconv1" in NETS
