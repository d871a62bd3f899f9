"""Disen against its definition: the whole loss, which encoder learns from which term, when swapping begins."""

import dataclasses
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from debiaser import Disen, gradient_norms
from debiaser.data.split import Batch, Split
from debiaser.errors import Problem
from debiaser.learn.forward import evaluating, find_head, without_head
from debiaser.learn.recipe import Recipe
from debiaser.methods.disen import Disentangled, Disentangling
from debiaser.methods.task import Task

CLASSES, ROWS, WIDTH = 4, 12, 6
UNEQUAL = Disen(lambda_dis=3, lambda_swap_b=5, lambda_swap=0.5)


def data() -> Split:
    torch.manual_seed(7)
    return Split.of(torch.randn(ROWS, 5, dtype=torch.float64), torch.randint(0, CLASSES, (ROWS,)))


def objective(how: Disen = UNEQUAL, swapping: bool = True) -> Disentangling:
    torch.manual_seed(1)
    intrinsic, bias = (nn.Sequential(nn.Linear(5, WIDTH), nn.Tanh()) for _ in range(2))
    head, bias_head = (nn.Linear(2 * WIDTH, CLASSES) for _ in range(2))
    found = Disentangling(Disentangled(intrinsic, bias, head), bias_head, data().y, how).double()
    found.swapping = swapping
    return found


def slopes(found: Disentangling, rows: Tensor) -> dict[str, Tensor]:
    """The gradient of every parameter, 0 where there is none, with the same permutation each time."""
    batch = data().batch(rows)
    torch.manual_seed(3)
    found(batch).backward()
    return {
        name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()
        for name, parameter in found.named_parameters()
    }


def by_hand(found: Disentangling, batch: Batch, how: Disen, order: list[int] | None) -> Tensor:
    """The authors' loss on a first visit of every row, written out row by row in numbers of their own."""
    encoder_i, encoder_b, own, other = found.model.intrinsic, found.model.bias, found.model.head, found.bias_head
    z_i, z_b = [encoder_i(x[None])[0] for x in batch.x], [encoder_b(x[None])[0] for x in batch.x]
    y = batch.y.tolist()

    def likelihoods(head: nn.Module, left: list[Tensor], right: list[Tensor], labels: list[int]) -> list[Tensor]:
        pairs = zip(left, right, labels, strict=True)
        return [head(torch.cat([one, two])).softmax(0)[label] for one, two, label in pairs]

    def still(features: list[Tensor]) -> list[Tensor]:
        return [each.detach() for each in features]

    def gce(f: Tensor) -> Tensor:
        return 0.7 * f.detach() ** 0.7 * -f.log()

    f_i, f_b = likelihoods(own, z_i, still(z_b), y), likelihoods(other, still(z_i), z_b, y)
    ce_i, ce_b = [-f.detach().log() for f in f_i], [-f.detach().log() for f in f_b]
    weight = []
    for row, label in enumerate(y):
        peers = [each for each in range(len(y)) if y[each] == label]
        u_i, u_b = ce_i[row] / max(ce_i[each] for each in peers), ce_b[row] / max(ce_b[each] for each in peers)
        weight.append(u_b / (u_b + u_i + 1e-8))
    loss = sum(w * -f.log() for w, f in zip(weight, f_i, strict=True)) + how.lambda_dis * sum(map(gce, f_b))
    if order is not None:
        z_swapped, y_swapped = [z_b[each] for each in order], [y[each] for each in order]
        f_i, f_b = likelihoods(own, z_i, still(z_swapped), y), likelihoods(other, still(z_i), z_swapped, y_swapped)
        swap = sum(w * -f.log() for w, f in zip(weight, f_i, strict=True)) + how.lambda_swap_b * sum(map(gce, f_b))
        loss = loss + how.lambda_swap * swap
    return loss / len(y)


@pytest.mark.parametrize("swapping", [False, True])
@pytest.mark.parametrize("rows", [list(range(ROWS)), [3, 1, 8], [4]])
def test_every_gradient_is_that_of_the_definition(swapping: bool, rows: list[int]) -> None:
    found = objective(swapping=swapping)
    got = slopes(found, torch.tensor(rows))
    parameters, batch = dict(found.named_parameters()), data().batch(torch.tensor(rows))
    torch.manual_seed(3)
    order = torch.randperm(len(rows)).tolist() if swapping else None
    loss = by_hand(found, batch, UNEQUAL, order)
    expected = torch.autograd.grad(loss, list(parameters.values()))
    for name, theirs in zip(parameters, expected, strict=True):
        torch.testing.assert_close(got[name], theirs, msg=name)


