"""What the page shows: which rows, their pictures or texts, the typical rows beside them, where a model looks."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional as F  # noqa: N812

from debiaser.auditing.audit import Examined
from debiaser.auditing.jobs import Rows, answer_inputs
from debiaser.auditing.material import Material
from debiaser.auditing.shares import looks
from debiaser.auditing.subject import Subject
from debiaser.learn.outputs import call
from debiaser.randomness import numpy_stream

PER_CLASS = 12  # rows of each gallery
MOST = 400  # pictures in all
TRIPLETS = 12
CANDIDATES = 2000  # typical rows among which the nearest is looked for
HEATS = 12
SMOOTH = 28  # a look is blurred by one part in so many of the picture, to either side
WORDS = 40  # of a text, at most, whose weight is found


@dataclass(frozen=True, eq=False)
class Chosen:
    """Row numbers: everything that is shown, the triplets, and the rows where the models' looks are drawn."""

    shown: Rows
    triplets: list[dict[str, int]]
    looked: Rows


def choose(examined: Examined) -> Chosen:
    """The rows to show: most and least against the rule in every class, likely mislabelled, triplets and looks."""
    y, score, answer = examined.desk.y, examined.score, examined.easy.answer
    kind, material = examined.kinds.kind, examined.desk.material
    inside = np.flatnonzero(answer >= 0)
    order = inside[np.argsort(-score[inside], kind="stable")]
    classes = np.unique(y[inside])
    each = max(3, min(PER_CLASS, MOST // (3 * len(classes))))
    galleries = []
    for k in classes:
        mine = order[y[order] == k]
        against = mine[answer[mine] != k][:each]
        galleries += [against, mine[::-1][:each]]
    wrong = order[kind[order] == "mislabelled"][: 2 * PER_CLASS]
    against = order[answer[order] != y[order]]
    triplets = make_triplets(against[:TRIPLETS], y, answer, material)
    extra = np.array([row for triplet in triplets for row in triplet.values()], np.int64)
    shown = np.unique(np.concatenate([*galleries, wrong, extra, order[:PER_CLASS], looks(examined)]))
    return Chosen(shown, triplets, against[:HEATS])


def make_triplets(rows: Rows, y: Rows, answer: Rows, material: Material) -> list[dict[str, int]]:
    """For each row: the nearest typical row of its own label, and the nearest one of what the easy model says."""
    found = []
    typical = np.flatnonzero((answer >= 0) & (answer == y))
    if len(typical) > CANDIDATES:
        typical = np.sort(numpy_stream(0, "typical").choice(typical, CANDIDATES, replace=False))
    if not len(typical) or not len(rows):
        return []
    points = material.points(typical)
    for row, point in zip(rows, material.points(rows), strict=True):
        distance = ((points - point) ** 2).sum(1)
        nearest = {}
        for name, label in (("same", y[row]), ("other", answer[row])):
            mine = np.flatnonzero(y[typical] == label)
            if len(mine):
                nearest[name] = int(typical[mine[distance[mine].argmin()]])
        if len(nearest) == 2:
            found.append({"row": int(row), **nearest})
    return found


def input_gradients(subject: Subject, model: nn.Module, pictures: torch.Tensor) -> NDArray[np.uint8]:
    """(b, s, s) where a small change of the picture changes the answer most, from 0 (nowhere) to 255."""
    x = pictures.float().requires_grad_(True)
    with torch.enable_grad():
        logits = call(model.eval(), subject.flow(x))
        (gradient,) = torch.autograd.grad(logits.max(1).values.sum(), x)
    reach = max(1, pictures.shape[-1] // SMOOTH)
    heat = F.avg_pool2d(gradient.abs().sum(1, keepdim=True), 2 * reach + 1, stride=1, padding=reach)[:, 0]
    strongest = heat.flatten(1).amax(1).clamp_min(1e-12)[:, None, None]
    return (255 * heat / strongest).round().byte().numpy()


def word_weights(model: nn.Module, text: str, enter: Callable[[Any], torch.Tensor]) -> list[list[Any]]:
    """Each word and what leaving it out takes from the answer's probability, relative to the strongest (-1 to 1)."""
    words = re.findall(r"\S+", text)[:WORDS]
    if not words:
        return []
    variants = [" ".join(words), *(" ".join(words[:n] + words[n + 1 :]) for n in range(len(words)))]
    probability = answer_inputs(model, enter(variants))
    answer = probability[0].argmax()
    lost = probability[0, answer] - probability[1:, answer]
    strongest = max(float(np.abs(lost).max()), 1e-12)
    return [[word, round(float(each / strongest), 3)] for word, each in zip(words, lost, strict=True)]
