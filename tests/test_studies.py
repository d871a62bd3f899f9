"""Studies: keys, a store that names what it leaves out, findings, what the page shows; claims on hand-made cells."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from conftest import ROOT, script
from debiaser import PGD, gradient_norms
from debiaser.cli.runs import found_in, report
from debiaser.methods.task import Task
from debiaser.paper.experiment import histogram, measures, selection
from debiaser.paper.results import finished, table
from debiaser.paper.spec import new_spec
from debiaser.paper.studies import STUDIES, Study
from debiaser.paper.studies.findings import Scale, also_printed, expected_seconds, findings, gather, missing, tally
from debiaser.paper.studies.study import Cell, Tally, Verdict, alike
from debiaser.report.figures import study_figures, write_study_figures
from debiaser.report.run_page import write_page
from debiaser.report.runs import find_runs
from debiaser.report.tables import study_table


def test_every_published_number_of_a_study_stands_beside_a_cell() -> None:
    for label, study in STUDIES.items():
        assert study.label == label
        printed = [cell.published(label) for cell in study.cells if cell.printed]
        assert all(printed), f"{label} has a cell for which the paper has no number"
        rest = [each for each in table(label) if each.mean is not None and each not in printed]
        words = ("difference", "p_value", "percent_of_time")  # from the text; shown below the table
        assert all(each.metric.endswith(words) or "minus" in each.variant for each in rest), label
        assert len(also_printed(study)) == len(rest)


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
    write(tmp_path / "third", {**good, "metrics": {"unbiased": 1.0}, "histogram": {"aligned": [1]}})
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
    assert all("histogram" not in each for each in store.all()), "what was left out lends no parts"


def test_a_finished_run_is_read_as_it_was_written(tmp_path: Path) -> None:
    content = result(STUDIES["scored_pictures"], "Clean", 0, 97.0, published=None, classes=["0"], notes=[])
    write(tmp_path, content)
    assert finished(tmp_path / content["key"]) == (content, "") and finished(tmp_path / "none") == (None, "")
    (tmp_path / content["key"] / "result.json").write_text("{")
    assert finished(tmp_path / content["key"]) == (None, "it is no complete JSON")


ODD = [{"seconds": {"all": "long"}}, {"rows": {"train": "many"}}, {"samples_seen": "all"}]


@pytest.mark.parametrize("odd", [*ODD, {"metrics": {"unbiased": 1e999}}])
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
    assert expected_seconds(by_name["PGD"], past) == pytest.approx(20.0)
    assert expected_seconds(by_name["Vanilla, twice as long"], past) == pytest.approx(40.0)
    assert expected_seconds(replace(by_name["PGD"], dataset="bar"), past) is None


def test_measures_come_from_history_and_vectors() -> None:
    told = ((1, 90, 0.5), (2, 95, 0.9), (3, 92, 0.7))
    rows: list[dict[str, Any]] = [{"stage": "biased", "epoch": 1, "unbiased": 20, "valid_loss": 0.1}]
    rows += [{"stage": "debiased", "epoch": k, "unbiased": u, "valid_loss": v} for k, u, v in told]
    vectors = {"score": np.array([0.0, 0.5, 1.0, 2.0]), "conflicting": np.array([0, 0, 1, 1])}
    found = measures(rows, vectors)
    assert found["stages"]["biased"]["unbiased"] == 20 and found["stages"]["debiased"]["unbiased"] == 92
    epochs = {rule: each["epoch"] for rule, each in found["selection"].items()}
    assert epochs == {"last": 3, "best_valid": 1, "oracle": 2}
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
    text = script("docs/making/tables.py").study_markdown(found)
    assert "not testable here" in text and "`debiaser study ablation --commands` lists them." in text
    assert "train cmnist --method pgd --rho 0.005 --seed 0 --set alpha=none" in found["not_run"]
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
    tampered = result(study, "Clean", 3, 10.0)
    tampered["spec"]["recipe"]["epochs"] = 1
    write(tmp_path, tampered)
    report(tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert f"Studies: {tampered['key']} was left out: its settings are not those" in page, "what no study counts"


def test_numbers_are_told_as_what_they_are(tmp_path: Path) -> None:
    small = {"mean norm, aligned": 0.0003, "mean norm, conflicting": 0.6, "AUROC of norms": 0.99}
    assert "aligned 0.0003" in judged("ab_hist", small).sentence
    times = STUDIES["compute_time"]
    for seed, seconds in enumerate((100.0, 120.0)):
        write(tmp_path, {**result(times, "PGD", seed, 97.0), "seconds": {"score": seconds}})
    found = findings(times, gather(tmp_path), Scale())
    row = next(row for row in study_table(found)[1] if row[0] == "PGD")
    assert row == ["PGD", "1 min 50 s ± 14.1 s", "2", "33 min 31 s", "-1,901 s"]
    norms = findings(STUDIES["ab_hist"], gather(tmp_path), Scale(epochs=1))["protocol"]
    assert "accuracy" not in norms and norms.startswith("Recipe `fast` with 1 epoch a stage; ")


def test_accuracy_stands_against_the_share_of_draws_on_conflicting_samples(tmp_path: Path) -> None:
    study = STUDIES["frontier"]
    rows = {"train": 1000, "conflicting": 5}
    write(tmp_path, result(study, "Vanilla", 0, 50.0, rows=rows))
    drawn = {"unbiased": 97.0, "score_auroc": 1.0, "score_conflicting_mass": 0.88}
    write(tmp_path, result(study, "DPR", 0, 97.0, rows=rows, metrics=drawn))
    write(tmp_path, result(study, "RWG (group labels)", 0, 96.0, rows=rows, metrics={**drawn, "unbiased": 96.0}))
    found = findings(study, gather(tmp_path), Scale())
    shares = {each["name"]: each["mean"] for each in found["cells"] if each["metric"] == "drawn" and each["runs"]}
    assert shares == {"Vanilla, draws": 0.005, "DPR, draws": 0.88, "RWG (group labels), draws": 0.88}
    (_, svg), *rest = study_figures(found)
    assert not rest and all(f">{name}<" in svg for name in ("Vanilla", "DPR", "RWG (group labels)"))
    on_features = Cell("x", "bar", "dfr", recipe="features", options=("features=efficientnet_lite0",))
    words = ("--method", "dfr", "--recipe", "features", "--seed", "0", "--option", "features=efficientnet_lite0")
    assert on_features.command("fast", 0) == ["train", "bar", *words]
    assert on_features.spec("fast", 0).recipe.name == "features"


def test_a_study_can_move_to_another_dataset() -> None:
    moved = STUDIES["control"].on("digits")
    assert {cell.place for cell in moved.cells} == {("digits", 0.05, 0.0)} and len(moved.cells) == 5
    assert {cell.place for cell in STUDIES["scored_pictures"].on("digits").cells} == {("digits", 0.05, 0.0)}
    assert {cell.rho for study in STUDIES.values() for cell in study.on("bar").cells} == {None}, "its bias is natural"
    assert [cell.noise for cell in STUDIES["label_noise"].on("bar").cells[::3]] == [0.0, 0.05, 0.1, 0.2]
    assert not STUDIES["second_easiest"].on("digits").cells, "where the colour is not asked for"
    assert len(STUDIES["rho_sweep"].on("digits").cells) == 30 and not any(c.printed for c in moved.cells)
    assert {cell.rho for cell in STUDIES["natural"].on("digits").cells} == {0.9}


# Claims, judged on hand-made cells.


def judged(label: str, values: dict[str, Any]) -> Verdict:
    """What a study says of cells of one dataset's first place with these values by name; the others have no runs."""
    study, dataset = STUDIES[label], {"real_2": "celeba", "second_easiest": "cmnist-colour"}.get(label, "cmnist")
    place = next(cell.place for cell in study.cells if cell.dataset == dataset)
    found = []
    for cell in study.cells:
        given = values.get(cell.name) if cell.place == place else None
        numbers = () if given is None else given if isinstance(given, tuple) else (given,)
        fake = tuple({"samples_seen": 10, "seconds": {}} for _ in numbers)
        found.append(Tally(cell, numbers, tuple(range(len(numbers))), fake))
    return study.judge(found)


