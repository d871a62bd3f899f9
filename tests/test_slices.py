"""Class x group tables and slices of misclassified samples, against their definitions."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from debiaser.auditing.candidates import Candidate, Evaluation
from debiaser.auditing.comparison import describe
from debiaser.auditing.estimates import resampled_means, share
from debiaser.auditing.export import group_lines
from debiaser.auditing.groups import MOST, describe_groups, group_cells, group_names
from debiaser.auditing.page_content import cluster, find_slices, readable, shown_swaps
from debiaser.auditing.swap_test import SwapTest
from debiaser.cli.own import group_table_lines

CLASSES = ("land bird", "water bird")


def samples(counts: list[list[int]], groups: tuple[str, ...] = ("land", "water")) -> tuple[np.ndarray, np.ndarray]:
    """Labels and groups with these counts by class and group."""
    cells = [(k, name, n) for k, row in enumerate(counts) for name, n in zip(groups, row, strict=True)]
    y = np.concatenate([np.full(n, k) for k, _, n in cells])
    return y, np.concatenate([np.full(n, name) for _, name, n in cells])


def group_table(y: np.ndarray, group: np.ndarray, plain: np.ndarray, biased: np.ndarray) -> Any:
    """The table of an examination in which the models gave these answers."""
    own = SimpleNamespace(group=group, y=torch.from_numpy(y), unit=np.arange(len(y)), classes=CLASSES)
    answers = {"plain": SimpleNamespace(answer=plain), "biased": SimpleNamespace(answer=biased)}
    examined: Any = SimpleNamespace(subject=SimpleNamespace(own=own), pool=np.arange(len(y)), **answers)
    return describe_groups(examined, "place")


def described(counts: list[list[int]], groups: tuple[str, ...] = ("land", "water"), seed: int = 0) -> dict[str, Any]:
    y, group = samples(counts, groups)
    stream = np.random.default_rng(seed)
    plain, biased = (np.where(stream.random(len(y)) < wrong, 1 - y, y) for wrong in (0.2, 0.5))
    return group_table(y, group, plain, biased) | {"answers": (plain, biased)}


@pytest.mark.parametrize(
    ("counts", "v"),
    [
        ([[50, 50], [50, 50]], 0.0),
        ([[90, 10], [10, 90]], 0.8),  # chi-squared of a 2 x 2 table: n (ad - bc)^2 / (product of the margins)
        ([[30, 10], [5, 55]], (30 * 55 - 10 * 5) / np.sqrt(40.0 * 60 * 35 * 65)),
        ([[40, 0], [0, 60]], 1.0),
    ],
)
def test_cramers_v_of_a_table_made_by_hand(counts: list[list[int]], v: float) -> None:
    found = described(counts)["association"]
    assert found["cramers_v"] == pytest.approx(v, abs=1e-9)
    assert ("cannot help" in found["sentence"]) == (v == 1)


def test_the_association_in_words() -> None:
    found = described([[150, 0], [6, 94]])["association"]["sentence"]
    assert found.startswith("In 94% of the samples of 'water bird' the group is 'water' (38% of all samples); Cramér's")
    assert found.endswith("No samples at all: 'land bird' x 'water'.")
    alone = described([[40], [60]], ("here",))["association"]
    assert alone["cramers_v"] is None and "cannot help" in alone["sentence"]


def test_cells_and_the_worst_are_what_numpy_counts() -> None:
    counts = [[120, 12], [9, 80]]
    y, group = samples(counts)
    found = described(counts)
    plain, biased = found["answers"]
    for cell in found["cells"]:
        mine = (np.array(CLASSES)[y] == cell["class"]) & (group == cell["group"])
        assert cell["n"] == mine.sum()
        for name, answer in (("plain", plain), ("biased", biased)):
            assert cell[name]["value"] == pytest.approx(100 * (answer == y)[mine].mean())
            assert (cell[name]["low"] is None) == (cell["n"] < 10), "nine samples are shown, not judged"
    judged = [cell for cell in found["cells"] if cell["n"] >= 10]
    assert found["worst"] == min(judged, key=lambda cell: cell["plain"]["value"])


def test_a_small_cell_is_never_the_worst() -> None:
    y, group = samples([[40, 9], [40, 40]])
    plain = np.where(group == "water", 0, y)
    plain[:49] = np.where(group[:49] == "water", 1, 0)  # all nine wrong
    found = group_table(y, group, plain, plain)
    assert found["worst"]["class"] == "water bird" and found["worst"]["plain"]["value"] == 0
    assert [cell["plain"]["value"] for cell in found["cells"]] == [100, 0, 100, 0]


def test_rare_and_missing_values_have_one_name_each() -> None:
    values = np.array([f"v{k}" for k in range(30) for _ in range(30 - k)] + [""] * 50)
    named = group_names(values)
    assert (named[values == ""] == "(missing)").all() and len(np.unique(named)) == MOST + 1
    assert (named == "other").sum() == sum(30 - k for k in range(MOST - 1, 30))
    y = np.arange(len(named)) % 2
    lumped = group_table(y, values, y, y)["association"]["sentence"]
    assert lumped.endswith("It has 31 values: all but the 20 most frequent are merged into 'other'.")
    cells = group_cells(named, y, CLASSES)
    assert sorted(np.concatenate(list(cells.values())).tolist()) == list(range(len(named)))


def test_the_screen_shows_at_most_twelve_lines_and_marks_the_worst() -> None:
    lines = list(group_table_lines(described([[120, 12], [40, 80]])))
    assert len(lines) == 6 and sum("<- worst" in line for line in lines) == 1
    assert lines[1].split() == ["class", "group", "samples", "plain", "model", "biased", "model"]
    many = list(group_table_lines(described([[12] * 9, [14] * 9], tuple("abcdefghi"))))
    assert len(many) == 12 and "and 9 more cells" in many[-1] and "<- worst" in many[2]


def test_models_are_told_by_class_and_group() -> None:
    group = np.where(np.arange(400) < 6, "rare", np.where(np.arange(400) < 200, "a", "b"))
    labels, right = np.arange(400) % 2, np.arange(400) % 7 > 1
    candidate = Candidate(np.where(right, labels, 1 - labels)[None], np.zeros((400, 2)), ())
    trial = Evaluation(np.arange(400), labels, np.arange(400), ~right, {"vanilla": candidate}, 1, 1)
    told = describe(trial, "vanilla", ("x", "y"), group)
    for k, name in ((0, "a"), (1, "b"), (0, "rare")):
        mine = (trial.labels == k) & (group == name)
        assert told["groups"][f"{'xy'[k]} x {name}"]["mean"] == pytest.approx(100 * right[mine].mean())
    large = {name: each["mean"] for name, each in told["groups"].items() if "rare" not in name}
    assert told["worst_group"]["group"] == min(large, key=lambda name: large[name])
    assert describe(trial, "vanilla", ("x", "y"), None)["worst_group"] is None
    own = SimpleNamespace(group=group, classes=("x|", "y"))
    card: Any = "\n".join(group_lines(SimpleNamespace(subject=SimpleNamespace(own=own)), trial, right))  # type: ignore[arg-type]
    assert "| x&#124; |" in card and f"{told['groups']['y x b']['mean']:.1f}" in card


def test_many_single_samples_have_the_interval_of_their_bootstrap() -> None:
    hits = np.random.default_rng(0).random(1500) < 0.1
    fast, drawn = share(hits, np.arange(1500)), 100 * resampled_means(hits.astype(float), np.arange(1500))[:, 0]
    assert [fast.low, fast.high] == pytest.approx(np.percentile(drawn, [2.5, 97.5]), abs=0.15)


# --- slices -----------------------------------------------------------------------------------------------------------


def blobs(sizes: list[int], width: int = 40, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Points around far centres, and which centre each has."""
    stream = np.random.default_rng(seed)
    of = np.repeat(np.arange(len(sizes)), sizes)
    return stream.normal(size=(len(sizes), width))[of] * 4 + stream.normal(size=(len(of), width)), of


