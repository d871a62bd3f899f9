"""CivilComments from a small file in its real layout: splits, identities, tokens, shares of toxic rows, bad input."""

import csv
from pathlib import Path

import pytest
import torch

import layouts
from debiaser.data.benchmarks import civilcomments
from debiaser.data.benchmarks.civilcomments import Tokens
from debiaser.data.cache import user_cache
from debiaser.data.split import Benchmark
from debiaser.errors import Misuse, Problem
from debiaser.paper.experiment import accuracies
from debiaser.paper.samples import draw
from layouts import IDENTITIES, write_folder, write_tar, write_zip

ROWS = [
    {"comment_text": "you are kind", "split": "train", "toxicity": 0.0, "male": 1.0},
    {"comment_text": 'he said "you",\nthen, left', "split": "train", "toxicity": 0.5, "male": 0.5, "white": 0.9},
    {"comment_text": "they are kind, é", "split": "train", "toxicity": 0.4999999999, "female": 0.49},
    {"comment_text": "", "split": "val", "toxicity": 1.0, "LGBTQ": 0.7},
    {"comment_text": "kind kind kind kind kind kind", "split": "test", "toxicity": 0.1, "white": 1.0},
    {"comment_text": "left", "split": "test", "toxicity": 0.9, "white": 0.6, "black": 0.5},
]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [*SPECIAL, "you", "are", "kind", "he", "said", "then", "left", "they", ",", '"']


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("DEBIASER_DATA", raising=False)


@pytest.fixture
def tokenizer(tmp_path: Path) -> str:
    """A folder with a tokenizer of fifteen words."""
    transformers = pytest.importorskip("transformers", reason="transformers is not here: this test did not run")
    made = transformers.BertTokenizerFast(vocab={word: number for number, word in enumerate(WORDS)})
    made.save_pretrained(tmp_path / "tokenizer")
    return str(tmp_path / "tokenizer")


def load(folder: Path, **options: object) -> Benchmark:
    return civilcomments.load(folder, None, 0, partial=True, **options)  # type: ignore[arg-type]


WRITERS = {
    "folder": lambda content, at: write_folder(content, at / "civilcomments_v1.0"),
    "tar": lambda content, at: write_tar(content, at / "civilcomments.tar"),
    "tar.gz": lambda content, at: write_tar(content, at / "civilcomments.tar.gz", "w:gz", inside="data/"),
    "zip": lambda content, at: write_zip(content, at / "civilcomments.zip"),
}


@pytest.mark.parametrize("form", WRITERS)
def test_rows_and_texts_from_every_form(form: str, tmp_path: Path) -> None:
    WRITERS[form](layouts.civilcomments(ROWS), tmp_path)
    b = load(tmp_path)
    assert [len(split) for split in (b.train, b.valid, b.test)] == [3, 1, 2]
    assert b.train.y.tolist() == [0, 1, 0] and b.valid.y.tolist() == [1] and b.test.y.tolist() == [0, 1]
    assert b.attributes == IDENTITIES and b.truth["train"].overlapping
    mentioned = [[IDENTITIES[k] for k in row.nonzero().flatten()] for row in b.truth["train"].bias]
    assert mentioned == [["male"], ["male", "white"], []], "from half of the raters on"
    reader = b.train.read
    assert isinstance(reader, Tokens)
    assert [reader.comments.texts[row] for row in reader.rows] == [row["comment_text"] for row in ROWS[:3]]


def test_tokens_as_the_network_takes_them(tmp_path: Path, tokenizer: str) -> None:
    write_folder(layouts.civilcomments(ROWS), tmp_path / "civilcomments")
    b = load(tmp_path, tokenizer=tokenizer, length=6)
    x = b.train.batch(torch.tensor([1, 0])).x
    he, said, quote, you, kind = (WORDS.index(word) for word in ("he", "said", '"', "you", "kind"))
    assert x["input_ids"].tolist() == [[2, he, said, quote, you, 3], [2, you, WORDS.index("are"), kind, 3, 0]]
    assert x["attention_mask"].tolist() == [[1] * 6, [1] * 5 + [0]] and x["input_ids"].dtype == torch.int64
    assert b.valid.batch(torch.tensor([0])).x["input_ids"].tolist() == [[2, 3]], "as long as the longest of the batch"
    again = load(tmp_path, tokenizer=tokenizer, length=6)
    assert torch.equal(again.train.batch(torch.tensor([1, 0])).x["input_ids"], x["input_ids"])
    assert len(list(user_cache("kept").glob("*.npy"))) == 1, "one file for all splits, found again"


