"""The commands for own data, run on small folders and tables: what they write and how they fail."""

import csv
import json
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from torch.utils.data import TensorDataset

from conftest import assert_refused, debiaser
from debiaser import audit, gradient_norms, read_scores
from debiaser.auditing.export import read_exported
from debiaser.auditing.findings import COLUMNS
from debiaser.data import bias as inject
from debiaser.data.benchmarks import digits
from debiaser.data.images import stretch
from debiaser.data.split import Benchmark
from debiaser.errors import Misuse

COUNT = 240  # images, 24 a class


QUICK = ("--epochs", "2", "--workers", "1")
AuditedFolder = tuple[Path, Any]  # and what was printed


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as stream:
        return list(csv.DictReader(stream))


def save(folder: Path, images: torch.Tensor, y: torch.Tensor) -> None:
    """These images, a folder per class."""
    for row, image in enumerate((images * 255).round().byte().permute(0, 2, 3, 1).numpy()):
        path = folder / str(int(y[row])) / f"{row:04d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory, benchmark_digits: Benchmark) -> Path:
    """Coloured digits as a person would have them: a folder per class; and files that are no images."""
    folder = tmp_path_factory.mktemp("own") / "digits"
    y = benchmark_digits.train.y
    rows = torch.cat([torch.nonzero(y == k)[: COUNT // 10, 0] for k in range(10)])
    save(folder, benchmark_digits.train.read(rows), y[rows])
    (folder / "3" / "broken.png").write_bytes(b"not an image")
    return folder


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache of our own, so that nothing of another run is found."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache")
        patch.setenv("XDG_CACHE_HOME", str(folder))
        yield folder


def run_quickly(verb: str, pictures: Path, out: Path, *words: str) -> AuditedFolder:
    done = debiaser(verb, str(pictures), "--out", str(out), *QUICK, *words, "--json", "--quiet")
    assert done.returncode == 0, done.stderr
    return out, done.last_json


@pytest.fixture(scope="module")
def audited(pictures: Path, cache: Path, tmp_path_factory: pytest.TempPathFactory) -> AuditedFolder:
    """One audit that several tests look at."""
    return run_quickly("audit", pictures, tmp_path_factory.mktemp("audit") / "out")


@pytest.fixture(scope="module")
def debiased(pictures: Path, cache: Path, tmp_path_factory: pytest.TempPathFactory) -> AuditedFolder:
    """One debias run that several tests look at."""
    return run_quickly("debias", pictures, tmp_path_factory.mktemp("debias") / "out", "--seeds", "2")


def test_audit_writes_and_prints_what_is_promised(audited: AuditedFolder, cache: Path) -> None:
    out, found = audited
    assert found["verdict"] in {"biased", "no evidence", "cannot tell"} and found["reasons"]
    assert found["n"] == COUNT and [each["id"] for each in found["unreadable"]] == ["3/broken.png"]
    for name in ("conflicting_share", "mislabelled_share", "effective_sample_size"):
        assert set(found[name]) == {"value", "low", "high", "method"}
    assert Path(found["page"]) == out / "report.html" and Path(found["page"]).stat().st_size > 10_000
    kept = json.loads((out / "audit.json").read_text())
    assert kept["seed"] == 0 and {"torch", "commit", "threads", "processor"} <= kept["environment"].keys()
    for path in [out, *out.rglob("*"), *(cache / "debiaser").rglob("*")]:
        assert not stat.S_IMODE(path.stat().st_mode) & 0o077, f"{path}: only the owner may read it"


def test_scores_have_one_line_per_picture_and_per_file_that_is_none(audited: AuditedFolder) -> None:
    out, found = audited
    *good, last = read_csv(out / "scores.csv")
    assert tuple(last) == COLUMNS and len(good) == COUNT
    assert last["kind"] == "unreadable" and last["id"] == "3/broken.png"
    assert sum(float(row["probability"]) for row in good) == pytest.approx(1, abs=1e-3)
    scores = [float(row["score"]) for row in sorted(good, key=lambda row: int(row["rank"]))]
    assert scores == sorted(scores, reverse=True)
    assert sum(float(row["probability"]) for row in read_csv(out / "weights.csv")) == pytest.approx(1, abs=1e-6)
    # Kinds are asserted only where planted samples bear them out.
    if found["verdict"] != "biased":
        assert found["planted"] is None and "No property is named" in found["kinds"]["why"]
    assert found["kinds"]["asserted"] == (found["kinds"]["why"] == "")
    assert found["kinds"]["asserted"] or not {row["kind"] for row in good} & {"conflicting", "mislabelled"}
    assert found["conflicting_share"]["low"] == 0


def test_the_same_audit_again_trains_and_decodes_nothing(audited: AuditedFolder, pictures: Path) -> None:
    out, found = audited
    before = {path: path.stat().st_mtime_ns for path in (out / "work").rglob("*") if path.is_file()}
    same = ("audit", str(pictures), "--out", str(out), *QUICK)
    done = debiaser(*same, "--json")
    assert done.returncode == 0 and "biased:" not in done.stderr and "pixels" not in done.stderr, done.stderr
    assert done.last_json == found
    assert {path: path.stat().st_mtime_ns for path in (out / "work").rglob("*") if path.is_file()} == before
    words = debiaser(*same).stdout
    assert words.startswith("Examined: SimConv-1") and "Effective sample size" in words
    verdict, one, two, three, page = words.splitlines()[-5:]
    assert verdict == f"Verdict: {found['verdict']}" and one == f"  1. {found['reasons'][0]}"
    assert two.startswith("  2. Between ") and three.startswith("  3. ") and page == f"The page: {out / 'report.html'}"
    assert found["next"]["again"].startswith(f"debiaser audit {pictures}"), "the command that runs it again"
    failing = (*same, "--quiet", "--fail-if")
    named = found["verdict"].replace(" ", "-")
    assert debiaser(*failing, named).returncode == 3
    assert debiaser(*failing, named, "--baseline", str(out / "audit.json")).returncode == 0
    assert debiaser(*failing, "wrong").returncode == 2
    (out / "work" / "layout-2").unlink()
    assert "is of an older version of debiaser" in debiaser(*same, "--quiet").stderr


@pytest.mark.parametrize("option", ["--marks", "--confirmed"])
def test_marks_are_taken_back(audited: AuditedFolder, pictures: Path, tmp_path: Path, option: str) -> None:
    out = shutil.copytree(audited[0], tmp_path / "out")  # others look at the audit as it was
    first, marks = read_csv(out / "scores.csv")[0]["id"], tmp_path / "marks.csv"
    marks.write_text(f"id,mark\n{first},M\n")
    done = debiaser("audit", str(pictures), "--out", str(out), *QUICK, "--quiet", option, str(marks))
    assert done.returncode == 0, done.stderr
    assert "Only 1 samples are marked" in done.stdout
    assert "no samples are ranked or proposed for marking" in done.stdout, "after so short a training"
    assert (out / "to_mark.csv").read_text() == "id,path,label,why,content\n"
    assert {row["id"]: row["kind"] for row in read_csv(out / "scores.csv")}[first] == "mislabelled"
    assert float({row["id"]: row["probability"] for row in read_csv(out / "weights.csv")}[first]) < 1e-6


@pytest.mark.parametrize(
    ("source", "option", "value", "code", "told"),
    [
        ("pictures", "--marks", "marks.csv", 1, "another data set"),
        ("pictures", "--marks", "nowhere.csv", 1, "cannot read nowhere.csv"),
        ("one.csv", "--unit", "patient", 1, "of one unit"),
        ("pictures", "--matters", "smell", 2, "smell.*colour"),
        ("pictures", "--probs", "p.npy", 2, f"{COUNT}"),
    ],
)
def test_what_cannot_be_meant_is_told_before_any_training(
    source: str, option: str, value: str, code: int, told: str, pictures: Path, cache: Path, tmp_path: Path
) -> None:
    (tmp_path / "marks.csv").write_text("id,mark\nelsewhere/1.png,aligned\n")
    lines = [f"some words {row} and more {row * 7},{'ab'[row % 2]},p1" for row in range(60)]
    (tmp_path / "one.csv").write_text("\n".join(["text,label,patient", *lines]) + "\n")
    np.save(tmp_path / "p.npy", np.full((COUNT - 1, 10), 0.1))
    given = str(pictures) if source == "pictures" else source
    assert_refused(debiaser("audit", given, option, value, "--out", "out", "--quiet", cwd=tmp_path), code, told)
    assert not list(tmp_path.glob("out/work/*"))


def test_your_own_model_is_examined_by_its_answers(pictures: Path, cache: Path, tmp_path: Path) -> None:
    stream = np.random.default_rng(0)
    np.save(tmp_path / "p.npy", stream.dirichlet(np.ones(10), COUNT))
    np.save(tmp_path / "f.npy", stream.normal(size=(COUNT, 5)))
    done = debiaser("audit", str(pictures), "--probs", "p.npy", "--features", "f.npy", "--out", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "Examined: your model, by its probabilities and features."
    assert (tmp_path / "out" / "report.html").is_file()


def test_answers_in_python_rank_by_the_gradient_norm() -> None:
    logits = torch.tensor([[4.0, 0.0], [0.0, 4.0], [4.0, 0.0]])
    features = torch.tensor([[1.0, 0.0], [1.0, 0.0], [3.0, 4.0]])
    y = torch.tensor([0, 0, 1])
    findings = audit(y.numpy(), logits.softmax(1).numpy(), features.numpy())
    residual = logits.softmax(1) - torch.nn.functional.one_hot(y, 2)
    for row in range(3):  # the gradient of cross-entropy in W at these logits: (p - e_y) z^T
        assert findings.scores[row] == pytest.approx(float(torch.outer(residual[row], features[row]).norm()), rel=1e-5)
    assert findings.verdict == "cannot tell" and "your model" in findings.summary["examined"]
    assert "Findings:" in repr(findings)
    with pytest.raises(Misuse, match="sum to 1"):
        audit(y.numpy(), logits.numpy())


def test_audit_of_a_data_frame(pictures: Path, cache: Path) -> None:
    paths = sorted(pictures.glob("*/*.png"))
    frame = pd.DataFrame({"image": map(str, paths), "label": [path.parent.name for path in paths]})
    frame["half"] = np.where(np.arange(len(frame)) % 2, "odd", "even")
    findings = audit(frame, epochs=1, workers=1, group="half")
    found = findings.summary
    assert len(findings.scores) == COUNT and "audit(DATAFRAME, " in found["next"]["snippet"]
    assert found["groups"]["column"] == "half" and len(found["groups"]["cells"]) == 20
    assert sum(cell["n"] for cell in found["groups"]["cells"]) == COUNT == len(found["map"]["places"])
    wrong = findings.rows["label"] != findings.rows["predicted"]
    for each in found["slices"]:
        assert wrong[each["places"]].all() and set(findings.rows["label"][each["places"]]) == {each["class"]}
    assert sum(each["n"] for each in found["slices"]) <= wrong.sum() and (found["slices"] or found["degenerate"])


def test_debias_compares_with_the_same_number_of_samples(debiased: AuditedFolder) -> None:
    out, found = debiased
    repair = json.loads((out / "audit.json").read_text())["repair"]
    assert repair["samples_seen"] == 4 * found["n"]  # two epochs of either stage, over training and validation samples
    assert "augmentation only" in {*found["controls"], found["selection"]["rival"]}
    for told in (found["before"], found["after"], *found["controls"].values()):
        assert 0 <= told["overall"]["mean"] <= 100 and len(told["per_class"]) == 10
    assert found["test"]["interval"][0] <= found["test"]["difference"] <= found["test"]["interval"][1]
    assert all(each["minus_vanilla"]["interval"] for each in (found["after"], *found["controls"].values()))


def test_the_model_is_chosen_on_validation_rows(debiased: AuditedFolder) -> None:
    out, found = debiased
    choice = found["selection"]
    names = [each["name"] for each in choice["candidates"]]
    assert names[:2] == ["vanilla (class-balanced)", "augmentation only"]
    assert (len(names) == 2) == found["degenerate"], "nothing is weighed by scores that mean nothing"
    assert choice["chosen"] in names and "that the models never saw" in choice["sentence"]
    page = (out / "report.html").read_text()
    assert "How the model was chosen" in page and choice["chosen"] in page
    assert choice["chosen"] != names[0] or not found["helped"]
    assert (found["price"] is None) == found["degenerate"]
    assert {path.name for path in (out / "models").iterdir()} >= {"vanilla-class-balanced", "augmentation-only"}
    assert found["exported"] in names and f"Exported: {found['exported']}" in page


def test_predict_gives_the_numbers_of_the_evaluation(debiased: AuditedFolder, pictures: Path) -> None:
    out, found = debiased
    model = Path(found["model_dir"])
    card = (model / "README.md").read_text()
    done = debiaser("predict", str(model), str(pictures), "--json", "--quiet")
    assert done.returncode == 0, done.stderr
    answers = done.last_json
    assert [each["input"].rsplit("/", 2)[-1] for each in answers["unreadable"]] == ["broken.png"]
    held_out = json.loads((out / "evaluation.json").read_text())
    said = {"/".join(each["input"].rsplit("/", 2)[-2:]): each for each in answers["predictions"]}
    right = 0
    for name, probability in held_out.items():
        assert list(said[name]["probabilities"].values()) == pytest.approx(probability, abs=1e-5)
        right += said[name]["label"] == name.split("/")[0]
    assert f"{100 * right / len(held_out):.2f}% right" in card


@pytest.mark.parametrize("engine", ["local", pytest.param("ray", marks=[pytest.mark.long, pytest.mark.timeout(600)])])
def test_scores_are_the_gradient_norms_of_the_exported_model(
    engine: str, debiased: AuditedFolder, pictures: Path, tmp_path: Path
) -> None:
    pytest.importorskip("pyarrow" if engine == "local" else engine, reason=f"{engine} is not here: did not run")
    model, paths = Path(debiased[1]["model_dir"]), sorted(pictures.glob("*/[0-9]*.png"))
    same = ("score", str(pictures), "--model", str(model), "--engine", engine, "--out", str(tmp_path / "scores"))
    done = debiaser(*same, "--json", "--quiet", timeout=500)
    assert done.returncode == 0, done.stderr
    assert done.last_json["n"] == COUNT and [each["id"] for each in done.last_json["unreadable"]] == ["3/broken.png"]
    exported, names = read_exported(model), [f"{path.parent.name}/{path.name}" for path in paths]
    images = torch.stack([torch.from_numpy(stretched(path, exported.size)) for path in paths]).permute(0, 3, 1, 2)
    y = torch.tensor([exported.classes.index(path.parent.name) for path in paths])
    truth = gradient_norms(exported.model, TensorDataset(exported.enter(images), y))
    assert torch.allclose(read_scores(tmp_path / "scores", keys=names), truth, rtol=1e-5)
    told = {row["id"]: row for row in read_csv(Path(done.last_json["scores"]))}
    assert [float(told[name]["score"]) for name in names] == pytest.approx(truth.tolist(), rel=1e-5)
    assert [told[name]["label"] for name in names] == [path.parent.name for path in paths]


def stretched(path: Path, size: int) -> np.ndarray:
    out = np.empty((size, size, 3), np.uint8)
    stretch(np.asarray(Image.open(path).convert("RGB")), size, out)
    return out


def test_scoring_goes_on_where_it_was_and_refuses_what_it_cannot_score(
    debiased: AuditedFolder, pictures: Path, tmp_path: Path
) -> None:
    pytest.importorskip("pyarrow", reason="pyarrow is not here: this test did not run")
    data = shutil.copytree(pictures, tmp_path / "data")
    words = ("--model", debiased[1]["model_dir"], "--out", str(tmp_path / "out"), "--quiet")
    assert debiaser("score", str(data), *words).returncode == 0
    (part,) = (tmp_path / "out").glob("part-*")
    before, table = part.stat().st_mtime_ns, (tmp_path / "out" / "scores.csv").read_bytes()
    assert not stat.S_IMODE(part.stat().st_mode) & 0o077
    done = debiaser("score", str(data), *words)
    assert done.returncode == 0 and part.stat().st_mtime_ns == before, "what is there is not made again"
    assert (tmp_path / "out" / "scores.csv").read_bytes() == table
    some = sorted((data / "4").iterdir())[0]
    (data / "3" / "broken.png").write_bytes(some.read_bytes())  # repaired
    done = debiaser("score", str(data), *words, "--json")
    assert done.returncode == 0 and done.last_json["unreadable"] == [] and done.last_json["n"] == COUNT + 1, done.stderr
    assert part.stat().st_mtime_ns == before and len(read_scores(tmp_path / "out")) == COUNT + 1
    assert set(table.splitlines()) < set((tmp_path / "out" / "scores.csv").read_bytes().splitlines())
    some.write_bytes((data / "3" / sorted(each.name for each in (data / "3").iterdir())[0]).read_bytes())
    assert_refused(debiaser("score", str(data), *words), 1, "holds scores of other content under 1 of these keys")
    (data / "3").rename(data / "thirteen")
    assert_refused(debiaser("score", str(data), *words), 1, "does not know: thirteen; it knows: 0, 1")
    (tmp_path / "texts.csv").write_text("text,label\nsome long words and more of them,0\nother long words and more,1\n")
    assert_refused(debiaser("score", str(tmp_path / "texts.csv"), *words), 1, "takes images, .* has texts")
    assert_refused(debiaser("score", str(data), *words, "--engine", "spark"), 2, "spark.*local, ray")
    assert_refused(debiaser("score", str(data), *words, "--workers", "2"), 2, "are for --engine ray")


def test_images_inside_a_table_are_scored(debiased: AuditedFolder, pictures: Path, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="pyarrow is not here: this test did not run")
    paths = [*sorted(pictures.glob("*/[0-9]*.png"))[::12], pictures / "3" / "broken.png"]
    inside = {"image": [path.read_bytes() for path in paths], "label": [path.parent.name for path in paths]}
    pd.DataFrame(inside).to_parquet(tmp_path / "inside.parquet")
    words = ("--model", debiased[1]["model_dir"], "--quiet", "--json")
    done = debiaser("score", "inside.parquet", *words, "--out", "out", cwd=tmp_path)
    assert done.returncode == 0 and [each["id"] for each in done.last_json["unreadable"]] == ["21"], done.stderr
    files = debiaser("score", str(pictures), *words, "--out", "files", cwd=tmp_path).last_json
    truth = {row["id"]: row["score"] for row in read_csv(tmp_path / files["scores"])}
    wanted = [float(truth[f"{path.parent.name}/{path.name}"]) for path in paths[:-1]]
    found = read_csv(tmp_path / done.last_json["scores"])
    assert [float(row["score"]) for row in found] == pytest.approx(wanted, rel=1e-5)
    assert [row["id"] for row in found] == [str(number) for number in range(1, 21)]
    refused = debiaser("score", "inside.parquet", *words, "--engine", "ray", cwd=tmp_path)
    assert_refused(refused, 1, "cannot be sent to workers")


def test_clean_removes_caches_but_not_raw_data(cache: Path) -> None:
    root = cache / "debiaser"
    (root / "data").mkdir(parents=True, exist_ok=True)
    (root / "data" / "kept").write_text("raw")
    (root / "features").mkdir(exist_ok=True)
    (root / "features" / "some.npy").write_bytes(b"0" * 100)
    done = debiaser("clean", "--json")
    assert done.returncode == 0 and done.last_json["freed_bytes"] >= 100
    assert (root / "data" / "kept").is_file() and not (root / "features").exists()


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_debias_names_the_shortcut_chooses_proves_and_prices(tmp_path: Path) -> None:
    """Six digits, the colour going with the digit but for 3%."""
    parts, stream = list(digits.parts().values()), np.random.default_rng(3)
    x, y = (np.concatenate([getattr(part, name) for part in parts]) for name in ("images", "target"))
    rows = np.concatenate([np.flatnonzero(y == k)[:110] for k in range(6)])
    colours = torch.from_numpy(inject.draw_colours(inject.draw_bias(y[rows], 0.03, 6, stream), stream))
    read = inject.coloured(torch.from_numpy(x[rows]), colours)
    save(tmp_path / "data", read(torch.arange(len(rows))), torch.from_numpy(y[rows]))
    words = ("debias", str(tmp_path / "data"), "--out", str(tmp_path / "out"), "--epochs", "4", "--json", "--quiet")
    done = debiaser(*words, env={"XDG_CACHE_HOME": str(tmp_path / "cache")}, timeout=900)
    assert done.returncode == 0, done.stderr
    found = done.last_json
    assert found["views"][0]["name"] == "colour" and found["views"][0]["excess"]["value"] > 5
    assert 0 == found["conflicting_share"]["low"] < found["conflicting_share"]["high"] < 1
    if found["verdict"] == "biased":  # so few samples may leave it open
        assert found["planted"]["view"] == "colour" and found["planted"]["conflicts"] > 50
        assert all(each["planted"] is not None for each in found["selection"]["candidates"])
    assert found["price"]["before"]["follow"] > 50 and "your data" in found["price"]["sentence"]
    page = (tmp_path / "out" / "report.html").read_text()
    assert "When it pays" in page and "After: " in page
