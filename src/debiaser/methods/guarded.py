"""Guarded PGD: capped draws by score where held-out samples show that they pay, and vanilla elsewhere."""

import copy
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn

from debiaser.data.split import Split
from debiaser.io import log, numpy_stream
from debiaser.learn.groups import balancing_weights
from debiaser.learn.guard import (
    Comparison,
    CrossFitted,
    Mask,
    Rows,
    Vector,
    choose_strength,
    compare,
    null_labels,
    trust_in_labels,
)
from debiaser.learn.losses import Supervised, gce
from debiaser.learn.sampler import ScoreSampler, Shuffle
from debiaser.methods.task import Method, Task, bounded

HALVES = ("biased", "biased again")  # stages: each model learns from one half and answers for the other
MANY, WRONG = 50, 1 / 3  # labels against the shortcut; if more than a third of so many looks wrong, they are doubted
ROUNDS, SHORT = 3, 0.2  # of judges of labels; how long they are trained, of the debiased stage
ERRORS = 3  # standard errors by which judges must know more than in a null world
FEWEST = 20  # samples in training, below which nothing can be held out


@dataclass(frozen=True)
class GuardedPGD(Method):
    """PGD with safeguards: draws by score are capped, and vanilla is returned unless held-out samples show that
    debiasing pays.

    Each of two biased models is trained on one half of the samples and scores the other half. Classes are drawn equally
    often, and samples that the biased model misclassifies at most so often that its predictions tell nothing. How often
    is chosen by cross-validating last layers: by how far the gain in mean cell accuracy exceeds that on labels drawn
    from the biased models' predictions (the null world). If there is no such gain, or the debiased model does not
    do better than vanilla on held-out samples, vanilla is returned.

    Args:
        alpha: exponent of GCE; None for cross-entropy.
        strength: 0 for vanilla; 1 for 1 - 1/k of the draws of each of k classes on misclassified samples, so that the
            biased model is right as often as chance; None to choose it automatically.
        doubt: draw samples that look mislabelled less often, if there are many.
        held_out: share of the training samples to hold out if there is no validation data.
        max_cost: points of accuracy on held-out samples that debiasing may cost.
        augment: augment the training data.

    >>> result = debias(model, dataset, GuardedPGD(strength=1))
    """

    alpha: float | None = bounded(0.7, above=0, at_most=1)
    strength: float | None = bounded(None, at_least=0, at_most=1)
    doubt: bool = True
    held_out: float = bounded(0.2, above=0, at_most=0.5)
    max_cost: float = bounded(25, at_least=0)
    augment: bool = True

    def fit(self, task: Task) -> nn.Module:
        """Return the debiased network, or vanilla if that is safer; the journal keeps both."""
        y, stream = task.train.y.numpy(), numpy_stream(task.seed, "guarded")
        half = halves(y, 0.0 if task.valid else self.held_out, stream)
        if len(y) < FEWEST or len(np.unique(y)) < 2 or not (task.valid or (half < 0).any()):
            return self.undecided(task, f"{len(y)} samples of {len(np.unique(y))} classes are too few to hold any out")
        biased = [self.fit_biased(task, y, half == which, stage) for which, stage in enumerate(HALVES)]  # step 1
        crossed = cross_fitted(task, biased, y, half)  # step 2: one forward pass each
        strength, why = choose_strength(crossed, stream) if self.strength is None else (self.strength, "as it was set")
        task.journal.decisions.append(f"strength {strength:g}: {why}")
        judges = list[nn.Module]()
        if self.doubt and self.strength != 0 and crossed.misclassified.sum() >= MANY:  # step 3
            doubted, judges, told = self.doubt_labels(task, biased, crossed, strength, stream)
            if judges:
                crossed, strength = doubted, strength or 1.0
            task.journal.decisions += told
        if strength == 0:  # nothing to compare, so nothing is held out
            note(task, crossed, 0, np.ones(len(y), bool))
            return self.fit_vanilla(task, np.arange(len(y)))
        note(task, crossed, strength, crossed.inside)
        vanilla = self.fit_vanilla(task, np.flatnonzero(half >= 0))  # step 4
        debiased = self.fit_debiased(task, biased[0], crossed, strength, crossed.inside, "debiased")  # step 5
        found = self.compared(task, vanilla, debiased, biased, judges, half)  # step 6
        task.journal.models["debiased"], task.journal.comparison = debiased, found
        if not found.helped:
            note(task, crossed, 0, crossed.inside)
        better = f"gains {found.gain:.1f} ± {found.error:.1f} points in mean cell accuracy on {found.samples} held-out "
        better += f"samples and costs {found.cost:.1f} on all of them"
        kept = "kept" if found.helped else f"vanilla is used{f', since {found.danger}' if found.danger else ''}"
        task.journal.decisions.append(f"the debiased model {better}: {kept}")
        return debiased if found.helped else vanilla

    def fit_biased(self, task: Task, y: Rows, learnt: Mask, stage: str) -> nn.Module:
        """Train a model that relies on the shortcut on one half, with all classes drawn equally often."""
        even = np.zeros(len(y))
        even[learnt] = balancing_weights(np.unique(y[learnt], return_inverse=True)[1])
        draws, stages = ScoreSampler(even, int(learnt.sum()), seed=task.seed), task.recipe.stages
        alike = replace(task.recipe, stages={stage: stages.get(HALVES[0], {}), **stages})  # both halves as "biased"
        return replace(task, recipe=alike).fit(Supervised(task.new_model(), gce(self.alpha)), stage, draws)

    def fit_vanilla(self, task: Task, rows: Rows) -> nn.Module:
        """Train a plain model on the samples that are not held out."""
        draws = None if len(rows) == len(task.train) else Shuffle(len(rows), task.seed, rows)
        vanilla = task.fit(Supervised(task.new_model()), "vanilla", draws, length=task.recipe.single_stage)
        task.journal.models["vanilla"] = vanilla
        return vanilla

    def undecided(self, task: Task, why: str) -> nn.Module:
        """Train vanilla on all samples, since there are too few for a comparison."""
        log.warning("%s, so the model is a vanilla one; give more samples", why)
        task.journal.decisions.append(f"strength 0: {why}")
        for name in ("score", "probability", "trust"):
            task.journal.note(name, np.full(len(task.train), 1 / len(task.train) if name == "probability" else 1.0))
        return self.fit_vanilla(task, np.arange(len(task.train)))

    def fit_debiased(
        self,
        task: Task,
        start: nn.Module,
        crossed: CrossFitted,
        strength: float,
        learnt: Mask,
        stage: str,
        length: float = 1,
    ) -> nn.Module:
        """Continue training a biased model with guarded draws from these samples."""
        draws = ScoreSampler(crossed.shares(strength) * learnt, int(learnt.sum()), seed=task.seed)
        kind, stages = stage.partition(" ")[0], task.recipe.stages
        alike = replace(task.recipe, stages={kind: stages.get("debiased", {}), **stages})
        return replace(task, recipe=alike).fit(Supervised(copy.deepcopy(start)), stage, draws, length)

    def doubt_labels(
        self, task: Task, biased: list[nn.Module], crossed: CrossFitted, strength: float, stream: np.random.Generator
    ) -> tuple[CrossFitted, list[nn.Module], list[str]]:
        """Return `crossed` with less trust in labels that look wrong, the models that judged them, and what to tell.

        There are no such models if few labels look wrong, or if nothing was to be gained by score (strength 0) and the
        judges know no more of the labels than in a null world.
        """
        doubted, judges, wrong, right = self.judge_labels(task, biased, crossed, "judge")
        if wrong <= WRONG:
            return crossed, [], []
        told = f"of labels against the shortcut {wrong:.0%} look wrong"
        if strength == 0:
            labels = null_labels(crossed.probability, crossed.y, crossed.inside, stream)
            other = replace(
                task, train=replace(task.train, y=torch.from_numpy(labels)), identity=f"{task.identity} null"
            )
            *_, chance = self.judge_labels(other, biased, replace(crossed, y=labels), "null")
            shares = np.array([right.mean(), chance.mean()])
            told += f", {shares[0]:.1%} right ({shares[1]:.1%} in a null world)"
            error = np.sqrt((shares * (1 - shares) / [len(right), len(chance)]).sum())
            if not shares[0] - shares[1] > ERRORS * error:
                return crossed, [], [f"{told}, which is no evidence"]
        return doubted, judges, [f"{told}: drawn less"]

    def judge_labels(
        self, task: Task, biased: list[nn.Module], crossed: CrossFitted, kind: str
    ) -> tuple[CrossFitted, list[nn.Module], float, Mask]:
        """Return `crossed` with trust in labels, two judges, the share of misclassified labels that look wrong to them,
        and (m,) which of these labels the judges predict.

        Each judge learns from one half, for a short time and at half strength, and is asked about the other. In every
        round they draw what those before them trusted.
        """
        doubted, against = crossed, crossed.misclassified & crossed.inside
        for number in range(ROUNDS):
            judges, said = list[nn.Module](), np.zeros_like(crossed.probability)
            for which, (start, learnt, asked) in enumerate(zip(biased, crossed.learnt, crossed.asked, strict=True)):
                stage = f"{kind} {2 * number + which + 1}"
                judges.append(self.fit_debiased(task, start, doubted, 0.5, learnt, stage, SHORT))
                said[asked] += chances(task, judges[-1], task.train)[asked]
            trust, wrong = trust_in_labels(said / said.sum(1, keepdims=True), crossed.probability, crossed.y)
            doubted = replace(crossed, trust=trust)
            if wrong <= WRONG:
                break
        return doubted, judges, wrong, (said.argmax(1) == crossed.y)[against]

    def compared(
        self,
        task: Task,
        vanilla: nn.Module,
        debiased: nn.Module,
        biased: list[nn.Module],
        judges: list[nn.Module],
        half: Rows,
    ) -> Comparison:
        """Compare both models on samples that neither has seen."""
        split = held_out(task, half)
        y, shortcut = split.y.numpy(), mean_chances(task, biased, split)
        before, after = (chances(task, each, split).argmax(1) for each in (vanilla, debiased))
        trust = trust_in_labels(mean_chances(task, judges, split), shortcut, y)[0] if judges else None
        return compare(before, after, y, shortcut.argmax(1) != y, shortcut.shape[1], self.max_cost, trust)


