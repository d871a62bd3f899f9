"""A scikit-learn classifier that debiases: features as arrays, or any torch network."""

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import issparse
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
from torch import Tensor, nn

from debiaser.data.split import Split
from debiaser.errors import Misuse, known
from debiaser.learn.forward import dtype_of, predict
from debiaser.learn.recipe import Recipe
from debiaser.learn.sampler import Shares
from debiaser.methods.debias import debias
from debiaser.methods.guarded import GuardedPGD
from debiaser.methods.task import Method

BATCH = 1024  # samples that are predicted at once
WIDEST = 2**20  # units of the default network
NESTED = ("method", "recipe")  # parameters whose fields are parameters too: method__alpha
Maker = Callable[[int, int], nn.Module]


class DebiasedClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier that does not take the shortcut in its training data.

    Features are used as they are, dense or sparse; scale them first, in a Pipeline. In a search, the fields of `method`
    and `recipe` are parameters too: `method__alpha`, `recipe__weight_decay`. `fit` sets the following attributes.

    - `classes_`, `n_features_in_`, and `module_`, the trained network.
    - `scores_` (n,): how strongly each training sample goes against the shortcut; None for methods without scores.
    - `weights_` (n,): how often it was drawn, relative to uniform draws, with mean 1; None for methods without scores.
    - `vanilla_`: a plainly trained network; the same as `module_` if debiasing did not pay, None if none was trained.
    - `comparison_`: the accuracies of both networks on samples like the training data.
    - `decisions_`: what was decided, and why.

    Args:
        module: a torch network that returns one logit per class (a copy is trained), or a function that makes one,
            given the numbers of features and classes; by default one hidden layer in float64.
        method: the method; by default GuardedPGD(), which holds out some samples and falls back to vanilla if debiasing
            does not pay.
        hidden: units of the default network.
        epochs: epochs per stage of the default recipe (AdamW, one-cycle schedule).
        batch_size: batch size of the default recipe.
        lr: highest learning rate of the default recipe.
        recipe: replaces the default recipe.
        random_state: as in scikit-learn.
        class_weight: a weight for each label, which multiplies how often its samples are drawn; or "balanced", to draw
            all classes equally often in every stage.

    Warns:
        DebiasingWarning: (in `fit`) the debiased network must not be used; module_ is vanilla_, unless you passed
            another method.

    Raises:
        Misuse: (in `fit`) the module is not a network or returns fewer logits than there are classes, or a value is out
            of bounds.

    >>> classifier = DebiasedClassifier(epochs=2, random_state=0).fit([[0.0], [0.1], [0.9], [1.0]], [0, 0, 1, 1])
    >>> classifier.predict_proba([[0.5]]).shape
    (1, 2)
    """

    classes_: NDArray[Any]
    module_: nn.Module

    def __init__(
        self,
        module: nn.Module | Maker | None = None,
        method: Method | None = None,
        hidden: int = 64,
        epochs: int = 20,
        batch_size: int = 64,
        lr: float = 0.01,
        recipe: Recipe | None = None,
        random_state: Any = None,
        class_weight: Mapping[Any, float] | str | None = None,
    ) -> None:
        self.module = module
        self.method = method
        self.hidden = hidden
        self.epochs = epochs
        self.batch_size = batch_size
        self.lr = lr
        self.recipe = recipe
        self.random_state = random_state
        self.class_weight = class_weight

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters by name; if `deep`, also the fields of `method` and `recipe`, where given."""
        given = {name: getattr(self, name) for name in NESTED if deep}
        own = ((name, part) for name, part in given.items() if is_dataclass(part) and not isinstance(part, type))
        inner = {f"{name}__{each.name}": getattr(part, each.name) for name, part in own for each in fields(part)}
        return {**super().get_params(deep), **inner}

    def set_params(self, **params: Any) -> "DebiasedClassifier":
        """Set parameters by name; `method__alpha=0.5` changes a field of the method, or of the default method."""
        inner = {name: value for name, value in params.items() if name.partition("__")[0] in NESTED and "__" in name}
        super().set_params(**{name: value for name, value in params.items() if name not in inner})
        for name in {key.partition("__")[0] for key in inner}:
            part = getattr(self, name) or (GuardedPGD() if name == "method" else self._default_recipe())
            names = [each.name for each in fields(part)] if is_dataclass(part) else []
            changes = {key.partition("__")[2]: value for key, value in inner.items() if key.startswith(f"{name}__")}
            for unknown in changes.keys() - set(names):
                raise known(f"field of {type(part).__name__}", unknown, names)
            setattr(self, name, replace(part, **changes))
        return self

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> "DebiasedClassifier":  # noqa: N803
        """Train on features X (n, ...) and labels y (n,) of any type.

        sample_weight (n,) multiplies how often each sample is drawn in training; samples with weight 0 are not drawn.
        """
        values, labels = self._checked(X, y=y)
        check_classification_targets(labels)
        if not isinstance(self.hidden, Integral) or isinstance(self.hidden, bool) or not 1 <= self.hidden <= WIDEST:
            raise Misuse(f"hidden must be a whole number from 1 to {WIDEST:,}, got {self.hidden!r:.60}")
        self.classes_, numbers = np.unique(labels, return_inverse=True)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        network = self._new_module(values, seed)
        split = as_split(values, torch.from_numpy(numbers), network)
        if (outputs := predict(network, [split.batch(torch.arange(min(2, len(split))))]).shape[1]) < len(self.classes_):
            raise Misuse(f"the module gives {outputs} logits, but y has {len(self.classes_)} classes; give it as many")
        reweigh = None
        if sample_weight is not None or self.class_weight is not None:
            reweigh = self._reweighing(numbers, _check_sample_weight(sample_weight, values, ensure_non_negative=True))
        done = debias(network, split, self.method, self.recipe or self._default_recipe(), seed, reweigh)
        self.module_ = done.model
        self.scores_ = None if done.scores is None else done.scores.numpy().astype(np.float64)
        self.weights_ = None if done.probabilities is None else done.probabilities.double().numpy() * len(split)
        self.vanilla_, self.comparison_, self.decisions_ = done.vanilla, done.comparison, done.decisions
        return self

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:  # noqa: N803
        """Return probabilities (n, classes), with columns in the order of `classes_`."""
        check_is_fitted(self)
        values = self._checked(X, reset=False)
        logits = predict(self.module_, as_split(values, torch.zeros(values.shape[0]), self.module_).batches(BATCH))
        return np.asarray(logits[:, : len(self.classes_)].double().softmax(1).numpy())

    def predict(self, X: ArrayLike) -> NDArray[Any]:  # noqa: N803
        """Return the most likely classes (n,)."""
        likely = self.predict_proba(X).argmax(1)  # says first that nothing was fitted
        return np.asarray(self.classes_[likely])

    def _checked(self, X: ArrayLike, **given: Any) -> Any:  # noqa: N803
        """Features, and labels where they are given, as arrays."""
        allow_nd = self.module is not None
        return validate_data(self, X, **given, accept_sparse="csr", allow_nd=allow_nd, dtype=[np.float64, np.float32])

    def _default_recipe(self) -> Recipe:
        return Recipe(epochs=self.epochs, batch_size=self.batch_size, optimizer="adamw", lr=self.lr, weight_decay=1e-4)

    def _reweighing(self, y: NDArray[np.int64], weight: Shares) -> Callable[[Shares], Shares]:
        """What weights make of the probabilities (n,) of draws."""
        even = isinstance(self.class_weight, str) and self.class_weight == "balanced"
        given = {} if even or self.class_weight is None else self.class_weight
        if not isinstance(given, Mapping):
            raise Misuse(f"class_weight cannot be {given!r:.60}; give 'balanced', or a weight by label")
        for label in given.keys() - set(self.classes_.tolist()):
            raise known("label in class_weight", label, self.classes_.tolist())
        for label, each in given.items():
            if not isinstance(each, Real) or not 0 <= each < math.inf:
                raise Misuse(f"class_weight of {label!r} must be a number that is at least 0, got {each!r:.60}")
        own = np.array([given.get(label, 1.0) for label in self.classes_.tolist()], np.float64)
        if not (weight * own[y]).any():
            raise Misuse("sample_weight times class_weight is 0 for every sample; give some a weight above 0")

        def reweigh(shares: Shares) -> Shares:
            shares = shares * weight * own[y]
            return shares / np.maximum(np.bincount(y, shares), np.finfo(float).tiny)[y] if even else shares

        return reweigh

    def _new_module(self, values: NDArray[Any], seed: int) -> nn.Module:
        """The network to start from."""
        if isinstance(self.module, nn.Module):
            return copy.deepcopy(self.module)
        if self.module is not None and not callable(self.module):
            raise Misuse(f"module cannot be {self.module!r}; give a network, or a function that makes one")
        features, outputs = math.prod(values.shape[1:]), max(2, len(self.classes_))  # one class: the second is unused
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            if self.module is not None:
                return self.module(features, outputs)
            layers = (nn.Linear(features, self.hidden), nn.ReLU(), nn.Linear(self.hidden, outputs))
            return nn.Sequential(*layers).double()

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array, tags.input_tags.sparse = self.module is not None, True
        return tags


def as_split(values: Any, labels: Tensor, network: nn.Module) -> Split:
    """The values in the type of the network's parameters; sparse ones become dense batch by batch."""
    dtype = dtype_of(network)
    if issparse(values):
        return Split(labels, lambda rows: torch.from_numpy(values[rows.numpy()].toarray()).to(dtype))
    return Split.of(torch.as_tensor(values if values.flags.writeable else values.copy()).to(dtype), labels)
