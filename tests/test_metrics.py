"""Metrics on cases computed by hand."""

import numpy as np
import pytest
import torch

from debiaser.bench.metrics import accuracies, detection, validation
from debiaser.data.split import Truth


def logits_for(answers: list[int], classes: int = 3) -> torch.Tensor:
    return torch.nn.functional.one_hot(torch.tensor(answers), classes).float() * 9


def test_accuracies_by_hand() -> None:
    y = torch.tensor([0, 0, 1, 1, 2, 2])
    truth = Truth(y, torch.tensor([0, 1, 1, 0, 2, 0])[:, None])  # rows 1, 3 and 5 conflict
    found = accuracies(logits_for([0, 1, 1, 1, 2, 0]), y, truth)
    assert found["unbiased"] == pytest.approx(4 / 6 * 100)
    assert found["aligned"] == 100
    assert found["conflicting"] == pytest.approx(1 / 3 * 100)
    assert found["worst_group"] == 0


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
    assert found == {"unbiased": 50, "aligned": None, "conflicting": None, "worst_group": None}


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
    assert found["score_precision"] == found["score_recall"] == 0.5  # above the mean of 2.5: one that conflicts, one not
    assert found["score_effective_sample_size"] == pytest.approx(100 / 30)


@pytest.mark.parametrize("kinds", [[-1, -1], [0, 0], [1, 1]])
def test_detection_where_it_cannot_be_judged(kinds: list[int]) -> None:
    found = detection(np.array([1.0, 1.0]), np.array(kinds, dtype=np.int8))
    assert found["score_auroc"] is None and found["score_effective_sample_size"] == pytest.approx(2)
