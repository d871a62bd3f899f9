"""CIFAR-10 in every layout, and Corrupted CIFAR-10: exact shares, kept pictures, one command from end to end."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from debiaser.data import raw
from debiaser.data.benchmarks import cifar
from debiaser.data.benchmarks.corruptions import NAMES, corrupt
from debiaser.data.bias import assign_bias
from debiaser.data.raw import BATCHES, KEYS, SETS, parts_of
from debiaser.errors import Misuse, Problem
from debiaser.learn.nets import SmallMapConv, for_small_maps, new_net, normalised
from debiaser.paper.results import table
from debiaser.paper.settings import SETTINGS
from debiaser.progress import listening
from debiaser.report.run_page import command
from layouts import npz, write_folder, write_tar

TRAIN, TEST = 500, 100
Arrays = dict[str, np.ndarray]


def arrays() -> Arrays:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (TRAIN + TEST, 3, 32, 32), dtype=np.uint8)
    y = np.concatenate([rng.permutation(np.arange(n) % 10).astype(np.uint8) for n in (TRAIN, TEST)])
    return dict(zip(KEYS, (x[:TRAIN], y[:TRAIN], x[TRAIN:], y[TRAIN:]), strict=True))


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
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty data folder; the set is known as 500 and 100 pictures."""
    monkeypatch.delenv("DEBIASER_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    parts = parts_of([raw.digest(each) for each in ARRAYS.values()], [each.shape for each in ARRAYS.values()])
    monkeypatch.setitem(SETS, "cifar10", replace(SETS["cifar10"], parts=parts, mirrors=()))
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


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


def test_pictures_are_corrupted_as_their_bias_says_and_kept(there: Path, tmp_path: Path) -> None:
    told: list[tuple[Any, ...]] = []
    with listening(lambda *step: told.append(step)):
        b = cifar.load_ccifar(there, 0.05, 0)
    assert told[-1][1] == told[-1][2] and {what for what, *_ in told} == {
        f"corrupting CIFAR-10, {part}" for part in ("train", "valid", "test")
    }
    rows, bias = cifar.parts(there, 0)["train"].rows, b.truth["train"].bias[:, 0].numpy()
    wanted = corrupt(ARRAYS["x_train"][rows], bias, rows, 5, 0)
    x = b.train.batch(torch.arange(450)).x
    assert torch.equal((x * 255).round().byte(), torch.from_numpy(wanted))
    against = b.truth["train"].conflicting(b.train.y)
    assert int(against.sum()) == sum(round(0.05 * n) for n in np.bincount(b.train.y.numpy()))
    assert torch.bincount(b.truth["test"].bias[:, 0]).tolist() == [10] * 10 and len(NAMES) == 10

    kept = sorted((tmp_path / "cache" / "debiaser" / "ccifar").glob("*.npy"))
    assert len(kept) == 3
    told.clear()
    with listening(lambda *step: told.append(step)):
        again = cifar.load_ccifar(there, 0.05, 0)
    assert not told and torch.equal(again.train.batch(torch.arange(450)).x, x), "the second time they are read"
    for damaged in kept:
        damaged.write_bytes(damaged.read_bytes()[:1000])
    assert torch.equal(cifar.load_ccifar(there, 0.05, 0).train.batch(torch.arange(450)).x, x), "made anew when damaged"


def test_what_makes_other_pictures(there: Path) -> None:
    rows = torch.arange(50)
    plain, weak, other, rare = (
        cifar.load_ccifar(there, rho, seed, severity=level)
        for rho, seed, level in ((0.05, 0, 5), (0.05, 0, 1), (0.05, 1, 5), (0.3, 0, 5))
    )
    x = plain.train.batch(rows).x
    assert not torch.equal(x, weak.train.batch(rows).x) and not torch.equal(x, other.train.batch(rows).x)
    assert torch.equal(plain.test.batch(rows).x, other.test.batch(rows).x), "one test set for all seeds and rho"
    assert torch.equal(plain.test.batch(rows).x, rare.test.batch(rows).x)
    same = plain.truth["train"].bias == rare.truth["train"].bias
    assert torch.equal(x[same[rows, 0]], rare.train.batch(rows).x[same[rows, 0]]), "an aligned picture is the same"
    with pytest.raises(Misuse, match="severity"):
        cifar.load_ccifar(there, 0.05, 0, severity=6)


def test_the_commands_tell_how_far_the_pictures_are(there: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from debiaser.cli.runs import loaded
    from debiaser.paper.spec import new_spec

    loaded(new_spec("ccifar", "vanilla"), there)
    assert re.search(r"corrupting CIFAR-10, train: 450 images", capsys.readouterr().err)


def test_a_run_from_end_to_end(there: Path, tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="ResNet-18 needs the extra `models`: this test did not run")
    from debiaser.paper.experiment import run
    from debiaser.paper.spec import new_spec

    done = run(new_spec("ccifar", "pgd", rho=0.05, epochs=1), tmp_path / "runs", there)
    assert done.result["rows"]["train"] == 450 and done.result["rows"]["conflicting"] == 20
    assert 0 <= done.result["metrics"]["group_average"] <= 100 and done.result["bias_name"] == "corruption"
    spec = new_spec("cifar10", "vanilla", epochs=1, net="simconv1")
    natural = run(spec, tmp_path / "runs", there)
    assert natural.result["rho"] is None and natural.result["metrics"]["conflicting"] is None
    assert run(spec, tmp_path / "runs", there).resumed, "a run without rho is found again"


def test_a_run_starts_from_the_weights_that_are_named(there: Path, tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="ResNet-18 needs the extra `models`: this test did not run")
    from safetensors.torch import load_file, save_file

    from debiaser.paper.experiment import run
    from debiaser.paper.spec import new_spec

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
    assert done.result["spec"]["weights"] == str(folder) and f"--weights {folder}" in command(done.result)
    save_file({**begun, name: begun[name] + 1}, folder / "model.safetensors")
    assert new_spec("ccifar", "vanilla", **words).key != spec.key, "other weights in the same folder, another run"


def test_another_augmentation_is_another_run(there: Path, tmp_path: Path) -> None:
    from debiaser.paper.experiment import run
    from debiaser.paper.spec import new_spec

    words = {"rho": 0.05, "epochs": 1, "net": "simconv1"}
    spec, usual = new_spec("ccifar", "vanilla", augment="paper", **words), new_spec("ccifar", "vanilla", **words)
    assert spec.key != usual.key and "augment" not in usual.plain()
    varied, as_usual = (run(each, tmp_path / "runs", there) for each in (spec, usual))
    assert "--augment paper" in command(varied.result) and "--augment" not in command(as_usual.result)
    losses = [(each.folder / "history.csv").read_text().splitlines()[1].split(",")[4] for each in (varied, as_usual)]
    assert losses[0] != losses[1], "the pictures were varied otherwise"
    with pytest.raises(Misuse, match="unknown augmentation 'much'; known: paper, "):
        new_spec("ccifar", "vanilla", augment="much")
    with pytest.raises(Misuse, match="only pictures can be varied"):
        new_spec("civilcomments", "vanilla", augment="paper")


def test_networks_that_have_no_weights_say_so_before_anything_is_loaded() -> None:
    from debiaser.paper.spec import new_spec

    with pytest.raises(Misuse, match="unknown option of simconv1 'weights'; known: channels"):
        new_spec("cmnist", "pgd", weights="somewhere")


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
    from debiaser.paper.experiment import published_number
    from debiaser.paper.spec import new_spec

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


def test_natural_sets_have_no_rho() -> None:
    from debiaser.paper.spec import new_spec

    spec = new_spec("cifar10", "jtt")
    assert spec.rho is None and "rho" not in spec.key
    with pytest.raises(Misuse, match="cifar10 has no rho"):
        new_spec("cifar10", "pgd", rho=0.1)


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
