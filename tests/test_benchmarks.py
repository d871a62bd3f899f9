"""The generators: sizes, shares, the same bytes for the same seed, who may see what; and runs on them."""

import colorsys
import gzip
import io
import json
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from scipy import ndimage
from scipy.stats import binomtest

from conftest import Done
from debiaser.data import raw
from debiaser.data.benchmarks import DATASETS, cifar, corruptions, digits, mnist
from debiaser.data.benchmarks.corruptions import NAMES, corrupt, frost_textures, motion_blur, plasma, resample
from debiaser.data.bias import PALETTE, assign_bias, draw_bias
from debiaser.data.raw import BATCHES, KEYS, SETS, parts_of
from debiaser.data.split import Batch, Benchmark, Split, Truth
from debiaser.errors import Misuse, Problem
from debiaser.learn.nets import SmallMapConv, for_small_maps, new_net, normalised
from debiaser.methods.task import Task
from debiaser.paper.experiment import published_number, run
from debiaser.paper.results import table
from debiaser.paper.settings import SETTINGS
from debiaser.paper.spec import new_spec
from debiaser.progress import listening
from debiaser.report.run_page import command as command_of
from layouts import idx, npz, write_folder, write_tar


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty folder, with a cache of its own and no data of this machine."""
    monkeypatch.delenv("DEBIASER_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def pixels(split: Split) -> torch.Tensor:
    return torch.cat([batch.x for batch in split.batches(2000)])


def test_digits_have_their_sizes_and_form(benchmark_digits: Benchmark) -> None:
    b = benchmark_digits
    assert (len(b.train), len(b.valid), len(b.test)) == (1167, 130, 500)
    batch = b.train.batch(torch.tensor([5, 3, 5]))
    assert batch.x.shape == (3, 3, 28, 28) and batch.x.dtype == torch.float32
    assert batch.rows.tolist() == [5, 3, 5] and torch.equal(batch.x[0], batch.x[2])
    assert batch.x.min() >= 0 and 0.5 < batch.x.max() <= 1
    assert b.classes == tuple("0123456789") and b.attributes == ("colour",)
    brightest = pixels(b.train).flatten(2).amax(2)  # grey reaches 255 in every digit, so the largest is the colour
    assert (brightest - torch.from_numpy(PALETTE)[b.truth["train"].bias[:, 0]].float()).abs().median() < 0.02
    for rho in (0, 1, -0.1, 1.5, float("nan")):
        with pytest.raises(Misuse, match="rho"):
            digits.load(None, rho, 0)


@pytest.mark.parametrize("rho", [0.01, 0.05, 0.3, 0.9])
def test_share_of_conflicting_samples(rho: float) -> None:
    b = digits.load(None, rho, 3)
    for part, share in (("train", rho), ("test", 0.9)):
        kind = b.truth[part].conflicting(getattr(b, part).y)
        assert binomtest(int(kind.sum()), len(kind), share).pvalue > 0.001


def test_same_seed_same_bytes_and_another_seed_others() -> None:
    one, two, other = (digits.load(None, 0.05, seed) for seed in (0, 0, 1))
    assert torch.equal(pixels(one.train), pixels(two.train)) and torch.equal(pixels(one.test), pixels(two.test))
    assert not torch.equal(pixels(one.train), pixels(other.train))
    rare, common = digits.load(None, 0.01, 0), digits.load(None, 0.2, 0)
    assert torch.equal(pixels(rare.test), pixels(common.test)), "the test set is the same for every rho"


def test_noise_flips_labels_and_counts_them_as_flipped() -> None:
    b = digits.load(None, 0.05, 0, noise=0.2)
    truth = b.truth["train"]
    flipped = truth.flipped(b.train.y)
    assert binomtest(int(flipped.sum()), len(flipped), 0.2).pvalue > 0.001
    assert not (truth.conflicting(b.train.y)[flipped] == 1).any()
    assert not b.truth["test"].flipped(b.test.y).any()
    assert torch.equal(truth.target, digits.load(None, 0.05, 0).train.y)


def test_kinds_and_draws_by_hand() -> None:
    truth = Truth(torch.tensor([0, 1, 2, 2]), torch.tensor([[0], [2], [2], [-1]]))
    assert truth.conflicting(torch.tensor([0, 1, 2, 2])).tolist() == [0, 1, 0, -1]
    assert truth.conflicting(torch.tensor([0, 0, 1, 2])).tolist() == [0, 0, 0, -1]
    rng, target = np.random.default_rng(0), np.arange(10).repeat(100)
    assert (draw_bias(target, 1.0, 10, rng) != target).all()
    assert (draw_bias(target, 0.0, 10, rng) == target).all()
    others = draw_bias(np.zeros(90_000, dtype=np.int64), 1.0, 10, rng)
    assert np.abs(np.bincount(others, minlength=10)[1:] / 10_000 - 1).max() < 0.05


def test_splits_hand_out_batches_without_bias_labels() -> None:
    split = Split.of(torch.arange(10.0)[:, None], torch.arange(10))
    part = split.subset(torch.tensor([7, 2, 4]))
    assert part.batch(torch.tensor([1, 0])).x.flatten().tolist() == [2, 7]
    assert [batch.rows.tolist() for batch in part.batches(2)] == [[0, 1], [2]]
    reachable = {each.name for kind in (Batch, Split, Task) for each in fields(kind)}
    assert not reachable & {"bias", "truth", "group", "conflicting", "attributes"}


def test_colored_mnist_is_the_papers(real_data: Path) -> None:
    b = mnist.load_cmnist(real_data, 0.005, 0)
    assert (len(b.train), len(b.valid), len(b.test)) == (54_000, 6_000, 10_000)
    kind = b.truth["train"].conflicting(b.train.y)
    assert binomtest(int(kind.sum()), 54_000, 0.005).pvalue > 0.001
    x, grey = b.train.batch(torch.arange(64)).x, mnist.parts(real_data)["train"].images[:64]
    colour = torch.from_numpy(PALETTE)[b.truth["train"].bias[:64, 0]].float()
    assert (x - torch.from_numpy(grey)[:, None] / 255 * colour[:, :, None, None]).abs().max() < 1e-3
    rest = x / torch.from_numpy(grey)[:, None].float() * 255
    drawn = rest[:, :, grey.max(0) > 0]
    spread = (drawn.nan_to_num(posinf=0).amax(2) - colour)[colour < 0.999]
    assert 3e-5 < spread.std() < 3e-4, "one small colour draw per image"
    again, other = mnist.load_cmnist(real_data, 0.05, 0), mnist.load_cmnist(real_data, 0.005, 1)
    rows = torch.arange(500)
    assert torch.equal(b.test.batch(rows).x, again.test.batch(rows).x)
    assert torch.equal(b.test.batch(rows).x, other.test.batch(rows).x)
    assert not torch.equal(b.train.batch(rows).x, other.train.batch(rows).x)


def test_colour_as_the_target(real_data: Path) -> None:
    plain, twin = mnist.load_cmnist(real_data, 0.05, 0), mnist.load_cmnist_colour(real_data, 0.05, 0)
    rows = torch.arange(1000)
    assert torch.equal(plain.train.batch(rows).x, twin.train.batch(rows).x), "the same pictures"
    assert torch.equal(twin.train.y, plain.truth["train"].bias[:, 0])
    assert torch.equal(twin.truth["train"].bias[:, 0], plain.train.y)
    assert twin.attributes == ("digit",) and twin.classes[0] == "crimson"


# --- Multi-bias MNIST ---


def tiles(source: int, n: int, classes: int, first: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Pictures that tell their source and class: rows up to class + 1 are lit, brighter in later sources."""
    y = (np.arange(n) % classes + first).astype(np.uint8)
    x = np.zeros((n, 28, 28), dtype=np.uint8)
    for number, label in enumerate(y):
        x[number, : label + 1] = 60 + 60 * source
    return x, y


