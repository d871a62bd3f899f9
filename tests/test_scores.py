"""Gradient norms against one backward pass per sample, of the last layer and of all, on networks."""

import logging
import math
import random
import weakref
from collections import UserDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, WeightedRandomSampler, default_collate

from debiaser import gradient_norms
from debiaser.data.split import Batch, Split
from debiaser.errors import Misuse, Problem
from debiaser.learn import gradient_norms as layerwise
from debiaser.learn.forward import Outputs, find_head
from debiaser.learn.gradient_norms import by_layer, grad_norm, loss_score, norm, residual_norm
from debiaser.learn.nets import SimConv1


def norms_by_autograd(model: nn.Module, x: Tensor, y: Tensor, chosen: Sequence[Tensor], p: float = 2) -> Tensor:
    """(n,) one backward pass per sample in eval mode: the p-norm over all entries of the gradients of `chosen`."""
    model.eval()
    values = []
    for one, label in zip(x, y, strict=True):
        out = model(one[None])
        loss = F.cross_entropy(getattr(out, "logits", out), label[None])
        parts = torch.autograd.grad(loss, list(chosen), allow_unused=True)
        entries = torch.cat([part.flatten() for part in parts if part is not None]).abs()
        values.append(entries.max() if math.isinf(p) else (entries**p).sum() ** (1 / p))
    return torch.stack(values)


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


NETWORKS = {
    "simconv1": (lambda: SimConv1(10), (3, 28, 28), 10),
    "mlp": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(12, 20), nn.ReLU(), nn.Linear(20, 3)), (12,), 3),
    "bare linear": (lambda: nn.Linear(7, 6), (7,), 6),
    "transformer": (Transformer, (5, 8), 5),
    "1x1 convolution": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Conv2d(6, 4, 1), nn.Flatten()
        ),
        (3, 9, 9),
        4,
    ),
}


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("p", [0.7, 1, 2, 3, math.inf])
@pytest.mark.parametrize("name", NETWORKS)
def test_closed_form_is_the_gradient(name: str, p: float, bias: bool) -> None:
    torch.manual_seed(0)
    make, shape, classes = NETWORKS[name]
    model = make().double()
    x, y = torch.randn(9, *shape, dtype=torch.float64), torch.randint(0, classes, (9,))
    head = find_head(model.eval(), x[:2])
    truth = norms_by_autograd(model, x, y, [head.weight, head.bias] if bias else [head.weight], p)
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
    assert norm(torch.tensor([[3.0, -4.0], [0.0, 0.0]]), 2).tolist() == [5, 0]
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
    for loses_rows in ({"shuffle": True}, {"drop_last": True}, {"sampler": weighted}, {"batch_size": None}):
        with pytest.raises(Misuse, match=r"shuffles, .* or does not batch samples"):
            gradient_norms(model, DataLoader(data, **{"batch_size": 7, **loses_rows}))
    empty = torch.zeros(0, 4), torch.zeros(0, dtype=torch.long)
    for nothing in (TensorDataset(*empty), Split.of(*empty), []):
        with pytest.raises(Misuse, match="no samples"):
            gradient_norms(model, nothing)


@pytest.mark.parametrize("parameters", ["head", "all"])
def test_logits_of_the_same_pass_are_handed_out(parameters: str) -> None:
    torch.manual_seed(0)
    model, seen, read = SimConv1(10).train(), list[tuple[Tensor, Tensor]](), list[int]()

    class Counted(torch.utils.data.Dataset):  # type: ignore[type-arg]
        def __len__(self) -> int:
            return 9

        def __getitem__(self, row: int) -> tuple[Tensor, int]:
            read.append(row)
            return x[row], int(y[row])

    x, y = torch.randn(9, 3, 28, 28), torch.randint(0, 10, (9,))
    scores = gradient_norms(
        model, Counted(), parameters=parameters, batch_size=4, see=lambda *given: seen.append(given)
    )
    logits, labels = (torch.cat(each) for each in zip(*seen, strict=True))
    assert read == list(range(9)) and model.training
    with torch.no_grad():
        assert torch.allclose(logits, model.eval()(x), atol=1e-5) and torch.equal(labels, y)
    assert torch.equal(scores, gradient_norms(model, TensorDataset(x, y), parameters=parameters, batch_size=4))


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


# --- any model, any batch -------------------------------------------------------------------------------------------