ALPHAS = [f"alpha {alpha}, biased model" for alpha in (0.3, 0.5, 0.7, 0.9)]
BOTH = "GCE yes, augmentation yes"
OTHERS = {"GCE no, augmentation no": 85.0, "GCE yes, augmentation no": 93.0, "GCE no, augmentation yes": 91.0}
TEN = tuple(97 + k / 10 for k in range(10))
DAMPED = {
    f"{who}, damping {by}": value for by in ("1e-6", "1e-4", "1e-2") for who, value in (("Vanilla", 9), ("PGD", 3))
}
RULES = ("last epoch", "best biased validation", "oracle")
RANKS = {f"{name}, {rule}": value for rule in RULES for name, value in (("PGD", 97.0), ("JTT", 90.0))}
WORST = {"PGD, worst group": 88.0, "CNC, worst group": 85.0, "PGD, average": 80.0, "CNC, average": 90.0}
COLOURS = {"PGD (colour)": 98.9, "Vanilla (colour)": 90.3}
COUNTS = {f"samples, {each.variant}": each.mean or 0.0 for each in table("stat_reverse")}
KINDS = {"aligned": "conflicting", "conflicting": "aligned"}
SWAPPED = {re.sub("aligned|conflicting", lambda kind: KINDS[kind[0]], name): COUNTS[name] for name in COUNTS}
CASES = [
    ("control", {"PGD": 97.0, "Vanilla": 60.0, "Disen": 94.0}, "held"),
    ("control", {"PGD": 93.0, "Vanilla": 60.0, "Disen": 94.0}, "not held"),
    ("control", {"PGD": (93.0, 95.0), "Disen": (94.0, 94.2)}, "held"),  # a tie within one deviation
    ("control", {"Vanilla": 60.0}, "not testable"),
    ("norm", {"L1": 97.0, "L2": 97.0, "L2 squared": 95.0, "Linf": 96.0, "Vanilla": 60.0}, "held"),
    ("norm", {"L1": 97.0, "L2": 97.0, "L2 squared": 97.5, "Linf": 96.0, "Vanilla": 60.0}, "not held"),
    ("norm", {"L1": 65.0, "L2": 97.0, "Vanilla": 60.0}, "not held"),  # known to fail before all has run
    ("norm", {"L1": 97.0, "L2": 97.0, "Vanilla": 60.0}, "not testable"),
    ("ablation", {BOTH: 96.9, **OTHERS}, "held"),
    ("gce_ablation", dict(zip(ALPHAS, (19.9, 18.7, 18.1, 17.4), strict=True)), "held"),
    ("gce_ablation", dict(zip(ALPHAS, (19.9, 18.7, 18.8, 17.4), strict=True)), "not held"),
    ("single_stage", {"Multi-stage": 96.9, "Single-stage": 92.2}, "held"),
    ("reweighting", {"Resampling": 96.9, "Reweighting": 94.7}, "held"),
    ("effect_grad_score", {"PGD": 97.0, "PGD + loss": 31.0, "LfF": 91.0, "LfF + gradient": 93.0}, "held"),
    ("effect_grad_score", {"PGD": 97.0, "PGD + loss": 31.0, "LfF": 91.0, "LfF + gradient": 90.0}, "not held"),
    ("effect_grad_score", {"PGD": 97.0, "PGD + loss": 97.0, "LfF": 91.0, "LfF + gradient": 93.0}, "not held"),
    ("compute_time", {"PGD": 100.0, "Vanilla": 50.0, "PGD, step 2": 4.0}, "held"),
    ("compute_time", {"PGD": 100.0, "Vanilla": 50.0, "PGD, step 2": 20.0}, "not held"),
    ("natural", {"PGD": 98.4, "Vanilla": 99.0}, "held"),
    ("natural", {"PGD": 97.0, "Vanilla": 99.0}, "not held"),
    ("natural", {"PGD": 99.0, "Vanilla": 97.0}, "not held"),  # "within" is said of both sides
    ("ab_hist", {"mean norm, aligned": 0.1, "mean norm, conflicting": 0.7, "AUROC of norms": 0.99}, "held"),
    ("ab_hist", {"mean norm, aligned": 0.1, "mean norm, conflicting": 0.7, "AUROC of norms": 0.6}, "not held"),
    ("hist_trial", {"PGD": TEN, "Disen": tuple(value - 3 for value in TEN)}, "held"),
    ("hist_trial", {"PGD": TEN, "Disen": TEN}, "not held"),
    ("hist_trial", {"PGD": TEN[:3], "Disen": tuple(value - 3 for value in TEN)}, "not testable"),
    ("invq_compare", DAMPED, "held"),
    ("invq_compare", {**DAMPED, "PGD, damping 1e-6": 10.0}, "not held"),
    ("twice_the_length", {"PGD": 97.0, "Vanilla, twice as long": 60.0, "Resampling only": 96.0}, "held"),
    ("residual", {"Gradient norm": 97.0, "Residual norm": 97.2}, "held"),
    ("residual", {"Gradient norm": 90.0, "Residual norm": 97.0}, "not held"),
    ("released_code", {"Formula": 97.0, "GCE with the factor q": 96.5, "L0.7": 97.5, "Weight and bias": 97.0}, "held"),
    ("whole_network", {"Head": 97.0, "Whole network": 97.2}, "held"),
    ("scored_pictures", {"Clean": 97.0, "Augmented": 95.0}, "held"),
    ("label_noise", {"PGD": 90.0, "Vanilla": 50.0}, "held"),
    ("label_noise", {"PGD": (49.0, 51.0), "Vanilla": (50.0, 50.2)}, "not held"),  # a tie is not above
    ("rho_sweep", {"PGD": 90.0, "Vanilla": 50.0}, "held"),
    ("frontier", {"PGD": 97.0, "DPR": 96.6}, "held"),
    ("frontier", {"PGD": 97.0, "DPR": 96.4, "Cells": 98.0}, "not held"),
    ("real_2", WORST, "held"),
    ("real_2", {**WORST, "CNC, worst group": 89.0}, "not held"),
    ("selection", RANKS, "held"),
    ("selection", {**RANKS, "JTT, oracle": 98.0}, "not held"),
    ("selection", {"PGD, last epoch": 97.0}, "not testable"),
    ("second_easiest", COLOURS, "not testable"),  # the histogram is a part of the claim
    ("second_easiest", COLOURS | COUNTS, "held"),
    ("second_easiest", COLOURS | SWAPPED, "not held"),
    ("second_easiest", COLOURS | COUNTS | {"PGD (colour)": 80.0}, "not held"),
]