@pytest.fixture
def small_sets(monkeypatch: pytest.MonkeyPatch, own: Path) -> Path:
    """The four sets made small: two as npz, one as gzipped idx, letters as the original's plain idx (transposed)."""
    root = own / "data"
    for number, name in enumerate(mnist.SETS.values()):
        original = name == "emnist_letters"
        train, test = (tiles(number, n, 26 if original else 10, int(original)) for n in (400, 200))
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
            assert torch.equal(lit - int(source == 3), shape), f"tile {source} shows its class, upright"
            painted = torch.from_numpy(PALETTE)[colour].float() * (60 + 60 * source) / 255
            assert (tile[:, :, 0, 0] - painted).abs().max() < 1e-3


def test_attributes_seeds_and_rows(small_sets: Path) -> None:
    one, two, other, rare, noisy = (
        mnist.load_mbmnist(small_sets, rho, seed, noise)
        for rho, seed, noise in ((0.2, 1, 0), (0.2, 1, 0), (0.2, 2, 0), (0.1, 1, 0), (0.2, 1, 0.3))
    )
    against = one.truth["train"].bias != one.truth["train"].target[:, None]
    assert all(binomtest(int(each.sum()), 360, 0.2).pvalue > 1e-4 for each in against.T)
    assert np.abs(np.corrcoef(against.T.float().numpy()) - np.eye(7)).max() < 0.25, "independent of each other"
    test = one.truth["test"].bias != one.truth["test"].target[:, None]
    assert binomtest(int(test.sum()), test.numel(), 0.9).pvalue > 1e-4
    rows = torch.tensor([7, 3, 7, 359])
    x, again, others = (each.train.batch(rows).x for each in (one, two, other))
    assert torch.equal(x, again) and not torch.equal(x, others) and torch.equal(pixels(one.train)[rows], x)
    tests = [pixels(each.test) for each in (one, other, rare)]
    assert torch.equal(tests[0], tests[1]) and torch.equal(tests[0], tests[2]), "one test set for all seeds and rho"
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
    notes = " ".join(fixed.notes)
    assert "400 of 60,000" in notes and "could not be checked" in notes
    assert SETS["emnist_letters"].status(small_sets).unknown == "x_train, y_train, x_test, y_test"
    with pytest.raises(Misuse, match="unknown positions 'odd'; known: fixed, random"):
        mnist.load_mbmnist(small_sets, 0.2, 0, positions="odd")


