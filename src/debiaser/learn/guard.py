"""What keeps draws by score from inverting the rule: capped shares, a null world, doubt of labels, a comparison.

PGD draws a sample in proportion to how wrong a biased model is about it. Where that model knows all there is to know,
the draws make every label equally likely and what is learnt is chance, or the rule reversed. Here is what notices.
"""

import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from debiaser.errors import DebiasingWarning
from debiaser.learn.last_layer import LogisticFit
from debiaser.learn.sampler import effective_sample_size

Vector: TypeAlias = NDArray[np.float64]
Rows: TypeAlias = NDArray[np.int64]
Mask: TypeAlias = NDArray[np.bool_]

FEWEST = 5  # samples of a cell, below which its accuracy says nothing
DOUBTED = 0.001  # of the weight of the most trusted label stays, however surely another is wrong
NULL_WORLDS = 3
STRENGTHS = (0.5, 1.0)  # that are tried
REGULARISATION = 0.1  # inverse, of the last layers that are compared
AT_MOST = 2000  # correctly classified samples, and misclassified ones, that a last layer is fitted on


# --- The draws


def guarded_shares(
    y: Rows, misclassified: Mask, scores: Vector, strength: float = 1.0, trust: Vector | None = None, power: float = 0.5
) -> Vector:
    """(n,) the probability of every sample to be drawn: the same for every class, by score only as far as it is safe.

    Of a class's draws, those for misclassified samples go from their own share (strength 0) to 1 - 1/k of k classes
    (strength 1): the biased model is then right as often as chance, so what it knows tells nothing, and no less than
    nothing. Among them, and among the others, draws go by scores to a power below 1, times trust. A class that has
    none of one kind is drawn evenly; samples of score 0 are not drawn.
    """
    there = scores > 0
    weight = np.where(there, scores, 0.0) ** (power * strength) * there
    weight = weight * (1.0 if trust is None else trust)
    shares, labels = np.zeros(len(y)), np.unique(y[there])
    for label in labels:
        mine = there & (y == label)
        parts, own = (mine & misclassified, mine & ~misclassified), misclassified[mine].mean()
        goal = own + strength * (1 - 1 / max(2, len(labels)) - own)
        for part, share in zip(parts, (goal, 1 - goal), strict=True):
            if 0 < own < 1:
                shares[part] = share * weight[part] / weight[part].sum()
            else:
                shares[part] = 1 / max(1, part.sum())
    return np.asarray(shares / shares.sum())


# --- The null world


def calibrated(probability: Vector, y: Rows, inside: Mask) -> Vector:
    """(n, k) probabilities at the temperature under which the labels are most likely."""
    logs = np.log(np.maximum(np.nan_to_num(probability, nan=1.0), 1e-12))

    def at(temperature: float) -> Vector:
        heated = np.exp((logs - logs.max(1, keepdims=True)) / temperature)
        return np.asarray(heated / heated.sum(1, keepdims=True))

    def surprise(temperature: float) -> float:
        chances = np.take_along_axis(at(temperature), y[:, None], 1)[inside]
        return float(-np.log(np.maximum(chances, 1e-12)).mean())

    return at(min(np.geomspace(0.2, 20, 60), key=surprise))


def null_labels(probability: Vector, y: Rows, inside: Mask, stream: np.random.Generator) -> Rows:
    """(n,) labels of a world in which there is nothing but what the biased model knows: drawn from its calibrated
    probabilities, so that the rest is noise; labels outside stay."""
    chances = calibrated(probability, y, inside)
    drawn = (chances.cumsum(1) < stream.random((len(y), 1))).sum(1).clip(0, chances.shape[1] - 1)
    return np.where(inside, drawn, y)


def residual_norms(probability: Vector, y: Rows) -> Vector:
    """(n,) the length of p - onehot(y), by which a score is the length of the feature times this."""
    return np.asarray(np.linalg.norm(probability - np.eye(probability.shape[1])[y], axis=1))


# --- Conflicting or mislabelled


def likelihoods(judge: Vector, biased: Vector, label: Rows) -> tuple[Vector, Vector]:
    """(m,) Ln, were the label wrong: sum over c other than y of d[c] pb[c] / (1 - pb[y]); and Lr = d[y], were it right.

    d (m, k): the judging model; pb (m, k): the biased one.
    """
    own = label[:, None]
    right = np.take_along_axis(judge, own, 1)[:, 0]
    others = biased.copy()
    np.put_along_axis(others, own, 0.0, 1)
    return (judge * others).sum(1) / np.maximum(others.sum(1), 1e-12), right


def posterior(noise: float, against: Vector, right: Vector) -> Vector:
    """(m,) nu = pi Ln / (pi Ln + (1 - pi) Lr), the probability that a label is wrong; pi is `noise`."""
    return noise * against / np.maximum(noise * against + (1 - noise) * right, 1e-300)


# --- Cells


