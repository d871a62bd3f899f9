"""The closed form against one backward pass per sample, on networks that differ in everything that may matter."""

import math
import weakref

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

from debiaser import gradient_norms
from debiaser.errors import Misuse, Problem
from debiaser.learn.nets import SimConv1
from debiaser.learn.outputs import Outputs, evaluating, find_head, look
from debiaser.learn.scores import grad_norm, loss_score, norm, residual_norm


class Bunch:
    def __init__(self, logits: Tensor) -> None:
        self.logits = logits


class Transformer(nn.Module):
    """Attention, LayerNorm, and an object with `.logits`, as transformers return."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(8, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.classifier = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Bunch:
        return Bunch(self.classifier(self.layer(self.embed(x)).mean(1)))


class Residual(nn.Module):
    """A skip connection and a head that is called inside a wrapper, declared before the body."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(12, 4)
        self.one, self.two = nn.Linear(12, 12), nn.Linear(12, 12)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x + torch.tanh(self.two(F.gelu(self.one(x)))))


NETWORKS = {
    "simconv1": (lambda: SimConv1(10), (3, 28, 28), 10),
    "mlp": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(12, 20), nn.ReLU(), nn.Linear(20, 3)), (12,), 3),
    "bare linear": (lambda: nn.Linear(7, 6), (7,), 6),
    "residual": (Residual, (12,), 4),
    "transformer": (Transformer, (5, 8), 5),
    "1x1 convolution": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Conv2d(6, 4, 1), nn.Flatten()
        ),
        (3, 9, 9),
        4,
    ),
}


def by_autograd(model: nn.Module, x: Tensor, y: Tensor, p: float, bias: bool) -> Tensor:
    """(n,) the definition: one backward pass per sample, norm over all entries of the head's gradient."""
    model = model.eval()
    head = find_head(model, x[:2])
    values = []
    for one, label in zip(x, y, strict=True):
        model.zero_grad()
        out = model(one[None])
        F.cross_entropy(getattr(out, "logits", out), label[None]).backward()
        entries = head.weight.grad.flatten()
        if bias:
            entries = torch.cat([entries, head.bias.grad.flatten()])
        values.append(entries.abs().max() if math.isinf(p) else (entries.abs() ** p).sum() ** (1 / p))
    return torch.stack(values)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("p", [0.7, 1, 2, 3, math.inf])
@pytest.mark.parametrize("name", NETWORKS)
def test_closed_form_is_the_gradient(name: str, p: float, bias: bool) -> None:
    torch.manual_seed(0)
    make, shape, classes = NETWORKS[name]
    model = make().double()
    x, y = torch.randn(9, *shape, dtype=torch.float64), torch.randint(0, classes, (9,))
    truth = by_autograd(model, x, y, p, bias)
    found = gradient_norms(model, TensorDataset(x, y), p=p, bias=bias, batch_size=4)
    assert ((found - truth).abs() / truth).max() < 1e-5
    single = gradient_norms(model.float(), TensorDataset(x.float(), y), p=p, bias=bias, batch_size=4)
    assert ((single - truth).abs() / truth).max() < 1e-4


def test_power_and_exactness_where_the_model_is_sure() -> None:
    features, labels = torch.ones(2, 3), torch.tensor([0, 0])
    logits = torch.tensor([[30.0, 0.0, 0.0], [0.0, 30.0, 0.0]])
    outputs, exact = Outputs(features, logits, labels), Outputs(features.double(), logits.double(), labels)
    assert torch.allclose(grad_norm()(outputs).double(), grad_norm()(exact), rtol=1e-5, atol=0)  # 1e-13, not 0
    assert torch.allclose(grad_norm(power=2)(exact), grad_norm()(exact) ** 2)
    assert torch.allclose(residual_norm()(exact) * math.sqrt(3), grad_norm()(exact))
    assert torch.allclose(loss_score(exact), F.cross_entropy(exact.logits, labels, reduction="none"))


def test_norm_by_definition() -> None:
    x = torch.tensor([[3.0, -4.0], [0.0, 0.0]])
    assert norm(x, 2).tolist() == [5, 0]
    assert norm(x, 1).tolist() == [7, 0]
    assert norm(x, math.inf).tolist() == [4, 0]
    assert norm(torch.full((1, 4), 1e30), 2).item() == pytest.approx(2e30)  # squares would overflow


def test_the_model_is_left_as_it_was() -> None:
    model = SimConv1()
    model.train()
    model.body[2].eval()  # a mixed mode must survive
    modes, state = [m.training for m in model.modules()], {k: v.clone() for k, v in model.state_dict().items()}
    data, random_state = TensorDataset(torch.rand(5, 3, 28, 28), torch.arange(5)), torch.get_rng_state()
    gradient_norms(model, data)
    assert [m.training for m in model.modules()] == modes
    assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random_state)
    assert all(p.grad is None and p.requires_grad for p in model.parameters())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_scores_are_in_dataset_order_whatever_the_batch() -> None:
    torch.manual_seed(1)
    model, data = nn.Linear(4, 3), TensorDataset(torch.randn(23, 4), torch.randint(0, 3, (23,)))
    whole = gradient_norms(model, data, batch_size=23)
    assert torch.allclose(whole, gradient_norms(model, data, batch_size=5))
    assert torch.allclose(whole, gradient_norms(model, DataLoader(data, batch_size=7)))
    weighted = WeightedRandomSampler([1.0] * 23, 23)
    for loses_rows in ({"shuffle": True}, {"drop_last": True}, {"sampler": weighted}):
        with pytest.raises(Misuse, match="shuffle"):
            gradient_norms(model, DataLoader(data, batch_size=7, **loses_rows))
    with pytest.raises(Misuse, match="no rows"):
        gradient_norms(model, TensorDataset(torch.zeros(0, 4), torch.zeros(0, dtype=torch.long)))


def test_features_are_never_held_together() -> None:
    """A wide feature on many rows: the pass must not keep the n x h matrix."""

    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(20_000, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(x.expand(-1, 20_000))

    alive: list[int] = []
    model, rows = Wide(), TensorDataset(torch.randn(200, 1), torch.zeros(200, dtype=torch.long))

    def watch(_module: nn.Module, args: tuple[Tensor]) -> None:
        weakref.finalize(args[0], lambda: alive.pop())
        alive.append(1)
        assert len(alive) <= 2, "features of earlier batches are still held"

    model.fc.register_forward_pre_hook(watch)
    assert len(gradient_norms(model, rows, batch_size=10)) == 200


def test_head_that_cannot_be_found_is_said() -> None:
    class NoHead(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x) * 2  # the logits are not what a linear layer gave

    data = TensorDataset(torch.randn(6, 4), torch.zeros(6, dtype=torch.long))
    with pytest.raises(Problem, match=r"head=.*layer"):
        gradient_norms(NoHead(), data)
    with pytest.raises(Problem, match=r"no layer 'wrong'.*layer"):
        gradient_norms(NoHead(), data, head="wrong")
    assert gradient_norms(NoHead(), data, head="layer").shape == (6,)


@pytest.mark.parametrize(("p", "power"), [(0, 1), (-1, 1), (2, 0), (2, -1)])
def test_norms_that_rank_nothing_are_refused(p: float, power: float) -> None:
    with pytest.raises(Misuse, match="above 0"):
        grad_norm(p, power)


def test_modes_are_restored_when_a_model_fails() -> None:
    model = nn.Linear(3, 2).train()
    with pytest.raises(RuntimeError), evaluating(model):
        model(torch.randn(1, 7))
    assert model.training
    assert list(look(model, [])) == []
