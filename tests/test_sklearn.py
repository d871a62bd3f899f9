"""The scikit-learn classifier: scikit-learn's own checks, pipelines, searches, networks of one's own."""

from typing import Any

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array
from sklearn.base import clone
from sklearn.datasets import make_classification
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator
from torch import nn

from conftest import example
from debiaser import CNC, PGD, LfF, Recipe, Vanilla
from debiaser.errors import Misuse
from debiaser.integrations.sklearn import DebiasedClassifier
from debiaser.methods.afr import AFR
from debiaser.methods.guarded import GuardedPGD
from debiaser.methods.task import Method


@pytest.fixture(scope="module")
def data() -> tuple[np.ndarray, np.ndarray]:
    return make_classification(200, 8, n_informative=5, n_classes=3, class_sep=2, random_state=0)


def test_what_scikit_learn_checks() -> None:
    """All but one, for which scikit-learn excuses its own learners that draw samples; some need another library."""
    told = "draws are random: a sample of weight 2 is drawn twice as often, and not the same as two samples"
    excused = {f"check_sample_weight_equivalence_on_{kind}_data": told for kind in ("dense", "sparse")}
    classifier = DebiasedClassifier(random_state=0, epochs=10)
    found = check_estimator(classifier, expected_failed_checks=excused, on_skip=None, on_fail=None)
    assert len(found) > 40
    assert {each["check_name"]: each["exception"] for each in found if each["status"] == "failed"} == {}
    skipped = {"check_array_api_input", "check_classifier_data_not_an_array"}  # need other libraries
    assert {each["check_name"] for each in found if each["status"] != "passed"} <= skipped | excused.keys()


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
    assert (model.weights_ == 1).all(), "no shortcut, so nothing is compared and nothing held out"
    plain = DebiasedClassifier(method=PGD(), epochs=2, random_state=0).fit(x, words)
    assert np.allclose(plain.weights_ / 200, plain.scores_ / plain.scores_.sum())


def test_in_a_pipeline_and_a_search(data: tuple[np.ndarray, np.ndarray]) -> None:
    x, y = data
    pipe = make_pipeline(StandardScaler(), DebiasedClassifier(epochs=5, random_state=0))
    choices = {"debiasedclassifier__method": [PGD(), PGD(p=1), Vanilla()], "debiasedclassifier__hidden": [4]}
    search = GridSearchCV(pipe, choices, cv=2).fit(x, y)
    assert search.best_score_ > 0.4 and search.best_params_["debiasedclassifier__hidden"] == 4
    assert len(search.cv_results_["params"]) == 3


def test_fields_of_method_and_recipe_are_parameters(data: tuple[np.ndarray, np.ndarray]) -> None:
    model = DebiasedClassifier(epochs=2, random_state=0).set_params(method=PGD(), method__alpha=0.3, hidden=4)
    assert model.method == PGD(alpha=0.3) and model.get_params()["method__alpha"] == 0.3 and model.hidden == 4
    assert clone(model).set_params(method__p=1).method == PGD(alpha=0.3, p=1) and model.method.p == 2, "a copy changes"
    assert DebiasedClassifier(epochs=3).set_params(recipe__clip=1.0).recipe.epochs == 3, "the default with one change"
    assert DebiasedClassifier().set_params(method__strength=0.5).method == GuardedPGD(strength=0.5)
    search = GridSearchCV(model, {"method__alpha": [0.2, 0.9], "recipe__lr": [0.01]}, cv=2).fit(*data)
    assert search.best_estimator_.method.alpha == search.best_params_["method__alpha"]
    with pytest.raises(Misuse, match="unknown field of PGD 'beta'; known: alpha"):
        model.set_params(method__beta=1)