def some_rows(n: int = 11, width: int = 6, classes: int = 3) -> tuple[Tensor, Tensor]:
    torch.manual_seed(n)
    return torch.randn(n, width), torch.randint(0, classes, (n,))


def test_through_wrappers() -> None:
    (x, y), model = some_rows(), nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    truth = gradient_norms(model, TensorDataset(x, y))
    weights = gradient_norms(model, TensorDataset(x, y), parameters=lambda name: name.endswith("weight"))
    compiled = torch.compile(model, backend="eager")
    compiled(x)  # compiled code is there and must not be used: it knows no hooks
    nested = nn.Sequential(nn.Identity(), compiled)
    for wrapped in (compiled, nested, nn.DataParallel(model)):
        assert torch.allclose(gradient_norms(wrapped, TensorDataset(x, y)), truth)
        assert torch.allclose(gradient_norms(wrapped, TensorDataset(x, y), parameters="*.weight"), weights)
    assert torch.allclose(gradient_norms(compiled, TensorDataset(x, y), head="2"), truth)
    model.compile(backend="eager")  # in place
    assert torch.allclose(gradient_norms(model, TensorDataset(x, y)), truth)


def test_through_ddp(tmp_path: Path) -> None:
    (x, y), model = some_rows(), nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
    truth = gradient_norms(model, TensorDataset(x, y))
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        wrapped = nn.parallel.DistributedDataParallel(model)
        assert torch.allclose(gradient_norms(wrapped, TensorDataset(x, y)), truth)
        assert torch.allclose(gradient_norms(wrapped, TensorDataset(x, y), head="module.2"), truth)
    finally:
        torch.distributed.destroy_process_group()


def test_log_softmax_and_casts_after_the_head() -> None:
    (x, y), linear = some_rows(), nn.Linear(6, 3)
    truth = gradient_norms(linear, TensorDataset(x, y))
    likelihood = nn.Sequential(linear, nn.LogSoftmax(1))
    assert torch.allclose(gradient_norms(likelihood, TensorDataset(x, y)), truth, rtol=1e-4)
    with pytest.raises(Problem, match="cannot tell"):
        gradient_norms(nn.Sequential(linear, nn.ReLU(inplace=True)), TensorDataset(x, y))  # other values, same memory
    half = nn.Linear(6, 3, dtype=torch.bfloat16)
    scores = gradient_norms(half, TensorDataset(x.bfloat16(), y))
    assert scores.dtype == torch.float32
    exact = gradient_norms(half.float(), TensorDataset(x.bfloat16().float(), y))
    assert torch.allclose(scores, exact, rtol=0.05)


def test_autocast_and_training_after_it() -> None:
    (x, y), model = some_rows(), nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    truth = gradient_norms(model, TensorDataset(x, y))
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.allclose(gradient_norms(model, TensorDataset(x, y)), truth, rtol=0.05)
        F.cross_entropy(model(x), y).backward()  # autocast keeps weights that it has cast: these must have gradients
    assert all(each.grad is not None for each in model.parameters())


@pytest.mark.parametrize("parameters", ["head", "all"])
def test_a_network_with_an_autocast_of_its_own(parameters: str, caplog: pytest.LogCaptureFixture) -> None:
    """As accelerate makes of every network that a Trainer with bf16=True has trained."""
    (x, y), model = some_rows(), nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    truth = gradient_norms(model, TensorDataset(x, y), parameters=parameters)
    model.forward = torch.autocast("cpu", torch.bfloat16)(model.forward)
    assert torch.allclose(gradient_norms(model, TensorDataset(x, y), parameters=parameters), truth, rtol=0.05)
    assert not caplog.records


def test_logits_in_any_mapping() -> None:
    class Told(nn.Module):
        def forward(self, x: Tensor) -> UserDict[str, Tensor]:
            return UserDict(logits=x)

    (x, y), plain = some_rows(), nn.Linear(6, 3)
    told = gradient_norms(nn.Sequential(plain, Told()), TensorDataset(x, y))
    assert torch.equal(told, gradient_norms(plain, TensorDataset(x, y)))


def test_random_numbers_go_on_as_before() -> None:
    """Those of a dataset that augments."""
    (x, y), model = some_rows(), nn.Linear(6, 3)

    def states() -> list[bytes]:
        legacy = np.random.get_state()  # noqa: NPY002
        found = [torch.get_rng_state().numpy(), legacy[1], np.array(legacy[2])]
        return [each.tobytes() for each in found] + [repr(random.getstate()).encode()]

    def shaken(rows: list[Any]) -> Any:
        noise = random.random() + np.random.rand() + float(torch.rand(1))  # noqa: NPY002
        a, b = default_collate(rows)
        return a + noise, b

    before = states()
    gradient_norms(model, DataLoader(TensorDataset(x, y), 4, collate_fn=shaken))
    assert states() == before


