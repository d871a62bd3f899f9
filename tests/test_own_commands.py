"""audit, debias, predict and clean, run as commands on small folders and tables; what they write and how they fail."""

import csv
import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from debiaser import audit
from debiaser.auditing.findings import COLUMNS
from debiaser.data.split import Benchmark, Split
from debiaser.errors import Misuse

COUNT = 240  # pictures, 24 a class


def debiaser(*words: str) -> subprocess.CompletedProcess[str]:
    """`debiaser ...` run as a command."""
    line = [sys.executable, "-m", "debiaser", *words]
    return subprocess.run(line, capture_output=True, text=True, timeout=240, env={**os.environ, "OMP_NUM_THREADS": "1"})


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory, benchmark_digits: Benchmark) -> Path:
    """Coloured digits as a person would have them: a folder per class; and files that are no pictures."""
    folder = tmp_path_factory.mktemp("own") / "digits"
    y = benchmark_digits.train.y
    rows = torch.cat([torch.nonzero(y == k)[: COUNT // 10, 0] for k in range(10)])
    content = (benchmark_digits.train.read(rows) * 255).round().byte().permute(0, 2, 3, 1).numpy()
    for row, picture in zip(rows.tolist(), content, strict=True):
        path = folder / str(int(y[row])) / f"{row:04d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture).save(path)
    (folder / "3" / "broken.png").write_bytes(b"not a picture")
    return folder


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache of our own, so that nothing of another run is found."""
    folder = tmp_path_factory.mktemp("cache")
    before = os.environ.get("XDG_CACHE_HOME")
    os.environ["XDG_CACHE_HOME"] = str(folder)
    yield folder
    os.environ.pop("XDG_CACHE_HOME") if before is None else os.environ.__setitem__("XDG_CACHE_HOME", before)


@pytest.fixture(scope="module")
def audited(pictures: Path, cache: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """One audit that several tests look at."""
    out = tmp_path_factory.mktemp("audit") / "out"
    done = debiaser("audit", str(pictures), "--out", str(out), "--epochs", "2", "--workers", "1", "--json", "--quiet")
    assert done.returncode == 0, done.stderr
    return out, json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def debiased(pictures: Path, cache: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """One debias run that several tests look at."""
    out = tmp_path_factory.mktemp("debias") / "out"
    options = ("--epochs", "2", "--seeds", "2", "--workers", "1", "--json", "--quiet")
    done = debiaser("debias", str(pictures), "--out", str(out), *options)
    assert done.returncode == 0, done.stderr
    return out, json.loads(done.stdout.splitlines()[-1])


def test_an_audit_records_what_it_was_made_with(audited: tuple[Path, Any]) -> None:
    kept = json.loads((audited[0] / "audit.json").read_text())
    assert kept["seed"] == 0 and {"torch", "commit", "threads", "processor"} <= kept["environment"].keys()


def test_audit_prints_what_is_promised(audited: tuple[Path, Any]) -> None:
    out, found = audited
    promised = {
        *("verdict", "reasons", "views", "health", "units", "n", "unreadable"),
        *("conflicting_share", "mislabelled_share", "effective_sample_size", "page", "scores"),
    }
    assert promised <= set(found)
    assert found["verdict"] in {"biased", "no evidence", "cannot tell"} and found["reasons"]
    assert found["n"] == COUNT and [each["id"] for each in found["unreadable"]] == ["3/broken.png"]
    for name in ("conflicting_share", "mislabelled_share", "effective_sample_size"):
        assert set(found[name]) == {"value", "low", "high", "method"}
    assert Path(found["page"]) == out / "report.html" and Path(found["page"]).stat().st_size > 10_000


def test_scores_have_one_line_per_picture_and_per_file_that_is_none(audited: tuple[Path, Any]) -> None:
    out, _ = audited
    with (out / "scores.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert tuple(rows[0]) == COLUMNS and len(rows) == COUNT + 1
    assert rows[-1]["kind"] == "unreadable" and rows[-1]["id"] == "3/broken.png"
    good = rows[:-1]
    assert sum(float(row["probability"]) for row in good) == pytest.approx(1, abs=1e-3)
    ranked = sorted(good, key=lambda row: int(row["rank"]))
    scores = [float(row["score"]) for row in ranked]
    assert scores == sorted(scores, reverse=True)
    with (out / "weights.csv").open(newline="") as stream:
        assert sum(float(row["probability"]) for row in csv.DictReader(stream)) == pytest.approx(1, abs=1e-6)


def test_only_the_owner_may_read_what_an_audit_writes(audited: tuple[Path, Any], cache: Path) -> None:
    out, _ = audited
    for path in [out, *out.rglob("*"), *(cache / "debiaser").rglob("*")]:
        assert not stat.S_IMODE(path.stat().st_mode) & 0o077, path


def test_the_same_audit_again_trains_and_decodes_nothing(audited: tuple[Path, Any], pictures: Path) -> None:
    out, found = audited
    before = {path: path.stat().st_mtime_ns for path in (out / "work").rglob("*") if path.is_file()}
    done = debiaser("audit", str(pictures), "--out", str(out), "--epochs", "2", "--workers", "1", "--json")
    assert done.returncode == 0, done.stderr
    assert "easy" not in done.stderr and "pixels" not in done.stderr
    again = json.loads(done.stdout.splitlines()[-1])
    assert again == found
    assert {path: path.stat().st_mtime_ns for path in (out / "work").rglob("*") if path.is_file()} == before


def test_words_begin_with_the_model_that_was_examined(audited: tuple[Path, Any], pictures: Path) -> None:
    out, _ = audited
    done = debiaser("audit", str(pictures), "--out", str(out), "--epochs", "2", "--workers", "1")
    assert done.stdout.splitlines()[0].startswith("Examined: SimConv-1")
    assert "would rest on" in done.stdout and "The page: " in done.stdout


def test_fail_if_and_baseline(audited: tuple[Path, Any], pictures: Path) -> None:
    out, found = audited
    named = found["verdict"].replace(" ", "-")
    same = ("audit", str(pictures), "--out", str(out), "--epochs", "2", "--workers", "1", "--quiet", "--fail-if", named)
    assert debiaser(*same).returncode == 3
    assert debiaser(*same, "--baseline", str(out / "audit.json")).returncode == 0
    assert debiaser(*same[:-1], "wrong").returncode == 2


def test_confirmed_marks_are_taken_back(audited: tuple[Path, Any], pictures: Path, tmp_path: Path) -> None:
    out = shutil.copytree(audited[0], tmp_path / "out")  # others look at the audit as it was
    with (out / "scores.csv").open(newline="") as stream:
        first = next(row["id"] for row in csv.DictReader(stream))
    marks = tmp_path / "confirmed.csv"
    marks.write_text(f"id,mark\n{first},mislabelled\n")
    same = ("audit", str(pictures), "--out", str(out), "--epochs", "2", "--workers", "1", "--quiet", "--confirmed")
    assert debiaser(*same, str(marks)).returncode == 0
    with (out / "scores.csv").open(newline="") as stream:
        assert next(row["kind"] for row in csv.DictReader(stream) if row["id"] == first) == "mislabelled"
    with (out / "weights.csv").open(newline="") as stream:
        assert float(next(row["probability"] for row in csv.DictReader(stream) if row["id"] == first)) < 1e-6
    marks.write_text("id,mark\nelsewhere/1.png,aligned\n")
    done = debiaser(*same, str(marks))
    assert done.returncode == 1 and "another dataset" in done.stderr


def test_a_file_of_marks_from_elsewhere_is_told_before_any_training(
    pictures: Path, cache: Path, tmp_path: Path
) -> None:
    (tmp_path / "marks.csv").write_text("id,mark\nelsewhere/1.png,aligned\n")
    done = debiaser("audit", str(pictures), "--confirmed", str(tmp_path / "marks.csv"), "--out", str(tmp_path / "out"))
    assert done.returncode == 1 and "another dataset" in done.stderr and not list(tmp_path.glob("out/work/*"))


def test_a_unit_column_with_one_unit_is_one_clear_line(cache: Path, tmp_path: Path) -> None:
    lines = [f"some words {row} and more {row * 7},{'ab'[row % 2]},p1" for row in range(60)]
    (tmp_path / "one.csv").write_text("\n".join(["text,label,patient", *lines]) + "\n")
    done = debiaser("audit", str(tmp_path / "one.csv"), "--unit", "patient", "--out", str(tmp_path / "out"), "--quiet")
    assert done.returncode == 1 and "of one unit" in done.stderr and len(done.stderr.strip().splitlines()) == 1


def test_kinds_are_asserted_only_where_planted_rows_bear_them_out(audited: tuple[Path, Any]) -> None:
    out, found = audited
    with (out / "scores.csv").open(newline="") as stream:
        diagnosis = {row["kind"] for row in csv.DictReader(stream)}
    if found["verdict"] != "biased":
        assert found["planted"] is None and "No property is named" in found["kinds"]["why"]
    assert found["kinds"]["asserted"] == (found["kinds"]["why"] == "")
    assert found["kinds"]["asserted"] or not diagnosis & {"conflicting", "mislabelled"}
    assert found["conflicting_share"]["low"] == 0


def test_your_own_model_is_examined_by_its_answers(pictures: Path, cache: Path, tmp_path: Path) -> None:
    stream = np.random.default_rng(0)
    np.save(tmp_path / "p.npy", stream.dirichlet(np.ones(10), COUNT))
    np.save(tmp_path / "f.npy", stream.normal(size=(COUNT, 5)))
    options = (
        "--probs",
        str(tmp_path / "p.npy"),
        "--features",
        str(tmp_path / "f.npy"),
        "--out",
        str(tmp_path / "out"),
    )
    done = debiaser("audit", str(pictures), *options)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "Examined: your model, by its probabilities and features."
    assert (tmp_path / "out" / "report.html").is_file()
    np.save(tmp_path / "p.npy", stream.dirichlet(np.ones(10), COUNT - 1))
    done = debiaser("audit", str(pictures), *options)
    assert done.returncode == 2 and f"{COUNT}" in done.stderr


def test_answers_in_python_rank_by_the_gradient_norm() -> None:
    logits = torch.tensor([[4.0, 0.0], [0.0, 4.0], [4.0, 0.0]])
    features = torch.tensor([[1.0, 0.0], [1.0, 0.0], [3.0, 4.0]])
    y = torch.tensor([0, 0, 1])
    findings = audit(y.numpy(), logits.softmax(1).numpy(), features.numpy())
    weight = torch.zeros(2, 2)
    for row in range(3):  # the gradient of cross-entropy in W at these logits: (p - e_y) z^T
        residual = logits[row].softmax(0) - torch.nn.functional.one_hot(y[row], 2)
        expected = float(torch.outer(residual, features[row]).norm())
        assert findings.scores[row] == pytest.approx(expected, rel=1e-5), weight
    assert findings.verdict == "cannot tell" and "your model" in findings.summary["examined"]
    with pytest.raises(Misuse, match="sum to 1"):
        audit(y.numpy(), logits.numpy())


def test_audit_of_a_dataset_in_memory(benchmark_digits: Benchmark, cache: Path) -> None:
    split = benchmark_digits.train.subset(torch.arange(200))
    findings = audit(Split(split.y, split.read), epochs=1, workers=1)
    assert len(findings.scores) == 200 and "Findings:" in repr(findings)


def test_audit_of_a_data_frame(pictures: Path, cache: Path) -> None:
    paths = sorted(pictures.glob("*/*.png"))
    frame = pd.DataFrame({"image": map(str, paths), "label": [path.parent.name for path in paths]})
    findings = audit(frame, epochs=1, workers=1)
    assert len(findings.scores) == COUNT and "audit(DATAFRAME, " in findings.summary["next"]["snippet"]


def test_debias_compares_with_the_same_number_of_samples(debiased: tuple[Path, Any]) -> None:
    _, found = debiased
    assert {"before", "after", "controls", "test", "helped", "model_dir"} <= set(found)
    assert "augmentation only" in {*found["controls"], found["selection"]["chosen"]}
    for told in (found["before"], found["after"], *found["controls"].values()):
        assert 0 <= told["overall"]["mean"] <= 100 and len(told["per_class"]) == 10
    assert found["test"]["interval"][0] <= found["test"]["difference"] <= found["test"]["interval"][1]
    assert all(each["minus_vanilla"]["interval"] for each in (found["after"], *found["controls"].values()))


def test_once_chosen_everything_learns_from_the_validation_rows_too(debiased: tuple[Path, Any]) -> None:
    out, found = debiased
    repair = json.loads((out / "audit.json").read_text())["repair"]
    assert repair["samples_seen"] == 4 * found["n"]  # two epochs of either stage, over training and validation rows


def test_the_model_is_chosen_on_validation_rows(debiased: tuple[Path, Any]) -> None:
    out, found = debiased
    choice = found["selection"]
    names = [each["name"] for each in choice["candidates"]]
    assert names[:2] == ["vanilla (class-balanced)", "augmentation only"] and len(names) == 5
    assert choice["chosen"] in names and "validation rows" in choice["sentence"]
    page = (out / "report.html").read_text()
    assert "How the model was chosen" in page and choice["chosen"] in page
    assert choice["chosen"] != names[0] or not found["helped"]
    low, high = (found["price"]["break_even"][end] for end in ("low", "high"))
    assert 0 <= low <= found["price"]["break_even"]["value"] <= high <= 100
    assert "your data: between" in found["price"]["sentence"]


def test_predict_gives_the_numbers_of_the_evaluation(debiased: tuple[Path, Any], pictures: Path) -> None:
    out, found = debiased
    model = Path(found["model_dir"])
    card = (model / "README.md").read_text()
    done = debiaser("predict", str(model), str(pictures), "--json", "--quiet")
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout.splitlines()[-1])
    assert [each["input"].rsplit("/", 2)[-1] for each in answers["unreadable"]] == ["broken.png"]
    held_out = json.loads((out / "evaluation.json").read_text())
    said = {"/".join(each["input"].rsplit("/", 2)[-2:]): each for each in answers["predictions"]}
    right = 0
    for name, probability in held_out.items():
        assert list(said[name]["probabilities"].values()) == pytest.approx(probability, abs=1e-5)
        right += said[name]["label"] == name.split("/")[0]
    assert f"{100 * right / len(held_out):.2f}% right" in card


@pytest.mark.parametrize(
    ("arrange", "told"),
    [
        (lambda folder: folder.mkdir(), "no "),
        (lambda folder: one_class(folder), "class"),
    ],
)
def test_folders_that_cannot_be_audited(arrange: Callable[[Path], object], told: str, tmp_path: Path) -> None:
    arrange(tmp_path / "data")
    done = debiaser("audit", str(tmp_path / "data"), "--out", str(tmp_path / "out"))
    assert done.returncode == 1 and told in done.stderr and len(done.stderr.strip().splitlines()) == 1


def one_class(folder: Path) -> None:
    """Two pictures of one class."""
    (folder / "cat").mkdir(parents=True)
    for number in range(2):
        Image.new("RGB", (30, 30), (number, 0, 0)).save(folder / "cat" / f"{number}.png")


def test_clean_removes_caches_but_not_raw_data(cache: Path) -> None:
    root = cache / "debiaser"
    (root / "data").mkdir(parents=True, exist_ok=True)
    (root / "data" / "kept").write_text("raw")
    (root / "features").mkdir(exist_ok=True)
    (root / "features" / "some.npy").write_bytes(b"0" * 100)
    done = debiaser("clean", "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["freed_bytes"] >= 100
    assert (root / "data" / "kept").is_file() and not (root / "features").exists()


def test_a_view_that_does_not_exist_is_told_before_any_training(pictures: Path, cache: Path, tmp_path: Path) -> None:
    done = debiaser("audit", str(pictures), "--matters", "smell", "--out", str(tmp_path / "out"), "--quiet")
    assert done.returncode == 2 and "smell" in done.stderr and "colour" in done.stderr
    assert not list(tmp_path.glob("out/work/*"))