@pytest.mark.parametrize(
    ("swap_from", "epochs", "first"), [(0.2, 10, 2), (0.2, 35, 7), (0.5, 3, 2), (0, 4, 0), (1, 4, 4), (0.2, 1, 1)]
)
def test_swapping_begins_after_its_share_of_the_epochs(swap_from: float, epochs: int, first: int) -> None:
    found = objective(Disen(swap_from=swap_from))
    active = []
    for epoch in range(epochs):
        found.begin(epoch, epochs)
        active.append(found.swapping)
    assert active == [epoch >= first for epoch in range(epochs)]


class Bunch:
    def __init__(self, logits: Tensor) -> None:
        self.logits = logits


class Nested(nn.Module):
    """A head inside a part, declared first, and an object with `.logits` around what comes out."""

    def __init__(self) -> None:
        super().__init__()
        self.top = nn.ModuleDict({"classifier": nn.Linear(7, 4), "pool": nn.Linear(5, 7)})

    def forward(self, x: Tensor) -> Bunch:
        return Bunch(self.top["classifier"](self.top["pool"](x).tanh()))


NETWORKS = {
    "sequential": (lambda: nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 4)), (5,), 7),
    "nested": (Nested, (5,), 7),
    "bare linear": (lambda: nn.Linear(5, 4), (5,), 5),
    "1x1 convolution": (
        lambda: nn.Sequential(nn.Conv2d(3, 6, 3), nn.AdaptiveAvgPool2d(1), nn.Conv2d(6, 4, 1), nn.Flatten()),
        (3, 9, 9),
        6,
    ),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_any_network_that_ends_in_a_linear_layer(name: str) -> None:
    make, shape, width = NETWORKS[name]
    x = torch.randn(24, *shape)
    task = Task(Split.of(x, torch.arange(24) % 4), lambda _: make(), Recipe(epochs=2, batch_size=8, lr=0.01))
    model = Disen(swap_from=0.5).fit(task)
    assert isinstance(model, Disentangled)
    assert [tuple(each.shape) for each in model.features(x)] == [(24, width)] * 2
    assert model(x).shape == (24, 4)
    with evaluating(model):
        assert find_head(model, x[:2]) is model.head
    norms = gradient_norms(model, task.train)
    assert norms.shape == (24,) and (norms > 0).all()


def test_the_encoder_gives_what_entered_the_head() -> None:
    network = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 4))
    x, expected = torch.randn(3, 5), []
    network[2].register_forward_pre_hook(lambda _, inputs: expected.append(inputs[0]))
    network(x)
    encoder, weight = without_head(network, x)
    assert weight.shape == (4, 7) and torch.equal(encoder(x), expected[0])


class Reshaping(nn.Module):
    """Reads its logits as four columns, so that nothing else can pass where they did."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.fc(x).view(-1, 4)
        return logits


def test_a_network_that_cannot_do_without_its_head_is_refused() -> None:
    with pytest.raises(Problem, match="without its head 'fc'"):
        without_head(Reshaping(), torch.randn(2, 8))


def test_the_start_is_the_seeds_and_the_four_parts_differ(
    tiny_task: Callable[..., Task], monkeypatch: pytest.MonkeyPatch
) -> None:
    starts: list[Disentangling] = []
    monkeypatch.setattr(Task, "fit", lambda self, objective, stage, **_: starts.append(objective))
    Disen().fit(tiny_task())
    torch.manual_seed(99)  # what was drawn before does not matter
    before = torch.get_rng_state()
    Disen().fit(tiny_task())
    (start, again), head = starts, starts[0].model.head
    assert torch.equal(head.weight, again.model.head.weight) and torch.equal(before, torch.get_rng_state())
    assert not torch.equal(head.weight, start.bias_head.weight) and head.weight.shape == (10, 128)
    assert not torch.equal(start.model.intrinsic.body[0].weight, start.model.bias.body[0].weight)


def test_every_field_is_in_the_representation_that_keys_the_stage() -> None:
    assert all(f"{field.name}=" in repr(objective()) for field in dataclasses.fields(Disen))
