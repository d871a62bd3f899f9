"""What must hold for any predictions, labels and bias: accuracies against their definitions."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F  # noqa: N812

from debiaser.data.split import Truth
from debiaser.paper import metrics


@settings(max_examples=40, deadline=None)
@given(
    rows=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=60),
)
def test_accuracies_lie_between_and_average_to_the_whole(rows: list[tuple[int, int, int]]) -> None:
    said, label, bias = (torch.tensor(column) for column in zip(*rows, strict=True))
    found = metrics.accuracies(F.one_hot(said, 4).float(), label, Truth(label, bias[:, None]))
    right = (said == label).double()
    assert found["unbiased"] is not None and abs(found["unbiased"] - 100 * float(right.mean())) < 1e-4
    known = [value for value in (found["aligned"], found["conflicting"]) if value is not None]
    assert min(known) - 1e-4 <= found["unbiased"] <= max(known) + 1e-4
    groups = {(int(y), int(b)) for y, b in zip(label, bias, strict=True)}
    lowest = min(100 * float(right[(label == y) & (bias == b)].mean()) for y, b in groups)
    assert found["worst_group"] is not None and abs(found["worst_group"] - lowest) < 1e-4
