"""`debias(model, dataset)`: every method on whatever networks give and take, and input that cannot be meant."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from debiaser import EIIL, GEORGE, PGD, LfF, Recipe, debias
from debiaser.errors import Misuse, Problem
from debiaser.learn.checkpoint import write_tensors
from debiaser.learn.groups import reduce_features
from debiaser.methods import METHODS, find_method

SHORT = Recipe(epochs=1, batch_size=16, lr=0.01)
METHODS_HERE = {name: method for name in METHODS if not (method := find_method(name)()).uses_groups} | {
    "eiil": EIIL(steps=20),
    "irm": EIIL(steps=20, learner="irm"),
    "george": GEORGE(reduce="pca"),
}
X = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))
Y = torch.arange(40) % 3


class Named(nn.Module):
    """Takes its input by name and gives a dictionary, as transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 5), nn.Linear(5, 3)

    def forward(self, pixel_values: Tensor) -> dict[str, Tensor]:
        return {"logits": self.last(self.first(pixel_values).relu())}


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))


@pytest.mark.parametrize("name", METHODS_HERE)
@pytest.mark.filterwarnings("ignore:Number of distinct clusters")
def test_every_method_takes_dictionaries_and_other_precisions(name: str) -> None:
    rows = [{"pixel_values": x, "labels": y} for x, y in zip(X, Y, strict=True)]
    debias(Named(), rows, METHODS_HERE[name], SHORT)
    for dtype in (torch.float64, torch.bfloat16):
        done = debias(network().to(dtype), TensorDataset(X.to(dtype), Y), METHODS_HERE[name], SHORT)
        assert {each.dtype for each in done.model.parameters()} == {dtype}


@pytest.mark.parametrize(
    ("dataset", "words"),
    [
        (TensorDataset(X, Y + 1), "the label of sample 2 is 3, but the model gives 3 logits"),
        ([(x, "cat") for x in X], "class numbers from 0 on, got .*'cat'"),
        (TensorDataset(X), "a pair"),
        ([{"pixel_values": x} for x in X], "no labels under"),
        ((X, Y), "a pair"),
        ([], "empty|no "),
        (TensorDataset(X, Y / 2), "class numbers"),
        (TensorDataset(X, Y - 1), "negative|from 0"),
    ],
)
def test_labels_that_cannot_be_meant(dataset: Any, words: str) -> None:
    with pytest.raises(Problem, match=words):
        debias(network(), dataset, recipe=SHORT)


def test_labels_may_be_true_and_false() -> None:
    truths, model = [bool(y) for y in Y], network()
    said = debias(model, list(zip(X, truths, strict=True)), PGD(), SHORT)
    counted = debias(model, list(zip(X, map(int, truths), strict=True)), PGD(), SHORT)
    assert torch.equal(said.scores, counted.scores) and len(said.scores) == len(X)


@pytest.mark.parametrize("how", [{"method": PGD}, {"method": "pgd"}, {"recipe": "fast"}, {"recipe": {"epochs": 1}}])
def test_a_method_and_a_recipe_are_objects(how: dict[str, Any]) -> None:
    with pytest.raises(Misuse, match=r"cannot be .*; give a "):
        debias(network(), TensorDataset(X, Y), **how)


class Counting(nn.Linear):
    """Keeps something in its state that is no tensor."""

    rows = 0

    def get_extra_state(self) -> dict[str, int]:
        return {"rows": self.rows}

    def set_extra_state(self, state: dict[str, int]) -> None:
        self.rows = state["rows"]


def test_a_network_whose_state_is_not_all_tensors(tmp_path: Path) -> None:
    done = debias(Counting(6, 3), TensorDataset(X, Y), PGD(joint=True), SHORT)
    assert isinstance(done.model, Counting) and len(done.scores) == len(X)
    with pytest.raises(Problem, match="no tensor under '_extra_state'"):
        write_tensors(tmp_path / "model.safetensors", Counting(6, 3).state_dict())


def test_a_frozen_network_is_refused() -> None:
    with pytest.raises(Problem, match="frozen"):
        debias(network().requires_grad_(False), TensorDataset(X, Y), recipe=SHORT)


def test_lff_by_gradient_refuses_a_head_that_does_more_than_multiply() -> None:
    scaling = network()
    scaling[2].register_forward_hook(lambda _, __, out: out * 2)
    with pytest.raises(Problem, match="as the plain product"):
        debias(scaling, TensorDataset(X, Y), LfF(score="gradient"), SHORT)


def test_a_class_of_one_row_is_a_cluster_without_complaints_of_others() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        one, others = reduce_features(np.ones((1, 5)), np.ones((3, 5)), "pca", 2, 0)
    assert len(one) == 1 and len(others) == 3 and one.shape[1] == others.shape[1]
