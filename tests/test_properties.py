"""What must hold for any scores, logits and labels: sampler, scores and metrics against their definitions."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from torch.nn import functional as F  # noqa: N812

from debiaser import ScoreSampler
from debiaser.data.split import Truth
from debiaser.learn.forward import Outputs
from debiaser.learn.gradient_norms import grad_norm
from debiaser.paper import metrics

SOME = settings(max_examples=40, deadline=None)
SCORES = arrays.arrays(
    np.float64, st.integers(1, 60), elements=st.just(0.0) | st.floats(1e-9, 1e9, allow_nan=False)
).filter(lambda values: values.max() > 0)


@SOME
@given(scores=SCORES, seed=st.integers(0, 2**32), epoch=st.integers(0, 10**6), length=st.integers(1, 300))
def test_draws_are_rows_with_a_score_and_fixed_by_seed_and_epoch(
    scores: np.ndarray, seed: int, epoch: int, length: int
) -> None:
    sampler = ScoreSampler(scores, seed=seed, num_samples=length)
    drawn = sampler.draw(epoch).numpy()
    assert len(drawn) == length and (scores[drawn] > 0).all()
    assert np.array_equal(drawn, ScoreSampler(scores * 3, seed=seed, num_samples=length).draw(epoch).numpy())
    assert np.isclose(sampler.probabilities.sum(), 1)
    assert 1 - 1e-9 <= sampler.effective_sample_size <= len(scores) * (1 + 1e-9)


@SOME
@given(scores=SCORES, world=st.integers(1, 5), length=st.integers(5, 200))
def test_processes_together_pass_one_draw(scores: np.ndarray, world: int, length: int) -> None:
    parts = [list(ScoreSampler(scores, num_samples=length, rank=rank, world_size=world)) for rank in range(world)]
    merged = np.empty(length, np.int64)
    for rank, part in enumerate(parts):
        merged[rank::world] = part
    assert np.array_equal(merged, ScoreSampler(scores, num_samples=length).draw(0).numpy())


@SOME
@given(
    seed=st.integers(0, 2**32),
    classes=st.integers(2, 6),
    width=st.integers(1, 8),
    p=st.sampled_from([0.7, 1.0, 2.0, 3.0, float("inf")]),
    bias=st.booleans(),
)
def test_scores_are_norms_of_the_gradient_by_autograd(
    seed: int, classes: int, width: int, p: float, bias: bool
) -> None:
    draw = torch.Generator().manual_seed(seed)
    features = torch.randn(3, width, generator=draw, dtype=torch.float64)
    labels = torch.randint(0, classes, (3,), generator=draw)
    head = torch.nn.Linear(width, classes).double()
    found = grad_norm(p, 1, bias)(Outputs(features, head(features).detach(), labels))
    for row in range(3):
        head.zero_grad()
        F.cross_entropy(head(features[row : row + 1]), labels[row : row + 1]).backward()
        whole = [head.weight.grad, head.bias.grad[:, None]] if bias else [head.weight.grad]
        entries = torch.cat(whole, 1).abs().flatten()
        wanted = entries.max() if p == float("inf") else (entries**p).sum() ** (1 / p)
        assert torch.isclose(found[row], wanted, rtol=1e-5, atol=1e-10)


@SOME
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