def mean_cell_gain(
    before: Mask, after: Mask, y: Rows, misclassified: Mask, trust: Vector | None = None
) -> tuple[float, float]:
    """What right answers gained in the mean over cells (class x misclassified by the biased model), in percent, and
    its standard error, samples weighing as much as their labels are trusted. Cells of a handful are left out, and where
    none of misclassified samples is larger, classes are put together; (nan, nan) where even that is too few."""
    weight, cell = np.ones(len(y)) if trust is None else trust, 2 * y + misclassified
    if np.bincount(cell, weight * misclassified).max(initial=0) < FEWEST:
        cell = misclassified.astype(np.int64)
    found = [cell == each for each in np.unique(cell)]
    large = [each for each in found if weight[each].sum() >= FEWEST]
    if not any(misclassified[each].any() for each in large):
        return float("nan"), float("nan")
    change, gains, spread = after.astype(float) - before, [], 0.0
    for each in large:
        mine = weight[each] / weight[each].sum()
        size = effective_sample_size(mine)
        gains.append(np.average(change[each], weights=mine))
        # one sample more on either side, so that no change in few samples is not taken for certain
        spread += (np.average((change[each] - gains[-1]) ** 2, weights=mine) + 1 / size**2) / size
    return 100 * float(np.mean(gains)), 100 * float(np.sqrt(spread)) / len(large)


@dataclass(frozen=True, eq=False)
class CrossFitted:
    """What two biased models say: features (2, n, h), which half each learnt from and is asked about (2, n), and, out
    of fold, probabilities (n, k) and scores (n,). `trust` (n,) of labels."""

    y: Rows
    features: Sequence[NDArray[Any]]
    asked: Sequence[Mask]
    learnt: Sequence[Mask]
    probability: Vector
    length: Vector
    trust: Vector

    @property
    def inside(self) -> Mask:
        """(n,) which samples were learnt from."""
        return np.asarray(self.learnt[0] | self.learnt[1])

    @property
    def misclassified(self) -> Mask:
        return np.asarray(self.probability.argmax(1) != self.y)

    @property
    def scores(self) -> Vector:
        """(n,) gradient norms in the last layer, out of fold."""
        return np.asarray(self.length * residual_norms(self.probability, self.y))

    def shares(self, strength: float) -> Vector:
        """(n,) how often every sample is drawn."""
        scores = np.where(self.inside, np.maximum(self.scores, 1e-8), 0.0)
        return guarded_shares(self.y, self.misclassified, scores, strength, self.trust)

    def judged(self, strength: float, stream: np.random.Generator) -> Vector:
        """(n, k) what last layers answer, on the biased models' features, to samples that neither has seen."""
        shares, k = self.shares(strength), self.probability.shape[1]
        found = np.zeros_like(self.probability)
        for features, asked, learnt in zip(self.features, self.asked, self.learnt, strict=True):
            rows, weight = thinned(learnt, self.misclassified, shares, stream)
            weights, biases = LogisticFit(features[rows], self.y[rows], k, REGULARISATION).fit(weight)
            found[asked] += softmax(features[asked] @ weights.T + biases, axis=1)
        return np.asarray(found / found.sum(1, keepdims=True))


def thinned(learnt: Mask, misclassified: Mask, shares: Vector, stream: np.random.Generator) -> tuple[Rows, Vector]:
    """Some of the samples that were learnt from, and weights by which they stand for all."""
    rows, weights = list[Rows](), list[Vector]()
    for part in (learnt & misclassified, learnt & ~misclassified):
        all_of_it = np.flatnonzero(part & (shares > 0))
        kept = np.sort(stream.permutation(all_of_it)[:AT_MOST])
        rows.append(kept)
        weights.append(shares[kept] * len(all_of_it) / max(1, len(kept)))
    return np.concatenate(rows), np.concatenate(weights)


def choose_strength(crossed: CrossFitted, stream: np.random.Generator) -> tuple[float, str]:
    """Whether to draw by score, 1 or 0, and why: 1 if half or full strength gains more in mean cell accuracy than in a
    null world, by last layers on samples that no model saw. They tell whether it pays, not how far to go: they know
    the biased models' features only, of which networks that are trained on have more."""

    def gains(world: CrossFitted) -> Vector:
        """(2, s) the gain of every strength over strength 0, and its standard error."""
        y, misclassified = world.y[world.inside], world.misclassified[world.inside]
        right = [(world.judged(each, stream).argmax(1) == world.y)[world.inside] for each in (0.0, *STRENGTHS)]
        return np.array([mean_cell_gain(right[0], each, y, misclassified) for each in right[1:]]).T

    real, even = gains(crossed), np.ones(len(crossed.y))
    redrawn = [null_labels(crossed.probability, crossed.y, crossed.inside, stream) for _ in range(NULL_WORLDS)]
    null = np.nan_to_num([gains(replace(crossed, y=each, trust=even))[0] for each in redrawn])
    null = np.maximum(null, 0)  # what is lost there is no gain here
    beyond = real[0] - null.mean(0)
    error = np.sqrt(real[1] ** 2 + null.var(0, ddof=1) * (1 + 1 / NULL_WORLDS))  # were this world a null one too
    if np.isnan(beyond).all():
        return 0.0, "the biased models misclassify too few samples of every class to tell whether drawing them pays"
    best = int(np.nanargmax(beyond))
    told = f"drawing by score gains {beyond[best]:.1f} ± {error[best]:.1f} points beyond a null world"
    if not beyond[best] > error[best]:
        return 0.0, f"{told} in mean cell accuracy, which is no evidence"
    return 1.0, f"{told} in mean cell accuracy"


