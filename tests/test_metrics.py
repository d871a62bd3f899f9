"""Metrics on cases computed by hand, and what must hold for any predictions, labels and bias."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F  # noqa: N812

from debiaser.data.split import Truth
from debiaser.paper.experiment import accuracies, detection, validation


def logits_for(answers: list[int], classes: int = 3) -> torch.Tensor:
    return torch.nn.functional.one_hot(torch.tensor(answers), classes).float() * 9


def test_worst_group_is_over_pairs_and_over_every_attribute() -> None:
    y = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])
    one = torch.tensor([0, 0, 1, 1, 0, 0, 1, 1])
    two = torch.tensor([0, 1, 0, 1, 0, 1, 0, 1])
    right = [0, 0, 0, 1, 1, 1, 1, 1]  # only row 3 is wrong: (0, one=1) is half right, (0, two=1) too
    both = accuracies(logits_for(right), y, Truth(y, torch.stack([one, two], 1)))
    assert both["worst_group"] == 50
    assert accuracies(logits_for(right), y, Truth(y, (one * 10 + two)[:, None]))["worst_group"] == 0


def test_unknown_bias_gives_none_not_a_number() -> None:
    y = torch.tensor([0, 1])
    found = accuracies(logits_for([0, 0]), y, Truth(y, torch.full((2, 1), -1)))
    unknown = dict.fromkeys(("aligned", "conflicting", "group_average", "worst_group"))
    assert found == {"unbiased": 50, **unknown}


def test_the_mean_over_samples_is_not_the_mean_over_groups() -> None:
    """D27: six rows of (0, 0) all right, one of each other group: (0, 1) right, (1, 0) and (1, 1) wrong."""
    y, bias = torch.tensor([0] * 6 + [0, 1, 1]), torch.tensor([0] * 6 + [1, 0, 1])
    found = accuracies(logits_for([0] * 9), y, Truth(y, bias[:, None]))
    assert found["unbiased"] == pytest.approx(7 / 9 * 100)
    assert found["group_average"] == pytest.approx((100 + 100 + 0 + 0) / 4)
    assert found["worst_group"] == 0
    assert found["aligned"] == pytest.approx(6 / 7 * 100) and found["conflicting"] == 50


def test_every_attribute_by_itself() -> None:
    y = torch.tensor([0, 0, 0, 1, 1, 1])
    colour, shape = torch.tensor([0, 0, 1, 1, 1, 0]), torch.tensor([0, 1, 1, 1, 0, 0])
    truth = Truth(y, torch.stack([colour, shape], 1))
    found = accuracies(logits_for([0, 0, 1, 1, 0, 0]), y, truth, ("digit colour", "shape"))
    # right: rows 0, 1 and 3; colour conflicts in 2 and 5, shape in 1, 2, 4 and 5; either in 1, 2, 4, 5
    assert found["aligned"] == 100 and found["conflicting"] == 25
    assert found["aligned_digit_colour"] == 75 and found["conflicting_digit_colour"] == 0
    assert found["aligned_shape"] == 100 and found["conflicting_shape"] == 25
    # groups: colour (0,0) 2/2, (0,1) 0/1, (1,0) 0/1, (1,1) 1/2; shape (0,0) 1/1, (0,1) 1/2, (1,0) 0/2, (1,1) 1/1
    assert found["group_average"] == pytest.approx((100 + 0 + 0 + 50 + 100 + 50 + 0 + 100) / 8)
    assert "aligned_colour" not in accuracies(logits_for([0] * 6), y, Truth(y, colour[:, None]), ("colour",))


def test_validation() -> None:
    found = validation(torch.log(torch.tensor([[0.5, 0.5], [0.25, 0.75]])), torch.tensor([0, 0]))
    assert found["valid_loss"] == pytest.approx((np.log(2) + np.log(4)) / 2)
    assert found["valid_accuracy"] == 50


def test_detection_by_hand() -> None:
    score, conflicting = np.array([1.0, 4.0, 3.0, 2.0]), np.array([0, 1, 0, 1], dtype=np.int8)
    found = detection(score, conflicting)
    assert found["score_auroc"] == 0.75  # of four pairs (4,1) (4,3) (2,1) (2,3) three are right
    assert found["score_average_precision"] == pytest.approx((1 + 2 / 3) / 2)
    assert found["score_conflicting_mass"] == pytest.approx(0.6)
    # Above the mean of 2.5: one that conflicts, one not.
    assert found["score_precision"] == found["score_recall"] == 0.5
    assert found["score_effective_sample_size"] == pytest.approx(100 / 30)


@pytest.mark.parametrize("kinds", [[-1, -1], [0, 0], [1, 1]])
def test_detection_where_it_cannot_be_judged(kinds: list[int]) -> None:
    found = detection(np.array([1.0, 1.0]), np.array(kinds, dtype=np.int8))
    assert found["score_auroc"] is None and found["score_effective_sample_size"] == pytest.approx(2)


@settings(max_examples=40, deadline=None)
@given(rows=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=60))
def test_accuracies_lie_between_and_average_to_the_whole(rows: list[tuple[int, int, int]]) -> None:
    said, label, bias = (torch.tensor(column) for column in zip(*rows, strict=True))
    found = accuracies(F.one_hot(said, 4).float(), label, Truth(label, bias[:, None]))
    right = (said == label).double()
    assert found["unbiased"] is not None and abs(found["unbiased"] - 100 * float(right.mean())) < 1e-4
    known = [value for value in (found["aligned"], found["conflicting"]) if value is not None]
    assert min(known) - 1e-4 <= found["unbiased"] <= max(known) + 1e-4
    groups = {(int(y), int(b)) for y, b in zip(label, bias, strict=True)}
    lowest = min(100 * float(right[(label == y) & (bias == b)].mean()) for y, b in groups)
    assert found["worst_group"] is not None and abs(found["worst_group"] - lowest) < 1e-4