def test_three_blobs_of_misclassified_samples_are_three_slices() -> None:
    points, of = blobs([60, 40, 25])
    found = cluster(points, np.zeros(len(points), np.int64), 0)
    assert [sorted(part.tolist()) for part in found] == [np.flatnonzero(of == k).tolist() for k in range(3)]
    for part in found:
        away = np.linalg.norm(points[part] - points[part].mean(0), axis=1)
        assert (np.diff(away) >= 0).all(), "nearest to the centre first"


@pytest.mark.parametrize(("n", "slices"), [(0, 0), (4, 0), (5, 1), (19, 1), (20, 2)])
def test_few_misclassified_samples_are_one_slice_or_none(n: int, slices: int) -> None:
    points, _ = blobs([n - n // 2, n // 2])
    assert len(cluster(points, np.zeros(n, np.int64), 0)) == slices


def examined_with(features: np.ndarray, y: np.ndarray, biased: np.ndarray, plain: np.ndarray, pool: np.ndarray) -> Any:
    """What `find_slices` reads of an audit with frozen features."""
    own = SimpleNamespace(classes=("a", "b"))
    return SimpleNamespace(
        subject=SimpleNamespace(whole=False, own=own),
        trainer=SimpleNamespace(features=lambda rows, _: [features[rows].astype(np.float32)], y=y, seed=0),
        plain=SimpleNamespace(keys=(("plain",),), answer=plain),
        biased=SimpleNamespace(answer=biased),
        pool=pool,
        degenerate=False,
    )


def test_slices_tell_class_answer_accuracy_and_places_among_the_examined() -> None:
    """Three blobs of class a are misclassified; the plain model is right in the first of them only."""
    features, of = blobs([300, 40, 30, 25, 300])
    y, pool = (of == 4).astype(np.int64), np.arange(20, len(of))
    biased = np.where((of > 0) & (of < 4), 1, y)
    plain = np.where((of == 2) | (of == 3), 1, y)
    found = find_slices(examined_with(features, y, biased, plain, pool))
    told = [(each["class"], each["n"], each["says"]) for each in found["slices"]]
    assert told == [("a", 40, "b"), ("a", 30, "b"), ("a", 25, "b")]
    assert [each["plain_accuracy"] for each in found["slices"]] == [100, 0, 0]
    for blob, each in enumerate(found["slices"], 1):
        assert len(each["places"]) == 12 and (of[pool[each["places"]]] == blob).all()
    assert found["map"]["places"] == list(range(len(pool)))
    x, height = np.array(found["map"]["x"]), np.array(found["map"]["y"])
    assert x.min() == height.min() == 0 and x.max() == height.max() == 1
    spot, mine = np.stack([x, height], 1), of[pool]
    within = np.linalg.norm(spot[mine == 1] - spot[mine == 1].mean(0), axis=1).mean()
    assert within < 0.3 * np.linalg.norm(spot - spot[mine == 1].mean(0), axis=1).mean(), "what is similar lies close"


def test_a_map_of_many_samples_holds_those_that_slices_show() -> None:
    features, of = blobs([2000, 30, 1500], 8)
    y = (of == 2).astype(np.int64)
    found = find_slices(examined_with(features, y, np.where(of == 1, 1, y), y, np.arange(len(of))))
    shown = {place for each in found["slices"] for place in each["places"]}
    assert len(found["map"]["places"]) == 1500 and shown and shown <= set(found["map"]["places"])


def test_texts_are_shown_as_a_person_reads_them() -> None:
    assert readable("Bad. <br /><br />Really<BR/> bad<br>.<br") == "Bad.\n\nReally\nbad\n.\n"
    assert readable("a < b, <brand>\n x") == "a < b, <brand>\n x"


def test_swaps_are_shown_of_different_classes_those_that_were_followed_first() -> None:
    y = np.array([0, 0, 1, 1, 2, 2])
    pairs = SimpleNamespace(rows=np.array([0, 1, 2, 3, 4]), donors=np.array([2, 3, 4, 5, 0]))
    answers = np.array([1, 1, 1, 2, 2])  # of the second class, the first swap is not followed; of the third, none is
    view = SimpleNamespace(name="words", swap=lambda x, other, _: other)
    swaps = SwapTest(("one",), (), 2, 2, pairs, {"words": answers})  # type: ignore[arg-type]
    own = SimpleNamespace(classes=("a", "b", "c"), kind="text")
    subject = SimpleNamespace(own=own, read=lambda rows: [f"text {row}" for row in rows.tolist()])
    made: Any = SimpleNamespace(swaps=swaps, subject=subject, pool=np.arange(6), views=[view])
    made.trainer, made.plain = SimpleNamespace(y=y), SimpleNamespace(answer=y)
    told = ["".join(each["answers"]) for each in shown_swaps(made)["words"]]
    assert told == ["abb", "bcc", "cac"]
