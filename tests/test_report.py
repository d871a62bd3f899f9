"""The page from runs in their real layout: words, tables, hostile and missing content, determinism, size."""

import base64
import html
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from audit_folders import image_audit
from debiaser.report import audit_page, figures
from debiaser.report.figures import CELL, HEAD, LETTERS, MARGIN, fitting, write_sheet
from debiaser.report.run_page import scored_classes, with_code, write_page
from debiaser.report.runs import Found, find_runs, read_result
from debiaser.report.tables import duration, percent, settings, summary_rows, text_table
from debiaser.report.words import finding, score_words

PALETTE = np.random.default_rng(7).integers(60, 256, (10, 3))
TRAIN, TEST = 400, 200


def new_result(method: str, conflicting: float, aligned: float = 99.0, seed: int = 0, **changes: Any) -> dict[str, Any]:
    """A result as the bench writes it; 90% of the test set goes against the shortcut."""
    fields = {"alpha": 0.7, "p": 2} if method == "pgd" else {"length": 1}
    identity = {"dataset": "digits", "method": method, "rho": 0.05, "seed": seed}
    spec = {**identity, "noise": 0.0, "fields": fields, "net": "simconv1", "data_seed": seed, "options": {}}
    metrics = {"unbiased": 0.9 * conflicting + 0.1 * aligned, "aligned": aligned, "conflicting": conflicting}
    scored = {"score_auroc": 0.9, "score_average_precision": 0.6, "score_conflicting_mass": 0.4}
    scored |= {"score_effective_sample_size": 90.4}
    found = {
        "spec": {**spec, "recipe": {"name": "fast", "epochs": 3, "stages": {}}},
        "metrics": {**metrics, "worst_group": 20.0, "valid": 97.0} | (scored if method == "pgd" else {}),
        "seconds": {"biased": 3.2, "score": 0.1, "debiased": 3.3} if method == "pgd" else {"vanilla": 6.4},
        "rows": {"train": TRAIN, "valid": 50, "test": TEST, "conflicting": 20, "flipped": 0},
        "classes": [str(digit) for digit in range(10)],
        "environment": {"debiaser": "0.1.0", "python": "3.11", "torch": "2.13.0", "commit": "abc", "device": "cpu"},
    }
    key = {"key": f"digits-{method}-seed{seed}", "protocol": 1, "recipe": "fast", "samples_seen": 2400}
    return {**identity, **key, **found, "bias_name": "colour", "published": None, **changes}


def write_run(folder: Path, result: dict[str, Any]) -> Path:
    """The folder of a finished run with coloured digits that ship inside scikit-learn."""
    folder.mkdir(parents=True)
    digits, draw = load_digits(), np.random.default_rng(result["spec"]["data_seed"])
    order, scored = draw.permutation(len(digits.target)), result["method"] == "pgd"
    train, test = order[:TRAIN], order[TRAIN : TRAIN + TEST]
    against = np.zeros(len(order), np.int8)
    against[train], against[test] = np.arange(TRAIN) % 20 == 0, np.arange(TEST) % 10 != 0
    bias = np.where(against == 1, (digits.target + draw.integers(1, 10, len(order))) % 10, digits.target)
    images = (digits.images[..., None] / 16 * PALETTE[bias][:, None, None]).astype(np.uint8)
    score = draw.lognormal(np.where(against[train] == 1, 1.0, -4.0), 1.0) if scored else np.full(TRAIN, np.nan)
    ranked = np.argsort(-score)
    by_class = [ranked[digits.target[train[ranked]] == digit] for digit in range(10)]
    chosen = np.concatenate([np.r_[rows[:6], rows[-6:]] for rows in by_class]) if scored else np.zeros(0, int)
    shown = test[:20]
    answers = np.full((20, 10), 0.05)
    answers[np.arange(20), digits.target[shown] if scored else bias[shown]] = 0.55
    vectors = {"score": score, "probability": np.full(TRAIN, 1 / TRAIN), "label": digits.target[train]}
    np.savez(folder / "vectors.npz", **vectors, conflicting=against[train], flipped=np.zeros(TRAIN, np.int8))
    samples: dict[str, Any] = {"train_rows": chosen, "train_scores": score[chosen], "test_rows": np.arange(20)}
    for side, rows in (("train", train[chosen]), ("test", shown)):
        samples |= {f"{side}_images": images[rows], f"{side}_labels": digits.target[rows]}
        samples |= {f"{side}_bias": bias[rows], f"{side}_conflicting": against[rows]}
    np.savez(folder / "samples.npz", **samples, test_probabilities=answers)
    stages = ["biased"] * 3 + ["debiased"] * 3 if scored else ["vanilla"] * 6
    lines = [f"{stage},{n % 3},{(n + 1) * TRAIN},0.1,1,1,90,{40 + n},99,{35 + n},1" for n, stage in enumerate(stages)]
    heading = "stage,epoch,seen,lr,loss,valid_loss,valid_accuracy,unbiased,aligned,conflicting,seconds"
    (folder / "history.csv").write_text("\n".join([heading, *lines]) + "\n")
    (folder / "result.json").write_text(json.dumps(result))
    return folder


