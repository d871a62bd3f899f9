"""The benchmarks that are files, from small ones in their authors' layouts, and from the real ones where they are."""

import csv
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import layouts
import web_site
from debiaser.data.archives import open_bundle
from debiaser.data.benchmarks import civilcomments, folder_sets, gallery
from debiaser.data.benchmarks.civilcomments import Tokens
from debiaser.data.benchmarks.image_sets import (
    ACTIONS,
    BAR,
    FAIRFACE,
    WATERBIRDS,
    counted,
    index_bar,
    load_bar,
    load_bffhq,
    load_celeba,
    load_fairface,
    load_waterbirds,
)
from debiaser.data.cache import user_cache
from debiaser.data.fetch import Patience, Web
from debiaser.data.sources import FolderSet
from debiaser.data.split import Benchmark
from debiaser.errors import Misuse, Problem
from debiaser.learn.encoders import Encoder
from debiaser.paper.experiment import accuracies, as_images, draw, features_of, run
from debiaser.paper.experiment import load as load_spec
from debiaser.paper.spec import new_spec
from debiaser.report.tables import summary_rows
from layouts import IDENTITIES, write_folder, write_tar, write_zip
from web_site import Site

WRITERS: dict[str, Callable[[layouts.Content, Path], Path]] = {
    "folder": lambda content, at: write_folder(content, at),
    "tar": lambda content, at: write_tar(content, at.with_name(f"{at.name}.tar")),
    "tar.gz": lambda content, at: write_tar(content, at.with_name(f"{at.name}.tar.gz"), "w:gz"),
    "zip": lambda content, at: write_zip(content, at.with_name(f"{at.name}.zip"), inside="top/"),
}


def as_downloaded(content: layouts.Content, at: Path) -> Path:
    """CelebA's images in their own zip, the lists loose, in folders of their own as on the authors' drive."""
    write_zip({name: data for name, data in content.items() if name.endswith(".jpg")}, at / "Img/img_align_celeba.zip")
    return write_folder({f"Anno/{n}": d for n, d in content.items() if not n.endswith(".jpg")}, at)


every_form = pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("DEBIASER_DATA", raising=False)


def sizes(benchmark: Benchmark) -> tuple[int, int, int]:
    return len(benchmark.train), len(benchmark.valid), len(benchmark.test)


def pixels(benchmark: Benchmark, part: str = "train") -> torch.Tensor:
    return torch.cat([batch.x for batch in getattr(benchmark, part).batches(7)])


# --- BAR ------------------------------------------------------------------------------------------------------------


@every_form
def test_bar_from_every_form(write: Callable[..., Path], tmp_path: Path) -> None:
    write(layouts.bar(), tmp_path / "bar")
    b = load_bar(tmp_path, None, 0, size=32)
    assert sizes(b) == (66, 6, 18) and b.classes[5] == "pole vaulting"
    assert Counter(b.valid.y.tolist()) == dict.fromkeys(range(6), 1), "a tenth of each class"
    assert (b.truth["train"].conflicting(b.train.y) == -1).all()
    assert (b.truth["test"].conflicting(b.test.y) == 1).all()
    batch = b.test.batch(torch.tensor([17, 0]))
    assert batch.x.shape == (2, 3, 32, 32) and batch.x.min() >= 0 and batch.x.max() <= 1
    assert batch.y.tolist() == [5, 0]


def test_bar_in_detail(tmp_path: Path) -> None:
    write_folder(layouts.bar(), tmp_path / "bar")
    b, noisy, other = (load_bar(tmp_path, None, seed, noise=noise) for seed, noise in ((0, 0), (0, 0.5), (1, 0)))
    expected = Image.open(tmp_path / "bar/test/pole vaulting_14.jpg").resize((224, 224), Image.Resampling.BILINEAR)
    assert np.array_equal((b.test.batch(torch.tensor([17])).x[0] * 255).round().permute(1, 2, 0), expected)
    train, valid = b.train.read.names, b.valid.read.names
    assert [ACTIONS.index(Path(name).stem.rpartition("_")[0]) for name in train] == b.train.y.tolist()
    assert valid == noisy.valid.read.names != other.valid.read.names, "drawn by the seed"
    assert len({*train, *valid}) == 72
    flipped = [noisy.truth[part].flipped(getattr(noisy, part).y).sum() for part in ("train", "test")]
    assert 15 < flipped[0] < 51 and flipped[1] == 0
    for size in (4, 5000):
        with pytest.raises(Misuse, match="size must lie between 8 and 2048"):
            load_bar(tmp_path, None, 0, size=size)