def test_a_run_tells_every_attribute(small_sets: Path, tmp_path: Path) -> None:
    done = run(new_spec("mbmnist", "pgd", rho=0.2, epochs=1), tmp_path / "runs", small_sets).result
    for name in ("digit_colour", "fashion", "kana", "letter_colour"):
        assert 0 <= done["metrics"][f"conflicting_{name}"] <= 100
    assert any("400 of 60,000" in note for note in done["notes"]) and done["rows"]["train"] == 360


def test_a_complete_kmnist_is_known_by_its_beginning(monkeypatch: pytest.MonkeyPatch, own: Path) -> None:
    (x, y), known = tiles(2, 100, 10), 60
    arrays = dict(zip(KEYS, (x, y, x, y), strict=True))
    parts = parts_of([raw.digest(each[:known]) for each in arrays.values()], [each.shape for each in arrays.values()])
    begun = {key: replace(part, rows=known) for key, part in parts.items()}
    part = replace(
        SETS["kmnist"].substitutes[0],
        parts={key: replace(each, shape=(known, *each.shape[1:])) for key, each in parts.items()},
    )
    monkeypatch.setitem(SETS, "kmnist", replace(SETS["kmnist"], parts=begun, mirrors=(), substitutes=(part,)))
    np.savez(own / "kmnist_partial.npz", **{key: each[:known] for key, each in arrays.items()})
    assert len(raw.load("kmnist", own).y_train) == known and SETS["kmnist"].status(own).unknown == ""
    np.savez(own / "kmnist.npz", **arrays)
    assert len(raw.load("kmnist", own).y_train) == 100, "the set itself goes before what stands in for it"
    assert "x_train beyond sample 60" in SETS["kmnist"].status(own).unknown
    spoilt = {**arrays, "x_train": 255 - x}
    np.savez(own / "kmnist.npz", **spoilt)
    with pytest.raises(Problem, match="other content in x_train"):
        raw.load("kmnist", own)


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


# --- CIFAR-10 and Corrupted CIFAR-10 ---

Arrays = dict[str, np.ndarray]


def arrays() -> Arrays:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (600, 3, 32, 32), dtype=np.uint8)
    y = np.concatenate([rng.permutation(np.arange(n) % 10).astype(np.uint8) for n in (500, 100)])
    return dict(zip(KEYS, (x[:500], y[:500], x[500:], y[500:]), strict=True))


def batches(content: Arrays) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    x, y = content["x_train"].reshape(5, -1, 3, 32, 32), content["y_train"].reshape(5, -1)
    return dict(zip(BATCHES, [*zip(x, y, strict=True), (content["x_test"], content["y_test"])], strict=True))


def binary(content: Arrays) -> dict[str, bytes]:
    return {
        f"cifar-10-batches-bin/{name}.bin": np.concatenate([y[:, None], x.reshape(len(x), -1)], 1).tobytes()
        for name, (x, y) in batches(content).items()
    }


def as_sprites(content: Arrays, folder: Path) -> None:
    for name, (x, _) in batches(content).items():
        Image.fromarray(x.transpose(0, 2, 3, 1).reshape(len(x), 1024, 3)).save(folder / f"{name}.png")
    for name, key in (("train_lables.json", "y_train"), ("test_lables.json", "y_test")):
        (folder / name).write_text(json.dumps(content[key].tolist()))