@pytest.mark.parametrize(("label", "values", "claim"), CASES)
def test_claims(label: str, values: dict[str, float | tuple[float, ...]], claim: str) -> None:
    verdict = judged(label, values)
    assert verdict.claim == claim and verdict.sentence.endswith(".")
    if claim != "not testable" and label != "selection":  # which tells of ranks
        assert any(
            f"{np.mean(value):.2f}"[:4] in verdict.sentence or "%" in verdict.sentence for value in values.values()
        )


def test_cells_are_compared_by_the_seeds_they_share() -> None:
    fall = dict(zip(ALPHAS, (19.9, 18.7, (18.1, 30.0), 17.4), strict=True))  # a second run of one alpha alone
    verdict = judged("gce_ablation", fall)
    assert verdict.claim == "held" and "alpha 0.7, biased model 18.10, " in verdict.sentence
    assert "(on the shared seed 0)" in verdict.sentence
    verdict = judged("control", {"PGD": (97.0, 60.0), "Vanilla": 50.0, "Disen": 94.0})
    assert verdict.claim == "held" and "PGD 97.00, best of" in verdict.sentence, "its second seed has no rival"
    squared = {"L1": 97.0, "L2": 97.0, "L2 squared": (95.0, 99.9), "Linf": 96.0, "Vanilla": 60.0}
    assert judged("norm", squared).claim == "held"
    assert judged("second_easiest", COLOURS | COUNTS | {"Vanilla (colour)": (90.0, 99.9, 99.9)}).claim == "held"
    verdict = judged("selection", {**RANKS, "PGD, oracle": (97.0, 10.0, 10.0)})
    assert verdict.claim == "held" and "(on the shared seed 0)" in verdict.sentence