def test_bar_says_what_is_wrong(tmp_path: Path) -> None:
    small = replace(BAR, counts=counted((12,) * 6, (3,) * 6))
    folder = write_folder(layouts.bar(), tmp_path / "bar")
    _, counts = index_bar(open_bundle(folder, tmp_path))
    assert small.differences(counts) == "" and small.there(counts, ()) == (90, 90, "")
    (folder / "train" / "racing_7.jpg").unlink()
    _, counts = index_bar(open_bundle(folder, tmp_path))
    assert small.differences(counts) == "train/racing 11 of 12"
    assert small.there(counts, "ab").part == "89 of 90 samples" and small.there(counts, "ac") != small.there(
        counts, "ab"
    )
    path = folder / "test" / "diving_13.jpg"
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(Problem, match=r"bar: 'test/diving_13\.jpg' is cut off"):
        pixels(load_bar(tmp_path, None, 0), "test")
    found = BAR.status(tmp_path)
    assert found.path is None and "holds 'test/diving_13.jpg', which is cut off" in str(found.problem)
    path.write_bytes(layouts.picture(3) + b"a camera's own words")
    assert BAR.status(tmp_path).path == folder, "more behind the end is no damage"
    (folder / "train" / "pole vaulting_2.jpg").rename(folder / "train" / "vault_2.jpg")
    with pytest.raises(Problem, match=r"'train/vault_2.jpg', which is not named.*github.com/alinlab"):
        load_bar(tmp_path, None, 0)


def test_images_are_kept_once_for_all_seeds_and_a_large_set_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tar(layouts.bar(), tmp_path / "bar.tar")
    seeds = [load_bar(tmp_path, None, seed) for seed in (0, 1)]
    found = [pixels(b, part) for b in seeds for part in ("train", "valid", "test")]
    assert len(list(user_cache("kept").glob("*.npy"))) == 1
    monkeypatch.setattr(gallery, "ROOM", 90 * 224 * 224 * 3)  # one file too many for it
    shutil.rmtree(user_cache("kept"))
    assert all(map(torch.equal, found, [pixels(b, part) for b in seeds for part in ("train", "valid", "test")]))
    assert not user_cache("kept").exists()


def test_small_images_are_kept_and_a_damaged_one_is_made_anew(tmp_path: Path) -> None:
    path = write_tar(layouts.bar(), tmp_path / "bar.tar")
    before = pixels(load_bar(tmp_path, None, 0, size=32))
    (file,), files = user_cache("kept").glob("*.npy"), 91  # the images and a page about them
    assert file.stat().st_size == 128 + files * 32 * 32 * 3
    content, facts = path.read_bytes(), path.stat()

    def again(archive: bytes) -> torch.Tensor:
        path.write_bytes(archive)
        os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))
        return pixels(load_bar(tmp_path, None, 0, size=32))

    spoilt = content[:512] + bytes(1000) + content[1512:]  # the first image is no longer one
    assert torch.equal(again(spoilt), before), "nothing is decoded a second time"
    kept_bytes = bytearray(file.read_bytes())
    kept_bytes[128 + 20 * 32 * 32 * 3 + 5] ^= 1  # inside train/, which comes after that page and test/
    file.write_bytes(kept_bytes)
    assert torch.equal(again(content), before)


def test_the_real_bar(real_data: Path) -> None:
    if BAR.status(real_data, thorough=False).path is None:
        pytest.skip("BAR is not here: this test did not run")
    b = load_bar(real_data, None, 0)
    assert sizes(b) == (1746, 195, 654) and b.test.y.bincount().tolist() == [105, 159, 42, 132, 85, 131]
    x = b.train.batch(torch.arange(0, 1746, 200)).x
    assert x.shape == (9, 3, 224, 224) and x.std() > 0.1
    assert BAR.status(real_data).path


# --- BFFHQ ----------------------------------------------------------------------------------------------------------


