"""BAR, BFFHQ and CelebA from small files in their authors' layouts, and BAR from the real ones."""

import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import layouts
import web_site
from debiaser.data.archives import FormatError, open_bundle
from debiaser.data.benchmarks import bar, bffhq, celeba, gallery
from debiaser.data.benchmarks.published import FOLDER_SETS
from debiaser.data.cache import user_cache
from debiaser.data.fetch import Patience, Web
from debiaser.data.sources import FolderSet
from debiaser.data.split import Benchmark
from debiaser.errors import Misuse, Problem
from debiaser.learn.encoders import Encoder
from debiaser.paper.experiment import as_images, features_of
from debiaser.paper.experiment import load as load_spec
from debiaser.paper.spec import new_spec
from layouts import write_folder, write_tar, write_zip
from web_site import Site

WRITERS: dict[str, Callable[[layouts.Content, Path], Path]] = {
    "folder": lambda content, at: write_folder(content, at),
    "tar": lambda content, at: write_tar(content, at.with_name(f"{at.name}.tar")),
    "tar.gz": lambda content, at: write_tar(content, at.with_name(f"{at.name}.tar.gz"), "w:gz"),
    "zip": lambda content, at: write_zip(content, at.with_name(f"{at.name}.zip"), inside="top/"),
}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("DEBIASER_DATA", raising=False)


def sizes(benchmark: Benchmark) -> tuple[int, int, int]:
    return len(benchmark.train), len(benchmark.valid), len(benchmark.test)


def pixels(benchmark: Benchmark, part: str = "train") -> torch.Tensor:
    split = getattr(benchmark, part)
    return torch.cat([batch.x for batch in split.batches(7)])


# --- BAR ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", WRITERS)
def test_bar_from_every_form(form: str, tmp_path: Path) -> None:
    WRITERS[form](layouts.bar(), tmp_path / "bar")
    b = bar.load(tmp_path, None, 0, partial=True, size=32)
    assert sizes(b) == (66, 6, 18) and b.classes[5] == "pole vaulting"
    assert Counter(b.valid.y.tolist()) == dict.fromkeys(range(6), 1), "a tenth of each class"
    assert (b.truth["train"].conflicting(b.train.y) == -1).all()
    assert (b.truth["test"].conflicting(b.test.y) == 1).all()
    batch = b.test.batch(torch.tensor([17, 0]))
    assert batch.x.shape == (2, 3, 32, 32) and batch.x.min() >= 0 and batch.x.max() <= 1
    assert batch.y.tolist() == [5, 0]


def test_bar_in_detail(tmp_path: Path) -> None:
    write_folder(layouts.bar(), tmp_path / "bar")
    b, same, other = (
        bar.load(tmp_path, None, seed, noise=noise, partial=True) for seed, noise in ((0, 0), (0, 0.5), (1, 0))
    )
    expected = Image.open(tmp_path / "bar/test/pole vaulting_14.jpg").resize((224, 224), Image.Resampling.BILINEAR)
    assert np.array_equal((b.test.batch(torch.tensor([17])).x[0] * 255).round().permute(1, 2, 0), expected)
    names = {part: tuple(getattr(b, part).read.names) for part in ("train", "valid")}
    assert [bar.CLASSES.index(Path(name).stem.rpartition("_")[0]) for name in names["train"]] == b.train.y.tolist()
    assert names["valid"] == tuple(same.valid.read.names) != tuple(other.valid.read.names), "drawn by the seed"
    assert len({*names["train"], *names["valid"]}) == 72
    assert (
        15 < same.truth["train"].flipped(same.train.y).sum() < 51 and not same.truth["test"].flipped(same.test.y).any()
    )
    for size in (4, 5000):
        with pytest.raises(Misuse, match="size must lie between 8 and 2048"):
            bar.load(tmp_path, None, 0, partial=True, size=size)


