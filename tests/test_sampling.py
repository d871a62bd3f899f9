"""The sampler against the probabilities it promises."""

import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DataLoader, TensorDataset

from debiaser import ScoreSampler, debiased_loader
from debiaser.errors import Misuse, Problem
from debiaser.io import numpy_stream
from debiaser.learn.sampler import Shuffle


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


def test_effective_sample_size() -> None:
    assert ScoreSampler(np.ones(40)).effective_sample_size == pytest.approx(40)
    assert ScoreSampler([1, 0, 0]).effective_sample_size == pytest.approx(1)
    assert ScoreSampler([3, 1]).effective_sample_size == pytest.approx(1 / (0.75**2 + 0.25**2))


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
        (["much", "little"], "one number per sample"),
    ],
)
def test_scores_that_cannot_be_meant(scores: object, word: str) -> None:
    with pytest.raises(Misuse, match=word):
        ScoreSampler(scores)


@given(st.lists(st.floats(0, 1e12), min_size=1, max_size=50), st.integers(0, 2**40), st.integers(0, 10**6))
def test_draws_are_rows_with_positive_score(scores: list[float], seed: int, epoch: int) -> None:
    if sum(scores) > 0:
        sampler = ScoreSampler(scores, seed=seed)
        rows = sampler.draw(epoch).tolist()
        assert len(rows) == len(scores)
        assert all(scores[row] > 0 for row in rows)
        assert rows == ScoreSampler(np.array(scores) * 2, seed=seed).draw(epoch).tolist(), "only proportions count"
        assert 1 - 1e-9 <= sampler.effective_sample_size <= len(scores) * (1 + 1e-9)


def test_shuffle_is_every_row_once() -> None:
    draw = Shuffle(50, seed=2).draw
    assert sorted(draw(0).tolist()) == list(range(50))
    assert draw(0).tolist() != draw(1).tolist()
    assert torch.equal(draw(1), Shuffle(50, seed=2).draw(1))


# Several processes, resuming, evening out, many samples


def test_draws_of_one_process_are_what_they_always_were() -> None:
    """Results depend on them: the definition in three lines, bit for bit."""
    scores = np.random.default_rng(5).lognormal(0, 3, 70_000).astype(np.float32)
    shares = scores.astype(np.float64) / np.float64(scores.max())
    sums = np.cumsum(shares / shares.sum())
    uniform = numpy_stream(9, "score", 4).random(2_500_000) * sums[-1]
    expected = np.minimum(np.searchsorted(sums, uniform, side="right"), len(scores) - 1)
    for each in (scores, torch.from_numpy(scores)):
        assert np.array_equal(ScoreSampler(each, seed=9, num_samples=2_500_000).draw(4), expected)


@pytest.mark.parametrize(("world", "length"), [(2, 100), (3, 100), (7, 7)])
def test_ranks_share_one_draw(world: int, length: int) -> None:
    scores = np.random.default_rng(1).random(50)
    alone = ScoreSampler(scores, seed=3, num_samples=length)
    ranks = [ScoreSampler(scores, seed=3, num_samples=length, rank=rank, world_size=world) for rank in range(world)]
    for _ in range(2):
        whole, parts = list(alone), [list(rank) for rank in ranks]
        assert [len(part) for part in parts] == [len(rank) for rank in ranks]
        assert [parts[place % world][place // world] for place in range(length)] == whole
    assert all(rank.identity == alone.identity for rank in ranks)


def test_uneven_ranks_are_mentioned(caplog: pytest.LogCaptureFixture) -> None:
    list(ScoreSampler(np.ones(10), rank=0, world_size=2))
    assert not caplog.records
    list(ScoreSampler(np.ones(9), rank=0, world_size=2))
    assert "do not divide" in caplog.text


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"rank": 0, "world_size": 5}, "at least 5, one for each process"),
        ({"rank": 2, "world_size": 2}, "rank must lie"),
        ({"rank": 1}, "rank must lie"),
        ({"rank": 0, "world_size": 1.5}, "rank must lie"),
        ({"temperature": 0}, "temperature"),
        *(({"num_samples": wrong}, "num_samples must be a whole number") for wrong in (0, 2.5, "3")),
        ({"clip": 0.5}, "clip must be at least 1"),
        ({"clip": 1.9}, "only 2 of 4"),
    ],
)
def test_options_that_cannot_be_meant(options: dict[str, Any], word: str) -> None:
    with pytest.raises(Misuse, match=word):
        ScoreSampler([0, 1, 2, 0], **options)


def test_the_process_group_is_asked(tmp_path: Path) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        sampler = ScoreSampler(np.ones(4))
        assert (sampler.rank, sampler.world_size) == (0, 1)
    finally:
        torch.distributed.destroy_process_group()


def test_a_pass_that_was_cut_short_goes_on() -> None:
    scores = np.random.default_rng(2).random(60)
    make = functools.partial(ScoreSampler, scores, np.int64(60), seed=8, rank=np.int64(1), world_size=np.int64(2))
    truth = list(make())
    sampler = make()
    passing = iter(sampler)
    seen = [next(passing) for _ in range(11)]
    state = json.loads(json.dumps(sampler.state_dict()))
    again = make()
    again.load_state_dict(state)
    assert again.state_dict() == state  # before it goes on
    again.set_epoch(0)  # a loop says which epoch it is in: the same one
    rest = list(again)
    assert seen + rest == truth
    assert again.state_dict()["epoch"] == 1 and again.state_dict()["position"] == 0
    follower = make()
    follower.set_epoch(1)
    assert list(again) == list(follower)
    late = make()
    late.load_state_dict(state)
    late.set_epoch(2)  # another epoch: from its beginning
    assert (late.state_dict()["epoch"], late.state_dict()["position"]) == (2, 0)
    assert len(list(late)) == 30
    assert sampler.state_dict(passed=8)["position"] == 8  # workers of a loader had asked for three rows more