def wrong_labels(judge: Vector, biased: Vector, y: Rows) -> Vector:
    """(m,) the probability that a misclassified label is wrong: a bias-conflicting one is what a judge says that never
    saw the sample and learnt from others like it, a wrong one is not. Both give probabilities (m, k)."""
    told, wrong = likelihoods(judge, biased, y), np.full(len(y), 0.5)
    for _ in range(10):  # expectation and maximisation: the share of wrong labels is not known
        wrong = posterior(float(wrong.mean()), *told)
    return wrong


def trust_in_labels(judge: Vector, biased: Vector, y: Rows) -> tuple[Vector, float]:
    """(n,) how far labels are trusted: 1 where the biased model gives them, else relative to the most trusted one; and
    the share of the others that looks wrong. Probabilities (n, k) of models that never saw these samples."""
    trust, misclassified = np.ones(len(y)), biased.argmax(1) != y
    if not misclassified.any():
        return trust, 0.0
    wrong = wrong_labels(judge[misclassified], biased[misclassified], y[misclassified])
    trust[misclassified] = np.maximum((1 - wrong) / max(1 - wrong.min(), 1e-300), DOUBTED)
    return trust, float(wrong.mean())


# --- The comparison with vanilla on samples that neither saw


@dataclass(frozen=True)
class Comparison:
    """Accuracies in percent by class, of vanilla and the debiased model, on `samples` samples like the training data.

    gain ± error: in mean cell accuracy (nan where there are no cells); max_cost: points of overall accuracy that may
    be lost; errors: how many standard errors the gain must exceed.
    """

    vanilla: tuple[float, ...]
    debiased: tuple[float, ...]
    cost: float
    gain: float
    error: float
    samples: int
    max_cost: float
    below_chance: tuple[int, ...]
    errors: int = 1

    @property
    def danger(self) -> str:
        """Why the debiased model must not be used; empty where it may."""
        if self.below_chance:
            first = self.below_chance[0]
            return (
                f"the debiased model is below chance in class {first} on {self.samples} samples like the training data "
                f"({self.debiased[first]:.0f}% right, vanilla {self.vanilla[first]:.0f}%)"
            )
        if self.cost > self.max_cost:
            return (
                f"the debiased model loses {self.cost:.0f} points on {self.samples} samples like the training data, "
                f"more than the {self.max_cost:.0f} that it may"
            )
        return ""

    @property
    def helped(self) -> bool:
        """Whether the debiased model is the better one as far as these samples tell."""
        return not self.danger and self.gain > max(self.errors * self.error, self.cost)

    def warn(self, then: str = "the vanilla model is used instead, the debiased one is kept beside it") -> None:
        """Tell a person that the debiased model must not be used, and what happens then."""
        if self.danger:
            warnings.warn(DebiasingWarning(f"{self.danger}; {then}", **asdict(self)), stacklevel=3)


def below_chance(right: Mask, y: Rows, classes: int) -> tuple[int, ...]:
    """The classes whose samples are answered right less often than by guessing, beyond one standard error."""
    counts = np.bincount(y, minlength=classes)
    chance, recall = 1 / max(1, int((counts > 0).sum())), np.bincount(y, right, classes) / np.maximum(counts, 1)
    error = np.sqrt(chance * (1 - chance) / np.maximum(counts, 1))
    return tuple(int(c) for c in np.flatnonzero((counts >= FEWEST) & (recall + error < chance)))


def compare(
    vanilla: Rows,
    debiased: Rows,
    y: Rows,
    misclassified: Mask | None,
    classes: int,
    max_cost: float,
    trust: Vector | None = None,
) -> Comparison:
    """Vanilla's and the debiased model's answers to samples that neither saw; `misclassified` by the biased model.

    With `trust` in their labels the gain must exceed three standard errors: what judges trust, a model like them gains.
    """
    before, after, counts = vanilla == y, debiased == y, np.maximum(np.bincount(y, minlength=classes), 1)
    gain = float("nan"), float("nan")
    if misclassified is not None:
        gain = mean_cell_gain(before, after, y, misclassified, trust)
    own = [tuple(100 * np.bincount(y, right, classes) / counts) for right in (before, after)]
    worse = set(below_chance(after, y, classes)) - set(below_chance(before, y, classes))
    cost = 100 * float(before.mean() - after.mean())
    errors = 1 if trust is None else 3
    return Comparison(own[0], own[1], cost, *gain, len(y), max_cost, tuple(sorted(worse)), errors)
