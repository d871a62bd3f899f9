"""Cached features: right, computed once, resumed after a kill, rebuilt after damage, the same file for pixels."""

import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from debiaser.errors import Misuse, Problem
from debiaser.learn.encoders import Encoder, features, pixels
from debiaser.progress import listening

N, SIZE, WIDTH = 1300, 4, 6


def inputs(rows: Tensor) -> Tensor:
    """Pictures that are told apart by their row."""
    return ((rows[:, None] * 7 + torch.arange(3 * SIZE * SIZE)) % 251).to(torch.uint8).reshape(-1, 3, SIZE, SIZE)


def encode(pictures: Tensor) -> Tensor:
    """Sums of small whole numbers, which are exact in any order."""
    return pictures.flatten(1).float() @ (torch.arange(3 * SIZE * SIZE * WIDTH) % 5).float().reshape(-1, WIDTH)


def encoder(identity: str = "sums") -> Encoder:
    return Encoder("sums", "image", SIZE, WIDTH, identity, nn.Identity(), encode)


class Source:
    """A stream that remembers which rows were read; it can break off, or come in any order."""

    def __init__(self, until: int | None = None, shuffled: bool = False) -> None:
        self.until, self.shuffled, self.rows = until, shuffled, []

    def __call__(self, rows: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        if self.shuffled:
            rows = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))]
        for part in torch.split(rows, 100):
            if self.until is not None and len(self.rows) >= self.until:
                raise KeyboardInterrupt
            self.rows += part.tolist()
            yield part, inputs(part)


WANTED = encode(inputs(torch.arange(N))).numpy()


@pytest.mark.parametrize("shuffled", [False, True])
def test_features_are_those_of_the_encoder_and_are_computed_once(tmp_path: Path, shuffled: bool) -> None:
    source = Source(shuffled=shuffled)
    found = features(encoder(), "data", N, source, tmp_path)
    assert sorted(source.rows) == list(range(N))
    assert isinstance(found, np.memmap)
    assert (found.dtype, found.shape, found.flags.writeable) == (np.float32, (N, WIDTH), False)
    np.testing.assert_array_equal(found, WANTED)
    again = Source()
    np.testing.assert_array_equal(features(encoder(), "data", N, again, tmp_path), found)
    assert again.rows == []
    assert stat.S_IMODE(next(tmp_path.glob("*.npy")).stat().st_mode) == 0o600, "for its owner alone"
    assert {path.suffix for path in tmp_path.iterdir() if not path.name.startswith(".")} == {".npy", ".rows"}


def test_another_encoder_or_other_data_is_another_file(tmp_path: Path) -> None:
    for code, data, n in [("a", "x", 5), ("b", "x", 5), ("a", "y", 5), ("a", "x", 6)]:
        source = Source()
        features(encoder(code), data, n, source, tmp_path)
        assert len(source.rows) == n
    assert len(list(tmp_path.glob("*.npy"))) == 4


def test_pixels_are_kept_by_the_same_means(tmp_path: Path) -> None:
    def channels_last(rows: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        for part, pictures in Source()(rows):
            yield part, pictures.contiguous(memory_format=torch.channels_last)

    found = pixels("data", N, channels_last, SIZE, tmp_path)
    assert (found.dtype, found.shape) == (np.uint8, (N, 3, SIZE, SIZE))
    np.testing.assert_array_equal(found, inputs(torch.arange(N)).numpy())


def test_an_interrupted_computation_goes_on_with_the_rows_that_are_missing(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        features(encoder(), "data", N, Source(until=900), tmp_path)
    rest, heard = Source(), []
    with listening(lambda *told: heard.append(told)):
        found = features(encoder(), "data", N, rest, tmp_path)
    assert rest.rows == list(range(900, N))
    assert heard[0] == ("features", 900, N, 0, "steps") and sum(told[3] for told in heard) == N - 900
    np.testing.assert_array_equal(found, WANTED)


@pytest.mark.parametrize("damage", ["cut", "longer", "header", "empty", "begun, cut", "begun, rows cut", "a row"])
def test_what_is_damaged_is_made_again(tmp_path: Path, damage: str) -> None:
    if damage in {"cut", "longer", "header", "empty"}:
        features(encoder(), "data", N, Source(), tmp_path)
    else:
        with pytest.raises(KeyboardInterrupt):
            features(encoder(), "data", N, Source(until=900), tmp_path)
    (path,) = tmp_path.glob("*.rows" if damage == "begun, rows cut" else "*.npy")
    content = bytearray(path.read_bytes())
    if damage == "a row":
        content[128 + 500 * WIDTH * 4] ^= 1
    changed = {"longer": content + b"x", "header": b"?" + content[1:], "empty": b"", "a row": content}
    path.write_bytes(changed.get(damage, content[:-1]))
    source = Source()
    np.testing.assert_array_equal(features(encoder(), "data", N, source, tmp_path), WANTED)
    assert source.rows == ([500, *range(900, N)] if damage == "a row" else list(range(N)))


def test_data_that_ends_early_is_told_and_what_came_is_kept(tmp_path: Path) -> None:
    def short(rows: Tensor) -> Any:
        return list(Source()(rows))[:3]

    with pytest.raises(Problem, match="ended after 300 of 1,300 samples"):
        features(encoder(), "data", N, short, tmp_path)
    rest = Source()
    features(encoder(), "data", N, rest, tmp_path)
    assert rest.rows == list(range(300, N))


def test_what_cannot_be_meant_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Misuse, match="no samples"):
        features(encoder(), "data", 0, Source(), tmp_path)
    with pytest.raises(Misuse, match=r"pixels must be uint8 \(100, 3, 5, 5\) for 100 rows, got uint8 \(100, 3, 4, 4\)"):
        pixels("data", N, Source(), 5, tmp_path)
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(Problem, match="cannot write"):
        features(encoder(), "data", N, Source(), tmp_path / "file")