def test_words_about_shared_seeds() -> None:
    cell = STUDIES["control"].cells[0]
    one, other = (Tally(cell, (value,), (seed,), ({},)) for value, seed in ((1.0, 0), (2.0, 1)))
    assert alike([one, other]) == ([one, other], " (they share no seed)"), "better compared as they are than not at all"
    three = Tally(cell, (1.0, 2.0, 3.0), (0, 1, 2), ({}, {}, {}))
    two = Tally(cell, (5.0, 6.0), (1, 2), ({}, {}))
    assert alike([three, two]) == ([three.of_seeds({1, 2}), two], " (on the shared seeds 1, 2)")
    assert alike([three, three]) == ([three, three], "")


def test_a_claim_that_some_seeds_gainsay_says_so() -> None:
    fall = dict(zip(ALPHAS, ((19.9, 18.0), (18.7, 17.0), (18.1, 14.0), (15.0, 15.0)), strict=True))
    verdict = judged("gce_ablation", fall)
    assert verdict.claim == "held" and "(in 1 of 2 seeds)" in verdict.sentence
    assert "(in 2 of 3 seeds)" in judged("label_noise", {"PGD": (9.0, 9, 3), "Vanilla": (5.0, 5, 5)}).sentence
    assert "seeds)" not in judged("label_noise", {"PGD": (9.0, 9, 6), "Vanilla": (5.0, 5, 5)}).sentence


