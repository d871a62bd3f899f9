"""Multi-bias MNIST: from files in the real layouts, seven independent attributes, tiles where they belong."""

import gzip
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import binomtest

from conftest import Done
from debiaser.data import raw
from debiaser.data.benchmarks import mnist
from debiaser.data.bias import PALETTE
from debiaser.data.raw import KEYS, SETS, parts_of
from debiaser.data.split import Benchmark
from debiaser.errors import Misuse, Problem
from layouts import idx, npz, write_folder

TRAIN, TEST = 400, 200


def tiles(source: int, n: int, classes: int, first: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Pictures that tell their source and class: rows up to class + 1 are lit, brighter in later sources."""
    y = (np.arange(n) % classes + first).astype(np.uint8)
    x = np.zeros((n, 28, 28), dtype=np.uint8)
    for number, label in enumerate(y):
        x[number, : label + 1] = 60 + 60 * source
    return x, y


@pytest.fixture
def small_sets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The four sets made small: two as npz, one as gzipped idx, letters as the original's plain idx (transposed)."""
    monkeypatch.delenv("DEBIASER_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    root = tmp_path / "data"
    for number, name in enumerate(mnist.SETS.values()):
        original = name == "emnist_letters"
        train, test = (tiles(number, n, 26 if original else 10, int(original)) for n in (TRAIN, TEST))
        if original:
            train, test = ((x.swapaxes(1, 2).copy(), y) for x, y in (train, test))
        arrays = dict(zip(KEYS, (*train, *test), strict=True))
        stems = [part.stem for part in SETS[name].parts.values()]
        digests = ["" if original else raw.digest(each) for each in arrays.values()]
        parts = parts_of(digests, [each.shape for each in arrays.values()], stems)
        monkeypatch.setitem(SETS, name, replace(SETS[name], parts=parts, mirrors=(), substitutes=()))
        files = {f"{name}/{stem}": idx(array) for stem, array in zip(stems, arrays.values(), strict=True)}
        if name == "kmnist":
            files = {f"{at}.gz": gzip.compress(content) for at, content in files.items()}
        write_folder(files if original or name == "kmnist" else {f"{name}.npz": npz(**arrays)}, root)
    return root


def test_what_a_picture_shows_is_what_its_attributes_say(small_sets: Path) -> None:
    b = mnist.load_mbmnist(small_sets, 0.3, 0)
    assert (len(b.train), len(b.valid), len(b.test)) == (360, 40, 200)
    assert b.attributes == mnist.ATTRIBUTES and len(b.attributes) == 7
    for part in ("train", "valid", "test"):
        split, truth = getattr(b, part), b.truth[part]
        x = split.batch(torch.arange(len(split))).x
        assert x.shape == (len(split), 3, 56, 56) and x.dtype == torch.float32 and x.min() >= 0 and x.max() <= 1
        corners = [x[:, :, :28, :28], x[:, :, :28, 28:], x[:, :, 28:, :28], x[:, :, 28:, 28:]]
        shown = [truth.target, truth.bias[:, 1], truth.bias[:, 3], truth.bias[:, 5]]
        for source, (tile, shape, colour) in enumerate(zip(corners, shown, truth.bias[:, ::2].T, strict=True)):
            lit = (tile.amax((1, 3)) > 0).sum(1) - 1
            assert torch.equal(lit - int(source == 3), shape), (
                f"tile {source} shows the class of its attribute, upright"
            )
            painted = torch.from_numpy(PALETTE)[colour].float() * (60 + 60 * source) / 255
            assert (tile[:, :, 0, 0] - painted).abs().max() < 1e-3


def test_attributes_are_independent_and_of_their_share(small_sets: Path) -> None:
    b = mnist.load_mbmnist(small_sets, 0.2, 1)
    against = b.truth["train"].bias != b.truth["train"].target[:, None]
    assert against.shape == (360, 7)
    for each in against.T:
        assert binomtest(int(each.sum()), 360, 0.2).pvalue > 1e-4
    assert np.abs(np.corrcoef(against.T.float().numpy()) - np.eye(7)).max() < 0.25
    test = b.truth["test"].bias != b.truth["test"].target[:, None]
    assert binomtest(int(test.sum()), test.numel(), 0.9).pvalue > 1e-4


def test_seeds_and_rows(small_sets: Path) -> None:
    one, two, other, rare = (
        mnist.load_mbmnist(small_sets, rho, seed) for rho, seed in ((0.2, 0), (0.2, 0), (0.2, 1), (0.1, 0))
    )
    rows = torch.tensor([7, 3, 7, 359])

    def x(b: Benchmark, part: str = "train") -> torch.Tensor:
        return getattr(b, part).batch(rows[:3]).x

    assert torch.equal(x(one), x(two)) and not torch.equal(x(one), x(other))
    assert torch.equal(x(one, "test"), x(other, "test")) and torch.equal(x(one, "test"), x(rare, "test"))
    whole = one.train.batch(torch.arange(360)).x
    assert torch.equal(one.train.batch(rows).x, whole[rows])
    noisy = mnist.load_mbmnist(small_sets, 0.2, 0, noise=0.3)
    assert binomtest(int((noisy.train.y != one.train.y).sum()), 360, 0.3).pvalue > 1e-4


def test_tiles_can_change_places(small_sets: Path) -> None:
    fixed, moved = (mnist.load_mbmnist(small_sets, 0.2, 0, positions=each) for each in ("fixed", "random"))
    assert torch.equal(fixed.truth["train"].bias, moved.truth["train"].bias)
    rows = torch.arange(200)
    one, two = fixed.train.batch(rows).x, moved.train.batch(rows).x
    assert not torch.equal(one, two)
    assert torch.allclose(one.sum((1, 2, 3)), two.sum((1, 2, 3)), rtol=1e-4), "the same four tiles"
    first = two[:, :, :28, :28].amax((1, 2, 3)) / one.amax((1, 2, 3))
    assert len(first.unique()) > 3, "not always the digit in the first place"
    with pytest.raises(Misuse, match="unknown positions 'odd'; known: fixed, random"):
        mnist.load_mbmnist(small_sets, 0.2, 0, positions="odd")


def test_notes_tell_what_could_not_be_had(small_sets: Path) -> None:
    notes = " ".join(mnist.load_mbmnist(small_sets, 0.2, 0).notes)
    assert "400 of 60,000" in notes and "could not be checked" in notes
    assert SETS["emnist_letters"].status(small_sets).unknown == "x_train, y_train, x_test, y_test"


@pytest.mark.parametrize("name", ["fashion_mnist.npz", "kmnist/t10k-labels-idx1-ubyte.gz"])
def test_a_missing_or_cut_file_is_named(name: str, small_sets: Path) -> None:
    path = small_sets / name
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(Problem, match=f"{path.name} .*damaged") as told:
        mnist.load_mbmnist(small_sets, 0.2, 0)
    assert "\n" not in str(told.value)
    path.unlink()
    with pytest.raises(Problem, match=f"cannot fetch {path.name.split('.')[0] if 'npz' in name else 'kmnist'}"):
        mnist.load_mbmnist(small_sets, 0.2, 0)


def test_a_run_tells_every_attribute(small_sets: Path, tmp_path: Path) -> None:
    from debiaser.paper.experiment import run
    from debiaser.paper.spec import new_spec

    done = run(new_spec("mbmnist", "pgd", rho=0.2, epochs=1), tmp_path / "runs", small_sets).result
    for name in ("digit_colour", "fashion", "kana", "letter_colour"):
        assert 0 <= done["metrics"][f"conflicting_{name}"] <= 100
    assert any("400 of 60,000" in note for note in done["notes"]) and done["rows"]["train"] == 360


def test_a_complete_kmnist_is_known_by_its_beginning(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (x, y), known = tiles(2, 100, 10), 60
    arrays = dict(zip(KEYS, (x, y, x, y), strict=True))
    parts = parts_of([raw.digest(each[:known]) for each in arrays.values()], [each.shape for each in arrays.values()])
    begun = {key: replace(part, rows=known) for key, part in parts.items()}
    part = replace(
        SETS["kmnist"].substitutes[0],
        parts={key: replace(each, shape=(known, *each.shape[1:])) for key, each in parts.items()},
    )
    monkeypatch.setitem(SETS, "kmnist", replace(SETS["kmnist"], parts=begun, mirrors=(), substitutes=(part,)))
    np.savez(tmp_path / "kmnist_partial.npz", **{key: each[:known] for key, each in arrays.items()})
    assert len(raw.load("kmnist", tmp_path).y_train) == known and SETS["kmnist"].status(tmp_path).unknown == ""
    np.savez(tmp_path / "kmnist.npz", **arrays)
    assert len(raw.load("kmnist", tmp_path).y_train) == 100, "the set itself goes before what stands in for it"
    assert "x_train beyond row 60" in SETS["kmnist"].status(tmp_path).unknown
    spoilt = {**arrays, "x_train": 255 - x}
    np.savez(tmp_path / "kmnist.npz", **spoilt)
    with pytest.raises(Problem, match="other content in x_train"):
        raw.load("kmnist", tmp_path)


def test_the_real_one(real_data: Path, command: Callable[..., Done]) -> None:
    b = mnist.load_mbmnist(real_data, 0.1, 0)
    assert (len(b.train), len(b.valid), len(b.test)) == (54_000, 6_000, 10_000)
    against = b.truth["train"].bias != b.truth["train"].target[:, None]
    for each in against.T:
        assert binomtest(int(each.sum()), 54_000, 0.1).pvalue > 1e-4
    assert binomtest(int((~against).all(1).sum()), 54_000, 0.9**7).pvalue > 1e-4
    assert any("7,011 of 60,000" in note for note in b.notes)
    done = command("data", "check", "mbmnist", "--data", str(real_data), "--json")
    assert done.returncode == 0, done.stderr
    assert done.last_json["splits"]["train"]["rows"] == 54_000 and len(done.last_json["raw"]) == 4