@every_form
def test_bffhq_from_every_form(write: Callable[..., Path], tmp_path: Path) -> None:
    write(layouts.bffhq(), tmp_path / "bffhq")
    b, second = (load_bffhq(tmp_path, 0.005, 0, size=64, target=each) for each in ("first", "second"))
    assert sizes(b) == (24, 4, 4)
    assert b.truth["train"].conflicting(b.train.y).sum() == 4
    assert b.train.y.tolist() == [0] * 10 + [1] * 10 + [0] * 2 + [1] * 2
    assert b.test.y.tolist() == [0, 1, 0, 1] and b.truth["test"].bias[:, 0].tolist() == [0, 0, 1, 1]
    assert pixels(b).shape == (24, 3, 64, 64)
    for part in ("train", "valid", "test"):
        assert torch.equal(getattr(b, part).y, second.truth[part].bias[:, 0])
        assert torch.equal(getattr(second, part).y, b.truth[part].bias[:, 0])
    assert b.attributes == ("gender",) and second.attributes == ("age",) and "D11" in b.notes[0]


def test_bffhq_bad_input(tmp_path: Path) -> None:
    folder = write_folder(layouts.bffhq(), tmp_path / "bffhq")
    assert "only a part of bffhq was here: 32 of 21,200 samples" in load_bffhq(tmp_path, 0.005, 0).notes
    with pytest.raises(Misuse, match="unknown target of bffhq 'age'; known: first, second"):
        load_bffhq(tmp_path, 0.005, 0, target="age")
    with pytest.raises(Problem, match=r"no folder 1pct; there: 0\.5pct"):
        load_bffhq(tmp_path, 0.01, 0)
    for old, new, told in (
        ("0.5pct/align/0/0_0_0.png", "0.5pct/align/0/0_0_1.png", "whose numbers do not fit its folder"),
        ("valid/0_0_0.png", "valid/face.png", "which is not named"),
    ):
        (folder / old).rename(folder / new)
        with pytest.raises(Problem, match=f"'{new}', {told}"):
            load_bffhq(tmp_path, 0.005, 0)
        (folder / new).rename(folder / old)
    shutil.rmtree(folder / "test")
    with pytest.raises(Problem, match="has no images in test/"):
        load_bffhq(tmp_path, 0.005, 0)


# --- CelebA ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("commas", [False, True])
@pytest.mark.parametrize("write", [*WRITERS.values(), as_downloaded], ids=[*WRITERS, "as downloaded"])
def test_celeba_from_every_form(write: Callable[..., Path], commas: bool, tmp_path: Path) -> None:
    write(layouts.celeba(commas), tmp_path / "celeba")
    b = load_celeba(tmp_path, None, 0)
    assert sizes(b) == (6, 2, 2)
    assert b.train.y.tolist() == [1, 0, 1, 0, 1, 0] and b.classes == ("not Blond_Hair", "Blond_Hair")
    # the blond are mostly not male, so that is what goes with them: the blond man and the other woman conflict
    assert b.attributes == ("not Male",) and b.truth["train"].bias[:, 0].tolist() == [1, 0, 1, 0, 0, 1]
    assert b.truth["train"].conflicting(b.train.y).tolist() == [0, 0, 0, 0, 1, 1]
    assert pixels(b, "test").shape == (2, 3, 224, 224)


def test_celeba_options(tmp_path: Path) -> None:
    folder = write_folder(layouts.celeba(), tmp_path / "celeba")
    whole = Image.open(folder / "img_align_celeba/000001.jpg")
    square = whole.crop((0, 20, 178, 198)).resize((224, 224), Image.Resampling.BILINEAR)
    tall = whole.resize((224, 274), Image.Resampling.BILINEAR)
    for crop, expected in (("square", square), ("whole", tall)):
        x = load_celeba(tmp_path, None, 0, crop=crop).train.batch(torch.tensor([0])).x[0]
        assert np.array_equal((x * 255).round().permute(1, 2, 0), expected), crop
    b = load_celeba(tmp_path, None, 0, target="Smiling", bias="5_o_Clock_Shadow")
    assert b.train.y.tolist() == [1, 0, 0, 1, 1, 1] and b.classes[1] == "Smiling"
    absent = "list_attr_celeba has no attribute 'Beard'; it has 5_o_Clock_Shadow, Blond_Hair, Male, Smiling"
    for options, told in (
        ({"crop": "round"}, "crop 'round'; known: square, whole"),
        ({"target": "Beard"}, absent),
        ({"bias": "Beard"}, absent),
        ({"target": "Male"}, "target and bias are both Male"),
    ):
        with pytest.raises(Misuse, match=told):
            load_celeba(tmp_path, None, 0, **options)