ARRAYS = arrays()
ARCHIVE = "cifar-10-binary.tar.gz"
LAYOUTS: dict[str, Callable[[Arrays, Path], object]] = {
    "folder": lambda content, at: write_folder(binary(content), at),
    "archive": lambda content, at: write_tar({**binary(content), "readme.html": b"<p>"}, at / ARCHIVE, "w:gz"),
    "sprites": as_sprites,
    "npz": lambda content, at: write_folder({"cifar10.npz": npz(**content)}, at),
}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, own: Path) -> Path:
    """An empty data folder; the set is known as 500 and 100 pictures."""
    parts = parts_of([raw.digest(each) for each in ARRAYS.values()], [each.shape for each in ARRAYS.values()])
    monkeypatch.setitem(SETS, "cifar10", replace(SETS["cifar10"], parts=parts, mirrors=()))
    (own / "data").mkdir()
    return own / "data"


@pytest.fixture
def there(small: Path) -> Path:
    """The folder with the set in it."""
    LAYOUTS["npz"](ARRAYS, small)
    return small


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("place", ["", "cifar10"])
def test_every_layout_gives_the_same_arrays(layout: str, place: str, small: Path) -> None:
    (small / place).mkdir(exist_ok=True)
    LAYOUTS[layout](ARRAYS, small / place)
    found = raw.load("cifar10", small)
    assert all(np.array_equal(getattr(found, key), ARRAYS[key]) for key in KEYS)


@pytest.mark.parametrize(
    ("layout", "name", "reason"),
    [
        ("folder", "cifar-10-batches-bin/data_batch_3.bin", "data_batch_3.bin has 307250 bytes instead of 307300"),
        ("archive", ARCHIVE, "cifar-10-binary.tar.gz .*cut off or damaged"),
        ("sprites", "data_batch_2.png", r"\*_batch\*.png or their labels are cut off or damaged"),
        ("sprites", "test_lables.json", r"\*_batch\*.png or their labels are cut off or damaged"),
    ],
)
def test_a_cut_file_is_named(layout: str, name: str, reason: str, small: Path) -> None:
    LAYOUTS[layout](ARRAYS, small)
    (small / name).write_bytes((small / name).read_bytes()[:-50])
    with pytest.raises(Problem, match=reason):
        cifar.load_cifar10(small, None, 0)


def test_wrong_absent_and_unsafe_content_is_told(small: Path) -> None:
    with pytest.raises(Problem, match="cannot fetch cifar10"):
        cifar.load_cifar10(small, None, 0)
    for name, told in (("../data_batch_1.bin", "unsafe"), ("readme.html", r"not hold data_batch_1.bin, .*test_batch")):
        write_tar({name: b""}, small / ARCHIVE, "w:gz")
        with pytest.raises(Problem, match=told):
            raw.load("cifar10", small)
    LAYOUTS["npz"]({**ARRAYS, "y_test": ARRAYS["y_test"][::-1]}, small)
    with pytest.raises(Problem, match="other content in y_test"):
        cifar.load_cifar10(small, None, 0)


def test_natural_cifar_has_no_known_bias(there: Path) -> None:
    b = cifar.load_cifar10(there, None, 0, noise=0.2)
    assert (len(b.train), len(b.valid), len(b.test)) == (450, 50, 100) and b.classes == cifar.CLASSES
    assert (b.truth["train"].conflicting(b.train.y) == -1).all()
    assert 40 < int(b.truth["train"].flipped(b.train.y).sum()) < 140
    assert torch.equal(b.test.batch(torch.arange(100)).x * 255, torch.from_numpy(ARRAYS["x_test"]).float())
    together = torch.cat([split.batch(torch.arange(len(split))).x for split in (b.train, b.valid)])
    assert len({each.numpy().tobytes() for each in together}) == 500, "train and valid share no picture"


def test_shares_are_exact_by_rank_within_each_class() -> None:
    target = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 450))
    for rho, against in ((0.01, 4), (0.05, 22), (0.9, 405)):
        table_ = np.zeros((10, 10), int)
        np.add.at(table_, (target, assign_bias(target, rho, 10)), 1)
        assert (table_.sum(1) - table_.diagonal() == against).all()
        others = table_[~np.eye(10, dtype=bool)].reshape(10, 9)
        assert (others.max(1) - others.min(1) <= 1).all()
    assert (others == 45).all(), "in the test set every corruption is equally frequent"