def page_of(folders: list[Path], where: Path) -> str:
    return write_page(Found([read_result(folder) for folder in folders]), where / "page.html").read_text()


def text_of(page: str) -> str:
    """What a reader sees, tags gone and entities resolved."""
    body = re.sub(r"<(style|script)>.*?</\1>", "", page, flags=re.DOTALL)
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", " ", body)))


def said(*results: dict[str, Any]) -> tuple[str, str]:
    """The kind of finding, and all that it says."""
    found = finding(summary_rows(results))
    return found.kind, " ".join([found.headline, *found.sentences, *found.caveats])


@pytest.fixture
def both(tmp_path: Path) -> list[Path]:
    plain = write_run(tmp_path / "runs" / "plain", new_result("vanilla", 48.0))
    return [plain, write_run(tmp_path / "runs" / "treated", new_result("pgd", 75.0, 95.0))]


def test_words_when_it_helped() -> None:
    assert said(new_result("vanilla", 48.2, 99.1), new_result("pgd", 75.4, 98.9)) == (
        "helped",
        "PGD helped: it is right on 75% of the images that go against the colour, plain training on 48%. The plain"
        " model follows the colour: it is right on 99% of the images that follow the shortcut and 48% of those that"
        " go against it. PGD, without being told about the colour, is right on 75% of those, 27.2 points more. On the"
        " images that follow the shortcut next to nothing changes (99% right). Both were trained on the same number"
        " of samples seen (2,400). One seed each: another seed will give somewhat other numbers.",
    )


PLAIN = new_result("vanilla", 48.0)
RIVALS = [new_result("vanilla", 95.0, samples_seen=1000), new_result("pgd", 80.0), new_result("jtt", 90.0)]


@pytest.mark.parametrize(
    ("results", "kind", "words"),
    [
        ([PLAIN, new_result("pgd", 30.0)], "hurt", ["PGD did not help here"]),
        ([PLAIN, new_result("pgd", 52.0)], "unclear", ["No clear difference", "can be chance"]),
        ([PLAIN, new_result("pgd", 70.0) | {"metrics": {"conflicting": 70.0, "unbiased": 20.0}}], "mixed", ["a trade"]),
        (RIVALS, "hurt", ["little sign of following the colour", "The best here on those is JTT with 90%"]),
        (RIVALS, "hurt", ["did not see the same number of samples (plain 1,000, PGD 2,400)"]),
        ([PLAIN], "single", ["There is nothing to compare it with yet: a run of PGD"]),
        ([new_result("pgd", 48.0)], "single", ["There is nothing to compare it with yet: a plain run"]),
    ],
)
def test_words_when_it_did_not(results: list[dict[str, Any]], kind: str, words: list[str]) -> None:
    found, told = said(*results)
    assert found == kind and "PGD helped" not in told and [each for each in words if each not in told] == []


def test_spread_over_seeds_decides_too() -> None:
    plain = [new_result("vanilla", value, seed=seed) for seed, value in enumerate((40.0, 60.0, 50.0))]
    steady = [new_result("pgd", value + 9, seed=seed) for seed, value in enumerate((40.0, 60.0, 50.0))]
    erratic = [new_result("pgd", value + 9, seed=seed) for seed, value in enumerate((60.0, 40.0, 50.0))]
    assert said(*plain, *steady)[0] == "helped"
    assert said(*plain, *erratic)[0] == "unclear"