def test_bar_says_what_is_wrong(tmp_path: Path) -> None:
    counts = bar.counted((12,) * 6, (3,) * 6)
    folder = write_folder(layouts.bar(), tmp_path / "bar")
    bar.index(open_bundle(folder, tmp_path), counts)
    (folder / "train" / "racing_7.jpg").unlink()
    with pytest.raises(FormatError, match="bar holds 11 rows of train/racing where 12 are expected"):
        bar.index(open_bundle(folder, tmp_path), counts)
    (folder / "train" / "pole vaulting_2.jpg").rename(folder / "train" / "vault_2.jpg")
    with pytest.raises(Problem, match=r"'train/vault_2.jpg', which is not named.*github.com/alinlab"):
        bar.load(tmp_path, None, 0, partial=True)


def test_pictures_are_kept_once_for_all_seeds_and_a_large_set_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tar(layouts.bar(), tmp_path / "bar.tar")
    seeds = [bar.load(tmp_path, None, seed, partial=True) for seed in (0, 1)]
    found = [pixels(b, part) for b in seeds for part in ("train", "valid", "test")]
    assert len(list(user_cache("kept").glob("*.npy"))) == 1
    monkeypatch.setattr(gallery, "ROOM", 90 * 224 * 224 * 3)  # one file too many for it
    shutil.rmtree(user_cache("kept"))
    assert all(map(torch.equal, found, [pixels(b, part) for b in seeds for part in ("train", "valid", "test")]))
    assert not user_cache("kept").exists()


def test_small_pictures_are_kept_and_a_damaged_row_is_made_anew(tmp_path: Path) -> None:
    path = write_tar(layouts.bar(), tmp_path / "bar.tar")
    before = pixels(bar.load(tmp_path, None, 0, partial=True, size=32))
    (file,), files = user_cache("kept").glob("*.npy"), 91  # the pictures and a page about them
    assert file.stat().st_size == 128 + files * 32 * 32 * 3
    content = path.read_bytes()
    facts = path.stat()
    path.write_bytes(content[:512] + bytes(1000) + content[1512:])  # the first picture is no longer one
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    again = bar.load(tmp_path, None, 0, partial=True, size=32)
    assert torch.equal(pixels(again), before), "nothing is decoded a second time"
    path.write_bytes(content)
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    kept_bytes = bytearray(file.read_bytes())
    kept_bytes[128 + 20 * 32 * 32 * 3 + 5] ^= 1  # inside train/, which comes after that page and test/
    file.write_bytes(kept_bytes)
    assert torch.equal(pixels(bar.load(tmp_path, None, 0, partial=True, size=32)), before)


def test_a_bad_picture_is_named(tmp_path: Path) -> None:
    folder = write_folder(layouts.bar(), tmp_path / "bar")
    path = folder / "test" / "diving_13.jpg"
    path.write_bytes(path.read_bytes()[:-40])
    b = bar.load(tmp_path, None, 0, partial=True)
    with pytest.raises(Problem, match=r"bar: 'test/diving_13\.jpg' is cut off"):
        pixels(b, "test")
    found = bar.SET.status(tmp_path, partial=True)
    assert found.path is None and "holds 'test/diving_13.jpg', which is cut off" in str(found.problem)
    path.write_bytes(layouts.picture(3) + b"a camera's own words")
    assert bar.SET.status(tmp_path, partial=True).path, "more behind the end is no damage"


def test_the_real_bar(real_data: Path) -> None:
    if bar.SET.status(real_data, thorough=False).path is None:
        pytest.skip("BAR is not here: this test did not run")
    b = bar.load(real_data, None, 0)
    assert sizes(b) == (1746, 195, 654)
    x = b.train.batch(torch.arange(0, 1746, 200)).x
    assert x.shape == (9, 3, 224, 224) and x.std() > 0.1
    assert bar.SET.status(real_data).path and b.test.y.bincount().tolist() == [105, 159, 42, 132, 85, 131]


