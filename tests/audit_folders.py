"""What an audit gives to its page, made from coloured digits and from made-up reviews."""

from typing import Any

import numpy as np
from sklearn.datasets import load_digits

COLOURS = np.random.default_rng(4).integers(60, 256, (10, 3))
VOCABULARY = ("the", "film", "was", "a", "long", "quiet", "story", "about", "people", "who", "talk", "in", "rain")
Audit = dict[str, Any]  # the keywords of `write_audit_page`


def estimate(value: float | None, low: float | None = None, high: float | None = None) -> dict[str, Any]:
    return {"value": value, "low": low, "high": high, "method": "bootstrap over units"}


def coloured_digits(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Images (n, 32, 32, 3), labels, the class of the colour, and whether the label is a planted mistake."""
    random = np.random.default_rng(seed)
    digits = load_digits()
    rows = random.integers(0, len(digits.target), n)
    truth = digits.target[rows]
    colour = np.where(random.random(n) < 0.15, random.integers(0, 10, n), truth)
    mistaken = random.random(n) < 0.03
    label = np.where(mistaken, (truth + 1) % 10, truth)
    grey = np.kron(digits.images[rows] / 16, np.ones((1, 4, 4)))[..., None]
    return (grey * COLOURS[colour][:, None, None]).astype(np.uint8), label, colour, mistaken


HEALTH = {
    "ok": False,
    "findings": [{"what": "Class 3 collapsed.", "why": "It has few samples.", "do": "Add some, or join it."}],
    "easy_accuracy": estimate(88.0, 86.0, 90.0),
    "plain_accuracy": estimate(93.0, 91.0, 95.0),
}


def view(name: str, title: str, follows: float, p: float, nuisance: bool, **more: Any) -> dict[str, Any]:
    """How far a property is followed; chance gives 6%."""
    told = {"name": name, "title": title, "follows": follows, "chance": 6.0, "p": p, "nuisance": nuisance, "null": 8.0}
    told |= {"words": [], "by_class": {}, "declared": False, "screened": False, "detectable": 3.0}
    return told | {"excess": estimate(follows - 6, follows - 10, follows - 2), "rows": 900} | more


VIEWS = [
    view("colour", "Colour cast", 30.0, 0.001, True),
    view("frame", "Frame", 5.5, 0.6, True),
    view("texture", "Patch texture", 9.0, 0.2, False),
]
SUSPECTS = [
    {"column": "hospital", "balanced_accuracy": 62.0, "chance": 10.0, "p": 0.001, "q": 0.004, "flagged": True}
    | {"values": [{"value": "north", "n": 300, "error_rate": 2.0}, {"value": "(missing)", "n": 9, "error_rate": 40.0}]}
    | {"empty": [{"value": "north", "label": "3"}]},
    {"column": "width", "balanced_accuracy": 11.0, "chance": 10.0, "p": 0.4, "q": 0.6, "flagged": False}
    | {"values": [], "empty": []},
]
PRICE = {
    "break_even": estimate(3.1, 2.0, 4.6),
    "before": {"follow": 97.0, "against": 41.0},
    "after": {"follow": 95.8, "against": 78.5},
    "sentence": "Better if more than 3.1% [2.0, 4.6] of the cases in the field go against the shortcut.",
}
CANDIDATES = {"vanilla (class-balanced)": 61.0, "augmentation only": 63.0}
CANDIDATES |= {f"PGD, {share}% of draws by score": value for share, value in ((50, 84.0), (75, 88.0), (100, 87.5))}
SELECTION = {
    "chosen": "PGD, 75% of draws by score",
    "by": "the worst class",
    "uses_groups": "",
    "sentence": "Chosen on 120 validation samples: PGD, 75% of draws by score (88.0; vanilla 61.0).",
    "candidates": [
        {"name": name, "criterion": value, "error": 1.2, "worst_class": value - 4, "planted": value + 4}
        | {"overall": 93.0, "vetoed": "100%" in name, "uses_groups": "", "mean_cell": value}
        for name, value in CANDIDATES.items()
    ],
}


def judged(n: int, value: float) -> dict[str, Any]:
    """An accuracy, with an interval from ten samples on."""
    return estimate(value, value - 5, value + 5) if n >= 10 else estimate(value)


CELLS = [
    {"class": name, "group": group, "n": n, "plain": judged(n, value), "biased": estimate(60.0)}
    for name, group, n, value in (("0", "red", 90, 93.0), ("0", "blue", 12, 31.0), ("1", "red", 4, 75.0))
]
CELLS.append({"class": "1", "group": "blue", "n": 0, "plain": estimate(None), "biased": estimate(None)})
GROUPS = {
    "column": "colour",
    "cells": CELLS,
    "worst": CELLS[1],
    "association": {"cramers_v": 0.87, "sentence": "In 88% of the samples of '0' the group is 'red'; Cramér's V 0.87."},
}


def slices(names: list[str], label: np.ndarray, wrong: np.ndarray) -> list[dict[str, Any]]:
    """Two slices of each of the first two classes, as far as there are misclassified samples."""
    found = []
    for k, part in ((k, part) for k in range(2) for part in range(2)):
        rows = np.flatnonzero(wrong & (label == k))[part::2]
        told = {"class": names[k], "n": len(rows), "says": names[1 - k], "plain_accuracy": 40.0}
        found.append({**told, "places": rows[:12].tolist()})
    return found


def repair(names: list[str]) -> dict[str, Any]:
    """The models before and after with their controls, the test between them, and what it costs."""
    model = {
        "overall": {"mean": 91.2, "sd": 0.8},
        "easy_misses": {"mean": 41.0, "sd": 3.0},
        "worst_cell": 33.3,
        "groups": {},
        "worst_group": None,
    }
    model |= {"per_class": {name: {"mean": 90.0, "sd": 1.0} for name in names}, "minus_vanilla": None}
    difference = {"difference": 37.5, "interval": [31.0, 44.0]}
    unknown = {"difference": None, "interval": [None, None], "p": None, "units": 0}
    return {
        "seeds": 3,
        "samples_seen": 70_000,
        "before": {"vanilla": model},
        "after": {"PGD": {**model, "easy_misses": {"mean": 78.5, "sd": 2.0}, "minus_vanilla": difference}},
        "controls": {"augmentation only": model},
        "test": {
            **difference,
            "p": 0.001,
            "units": 120,
            "on": "all held-out samples",
            "easy_misses": unknown,
            "cells": {"of": "groups"},
        },
        "helped": True,
        "sentence": "Training against the shortcut helped: 78.5% of what the biased model misclassifies is now right.",
        "selection": SELECTION,
        "price": PRICE,
        "export": {
            "name": "PGD",
            "sentence": "Exported: PGD. It was chosen, and held-out samples do not speak against it.",
        },
        "views_after": [view("colour", "Colour cast", 8.0, 0.2, True, rows=90)],
    }


def findings(kind: str, names: list[str], label: np.ndarray, wrong: np.ndarray, score: np.ndarray) -> dict[str, Any]:
    """An `audit.json` with every part in it."""
    n = len(label)
    classes = [
        {"name": name, "n": int((label == k).sum()), "easy_accuracy": float(100 * (~wrong[label == k]).mean())}
        for k, name in enumerate(names)
    ]
    score = np.maximum(score, 1e-4)
    edges = np.geomspace(score.min(), score.max(), 21)
    return {
        "source": "scans/clinic",
        "kind": kind,
        "examined": "a small network trained for this audit, five folds",
        "verdict": "biased",
        "reasons": ["The model follows the colour cast in 30% of swaps, chance 6%.", "No other passes 5 points."],
        "n": n,
        "classes": classes,
        "units": 120,
        "notes": ["No validation split was there, so a tenth was set aside."],
        "choices": {"network": "SimConv-1", "folds": "5", "seeds": "2", "size": "32 px"},
        "unreadable": [{"id": f"broken/{k}.png", "reason": "truncated file"} for k in range(30)],
        "left_out": [{"id": "odd/1.png", "reason": "no label"}],
        "duplicates": [
            {"ids": ["a/7.png", "b/9.png"], "across": True},
            {"ids": ["a/1.png", "a/2.png"], "across": False},
        ],
        "health": HEALTH,
        "conflicting_share": estimate(0.135, 0.11, 0.16),
        "mislabelled_share": estimate(0.03, 0.02, 0.045),
        "effective_sample_size": estimate(180.0),
        "views": VIEWS,
        "suspects": SUSPECTS,
        "repair": repair(names),
        "propagation": {"sentence": "60 marks, recovered with 93.3% accuracy.", "more": "More would hardly help."},
        "kinds": {"why": ""},
        "degenerate": False,
        "label_errors": [],
        "probe": None,
        "planted": {"sentence": "Checked on planted samples: of 600 the biased model misclassifies 97.0%."},
        "to_mark": [{"place": int(row), "why": "score"} for row in np.flatnonzero(wrong)[:60]],
        "marks": {"counts": {}, "notes": [], "why_none": ""},
        "next": {"sentences": ["Mark a few dozen, and run the audit again."], "snippet": 'debias("scans/clinic")'}
        | {"marks": "debiaser debias scans/clinic --marks marks.csv", "again": "debiaser audit scans/clinic"},
        "groups": GROUPS,
        "slices": slices(names, label, wrong),
        "map": {
            "places": (few := np.arange(0, n, 2)).tolist(),
            "x": ((few % 97) / 97).tolist(),
            "y": (few / n).tolist(),
        },
        "histogram": {
            "edges": edges.tolist(),
            "all": np.histogram(score, edges)[0].tolist(),
            "easy_wrong": np.histogram(score[wrong], edges)[0].tolist(),
        },
    }


def score_columns(
    ids: list[str], names: list[str], label: np.ndarray, said: np.ndarray, seed: int = 1
) -> dict[str, Any]:
    """Scores that are high where the biased model's answer is not the label, as the columns of `scores.csv`."""
    random = np.random.default_rng(seed)
    score = np.where(said != label, 1.0 + random.random(len(label)), random.random(len(label)) ** 3)
    rank = np.argsort(np.argsort(-score)) + 1
    return {
        "id": ids,
        "path": ids,
        "label": [names[k] for k in label],
        "predicted": [names[k] for k in said],
        "score": score.round(6),
        "probability": (score / score.sum()).round(9),
        "rank": rank,
        "p_conflicting": np.where(said != label, 0.9, 0.02),
        "p_mislabelled": [0.01] * len(label),
        "kind": np.where(said != label, "conflicting", "aligned").tolist(),
        "content": [f"{row:032x}" for row in range(len(label))],
    }


def image_audit(n: int = 600, names: list[str] | None = None, prefix: str = "", **changes: Any) -> Audit:
    """An audit of coloured digits."""
    names = names or [str(k) for k in range(10)]
    images, label, colour, mistaken = coloured_digits(n)
    columns = score_columns([f"{prefix}{names[k]}/{row}.png" for row, k in enumerate(label)], names, label, colour)
    columns["kind"] = ["mislabelled" if bad else kind for bad, kind in zip(mistaken, columns["kind"], strict=True)]
    samples: dict[int, dict[str, Any]] = {}
    for row in range(n):
        odds = [np.where(np.arange(10) == each[row], 0.91, 0.01) for each in (colour, label)]
        samples[row] = {"image": images[row], "easy": odds[0], "plain": odds[1]}
        if row < 12:
            heat = (images[row].max(axis=2) > 0).astype(np.uint8) * 160
            samples[row] |= {"look_easy": heat, "look_debiased": heat // 2}
    swaps: dict[str, list[dict[str, Any]]] = {"colour": [], "texture": []}
    for k in range(6):
        answers = [names[label[row]] for row in (k, k + 6, k + 6)]
        swaps["colour" if k < 3 else "texture"].append({"images": images[k : k + 18 : 6], "answers": answers})
    told = findings("image", names, label, label != colour, np.asarray(columns["score"]))
    return {"findings": told | changes, "rows": columns, "samples": samples, "swaps": swaps}


def text_audit(n: int = 120, names: tuple[str, str] = ("bad", "good"), extra: str = "") -> Audit:
    """An audit of made-up reviews in which one word goes with the label."""
    random = np.random.default_rng(3)
    label = random.integers(0, 2, n)
    said = np.where(random.random(n) < 0.15, 1 - label, label)
    columns = score_columns([f"review {row}" for row in range(n)], list(names), label, said) | {"path": [""] * n}
    samples = {}
    for row in range(n):
        words = [*random.choice(VOCABULARY, 40).tolist(), "spiffing" if said[row] else "dreary", *extra.split(" ")]
        weights = [[word, 0.9 if word in ("spiffing", "dreary") else round(random.normal() * 0.1, 2)] for word in words]
        odds = np.array([0.93, 0.07] if said[row] == 0 else [0.07, 0.93])
        looks = {"look_easy": weights, "look_debiased": weights[::-1]}
        samples[row] = {"text": " ".join(words), "easy": odds, "plain": odds, **looks}
    texts = [f"a dreary film {extra}", "a spiffing film", f"a spiffing film {extra}"]
    swap = {"texts": texts, "answers": [names[0], names[1], names[1]]}
    told = findings("text", list(names), label, label != said, np.asarray(columns["score"]))
    return {"findings": told, "rows": columns, "samples": samples, "swaps": {"colour": [swap, swap]}}