def test_images_are_corrupted_as_their_bias_says_and_kept(there: Path, tmp_path: Path) -> None:
    told: list[tuple[Any, ...]] = []

    def load() -> tuple[Benchmark, torch.Tensor]:
        told.clear()
        with listening(lambda *step: told.append(step)):
            b = cifar.load_ccifar(there, 0.05, 0)
        return b, pixels(b.train)

    b, x = load()
    parts = {f"corrupting CIFAR-10, {part}" for part in ("train", "valid", "test")}
    assert told[-1][1] == told[-1][2] and {what for what, *_ in told} == parts
    rows, bias = cifar.parts(there, 0)["train"].rows, b.truth["train"].bias[:, 0].numpy()
    wanted = corrupt(ARRAYS["x_train"][rows], bias, rows, 5, 0)
    assert torch.equal((x * 255).round().byte(), torch.from_numpy(wanted))
    against = b.truth["train"].conflicting(b.train.y)
    assert int(against.sum()) == sum(round(0.05 * n) for n in np.bincount(b.train.y.numpy()))
    assert torch.bincount(b.truth["test"].bias[:, 0]).tolist() == [10] * 10 and len(NAMES) == 10
    assert torch.equal(load()[1], x) and not told, "the second time they are read"
    kept = sorted((tmp_path / "cache" / "debiaser" / "ccifar").glob("*.npy"))
    for damaged in kept:
        damaged.write_bytes(damaged.read_bytes()[:1000])
    assert torch.equal(load()[1], x) and len(kept) == 3, "made anew when damaged"


def test_what_makes_other_images(there: Path) -> None:
    plain, weak, other, rare = (
        cifar.load_ccifar(there, rho, seed, severity=level)
        for rho, seed, level in ((0.05, 0, 5), (0.05, 0, 1), (0.05, 1, 5), (0.3, 0, 5))
    )
    x = pixels(plain.train)
    assert not torch.equal(x, pixels(weak.train)) and not torch.equal(x, pixels(other.train))
    assert torch.equal(pixels(plain.test), pixels(other.test)), "one test set for all seeds and rho"
    assert torch.equal(pixels(plain.test), pixels(rare.test))
    same = (plain.truth["train"].bias == rare.truth["train"].bias)[:, 0]
    assert torch.equal(x[same], pixels(rare.train)[same]), "an aligned image is the same"


def test_a_run_from_end_to_end(there: Path, tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="ResNet-18 needs the extra `models`: this test did not run")
    done = run(new_spec("ccifar", "pgd", rho=0.05, epochs=1), tmp_path / "runs", there)
    assert done.result["rows"]["train"] == 450 and done.result["rows"]["conflicting"] == 20
    assert 0 <= done.result["metrics"]["group_average"] <= 100 and done.result["bias_name"] == "corruption"
    spec = new_spec("cifar10", "vanilla", epochs=1, net="simconv1")
    natural = run(spec, tmp_path / "runs", there)
    assert natural.result["rho"] is None and natural.result["metrics"]["conflicting"] is None
    assert run(spec, tmp_path / "runs", there).resumed, "a run without rho is found again"


def test_a_run_starts_from_the_weights_that_are_named(there: Path, tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="ResNet-18 needs the extra `models`: this test did not run")
    folder = tmp_path / "weights"
    new_net("resnet18", 5, 1).net.save_pretrained(folder)
    words = {"rho": 0.05, "epochs": 1, "weights": str(folder)}
    spec, plain = new_spec("ccifar", "vanilla", **words), new_spec("ccifar", "vanilla", rho=0.05, epochs=1)
    assert spec.key != plain.key and spec.data_identity != plain.data_identity and "weights" not in plain.plain()
    still = replace(spec, recipe=replace(spec.recipe, lr=1e-12))  # what is kept is what it began with
    done = run(still, tmp_path / "runs", there)
    begun, kept = load_file(folder / "model.safetensors"), load_file(done.folder / "model.safetensors")
    name = "resnet.embedder.embedder.convolution.weight"
    (found,) = (value for each, value in kept.items() if each.endswith(name))
    torch.testing.assert_close(found, begun[name], rtol=0, atol=1e-6)
    assert done.result["spec"]["weights"] == str(folder) and f"--weights {folder}" in command_of(done.result)
    save_file({**begun, name: begun[name] + 1}, folder / "model.safetensors")
    assert new_spec("ccifar", "vanilla", **words).key != spec.key, "other weights in the same folder, another run"