ATTRIBUTES, PARTITION = "list_attr_celeba.txt", "list_eval_partition.txt"


@pytest.mark.parametrize(
    ("name", "old", "new", "told"),
    [
        (ATTRIBUTES, "000002.jpg  1 -1", "000002.jpg -1", "something else than -1, 1 for 000002.jpg"),
        (ATTRIBUTES, "000002.jpg  1", "000002.jpg  1 1", "is not a list of numbers"),
        (ATTRIBUTES, "000002.jpg  1", "000002.jpg  x", "something else than -1, 1 for 000002.jpg"),
        (PARTITION, "000007.jpg 1", "000007.jpg 3", "something else than 0, 1, 2 for 000007.jpg"),
        (PARTITION, "000007.jpg 1\n", "", "lists other 9 images in list_eval_partition than in .* which has 10"),
        (PARTITION, " 0\n", " 1\n", "celeba holds no samples of train"),
        (PARTITION, None, None, r"lacks list_eval_partition.txt \(or .csv\)"),
    ],
)
def test_celeba_says_what_is_wrong(name: str, old: str | None, new: str, told: str, tmp_path: Path) -> None:
    path = write_folder(layouts.celeba(), tmp_path / "celeba") / name
    if old is None:
        path.unlink()
    else:
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new, -1 if old == " 0\n" else 1))
    with pytest.raises(Problem, match=told):
        load_spec(new_spec("celeba", "vanilla"), tmp_path)


def test_a_part_of_celeba_is_taken_and_called_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = write_folder(layouts.celeba(), tmp_path / "celeba")
    whole = load_celeba(tmp_path, None, 0)
    for number in (2, 4, 7):
        (folder / f"img_align_celeba/{number:06d}.jpg").unlink()
    b = load_spec(new_spec("celeba", "vanilla"), tmp_path)
    assert sizes(b) == (4, 1, 2) and b.notes == ("only a part of celeba was here: 7 of 202,599 samples",)
    assert b.there and whole.there and b.there.which != whole.there.which
    lacking = [each.message for each in caplog.records if "lacks" in each.message]
    assert len(lacking) == 1 and "lacks 3 of the images it lists, such as img_align_celeba/000002.jpg" in lacking[0]
    shutil.rmtree(folder)  # now the first of the list: all are training images
    many = {f"{k + 1:06d}.jpg": layouts.ROWS[k % 6] for k in range(40)}
    content = {f"img_align_celeba/{name}": layouts.picture(k, (178, 218)) for k, name in enumerate(many)}
    content["list_attr_celeba.csv"] = layouts.rows_of(
        ("image_id", *layouts.COLUMNS), *((n, *v) for n, v in many.items())
    )
    content["list_eval_partition.csv"] = layouts.rows_of(("image_id", "partition"), *((name, 0) for name in many))
    write_folder(content, folder)
    first, again, other = (load_celeba(tmp_path, None, seed) for seed in (0, 0, 1))
    assert (
        sizes(first) == (32, 4, 4) and "no images of valid: a tenth of its training images stands in" in first.notes[0]
    )
    names = [getattr(first, part).read.names for part in ("train", "valid", "test")]
    assert len({each for part in names for each in part}) == 40
    assert again.test.read.names == first.test.read.names != other.test.read.names


def test_runs_on_parts_are_runs_of_their_own(tmp_path: Path) -> None:
    folder = write_folder(layouts.waterbirds(), tmp_path / "waterbirds")
    spec = new_spec("waterbirds", "vanilla", net="simconv1", options=["size=28"], epochs=1)
    first, again = (run(spec, tmp_path / "runs", tmp_path) for _ in range(2))
    assert again.resumed and first.folder == again.folder and first.folder.name != spec.key
    assert first.result["there"] == {"samples": 24, "of": 11788}
    assert "only a part of waterbirds was here: 24 of 11,788 samples" in first.result["notes"]
    assert {"weighted_average", "valid_worst_group", "worst_group"} <= set(first.result["metrics"])
    assert summary_rows([first.result])[0]["label"] == "Vanilla, on 24 of 11,788 samples"
    next(folder.glob("188*/*.jpg")).unlink()
    assert not run(spec, tmp_path / "runs", tmp_path).resumed, "another part"


# --- Waterbirds and FairFace ----------------------------------------------------------------------------------------


