"""Studies: specs and keys, a store that names what it leaves out, findings, and what the page shows of them."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from debiaser.cli.runs import found_in, report
from debiaser.errors import Misuse
from debiaser.paper.results import histogram, measures, selection, table
from debiaser.paper.spec import new_spec
from debiaser.paper.studies import STUDIES, Study, find_studies
from debiaser.paper.studies.findings import (
    Scale,
    also_printed,
    epochs_of,
    expected_seconds,
    findings,
    gather,
    missing,
    tally,
)
from debiaser.paper.studies.study import Cell
from debiaser.report.figures import write_study_figures
from debiaser.report.run_page import find_runs, write_page
from debiaser.report.tables import study_markdown, study_table

ROOT = Path(__file__).resolve().parents[1]


def test_every_published_number_of_a_study_stands_beside_a_cell() -> None:
    for label, study in STUDIES.items():
        assert study.label == label
        printed = [cell.published(label) for cell in study.cells if cell.printed]
        assert all(printed), f"{label} has a cell for which the paper has no number"
        rest = [each for each in table(label) if each.mean is not None and each not in printed]
        words = ("difference", "p_value", "percent_of_time")  # from the text; shown below the table
        assert all(each.metric.endswith(words) or "minus" in each.variant for each in rest), label
        assert len(also_printed(study)) == len(rest)


def test_unknown_study_names_the_known_ones() -> None:
    with pytest.raises(Misuse, match="control"):
        find_studies("nosuch")
    assert len(find_studies("all")) == len(STUDIES)


def test_keys_that_were_kept_are_still_those_of_their_specs() -> None:
    kept = [json.loads(path.read_text()) for path in (ROOT / "results" / "cmnist").glob("*-pgd-*-fast-*.json")]
    usual = {each["key"] for each in kept if "parameters" not in each["spec"]["fields"]}
    planned = {new_spec("cmnist", "pgd", rho, seed=seed).key for rho in (0.005, 0.01, 0.05) for seed in range(3)}
    assert planned <= usual
    said = [new_spec("cmnist", "pgd", 0.005, changes=["rate=1"]), new_spec("cmnist", "pgd", 0.005)]
    said += [new_spec("cmnist", "lff", 0.005, changes=[*each]) for each in (["relative=true"], [])]
    assert said[0].key == said[1].key and said[2].key == said[3].key, "a field's usual value changes no key"
    assert new_spec("cmnist", "pgd", 0.005, changes=["rate=0.5"]).key != said[0].key


def test_a_command_makes_the_run_of_its_cell() -> None:
    cell = STUDIES["real_3"].cells[0]
    words = ("--method", "vanilla", "--net", "resnet18", "--recipe", "paper", "--seed", "1", "--option", "crop=whole")
    assert cell.command("paper", 1) == ["train", "celeba", *words], "as BPA's code sees them (D15)"
    assert cell.spec("paper", 1).options == {"crop": "whole"}
    noisy = Cell("x", "cmnist", "pgd", 0.005, ("p=inf", "alpha=none"), noise=0.05)
    words = ("--method", "pgd", "--rho", "0.005", "--noise", "0.05", "--epochs", "2", "--seed", "0")
    assert noisy.command("fast", 0, 2) == ["train", "cmnist", *words, "--set", "p=inf", "--set", "alpha=none"]


def result(study: Study, name: str, seed: int, value: float, recipe: str = "fast", **more: Any) -> dict[str, Any]:
    """A result as a run would write it, with this value of unbiased accuracy."""
    spec = next(cell for cell in study.cells if cell.name == name).spec(recipe, seed)
    identity = {"key": spec.key, "spec": spec.plain(), "dataset": spec.dataset, "method": spec.method, "rho": spec.rho}
    found = {"metrics": {"unbiased": value}, "seconds": {"all": 20.0}, "rows": {"train": 100}, "samples_seen": 2000}
    return {"protocol": 1, "environment": {}, "seed": seed, "recipe": recipe, **identity, **found, **more}


def write(folder: Path, content: dict[str, Any] | str, name: str = "") -> None:
    """`result.json` in a folder named by its key, or by the given name."""
    here = folder / (name or (content["key"] if isinstance(content, dict) else "x"))
    here.mkdir(parents=True)
    (here / "result.json").write_text(json.dumps(content) if isinstance(content, dict) else content)


def test_results_that_cannot_count_are_named_and_left_out(tmp_path: Path) -> None:
    study = STUDIES["scored_pictures"]
    for seed, value in enumerate((97.0, 98.0)):
        write(tmp_path, result(study, "Clean", seed, value))
    good = result(study, "Augmented", 0, 96.0)
    write(tmp_path / "another machine", good)
    write(tmp_path / "copied twice", good)
    write(tmp_path, '{"half": ', "half-written")
    write(tmp_path, {"accuracy": 1}, "foreign")
    write(tmp_path, good, "renamed")
    write(tmp_path, {**result(study, "Clean", 2, 10.0), "protocol": 0})
    tampered = result(study, "Clean", 3, 10.0)
    tampered["spec"]["recipe"]["epochs"] = 1
    write(tmp_path, tampered)
    other = new_spec("cmnist", "pgd", 0.005, epochs=1)
    write(tmp_path, {**result(study, "Clean", 0, 10.0), "key": other.key, "spec": other.plain()})
    elsewhere = new_spec("cmnist", "pgd", 0.005, data_seed=7)
    write(tmp_path, {**result(study, "Clean", 0, 10.0), "key": elsewhere.key, "spec": elsewhere.plain()})
    write(tmp_path / "third", {**good, "metrics": {"unbiased": 1.0}})
    store = gather(tmp_path)
    said = "\n".join(store.left_out)
    for words in ("no complete JSON", "no result of debiaser", "name is not that of the run", "protocol 0"):
        assert words in said
    assert "not those that its key" in said and "other numbers" in said and len(store.left_out) == 6
    found = findings(study, store, Scale())
    clean, augmented = found["cells"]
    assert (clean["mean"], clean["runs"], augmented["mean"], augmented["runs"]) == (97.5, 2, 96.0, 1), (
        "runs of another length or on data of another seed are not averaged"
    )
    assert found["claim"] == "held" and found["not_run"] == []


def test_a_result_that_was_left_out_lends_no_parts(tmp_path: Path) -> None:
    study = STUDIES["ab_hist"]
    name = "AUROC of norms"
    write(tmp_path / "a", result(study, name, 0, 97.0))
    write(
        tmp_path / "b",
        result(study, name, 0, 96.0, histogram={"mean": {"aligned": 0.9}, "aligned": [1], "conflicting": [1]}),
    )
    store = gather(tmp_path)
    assert "other numbers" in store.left_out[0] and all("histogram" not in each for each in store.all())


@pytest.mark.parametrize(
    "odd",
    [
        {"seconds": {"all": "long"}},
        {"rows": {"train": "many"}},
        {"samples_seen": True},
        {"metrics": {"unbiased": 1e999}},
    ],
)
def test_odd_values_are_named_and_stop_nothing(tmp_path: Path, odd: dict[str, Any]) -> None:
    study = STUDIES["compute_time"]
    text = json.dumps({**result(study, "PGD", 0, 97.0), **odd}).replace("Infinity", "1e999")
    write(tmp_path, text, result(study, "PGD", 0, 97.0)["key"])
    store = gather(tmp_path)
    assert "are not all numbers" in store.left_out[0]
    assert findings(study, store, Scale())["claim"] == "not testable" and found_in(store) == []
    assert expected_seconds(study.cells[0].spec("fast", 0), store.all()) is None


def test_finished_runs_are_not_planned_again_but_incomplete_ones_are(tmp_path: Path) -> None:
    study, scale = STUDIES["scored_pictures"], Scale(seeds=2)
    assert len(missing([study, STUDIES["whole_network"]], gather(tmp_path), scale)) == 6  # the plain PGD is shared
    write(tmp_path, result(study, "Clean", 0, 97.0))
    left = missing([study], gather(tmp_path), scale)
    assert [each.spec.seed for each in left] == [0, 1, 1]
    traces = STUDIES["invq_compare"].only("cmnist")
    assert len(missing([traces], gather(tmp_path), scale)) == 4, "without its model, what it lacks cannot be measured"
    for path in tmp_path.glob("*-pgd-*"):
        (path / "model.safetensors").touch()
    assert [each.spec.method for each in missing([traces], gather(tmp_path), Scale())] == ["vanilla"]


def test_expected_time_goes_by_the_pace_of_past_runs() -> None:
    study = STUDIES["twice_the_length"]
    past = [result(study, "PGD", 0, 97.0)]
    by_name = {cell.name: cell.spec("fast", 0) for cell in study.cells}
    assert epochs_of(by_name["PGD"]) == 20 and epochs_of(by_name["Vanilla, twice as long"]) == 40
    assert expected_seconds(by_name["PGD"], past) == pytest.approx(20.0)  # 20 epochs of 100 rows at 0.01 s
    assert expected_seconds(by_name["Vanilla, twice as long"], past) == pytest.approx(40.0)
    assert expected_seconds(replace(by_name["PGD"], dataset="bar"), past) is None


def test_measures_come_from_history_and_vectors() -> None:
    told = ((1, 90, 0.5), (2, 95, 0.9), (3, 92, 0.7))
    rows: list[dict[str, Any]] = [{"stage": "biased", "epoch": 1, "unbiased": 20, "valid_loss": 0.1}]
    rows += [{"stage": "debiased", "epoch": k, "unbiased": u, "valid_loss": v} for k, u, v in told]
    vectors = {"score": np.array([0.0, 0.5, 1.0, 2.0]), "conflicting": np.array([0, 0, 1, 1])}
    found = measures(rows, vectors)
    assert found["stages"]["biased"]["unbiased"] == 20 and found["stages"]["debiased"]["unbiased"] == 92
    assert {rule: each["epoch"] for rule, each in found["selection"].items()} == {
        "last": 3,
        "best_valid": 1,
        "oracle": 2,
    }
    counts = found["histogram"]
    assert counts["aligned"] == [1, 0, 1, *[0] * 7] and counts["conflicting"] == [*[0] * 5, 1, *[0] * 3, 1]
    assert counts["mean"] == {"aligned": 0.125, "conflicting": 0.75}
    assert histogram({"score": np.full(4, np.nan), "conflicting": np.zeros(4)}) == {} and selection([]) == {}
    assert Cell("x", "cmnist", "pgd", reads="histogram.conflicting.9").read(found) == 1
    assert Cell("x", "cmnist", "pgd", reads="selection.last.nosuch").read(found) is None


def test_tables_and_figures_show_ours_beside_published(tmp_path: Path) -> None:
    study, both = STUDIES["ablation"].only("cmnist"), "GCE yes, augmentation yes"
    write(tmp_path, result(study, both, 0, 97.88))
    found = findings(study, gather(tmp_path), Scale())
    headings, rows = study_table(found)
    assert headings == ["Cell", "Ours", "Runs", "Published", "Difference"]
    assert rows[-1] == [both, "97.88", "1", "96.88 ± 0.28", "+1.00"] and rows[0][1] == "–"
    text = study_markdown(found)
    assert (
        "not testable here" in text
        and "debiaser train cmnist --method pgd --rho 0.005 --seed 0 --set alpha=none" in text
    )
    drawn = write_study_figures(found, tmp_path / "figures")
    assert [path.suffix for path in drawn] == [".pdf", ".png"] and all(path.stat().st_size > 2000 for path in drawn)
    assert tally(study, gather(tmp_path), Scale(seeds=1))[-1].values == (97.88,)


def test_the_page_of_a_folder_says_what_each_study_found(tmp_path: Path) -> None:
    study = STUDIES["scored_pictures"]
    write(tmp_path, result(study, "Clean", 0, 97.0))
    write(tmp_path, result(study, "Augmented", 0, 96.0))
    told = found_in(gather(tmp_path))
    page = write_page(find_runs(tmp_path), tmp_path / "report.html", studies=told).read_text()
    assert "Studies: what the paper claims" in page and 'id="study-scored_pictures"' in page
    assert "Clean 97.00, Augmented 96.00, difference +1.00" in page and "<svg" in page
    assert '<b class="held">held</b>' in page and '<b class="not-testable">not testable</b>' in page
    assert page.count(">no runs<") == sum(not each["runs"] for each in told) > 0


def test_the_page_takes_copies_of_results(tmp_path: Path) -> None:
    study, folder = STUDIES["scored_pictures"], tmp_path / "results" / "cmnist"
    folder.mkdir(parents=True)
    for name, value in (("Clean", 97.0), ("Augmented", 96.0)):
        copy = result(study, name, 0, value)
        (folder / f"{copy['key']}.json").write_text(json.dumps(copy))
    (folder / "cmnist-half-0123456789.json").write_text("{")
    report(tmp_path / "results", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "Clean 97.00, Augmented 96.00, difference +1.00" in page
    assert "cmnist/cmnist-half-0123456789.json: it was left out: it is no complete JSON" in page
    assert page.count("cmnist-half") == 1, "it is named once"


def test_the_page_names_what_no_study_counts(tmp_path: Path) -> None:
    study = STUDIES["scored_pictures"]
    write(tmp_path, result(study, "Clean", 0, 97.0))
    tampered = result(study, "Clean", 3, 10.0)
    tampered["spec"]["recipe"]["epochs"] = 1
    write(tmp_path, tampered)
    write(tmp_path, '{"half": ', "half-written")
    report(tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert f"Studies: {tampered['key']} was left out: its settings are not those" in page
    assert page.count("it is no complete JSON") == 1


def test_numbers_are_told_as_what_they_are(tmp_path: Path) -> None:
    times = STUDIES["compute_time"]
    for seed, seconds in enumerate((100.0, 120.0)):
        write(tmp_path, {**result(times, "PGD", seed, 97.0), "seconds": {"score": seconds}})
    found = findings(times, gather(tmp_path), Scale())
    row = next(row for row in study_table(found)[1] if row[0] == "PGD")
    assert row == ["PGD", "1 min 50 s ± 14.1 s", "2", "33 min 31 s", "-1,901 s"]
    norms = findings(STUDIES["ab_hist"], gather(tmp_path), Scale(epochs=1))["protocol"]
    assert "accuracy" not in norms and norms.startswith("Recipe `fast` with 1 epoch a stage; ")


def test_a_study_can_move_to_another_dataset() -> None:
    moved = STUDIES["control"].on("digits")
    assert {cell.place for cell in moved.cells} == {("digits", 0.05, 0.0)} and len(moved.cells) == 5
    assert {cell.place for cell in STUDIES["scored_pictures"].on("digits").cells} == {("digits", 0.05, 0.0)}
    assert {cell.rho for study in STUDIES.values() for cell in study.on("bar").cells} == {None}, "its bias is natural"
    assert [cell.noise for cell in STUDIES["label_noise"].on("bar").cells[::2]] == [0.0, 0.05, 0.1, 0.2]
    assert not STUDIES["second_easiest"].on("digits").cells, "where the colour is not asked for"
    assert len(STUDIES["rho_sweep"].on("digits").cells) == 20 and not any(c.printed for c in moved.cells)
    assert {cell.rho for cell in STUDIES["natural"].on("digits").cells} == {0.9}
