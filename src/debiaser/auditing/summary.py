"""What was examined, as the plain object that `--json` prints and the page reads, and as one line per row."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from debiaser.auditing.audit import Examined
from debiaser.auditing.estimates import Estimate, share
from debiaser.auditing.exhibits import Chosen
from debiaser.auditing.shares import conflicting_share, looks, mislabelled_share
from debiaser.auditing.swap import SwapTest
from debiaser.data.rows import first
from debiaser.randomness import numpy_stream

BINS = 40
SHOWN = 150  # rows of each kind in the plane of two rules


def summarise(examined: Examined, chosen: Chosen) -> dict[str, Any]:
    """Everything but the rows themselves."""
    own, pool, kinds = examined.subject.own, examined.pool, examined.kinds
    y, unit = own.y.numpy(), own.unit
    right = examined.easy.answer[pool] == y[pool]
    effective, place = examined.effective_rows, examined.place
    return {
        "source": own.source,
        "kind": own.kind,
        "examined": examined.model,
        "verdict": examined.verdict,
        "reasons": examined.reasons,
        "n": len(pool),
        "units": len(np.unique(unit[pool])),
        "classes": [class_facts(name, k, y[pool], right) for k, name in enumerate(own.classes)],
        "notes": [*own.notes, rests_on(effective, len(pool), own.kind), *remarks(examined)],
        "choices": {**examined.subject.choices, "folds": str(len(examined.desk.folds))},
        "unreadable": [{"id": e.id, "reason": e.reason} for e in own.excluded if e.kind == "unreadable"],
        "left_out": [{"id": e.id, "reason": e.reason} for e in own.excluded if e.kind != "unreadable"],
        "duplicates": [{"ids": list(each.ids), "across": each.across} for each in own.duplicates],
        "health": {
            "ok": not examined.troubles,
            "findings": [each.plain for each in examined.troubles],
            "easy_accuracy": share(right, unit[pool]).plain,
            "plain_accuracy": share(examined.plain.answer[pool] == y[pool], unit[pool]).plain,
        },
        "conflicting_share": conflicting_share(examined).plain,
        "mislabelled_share": mislabelled_share(examined).plain,
        "kinds": {"asserted": not kinds.abstains, "why": kinds.abstains},
        "planted": examined.controls.plain if examined.controls else None,
        "plane": plane(examined),
        "looks": [int(each) for each in place[looks(examined)]],
        "effective_sample_size": effective.plain,
        "untested": [each.plain for each in examined.swaps.untested] if isinstance(examined.swaps, SwapTest) else [],
        "views": [each.plain for each in examined.swaps.reliances] if isinstance(examined.swaps, SwapTest) else [],
        "suspects": [each.plain for each in examined.suspects],
        "triplets": [{name: int(place[row]) for name, row in each.items()} for each in chosen.triplets],
        "histogram": histogram(examined.score[pool], ~right),
        "repair": None,
    }


def remarks(examined: Examined) -> list[str]:
    """Properties that could not be swapped, what planted rows showed, and why no kind is asserted where none is."""
    untested = examined.swaps.untested if isinstance(examined.swaps, SwapTest) else ()
    told = [f"Not tested: {each.title} ({each.reason})." for each in untested]
    told += [examined.controls.words] if examined.controls else []
    if changed := getattr(examined.subject.own.inputs, "failed", {}):
        told.append(f"{len(changed):,} pictures changed meanwhile and were grey from then on: {first([*changed])}")
    return told + ([examined.kinds.abstains] if examined.kinds.abstains else [])


def rests_on(effective: Estimate, n: int, kind: str) -> str:
    """The effective sample size in words."""
    things = "pictures" if kind == "image" else "texts"
    return f"Training by score would rest on {effective.value:,.0f} of {n:,} {things}."


def class_facts(name: str, k: int, y: NDArray[np.int64], right: NDArray[np.bool_]) -> dict[str, Any]:
    """A class, its rows, and how many of them the easy model gets right, in percent."""
    mine = y == k
    return {
        "name": name,
        "n": int(mine.sum()),
        "easy_accuracy": float(100 * right[mine].mean()) if mine.any() else None,
    }


def plane(examined: Examined) -> list[dict[str, Any]] | None:
    """Rows by the probability that the easy and the judging models give to their label; planted ones among them."""
    judge, y = examined.kinds.judge, examined.desk.y
    if judge is None:
        return None
    stream, pool = numpy_stream(examined.desk.seed, "plane"), examined.pool
    missed = examined.kinds.missed[pool]
    rows = np.concatenate([stream.permutation(pool[part])[:SHOWN] for part in (missed, ~missed)])
    kinds = examined.kinds.kind[rows].tolist()
    parts = [(examined.easy.probability[rows], judge.probability[rows], y[rows], kinds)]
    if (planted := examined.planted) is not None:
        some = slice(None, None, max(1, len(planted.rows) // SHOWN))
        label = y[planted.rows[some]]
        parts.append((planted.easy[some], planted.judge.mean(0)[some], label, ["planted"] * len(label)))
    return [
        {"easy": round(easy, 3), "judge": round(said, 3), "kind": kind}
        for one, other, label, names in parts
        for easy, said, kind in zip(own_class(one, label), own_class(other, label), names, strict=True)
    ]


def own_class(probability: NDArray[np.float64], label: NDArray[np.int64]) -> list[float]:
    """(m,) what is given to the label."""
    return [float(each) for each in np.take_along_axis(probability, label[:, None], 1)[:, 0]]


def histogram(score: NDArray[np.float64], wrong: NDArray[np.bool_]) -> dict[str, list[float]]:
    """Rows by score, on a scale of powers: all, and those that the easy model misses."""
    logs = np.log10(np.maximum(score, 1e-8))
    edges = np.linspace(logs.min(), max(logs.max(), logs.min() + 1e-6), BINS + 1)
    counts = {"all": np.histogram(logs, edges)[0], "easy_wrong": np.histogram(logs[wrong], edges)[0]}
    return {"edges": (10**edges).tolist(), **{name: values.tolist() for name, values in counts.items()}}


def ranks(score: NDArray[np.float64]) -> NDArray[np.int64]:
    """(n,) from 1, the highest score."""
    rank = np.empty(len(score), np.int64)
    rank[np.argsort(-score, kind="stable")] = np.arange(1, len(score) + 1)
    return rank


def rows_of(examined: Examined) -> dict[str, NDArray[Any]]:
    """The columns of scores.csv over the examined rows."""
    own, pool, kinds = examined.subject.own, examined.pool, examined.kinds
    classes = np.array(own.classes, dtype=object)
    score, missed, wrong = examined.score[pool], kinds.missed[pool], kinds.wrong[pool]
    return {
        "id": np.array(own.ids, dtype=object)[pool],
        "path": np.array(own.paths, dtype=object)[pool],
        "label": classes[own.y.numpy()[pool]],
        "predicted": classes[examined.easy.answer[pool]],
        "score": score,
        "probability": examined.probability[pool],
        "rank": ranks(score),
        "p_conflicting": np.where(missed, 1 - wrong, 0.0),
        "p_mislabelled": np.where(missed, wrong, 0.0),
        "kind": kinds.kind[pool].astype(object),
    }
