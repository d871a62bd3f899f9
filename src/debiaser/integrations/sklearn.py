"""A scikit-learn classifier that debiases: features as arrays, or any torch network."""

import copy
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from debiaser.data.split import Split
from debiaser.errors import Misuse
from debiaser.learn.forward import predict
from debiaser.learn.recipe import Recipe
from debiaser.methods.debias import debias
from debiaser.methods.task import Method

BATCH = 1024  # samples that are predicted at once
Maker = Callable[[int, int], nn.Module]


class DebiasedClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier that does not take the shortcut in its training data.

    Features are taken as they are: scale them first, in a Pipeline. After `fit`: classes_, n_features_in_, module_ (the
    trained network), scores_ (n,) how strongly every training sample goes against the shortcut, weights_ (n,) how often
    it was drawn relative to an even share, with mean 1; both None for methods without scores. vanilla_ is the plain
    network beside module_ (the same where debiasing did not pay; None where none was trained), comparison_ how the
    two did on samples like the training data, told_ what was decided and why.

    Args:
        module: a torch network that gives one logit per class (a copy is trained), or a function of the numbers of
            features and classes that makes one; by default one hidden layer in float64.
        method: by default GuardedPGD(), which holds some samples out and takes vanilla where debiasing does not pay.
        hidden: units of the default network.
        epochs: per stage, of an AdamW recipe with a one-cycle schedule.
        batch_size: of that recipe.
        lr: its largest learning rate.
        recipe: replaces that recipe.
        random_state: as everywhere in scikit-learn.

    Warns:
        DebiasingWarning: (in `fit`) the debiased network must not be used; module_ is vanilla_, unless another method
            was asked for by name.

    Raises:
        Misuse: (in `fit`) a module that is no network or gives fewer logits than classes, or values out of bounds.

    >>> classifier = DebiasedClassifier(epochs=2, random_state=0).fit([[0.0], [0.1], [0.9], [1.0]], [0, 0, 1, 1])
    >>> classifier.predict_proba([[0.5]]).shape
    (1, 2)
    """

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
    ) -> None:
        self.module = module
        self.method = method
        self.hidden = hidden
        self.epochs = epochs
        self.batch_size = batch_size
        self.lr = lr
        self.recipe = recipe
        self.random_state = random_state

    def fit(self, X: ArrayLike, y: ArrayLike) -> "DebiasedClassifier":  # noqa: N803
        """Train on features X (n, ...) and labels y (n,) of any kind."""
        values, labels = validate_data(self, X, y, allow_nd=self.module is not None, dtype=[np.float64, np.float32])
        check_classification_targets(labels)
        if self.hidden < 1:
            raise Misuse(f"hidden must be at least 1, got {self.hidden}")
        self.classes_, numbers = np.unique(labels, return_inverse=True)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        network = self._new_module(values, seed)
        x = as_tensor(values, network)
        if (outputs := logits_of(network, x[:2]).shape[1]) < len(self.classes_):
            raise Misuse(f"the module gives {outputs} logits, but y has {len(self.classes_)} classes; give it as many")
        recipe = self.recipe or Recipe(
            epochs=self.epochs, batch_size=self.batch_size, optimizer="adamw", lr=self.lr, weight_decay=1e-4
        )
        done = debias(network, Split.of(x, torch.from_numpy(numbers)), self.method, recipe, seed)
        self.module_ = done.model
        self.scores_ = None if done.scores is None else done.scores.numpy().astype(np.float64)
        self.weights_ = None if done.probabilities is None else done.probabilities.double().numpy() * len(x)
        self.vanilla_, self.comparison_, self.told_ = done.vanilla, done.comparison, done.told
        return self

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:  # noqa: N803
        """(n, classes) probabilities, columns in the order of classes_."""
        check_is_fitted(self)
        allow_nd = self.module is not None
        values = validate_data(self, X, reset=False, allow_nd=allow_nd, dtype=[np.float64, np.float32])
        logits = logits_of(self.module_, as_tensor(values, self.module_))
        probabilities: NDArray[np.float64] = logits[:, : len(self.classes_)].double().softmax(1).numpy()
        return probabilities

    def predict(self, X: ArrayLike) -> NDArray[Any]:  # noqa: N803
        """(n,) the likeliest classes."""
        likely = self.predict_proba(X).argmax(1)
        classes: NDArray[Any] = self.classes_[likely]
        return classes

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
        tags.input_tags.three_d_array = self.module is not None
        return tags


def as_tensor(values: NDArray[Any], network: nn.Module) -> Tensor:
    """The values in the type of the network's parameters."""
    dtype = next((parameter.dtype for parameter in network.parameters()), torch.get_default_dtype())
    return torch.as_tensor(values if values.flags.writeable else values.copy()).to(dtype)  # torch only takes writable


def logits_of(network: nn.Module, x: Tensor) -> Tensor:
    """(n, k) logits in eval mode."""
    return predict(network, Split.of(x, torch.zeros(len(x))).batches(BATCH))