@every_form
def test_waterbirds_from_every_form(write: Callable[..., Path], tmp_path: Path) -> None:
    write(layouts.waterbirds(), tmp_path / "waterbirds")
    b = load_waterbirds(tmp_path, None, 0, size=32)
    assert sizes(b) == (8, 8, 8) and b.classes == ("landbird", "waterbird") and b.attributes == ("place",)
    assert b.truth["train"].conflicting(b.train.y).tolist() == [0, 0, 0, 0, 0, 0, 1, 1]
    assert pixels(b).shape == (8, 3, 32, 32)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (b",1,0,1,", b",7,0,1,", "something else than 0, 1 for 001.Black"),
        (b",1,0,1,", b",1,5,1,", "something else than 0, 1, 2 for 001.Black"),
        (b"img_filename", b"name", r"is not a list of images .*img_filename"),
        (b"00", b"99", "lacks the image .* and all others that its list names"),
    ],
)
def test_waterbirds_say_what_is_wrong(old: bytes, new: bytes, told: str, tmp_path: Path) -> None:
    path = write_folder(layouts.waterbirds(), tmp_path / "waterbirds") / "metadata.csv"
    path.write_bytes(path.read_bytes().replace(old, new))
    with pytest.raises(Problem, match=told):
        load_waterbirds(tmp_path, None, 0)
    path.unlink()
    with pytest.raises(Problem, match=r"lacks metadata.csv; waterbirds is to be had from"):
        load_waterbirds(tmp_path, None, 0)


@every_form
def test_fairface_by_the_protocol_of_bffhq(write: Callable[..., Path], tmp_path: Path) -> None:
    write(layouts.fairface(), tmp_path / "fairface")
    b, again, other = (load_fairface(tmp_path, 0.005, seed, size=32) for seed in (0, 0, 1))
    counts = {part: (each.target * 2 + each.bias[:, 0]).bincount().tolist() for part, each in b.truth.items()}
    assert counts["train"][0] == counts["train"][3] > counts["train"][1] == counts["train"][2] == 1
    assert len(set(counts["valid"])) == len(set(counts["test"])) == 1
    names = {part: set(getattr(b, part).read.names) for part in ("train", "valid", "test")}
    assert not names["train"] & names["valid"] and all("val/" in name for name in names["test"])
    assert again.train.read.names == b.train.read.names != other.train.read.names
    assert "BFFHQ's protocol on the faces of FairFace" in b.notes[0] and b.classes == ("young", "old")


def real(set_: FolderSet, real_data: Path) -> Path:
    """The folder of real data that has this set; without it, the test says that it did not run."""
    if set_.status(real_data, thorough=False).path is None:
        pytest.skip(f"{set_.name} is not here: this test did not run")
    return real_data


def test_the_real_waterbirds(real_data: Path) -> None:
    b = load_waterbirds(real(WATERBIRDS, real_data), None, 0)
    counts = {}
    for part in ("train", "valid", "test"):
        truth = b.truth[part]
        counts[part] = (truth.target * 2 + truth.bias[:, 0]).bincount().tolist()
    assert counts["train"] == [3498, 184, 56, 1057] and counts["valid"] == [467, 466, 133, 133]
    assert counts["test"] == [2255, 2255, 642, 642] and not b.notes
    assert b.test.batch(torch.arange(0, 5794, 2000)).x.std() > 0.1


def test_the_real_fairface(real_data: Path) -> None:
    b = load_fairface(real(FAIRFACE, real_data), 0.005, 0)
    truth = b.truth["train"]
    assert (truth.target * 2 + truth.bias[:, 0]).bincount().tolist() == [9552, 48, 48, 9552]
    for part in ("valid", "test"):
        assert (b.truth[part].target * 2 + b.truth[part].bias[:, 0]).bincount().tolist() == [250] * 4


# --- CivilComments --------------------------------------------------------------------------------------------------

ROWS = [
    {"comment_text": "you are kind", "split": "train", "toxicity": 0.0, "male": 1.0},
    {"comment_text": 'he said "you",\nthen, left', "split": "train", "toxicity": 0.5, "male": 0.5, "white": 0.9},
    {"comment_text": "they are kind, é", "split": "train", "toxicity": 0.4999999999, "female": 0.49},
    {"comment_text": "", "split": "val", "toxicity": 1.0, "LGBTQ": 0.7},
    {"comment_text": "kind kind kind kind kind kind", "split": "test", "toxicity": 0.1, "white": 1.0},
    {"comment_text": "left", "split": "test", "toxicity": 0.9, "white": 0.6, "black": 0.5},
]
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "you", "are", "kind", "he", "said", "then", "left", '"']
PLACE = "civilcomments_v1.0"


