"""Slices: the samples that the biased model misclassifies, clustered class by class, and a map of the features."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from debiaser.auditing.crossval import AT_ONCE, Rows, read_model
from debiaser.auditing.verdict import Examined
from debiaser.data.split import Split
from debiaser.learn.forward import look
from debiaser.learn.groups import best_clusters, chosen_rows

PER_CLASS, SLICES = 6, 60  # slices of a class, and in all (the largest ones), at most
SHOWN = 12  # samples of a slice
FEWEST, DIVIDED = 5, 20  # misclassified samples from which on there is a slice, and from which on there are several
COMPONENTS = 32
COMPARED = 1000  # samples whose silhouettes choose the number of clusters
MAPPED = 1500  # samples on the map
WHOLE = "There are no slices and no map with --finetune: the networks of different folds share no features."
Points = NDArray[np.float64]


def find_slices(examined: Examined) -> dict[str, Any]:
    """`slices`: class, n, what the biased model says most, the plain model's accuracy, places; `map`: places, x, y.

    Places are among the examined samples, those of a slice nearest to its centre first. No slices where the biased
    model means nothing; nothing where a whole network is trained, or only the answers of a person's own model are here.
    """
    if examined.subject.whole or not examined.plain.keys:
        return {"slices": [], "map": None}
    pool, seed, classes = examined.pool, examined.trainer.seed, examined.subject.own.classes
    y, said, plain = examined.trainer.y[pool], examined.biased.answer[pool], examined.plain.answer[pool]
    wrong = np.flatnonzero((said != y) & (not examined.degenerate))
    sample = chosen_rows(len(pool), MAPPED, seed)
    project = fit_projection(np.concatenate([*features(examined, pool[sample])]), y[sample], seed)
    needed = np.union1d(wrong, sample)
    points = np.concatenate([project(part) for part in features(examined, pool[needed])])
    found = [wrong[part] for part in cluster(points[np.searchsorted(needed, wrong)], y[wrong], seed)]
    slices = [
        {
            "class": classes[y[rows[0]]],
            "n": len(rows),
            "says": classes[np.bincount(said[rows]).argmax()],
            "plain_accuracy": 100 * float((plain[rows] == y[rows]).mean()),
            "places": rows[:SHOWN].tolist(),
        }
        for rows in found
    ]
    drawn = np.sort(list(dict.fromkeys(np.concatenate([*(rows[:SHOWN] for rows in found), sample]).tolist()))[:MAPPED])
    x, height = draw_map(points[np.searchsorted(needed, drawn)]).T.round(3).tolist()
    return {"slices": slices, "map": {"places": drawn.tolist(), "x": x, "y": height}}


def features(examined: Examined, rows: Rows) -> Iterator[NDArray[np.float32]]:
    """(b, h) at a time: frozen features, or what enters the last layer of the first fold's first plain model."""
    material, trainer = examined.trainer.material, examined.trainer
    batches = Split(torch.from_numpy(trainer.y), material.read).subset(torch.from_numpy(rows)).batches(AT_ONCE)
    if material.architecture == "mlp":
        yield from (batch.x.numpy() for batch in batches)
    else:
        model = read_model(material, trainer.folder / examined.plain.keys[0][0])
        yield from (outputs.features.float().numpy() for outputs in look(model, batches))


def fit_projection(learnt: NDArray[np.float32], labels: Rows, seed: int) -> Callable[[NDArray[np.float32]], Points]:
    """What brings features (b, h) to a few dimensions: those in which samples of one class differ most."""
    from sklearn.decomposition import PCA

    _, number, counts = np.unique(labels, return_inverse=True, return_counts=True)
    sums = np.zeros((len(counts), learnt.shape[1]))
    np.add.at(sums, number, learnt)
    components = min(COMPONENTS, *learnt.shape)
    reducer = PCA(components, random_state=seed % 2**32).fit(learnt - (sums / counts[:, None])[number])
    return lambda given: np.asarray(reducer.transform(given), np.float64)


def cluster(points: Points, labels: Rows, seed: int) -> list[Rows]:
    """The places of each slice's points (m, d), nearest to its centre first; slices by class, the larger ones first."""
    slices: list[Rows] = []
    for k in np.unique(labels):
        mine = np.flatnonzero(labels == k)
        own = np.zeros(len(mine), np.int64)
        if len(mine) >= DIVIDED:
            own = best_clusters(points[mine], PER_CLASS, "kmeans", seed, COMPARED)[0](points[mine])
        parts = [mine[own == number] for number in np.unique(own)]
        slices += sorted((part for part in parts if len(part) >= FEWEST), key=len, reverse=True)
    smallest = sorted(map(len, slices), reverse=True)[:SLICES]
    slices = [part for part in slices if len(part) >= smallest[-1]][:SLICES]
    away = [np.linalg.norm(points[part] - points[part].mean(0), axis=1) for part in slices]
    return [part[np.argsort(far, kind="stable")] for part, far in zip(slices, away, strict=True)]


def draw_map(points: Points) -> Points:
    """(m, 2) between 0 and 1: the first two of these dimensions (t-SNE of 1,500 samples takes 3 to 9 seconds)."""
    flat = points[:, :2] if points.shape[1] > 1 else np.repeat(points, 2, 1)
    low, high = flat.min(0), flat.max(0)
    return np.asarray((flat - low) / np.maximum(high - low, 1e-12))