def test_a_tie_with_one_method_hides_no_defeat_by_another() -> None:
    lost = {"PGD": (90.0, 90.1, 89.9), "JTT": (97.0, 85.0, 91.0), "LfF": (90.9, 90.95, 90.85)}
    verdict = judged("control", lost)
    assert verdict.claim == "not held" and "best of the others: LfF" in verdict.sentence
    assert judged("control", {**lost, "LfF": 89.0}).claim == "held", "a tie with JTT alone"


def test_another_reading_is_told_beside_the_verdict() -> None:
    values = {"PGD": 97.0, "Vanilla": 99.0, "PGD, scores of augmented images": 98.9}
    verdict = judged("natural", values)
    assert verdict.claim == "not held" and "(scores of augmented images, held: " in verdict.sentence
    assert verdict.tested == "", "the other place is not run: one of one says nothing"
    alone = judged("natural", {"PGD": 99.0, "Vanilla": 99.0})
    assert alone.claim == "held" and "augmented" not in alone.sentence and "difference +0.00" in alone.sentence


def test_a_claim_that_fails_says_where() -> None:
    study = STUDIES["rho_sweep"]
    good, bad = ({"PGD": pgd, "Vanilla": 50.0, "Guarded PGD": 49.0} for pgd in (90.0, 40.0))
    given = {0.005: good, 0.01: good, 0.05: bad}
    some = [Tally(cell, (given[cell.rho][cell.name],) if cell.rho in given else ()) for cell in study.cells]
    verdict = study.judge(some)
    assert (verdict.claim, verdict.tested) == ("not held", "in 1 of 3 places that have runs")
    assert "cmnist at rho 5% (not held): PGD 40.00" in verdict.sentence
    assert "cmnist at rho 1%: PGD 90.00" in verdict.sentence
    assert "(guarded, not held: Guarded PGD 49.00, Vanilla 50.00" in verdict.sentence
    verdict = judged("rho_sweep", good)
    assert verdict.tested == "in 1 of 10 places" and "Not run" in verdict.sentence
    every = study.judge([Tally(cell, ((bad if cell.rho == 0.05 else good)[cell.name],)) for cell in study.cells])
    assert (every.claim, every.tested) == ("not held", "in 1 of 10 places")


def test_scores_by_all_parameters_are_their_gradient_norms(tiny_task: Callable[..., Task]) -> None:
    task = tiny_task()
    model = task.new_model().eval()
    scores = PGD(parameters="all").scores(task, model)
    assert torch.allclose(scores, gradient_norms(model, task.train, parameters="all").to(scores), rtol=1e-4)
    assert not torch.allclose(scores, PGD().scores(task, model))
    with pytest.raises(ValueError, match="parameters=all"):
        PGD(parameters="all", score="loss")
