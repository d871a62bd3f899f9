"""How good a model and a detector are; the only reader of bias labels."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from debiaser.data.split import Truth
from debiaser.learn.sampler import effective_sample_size

Metrics = dict[str, float | None]


def percent(right: Tensor) -> float | None:
    """The share that is right, in percent; None where there is nothing to judge."""
    return float(right.double().mean()) * 100 if len(right) else None


def accuracies(logits: Tensor, y: Tensor, truth: Truth, attributes: Sequence[str] = ()) -> Metrics:
    """unbiased: over all rows; aligned and conflicting: rows that follow and go against the shortcut; over groups:

    group_average, their mean, and worst_group, their lowest. Papers call either of unbiased and group_average "average"
    (D27), so both are there. With several `attributes`, aligned and conflicting also for each of them, by its name.
    """
    right = logits.argmax(1) == y
    kind = truth.conflicting(y)
    groups = group_accuracies(right, truth)
    found: Metrics = {
        "unbiased": percent(right),
        "aligned": percent(right[kind == 0]),
        "conflicting": percent(right[kind == 1]),
        "group_average": float(groups.mean()) if len(groups) else None,
        "worst_group": float(groups.min()) if len(groups) else None,
    }
    if len(attributes) > 1 and not truth.overlapping:
        for name, attribute in zip(attributes, truth.bias.T, strict=True):
            kind = Truth(truth.target, attribute[:, None]).conflicting(y)  # whatever the other attributes do
            for word, wanted in (("aligned", 0), ("conflicting", 1)):
                found[f"{word}_{name.replace(' ', '_')}"] = percent(right[kind == wanted])
    return found


def group_accuracies(right: Tensor, truth: Truth) -> NDArray[np.float64]:
    """(g,) the accuracy in percent of every group that has rows.

    A group is a pair of target and bias value, and with several attributes each of them has its own groups. Where
    attributes are overlapping traits, only rows that have a trait form groups, and a row may be in several.
    """
    found = []
    for attribute in truth.bias.T:
        member = (attribute == 1) if truth.overlapping else (attribute >= 0)
        if not member.any():
            continue
        group = (truth.target * (int(attribute.max()) + 1) + attribute)[member].numpy()
        counts = np.bincount(group)
        correct = np.bincount(group, weights=right[member].numpy().astype(float))
        found.append(correct[counts > 0] / counts[counts > 0] * 100)
    return np.concatenate(found) if found else np.zeros(0)


def validation(logits: Tensor, y: Tensor) -> Metrics:
    """Loss and accuracy on the (biased) validation rows: all that a choice may rest on."""
    return {"valid_loss": float(F.cross_entropy(logits, y)), "valid_accuracy": percent(logits.argmax(1) == y)}


def detection(score: NDArray[Any] | None, conflicting: NDArray[np.int8]) -> Metrics:
    """How well scores find the conflicting rows, what share of the sampling mass these get, and how even it is.

    precision and recall are those of the rows that get more than an even share: drawn or weighed more than in plain
    training, or in the error set where scores are 0 and 1. All from 0 to 1; None where no row is known to conflict, or
    all are. Nothing without scores.
    """
    from sklearn.metrics import average_precision_score, roc_auc_score

    if score is None or not score.sum() > 0:
        return {}
    score = score.astype(np.float64)
    known, shares = conflicting >= 0, score / score.sum()
    names = ("auroc", "average_precision", "precision", "recall", "conflicting_mass")
    found: Metrics = {f"score_{name}": None for name in names}
    found["score_effective_sample_size"] = effective_sample_size(shares)
    truth = conflicting[known] == 1
    if truth.any() and not truth.all():
        found["score_auroc"] = float(roc_auc_score(truth, score[known]))
        found["score_average_precision"] = float(average_precision_score(truth, score[known]))
        singled_out = shares[known] > 1 / len(score)
        found["score_precision"] = float(truth[singled_out].mean()) if singled_out.any() else None
        found["score_recall"] = float(singled_out[truth].mean())
        found["score_conflicting_mass"] = float(shares[known][truth].sum())
    return found
