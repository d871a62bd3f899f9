"""What the page shows: slices and a map of the samples, galleries, where the models look, and swaps.

Slices are the samples that the biased model misclassifies, clustered class by class.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional as F  # noqa: N812

from debiaser.auditing.candidates import VANILLA, Evaluation
from debiaser.auditing.crossval import Rows, probabilities, read_model
from debiaser.auditing.diagnosis import label_errors
from debiaser.auditing.inputs import Subject
from debiaser.auditing.swap_test import SwapTest
from debiaser.auditing.verdict import Examined
from debiaser.learn.forward import call
from debiaser.learn.groups import best_clusters, chosen_rows
from debiaser.report.audit_page import MOST_SLICED, by_turns

IN_CLASS, SLICES = 6, 60  # slices of a class, and in all (the largest ones), at most
IN_SLICE = 12  # samples of a slice
FEWEST, DIVIDED = 5, 20  # misclassified samples from which on there is a slice, and from which on there are several
COMPONENTS = 32
COMPARED = 1000  # samples whose silhouettes choose the number of clusters
MAPPED = 1500  # samples on the map
WHOLE = "There are no slices and no map with --finetune: the networks of different folds share no features."
Points = NDArray[np.float64]

PER_CLASS = 12  # samples of each gallery
MOST = 400  # images in all
HEATS = 12
SMOOTH = 28  # a look is blurred by one part in so many of the image, to either side
WORDS = 40  # of a text, at most, whose weight is found
SIDE, LARGE = 160, 320  # pixels of an image on the page, at most; of one to mark
AROUND = 180  # characters of a text that show a swap
STRIPS = 3  # swaps that are shown of each view, of as many classes


def find_slices(examined: Examined) -> dict[str, Any]:
    """`slices`: class, n, what the biased model says most, the plain model's accuracy, places; `map`: places, x, y.

    Places are among the examined samples, those of a slice nearest to its centre first. No slices where the biased
    model means nothing; nothing where a whole network is trained, or only the answers of a person's own model are here.
    """
    from sklearn.decomposition import PCA

    if examined.subject.whole or not examined.plain.keys:
        return {"slices": [], "map": None}
    pool, seed, classes = examined.pool, examined.trainer.seed, examined.subject.own.classes
    y, said, plain = examined.trainer.y[pool], examined.biased.answer[pool], examined.plain.answer[pool]
    wrong = np.flatnonzero((said != y) & (not examined.degenerate))
    sample = chosen_rows(len(pool), MAPPED, seed)

    def features(places: Rows) -> Iterator[NDArray[np.float32]]:
        return examined.trainer.features(pool[places], examined.plain.keys[0][0])

    # to a few dimensions: those in which samples of one class differ most
    learnt = np.concatenate([*features(sample)])
    _, number, counts = np.unique(y[sample], return_inverse=True, return_counts=True)
    sums = np.zeros((len(counts), learnt.shape[1]))
    np.add.at(sums, number, learnt)
    reducer = PCA(min(COMPONENTS, *learnt.shape), random_state=seed % 2**32)
    reducer.fit(learnt - (sums / counts[:, None])[number])
    needed = np.union1d(wrong, sample)
    points = np.concatenate([reducer.transform(part) for part in features(needed)]).astype(np.float64)
    found = [wrong[part] for part in cluster(points[np.searchsorted(needed, wrong)], y[wrong], seed)]
    slices = [
        {
            "class": classes[y[rows[0]]],
            "n": len(rows),
            "says": classes[np.bincount(said[rows]).argmax()],
            "plain_accuracy": 100 * float((plain[rows] == y[rows]).mean()),
            "places": rows[:IN_SLICE].tolist(),
        }
        for rows in found
    ]
    wanted = np.concatenate([*(rows[:IN_SLICE] for rows in found), sample]).tolist()
    drawn = np.sort(list(dict.fromkeys(wanted))[:MAPPED])
    flat = points[np.searchsorted(needed, drawn), :2]  # t-SNE of 1,500 samples takes 3 to 9 seconds
    flat = flat if flat.shape[1] > 1 else np.repeat(flat, 2, 1)
    low, high = flat.min(0), flat.max(0)
    x, height = ((flat - low) / np.maximum(high - low, 1e-12)).T.round(3).tolist()
    return {"slices": slices, "map": {"places": drawn.tolist(), "x": x, "y": height}}


def cluster(points: Points, labels: Rows, seed: int) -> list[Rows]:
    """The places of each slice's points (m, d), nearest to its centre first; slices by class, the larger ones first."""
    slices: list[Rows] = []
    for k in np.unique(labels):
        mine = np.flatnonzero(labels == k)
        own = np.zeros(len(mine), np.int64)
        if len(mine) >= DIVIDED:
            own = best_clusters(points[mine], IN_CLASS, "kmeans", seed, COMPARED)[0](points[mine])
        parts = [mine[own == number] for number in np.unique(own)]
        slices += sorted((part for part in parts if len(part) >= FEWEST), key=len, reverse=True)
    smallest = sorted(map(len, slices), reverse=True)[:SLICES]
    slices = [part for part in slices if len(part) >= smallest[-1]][:SLICES]
    away = [np.linalg.norm(points[part] - points[part].mean(0), axis=1) for part in slices]
    return [part[np.argsort(far, kind="stable")] for part, far in zip(slices, away, strict=True)]


