"""The sampler against the probabilities it promises."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare
from torch.utils.data import DataLoader, TensorDataset

from debiaser import ScoreSampler
from debiaser.errors import Misuse
from debiaser.learn.sampling import Shuffle


def test_frequencies_match_probabilities_over_a_million_draws() -> None:
    scores = np.random.default_rng(0).lognormal(0, 2, 500)
    sampler = ScoreSampler(scores, seed=1, length=1_000_000)
    counts = np.bincount(sampler.draw(0), minlength=500)
    expected = scores / scores.sum() * 1_000_000
    rare = expected < 20  # pooled, as the test asks
    observed = np.append(counts[~rare], counts[rare].sum())
    assert chisquare(observed, np.append(expected[~rare], expected[rare].sum())).pvalue > 0.001


def test_a_wrong_sampler_would_be_rejected() -> None:
    scores = np.array([1.0, 1.0, 2.0])
    counts = np.bincount(ScoreSampler(scores, length=100_000).draw(0))
    assert chisquare(counts, np.array([1, 1, 1]) / 3 * 100_000).pvalue < 1e-6


def test_each_pass_is_new_and_fixed_by_seed_and_epoch() -> None:
    scores = torch.rand(100)
    one, two = ScoreSampler(scores, seed=3), ScoreSampler(scores, seed=3)
    first, second = list(one), list(one)
    assert first != second
    assert list(two) == first and list(two) == second
    two.set_epoch(0)
    assert list(two) == first
    assert list(ScoreSampler(scores, seed=4)) != first
    assert len(one) == len(first) == 100


def test_a_dataloader_takes_it() -> None:
    data = TensorDataset(torch.arange(10))
    loader = DataLoader(data, batch_size=4, sampler=ScoreSampler([0] * 9 + [1]))
    assert torch.cat([batch[0] for batch in loader]).tolist() == [9] * 10


def test_zero_scores_are_never_drawn_even_at_the_ends() -> None:
    rows = ScoreSampler([0, 0, 1, 0, 2, 0, 0], length=50_000).draw(0)
    assert set(rows.tolist()) == {2, 4}


def test_small_mass_is_not_lost_among_many_rows() -> None:
    """float32 sums would lose rows whose share is below 1e-7."""
    scores = np.ones(3_000_000)
    scores[0] = 3_000_000.0
    rows = ScoreSampler(scores, length=2_000_000).draw(0).numpy()
    assert abs((rows == 0).mean() - 0.5) < 0.003
    tail = (rows > 1_500_000).mean()
    assert abs(tail - 0.25) < 0.003


def test_effective_sample_size() -> None:
    assert ScoreSampler(np.ones(40)).effective_sample_size == pytest.approx(40)
    assert ScoreSampler([1, 0, 0]).effective_sample_size == pytest.approx(1)
    assert ScoreSampler([3, 1]).effective_sample_size == pytest.approx(1 / (0.75**2 + 0.25**2))
    assert "effective sample size 40.0" in repr(ScoreSampler(np.ones(40)))


def test_very_large_scores_and_small_floats() -> None:
    assert ScoreSampler([1e308] * 4).probabilities.tolist() == [0.25] * 4
    assert ScoreSampler(torch.ones(4, dtype=torch.bfloat16)).probabilities.tolist() == [0.25] * 4


@pytest.mark.parametrize(
    ("scores", "word"),
    [
        ([1, -1], "negative"),
        ([1, float("nan")], "finite"),
        ([1, float("inf")], "finite"),
        ([0, 0], "all scores are 0"),
        ([], "vector"),
        ([[1.0, 2.0]], "vector"),
    ],
)
def test_scores_that_cannot_be_meant(scores: object, word: str) -> None:
    with pytest.raises(Misuse, match=word):
        ScoreSampler(scores)
    with pytest.raises(Misuse, match="length"):
        ScoreSampler([1.0], length=0)


@given(st.lists(st.floats(0, 1e12), min_size=1, max_size=50), st.integers(0, 2**40), st.integers(0, 10**6))
def test_draws_are_rows_with_positive_score(scores: list[float], seed: int, epoch: int) -> None:
    if sum(scores) > 0:
        rows = ScoreSampler(scores, seed=seed).draw(epoch).tolist()
        assert len(rows) == len(scores)
        assert all(scores[row] > 0 for row in rows)


def test_shuffle_is_every_row_once() -> None:
    draw = Shuffle(50, seed=2).draw
    assert sorted(draw(0).tolist()) == list(range(50))
    assert draw(0).tolist() != draw(1).tolist()
    assert torch.equal(draw(1), Shuffle(50, seed=2).draw(1))
