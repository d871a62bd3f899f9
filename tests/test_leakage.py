"""Suspects: columns that tell the label are found, imbalance and chance are not, and the counting is its definition."""

import numpy as np
import pytest
from sklearn.metrics import balanced_accuracy_score

from debiaser.auditing.leakage import (
    FOLDS,
    MISSING,
    OTHERS,
    balanced_accuracies,
    coded_values,
    false_discovery_rates,
    find_leakage,
    one_of_each,
)


def imbalanced(n: int = 1050, seed: int = 0) -> np.ndarray:
    """Two classes, 20 to 1."""
    return (np.random.default_rng(seed).permutation(n) < n / 21).astype(np.int64)


def random_columns(n: int, count: int, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    diagnosis = [
        lambda: rng.choice(["a", "b", "c"], n, p=[0.7, 0.2, 0.1]),
        lambda: rng.normal(size=n),
        lambda: rng.integers(0, 40, n).astype(str),
        lambda: rng.choice(["large", "small"], n, p=[20 / 21, 1 / 21]),
    ]
    return {f"column {each}": diagnosis[each % 4]() for each in range(count)}


def test_imbalance_makes_no_random_column_suspect():
    p = []
    for seed in range(4):
        y = imbalanced(seed=seed)
        found = find_leakage(random_columns(len(y), 20, seed), y, np.arange(len(y)), y == 1, ["no", "yes"], seed)
        assert len(found) == 20 and not [each.column for each in found if each.flagged]
        assert np.mean([each.chance for each in found]) == pytest.approx(50, abs=2)
        p += [each.p for each in found]
    assert np.mean(np.array(p) <= 0.1) < 0.2 and 0.35 < np.mean(p) < 0.7, "p is uniform by chance"


def test_telling_columns_are_flagged_among_many_and_their_empty_cells_named():
    y = imbalanced(2100)
    rng = np.random.default_rng(1)
    columns = random_columns(len(y), 60)
    columns["hospital"] = np.where(y == 1, "north", np.where(rng.random(len(y)) < 0.5, "south", "east"))
    columns["size"] = rng.normal(size=len(y)) + 2 * y
    wrong = rng.random(len(y)) < np.where(columns["hospital"] == "east", 0.5, 0.1)
    found = find_leakage(columns, y, np.arange(len(y)), wrong, ["well", "ill"])
    flagged = [each for each in found if each.flagged]
    assert [each.column for each in flagged] == ["hospital", "size"]
    assert flagged[0].balanced_accuracy == 100 and flagged[0].q < 0.05
    cells = {(cell["value"], cell["label"]) for cell in flagged[0].empty}
    assert cells == {("north", "well"), ("south", "ill"), ("east", "ill")}
    words = "hospital 'east' never goes with label 'ill' (and 2 more such cells)"
    assert flagged[0].first_empty_cell() == words
    rates = {each["value"]: each["error_rate"] for each in flagged[0].values}
    east = columns["hospital"] == "east"
    assert rates["east"] == pytest.approx(100 * wrong[east].mean())
    assert sum(each["n"] for each in flagged[0].values) == len(y)


def test_a_certain_but_tiny_effect_is_not_flagged():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 60_000)
    weak = np.where(rng.random(60_000) < 0.52, y, 1 - y).astype(str)
    (found,) = find_leakage({"weak": weak}, y, np.arange(60_000), y == 0, ["a", "b"])
    assert found.q < 0.01 and not found.flagged


def test_rows_of_one_unit_are_no_separate_proof():
    """30 patients of 20 samples, a column and a label that are both the patient's, unrelated: samples alone flag it."""
    rng, flagged = np.random.default_rng(3), []
    for _ in range(12):
        unit = np.repeat(np.arange(30), 20)
        y, column = rng.integers(0, 2, 30)[unit], rng.integers(0, 6, 30).astype(str)[unit]
        separate, by_unit = (
            find_leakage({"site": column}, y, each, y == 0, ["a", "b"])[0].flagged for each in (np.arange(600), unit)
        )
        flagged.append((separate, by_unit))
    assert sum(separate for separate, _ in flagged) >= 6
    assert sum(by_unit for _, by_unit in flagged) <= 2
    assert np.array_equal(np.sort(unit[one_of_each(unit, 0)]), np.arange(30))


def test_a_cell_of_few_units_is_not_called_empty_for_its_many_rows():
    """100 units of each label; four units of 50 samples come from a site that the other label never has."""
    y, unit = np.repeat([0, 1], 100), np.arange(200)
    site = np.where(np.arange(200) < 4, "rare", np.where(y == 0, "north", "south"))
    many = np.concatenate([np.arange(200), np.repeat(np.arange(4), 49)])
    found = {
        name: find_leakage({"site": site[rows]}, y[rows], each[rows], y[rows] > 1, ["a", "b"])[0]
        for name, rows, each in (("units", many, unit), ("rows", np.arange(200), unit))
    }
    assert all(suspect.flagged for suspect in found.values())
    cells = [{"value": "north", "label": "b"}, {"value": "south", "label": "a"}]
    assert all([*suspect.empty] == cells for suspect in found.values())


def test_balanced_accuracy_is_its_definition():
    """Against scikit-learn on answers given value by value in a plain loop."""
    rng = np.random.default_rng(0)
    y, value, fold = rng.integers(0, 3, 300), rng.integers(0, 4, 300), rng.integers(0, FOLDS, 300)
    value = np.where(rng.random(300) < 0.4, y, value)
    said = np.empty(300, int)
    for number in range(FOLDS):
        other = fold != number
        for each in range(4):
            shares = [
                ((value == each) & (y == label) & other).sum() / ((y == label) & other).sum() for label in range(3)
            ]
            said[(fold == number) & (value == each)] = np.argmax(shares)
    table = np.zeros((FOLDS * 4, 3), np.int64)
    np.add.at(table, (fold * 4 + value, y), 1)
    assert balanced_accuracies(table[None], 4)[0] == pytest.approx(balanced_accuracy_score(y, said))


def test_rates_are_benjamini_and_hochbergs():
    from scipy.stats import false_discovery_control

    p = np.random.default_rng(0).random(40) ** 3
    assert false_discovery_rates(p) == pytest.approx(false_discovery_control(p))
    assert false_discovery_rates(np.array([])).shape == (0,)


def test_values():
    code, names = coded_values(np.array([*["a"] * 6, *["b"] * 5, "c", "", "nan"]))
    assert names == ["a", "b", OTHERS] and code.tolist() == [0] * 6 + [1] * 5 + [2] * 3
    numbers = np.append(np.arange(160).astype(float), np.nan)
    code, names = coded_values(numbers)
    assert names[-1] == MISSING and code[-1] == len(names) - 1
    assert np.bincount(code).tolist() == [10] * 16 + [1]
    texts, _ = coded_values(numbers.astype(str))
    assert np.array_equal(texts, code)  # numbers written as text are numbers
    alone, _ = coded_values(np.arange(100).astype("U9").astype(object) + "x")
    assert len(np.unique(alone)) == 1  # a name of its own for every sample tells nothing


def test_constant_columns_and_a_single_class_are_left_out():
    y = imbalanced(210)
    assert find_leakage({"same": np.full(210, "x")}, y, np.arange(210), y == 1, ["a", "b"]) == []
    column = {"c": np.arange(210) % 2}
    assert find_leakage(column, np.zeros(210, np.int64), np.arange(210), y == 1, ["a"]) == []