def test_another_augmentation_is_another_run(there: Path, tmp_path: Path) -> None:
    words = {"rho": 0.05, "epochs": 1, "net": "simconv1"}
    spec, usual = new_spec("ccifar", "vanilla", augment="paper", **words), new_spec("ccifar", "vanilla", **words)
    assert spec.key != usual.key and "augment" not in usual.plain()
    varied, as_usual = (run(each, tmp_path / "runs", there) for each in (spec, usual))
    assert "--augment paper" in command_of(varied.result) and "--augment" not in command_of(as_usual.result)
    losses = [(each.folder / "history.csv").read_text().splitlines()[1].split(",")[4] for each in (varied, as_usual)]
    assert losses[0] != losses[1], "the pictures were varied otherwise"


@pytest.mark.parametrize(
    ("dataset", "words", "told"),
    [
        ("ccifar", {"augment": "much"}, "unknown augmentation 'much'; known: paper, "),
        ("civilcomments", {"augment": "paper"}, "only images can be varied"),
        ("cmnist", {"weights": "somewhere"}, "unknown option of simconv1 'weights'; known: channels"),
        ("cifar10", {"rho": 0.1}, "cifar10 has no rho"),
        *((name, {"options": ["nosuch=1"]}, f"option of {name}") for name in DATASETS),
    ],
)
def test_specs_that_cannot_be_meant(dataset: str, words: dict[str, Any], told: str) -> None:
    with pytest.raises(Misuse, match=told):
        new_spec(dataset, "pgd", **words)
    spec = new_spec(dataset, "pgd")
    assert (spec.rho is None) == (SETTINGS[dataset].rho is None) == ("rho" not in spec.key) and DATASETS[dataset].about
    assert spec.rho is None or spec.key != new_spec(dataset, "pgd", rho=0.02).key


@pytest.mark.parametrize(
    ("dataset", "options", "net", "printed"),
    [
        ("ccifar", [], None, True),
        ("ccifar", ["severity=5"], None, True),
        ("ccifar", ["severity=1"], None, False),
        ("celeba", ["crop=whole"], None, True),
        ("celeba", ["target=Smiling"], None, False),
        ("celeba", [], "resnet18", False),  # the table of ResNet-18 prints group means
    ],
)
def test_the_papers_number_stands_beside_the_papers_task_only(
    dataset: str, options: list[str], net: str | None, printed: bool
) -> None:
    assert (published_number(new_spec(dataset, "pgd", options=options, net=net)) is not None) == printed


# --- settings and what they need ------------------------------------------------------------------------------------

DECIDED = {("mbmnist", "decay_step"), ("civilcomments", "optimizer")}  # D13, D16


@pytest.mark.parametrize("name", ["cmnist", "mbmnist", "ccifar", "bar", "bffhq", "celeba", "civilcomments"])
def test_paper_recipes_are_the_papers_table(name: str) -> None:
    recipe = SETTINGS[name].recipes["paper"]
    ours = {"lr_decay": "decay", "decay_step": "decay_every"}
    for row in (each for each in table("hyperparam") if each.dataset == name):
        if row.metric == "optimizer" and (name, row.metric) not in DECIDED:
            assert row.note.lower().startswith(recipe.optimizer)
        elif row.mean is not None and row.metric in {"batch_size", "lr", "weight_decay", "epochs"}:
            assert getattr(recipe, row.metric) == row.mean, row.metric
        elif row.mean is not None and row.metric in ours and recipe.schedule == "step":
            assert getattr(recipe, ours[row.metric]) == row.mean, row.metric
    assert recipe.single_stage == 1
    assert SETTINGS["celeba"].recipes["paper"].schedule == "cosine"
    assert SETTINGS["mbmnist"].recipes["paper"].decay_every == 40


# --- the ten corruptions: formulas against their definitions ---


def photos(n: int, seed: int = 0) -> np.ndarray:
    """Smooth coloured pictures (n, 3, 32, 32), some of them dark."""
    noise = np.random.default_rng(seed).random((n, 3, 32, 32))
    smooth = ndimage.gaussian_filter(noise, (0, 0, 3, 3), mode="wrap")
    smooth = (smooth - smooth.min()) / (smooth.max() - smooth.min())
    return (smooth * np.linspace(0.4, 1, n)[:, None, None, None] * 255).astype(np.uint8)


def one(name: str, images: np.ndarray, severity: int = 5, seed: int = 0) -> np.ndarray:
    n = len(images)
    return corrupt(images, np.full(n, NAMES.index(name)), np.arange(n), severity, seed)