def test_a_missing_tokenizer_is_told_only_when_it_is_needed(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="transformers is not here: this test did not run")
    write_folder(layouts.civilcomments(ROWS), tmp_path / "civilcomments")
    (tmp_path / "empty").mkdir()
    b = load(tmp_path, tokenizer=str(tmp_path / "empty"))
    assert len(b.train) == 3
    with pytest.raises(Problem, match=r"tokenizer .*empty is neither a folder of its files"):
        b.train.batch(torch.tensor([0]))


def test_sixteen_groups_by_hand(tmp_path: Path) -> None:
    write_folder(layouts.civilcomments(ROWS), tmp_path / "civilcomments")
    b = load(tmp_path)
    says_not_toxic = torch.tensor([[1.0, 0.0]] * 2)
    found = accuracies(says_not_toxic, b.test.y, b.truth["test"], b.attributes)
    # groups with rows: white and not toxic (right), white and toxic, black and toxic (both wrong)
    assert found["unbiased"] == 50 and found["worst_group"] == 0 and found["conflicting"] is None
    assert found["group_average"] == pytest.approx(100 / 3)


@pytest.mark.parametrize(
    ("column", "value", "told"),
    [
        ("split", "dev", r"a split other than train, val, test, or .* in its comment number 2"),
        ("toxicity", "much", "something else than shares of raters .*'much'"),
        ("black", "7", "share outside 0 to 1 in its comment number 2"),
        ("black", "nan", "share outside 0 to 1 in its comment number 2"),
    ],
)
def test_bad_cells_are_named(column: str, value: str, told: str, tmp_path: Path) -> None:
    rows = [dict(row) for row in ROWS]
    rows[1][column] = value
    write_folder(layouts.civilcomments(rows), tmp_path / "civilcomments")
    with pytest.raises(Problem, match=f"all_data_with_identities.csv .*{told}"):
        load(tmp_path)


def test_bad_files_are_named(tmp_path: Path) -> None:
    folder = write_folder(layouts.civilcomments(ROWS), tmp_path / "civilcomments")
    path = folder / civilcomments.FILE
    whole = path.read_bytes()
    with pytest.raises(Problem, match="holds 3 rows of train where 269,038 are expected"):
        civilcomments.load(tmp_path, None, 0)
    for spoilt, told in (
        (whole.replace(b"muslim", b"moslem"), "cannot be read: .*muslim"),
        (whole.replace("é".encode(), b"\xe9"), "cannot be read: .*utf-8"),
        (whole[: whole.index(b"kind, ")], "cannot be read: .*EOF inside string"),
        (whole[: whole.index(b"kind") + 4], "a split other than"),
    ):
        path.write_bytes(spoilt)
        with pytest.raises(Problem, match=told):
            load(tmp_path)
    path.write_bytes(b"\xef\xbb\xbf" + whole + b"\r\n\r\n")
    reader = load(tmp_path).test.read
    assert [reader.comments.texts[row] for row in reader.rows] == [row["comment_text"] for row in ROWS[4:]]
    path.unlink()
    with pytest.raises(Problem, match=r"lacks all_data_with_identities.csv; civilcomments is to be had from"):
        load(tmp_path)


def test_options_that_cannot_be_meant(tmp_path: Path) -> None:
    with pytest.raises(Misuse, match="length must lie between 3 and 512"):
        load(tmp_path, length=600)


def test_texts_have_no_pictures(tmp_path: Path) -> None:
    write_folder(layouts.civilcomments(ROWS), tmp_path / "civilcomments")
    with pytest.raises(Problem, match="holds texts"):
        draw(load(tmp_path), tmp_path / "x.png")


def test_texts_are_those_of_the_csv_module(tmp_path: Path) -> None:
    words = ["a", '"', "\n", ",", "é", "\r\n", "NA"]
    rows = [
        {"comment_text": "".join(words[(k * j) % 7] for j in range(k % 9)), "split": "test", "toxicity": k / 100}
        for k in range(100)
    ]
    folder = write_folder(layouts.civilcomments(rows), tmp_path / "civilcomments")
    with (folder / civilcomments.FILE).open(newline="") as stream:
        expected = [row["comment_text"] for row in csv.DictReader(stream)]
    b = load(tmp_path)
    assert b.test.read.comments.texts == expected and b.test.y.sum() == 50
