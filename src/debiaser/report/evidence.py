"""What lies behind the numbers of one run per method: scores, pictures, curves, answers."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, pairwise
from typing import Any

import numpy as np
from markupsafe import Markup

from debiaser.report import figures, pictures
from debiaser.report.runs import LARGEST, Details, Result
from debiaser.report.tables import HEADINGS, count
from debiaser.report.words import percent, score_words

Part = dict[str, Any]
MOST_CLASSES = 12
MOST_TEST_PICTURES = 40
LEFT_OUT = "left out to keep this page small; report on this run's folder alone to see it."


@dataclass
class Allowance:
    """The characters that figures and pictures may still take, so that a page of a big folder stays small."""

    left: int

    def take(self, size: int) -> bool:
        """Whether there was room, which is then used up."""
        if size > self.left:
            return False
        self.left -= size
        return True


@dataclass(frozen=True)
class Shown:
    """The run that stands for a method in the detail parts."""

    label: str
    result: Result
    details: Details


def _missing(one: Shown, file: str, otherwise: str) -> str:
    note = next((note for note in one.details.notes if note.startswith(file)), None)
    return f"{one.label}: not shown, {note}." if note else f"{one.label}: {otherwise}"


def histogram(one: Shown, name: str, things: str, allowance: Allowance) -> Part:
    """The scores of one run as a figure with words, or the reason why there is none."""
    vectors = one.details.vectors
    if vectors is None:
        return {"label": one.label, "missing": _missing(one, "vectors.npz", ""), "scored": False}
    score, conflicting, flipped = vectors["score"], vectors["conflicting"], vectors["flipped"]
    if not has_scores(one):
        return {"label": one.label, "missing": "", "scored": False}
    kinds = [
        ("aligned", f"follow the shortcut ({count(_size(conflicting == 0, flipped))})"),
        ("conflicting", f"go against it ({count(_size(conflicting == 1, flipped))})"),
        ("flipped", f"wrongly labelled ({count(int((flipped == 1).sum()))})"),
        ("unknown", f"kind unknown ({count(_size(conflicting == -1, flipped))})"),
    ]
    legend = [kind for kind in kinds if not kind[1].endswith("(0)")]
    alt = f"Histogram of the scores of {one.label}: " + "; ".join(text for _, text in legend)
    svg = figures.histogram(score.astype(float), conflicting, flipped, name, alt)
    if not allowance.take(len(svg)):
        return {"label": one.label, "missing": f"{one.label}: the figure was {LEFT_OUT}", "scored": True}
    words = score_words(one.result, things)
    return {"label": one.label, "svg": Markup(svg), "legend": legend, "sentences": words, "scored": True}  # noqa: S704


def has_scores(one: Shown) -> bool:
    """Whether the run gave its training rows scores that can be read."""
    if one.details.vectors is None:
        return False
    score = one.details.vectors["score"]
    known = score[np.isfinite(score)] if np.isrealobj(score) else score[:0]
    return len(known) > 0 and bool((np.abs(known) < LARGEST).all()) and not np.isinf(score).any()


def _size(mask: np.ndarray, flipped: np.ndarray) -> int:
    return int((mask & (flipped != 1)).sum())


def gallery(one: Shown, bias: str, per_side: int, allowance: Allowance) -> Part:
    """The highest- and lowest-scored training pictures of one run, or the reason why there are none."""
    samples = one.details.samples
    if samples is None:
        return {"label": one.label, "missing": _missing(one, "samples.npz", ""), "classes": []}
    if not len(samples["train_rows"]):
        return {"label": one.label, "missing": "", "classes": []}
    classes = pictures.scored_classes(samples, one.result["classes"], bias, per_side, MOST_CLASSES)
    shown = [picture for entry in classes for side in ("highest", "lowest") for picture in entry[side]]
    if not allowance.take(sum(len(picture["uri"]) + 200 for picture in shown)):
        return {"label": one.label, "missing": f"{one.label}: the pictures were {LEFT_OUT}", "classes": []}
    marked = {
        side: _marked([picture for entry in classes for picture in entry[side]]) for side in ("highest", "lowest")
    }
    total = len(set(samples["train_labels"].tolist()))
    more = f"The first {MOST_CLASSES} of {total} classes." if total > MOST_CLASSES else ""
    short = max(len(entry["name"]) for entry in classes) <= 3
    return {"label": one.label, "classes": classes, "marked": marked, "more": more, "short_names": short}


def _marked(shown: Sequence[Part]) -> str:
    return f"{sum(picture['conflicting'] for picture in shown)} of {len(shown)}"


def curves(shown: Sequence[Shown], identity: str, allowance: Allowance) -> Part:
    """Unbiased and conflicting accuracy against samples seen, and who is missing."""
    drawn = [one for one in shown if one.details.history is not None]
    notes = [_missing(one, "history.csv", "") for one in shown if one.details.history is None]
    styles = line_styles([one.result["method"] for one in drawn])
    legend = [(style, one.label) for style, one in zip(styles, drawn, strict=True)]
    result: Part = {"figures": [], "legend": legend, "notes": notes}
    for metric in ("unbiased", "conflicting"):
        series = [curve(one, metric, style) for style, one in zip(styles, drawn, strict=True)]
        if not any(line.seen for line in series):
            continue
        ends = ", ".join(f"{line.label} ends at {percent(line.values[-1])}" for line in series if line.values)
        alt = f"{HEADINGS[metric]} accuracy against training samples seen: {ends}"
        svg = figures.curves(series, f"{metric} accuracy (%)", f"{identity}-{metric}", alt)
        if allowance.take(len(svg)):
            entry = {"svg": Markup(svg), "caption": f"{HEADINGS[metric]} accuracy"}  # noqa: S704 (our own SVG)
            result["figures"].append(entry)
        else:
            notes.append(f"The curve of {metric} accuracy was {LEFT_OUT}")
    if drawn and not result["figures"] and not notes:
        notes.append("No accuracies were measured while training.")
    return result


def line_styles(methods: Sequence[str]) -> list[int]:
    """A line style per method: plain training and PGD keep theirs on every page."""
    fixed = {"vanilla": 0, "pgd": 1}
    free = cycle(range(len(fixed), len(figures.SERIES)))
    return [fixed[method] if method in fixed else next(free) for method in methods]


def curve(one: Shown, metric: str, style: int) -> figures.Curve:
    """One run's points of a metric, and where its stages end."""
    history = one.details.history or []
    measured = [(row["seen"], row[metric], row["stage"]) for row in history]
    kept = [point for point in measured if point[0] is not None and point[1] is not None]
    ends = [row["seen"] for row, following in pairwise(history) if following["stage"] != row["stage"]]
    if len(ends) >= len({row["stage"] for row in history}):
        ends = []  # stages that take turns have no border
    return figures.Curve(
        one.label,
        style,
        tuple(point[0] for point in kept),
        tuple(point[1] for point in kept),
        tuple(point[2] for point in kept),
        tuple(end for end in ends if end is not None),
    )