def test_a_dataloader_resumes_in_mid_epoch() -> None:
    data, scores = TensorDataset(torch.arange(40)), np.random.default_rng(4).random(40)
    truth = [batch[0].tolist() for batch in DataLoader(data, 8, sampler=ScoreSampler(scores))]
    first = ScoreSampler(scores)
    for number, _ in enumerate(DataLoader(data, 8, sampler=first)):
        if number == 1:
            break
    second = ScoreSampler(scores)
    second.load_state_dict(first.state_dict())
    assert [batch[0].tolist() for batch in DataLoader(data, 8, sampler=second)] == truth[2:]
    assert list(first) == list(ScoreSampler(scores).draw(1))  # a pass that is left is over


def test_states_of_others_are_refused() -> None:
    sampler = ScoreSampler(np.ones(10), seed=1)
    next(iter(sampler))
    others = [ScoreSampler(np.ones(10), seed=2), ScoreSampler(np.ones(11), seed=1), ScoreSampler([1] * 9 + [2])]
    for other in (*others, ScoreSampler(np.ones(10), seed=1, rank=0, world_size=2)):
        with pytest.raises(Misuse, match="other scores"):
            other.load_state_dict(sampler.state_dict())
    with pytest.raises(Misuse, match="passed"):
        sampler.state_dict(passed=11)
    with pytest.raises(Misuse, match="other scores"):
        sampler.load_state_dict({})
    assert sampler.state_dict()["position"] == 1, "what was refused has changed nothing"


def test_temperature_and_clip_by_definition() -> None:
    scores = np.array([1.0, 4.0, 9.0, 0.0])
    assert ScoreSampler(scores, temperature=2).probabilities == pytest.approx([1 / 6, 2 / 6, 3 / 6, 0])
    assert ScoreSampler(scores, temperature=1e9).probabilities == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0])
    clipped = ScoreSampler([1, 2, 3, 94], clip=2).probabilities
    assert clipped == pytest.approx([0.5 / 6, 1 / 6, 1.5 / 6, 0.5])
    assert ScoreSampler([1, 2, 3, 94], clip=1).probabilities == pytest.approx([0.25] * 4)


@given(st.lists(st.floats(0.001, 1e6), min_size=2, max_size=40), st.floats(1, 5))
def test_clipped_shares_are_capped_and_keep_their_proportions(scores: list[float], clip: float) -> None:
    shares = ScoreSampler(scores, clip=clip).probabilities
    assert shares.sum() == pytest.approx(1) and shares.max() <= clip / len(scores) * (1 + 1e-9)
    below = shares < clip / len(scores) * (1 - 1e-9)
    assert np.allclose(np.ptp(np.log(shares[below] / np.array(scores)[below])) if below.any() else 0, 0, atol=1e-6)


def test_more_rows_than_torch_multinomial_takes() -> None:
    """2^24 rows and beyond, in float32: every part of the table is drawn as often as it should be."""
    rows = 2**24 + 10_000
    scores = torch.ones(rows)
    scores[-10_000:] = 100.0
    sampler = ScoreSampler(scores, num_samples=200_000)
    found = np.bincount(sampler.draw(0).numpy() * 4 // rows, minlength=4) / 200_000
    tail = 100 * 10_000 / (2**24 + 1_000_000)
    assert found == pytest.approx([(1 - tail) / 4] * 3 + [(1 - tail) / 4 + tail], abs=0.005)


@pytest.mark.parametrize("workers", [0, 1])
def test_another_dataset_is_refused_when_the_pass_begins(workers: int) -> None:
    for samples in (3, 5):
        data, sampler = TensorDataset(torch.arange(samples)), ScoreSampler(torch.ones(4))
        loader = DataLoader(data, sampler=sampler, num_workers=workers)
        with pytest.raises(Problem, match=f"4 scores, but the dataset has {samples} samples"):
            next(iter(loader))


def test_a_loader_that_accelerate_prepared_is_noticed() -> None:
    """Of two processes, where both the sampler and accelerate would deal the samples out, half of them would vanish."""
    shards = pytest.importorskip("accelerate.data_loader", reason="accelerate is not here: this test did not run")
    data = TensorDataset(torch.arange(8))

    def drawn(**place: int) -> list[int]:
        batches = BatchSampler(ScoreSampler(torch.ones(8), **place), 2, drop_last=False)
        dealt = [shards.BatchSamplerShard(batches, num_processes=2, process_index=rank) for rank in (0, 1)]
        return sorted(
            row for each in dealt for (part,) in DataLoader(data, batch_sampler=each) for row in part.tolist()
        )

    with pytest.raises(Problem, match=r"accelerate deals .* rank=0, world_size=1"):
        drawn(rank=0, world_size=2)
    whole = ScoreSampler(torch.ones(8), rank=0, world_size=1)
    assert len(drawn(rank=0, world_size=1)) == len(list(whole)) == 8


def test_the_loader_for_those_who_want_no_thought() -> None:
    data, scores = TensorDataset(torch.arange(4)), [0.0, 1.0, 1.0, 2.0]
    loader = debiased_loader(data, scores, batch_size=2, num_samples=6, seed=1)
    (rows,) = zip(*loader, strict=True)
    assert torch.cat(rows).tolist() == ScoreSampler(scores, 6, seed=1).draw(0).tolist() and len(loader) == 3
    with pytest.raises(Misuse, match="shuffle= cannot be given"):
        debiased_loader(data, scores, shuffle=True)
    with pytest.raises(Problem, match="3 scores, but the dataset has 4 samples"):
        debiased_loader(data, scores[1:])
