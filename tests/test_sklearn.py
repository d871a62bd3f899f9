"""The scikit-learn classifier: scikit-learn's own checks, pipelines, searches, networks of one's own."""

import importlib.util
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import make_classification
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator
from torch import nn

from conftest import ROOT
from debiaser import PGD, LfF, Recipe, Vanilla
from debiaser.errors import Misuse
from debiaser.integrations.sklearn import DebiasedClassifier


def example(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def data() -> tuple[np.ndarray, np.ndarray]:
    return make_classification(200, 8, n_informative=5, n_classes=3, class_sep=2, random_state=0)


def test_what_scikit_learn_checks() -> None:
    """All of them, without one expected failure; those that need another array library are skipped."""
    found = check_estimator(DebiasedClassifier(random_state=0, epochs=10), on_skip=None, on_fail=None)
    assert len(found) > 40
    assert {each["check_name"]: each["exception"] for each in found if each["status"] == "failed"} == {}
    skipped = {
        "check_array_api_input",
        "check_classifier_data_not_an_array",
    }  # need other libraries
    assert {each["check_name"] for each in found if each["status"] != "passed"} <= skipped


def test_deterministic_with_a_random_state(data: tuple[np.ndarray, np.ndarray]) -> None:
    x, y = data
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    one, two, other = (DebiasedClassifier(epochs=2, random_state=state).fit(x, y) for state in (0, 0, 1))
    assert np.array_equal(one.predict_proba(x), two.predict_proba(x)) and np.array_equal(one.scores_, two.scores_)
    assert not np.array_equal(one.predict_proba(x), other.predict_proba(x))
    assert torch.equal(before, torch.get_rng_state()) and threads == torch.get_num_threads()


def test_labels_of_any_kind_and_what_is_learnt(data: tuple[np.ndarray, np.ndarray]) -> None:
    x, y = data
    words = np.array(["camel", "cow", "sheep"])[y]
    model = DebiasedClassifier(random_state=0).fit(x, words)
    assert model.classes_.tolist() == ["camel", "cow", "sheep"] and model.n_features_in_ == 8
    assert model.score(x, words) > 0.8
    assert np.allclose(model.predict_proba(x).sum(1), 1)
    assert model.scores_.shape == model.weights_.shape == (200,) and np.isclose(model.weights_.mean(), 1)
    assert 35 < (model.weights_ == 0).sum() < 45, "a fifth of every class is held out"
    plain = DebiasedClassifier(method=PGD(), epochs=2, random_state=0).fit(x, words)
    assert np.allclose(plain.weights_ / 200, plain.scores_ / plain.scores_.sum())


def test_in_a_pipeline_and_a_search(data: tuple[np.ndarray, np.ndarray]) -> None:
    x, y = data
    pipe = make_pipeline(StandardScaler(), DebiasedClassifier(epochs=5, random_state=0))
    choices = {
        "debiasedclassifier__method": [PGD(), PGD(p=1), Vanilla()],
        "debiasedclassifier__hidden": [4],
    }
    search = GridSearchCV(pipe, choices, cv=2).fit(x, y)
    assert search.best_score_ > 0.4 and search.best_params_["debiasedclassifier__hidden"] == 4
    assert len(search.cv_results_["params"]) == 3


def test_a_network_of_ones_own(data: tuple[np.ndarray, np.ndarray]) -> None:
    x, y = data
    pictures = x.reshape(200, 2, 2, 2).astype(np.float32)
    network = nn.Sequential(nn.Conv2d(2, 6, 2), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(6, 3))
    start = {name: value.clone() for name, value in network.state_dict().items()}
    recipe = Recipe(epochs=3, batch_size=32, lr=0.05)
    model = clone(DebiasedClassifier(network, recipe=recipe, random_state=0)).fit(pictures, y)
    assert model.predict(pictures).shape == (200,) and not model.module_.training
    assert all(torch.equal(start[name], value) for name, value in network.state_dict().items()), "a copy is trained"
    made = DebiasedClassifier(lambda features, classes: nn.Linear(features, classes), epochs=1).fit(x, y)
    assert made.module_.weight.shape == (3, 8)
    assert DebiasedClassifier(method=LfF(), epochs=1).fit(x, y).weights_ is None


def test_the_example() -> None:
    found = example("scikit_learn").main()
    assert found["debiased"] > found["plain"]
    assert found["weight of conflicting samples"] > 3 * found["weight of other samples"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"module": "mlp"}, "module cannot be 'mlp'"),
        ({"module": nn.Linear(8, 2)}, "gives 2 logits, but y has 3 classes"),
        ({"batch_size": 1}, r"a batch_size of 1 leaves .* at least 2$"),
        ({"hidden": 0}, "hidden must be at least 1"),
    ],
)
def test_what_cannot_be_meant(options: dict[str, Any], words: str, data: tuple[np.ndarray, np.ndarray]) -> None:
    with pytest.raises(Misuse, match=words):
        DebiasedClassifier(**options).fit(*data)
