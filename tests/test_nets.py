"""Networks: the paper's parameter counts, fused layers against stock ones, starts, the last layer."""

import copy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from debiaser.data.split import Split
from debiaser.errors import Misuse, Problem
from debiaser.learn.gradient_norms import gradient_norms
from debiaser.learn.nets import (
    FeatureHead,
    HalfDropout,
    HalfDropoutPool,
    Layers,
    SimConv1,
    SimConv2,
    half_mask,
    new_net,
)

HUB = ["resnet18", "resnet50", "bert"]


def parameters(net: nn.Module) -> int:
    return sum(parameter.numel() for parameter in net.parameters())


@pytest.fixture
def transformers() -> object:
    return pytest.importorskip("transformers", reason="extra `models` is not installed: this test did not run")


@pytest.mark.parametrize(
    ("name", "count", "least", "cure"),
    [("simconv1", 38_210, 25, "enlarge them to 28x28"), ("simconv2", 140_634, 46, "take simconv1")],
)
def test_the_papers_networks(name: str, count: int, least: int, cure: str) -> None:
    net = new_net(name, 10, 0).eval()
    assert parameters(net) == count
    for size in (least, 90):
        assert net(torch.rand(1, 3, size, size)).shape == (1, 10)
    with pytest.raises(Problem, match=f"at least {least}x{least} pixels, got {least - 1}x{least}: {cure}"):
        net(torch.rand(1, 3, least - 1, least))


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
    with pytest.raises(Misuse, match="unknown option of simconv1 'width'; known: channels"):
        new_net("simconv1", 10, 0, width=3)


def test_a_published_network_depends_on_its_seed_alone(transformers: object) -> None:
    one, two, other = (new_net("resnet18", 2, seed).state_dict() for seed in (5, 5, 6))
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not torch.equal(one["net.classifier.1.weight"], other["net.classifier.1.weight"])


def test_simconv2_is_the_printed_network_but_for_its_pooling() -> None:
    torch.manual_seed(0)
    ours = SimConv2().eval()
    convs = [m for m in ours.body if isinstance(m, nn.Conv2d)]
    norms = [m for m in ours.body if isinstance(m, nn.BatchNorm2d)]
    x = torch.rand(2, 3, 56, 56)
    y = F.avg_pool2d(F.relu(norms[0](convs[0](x))), 2)
    y = F.avg_pool2d(F.relu(norms[1](convs[1](y))), 2)
    y = norms[3](F.relu(convs[3](norms[2](F.relu(convs[2](y))))))
    torch.testing.assert_close(ours(x), ours.fc(y.mean((2, 3))))


@pytest.mark.parametrize(
    ("name", "classes", "count"),
    [("resnet18", 1000, 11_689_512), ("resnet50", 1000, 25_557_032), ("bert", 2, 109_483_778)],
)
def test_published_networks_have_the_published_parameters(
    transformers: object, name: str, classes: int, count: int
) -> None:
    with torch.device("meta"):
        assert parameters(new_net(name, classes, 0)) == count


def test_the_head_is_of_any_width_and_takes_features_of_any_scale() -> None:
    net = new_net("mlp", 4, 0, width=384)
    assert isinstance(net, FeatureHead)
    assert parameters(net) == 384 * 256 + 256 + 256 * 4 + 4
    assert torch.isfinite(net(torch.randn(1, 384))).all()  # in training, a batch of one row
    net.eval()
    x = torch.randn(5, 384)
    torch.testing.assert_close(net(x), net(7 * x + 3), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(net(x)[2:3], net(x[2:3]))


def test_pretrained_weights_come_from_a_folder_with_a_new_last_layer(transformers: object, tmp_path: Path) -> None:
    source = new_net("resnet18", 5, 1)
    source.net.save_pretrained(tmp_path / "source")
    net = new_net("resnet18", 3, 2, weights=str(tmp_path / "source"))
    assert net(torch.rand(2, 3, 32, 32)).shape == (2, 3)
    assert gradient_norms(net, Split.of(torch.rand(2, 3, 32, 32), torch.tensor([0, 2]))).shape == (2,)
    for name, value in source.net.resnet.state_dict().items():
        assert torch.equal(net.net.resnet.state_dict()[name], value)
    with pytest.raises(Problem, match=r"does not hold this network: \d+ tensors"):
        new_net("resnet50", 3, 2, weights=str(tmp_path / "source"))
    with pytest.raises(Problem, match="is neither a folder nor"):
        new_net("bert", 2, 0, weights=str(tmp_path / "nothing"))


def test_transformers_is_not_imported_until_it_is_used() -> None:
    rooms = "debiaser.learn.nets, debiaser.learn.encoders"
    code = f"import sys, {rooms}; print('transformers' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
