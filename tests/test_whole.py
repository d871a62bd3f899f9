"""Norms over the whole network against one backward pass per sample."""

import logging
import math

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from debiaser import gradient_norms
from debiaser.data.split import Batch
from debiaser.errors import Misuse
from debiaser.learn import gradient_norms as layerwise
from debiaser.learn.gradient_norms import by_layer
from debiaser.learn.nets import SimConv1
from oracles import norms_by_autograd


def definition(model: nn.Module, x: Tensor, y: Tensor, p: float = 2, meant: str = "") -> Tensor:
    """(n,) the p-norm over all entries of the gradient of one sample's loss, by autograd."""
    chosen = [each for name, each in model.named_parameters() if each.requires_grad and meant in name]
    return norms_by_autograd(model, x, y, chosen, p)


class Tokens(nn.Module):
    """Words and shared positions, LayerNorm, a padding word, a layer used twice, mean over time."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(9, 8, padding_idx=0), nn.Embedding(6, 8)
        self.normal, self.twice, self.head = nn.LayerNorm(8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, ids: Tensor) -> Tensor:
        h = self.normal(self.words(ids) + self.positions(torch.arange(ids.shape[1])[None]))
        return self.head(self.twice(torch.tanh(self.twice(h))).mean(1))


class Patches(nn.Module):
    """A class token and positions as bare parameters, as in a vision transformer; GroupNorm; Conv1d after it."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.place = nn.Parameter(torch.randn(1, 1, 8)), nn.Parameter(torch.randn(1, 5, 8))
        self.cut, self.group, self.line = nn.Conv2d(3, 8, 4, 4), nn.GroupNorm(2, 8), nn.Conv1d(8, 8, 3, padding="same")
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.group(self.cut(x)).flatten(2).transpose(1, 2)
        h = torch.cat([self.token.expand(len(h), -1, -1), h], 1) + self.place
        return self.head(torch.relu(self.line(h.transpose(1, 2)))[:, :, 0])


class Tied(nn.Module):
    """One weight in two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.head = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        self.two.weight = self.one.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.two(torch.tanh(self.one(x)))))


def convolutions() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True)),
        *(nn.Conv2d(8, 8, 3, dilation=2, groups=2, bias=False), nn.ReLU(inplace=True)),
        *(nn.Conv2d(8, 16, 1, stride=2), nn.Conv2d(16, 16, (3, 1), padding="same", padding_mode="circular")),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 4)),
    )


def lines_and_volumes() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv3d(2, 4, (2, 3, 1), stride=(1, 2, 1), padding=(0, 1, 0), dilation=(2, 1, 1)), nn.ReLU()),
        *(nn.Flatten(2), nn.Conv1d(4, 6, 4, stride=3, dilation=2, padding=1), nn.AdaptiveAvgPool1d(1)),
        *(nn.Flatten(), nn.Linear(6, 3)),
    )


def ids(n: int) -> Tensor:
    return torch.randint(0, 9, (n, 6))


CASES = {
    "simconv1": (SimConv1, lambda n: torch.randn(n, 3, 28, 28), 10),
    "convolutions": (convolutions, lambda n: torch.randn(n, 3, 15, 15), 4),
    "lines and volumes": (lines_and_volumes, lambda n: torch.randn(n, 2, 5, 6, 4).transpose(3, 4), 3),
    "tokens": (Tokens, ids, 3),
    "patches": (Patches, lambda n: torch.randn(n, 3, 8, 8), 4),
    "tied": (Tied, lambda n: torch.randn(n, 6), 3),
    "linear on positions": (
        lambda: nn.Sequential(nn.Linear(6, 40), nn.ReLU(), nn.Linear(40, 30), nn.Flatten(), nn.Linear(90, 3)),
        lambda n: torch.randn(n, 3, 6),
        3,
    ),
}


@pytest.mark.parametrize("p", [2, 1, math.inf])
@pytest.mark.parametrize("name", CASES)
def test_by_layer_is_autograd(name: str, p: float, caplog: pytest.LogCaptureFixture) -> None:
    torch.manual_seed(3)
    make, inputs, classes = CASES[name]
    model, x, y = make(), inputs(13), torch.randint(0, classes, (13,))
    model.train()(x)  # BatchNorm with statistics that are not 0 and 1
    found = gradient_norms(model, TensorDataset(x, y), p=p, parameters="all", batch_size=8)
    assert model.training
    truth = definition(model.double(), x.double() if x.is_floating_point() else x, y, p)
    assert ((found - truth).abs() / truth).max() < 1e-4
    assert not caplog.records, "a slower way was taken"


def test_power_chunks_and_choice() -> None:
    torch.manual_seed(0)
    model, x, y = convolutions(), torch.randn(9, 3, 15, 15), torch.randint(0, 4, (9,))
    data, whole_norm = TensorDataset(x, y), definition(model, x, y)
    for chunk in (1, 4, 100):
        assert torch.allclose(gradient_norms(model, data, parameters="all", chunk=chunk), whole_norm, rtol=1e-4)
    assert torch.allclose(gradient_norms(model, data, parameters="all", power=2), whole_norm**2, rtol=1e-4)
    weights = definition(model, x, y, meant="weight")
    assert torch.allclose(gradient_norms(model, data, parameters="*weight"), weights, rtol=1e-4)
    assert torch.allclose(gradient_norms(model, data, parameters=lambda name: "weight" in name), weights, rtol=1e-4)
    head = gradient_norms(model, data, bias=True)
    assert torch.allclose(gradient_norms(model, data, parameters="9"), head, rtol=1e-4)  # a layer by its name
    for each in model[:9].parameters():
        each.requires_grad_(False)
    assert torch.allclose(gradient_norms(model, data, parameters="all"), head, rtol=1e-4)  # trainable ones only
    for wrong in ("nosuch", lambda _: False):
        with pytest.raises(Misuse, match=r"9\.weight"):
            gradient_norms(model, data, parameters=wrong)
    with pytest.raises(Misuse, match="chunk"):
        gradient_norms(model, data, parameters="all", chunk=0)
    with pytest.raises(Misuse, match="head="):
        gradient_norms(model, data, parameters="all", head="9")


class Odd(nn.Module):
    """Parameters that no formula is known for, and a layer whose weight is used without calling it."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.scale, self.head = nn.Parameter(torch.ones(6) * 1.5), nn.Linear(6, 3)
        self.aside = nn.Linear(6, 6)
        self.rnn = nn.LSTM(6, 6, batch_first=True)
        self.kind = kind

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "recurrent":
            x = self.rnn(x[:, None].expand(-1, 3, -1))[0][:, -1]
        if self.kind == "aside":
            x = x @ self.aside.weight
        return self.head(x * self.scale if self.kind == "bare" else x)