def comments(folder: Path, **options: Any) -> Benchmark:
    return civilcomments.load(folder, None, 0, **options)


@every_form
def test_comments_from_every_form(write: Callable[..., Path], tmp_path: Path) -> None:
    write(layouts.civilcomments(ROWS), tmp_path / PLACE)
    b = comments(tmp_path)
    assert sizes(b) == (3, 1, 2)
    assert b.train.y.tolist() == [0, 1, 0] and b.valid.y.tolist() == [1] and b.test.y.tolist() == [0, 1]
    assert b.attributes == IDENTITIES and b.truth["train"].overlapping
    mentioned = [[IDENTITIES[k] for k in row.nonzero().flatten()] for row in b.truth["train"].bias]
    assert mentioned == [["male"], ["male", "white"], []], "from half of the raters on"
    assert isinstance(b.train.read, Tokens)
    assert b.train.read.comments.texts == [row["comment_text"] for row in ROWS]


def test_tokens_as_the_network_takes_them(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not here: this test did not run")
    made = transformers.BertTokenizerFast(vocab={word: number for number, word in enumerate(WORDS)})
    made.save_pretrained(tmp_path / "tokenizer")
    write_folder(layouts.civilcomments(ROWS), tmp_path / PLACE)
    b, again = (comments(tmp_path, tokenizer=str(tmp_path / "tokenizer"), length=6) for _ in range(2))
    x = b.train.batch(torch.tensor([1, 0])).x
    he, said, quote, you, are, kind = (WORDS.index(word) for word in ("he", "said", '"', "you", "are", "kind"))
    assert x["input_ids"].tolist() == [[2, he, said, quote, you, 3], [2, you, are, kind, 3, 0]]
    assert x["attention_mask"].tolist() == [[1] * 6, [1] * 5 + [0]] and x["input_ids"].dtype == torch.int64
    assert b.valid.batch(torch.tensor([0])).x["input_ids"].tolist() == [[2, 3]], "as long as the longest of the batch"
    assert torch.equal(again.train.batch(torch.tensor([1, 0])).x["input_ids"], x["input_ids"])
    assert len(list(user_cache("kept").glob("*.npy"))) == 1, "one file for all splits, found again"
    (tmp_path / "empty").mkdir()
    without = comments(tmp_path, tokenizer=str(tmp_path / "empty"))
    with pytest.raises(Problem, match=r"tokenizer .*empty is neither a folder of its files"):
        without.train.batch(torch.tensor([0]))


def test_sixteen_groups_by_hand(tmp_path: Path) -> None:
    write_folder(layouts.civilcomments(ROWS), tmp_path / PLACE)
    b = comments(tmp_path)
    says_not_toxic = torch.tensor([[1.0, 0.0]] * 2)
    metrics = accuracies(says_not_toxic, b.test.y, b.truth["test"], b.attributes)
    # groups with samples: white and not toxic (right), white and toxic, black and toxic (both wrong)
    assert metrics["unbiased"] == 50 and metrics["worst_group"] == 0 and metrics["conflicting"] is None
    assert metrics["group_average"] == pytest.approx(100 / 3)
    with pytest.raises(Problem, match="holds texts"):
        draw(b, tmp_path / "x.png")
    with pytest.raises(Misuse, match="length must lie between 3 and 512"):
        comments(tmp_path, length=600)


WHOLE = layouts.civilcomments(ROWS)[civilcomments.FILE]
SPOILT = {
    "split": (WHOLE.replace(b"train,0.5,", b"dev,0.5,"), "a split other than train, val, test, .* comment number 2"),
    "word": (WHOLE.replace(b"train,0.5,", b"train,much,"), "something else than shares of raters .*'much'"),
    "share": (WHOLE.replace(b"train,0.5,", b"train,7,"), "share outside 0 to 1 in its comment number 2"),
    "nan": (WHOLE.replace(b"train,0.5,", b"train,nan,"), "share outside 0 to 1 in its comment number 2"),
    "column": (WHOLE.replace(b"muslim", b"moslem"), "cannot be read .*muslim"),
    "encoding": (WHOLE.replace("é".encode(), b"\xe9"), "cannot be read .*utf-8"),
    "cut in a text": (WHOLE[: WHOLE.index(b"kind, ")], "cannot be read .*EOF inside string"),
    "cut between": (WHOLE[: WHOLE.index(b"kind") + 4], "a split other than"),
}


@pytest.mark.parametrize("case", SPOILT)
def test_bad_comments_are_named(case: str, tmp_path: Path) -> None:
    write_folder({civilcomments.FILE: SPOILT[case][0]}, tmp_path / PLACE)
    with pytest.raises(Problem, match=f"all_data_with_identities.csv .*{SPOILT[case][1]}"):
        comments(tmp_path)


def test_texts_are_those_of_the_csv_module(tmp_path: Path) -> None:
    words = ["a", '"', "\n", ",", "é", "\r\n", "NA"]
    rows = [
        {"comment_text": "".join(words[(k * j) % 7] for j in range(k % 9)), "split": "test", "toxicity": k / 100}
        for k in range(100)
    ]
    path = write_folder(layouts.civilcomments(rows), tmp_path / PLACE) / civilcomments.FILE
    with path.open(newline="") as stream:
        expected = [row["comment_text"] for row in csv.DictReader(stream)]
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes() + b"\r\n\r\n")
    b = comments(tmp_path)
    assert b.test.read.comments.texts == expected and b.test.y.sum() == 50
    path.unlink()
    with pytest.raises(Problem, match=r"lacks all_data_with_identities.csv; civilcomments is to be had from"):
        comments(tmp_path)