@pytest.mark.parametrize("label", ["labels", "label"])
def test_dictionaries(label: str) -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(6, 3)

        def forward(self, features: Tensor, scale: Tensor | None = None) -> Bunch:
            return Bunch(self.fc(features if scale is None else features * scale[:, None]))

    (x, y), model = some_rows(), Named()
    truth = gradient_norms(model.fc, TensorDataset(x * 2, y))
    twice = torch.tensor(2.0)
    rows = [{"features": a, "scale": twice, label: int(b), "text": "left out"} for a, b in zip(x, y, strict=True)]
    assert torch.allclose(gradient_norms(model, rows), truth)
    pairs = [({"features": a, "scale": twice}, int(b)) for a, b in zip(x, y, strict=True)]
    assert torch.allclose(gradient_norms(model, pairs), truth)

    def collate(items: list[dict[str, Any]]) -> dict[str, Tensor]:
        return {"features": torch.stack([item["features"] for item in items]) * 2, "labels": y_of(items)}

    def y_of(items: list[dict[str, Any]]) -> Tensor:
        return torch.tensor([item[label] for item in items])

    assert torch.allclose(gradient_norms(model, DataLoader(rows, 4, collate_fn=collate)), truth)
    with pytest.raises(Misuse, match="no labels under"):
        gradient_norms(model, [{"features": a} for a in x])
    with pytest.raises(Misuse, match="with_format"):
        gradient_norms(model, [{"text": "a", label: 0}])