def answers(shown: Sequence[Shown], bias: str, things: str, allowance: Allowance) -> Part:
    """What the models say about the same test pictures."""
    notes = [_missing(one, "samples.npz", "") for one in shown if one.details.samples is None]
    named = [(one, one.details.samples) for one in shown if one.details.samples is not None]
    named = [(one, samples) for one, samples in named if len(samples["test_rows"])]
    if not named:
        return {"cards": [], "notes": notes or [f"These runs kept no test {things}."], "sentences": []}
    first = named[0][1]
    same = [(one.label, samples) for one, samples in named if pictures.same_pictures(first, samples)]
    others = [one.label for one, samples in named if not pictures.same_pictures(first, samples)]
    if others:
        notes.append(f"Not beside the others, as asked about other {things} (another data seed): {', '.join(others)}.")
    cards = pictures.answers(same, named[0][0].result["classes"], bias, MOST_TEST_PICTURES)
    if not allowance.take(sum(len(card["uri"]) + 700 for card in cards)):
        return {"cards": [], "notes": [*notes, f"The test {things} were {LEFT_OUT}"], "sentences": []}
    return {"cards": cards, "notes": notes, "sentences": answer_words(cards, bias, things)}


def answer_words(cards: Sequence[Part], bias: str, things: str) -> list[str]:
    """How often each model is right on the pictures shown that go against the shortcut, and why it errs."""
    against = [card for card in cards if card["conflicting"] == 1]
    if not against:
        return []
    models = [answer["model"] for answer in against[0]["says"]]
    right = [sum(card["says"][n]["right"] for card in against) for n in range(len(models))]
    counts = ", ".join(f"{model} on {hits}" for model, hits in zip(models, right, strict=True))
    sentences = [f"Of the {len(against)} {things} shown that go against the shortcut, right: {counts}."]
    for n in sorted({0, len(models) - 1}):  # the plain model and the one the page is about, not all nine
        model = models[n]
        wrong = [card["says"][n] for card in against if not card["says"][n]["right"]]
        fooled = sum(answer["fooled"] for answer in wrong)
        if fooled:
            sentences.append(
                f"{model} errs on {len(wrong)} of them; {times(fooled)} it names the class its {bias} usually means."
            )
    return sentences


def times(number: int) -> str:
    """How often, in words."""
    return {1: "once", 2: "twice"}.get(number, f"{number} times")