# --- all ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", folder_sets())
def test_what_is_nowhere_says_where_to_get_it(name: str, tmp_path: Path) -> None:
    found = folder_sets()[name].status(tmp_path)
    assert found.path is None and folder_sets()[name].page in str(found.problem)
    assert str(tmp_path / name) in str(found.problem) and folder_sets()[name].contents in str(found.problem)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    content = write_zip(layouts.bar(), tmp_path / "made.zip", inside="BAR-master/").read_bytes()
    short = write_tar(layouts.bar(11), tmp_path / "made.tar.gz", "w:gz").read_bytes()
    yield from web_site.running(Site({"master.zip": content, "short.tar.gz": short, "cut.zip": content[:-3000]}))


def fetchable(site: Site, *names: str) -> FolderSet:
    mirrors = tuple(Web((site.url(name),), local=True) for name in names)
    return replace(BAR, mirrors=mirrors, counts=counted((12,) * 6, (3,) * 6), patience=Patience(attempts=1))


def test_fetching_keeps_only_what_is_right(site: Site, tmp_path: Path) -> None:
    root = tmp_path / "data"
    with pytest.raises(Problem, match=r"not whole: train/climbing 11 of 12.*cut off.*alinlab/BAR and put its train/"):
        fetchable(site, "short.tar.gz", "cut.zip").fetch(root)
    assert not [each for each in root.rglob("*") if each.is_file() and not each.name.endswith(".lock")]
    path = fetchable(site, "short.tar.gz", "cut.zip", "master.zip").fetch(root)
    assert path == root / "bar.zip" and fetchable(site, "cut.zip").fetch(root) == path, "what is here is not fetched"
    assert sizes(load_bar(root, None, 0)) == (66, 6, 18)
    assert [each.name for each in root.iterdir() if not each.name.endswith(".lock")] == ["bar.zip"]


def test_features_are_made_once_for_all_seeds(tmp_path: Path) -> None:
    write_tar(layouts.bar(), tmp_path / "bar.tar")
    asked: list[int] = []

    def colours(x: torch.Tensor) -> torch.Tensor:
        asked.append(len(x))
        return x.float().mean((2, 3))

    encoder = Encoder("colours", "image", 16, 3, "colours", torch.nn.Identity(), colours)
    for seed in (0, 1):
        b = load_bar(tmp_path, None, seed)
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
    done = command("data", "check", "bar", "--json", env=cache)
    assert done.returncode == 0, done.stderr
    assert done.last_json["splits"]["test"]["per_class"] == [3] * 6
    told = command("data", "check", "bar", env=cache)
    assert "it is a part: train/climbing 12 of 326" in " ".join(told.stdout.split()), told.stdout
    assert "only a part of bar is here: 90 of 2,595 samples" in told.stderr
    show = command("data", "show", "bar", "--out", "b.png", env=cache)
    assert show.returncode == 0 and Image.open(tmp_path / "b.png").size[0] > 100