@pytest.mark.parametrize("method", [None, PGD(), Vanilla(), LfF()])
def test_weights_decide_how_often_samples_are_drawn(method: Method | None) -> None:
    """Of two groups of samples with opposite rules, the one that weighs something is learnt; sparse or not."""
    stream = np.random.default_rng(0)
    y = np.arange(400) % 2
    x = np.where(y, 1.0, -1.0)[:, None] + 0.1 * stream.normal(size=(400, 3))
    turned = np.arange(400) >= 200
    weight, labels = np.where(turned, 1.0, 0.0), np.where(turned, 1 - y, y)
    model = DebiasedClassifier(method=method, epochs=5, random_state=0).fit(csr_array(x), labels, weight)
    assert (model.predict(csr_array(x)) == 1 - y).mean() > 0.95
    assert np.array_equal(model.predict(x), model.predict(csr_array(x)))
    assert model.weights_ is None or (model.weights_[~turned] == 0).all()


def test_class_weight(data: tuple[np.ndarray, np.ndarray]) -> None:
    """Classes that overlap: how often each is drawn decides what is answered, and balanced classes are drawn alike."""
    stream = np.random.default_rng(0)
    y = np.repeat(["cow", "camel"], [360, 40])
    x = (y == "camel")[:, None] + stream.normal(size=(400, 1))

    def camels(**options: Any) -> float:
        made = DebiasedClassifier(method=Vanilla(), epochs=5, random_state=0, **options).fit(x, y)
        return float((made.predict(x) == "camel").mean())

    plain, even, only = camels(), camels(class_weight="balanced"), camels(class_weight={"cow": 0})
    assert plain < 0.1 and 0.3 < even < 0.5 and only == 1
    assert even == pytest.approx(camels(class_weight={"camel": 9}), abs=0.1)
    drawn = DebiasedClassifier(method=PGD(), epochs=2, random_state=0, class_weight="balanced").fit(x, y).weights_
    assert drawn[y == "cow"].sum() == pytest.approx(200) and drawn[y == "camel"].sum() == pytest.approx(200)


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
        ({"hidden": 0}, "hidden must be a whole number from 1 to 1,048,576, got 0"),
        ({"hidden": "64"}, "a whole number .*, got '64'"),
        ({"hidden": True}, "a whole number .*, got True"),
        ({"hidden": 10**30}, "a whole number .*, got 1000"),
        ({"epochs": 2.5}, "epochs must be a whole number, got 2.5"),
        ({"lr": "fast"}, "lr must be a positive number, got 'fast'"),
        ({"method": "pgd"}, "method cannot be 'pgd'; give a method with its fields"),
        ({"method": {"alpha": 1}}, "method cannot be {'alpha': 1}"),
        ({"recipe": {"lr": 1}}, "recipe cannot be {'lr': 1}"),
        ({"class_weight": "even"}, "class_weight cannot be 'even'; give 'balanced'"),
        ({"class_weight": {7: 1}}, "unknown label in class_weight '7'; known: 0, 1, 2"),
        ({"class_weight": [1, 2, 3]}, r"class_weight cannot be \[1, 2, 3\]"),
        ({"class_weight": {0: -1}}, "class_weight of 0 must be a number that is at least 0, got -1"),
        ({"class_weight": {1: "much"}}, "class_weight of 1 must be a number .* got 'much'"),
        ({"class_weight": {1: float("nan")}}, "must be a number .* got nan"),
        ({"class_weight": {1: float("inf")}}, "must be a number .* got inf"),
        ({"class_weight": {2: None}}, "must be a number .* got None"),
        ({"class_weight": {2: [1.0, 2.0]}}, "must be a number .* got "),
        ({"class_weight": {0: 0, 1: 0, 2: 0}}, "is 0 for every sample"),
        ({"class_weight": "balanced", "method": CNC(), "epochs": 1}, "draws by a rule of its own"),
        ({"class_weight": "balanced", "method": AFR(), "epochs": 1}, "a last layer that is fitted anew"),
    ],
)
def test_what_cannot_be_meant(options: dict[str, Any], words: str, data: tuple[np.ndarray, np.ndarray]) -> None:
    with pytest.raises(Misuse, match=words):
        DebiasedClassifier(**options).fit(*data)
