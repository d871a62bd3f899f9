"""The generators: sizes, shares within binomial error, the same bytes for the same seed, and who may see what."""

from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import binomtest

from debiaser.data.benchmarks import DATASETS, digits, mnist
from debiaser.data.bias import PALETTE, draw_bias
from debiaser.data.split import Batch, Benchmark, Split, Truth
from debiaser.errors import Misuse
from debiaser.methods.task import Task


def pixels(split: Split) -> torch.Tensor:
    return torch.cat([batch.x for batch in split.batches(2000)])


def test_digits_have_their_sizes_and_form(benchmark_digits: Benchmark) -> None:
    b = benchmark_digits
    assert (len(b.train), len(b.valid), len(b.test)) == (1167, 130, 500)
    batch = b.train.batch(torch.tensor([5, 3, 5]))
    assert batch.x.shape == (3, 3, 28, 28) and batch.x.dtype == torch.float32
    assert batch.rows.tolist() == [5, 3, 5] and torch.equal(batch.x[0], batch.x[2])
    assert batch.x.min() >= 0 and 0.5 < batch.x.max() <= 1
    assert b.classes == tuple("0123456789") and b.attributes == ("colour",)


@pytest.mark.parametrize("rho", [0.01, 0.05, 0.3, 0.9])
def test_share_of_conflicting_rows(rho: float) -> None:
    b = digits.load(None, rho, 3)
    kind = b.truth["train"].conflicting(b.train.y)
    assert binomtest(int(kind.sum()), len(kind), rho).pvalue > 0.001
    test = b.truth["test"].conflicting(b.test.y)
    assert binomtest(int(test.sum()), len(test), 0.9).pvalue > 0.001


def test_colours_are_those_of_the_bias(benchmark_digits: Benchmark) -> None:
    x, bias = pixels(benchmark_digits.train), benchmark_digits.truth["train"].bias[:, 0]
    brightest = x.flatten(2).amax(2)  # grey reaches 255 in every digit, so the largest value is the colour
    assert (brightest - torch.from_numpy(PALETTE)[bias].float()).abs().median() < 0.02


def test_same_seed_same_bytes_and_another_seed_others() -> None:
    one, two, other = (digits.load(None, 0.05, seed) for seed in (0, 0, 1))
    assert torch.equal(pixels(one.train), pixels(two.train)) and torch.equal(pixels(one.test), pixels(two.test))
    assert not torch.equal(pixels(one.train), pixels(other.train))
    rare, common = digits.load(None, 0.01, 0), digits.load(None, 0.2, 0)
    assert torch.equal(pixels(rare.test), pixels(common.test)), "the test set is the same for every rho"


def test_noise_flips_labels_and_counts_them_as_flipped() -> None:
    b = digits.load(None, 0.05, 0, noise=0.2)
    truth = b.truth["train"]
    flipped = truth.flipped(b.train.y)
    assert binomtest(int(flipped.sum()), len(flipped), 0.2).pvalue > 0.001
    assert not (truth.conflicting(b.train.y)[flipped] == 1).any()
    assert not b.truth["test"].flipped(b.test.y).any()
    assert torch.equal(truth.target, digits.load(None, 0.05, 0).train.y)


def test_kinds_by_hand() -> None:
    truth = Truth(torch.tensor([0, 1, 2, 2]), torch.tensor([[0], [2], [2], [-1]]))
    assert truth.conflicting(torch.tensor([0, 1, 2, 2])).tolist() == [0, 1, 0, -1]
    assert truth.conflicting(torch.tensor([0, 0, 1, 2])).tolist() == [0, 0, 0, -1]


def test_draws_never_give_the_target_when_they_must_not() -> None:
    rng, target = np.random.default_rng(0), np.arange(10).repeat(100)
    assert (draw_bias(target, 1.0, 10, rng) != target).all()
    assert (draw_bias(target, 0.0, 10, rng) == target).all()
    others = draw_bias(np.zeros(90_000, dtype=np.int64), 1.0, 10, rng)
    assert np.abs(np.bincount(others, minlength=10)[1:] / 10_000 - 1).max() < 0.05


@pytest.mark.parametrize("rho", [0, 1, -0.1, 1.5, float("nan")])
def test_rho_outside_is_refused(rho: float) -> None:
    with pytest.raises(Misuse, match="rho"):
        digits.load(None, rho, 0)


def test_no_bias_label_can_reach_a_method() -> None:
    reachable = {each.name for kind in (Batch, Split, Task) for each in fields(kind)}
    assert not reachable & {"bias", "truth", "group", "conflicting", "attributes"}


def test_subset_and_order() -> None:
    split = Split.of(torch.arange(10.0)[:, None], torch.arange(10))
    part = split.subset(torch.tensor([7, 2, 4]))
    assert part.batch(torch.tensor([1, 0])).x.flatten().tolist() == [2, 7]
    assert [batch.rows.tolist() for batch in part.batches(2)] == [[0, 1], [2]]


def test_colored_mnist_is_the_papers(real_data: Path) -> None:
    b = mnist.load_cmnist(real_data, 0.005, 0)
    assert (len(b.train), len(b.valid), len(b.test)) == (54_000, 6_000, 10_000)
    kind = b.truth["train"].conflicting(b.train.y)
    assert binomtest(int(kind.sum()), 54_000, 0.005).pvalue > 0.001
    x, grey = b.train.batch(torch.arange(64)).x, mnist.parts(real_data)["train"].images[:64]
    colour = torch.from_numpy(PALETTE)[b.truth["train"].bias[:64, 0]].float()
    assert (x - torch.from_numpy(grey)[:, None] / 255 * colour[:, :, None, None]).abs().max() < 1e-3
    rest = x / torch.from_numpy(grey)[:, None].float() * 255
    drawn = rest[:, :, grey.max(0) > 0]
    spread = (drawn.nan_to_num(posinf=0).amax(2) - colour)[colour < 0.999]
    assert 3e-5 < spread.std() < 3e-4, "one small colour draw per image"
    again, other = mnist.load_cmnist(real_data, 0.05, 0), mnist.load_cmnist(real_data, 0.005, 1)
    rows = torch.arange(500)
    assert torch.equal(b.test.batch(rows).x, again.test.batch(rows).x)
    assert torch.equal(b.test.batch(rows).x, other.test.batch(rows).x)
    assert not torch.equal(b.train.batch(rows).x, other.train.batch(rows).x)


def test_colour_as_the_target(real_data: Path) -> None:
    plain, twin = mnist.load_cmnist(real_data, 0.05, 0), mnist.load_cmnist_colour(real_data, 0.05, 0)
    rows = torch.arange(1000)
    assert torch.equal(plain.train.batch(rows).x, twin.train.batch(rows).x), "the same pictures"
    assert torch.equal(twin.train.y, plain.truth["train"].bias[:, 0])
    assert torch.equal(twin.truth["train"].bias[:, 0], plain.train.y)
    assert twin.attributes == ("digit",) and twin.classes[0] == "crimson"


@pytest.mark.parametrize("name", DATASETS)
def test_every_dataset_can_be_specified(name: str) -> None:
    from debiaser.paper.settings import SETTINGS
    from debiaser.paper.spec import new_spec

    assert DATASETS[name].about
    if SETTINGS[name].rho is not None:
        assert new_spec(name, "pgd").key != new_spec(name, "pgd", rho=0.02).key
    with pytest.raises(Misuse, match=f"option of {name}"):
        new_spec(name, "pgd", options=["nosuch=1"])
