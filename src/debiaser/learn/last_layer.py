"""Last layers fitted on fixed features: weighted logistic regression, balanced subsets averaged, the worst group first.

A last layer is the weights (k, h) and biases (k,) of a linear map from features as they come; features are standardised
inside. `strength` is the inverse strength of regularisation (scikit-learn's C) at weights of mean 1.
"""

import warnings
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax

from debiaser.io import numpy_stream
from debiaser.learn.groups import balancing_weights

LastLayer: TypeAlias = tuple[NDArray[np.float32], NDArray[np.float32]]
Vector: TypeAlias = NDArray[np.float64]
Rows: TypeAlias = NDArray[np.int64]

STEPS = 500  # of the solver, at most
SUBSETS = 10  # of DFR
ROUNDS, ETA, FOLDS = 10, 1.0, 4  # of GroupDRO: how often, how fast and by what a group's weight grows with its loss
SHARPEST = 5.0  # logarithm of the largest scale of a calibrated last layer
NEVER = -30.0  # the bias of a class that no sample has


class LogisticFit:
    """Logistic regressions on the same features (n, h) and labels (n,) of k classes, under many weightings."""

    def __init__(self, features: NDArray[Any], y: Rows, k: int, strength: float, l1: bool = False) -> None:
        self.mean, deviation = features.mean(0, dtype=np.float64), features.std(0, dtype=np.float64)
        self.scale = 1 / np.where(deviation > 1e-9, deviation, 1.0)
        self.x = ((features - self.mean) * self.scale).astype(np.float32)
        self.y, self.k, self.strength, self.l1 = y, k, strength, l1

    def fit(self, weight: Vector | None = None, rows: Rows | None = None) -> LastLayer:
        """The last layer under weights (n,) of the samples, or on some of them."""
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.linear_model import LogisticRegression

        x, y = (self.x, self.y) if rows is None else (self.x[rows], self.y[rows])
        even = None if weight is None else weight * (len(y) / weight.sum())
        there = np.unique(y if weight is None else y[weight > 0])
        weights, biases = np.zeros((self.k, x.shape[1])), np.full(self.k, NEVER)
        biases[there] = 0.0
        if len(there) > 1:
            sparse: Any = {"l1_ratio": 1, "solver": "saga", "random_state": 0} if self.l1 else {}
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)  # the last step is as good as any other stop
                found = LogisticRegression(C=self.strength, max_iter=STEPS, **sparse).fit(x, y, even)
            both = len(found.classes_) == 2
            weights[found.classes_] = np.vstack([-found.coef_, found.coef_]) / 2 if both else found.coef_
            cut = found.intercept_
            biases[found.classes_] = np.concatenate([-cut, cut]) / 2 if both else cut
        weights *= self.scale
        return weights.astype(np.float32), (biases - weights @ self.mean).astype(np.float32)

    def logits(self, layer: LastLayer) -> Vector:
        """(n, k) what a last layer answers to every sample."""
        weights, biases = layer
        return np.asarray(self.x @ (weights / self.scale).T.astype(np.float32) + (biases + weights @ self.mean))

    def calibrated(self, weight: Vector) -> LastLayer:
        """The same, scaled so that its probabilities fit the labels: strong regularisation evens them out."""
        layer = self.fit(weight)
        logits = self.logits(layer)

        def loss(log_scale: float) -> float:
            return float(weight @ self.losses(np.exp(log_scale) * logits))

        scale = np.float32(np.exp(minimize_scalar(loss, bounds=(-SHARPEST, SHARPEST), method="bounded").x))
        return layer[0] * scale, layer[1] * scale

    def losses(self, logits: Vector) -> Vector:
        """(n,) cross-entropy of every sample."""
        return -np.take_along_axis(log_softmax(logits, axis=1), self.y[:, None], 1)[:, 0]

    def balanced_subsets(self, groups: Rows, seed: int, subsets: int = SUBSETS) -> LastLayer:
        """DFR: the mean of last layers fitted on subsets in which every group (n,) is as large as the smallest."""
        stream = numpy_stream(seed, "balanced subsets")
        members = [np.flatnonzero(groups == g) for g in np.unique(groups)]
        size = min(map(len, members))
        drawn = [np.concatenate([stream.permutation(each)[:size] for each in members]) for _ in range(subsets)]
        layers = [self.fit(rows=np.sort(rows)) for rows in drawn]
        return np.mean([each for each, _ in layers], 0), np.mean([each for _, each in layers], 0)

    def group_dro(self, groups: Rows, seed: int) -> LastLayer:
        """GroupDRO by best responses: fit under group weights q, then q grows by exp(eta loss of the group).

        The loss is out of fold, since a small group is soon memorised and would never gain weight. The q whose
        worst group (n,) does best out of fold is kept.
        """
        _, groups = np.unique(groups, return_inverse=True)
        stream, sizes, fold = numpy_stream(seed, "GroupDRO"), np.bincount(groups), np.empty(len(groups), np.int64)
        for group, size in enumerate(sizes):
            fold[groups == group] = stream.permutation(size) % FOLDS
        q = kept = np.full(len(sizes), 1 / len(sizes))
        most = -1.0
        for _ in range(ROUNDS):
            logits = np.empty((len(groups), self.k))
            for each in range(FOLDS):
                logits[fold == each] = self.logits(self.fit((q / sizes)[groups] * (fold != each)))[fold == each]
            worst = (np.bincount(groups, logits.argmax(1) == self.y) / sizes).min()
            if worst > most:
                most, kept = worst, q
            q = q * np.exp(ETA * np.bincount(groups, self.losses(logits)) / sizes)
            q /= q.sum()
        return self.fit((kept / sizes)[groups])


def equal_groups(groups: Rows, weight: Vector | None = None) -> Vector:
    """(n,) weights that make every group count the same; samples that weigh nothing stay out."""
    weights = np.zeros(len(groups))
    inside = np.ones(len(groups), bool) if weight is None else weight > 0
    weights[inside] = balancing_weights(np.unique(groups[inside], return_inverse=True)[1])
    return weights
