"""A model that a person already has, examined by what it answers: labels, probabilities and, if known, features."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from debiaser.auditing.crossval import OutOfFold, Trainer
from debiaser.auditing.diagnosis import Diagnosis, check
from debiaser.auditing.estimates import Estimate, share
from debiaser.auditing.examine import Examined
from debiaser.auditing.findings import Findings, histogram, ranks, rests_on
from debiaser.auditing.inputs import (
    LARGEST,
    Material,
    Subject,
    cache_folder,
    file_of,
    picture_stream,
    pictures_of,
    texts_of,
)
from debiaser.auditing.leakage import find_leakage
from debiaser.auditing.verdict import CANNOT_TELL
from debiaser.data.own import OwnData
from debiaser.errors import Misuse, Problem
from debiaser.io import make_folder, replacing
from debiaser.learn.features import pixels
from debiaser.learn.forward import Outputs
from debiaser.learn.gradient_norms import grad_norm, residual_norm
from debiaser.learn.sampler import effective_sample_size

FLOOR = 1e-8
ONLY_ANSWERS = (
    "Answers alone cannot tell a shortcut from a hard task: what a model follows is found by changing its inputs, and "
    "only its answers are here. Audit the data without --probs for that."
)


def examine_answers(labels: ArrayLike, pred_probs: ArrayLike, features: ArrayLike | None, seed: int = 0) -> Findings:
    """What the answers of an existing model show, row by row; without its inputs no cause can be named."""
    y, probability = checked(np.asarray(labels), np.asarray(pred_probs, np.float64))
    lengths = checked_features(features, len(y))
    score = np.maximum(scores(y, probability, lengths), FLOOR)
    answer = probability.argmax(1)
    misclassified = answer != y
    unit = np.arange(len(y))
    names = tuple(str(k) for k in range(probability.shape[1]))
    troubles = [each.plain for each in check(y, answer, answer, names, "Check the order of the rows.")]
    effective = Estimate(effective_sample_size(score / score.sum()), method="1 / sum of squared probabilities")
    summary = {
        "source": "arrays",
        "kind": "answers",
        "examined": examined_line(features),
        "verdict": CANNOT_TELL,
        "reasons": [ONLY_ANSWERS],
        "n": len(y),
        "units": len(y),
        "notes": [rests_on(effective, len(y), "answers").replace("texts", "rows")],
        "health": {"ok": not troubles, "findings": troubles, "easy_accuracy": share(~misclassified, unit, seed).plain},
        "conflicting_share": None,
        "mislabelled_share": None,
        "effective_sample_size": effective.plain,
        "views": [],
        "unreadable": [],
        "histogram": histogram(score, misclassified),
        "page": None,
        "scores": None,
    }
    return Findings(summary, rows_of(y, answer, score, misclassified))


def examine_model(own: OwnData, pred_probs: ArrayLike, features: ArrayLike | None, folder: Path) -> Examined:
    """A person's data with the answers of a model of theirs, one row of probabilities per row or per usable row."""
    probability = usable(np.asarray(pred_probs, np.float64), own)
    if probability.ndim == 2 and probability.shape[1] != len(own.classes):
        raise Misuse(
            f"the probabilities are for {probability.shape[1]} classes, the data has {len(own.classes)}; "
            "give one column for each class, in their order"
        )
    y, probability = checked(own.y.numpy(), probability)
    lengths = checked_features(None if features is None else usable(np.asarray(features), own), len(y))
    score = np.maximum(scores(y, probability, lengths), FLOOR)
    said = OutOfFold(probability[None], score[None], ())
    misclassified = said.answer != y
    diagnosis = Diagnosis(
        misclassified,
        np.where(misclassified, 0.5, 0.0)[None],
        np.where(misclassified, "unsure", "aligned"),
        abstains=ONLY_ANSWERS,
    )
    material = shown_material(own, folder)
    subject = Subject(own, material, None, material.inputs.shape[-1])
    trainer = Trainer(material, y, np.zeros(len(y), np.int64), folder / "work")
    return Examined(
        subject=subject,
        trainer=trainer,
        pool=np.arange(len(y)),
        biased=said,
        plain=said,
        diagnosis=diagnosis,
        swaps=Problem(ONLY_ANSWERS),
        leakage=find_leakage(own.columns, y, own.unit, misclassified, own.classes),
        troubles=check(y, said.answer, said.answer, own.classes, "Check the order of the rows."),
        verdict=CANNOT_TELL,
        reasons=[ONLY_ANSWERS],
        model=examined_line(features),
    )