def held_out(task: Task, half: Rows) -> Split:
    """Samples that no model has seen: validation data, or what was held out."""
    return task.valid or task.train.subset(torch.from_numpy(np.flatnonzero(half < 0)))


def chances(task: Task, model: nn.Module, split: Split) -> Vector:
    """(m, k) the model's probabilities for the samples of a split."""
    return np.asarray(task.outputs(model, split).logits.double().softmax(1).numpy())


def mean_chances(task: Task, models: list[nn.Module], split: Split) -> Vector:
    """(m, k) the mean of these models' probabilities."""
    return np.asarray(np.mean([chances(task, each, split) for each in models], 0))


def halves(y: Rows, held_out: float, stream: np.random.Generator) -> Rows:
    """(n,) which half every sample is in, 0 or 1, or -1 where it is held out; the same shares of every class."""
    half = np.empty(len(y), np.int64)
    for label in np.unique(y):
        mine = stream.permutation(np.flatnonzero(y == label))
        half[mine] = np.arange(len(mine)) % 2
        half[mine[: round(held_out * len(mine))]] = -1
    return half


def cross_fitted(task: Task, biased: list[nn.Module], y: Rows, half: Rows) -> CrossFitted:
    """What the biased models say of samples that they did not learn from: of one half each, of held-out ones both."""
    seen = [task.outputs(each) for each in biased]
    asked, learnt = [half != which for which in (0, 1)], [half == which for which in (0, 1)]
    answers = [each.logits.double().softmax(1).numpy() for each in seen]
    features = [each.features.float().numpy() for each in seen]
    weight = np.stack(asked) / np.sum(asked, 0)
    probability = np.einsum("fn,fnk->nk", weight, np.stack(answers))
    length = np.einsum("fn,fn->n", weight, np.stack([np.linalg.norm(each, axis=1) for each in features]))
    return CrossFitted(y, features, asked, learnt, probability, length, np.ones(len(y)))


def note(task: Task, crossed: CrossFitted, strength: float, learnt: Mask) -> None:
    """Scores, trust in labels, and how often every sample is drawn."""
    task.journal.note("score", crossed.scores)
    task.journal.note("trust", crossed.trust)
    task.journal.note("probability", crossed.shares(strength) if strength else learnt / learnt.sum())