class Twins(nn.Module):
    """Two layers that give the same, of which one counts."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(6, 3), nn.Linear(6, 3)
        self.two.load_state_dict(self.one.state_dict())

    def forward(self, x: Tensor) -> Tensor:
        self.two(x)
        return self.one(x)


class Scaled(nn.Linear):
    """Twice what a linear layer gives, outside of it."""

    def __init__(self) -> None:
        super().__init__(1, 1)
        self.layer = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * 2


class Cosine(nn.Linear):
    """A linear layer by its class only: the logits are cosines."""

    def forward(self, x: Tensor) -> Tensor:
        return 10 * F.linear(F.normalize(x, dim=1), F.normalize(self.weight, dim=1))


def hooked() -> nn.Module:
    model = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 3))
    model[1].register_forward_hook(lambda _, __, out: out * 2)
    return model


PLAIN, NO_PRODUCT = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)), "as the plain product"
SPATIAL = nn.Sequential(nn.Conv2d(6, 3, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())
GROUPED = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(6, 3, 1, groups=3), nn.Flatten())


@pytest.mark.parametrize(
    ("model", "head", "words", "shape"),
    [
        (SPATIAL, "0", NO_PRODUCT, (6, 3, 3)),  # one feature per position
        (GROUPED, None, NO_PRODUCT, (6, 3, 3)),
        (nn.Linear(6, 3), None, f"cannot tell|{NO_PRODUCT}", (5, 6)),
        (Scaled(), None, "cannot tell .*head=.*layer", (6,)),
        (Scaled(), "layer", NO_PRODUCT, (6,)),  # half of the true norm
        (hooked(), None, NO_PRODUCT, (6,)),
        (nn.Sequential(nn.Linear(6, 4), Cosine(4, 3, bias=False)), None, NO_PRODUCT, (6,)),
        (PLAIN, "0", NO_PRODUCT, (6,)),
        (PLAIN, "1", "head='1' is no linear layer of this model; it has: 0, 2", (6,)),
        (PLAIN, "wrong", "head='wrong' is no linear layer", (6,)),
        (PLAIN, nn.Linear(5, 3), "head=Linear.* is no linear layer", (6,)),
        (Twins(), None, "2 fit.*head=", (6,)),
        (nn.Linear(6, 1), None, "one logit", (6,)),
    ],
)
def test_heads_that_the_closed_form_does_not_hold_for(model: nn.Module, head: Any, words: str, shape: tuple) -> None:
    with pytest.raises(Problem, match=words):
        gradient_norms(model, TensorDataset(torch.randn(4, *shape), torch.tensor([0, 0, 0, 0])), head=head)


def test_what_the_messages_propose() -> None:
    y = torch.tensor([0, 1, 2, 0])
    assert gradient_norms(Twins(), TensorDataset(torch.randn(4, 6), y), head="one").shape == (4,)
    for model, name, shape in (
        (SPATIAL, "0.weight", (6, 3, 3)),
        (GROUPED, "1.weight", (6, 3, 3)),
        (hooked(), "1.weight", (6,)),
    ):
        x = torch.randn(4, *shape)
        found = gradient_norms(model, TensorDataset(x, y), parameters=name)
        assert torch.allclose(found, norms_by_autograd(model, x, y, [model.get_parameter(name)]), rtol=1e-4)
    with pytest.raises(Problem, match=r"\(n, classes\)"):
        gradient_norms(nn.Linear(6, 3), TensorDataset(torch.randn(4, 5, 6), y), parameters="all")


def test_a_batch_of_one_and_a_model_that_squeezes() -> None:
    class Squeezing(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).squeeze()

    (x, y), model = some_rows(9), Squeezing(6, 3)
    whole = gradient_norms(model, TensorDataset(x, y), batch_size=9)
    assert torch.allclose(gradient_norms(model, TensorDataset(x, y), batch_size=4), whole)  # the last batch is one row
    assert torch.allclose(gradient_norms(model, TensorDataset(x[:1], y[:1])), whole[:1])


def test_a_dataset_that_gives_fewer_samples_than_it_has() -> None:
    drops = DataLoader(TensorDataset(*some_rows()), 4, collate_fn=lambda rows: default_collate(rows[:3]))
    with pytest.raises(Problem, match=r"has 11 samples and gave 9"):
        gradient_norms(nn.Linear(6, 3), drops)


@pytest.mark.parametrize("parameters", ["head", "all"])
def test_labels_that_cannot_be_meant_and_the_model_after_an_error(parameters: str) -> None:
    x, y = some_rows()
    model = nn.Sequential(nn.Linear(6, 5), nn.Dropout(), nn.Linear(5, 3)).train()
    model[2].eval()
    F.cross_entropy(model(x), y).backward()
    gradients, state = [each.grad.clone() for each in model.parameters()], torch.get_rng_state()
    for wrong, words in ((3, "sample 7 is 3.*0 to 2"), (-100, "sample 7 is -100")):
        bad = y.clone()
        bad[7] = wrong
        with pytest.raises(Problem, match=words):
            gradient_norms(model, TensorDataset(x, bad), batch_size=4, parameters=parameters)
    for bad in (y.float(), F.one_hot(y)):
        with pytest.raises(Misuse, match="class numbers"):
            gradient_norms(model, TensorDataset(x, bad), parameters=parameters)
    gradient_norms(model, TensorDataset(x, y), parameters=parameters)
    assert [m.training for m in model.modules()] == [True, True, True, False]
    assert all(torch.equal(a, b.grad) for a, b in zip(gradients, model.parameters(), strict=True))
    assert torch.equal(torch.get_rng_state(), state)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_a_stream_is_sent_to_where_it_can_be_scored() -> None:
    class Stream(IterableDataset):
        def __iter__(self) -> Iterator[Any]:
            yield torch.zeros(6), 0

    for stream in (Stream(), DataLoader(Stream())):
        with pytest.raises(Misuse, match="score_stream"):
            gradient_norms(nn.Linear(6, 3), stream)


def test_modules_that_cache_in_the_forward_pass_stay_trainable() -> None:
    class Caching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.cache = nn.Linear(6, 3), None

        def forward(self, x: Tensor) -> Tensor:
            if self.cache is None:
                self.cache = x.new_ones(6) * 2
            return self.fc(x * self.cache)

    (x, y), model = some_rows(), Caching()
    gradient_norms(model, TensorDataset(x, y))
    F.cross_entropy(model(x.requires_grad_()), y).backward()
    assert x.grad is not None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        *(({"p": p}, "p must be at least 0.05") for p in (0, -1, 1e-3)),
        *(({"power": power}, "power must be above 0") for power in (0, -1, math.inf)),
        *(({"batch_size": size}, "batch_size") for size in (0, -1)),
        ({"parameters": ["1.weight"]}, "parameters"),
        ({"model": "resnet"}, "the model is a str; give a network"),
        ({"dataset": (torch.zeros(4, 5), torch.zeros(4))}, r"TensorDataset\(x, y\)"),
        ({"dataset": [(torch.zeros(5), "cat")] * 2}, r"class numbers from 0 on, got .'cat'"),
    ],
)
def test_what_cannot_be_meant(options: dict[str, Any], words: str) -> None:
    for data in (TensorDataset(torch.randn(4, 5), torch.arange(4) % 3), [(torch.randn(5), 1)] * 4):
        with pytest.raises(Misuse, match=words):
            gradient_norms(**{"model": nn.Linear(5, 3), "dataset": data, **options})


def test_inputs_that_are_no_numbers() -> None:
    x, y = some_rows()
    x[4] = math.nan
    with pytest.raises(Problem, match=r"1 of 11 .* sample 4"):
        gradient_norms(nn.Linear(6, 3), TensorDataset(x, y))


# --- norms over the whole network ---------------------------------------------------------------------------------


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
    assert any("a slower way is taken" in record.message for record in caplog.records)


def test_samples_that_a_layer_mixes_are_noticed() -> None:
    class Mixing(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + 0.5 * super().forward(x.flip(0))  # of a batch of one: 1.5 times its own

    torch.manual_seed(2)
    model = nn.Sequential(Mixing(6, 6), nn.Linear(6, 3))
    batch = Batch(torch.randn(5, 6), torch.randint(0, 3, (5,)), torch.arange(5))
    backward = layerwise.Backward(model, layerwise.choose(model, "all"), 2, None)
    backward.norms(batch, 0)
    assert backward.sizes["by layer"] == 0 < backward.sizes["by vmap"]


class Later(nn.Module):
    """What is usual for positive samples and is not for others: sorted inside, a weight used apart, another layer."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.body, self.head, self.expert = kind, nn.Linear(6, 6), nn.Linear(6, 3), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        late = x[:, 0] < 0
        if self.kind == "sorted":
            order = late.long().argsort(stable=True)
            hidden = self.body(x[order])[order.argsort()]
        else:
            hidden = self.body(x)
        if self.kind == "functional" and late.any():
            hidden = hidden + torch.where(late[:, None], nn.functional.linear(x, self.body.weight), 0)
        if self.kind == "expert" and late.any():
            hidden = hidden.index_put((late.nonzero()[:, 0],), self.expert(x[late]))
        return self.head(torch.tanh(hidden))


