"""A person's own data is read whatever its shape; what is odd is told in one line or listed, and the rest is read."""

import csv
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from debiaser.data.own import Columns, OwnData, read_own
from debiaser.data.own.rows import as_labels
from debiaser.errors import Misuse, Problem

RNG = np.random.default_rng(0)


def picture(path: Path, size: tuple[int, int] = (12, 10)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(RNG.integers(0, 256, (size[1], size[0], 3), np.uint8)).save(path)
    return path


def folder(root: Path, classes: Iterable[str] = ("cat", "dog"), count: int = 20) -> Path:
    for name in classes:
        for number in range(count):
            picture(root / name / f"{number}.png")
    return root


def table(
    path: Path, header: list[str], rows: list[list[object]], delimiter: str = ",", encoding: str = "utf-8"
) -> Path:
    with path.open("w", encoding=encoding, newline="") as stream:
        csv.writer(stream, delimiter=delimiter).writerows([header, *rows])
    return path


def text(number: int) -> str:
    return f"this is review number {number}, long enough to read like text"


def reviews(n: int = 40) -> list[list[object]]:
    return [[text(row), "good" if row % 2 else "bad"] for row in range(n)]


@pytest.fixture
def read(tmp_path: Path):
    def run(source: Path | str, columns: Columns | None = None, **options: object) -> OwnData:
        return read_own(source, columns or Columns(), cache=tmp_path / "cache", **options)

    return run


def test_a_folder_of_classes(tmp_path: Path, read) -> None:
    root = folder(tmp_path / "data")
    picture(root / "cat" / "deeper" / "x.PNG")
    (root / "cat" / "notes.txt").write_text("x")
    (root / "cat" / ".DS_Store").write_text("x")
    picture(root / "loose.png")
    found = read(root)
    assert found.kind == "image" and found.classes == ("cat", "dog") and len(found) == 41
    assert "cat/deeper/x.PNG" in found.ids and found.y.tolist() == [0] * 21 + [1] * 20
    assert found.inputs.read(torch.arange(3), 16).shape == (3, 3, 16, 16)
    assert [len(found.rows(split)) for split in ("train", "valid", "test")] == [37, 4, 0]
    assert "not images" in (notes := " ".join(found.notes)) and "outside any class" in notes
    assert set(found.columns) >= {"extension"} and not found.excluded
    tested = read(root, need_test=True)
    assert len(tested.rows("test")) == 8 and read(root).identity == found.identity
    assert (read(root, seed=1).split != found.split).any() and (read(root).split == found.split).all()


@pytest.mark.parametrize("valid", ["valid", "val", "validation", "dev", "Val"])
def test_given_splits_are_kept(tmp_path: Path, read, valid: str) -> None:
    for split in ("train", valid, "test"):
        folder(tmp_path / "data" / split, count=3)
    found = read(tmp_path / "data")
    expected = {"train": "train", valid: "valid", "test": "test"}
    assert found.classes == ("cat", "dog")
    assert all(split == expected[name.split("/")[0]] for name, split in zip(found.ids, found.split, strict=True))


def test_unreadable_pictures_are_listed_and_the_rest_is_read(tmp_path: Path, read) -> None:
    root = folder(tmp_path / "data")
    (root / "cat" / "zero.jpg").touch()
    (root / "cat" / "folder.jpg").mkdir()
    (root / "dog" / "text.png").write_text("no image")
    whole = (root / "dog" / "0.png").read_bytes()
    (root / "dog" / "half.png").write_bytes(whole[: len(whole) // 2])
    found = read(root)
    assert {each.id for each in found.excluded} == {"cat/zero.jpg", "cat/folder.jpg", "dog/text.png", "dog/half.png"}
    assert {each.kind for each in found.excluded} == {"unreadable"} and len(found) == 40


def test_hostile_names_stay_text(tmp_path: Path, read) -> None:
    names = ["<script>alert(1)</script>".replace("/", "∕"), 'quo"te', "new\nline", "🐈", "x.."]
    root = folder(tmp_path / "data", names, 3)
    odd = root / "🐈" / "caf\udce9.png"  # bytes that are no UTF-8
    picture(odd)
    found = read(root)
    assert set(found.classes) == set(names) and len(found) == 16
    for name in (*found.ids, *found.paths):
        name.encode()


def test_sixteen_bits_are_said(tmp_path: Path, read) -> None:
    root = folder(tmp_path / "data")
    Image.fromarray(RNG.integers(0, 60_000, (9, 9), np.uint16)).save(root / "cat" / "deep.png")
    assert any("1 images of more than 8 bits" in note for note in read(root).notes)


def test_folders_that_cannot_be_used_are_told(tmp_path: Path, read) -> None:
    (tmp_path / "empty").mkdir()
    lonely = folder(tmp_path / "lonely")
    picture(lonely / "fox" / "1.png")
    picture(tmp_path / "flat" / "a.png")
    table(tmp_path / "flat" / "labels.csv", ["a"], [[1]])
    for name in ("a/0.jpg", "a/1.jpg", "b/0.jpg", "b/1.jpg"):
        (tmp_path / "bad" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "bad" / name).touch()
    (tmp_path / "x.zip").touch()
    for source, told in (
        (tmp_path / "empty", "no images"),
        (folder(tmp_path / "one", ["cat"]), "only one class"),
        (lonely, "'fox' cannot be split: a single sample"),
        (tmp_path / "flat", r"directly in.*labels\.csv"),
        (tmp_path / "bad", "none of 4 images"),
        (tmp_path / "nowhere.csv", "no file or folder"),
        (tmp_path / "x.zip", "cannot tell what"),
    ):
        with pytest.raises(Problem, match=told):
            read(source)
    with pytest.raises(Misuse, match="no columns"):
        read(lonely, Columns(label="x"))


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252"])
def test_tables_in_every_dialect(tmp_path: Path, read, delimiter: str, encoding: str) -> None:
    rows = [*reviews(), ['a "quoted" café, with; all\tof | them\nand two lines', "good"]]
    found = read(table(tmp_path / "t.csv", ["text", "label"], rows, delimiter, encoding))
    assert found.kind == "text" and found.classes == ("bad", "good") and len(found) == 41
    assert found.inputs.read(torch.tensor([40, 0])) == [rows[40][0], rows[0][0]]
    assert any("cp1252" in note for note in found.notes) == (encoding == "cp1252")
    assert found.ids[0] == "1" and found.paths[0] == ""


def test_ragged_lines_and_huge_cells(tmp_path: Path, read) -> None:
    """A line with too few or too many cells is left out and told; the others keep their numbers."""
    rows = [*reviews(), ["only one"], [text(1), "good", "too", "many"], ["x " * 5_000_000, "good"], [" ", "bad"]]
    found = read(table(tmp_path / "t.csv", ["text", " label"], rows), Columns(label="label"))
    assert len(found) == 41 and len(found.inputs.texts[40]) == 10_000_000 and found.ids[40] == "43"
    assert found.total == 44 and found.places[40] == 42
    left = [(each.id, each.kind) for each in found.excluded]
    assert left == [("row 41", "unreadable"), ("row 42", "unreadable"), ("44", "unreadable")]
    assert found.excluded[1].reason == "has 4 cells where the first line names 2 columns"


def test_labels_of_every_kind_missing_and_uncertain_ones_left_out(tmp_path: Path, read) -> None:
    for values, classes in (
        (["True", "false"], ("false", "true")),
        (["10", "9"], ("9", "10")),
        (["b", "<i>"], ("<i>", "b")),
    ):
        assert as_labels(values * 10, "label").classes == classes
    edema = ["1.0", "0.0"] * 20 + ["-1.0", "", "nan", "None", "-1"]
    rows = [[text(row), value, "x"] for row, value in enumerate(edema)]
    found = read(table(tmp_path / "t.csv", ["text", "Edema", "Fracture"], rows), Columns(label="Edema"))
    assert found.classes == ("0", "1") and len(found) == 40
    kinds = [each.kind for each in found.excluded]
    assert kinds.count("uncertain label") == 2 and kinds.count("missing label") == 3
    both = [[text(row), value] for row, value in enumerate(["-1", "1"] * 10)]
    found = read(table(tmp_path / "s.csv", ["text", "label"], both))
    assert found.classes == ("-1", "1") and any("taken as a class" in note for note in found.notes)


@pytest.mark.parametrize("option", ["group", "unit"])
def test_a_column_that_looks_like_the_labels_is_not_silently_something_else(tmp_path: Path, read, option: str) -> None:
    rows = [[text(row), row % 2, row % 3] for row in range(40)]
    for other in ("site", "sentiment"):
        path = table(tmp_path / "t.csv", ["words", "label", other], rows)
        with pytest.raises(Misuse, match=f"'label' looks like the labels, not '{other}'; .* --label"):
            read(path, Columns(**{option: "label"}))
        assert read(path, Columns(label=other, **{option: "label"})).classes == ("0", "1", "2")
        assert read(path, Columns(**{option: other})).classes == ("0", "1")


def test_columns_are_found_or_asked_for(tmp_path: Path, read) -> None:
    rows = [[text(row), row % 2, row % 3, f"p{row // 4}"] for row in range(40)]
    path = table(tmp_path / "t.csv", ["words", "a", "b", "patient"], rows)
    with pytest.raises(Problem, match=r"--label: a, b") as asked:
        read(path)
    assert asked.value.exit_code == 1  # data that can be fixed, as the issue lists it
    with pytest.raises(Problem, match=r"no column 'c' \(--label\); known: words, a, b, patient"):
        read(path, Columns(label="c"))
    with pytest.raises(Misuse, match="named twice"):
        read(path, Columns(label="a", group="a"))
    found = read(path, Columns(label="a"))
    assert found.inputs.texts[0] == text(0) and set(found.columns) == {"b", "patient"}
    assert any("'words' was taken as the text" in note for note in found.notes)
    assert any("--unit patient" in note for note in found.notes)
    found = read(path, Columns(label="a", group="b", unit="patient"), need_test=True)
    assert found.group is not None and found.group[:4].tolist() == ["0", "1", "2", "0"]
    assert len(np.unique(found.unit)) == 10
    for unit in np.unique(found.unit):
        assert len(set(found.split[found.unit == unit])) == 1


def test_a_label_with_too_many_values_is_no_label(tmp_path: Path, read) -> None:
    values = [f"v{row % 5000}" for row in range(50_000)]
    with pytest.raises(Problem, match=r"'code' has 5,000 distinct values in 50,000 rows .*probably not a label"):
        as_labels(values, "code")
    assert len(as_labels(values, "the folders", plain=True).classes) == 5000
    rows = [[text(row), row % 40 / 3] for row in range(400)]
    with pytest.raises(Problem, match="fractions"):
        read(table(tmp_path / "f.csv", ["text", "label"], rows))


def test_tables_of_pictures(tmp_path: Path, read) -> None:
    for number in range(20):
        picture(tmp_path / "pictures" / f"{number}.png")
    elsewhere = picture(tmp_path / "elsewhere" / "x.png")
    rows = [[f"pictures/{number}.png", number % 2, number] for number in range(20)] + [[str(elsewhere), 1, 1]]
    missing = [[f"gone/{number}.png", 0, 0] for number in range(5)]
    found = read(table(tmp_path / "t.csv", ["path", "label", "age"], rows + missing))
    assert found.kind == "image" and len(found) == 21 and found.ids[:2] == ["pictures/0.png", "pictures/1.png"]
    said = "5 of 26 paths do not exist: gone/0.png, gone/1.png, gone/2.png and 2 more"
    assert said in found.notes and {each.reason for each in found.excluded} == {"is not there"}
    assert found.columns["age"][:3].tolist() == ["0", "1", "2"] and not found.inputs.failed
    with pytest.raises(Problem, match=r"5 of 5 paths do not exist.*relative to"):
        read(table(tmp_path / "m.csv", ["path", "label"], [[row[0], place % 2] for place, row in enumerate(missing)]))


def test_copies_stay_on_one_side(tmp_path: Path, read) -> None:
    for split in ("train", "test"):
        folder(tmp_path / "data" / split, count=10)
    root = tmp_path / "data"
    (root / "train" / "cat" / "copy.png").write_bytes((root / "test" / "cat" / "0.png").read_bytes())
    (root / "train" / "dog" / "twin.png").write_bytes((root / "train" / "dog" / "0.png").read_bytes())
    found = read(root)
    copies = {("test/cat/0.png", "train/cat/copy.png"): True, ("train/dog/0.png", "train/dog/twin.png"): False}
    assert {each.ids: each.across for each in found.duplicates} == copies
    out = [each for each in found.excluded if each.kind == "duplicate across splits"]
    assert [each.id for each in out] == ["train/cat/copy.png"] and "test/cat/0.png" in found.ids
    twins = [found.ids.index(f"train/dog/{name}.png") for name in ("0", "twin")]
    assert found.unit[twins[0]] == found.unit[twins[1]] and found.split[twins[0]] == found.split[twins[1]]
    assert len(np.unique(found.unit)) == len(found) - 1
    spaced = [*reviews(), [f" {text(0)}".replace(" is ", " \n is  "), "bad"]]  # texts are the same up to white space
    assert [each.ids for each in read(table(tmp_path / "t.csv", ["text", "label"], spaced)).duplicates] == [("1", "41")]


def test_the_split_column(tmp_path: Path, read) -> None:
    rows = [[*row, ("train", "Validation", "test", "")[place // 2 % 4]] for place, row in enumerate(reviews())]
    found = read(table(tmp_path / "t.csv", ["text", "label", "split"], rows), Columns(label="label"))
    assert found.split[:6:2].tolist() == ["train", "valid", "test"] and len(found) == 30
    assert {each.kind for each in found.excluded} == {"missing split"}
    rows[0][2] = "autumn"
    with pytest.raises(Problem, match="autumn"):
        read(table(tmp_path / "t.csv", ["text", "label", "split"], rows), Columns(label="label", split="split"))


def test_parquet_of_texts_and_of_pictures(tmp_path: Path, read) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    truth = [None if row == 5 else row % 2 == 0 for row in range(40)]
    columns = {"text": [text(row) for row in range(40)], "label": truth, "scores": [[row] for row in range(40)]}
    parquet.write_table(pyarrow.table(columns), tmp_path / "t.parquet")
    found = read(tmp_path / "t.parquet")
    assert found.classes == ("false", "true") and len(found) == 39 and any("scores" in note for note in found.notes)
    contents = [{"bytes": picture(tmp_path / "x.png").read_bytes(), "path": None} for _ in range(20)]
    both = pyarrow.table({"image": contents, "label": [row % 2 for row in range(20)]})
    parquet.write_table(both, tmp_path / "p.parquet", row_group_size=3)
    found = read(tmp_path / "p.parquet")
    assert found.kind == "image" and len(found) == 20
    assert found.inputs.read(torch.tensor([19, 0]), 12).shape == (2, 3, 12, 12) and not found.inputs.failed
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(Problem, match="cannot read"):
        read(tmp_path / "bad.parquet")


def test_a_hugging_face_dataset_on_disk(tmp_path: Path, read) -> None:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["zebra", "ant"])})

    def part(n: int):
        images = [Image.fromarray(RNG.integers(0, 256, (9, 9, 3), np.uint8)) for _ in range(n)]
        return datasets.Dataset.from_dict({"image": images, "label": [row % 2 for row in range(n)]}, features)

    datasets.DatasetDict({"train": part(20), "validation": part(6), "test": part(6)}).save_to_disk(str(tmp_path / "d"))
    found = read(tmp_path / "d")
    assert found.classes == ("ant", "zebra") and found.kind == "image" and len(found) == 32
    assert [len(found.rows(split)) for split in ("train", "valid", "test")] == [20, 6, 6]
    assert found.y[:2].tolist() == [1, 0] and found.inputs.read(torch.arange(32), 9).shape == (32, 3, 9, 9)
    assert not found.inputs.failed
    part(20).save_to_disk(str(tmp_path / "one"))
    assert len(read(tmp_path / "one").rows("valid")) == 2


def test_without_the_extra_the_line_says_what_to_install(tmp_path: Path, read, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    (tmp_path / "t.parquet").touch()
    with pytest.raises(Problem, match=r"pip install 'debiaser\[data\]'"):
        read(tmp_path / "t.parquet")


def test_real_reviews(real_data: Path, read) -> None:
    found = read(real_data / "imdb_reviews.csv")
    assert found.classes == ("negative", "positive") and len(found) + len(found.excluded) == 2440
    assert len(found.rows("valid")) == 245 and len(found.rows("test")) == 488


def test_names_of_files_and_lengths_of_texts_are_columns(tmp_path: Path, read) -> None:
    """A site in the file name is looked at; running numbers and the class's own name are not."""
    for row in range(20):
        label, site = ("cat", "dog")[row % 2], ("north", "south3")[row // 10]
        picture(tmp_path / "data" / label / f"{label}_{site}_IMG{row:04d}-{row}.png")
    columns = read(tmp_path / "data").columns
    assert [name for name in columns if "file name" in name] == ["file name token 1"]
    assert sorted(set(columns["file name token 1"])) == ["north", "south3"]
    rows = [[f"a text of {'many ' * (row % 3)}words, number {row}", row % 2] for row in range(20)]
    texts = read(table(tmp_path / "texts.csv", ["text", "label"], rows))
    assert sorted(set(texts.columns["text length"])) == ["6", "7", "8"]


def test_too_few_units_are_told_before_anything_is_trained(tmp_path: Path, read) -> None:
    rows = [[text(row), row % 2, "same", f"unit {row % 4}"] for row in range(40)]
    path = table(tmp_path / "texts.csv", ["text", "label", "one", "two"], rows)
    with pytest.raises(Problem, match="all samples are of one unit"):
        read(path, Columns(unit="one"))
    assert len(read(path, Columns(unit="two")))
    with pytest.raises(Problem, match="there are no samples for test: add separate units"):
        read(path, Columns(unit="two"), need_test=True)


def test_a_frame_is_read_like_its_csv(tmp_path: Path) -> None:
    frame = pd.DataFrame({"text": [f"this is the text number {n}" for n in range(60)], "label": ["a", "b"] * 30})
    frame.to_csv(tmp_path / "t.csv", index=False)
    table, own = read_own(tmp_path / "t.csv"), read_own(frame)
    assert own.identity == table.identity and own.split.tolist() == table.split.tolist() and own.ids == table.ids
    frame.loc[3, "label"] = None
    assert [(each.id, each.kind) for each in read_own(frame).excluded] == [("4", "missing label")]
    with pytest.raises(Problem, match="no rows"):
        read_own(frame[:0])