def test_numbers_in_words() -> None:
    told = [percent(value) for value in (99.6, 99.99, 100, 0.2, 47.5)]
    assert told == ["99.6%", "almost 100%", "100%", "0.2%", "48%"]
    assert [duration(value) for value in (6.61, 200.0, 7500.0)] == ["6.6 s", "3 min 20 s", "2 h 05 min"]
    words = " ".join(score_words(new_result("pgd", 75.0), "images"))
    assert "are 5% of the training set and get 40% of the draws" in words
    assert "debiased training: about 90 of 400 images." in words


@pytest.mark.parametrize(
    ("name", "value"),
    [("precision", "bf16"), ("augment", "paper"), ("world_size", 2), ("code", "01234"), ("data_seed", 7)],
)
def test_runs_made_otherwise_are_not_averaged(name: str, value: Any) -> None:
    usual, other = new_result("pgd", 70.0), new_result("pgd", 10.0, seed=1, key="other")
    other["spec"][name] = value
    rows = summary_rows([usual, other])
    label = f"PGD, {'processes' if name == 'world_size' else name} {value}"
    assert sorted(len(row["seeds"]) for row in rows) == [1, 1] and label in {row["label"] for row in rows}


def test_rows_group_and_average_as_by_hand() -> None:
    results = [new_result("pgd", value, seed=seed) for seed, value in enumerate((70.0, 74.0, 78.0))]
    other = new_result("pgd", 60.0, key="other")
    other["spec"] = {**other["spec"], "fields": {"alpha": 0.3, "p": 2}}
    elsewhere = new_result("pgd", 90.0, rho=0.01, key="elsewhere")
    copy = new_result("pgd", 70.0, seed=0)
    rows = summary_rows([*results, other, elsewhere, copy, new_result("vanilla", 40.0)])
    shown = [(0.01, "PGD"), (0.05, "Vanilla"), (0.05, "PGD, alpha 0.3"), (0.05, "PGD, alpha 0.7")]
    assert [(row["rho"], row["label"]) for row in rows] == shown
    assert rows[-1]["seeds"] == [0, 1, 2], "a copy is no further seed"
    assert [rows[-1][name] for name in ("conflicting", "conflicting_std")] == [74.0, 4.0]
    assert rows[-1]["seconds"] == pytest.approx(6.6) and rows[0]["conflicting_std"] is None
    headings, cells = text_table(rows)
    assert headings[:3] == ["Method", "rho", "Unbiased"]
    assert cells[-1][:5] == ["PGD, alpha 0.7", "5%", "76.5 ± 3.6", "99.0 ± 0.0", "74.0 ± 4.0"]


