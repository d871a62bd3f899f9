"""Networks: the paper's parameter counts, dropout's distribution, reproducible starts."""

import copy

import pytest
import torch
from torch import nn

from debiaser.errors import Misuse, Problem
from debiaser.learn.nets import NETS, HalfDropout, HalfDropoutPool, Layers, SimConv1, half_mask, new_net


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


SIZES = [(4, 3, 25, 25), (5, 32, 9, 9), (2, 3, 8, 9), (3, 8, 12, 12), (1, 2, 2, 2)]


@pytest.mark.parametrize("size", SIZES)
def test_layers_that_run_as_one_are_the_stock_layers(size: tuple[int, ...]) -> None:
    """Value, gradients and running statistics against BatchNorm2d, ReLU, the same mask and AvgPool2d by autograd."""
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(size[1]).double()
    nn.init.normal_(norm.weight), nn.init.normal_(norm.bias)
    stock, x = copy.deepcopy(norm), 3 + 2 * torch.randn(size, dtype=torch.float64, requires_grad=True)
    torch.manual_seed(1)
    ours = Layers(norm, HalfDropoutPool())(x)
    torch.manual_seed(1)
    mask = half_mask(x.detach().permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
    theirs = nn.functional.avg_pool2d(torch.relu(stock(x)) * mask, 2)
    assert type(ours.grad_fn).__name__ == "_NormDropoutPoolBackward"
    torch.testing.assert_close(ours, theirs)
    weight = torch.randn_like(ours)
    found = torch.autograd.grad((ours * weight).sum(), (x, norm.weight, norm.bias))
    expected = torch.autograd.grad((theirs * weight).sum(), (x, stock.weight, stock.bias))
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(dict(norm.named_buffers()), dict(stock.named_buffers()))


def test_a_step_of_simconv1_has_the_gradients_of_stock_layers() -> None:
    """The whole network: every parameter's gradient and every buffer after one training step."""
    torch.manual_seed(0)
    ours, x, y = SimConv1().train().double(), torch.rand(30, 3, 28, 28).double(), torch.arange(30) % 10
    stock = copy.deepcopy(ours)
    plain, masks = nn.functional, iter([(30, 25, 25, 8), (30, 9, 9, 32)])

    def pooled(norm: nn.Module, x: torch.Tensor) -> torch.Tensor:
        mask = half_mask(x.new_empty(next(masks))).permute(0, 3, 1, 2)
        return plain.avg_pool2d(torch.relu(norm(x)) * mask, 2)

    conv1, norm1, _, conv2, norm2, _, conv3, _, norm3, _, _, _ = stock.body
    torch.manual_seed(1)
    plain.cross_entropy(ours(x), y).backward()
    torch.manual_seed(1)
    features = norm3(torch.relu(conv3(pooled(norm2, conv2(pooled(norm1, conv1(x)))))))
    features = features * half_mask(features)
    plain.cross_entropy(stock.fc(features.mean((2, 3))), y).backward()
    for mine, other in zip(ours.parameters(), stock.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad)
    torch.testing.assert_close(dict(ours.named_buffers()), dict(stock.named_buffers()))


def test_where_layers_cannot_run_as_one_they_run_one_by_one() -> None:
    """In eval mode, with a BatchNorm that is frozen, in another precision, and after something else."""
    x, norm = torch.randn(2, 3, 7, 7), nn.BatchNorm2d(3)
    both = Layers(norm, HalfDropoutPool())
    assert torch.equal(both.eval()(x), nn.functional.avg_pool2d(torch.relu(norm(x)), 2))
    both.train()
    norm.eval()
    torch.manual_seed(1)
    mask = half_mask(x)
    torch.manual_seed(1)
    assert torch.allclose(both(x.clone()), nn.functional.avg_pool2d(torch.relu(norm(x)) * mask, 2))
    norm.train()
    assert both(x.bfloat16()).dtype == torch.bfloat16
    torch.manual_seed(1)
    assert torch.allclose(Layers(HalfDropoutPool()).train()(x), nn.functional.avg_pool2d(torch.relu(x) * mask, 2))


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