def usable(array: NDArray[Any], own: OwnData) -> NDArray[Any]:
    """The lines of an array for the rows that can be used: it has one for each of those, or for every row there is."""
    lines = len(array) if array.ndim else 0
    if lines == len(own):
        return array
    if lines == own.total:
        return np.asarray(array[own.places])
    raise Misuse(
        f"the arrays must have one line for each of the {own.total:,} rows of the data, or of the {len(own):,} that "
        f"can be used, in their order; got {lines:,}"
    )


def examined_line(features: ArrayLike | None) -> str:
    """Which model was examined."""
    return f"your model, by its probabilities{'' if features is None else ' and features'}."


def shown_material(own: OwnData, folder: Path) -> Material:
    """Something to find neighbours by and to show: small pictures, or which words a text has."""
    if own.kind == "image":
        stream = picture_stream(pictures_of(own), LARGEST)
        array = pixels(own.inputs.identity, len(own), stream, LARGEST, cache_folder())
        return Material(file_of(array), own.classes, own.identity)
    from sklearn.feature_extraction.text import HashingVectorizer

    words = HashingVectorizer(n_features=256).transform(texts_of(own, torch.arange(len(own))))
    path = make_folder(folder / "work") / "words.npy"
    with replacing(path) as temporary, temporary.open("wb") as file:
        np.save(file, words.toarray().astype(np.float32))
    return Material(path, own.classes, own.identity)


def rows_of(
    y: NDArray[np.int64], answer: NDArray[np.int64], score: NDArray[np.float64], misclassified: NDArray[np.bool_]
) -> dict[str, NDArray[Any]]:
    """The columns of scores.csv."""
    n = len(y)
    unknown = np.full(n, np.nan)
    return {
        "id": np.arange(n).astype(str).astype(object),
        "path": np.full(n, "", object),
        "label": y,
        "predicted": answer,
        "score": score,
        "probability": score / score.sum(),
        "rank": ranks(score),
        "p_conflicting": unknown,
        "p_mislabelled": unknown,
        "kind": np.where(misclassified, "unsure", "aligned").astype(object),
    }


def scores(
    y: NDArray[np.int64], probability: NDArray[np.float64], features: NDArray[np.float64] | None
) -> NDArray[np.float64]:
    """(n,) the gradient norm of the last layer; without features, the part of it that probabilities give."""
    logits = torch.from_numpy(np.log(np.maximum(probability, 1e-300)))
    entering = torch.from_numpy(np.ones((len(y), 1)) if features is None else features)
    score = residual_norm() if features is None else grad_norm()
    return np.asarray(score(Outputs(entering, logits, torch.from_numpy(y))).double())


def checked(y: NDArray[Any], probability: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Labels (n,) and probabilities (n, k) that fit together."""
    if probability.ndim != 2 or probability.shape[1] < 2 or not len(probability):
        raise Misuse(f"probabilities must be (n, classes) with two classes or more, got {probability.shape}")
    if y.shape != (len(probability),) or y.dtype.kind not in "iub":
        raise Misuse(f"labels must be {len(probability):,} class numbers from 0 on, got {y.dtype} of shape {y.shape}")
    y = y.astype(np.int64)
    if y.min() < 0 or y.max() >= probability.shape[1]:
        raise Misuse(f"labels must lie in 0..{probability.shape[1] - 1}, got {y.min()}..{y.max()}")
    if not np.isfinite(probability).all() or (probability < 0).any() or (abs(probability.sum(1) - 1) > 1e-3).any():
        raise Misuse("probabilities must be from 0 to 1 and sum to 1 in every row; apply a softmax to logits first")
    return y, probability / probability.sum(1, keepdims=True)


def checked_features(features: ArrayLike | None, n: int) -> NDArray[np.float64] | None:
    """Features (n, h) or nothing."""
    if features is None:
        return None
    entering = np.asarray(features, np.float64)
    if entering.ndim != 2 or len(entering) != n or not np.isfinite(entering).all():
        raise Misuse(f"features must be finite numbers ({n:,}, h), got {entering.shape}")
    return entering