# --- Samples, and where the models look


def choose(examined: Examined, slices: Sequence[dict[str, Any]] = ()) -> tuple[Rows, Rows]:
    """The samples to show, most and least against the shortcut in every class, likely mislabelled, to mark, and those
    of slices; and those where the models' looks are drawn."""
    y, score, answer = examined.trainer.y, examined.score, examined.biased.answer
    kind = examined.diagnosis.kind
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
    wrong = wrong if len(wrong) else label_errors(examined.diagnosis, y)[: 2 * PER_CLASS]
    against = order[answer[order] != y[order]]
    sliced = examined.pool[by_turns(each["places"] for each in slices)[:MOST_SLICED]]
    shown = [*galleries, wrong, order[:PER_CLASS], examined.to_mark()[0], sliced]
    return np.unique(np.concatenate(shown)), against[:HEATS]


def input_gradients(subject: Subject, model: nn.Module, images: torch.Tensor) -> NDArray[np.uint8]:
    """(b, s, s) where a small change of the image changes the answer most, from 0 (nowhere) to 255."""
    x = images.float().requires_grad_(True)
    with torch.enable_grad():
        logits = call(model.eval(), subject.flow(x))
        (gradient,) = torch.autograd.grad(logits.max(1).values.sum(), x)
    reach = max(1, images.shape[-1] // SMOOTH)
    heat = F.avg_pool2d(gradient.abs().sum(1, keepdim=True), 2 * reach + 1, stride=1, padding=reach)[:, 0]
    strongest = heat.flatten(1).amax(1).clamp_min(1e-12)[:, None, None]
    return (255 * heat / strongest).round().byte().numpy()


def word_weights(model: nn.Module, text: str, enter: Callable[[Any], torch.Tensor]) -> list[list[Any]]:
    """Each word and what leaving it out takes from the answer's probability, relative to the strongest (-1 to 1)."""
    words = re.findall(r"<br\b\s*/?>?|(?:(?!<br\b)\S)+", text)[:WORDS]
    if not words:
        return []
    variants = [" ".join(words), *(" ".join(words[:n] + words[n + 1 :]) for n in range(len(words)))]
    probability = probabilities(model, enter(variants))
    answer = probability[0].argmax()
    lost = probability[0, answer] - probability[1:, answer]
    strongest = max(float(np.abs(lost).max()), 1e-12)
    return [[readable(word), round(float(each / strongest), 3)] for word, each in zip(words, lost, strict=True)]


def readable(text: str) -> str:
    """The text as a person reads it: reviews from the web are full of HTML line breaks, which are shown as breaks."""
    return re.sub(r"(?i)[^\S\n]*<br\b\s*/?>?[^\S\n]*", "\n", text)


def shown_samples(
    examined: Examined, evaluation: Evaluation | None, slices: Sequence[dict[str, Any]]
) -> dict[int, dict[str, Any]]:
    """By their place in scores.csv the images or texts to show, what the models say, and where they look."""
    subject, trainer, kind = examined.subject, examined.trainer, examined.subject.own.kind
    rows, looked = choose(examined, slices)
    contents = subject.read(torch.from_numpy(rows))
    samples = [
        {kind: content, "easy": examined.biased.probability[row], "plain": examined.plain.probability[row]}
        for row, content in zip(rows, map(readable, contents) if kind == "text" else small(contents), strict=True)
    ]
    debiased = None
    if evaluation is not None and evaluation.chosen != VANILLA:
        debiased = read_model(trainer.material, trainer.folder / evaluation.candidates[evaluation.chosen].keys[0][0])
    at = {int(row): number for number, row in enumerate(rows)}
    if kind == "image":  # those to mark as large as a person needs them, not as the model gets them
        asked, own = examined.to_mark()[0], subject.own
        large = own.inputs.read(torch.from_numpy(asked), min(LARGE, max(own.inputs.largest_side, subject.size)))
        for row, image in zip(asked.tolist(), large.permute(0, 2, 3, 1).contiguous().numpy(), strict=True):
            samples[at[row]]["image"] = image
    for row in looked.tolist() if examined.biased.keys else ():
        key = examined.biased.keys[0][trainer.fold[row]]  # of the model that never saw this sample
        easy = read_model(trainer.material, trainer.folder / key)
        content = subject.read(torch.tensor([row]))  # one at a time: a network may be large
        for name, model in (("look_easy", easy), ("look_debiased", debiased)):
            if model is not None and kind == "image":
                samples[at[row]][name] = input_gradients(subject, model, content)[0]
            elif model is not None and (weights := word_weights(model, content[0], subject.enter)):
                samples[at[row]][name] = weights
    return dict(zip(examined.place[rows].tolist(), samples, strict=True))


def small(images: torch.Tensor) -> NDArray[np.uint8]:
    """(b, s, s, 3) at most SIDE pixels wide."""
    if images.shape[-1] > SIDE:
        images = F.interpolate(images.float(), SIDE, mode="bilinear", antialias=True).round().clamp(0, 255).byte()
    return images.permute(0, 2, 3, 1).contiguous().numpy()


def shown_swaps(examined: Examined) -> dict[str, list[dict[str, Any]]]:
    """By view a swap of each of some classes, followed ones first: original, donor, swapped sample, and the answers."""
    swaps, y, said = examined.swaps, examined.trainer.y, examined.plain.answer
    if not isinstance(swaps, SwapTest) or not swaps.reliances:
        return {}
    subject, classes = examined.subject, examined.subject.own.classes
    rows, donors = examined.pool[swaps.pairs.rows], examined.pool[swaps.pairs.donors]
    strips: dict[str, list[dict[str, Any]]] = {}
    for view in examined.views:
        if view.name not in swaps.answers:
            continue
        answers = swaps.answers[view.name]
        order = np.argsort(answers != y[donors], kind="stable")
        first = order[np.sort(np.unique(y[rows[order]], return_index=True)[1])[:STRIPS]]
        x, other = (subject.read(torch.from_numpy(each[first])) for each in (rows, donors))
        swapped = view.swap(x, other, torch.from_numpy(swaps.pairs.rows[first]))
        strips[view.name] = []
        for three, place in zip(zip(x, other, swapped, strict=True), first, strict=True):
            told = [classes[each] for each in (said[rows[place]], said[donors[place]], answers[place])]
            if subject.own.kind == "image":
                strips[view.name].append({"images": list(small(torch.stack(three))), "answers": told})
            else:  # the texts around what changed
                one, donor, mixed = map(readable, three)
                texts = [excerpt(one, mixed), donor[:AROUND], excerpt(mixed, one)]
                strips[view.name] += [{"texts": texts, "answers": told}]
    return strips


def excerpt(text: str, changed: str) -> str:
    """The text around the first place where it differs from the changed one."""
    place = next((n for n, pair in enumerate(zip(text, changed, strict=False)) if pair[0] != pair[1]), len(text))
    start = max(0, place - AROUND // 3)
    cut = text[start : start + AROUND]
    return ("… " if start else "") + cut + (" …" if start + AROUND < len(text) else "")
