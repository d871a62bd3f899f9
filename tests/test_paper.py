"""The published numbers: complete, readable, found where they should be, and nowhere else in the code."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from conftest import ROOT
from debiaser.paper.results import numbers, published, table

TRANSCRIPT = ROOT.parent / "shared" / "specs" / "paper_results.json"
SOURCE = ROOT.parent / "shared" / "paper" / "pgd_iclr2023.tex"

TABLES = {
    "control": 45 + 4,  # and four differences that the text prints
    "real_1": 10 + 1,
    "real_2": 24,
    "norm": 12,
    "ablation": 8,
    "invq_compare": 4,
    "portion of toxic": 8,
    "hyperparam": 63,
    "gce_ablation": 24,
    "single_stage": 12,
    "reweighting": 6,
    "effect_grad_score": 12,
    "compute_time": 7 + 2,
    "natural": 6,
    "ab_hist": 3,
    "second_easiest": 18,
    "stat_reverse": 20,
    "hist_trial": 3,
    "real_3": 10,
}
DATASETS = {"cmnist", "cmnist-colour", "mbmnist", "ccifar", "cifar10", "bar", "bffhq", "celeba", "civilcomments"}
METHODS = {"vanilla", "pgd", "lff", "jtt", "disen", "eiil", "cnc", "george", "bpa", ""}


def test_every_table_is_whole() -> None:
    assert {label: len(table(label)) for label in dict.fromkeys(number.label for number in numbers())} == TABLES
    assert sum(TABLES.values()) == len(numbers())
    assert table("no such table") == []


def test_names_and_values_are_ours() -> None:
    keys = [(n.label, n.dataset, n.rho, n.method, n.variant, n.metric) for n in numbers()]
    assert len(set(keys)) == len(keys)
    for number in numbers():
        assert number.dataset in DATASETS
        assert number.method in METHODS
        assert number.rho is None or 0 < number.rho < 1
        assert number.mean is not None or number.note, f"an empty cell needs a note: {number}"
        if number.metric in {"unbiased", "worst_group", "group_average"}:
            assert number.mean is None or 10 < number.mean < 100


@pytest.mark.parametrize(
    ("asked", "label", "mean", "std", "runs"),
    [
        (("cmnist", "pgd", 0.005), "control", 96.88, 0.28, 3),
        (("cifar10", "pgd", None), "natural", 94.79, 0.02, None),
        (("cmnist-colour", "lff", 0.01), "second_easiest", 96.12, None, None),
        (("celeba", "pgd", None, "worst_group", "real_3"), "real_3", 82.73, None, None),
        (("cmnist", "pgd", 0.05, "unbiased", None, "alpha=0.9 biased"), "gce_ablation", 39.4, 2.65, None),
        (("cmnist", "pgd", 0.005, "seconds", None, "single-stage"), "single_stage", 10_420, None, None),
        (("cmnist", "pgd", 0.05, "p_value", None, "versus disen"), "hist_trial", 0.2937, None, 25),
    ],
)
def test_looked_up_by_hand(
    asked: tuple[Any, ...], label: str, mean: float, std: float | None, runs: int | None
) -> None:
    found = published(*asked)
    assert found is not None
    assert (found.label, found.mean, found.std, found.runs) == (label, mean, std, runs)


def test_what_the_paper_does_not_print_is_none_and_contradictions_are_noted_on_both_sides() -> None:
    absent = [("cmnist", "pgd", 0.02), ("cmnist", "pgd", None), ("bar", "pgd", 0.005), ("cmnist", "cnc", 0.005)]
    assert not [asked for asked in (*absent, ("digits", "pgd", 0.005)) if published(*asked) is not None]
    for label, variant in (("control", ""), ("gce_ablation", "alpha=0.7"), ("single_stage", "multi-stage")):
        found = published("cmnist", "pgd", 0.01, label=label, variant=variant)
        assert found is not None
        assert found.note.startswith("D1: 97.35" if label == "control" else "D1: 98.35")
    noted = {code for number in numbers() for code in re.findall(r"\bD\d+\b", number.note)}
    assert {"D1", "D2", "D13", "D27", "D28", "D29", "D30", "D31", "D32", "D33"} <= noted


def leaves(node: Any) -> Iterator[float]:
    """Every number below a node of the transcript; times as `33m 31s` in seconds."""
    if isinstance(node, dict):
        for value in node.values():
            yield from leaves(value)
    elif isinstance(node, list):
        for value in node:
            yield from leaves(value)
    elif isinstance(node, int | float):
        yield float(node)
    elif isinstance(node, str) and (time := re.fullmatch(r"(?:(\d+)h )?(\d+)m (\d+)s", node)):
        hours, minutes, seconds = (int(part or 0) for part in time.groups())
        yield float(3600 * hours + 60 * minutes + seconds)


def held(label: str) -> list[float]:
    rows = [number for number in table(label) if not number.note.startswith("from the text")]
    return sorted(value for row in rows for value in (row.mean, row.std) if value is not None)


def test_nothing_is_missing_and_nothing_added() -> None:
    if not TRANSCRIPT.is_file():
        pytest.skip("the transcript of the paper's numbers is not here")
    transcript = json.loads(TRANSCRIPT.read_text())
    for name, content in transcript["tables"].items():
        label = content["label"].removeprefix("tab:")
        label = "hist_trial" if "histogram_trial" in label else label
        assert held(label) == sorted(leaves(content["data"])), name
    told = {number.mean for number in numbers() if number.note.startswith("from the text")}
    assert {float(str(claim["value"]).rstrip("%")) for claim in transcript["claims_in_text"]} <= told


def test_every_label_is_the_papers_own() -> None:
    if not SOURCE.is_file():
        pytest.skip("the source of the paper is not here")
    labels = set(re.findall(r"\\label\{(?:tab|fig):([^}]+)\}", SOURCE.read_text()))
    assert {number.label for number in numbers()} <= labels


def test_the_numbers_stand_nowhere_else_in_the_code() -> None:
    wanted = {f"{n.mean:.2f}" for n in numbers() if n.method == "pgd" and n.metric == "unbiased" and n.mean}
    assert {"96.88", "98.35", "98.62"} <= wanted
    pattern = re.compile(rf"(?<![\d.])(?:{'|'.join(re.escape(number) for number in sorted(wanted))})(?!\d)")
    found = [
        f"{path.relative_to(ROOT)}:{line}: {match[0]}"
        for path in sorted((ROOT / "src" / "debiaser").rglob("*.py"))
        for line, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        for match in pattern.finditer(text)
    ]
    assert not found