@pytest.mark.parametrize("name", NAMES)
def test_every_corruption_changes_more_with_severity_and_keeps_the_form(name: str) -> None:
    x = photos(24)
    changed = [one(name, x, severity) for severity in range(1, 6)]
    distance = [np.abs(each.astype(float) - x).mean() for each in changed]
    assert all(each.shape == x.shape and each.dtype == np.uint8 for each in changed)
    assert distance[4] > 1.5 and len({each.tobytes() for each in changed}) == 5
    if name not in {"elastic", "saturate", "spatter"}:  # these change kind on the way, by CIFAR-10-C's own numbers
        assert distance[4] > distance[0]


def test_bytes_depend_on_seed_and_row_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    x, rows = photos(40), np.arange(100, 140)
    kind = np.arange(40) % 10
    whole = corrupt(x, kind, rows, 5, seed=3)
    order = np.random.default_rng(1).permutation(40)
    monkeypatch.setattr(corruptions, "CHUNK", 3)
    parts = corrupt(x[order], kind[order], rows[order], 5, 3)
    assert np.array_equal(parts, whole[order]), "neither order nor batches matter"
    other = corrupt(x, kind, rows, 5, seed=4)
    random = [number for number, name in enumerate(NAMES) if name in {"snow", "frost", "fog", "spatter", "elastic"}]
    for number in range(10):
        assert np.array_equal(whole[kind == number], other[kind == number]) == (number not in random)
    for severity in (0, 6, -1):
        with pytest.raises(Misuse, match="severity must be 1, 2, 3, 4 or 5"):
            corrupt(x, kind, rows, severity)
    assert " ".join(NAMES) == "snow frost fog brightness contrast spatter elastic jpeg pixelate saturate"
    twins = corrupt(x[[0, 0]], np.full(2, 0), np.array([5, 6]), 5, 0)
    assert not np.array_equal(*twins), "each row has its own snow"


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("brightness", lambda h, s, v: (h, s, min(1, v + 0.3))),
        ("saturate", lambda h, s, v: (h, min(1, s * 2.5 + 0.2), v)),
    ],
)
def test_colour_corruptions_are_those_of_hsv(name: str, change: object) -> None:
    x = photos(4)
    x[0, :, :4] = 77  # grey
    x[0, :, 4:8] = 0  # black
    found = one(name, x).transpose(0, 2, 3, 1).reshape(-1, 3)
    for before, after in zip(x.transpose(0, 2, 3, 1).reshape(-1, 3)[::37], found[::37], strict=True):
        wanted = colorsys.hsv_to_rgb(*change(*colorsys.rgb_to_hsv(*(before / 255))))  # type: ignore[operator]
        assert np.abs(np.array(wanted) * 255 - after).max() < 1.1


def test_contrast_jpeg_and_pixelate_by_definition() -> None:
    x = photos(6)
    mean = x.astype(float).mean((2, 3), keepdims=True)
    assert np.abs((x - mean) * 0.15 + mean - one("contrast", x)).max() < 1.1
    for picture, jpeg, coarse in zip(x, one("jpeg", x), one("pixelate", x), strict=True):
        image, stream = Image.fromarray(picture.transpose(1, 2, 0)), io.BytesIO()
        image.save(stream, "JPEG", quality=40)
        assert np.array_equal(np.asarray(Image.open(stream)).transpose(2, 0, 1), jpeg)
        box = image.resize((20, 20), Image.Resampling.BOX).resize((32, 32), Image.Resampling.BOX)
        assert np.array_equal(np.asarray(box).transpose(2, 0, 1), coarse)


def test_fog_is_a_cloud_of_diamond_and_square() -> None:
    draws = np.random.default_rng(0).uniform(-1, 1, (3, 63)).astype(np.float32)
    cloud = plasma(draws, 8, 2)
    assert cloud.min() == 0 and cloud.max() == 1 and cloud.shape == (3, 8, 8)
    by_hand = np.zeros((8, 8))
    values = iter(draws[1].astype(float))
    step, strength = 8, 1.0
    while step >= 2:
        half, starts = step // 2, range(0, 8, step)
        at = by_hand.__getitem__
        for r, c in [(r, c) for r in starts for c in starts]:
            corners = [at(((r + a) % 8, (c + b) % 8)) for a in (0, step) for b in (0, step)]
            by_hand[r + half, c + half] = sum(corners) / 4 + strength * next(values)
        for down, across in ((half, 0), (0, half)):
            for r, c in [(r + down, c + across) for r in starts for c in starts]:
                around = [at(((r + a) % 8, (c + b) % 8)) for a, b in ((half, 0), (-half, 0), (0, half), (0, -half))]
                by_hand[r, c] = sum(around) / 4 + strength * next(values)
        step, strength = half, strength / 4
    by_hand = (by_hand - by_hand.min()) / (by_hand.max() - by_hand.min())
    assert np.allclose(by_hand, cloud[1], atol=1e-5)