def test_page_shows_every_part_and_loads_nothing(both: list[Path], tmp_path: Path) -> None:
    page = page_of(both, tmp_path)
    text = text_of(page)
    with np.load(both[1] / "samples.npz") as samples:
        highest = int(samples["train_conflicting"].reshape(10, 2, 6)[:, 0].sum())
        (first, *_) = scored_classes(dict(samples), [], "colour", 8)
    assert 10 < highest <= 20
    for words in (
        "PGD helped: it is right on 75%",
        "Of the 18 images shown that go against the shortcut, right: Vanilla on 0, PGD on 18.",
        "Vanilla errs on 18 of them; 18 times it names the class its colour usually means.",
        "debiaser train digits --method pgd --rho 0.05 --recipe fast --epochs 3 --net simconv1 --seed 0",
        "stage border",
        f"{highest} of 60 among the highest scores, 0 of 60 among the lowest",
    ):
        assert words in text
    assert page.count('<svg class="figure"') == 3 and page.count("data:image/webp;base64,") == 20 + 120
    scores = [float(image["words"].partition("score ")[2].partition(",")[0]) for image in first["highest"]]
    assert scores == sorted(scores, reverse=True) and any(image["conflicting"] for image in first["highest"])
    assert all(("goes against" in image["words"]) == image["conflicting"] for image in first["highest"])
    identifiers = re.findall(r'\bid="([^"]+)"', page)
    assert len(identifiers) == len(set(identifiers)) and len(page) < 600_000
    policy = page.partition('"Content-Security-Policy" content="')[2].partition('">')[0]
    assert {"default-src 'none'", "base-uri 'none'", "form-action 'none'"} <= set(policy.split("; "))
    sources = re.findall(r"(?:src|href|action|data|poster)=[\"']([^\"']*)", page)
    assert all(source.startswith(("data:", "#")) for source in sources) and not re.search(r"@import|url\((?!#)", page)
    svg = {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    assert set(re.findall(r"https?://[^\s\"'<]+", page)) <= svg


def test_code_in_texts_is_set_as_code_and_the_rest_stays_text() -> None:
    assert with_code("a `b<i>` <script> `") == "a <code>b&lt;i&gt;</code> &lt;script&gt; `"


def test_missing_and_broken_files_are_said_in_words(both: list[Path], tmp_path: Path) -> None:
    (both[0] / "history.csv").unlink()
    (both[1] / "vectors.npz").write_bytes(b"PK\x03\x04 half a file")
    (both[1] / "samples.npz").write_bytes((both[1] / "samples.npz").read_bytes()[:4000])
    text = text_of(page_of(both, tmp_path))
    assert "Vanilla: not shown, history.csv is missing." in text
    assert "PGD: not shown, vectors.npz cannot be read" in text
    assert "PGD: not shown, samples.npz cannot be read" in text
    for folder in both:
        for name in ("history.csv", "vectors.npz", "samples.npz"):
            (folder / name).unlink(missing_ok=True)
    assert "PGD helped" in text_of(page_of(both, tmp_path))


def test_finding_runs_skips_the_foreign_and_names_them(both: list[Path], tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    odd = [("metrics", [1]), ("rows", {"test": "x"}), ("seed", "<b>"), ("rho", 1e400), ("spec", None), ("key", 3)]
    odd += [("samples_seen", 10**400), ("seconds", {"all": float("nan")})]
    wrong = {name: json.dumps(new_result("pgd", 75.0, **{name: value})) for name, value in odd}
    wrong |= {"foreign": '{"score": 3}', "half": '{"protocol": 1, "met', "binary": "\0\xff"}
    for name, content in wrong.items():
        (runs / "deep" / name).mkdir(parents=True)
        (runs / "deep" / name / "result.json").write_text(content, encoding="latin-1")
    (runs / "going" / "checkpoint").mkdir(parents=True)
    found = find_runs(runs)
    assert [result["folder"] for result in found.results] == both and len(find_runs(both[0]).results) == 1
    text = text_of(write_page(found, tmp_path / "page.html").read_text())
    assert [name for name in wrong if f"deep/{name}: result.json was left out" not in text] == []
    assert "going: left out" in text and str(tmp_path) not in text


def test_same_input_same_bytes_in_another_process(both: list[Path], tmp_path: Path) -> None:
    program = "import sys; from pathlib import Path; from debiaser.report.run_page import write_page;"
    program += "from debiaser.report.runs import find_runs;"
    program += "write_page(find_runs(Path(sys.argv[1])), Path(sys.argv[2])); assert 'torch' not in sys.modules"
    other = tmp_path / "other.html"
    command = [sys.executable, "-c", program, str(tmp_path / "runs"), str(other)]
    subprocess.run(command, check=True, env={**os.environ, "PYTHONHASHSEED": "3"}, timeout=60)
    assert other.read_text() == page_of(both[::-1], tmp_path)


def test_a_big_folder_stays_small_and_is_grouped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for rho in (0.01, 0.05):
        for seed in (1, 2):
            for method, value in (("vanilla", 40.0), ("pgd", 70.0)):
                key = f"{rho}-{method}-{seed}"
                write_run(tmp_path / "runs" / key, new_result(method, value + seed, seed=seed, rho=rho, key=key))
    page = write_page(find_runs(tmp_path / "runs"), tmp_path / "page.html").read_text()
    text = text_of(page)
    assert len(page) < 1_000_000 and "left out to keep this page small" not in text
    assert text.index("Overview") < text.index("digits, 1% against the shortcut, fast recipe PGD helped")
    assert "one run per method, the one with the lowest seed, out of 4: Vanilla (seed 1), PGD (seed 1)" in text
    assert "71.5 ± 0.7" in text
    monkeypatch.setattr("debiaser.report.run_page.ROOM", 60_000)
    smaller = write_page(find_runs(tmp_path / "runs"), tmp_path / "page.html").read_text()
    assert "left out to keep this page small" in smaller.partition('id="section1"')[2]
    assert [2 * smaller.count(each) for each in ("<svg", "data:im")] == [
        page.count(each) for each in ("<svg", "data:im")
    ]


def test_images_are_exact_when_tiny_and_small_when_large() -> None:
    tiny = np.random.default_rng(0).integers(0, 256, (8, 8, 3), np.uint8)
    decoded = [
        Image.open(io.BytesIO(base64.b64decode(figures.data_uri(image).partition(",")[2]))).convert("RGB")
        for image in (tiny, np.zeros((300, 200, 3), np.uint8))
    ]
    assert np.array_equal(np.asarray(decoded[0]), tiny)
    assert decoded[1].size == (64, 96)


def test_histogram_axis_follows_the_tail() -> None:
    heavy = np.r_[np.full(99, 0.01), 5.0]
    assert figures.score_bins(heavy)[1]
    assert not figures.score_bins(np.linspace(0, 1, 50))[1]
    for scores in (np.zeros(5), np.array([-1.0, 2.0]), np.array([3.0]), np.r_[np.zeros(9), 1e-300]):
        edges, _ = figures.score_bins(scores)
        assert (np.diff(edges) > 0).all()
        assert np.histogram(scores, edges)[0].sum() == len(scores)


def test_the_name_of_a_column_fits_above_its_images() -> None:
    sizes = [fitting(["deer", name], CELL).size for name in ("deer", "pole vaulting", "a name that is far too long")]
    assert sizes[0] == LETTERS[0] > sizes[1] > sizes[2] == LETTERS[1]
    assert fitting(["pole vaulting"], CELL).getlength("pole vaulting") <= CELL


def test_many_pixels_are_averaged_and_few_shown_as_they_are(tmp_path: Path) -> None:
    board = (np.indices((2 * CELL, 2 * CELL)).sum(0) % 2 * 255).astype(np.uint8)[:, :, None].repeat(3, 2)
    sheet = np.asarray(Image.open(write_sheet(tmp_path / "sheet.png", ["a"], [("row", [board])])))
    middle = sheet[HEAD + 10 : HEAD + 50, MARGIN + 10 : MARGIN + 50]
    assert ((middle > 100) & (middle < 155)).all(), "grey, not the one pixel in four that was hit"


def test_the_lengths_of_stages_are_told_one_by_one() -> None:
    recipe = {"epochs": 10, "stages": {"biased": {"epochs": 4, "lr": 0.02}, "debiased": {}}}
    told = settings({"protocol": 1, "seed": 0, "spec": {"recipe": recipe}})
    assert (told["biased.epochs"], told["biased.lr"], told["debiased.epochs"]) == (4, 0.02, 10)
    assert "recipe.stages" not in told and told["recipe.epochs"] == 10


def test_a_page_that_browsers_open_slowly_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    audit_page.write_audit_page(tmp_path / "small.html", **image_audit(60))
    assert not caplog.records
    monkeypatch.setattr(audit_page, "LARGE_PAGE", 10_000)
    audit_page.write_audit_page(tmp_path / "large.html", **image_audit(60))
    assert "large.html" in caplog.text and "--redact images" in caplog.text


def test_an_audit_page_says_verdict_model_and_next_step_first_and_how_to_run_it_again_last(tmp_path: Path) -> None:
    page = audit_page.write_audit_page(tmp_path / "report.html", **image_audit(60)).read_text()
    first = text_of(page.split('<p class="summary-line">')[1].split("</p>")[0])
    assert re.search(r"Verdict biased.*Exported PGD.*Next mark \d+ images", first), first
    assert page.index("debiaser audit scans/clinic") > page.index('id="how"') > page.index('id="marking"')


def test_a_column_of_zeros_is_left_out() -> None:
    rows = [new_result("vanilla", 50.0), new_result("pgd", 60.0)]
    for worst, shown in ((0.0, False), (1.0, True)):
        rows[0]["metrics"]["worst_group"], rows[1]["metrics"]["worst_group"] = 0.0, worst
        assert ("Worst group" in text_table(summary_rows(rows))[0]) is shown