@pytest.mark.parametrize("kind", ["sorted", "functional", "expert"])
def test_what_only_later_batches_do_is_noticed_there(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    torch.manual_seed(3)
    model, x, y = Later(kind), torch.randn(48, 6), torch.randint(0, 3, (48,))
    x[:16, 0] = x[:16, 0].abs()
    x[32:, 0] = x[32:, 0].abs()
    x[16:32, 0] = -x[16:32, 0].abs() * (-1.0) ** torch.arange(16)  # every second one
    with caplog.at_level(logging.WARNING, "debiaser"):
        found = gradient_norms(model, TensorDataset(x, y), parameters="all", batch_size=16)
    assert torch.allclose(found, definition(model, x, y), rtol=1e-4)
    assert caplog.records, "nothing was noticed"


class Swapping(nn.Module):
    """Two samples change places inside, and again after it."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        order = torch.arange(len(x))
        if len(x) > 200:
            order[[101, 173]] = order[[173, 101]]
        return self.head(torch.tanh(self.body(x[order]))[order])


def test_two_wrong_rows_among_many_are_noticed(caplog: pytest.LogCaptureFixture) -> None:
    """The few that are compared with autograd are others."""
    torch.manual_seed(3)
    model, x, y = Swapping(), torch.randn(256, 6), torch.randint(0, 3, (256,))
    with caplog.at_level(logging.WARNING, "debiaser"):
        found = gradient_norms(model, TensorDataset(x, y), parameters="all")
    assert torch.allclose(found, definition(model, x, y), rtol=1e-4)
    assert "does not have the samples in their own rows" in caplog.text


def test_memory_decides_the_size_of_a_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    model = convolutions().eval()
    batch = Batch(torch.randn(64, 3, 15, 15), torch.zeros(64, dtype=torch.long), torch.arange(64))

    def size() -> int:
        return layerwise.Backward(model, layerwise.choose(model, "all"), 2, None).first_size(
            "by layer", by_layer, batch
        )

    usual = size()
    monkeypatch.setattr(layerwise, "BUDGET", 2**20)
    assert usual > 64 and 1 <= size() < usual / 100


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