def test_motion_blur_smears_one_way_and_keeps_the_light() -> None:
    x = np.zeros((2, 32, 32), dtype=np.float32)
    x[:, 16, 16] = 1
    down, across = motion_blur(x, 3, 2, np.array([-90.0, 180.0], dtype=np.float32))
    assert np.flatnonzero(down.sum(0)).tolist() == [16] == np.flatnonzero(across.sum(1)).tolist()
    weights = np.exp(-(np.arange(7) ** 2) / 8)
    assert np.allclose(down[16:23, 16], weights / weights.sum(), atol=1e-6) and np.isclose(down.sum(), 1)
    flat = np.full((1, 32, 32), 0.3, dtype=np.float32)
    assert np.allclose(motion_blur(flat, 14, 12, np.array([-77.0], dtype=np.float32)), 0.3)


@pytest.mark.parametrize(("around_pixels", "mode"), [(True, "mirror"), (False, "reflect")])
def test_resampling_is_scipys(around_pixels: bool, mode: str) -> None:
    rng = np.random.default_rng(0)
    x = rng.random((2, 3, 32, 32)).astype(np.float32)
    down, across = (each + rng.uniform(-6, 6, (2, 32, 32)) for each in np.mgrid[:32, :32])
    found = resample(x, across, down, around_pixels)
    for n in range(2):
        for c in range(3):
            wanted = ndimage.map_coordinates(x[n, c], [down[n], across[n]], order=1, mode=mode)
            assert np.abs(found[n, c] - wanted).max() < 1e-4


def test_elastic_moves_but_keeps_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    x = photos(8)
    moved = one("elastic", x)
    assert np.abs(moved.astype(float) - x).mean() > 1
    assert np.abs(moved.mean((2, 3)) - x.mean((2, 3))).max() < 12
    monkeypatch.setattr(corruptions, "uniforms", lambda streams, shape, low, high: np.zeros((len(streams), *shape)))
    assert np.abs(one("elastic", x).astype(float) - x).max() <= 1, "no jitter, no field: the same picture"


def test_textures_are_always_the_same_and_visible() -> None:
    textures = frost_textures()
    assert textures.shape == (5, 3, 128, 128) and textures.min() >= 0 and textures.max() <= 1
    assert (textures.std((1, 2, 3)) > 0.15).all() and (np.abs(textures.mean((1, 2, 3)) - 0.5) < 0.15).all()
    assert (textures.mean((2, 3))[:, 2] > textures.mean((2, 3))[:, 0]).all(), "ice is bluish"


# --- what the networks of these benchmarks add ---


def test_small_maps_compute_the_same() -> None:
    torch.manual_seed(0)
    for size, stride in ((1, 1), (2, 1), (2, 2), (4, 2), (3, 1)):
        plain = torch.nn.Conv2d(5, 7, 3, stride, 1, bias=False).double()
        quick = for_small_maps(torch.nn.Conv2d(5, 7, 3, stride, 1, bias=False).double())
        quick.load_state_dict(plain.state_dict())
        assert isinstance(quick, SmallMapConv)
        x = torch.randn(6, 5, size, size, dtype=torch.float64, requires_grad=True)
        found = [torch.autograd.grad((net(x) ** 3).sum(), [x, net.weight]) for net in (plain, quick)]
        assert torch.allclose(plain(x), quick(x))
        assert all(torch.allclose(one, two) for one, two in zip(*found, strict=True))
    other = for_small_maps(torch.nn.Conv2d(4, 4, 3, 1, 1, groups=2))
    assert type(other) is torch.nn.Conv2d


def test_normalisation_is_part_of_the_network() -> None:
    net = normalised(torch.nn.Flatten(), ((0.1, 0.2, 0.3), (0.5, 0.25, 2.0)))
    x = torch.rand(2, 3, 4, 4)
    found = net(x).view_as(x)
    assert torch.allclose(found[:, 1], (x[:, 1] - 0.2) / 0.25) and torch.allclose(found[:, 2], (x[:, 2] - 0.3) / 2)
    features = torch.rand(2, 8)
    assert torch.equal(net(features), features) and normalised(net, None) is net
