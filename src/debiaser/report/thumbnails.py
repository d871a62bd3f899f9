"""Training and test pictures as small data URIs, with the words that belong to each."""

import base64
import io
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image

from debiaser.report.runs import Arrays

TINY = 64
THUMBNAIL = 96


def data_uri(image: np.ndarray, side: int = THUMBNAIL) -> str:
    """An (h, w, 3) picture as a WebP data URI: tiny ones without loss, larger ones as a thumbnail."""
    picture = Image.fromarray(np.ascontiguousarray(image), "RGB")
    stream = io.BytesIO()
    if max(picture.size) <= TINY:
        picture.save(stream, "WEBP", lossless=True, quality=100, method=4)
    else:
        picture.thumbnail((side, side), Image.Resampling.LANCZOS)
        picture.save(stream, "WEBP", quality=78, method=4)
    return "data:image/webp;base64," + base64.b64encode(stream.getvalue()).decode()


def class_name(classes: Sequence[Any], index: int) -> str:
    """The name of a class, or its number where it has none."""
    return str(classes[index]) if 0 <= index < len(classes) else str(index)


def bias_is_class(labels: np.ndarray, bias: np.ndarray, conflicting: np.ndarray) -> bool:
    """Whether bias value b is the usual one of class b, as far as the pictures that follow the shortcut show."""
    following = (conflicting == 0) & (bias >= 0)
    return bool(following.any() and (labels[following] == bias[following]).all())


def bias_words(value: int, name: str, classes: Sequence[Any], as_class: bool) -> str:
    """`colour usual for 7`, `colour 7`, or nothing when unknown."""
    if value < 0:
        return ""
    return f"{name} usual for {class_name(classes, value)}" if as_class else f"{name} {value}"


def kind_words(conflicting: int) -> str:
    """Which kind a row is, for people."""
    return {1: "goes against the shortcut", 0: "follows the shortcut"}.get(conflicting, "")


def scored_classes(
    samples: Arrays, classes: Sequence[Any], bias: str, per_side: int, most: int
) -> list[dict[str, Any]]:
    """Per class the highest- and the lowest-scored training pictures, each as a list of pictures with words."""
    labels, scores = samples["train_labels"], samples["train_scores"]
    as_class = bias_is_class(labels, samples["train_bias"], samples["train_conflicting"])

    def described(position: int) -> dict[str, Any]:
        conflicting = int(samples["train_conflicting"][position])
        parts = [
            class_name(classes, int(labels[position])),
            bias_words(int(samples["train_bias"][position]), bias, classes, as_class),
            f"score {float(scores[position]):.3g}",
            kind_words(conflicting),
            f"row {int(samples['train_rows'][position])}",
        ]
        return {
            "uri": data_uri(samples["train_images"][position]),
            "words": ", ".join(part for part in parts if part),
            "conflicting": conflicting == 1,
        }

    shown = []
    for label in sorted({int(label) for label in labels})[:most]:
        members = np.flatnonzero((labels == label) & np.isfinite(scores))
        members = members[np.argsort(-scores[members], kind="stable")]
        half = (len(members) + 1) // 2
        highest, lowest = members[:half][:per_side], members[half:][::-1][:per_side]
        shown.append(
            {
                "name": class_name(classes, label),
                "highest": [described(int(position)) for position in highest],
                "lowest": [described(int(position)) for position in lowest],
            }
        )
    return shown


def same_pictures(first: Arrays, other: Arrays) -> bool:
    """Whether two runs were asked about the same test pictures."""
    return all(np.array_equal(first[name], other[name]) for name in ("test_rows", "test_labels", "test_images"))


def answers(named: Sequence[tuple[str, Arrays]], classes: Sequence[Any], bias: str, most: int) -> list[dict[str, Any]]:
    """For each of the test pictures that the runs share, what every one of them says about it."""
    first = named[0][1]
    as_class = bias_is_class(first["test_labels"], first["test_bias"], first["test_conflicting"])
    cards = []
    for position in range(min(len(first["test_rows"]), most)):
        label, value = int(first["test_labels"][position]), int(first["test_bias"][position])
        conflicting = int(first["test_conflicting"][position])
        says = [
            _answer(name, samples["test_probabilities"][position], label, value if as_class else -1, classes)
            for name, samples in named
        ]
        cards.append(
            {
                "uri": data_uri(first["test_images"][position]),
                "label": class_name(classes, label),
                "bias": bias_words(value, bias, classes, as_class),
                "kind": kind_words(conflicting),
                "conflicting": conflicting,
                "says": says,
                "disagree": len({answer["said"] for answer in says}) > 1,
                "wrong": any(not answer["right"] for answer in says),
            }
        )
    return cards


def _answer(name: str, probabilities: np.ndarray, label: int, usual: int, classes: Sequence[Any]) -> dict[str, Any]:
    said = int(np.argmax(probabilities))
    return {
        "model": name,
        "said": class_name(classes, said),
        "probability": float(probabilities[said]),
        "right": said == label,
        "fooled": said == usual and said != label,
    }
