"""The averages of rows against their definition, written as a plain loop."""

import copy
import pickle

import pytest
import torch

from debiaser.errors import Misuse
from debiaser.learn.losses import RowAverage, relative_difficulty

LABELS = torch.tensor([0, 0, 1, 1, 3, 3])  # class 2 has no rows at all


def visited(*visits: tuple[list[int], list[float]], ema: float = 0.7) -> RowAverage:
    average = RowAverage(LABELS, ema)
    for rows, values in visits:
        average.update(torch.tensor(rows), torch.tensor(values))
    return average


def test_the_first_visit_is_the_value_and_the_second_a_mixture() -> None:
    average = visited(([1, 4], [2.0, 5.0]))
    assert average.average.tolist() == [0, 2, 0, 0, 5, 0]
    assert average.seen.tolist() == [False, True, False, False, True, False]
    average.update(torch.tensor([4]), torch.tensor([1.0]))
    assert average.average[4].item() == pytest.approx(0.7 * 5 + 0.3 * 1)
    assert average.average[1] == 2, "a row that was not visited changed"


def test_a_value_of_zero_counts_as_a_visit() -> None:
    average = visited(([0], [0.0]), ([0], [1.0]))
    assert average.average[0].item() == pytest.approx(0.3)


@pytest.mark.parametrize("ema", [0.0, 0.7, 0.99])
def test_many_visits_follow_the_definition(ema: float) -> None:
    torch.manual_seed(0)
    labels = torch.randint(0, 7, (50,))
    average, kept = RowAverage(labels, ema), [0.0] * 50
    seen = [0] * 50
    for _ in range(30):
        rows = torch.randperm(50)[:13]
        values = torch.rand(13) * 10
        average.update(rows, values)
        for row, value in zip(rows.tolist(), values.tolist(), strict=True):
            kept[row] = ema * kept[row] + (1 - ema * seen[row]) * value
            seen[row] = 1
        largest = [max((m for m, y in zip(kept, labels.tolist(), strict=True) if y == c), default=0) for c in range(7)]
        expected = torch.tensor([kept[row] / largest[int(labels[row])] for row in rows.tolist()])
        torch.testing.assert_close(average.relative(rows), expected)
    torch.testing.assert_close(average.average, torch.tensor(kept))


def test_the_largest_of_a_class_is_sought_in_the_whole_set() -> None:
    average = visited(([0, 2, 4], [8.0, 3.0, 5.0]), ([1], [2.0]))
    assert average.relative(torch.tensor([1])).tolist() == [0.25], (
        "8 in row 0, seen in an earlier batch, is the largest"
    )
    assert average.relative().tolist() == [1, 0.25, 1, 0, 1, 0]


def test_the_largest_may_fall() -> None:
    average = visited(([0, 1], [10.0, 2.0]), ([0], [0.0]), ema=0.0)
    assert average.relative(torch.tensor([0, 1])).tolist() == [0, 1]


def test_a_class_that_is_fitted_perfectly_gives_zero_and_no_nan() -> None:
    nothing, something = visited(([0, 1], [0.0, 0.0])), visited(([0, 1], [1.0, 0.5]))
    rows = torch.tensor([0, 1])
    assert nothing.relative(rows).tolist() == [0, 0]
    assert relative_difficulty(nothing, nothing, rows).tolist() == [0, 0]
    assert relative_difficulty(nothing, something, rows).tolist() == [0, 0]
    assert relative_difficulty(something, nothing, rows).tolist() == pytest.approx([1, 1])


def test_the_weight_is_the_biased_share() -> None:
    biased, debiased = visited(([0, 1], [4.0, 1.0])), visited(([0, 1], [1.0, 2.0]))
    assert relative_difficulty(biased, debiased, torch.tensor([0, 1])).tolist() == pytest.approx(
        [1 / (1 + 1 / 2), (1 / 4) / (1 / 4 + 1)]
    )
    assert len(relative_difficulty(biased, debiased)) == len(LABELS)


def test_state_dict_and_copies_carry_everything() -> None:
    average = visited(([0, 2], [8.0, 3.0]), ([2], [5.0]))
    fresh = RowAverage(LABELS)
    fresh.load_state_dict(average.state_dict())
    for other in (fresh, copy.deepcopy(average), pickle.loads(pickle.dumps(average))):
        other.update(torch.tensor([0, 3]), torch.tensor([1.0, 1.0]))
    average.update(torch.tensor([0, 3]), torch.tensor([1.0, 1.0]))
    assert torch.equal(fresh.average, average.average) and torch.equal(fresh.relative(), average.relative())
    assert "ema=0.7" in repr(average), "the key of a stage is made of the representation"


def test_no_gradient_is_kept() -> None:
    average, value = RowAverage(LABELS), torch.tensor([2.0], requires_grad=True)
    average.update(torch.tensor([0]), value * 3)
    assert not average.average.requires_grad and not average.relative().requires_grad


@pytest.mark.parametrize("ema", [1.0, -0.1, float("nan")])
def test_an_ema_that_cannot_be_meant(ema: float) -> None:
    with pytest.raises(Misuse, match="ema"):
        RowAverage(LABELS, ema)