@pytest.mark.parametrize(("kind", "meant"), [("bare", "all"), ("aside", "*weight"), ("recurrent", "all")])
def test_networks_without_formulas_take_a_slower_way_and_say_so(
    kind: str, meant: str, caplog: pytest.LogCaptureFixture
) -> None:
    torch.manual_seed(1)
    model, x, y = Odd(kind), torch.randn(7, 6), torch.randint(0, 3, (7,))
    with caplog.at_level(logging.WARNING, "debiaser"):
        found = gradient_norms(model, TensorDataset(x, y), parameters=meant)
    assert torch.allclose(found, definition(model, x, y, meant="weight" if "w" in meant else ""), rtol=1e-4)
    assert any("each sample takes a backward pass" in record.message for record in caplog.records)


def test_samples_that_a_layer_mixes_are_noticed() -> None:
    class Mixing(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + 0.5 * super().forward(x.flip(0))  # of a batch of one: 1.5 times its own

    torch.manual_seed(2)
    model = nn.Sequential(Mixing(6, 6), nn.Linear(6, 3))
    batch = Batch(torch.randn(5, 6), torch.randint(0, 3, (5,)), torch.arange(5))
    way, _ = layerwise.best_way(model, layerwise.choose(model, "all"), batch, 2, None)
    assert way is layerwise.one_by_one


def test_memory_decides_the_size_of_a_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    model = convolutions().eval()
    batch = Batch(torch.randn(64, 3, 15, 15), torch.zeros(64, dtype=torch.long), torch.arange(64))
    way, size = layerwise.best_way(model, layerwise.choose(model, "all"), batch, 2, None)
    assert way is by_layer and size > 64
    monkeypatch.setattr(layerwise, "BUDGET", 2**20)
    _, small = layerwise.best_way(model, layerwise.choose(model, "all"), batch, 2, None)
    assert 1 <= small < size / 100


def test_sure_samples_keep_their_order() -> None:
    """The residual of a sample that is fit to 1e-9 is not 0, as float32 softmax - 1 would say."""
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    with torch.no_grad():
        model[0].weight.copy_(torch.eye(2))
        model[1].weight.copy_(torch.eye(2))
    x = torch.tensor([[12.0, 0.0], [16.0, 0.0], [20.0, 0.0]])
    found = gradient_norms(model, TensorDataset(x, torch.zeros(3, dtype=torch.long)), parameters="all")
    truth = definition(model.double(), x.double(), torch.zeros(3, dtype=torch.long))
    assert torch.allclose(found.double(), truth, rtol=1e-4, atol=0)


def test_bfloat16_and_a_pass_without_gradients_around() -> None:
    torch.manual_seed(0)
    model, x, y = nn.Sequential(nn.Linear(6, 20), nn.Tanh(), nn.Linear(20, 3)), torch.randn(7, 6), torch.zeros(7).long()
    truth = definition(model, x, y)
    with torch.inference_mode():
        assert torch.allclose(gradient_norms(model, TensorDataset(x, y), parameters="all"), truth, rtol=1e-4)
    half = gradient_norms(model.bfloat16(), TensorDataset(x.bfloat16(), y), parameters="all")
    assert half.dtype == torch.float32 and torch.allclose(half, truth, rtol=0.1)
    assert all(each.grad is None for each in model.parameters())
