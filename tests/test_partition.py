"""Folds and splits keep units whole and classes in proportion, for any data, the same for the same seed."""

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from debiaser.data.own.rows import deal, folds, units_per_class


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 15)), min_size=2, max_size=80), st.integers(2, 6))
def test_no_unit_is_in_two_folds(rows: list[tuple[int, int]], k: int) -> None:
    y, unit = np.array(rows).T
    fold = folds(y, unit, k, 0)
    assert fold.min() == 0 and fold.max() < k
    assert len(np.unique(np.stack([unit, fold], 1), axis=0)) == len(np.unique(unit))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=4, max_size=200), st.integers(2, 5))
def test_single_rows_are_balanced_to_within_one(labels: list[int], k: int) -> None:
    y = np.array(labels)
    fold = folds(y, np.arange(len(y)), k, 0)
    for label in np.unique(y):
        counts = np.bincount(fold[y == label], minlength=max(2, min(k, np.bincount(y)[np.unique(y)].min())))
        assert counts.max() - counts.min() <= 1


def test_units_of_uneven_size_are_balanced() -> None:
    rng = np.random.default_rng(0)
    unit = np.repeat(np.arange(300), rng.integers(1, 30, 300))
    y = rng.integers(0, 4, 300)[unit]
    fold = folds(y, unit, 5, 0)
    for label in range(4):
        counts = np.bincount(fold[y == label], minlength=5)
        assert counts.max() <= 1.05 * counts.min()


def test_shares_are_kept_and_every_class_is_everywhere() -> None:
    y = np.repeat([0, 1, 2], [1000, 40, 3])
    part = deal(y, np.arange(len(y)), [0.7, 0.1, 0.2], 0)
    assert np.bincount(part[y == 0]).tolist() == [700, 100, 200]
    assert np.bincount(part[y == 1]).tolist() == [28, 4, 8]
    assert np.bincount(part[y == 2]).tolist() == [1, 1, 1]


def test_the_seed_decides() -> None:
    y, unit = np.arange(1000) % 3, np.arange(1000) // 2
    assert (folds(y, unit, 5, 1) == folds(y, unit, 5, 1)).all()
    assert (folds(y, unit, 5, 1) != folds(y, unit, 5, 2)).mean() > 0.5
    order = folds(np.zeros(1000, int), np.arange(1000), 5, 0)
    assert abs(np.corrcoef(order, np.arange(1000))[0, 1]) < 0.1  # not by order of the rows


def test_fewer_folds_where_a_class_has_few_units() -> None:
    y = np.array([0] * 50 + [1] * 6)
    unit = np.concatenate([np.arange(50), [60, 60, 61, 61, 62, 62]])
    assert units_per_class(y, unit).tolist() == [50, 3]
    fold = folds(y, unit, 5, 0)
    assert sorted(np.unique(fold[y == 1])) == [0, 1, 2]


@pytest.mark.parametrize("rows", [1, 4])
def test_many_units_are_quick(rows: int) -> None:
    unit = np.arange(60_000) // rows
    started = time.process_time()
    folds(unit % 10, unit, 5, 0)
    assert time.process_time() - started < 10