# --- BFFHQ ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", WRITERS)
def test_bffhq_from_every_form(form: str, tmp_path: Path) -> None:
    WRITERS[form](layouts.bffhq(), tmp_path / "bffhq")
    b = bffhq.load(tmp_path, 0.005, 0, partial=True, size=64)
    assert sizes(b) == (24, 4, 4)
    assert b.truth["train"].conflicting(b.train.y).sum() == 4
    assert b.train.y.tolist() == [0] * 10 + [1] * 10 + [0] * 2 + [1] * 2
    assert b.test.y.tolist() == [0, 1, 0, 1] and b.truth["test"].bias[:, 0].tolist() == [0, 0, 1, 1]
    assert pixels(b).shape == (24, 3, 64, 64)


def test_bffhq_either_number_can_be_the_target(tmp_path: Path) -> None:
    write_folder(layouts.bffhq(), tmp_path / "bffhq")
    first, second = (bffhq.load(tmp_path, 0.005, 0, partial=True, target=each) for each in ("first", "second"))
    for part in ("train", "valid", "test"):
        assert torch.equal(getattr(first, part).y, second.truth[part].bias[:, 0])
        assert torch.equal(getattr(second, part).y, first.truth[part].bias[:, 0])
    assert first.attributes == ("gender",) and second.attributes == ("age",) and "D11" in first.notes[0]
    with pytest.raises(Misuse, match="unknown target of bffhq 'age'; known: first, second"):
        bffhq.load(tmp_path, 0.005, 0, partial=True, target="age")


def test_bffhq_bad_input(tmp_path: Path) -> None:
    folder = write_folder(layouts.bffhq(), tmp_path / "bffhq")
    with pytest.raises(Problem, match="holds 24 rows of train where 19,200 are expected"):
        bffhq.load(tmp_path, 0.005, 0)
    with pytest.raises(Problem, match=r"no folder 1pct; there: 0\.5pct"):
        bffhq.load(tmp_path, 0.01, 0, partial=True)
    (folder / "0.5pct/align/0/0_0_0.png").rename(folder / "0.5pct/align/0/0_0_1.png")
    with pytest.raises(Problem, match=r"'0\.5pct/align/0/0_0_1\.png', whose numbers do not fit its folder"):
        bffhq.load(tmp_path, 0.005, 0, partial=True)
    (folder / "valid/0_0_0.png").rename(folder / "valid/face.png")
    with pytest.raises(Problem, match=r"'valid/face\.png', which is not named"):
        bffhq.load(tmp_path, 0.005, 0, partial=True)
    (folder / "valid/face.png").unlink()
    for each in (folder / "test").iterdir():
        each.unlink()
    with pytest.raises(Problem, match="has no pictures in test/"):
        bffhq.load(tmp_path, 0.005, 0, partial=True)


# --- CelebA ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("commas", [False, True])
@pytest.mark.parametrize("form", WRITERS)
def test_celeba_from_every_form(form: str, commas: bool, tmp_path: Path) -> None:
    WRITERS[form](layouts.celeba(commas), tmp_path / "celeba")
    b = celeba.load(tmp_path, None, 0, partial=True)
    assert sizes(b) == (6, 2, 2)
    assert b.train.y.tolist() == [1, 0, 1, 0, 1, 0] and b.classes == ("not Blond_Hair", "Blond_Hair")
    # the blond are mostly not male, so that is what goes with them: the blond man and the other woman conflict
    assert b.attributes == ("not Male",) and b.truth["train"].bias[:, 0].tolist() == [1, 0, 1, 0, 0, 1]
    assert b.truth["train"].conflicting(b.train.y).tolist() == [0, 0, 0, 0, 1, 1]
    assert pixels(b, "test").shape == (2, 3, 224, 224)


def test_celeba_as_the_two_settings_see_it(tmp_path: Path) -> None:
    folder = write_folder(layouts.celeba(), tmp_path / "celeba")
    whole = Image.open(folder / "img_align_celeba/000001.jpg")
    square = whole.crop((0, 20, 178, 198)).resize((224, 224), Image.Resampling.BILINEAR)
    tall = whole.resize((224, 274), Image.Resampling.BILINEAR)
    for crop, expected in (("square", square), ("whole", tall)):
        x = celeba.load(tmp_path, None, 0, partial=True, crop=crop).train.batch(torch.tensor([0])).x[0]
        assert np.array_equal((x * 255).round().permute(1, 2, 0), expected), crop
    with pytest.raises(Misuse, match="crop 'round'; known: square, whole"):
        celeba.load(tmp_path, None, 0, partial=True, crop="round")


