"""The networks of the benchmarks and the head for features: sizes, starts, and the last layer that scores stand on."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from debiaser.data.split import Split
from debiaser.errors import Misuse, Problem
from debiaser.learn.gradient_norms import gradient_norms
from debiaser.learn.nets import FeatureHead, SimConv1, SimConv2, new_net

HUB = ["resnet18", "resnet50", "bert"]


def parameters(net: nn.Module) -> int:
    return sum(parameter.numel() for parameter in net.parameters())


@pytest.fixture
def transformers() -> object:
    return pytest.importorskip("transformers", reason="extra `models` is not installed: this test did not run")


@pytest.mark.parametrize("pool", [2, 3])
def test_simconv2_has_the_papers_parameters(pool: int) -> None:
    """Weights and biases of four convolutions, scale and shift of four norms, the last layer; pooling has none."""
    convolutions = sum(
        k * k * before * after + after for k, before, after in [(7, 3, 8), (7, 8, 32), (5, 32, 64), (3, 64, 128)]
    )
    assert convolutions + 2 * (8 + 32 + 64 + 128) + 128 * 10 + 10 == 140_634
    assert parameters(SimConv2(10, pool=pool)) == 140_634


def test_simconv2_with_3x3_pooling_is_the_printed_network() -> None:
    torch.manual_seed(0)
    ours = SimConv2(pool=3).eval()
    convs = [m for m in ours.body if isinstance(m, nn.Conv2d)]
    norms = [m for m in ours.body if isinstance(m, nn.BatchNorm2d)]
    x = torch.rand(2, 3, 90, 90)
    y = F.avg_pool2d(F.relu(norms[0](convs[0](x))), 3)
    y = F.avg_pool2d(F.relu(norms[1](convs[1](y))), 3)
    y = norms[3](F.relu(convs[3](norms[2](F.relu(convs[2](y))))))
    torch.testing.assert_close(ours(x), ours.fc(y.mean((2, 3))))


@pytest.mark.parametrize(("name", "least"), [("simconv2", 46), ("simconv2-printed", 87)])
def test_simconv2_says_what_it_needs(name: str, least: int) -> None:
    net = new_net(name, 10, 0).eval()
    assert net(torch.rand(1, 3, least, least)).shape == (1, 10)
    with pytest.raises(Problem, match=f"at least {least}x{least} pixels, got {least - 1}x{least}"):
        net(torch.rand(1, 3, least - 1, least))


def test_the_printed_simconv2_explains_why_it_cannot_run_on_its_benchmark() -> None:
    with pytest.raises(Problem, match=r"3x3 pooling needs .* 87x87 pixels, got 56x56: as printed .* take simconv2"):
        new_net("simconv2-printed", 10, 0)(torch.rand(1, 3, 56, 56))
    assert new_net("simconv2", 10, 0)(torch.rand(2, 3, 56, 56)).shape == (2, 10)


@pytest.mark.parametrize(
    ("name", "classes", "count"),
    [("resnet18", 1000, 11_689_512), ("resnet50", 1000, 25_557_032), ("bert", 2, 109_483_778)],
)
def test_published_networks_have_the_published_parameters(
    transformers: object, name: str, classes: int, count: int
) -> None:
    with torch.device("meta"):
        assert parameters(new_net(name, classes, 0)) == count


def test_resnet_halves_the_picture_five_times(transformers: object) -> None:
    """The stem with stride 2 and the max pooling are there for small pictures too: 32 pixels end as one."""
    net = new_net("resnet18", 3, 0).eval()
    sizes: list[torch.Size] = []
    net.net.resnet.encoder.register_forward_hook(lambda _, __, out: sizes.append(out.last_hidden_state.shape))
    assert net(torch.rand(2, 3, 32, 32)).shape == (2, 3)
    assert sizes == [torch.Size([2, 512, 1, 1])]


def inputs_of(name: str, n: int = 3) -> Tensor | dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    if name == "bert":
        ids = torch.randint(1000, (n, 6), generator=generator)
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if name == "mlp":
        return torch.rand(n, 1280, generator=generator)
    return torch.rand(
        n, 3, 87 if name == "simconv2-printed" else 56, 56 if name != "simconv2-printed" else 87, generator=generator
    )


@pytest.mark.parametrize("name", ["simconv1", "simconv2", "simconv2-printed", "mlp", *HUB])
def test_gradient_norms_finds_the_last_layer_of_each(name: str, request: pytest.FixtureRequest) -> None:
    """The closed form over the layer that was found equals the gradient that autograd gives for the true last layer."""
    if name in HUB:
        request.getfixturevalue("transformers")
    net, y = new_net(name, 3, 0), torch.tensor([0, 2, 1])
    x = inputs_of(name)
    pick = (lambda rows: {key: value[rows] for key, value in x.items()}) if isinstance(x, dict) else x.__getitem__
    scores = gradient_norms(net, Split(y, pick))
    last = [module for module in net.modules() if isinstance(module, nn.Linear)][-1]
    assert last.out_features == 3
    net.eval()
    for row in range(3):
        loss = F.cross_entropy(net(pick(torch.tensor([row]))), y[row : row + 1])
        (gradient,) = torch.autograd.grad(loss, last.weight)
        torch.testing.assert_close(scores[row], gradient.norm(), rtol=1e-4, atol=1e-6)


def test_the_head_is_of_any_width_and_takes_features_of_any_scale() -> None:
    net = new_net("mlp", 4, 0, width=384)
    assert isinstance(net, FeatureHead)
    assert parameters(net) == 384 * 256 + 256 + 256 * 4 + 4
    assert torch.isfinite(net(torch.randn(1, 384))).all()  # in training, a batch of one row
    net.eval()
    x = torch.randn(5, 384)
    torch.testing.assert_close(net(x), net(7 * x + 3), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(net(x)[2:3], net(x[2:3]))


def test_starts_depend_on_the_seed_alone(transformers: object) -> None:
    torch.manual_seed(3)
    before = SimConv1(10).state_dict()
    for name, value in new_net("simconv1", 10, 3).state_dict().items():
        assert torch.equal(before[name], value)
    one, two, other = (new_net("resnet18", 2, seed).state_dict() for seed in (5, 5, 6))
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not torch.equal(one["net.classifier.1.weight"], other["net.classifier.1.weight"])


def test_pretrained_weights_come_from_a_folder_with_a_new_last_layer(transformers: object, tmp_path: Path) -> None:
    source = new_net("resnet18", 5, 1)
    source.net.save_pretrained(tmp_path / "source")
    net = new_net("resnet18", 3, 2, weights=str(tmp_path / "source"))
    assert net(torch.rand(2, 3, 32, 32)).shape == (2, 3)
    for name, value in source.net.resnet.state_dict().items():
        assert torch.equal(net.net.resnet.state_dict()[name], value)
    with pytest.raises(Problem, match=r"does not hold this network: \d+ tensors"):
        new_net("resnet50", 3, 2, weights=str(tmp_path / "source"))
    with pytest.raises(Problem, match="there is no folder"):
        new_net("bert", 2, 0, weights=str(tmp_path / "nothing"))


def test_an_option_that_a_network_does_not_have() -> None:
    with pytest.raises(Misuse, match="unknown option of simconv1 'width'; known: channels"):
        new_net("simconv1", 10, 0, width=3)


def test_transformers_is_not_imported_until_it_is_used() -> None:
    rooms = "debiaser.learn.nets, debiaser.learn.encoders, debiaser.learn.features"
    code = f"import sys, {rooms}; print('transformers' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