def test_celeba_as_it_is_downloaded(tmp_path: Path) -> None:
    """The pictures in their own zip, the lists loose, in folders of their own as on the authors' drive."""
    content = layouts.celeba()
    pictures = {name: data for name, data in content.items() if name.endswith(".jpg")}
    write_zip(pictures, tmp_path / "celeba/Img/img_align_celeba.zip")
    write_folder({f"Anno/{n}": d for n, d in content.items() if n.endswith(".txt")}, tmp_path / "celeba")
    assert pixels(celeba.load(tmp_path, None, 0, partial=True, size=48)).shape == (6, 3, 48, 48)


def test_celeba_other_attributes(tmp_path: Path) -> None:
    write_folder(layouts.celeba(), tmp_path / "celeba")
    b = celeba.load(tmp_path, None, 0, partial=True, target="Smiling", bias="5_o_Clock_Shadow")
    assert b.train.y.tolist() == [1, 0, 0, 1, 1, 1] and b.classes[1] == "Smiling"
    for options in ({"target": "Beard"}, {"bias": "Beard"}):
        told = r"list_attr_celeba has no attribute 'Beard'; it has 5_o_Clock_Shadow, Blond_Hair, Male, Smiling"
        with pytest.raises(Misuse, match=told):
            celeba.load(tmp_path, None, 0, partial=True, **options)
    with pytest.raises(Misuse, match="target and bias are both Male"):
        celeba.load(tmp_path, None, 0, partial=True, target="Male")


@pytest.mark.parametrize(
    ("name", "old", "new", "told"),
    [
        ("list_attr_celeba.txt", "000002.jpg  1 -1", "000002.jpg -1", "something else than -1, 1 for 000002.jpg"),
        ("list_attr_celeba.txt", "000002.jpg  1", "000002.jpg  1 1", "is not a list of numbers"),
        ("list_attr_celeba.txt", "000002.jpg  1", "000002.jpg  x", "something else than -1, 1 for 000002.jpg"),
        ("list_eval_partition.txt", "000007.jpg 1", "000007.jpg 3", "something else than 0, 1, 2 for 000007.jpg"),
        ("list_eval_partition.txt", "000007.jpg 1\n", "", "lists other pictures"),
    ],
)
def test_celeba_lists_that_are_wrong(name: str, old: str, new: str, told: str, tmp_path: Path) -> None:
    folder = write_folder(layouts.celeba(), tmp_path / "celeba")
    text = (folder / name).read_text()
    assert old in text
    (folder / name).write_text(text.replace(old, new, 1))
    with pytest.raises(Problem, match=told) as caught:
        celeba.load(tmp_path, None, 0, partial=True)
    assert "list_" in str(caught.value)


def test_a_split_without_rows_is_told(tmp_path: Path) -> None:
    folder = write_folder(layouts.celeba(), tmp_path / "celeba")
    partition = folder / "list_eval_partition.txt"
    partition.write_text(partition.read_text().replace(" 2\n", " 1\n"))
    with pytest.raises(Problem, match="celeba holds no rows of test"):
        load_spec(new_spec("celeba", "vanilla", options=["partial=true"]), tmp_path)


def test_celeba_says_what_is_missing(tmp_path: Path) -> None:
    folder = write_folder(layouts.celeba(), tmp_path / "celeba")
    with pytest.raises(Problem, match="holds 6 rows of train where 162,770 are expected"):
        celeba.load(tmp_path, None, 0)
    (folder / "img_align_celeba/000004.jpg").unlink()
    with pytest.raises(Problem, match=r"lacks the picture img_align_celeba/000004\.jpg"):
        celeba.load(tmp_path, None, 0, partial=True)
    (folder / "list_eval_partition.txt").unlink()
    with pytest.raises(Problem, match=r"lacks list_eval_partition.txt \(or .csv\)"):
        celeba.load(tmp_path, None, 0, partial=True)


# --- all ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FOLDER_SETS)
def test_what_is_nowhere_says_where_to_get_it(name: str, tmp_path: Path) -> None:
    found = FOLDER_SETS[name].status(tmp_path)
    assert found.path is None and FOLDER_SETS[name].page in str(found.problem)
    assert str(tmp_path / name) in str(found.problem) and FOLDER_SETS[name].contents in str(found.problem)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    content = write_zip(layouts.bar(), tmp_path / "made.zip", inside="BAR-master/").read_bytes()
    short = write_tar(layouts.bar(11), tmp_path / "made.tar.gz", "w:gz").read_bytes()
    yield from web_site.running(Site({"master.zip": content, "short.tar.gz": short, "cut.zip": content[:-3000]}))


def fetchable(site: Site, *names: str) -> FolderSet:
    mirrors = tuple(Web((site.url(name),), local=True) for name in names)
    return replace(bar.SET, mirrors=mirrors, counts=bar.counted((12,) * 6, (3,) * 6), patience=Patience(attempts=1))


def test_fetching_keeps_what_is_right(site: Site, tmp_path: Path) -> None:
    root = tmp_path / "data"
    path = fetchable(site, "short.tar.gz", "cut.zip", "master.zip").fetch(root)
    assert path == root / "bar.zip" and fetchable(site, "cut.zip").fetch(root) == path, "what is here is not fetched"
    assert sizes(bar.load(root, None, 0, partial=True)) == (66, 6, 18)
    assert [each.name for each in root.iterdir() if not each.name.endswith(".lock")] == ["bar.zip"]


def test_fetching_leaves_nothing_that_is_wrong(site: Site, tmp_path: Path) -> None:
    root = tmp_path / "data"
    with pytest.raises(Problem, match=r"holds 11 rows of train/climbing.*cut off.*alinlab/BAR and put its train/"):
        fetchable(site, "short.tar.gz", "cut.zip").fetch(root)
    assert not [each for each in root.rglob("*") if each.is_file() and not each.name.endswith(".lock")]


def test_features_are_made_once_for_all_seeds(tmp_path: Path) -> None:
    write_tar(layouts.bar(), tmp_path / "bar.tar")
    asked: list[int] = []

    def colours(x: torch.Tensor) -> torch.Tensor:
        asked.append(len(x))
        return x.float().mean((2, 3))

    encoder = Encoder("colours", "image", 16, 3, "colours", torch.nn.Identity(), colours)
    for seed in (0, 1):
        b = bar.load(tmp_path, None, seed, partial=True)
        made = features_of(b, encoder)
        for part in ("train", "valid", "test"):
            gallery = getattr(b, part).read.resized(16)
            rows = torch.tensor([4, 0])
            assert torch.equal(getattr(made, part).batch(rows).x, gallery.pixels(rows).float().mean((2, 3)))
        shown = as_images(made.train, np.array([3]))
        assert np.array_equal(shown, as_images(b.train, np.array([3]))) and shown.shape == (1, 112, 112, 3)
    assert sum(asked) == 90


def test_commands(command, tmp_path: Path) -> None:
    write_tar(layouts.bar(), tmp_path / "bar.tar")
    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "DEBIASER_DATA": str(tmp_path)}
    done = command("data", "check", "bar", "--option", "partial=true", "--json", env=cache)
    assert done.returncode == 0, done.stderr
    assert done.last_json["splits"]["test"]["per_class"] == [3] * 6
    refused = command("data", "check", "bar", env=cache)
    assert refused.returncode == 1 and "holds 12 rows of train/climbing where 326" in refused.stderr
    assert len(refused.stderr.strip().splitlines()) == 1
    show = command("data", "show", "bar", "--option", "partial=true", "--out", "b.png", env=cache)
    assert show.returncode == 0 and Image.open(tmp_path / "b.png").size[0] > 100
