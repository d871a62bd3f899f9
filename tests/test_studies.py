"""Studies: plans without torch, and a store that names what it leaves out."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from debiaser.cli.runs import found_in, report
from debiaser.errors import Misuse
from debiaser.methods import METHODS
from debiaser.paper import published
from debiaser.paper.results import histogram, measures, selection
from debiaser.paper.settings import SETTINGS
from debiaser.paper.spec import as_declared, declared, digest_of, new_spec, planned_spec
from debiaser.paper.studies import STUDIES, find_studies
from debiaser.paper.studies.study import Study, Verdict, read
from debiaser.paper.studies.tally import (
    Scale,
    also_printed,
    differing,
    epochs_of,
    expected_seconds,
    findings,
    gather,
    missing,
    tally,
)
from debiaser.report.run_page import find_runs, write_page
from debiaser.report.studies import markdown, text_table, write_figures

ROOT = Path(__file__).resolve().parents[1]


def test_every_published_number_of_a_study_stands_beside_a_cell() -> None:
    for label, study in STUDIES.items():
        assert study.label == label
        printed = [cell.published(label) for cell in study.cells if cell.printed]
        assert all(printed), f"{label} has a cell for which the paper has no number"
        rest = [each for each in published.table(label) if each.mean is not None and each not in printed]
        words = ("difference", "p_value", "percent_of_time")  # from the text; shown below the table
        assert all(each.metric.endswith(words) or "minus" in each.variant for each in rest), label
        assert len(also_printed(study)) == len(rest)


def test_unknown_study_names_the_known_ones() -> None:
    with pytest.raises(Misuse, match="control"):
        find_studies("nosuch")
    assert len(find_studies("all")) == len(STUDIES)


def test_fields_are_declared_as_the_classes_have_them() -> None:
    for name, kind in METHODS.items():
        assert as_declared(kind()) == {field: value for field, (_, value) in declared(name).items()}


def test_planned_specs_are_the_specs_of_runs() -> None:
    for dataset in SETTINGS:
        for method in METHODS:
            for recipe in ("fast", "paper"):
                assert planned_spec(dataset, method, recipe=recipe).key == new_spec(dataset, method, recipe=recipe).key
    for cell in {cell for study in STUDIES.values() for cell in study.cells if study.label != "control"}:
        words = cell.command("fast", 1)
        changes, options = (
            [words[at + 1] for at, word in enumerate(words) if word == flag] for flag in ("--set", "--option")
        )
        more = {"noise": cell.noise, "net": cell.net, "changes": changes, "options": options}
        asked = new_spec(cell.dataset, cell.method, cell.rho, seed=1, **more)
        assert cell.spec("fast", 1).key == asked.key, cell
    assert all(cell.options == ("crop=whole",) for cell in STUDIES["real_3"].cells), "as BPA's code sees them (D15)"


def test_keys_that_were_kept_are_still_those_of_their_specs() -> None:
    kept = [json.loads(path.read_text()) for path in (ROOT / "results" / "cmnist").glob("*-pgd-*-fast-*.json")]
    usual = {each["key"] for each in kept if "parameters" not in each["spec"]["fields"]}
    planned = {planned_spec("cmnist", "pgd", rho, seed=seed).key for rho in (0.005, 0.01, 0.05) for seed in range(3)}
    assert planned <= usual
    said = [planned_spec("cmnist", "pgd", 0.005, changes=["rate=1"]), planned_spec("cmnist", "pgd", 0.005)]
    said += [planned_spec("cmnist", "lff", 0.005, changes=[*each]) for each in (["relative=true"], [])]
    assert said[0].key == said[1].key and said[2].key == said[3].key, "a field's usual value changes no key"
    assert planned_spec("cmnist", "pgd", 0.005, changes=["rate=0.5"]).key != said[0].key


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
    write(tmp_path, {**result(study, "Clean", 2, 10.0), "protocol": 0})
    tampered = result(study, "Clean", 3, 10.0)
    tampered["spec"]["recipe"]["epochs"] = 1
    write(tmp_path, tampered)
    other = new_spec("cmnist", "pgd", 0.005, epochs=1)
    write(tmp_path, {**result(study, "Clean", 0, 10.0), "key": other.key, "spec": other.plain()})
    write(tmp_path / "third", {**good, "metrics": {"unbiased": 1.0}})
    store = gather(tmp_path)
    said = "\n".join(store.left_out)
    for words in ("no complete JSON", "no result of debiaser", "protocol 0", "not those that its key", "other numbers"):
        assert words in said
    found = findings(study, store, Scale())
    clean, augmented = found["cells"]
    assert (clean["mean"], clean["runs"], augmented["mean"], augmented["runs"]) == (97.5, 2, 96.0, 1)
    (stranger,) = found["left_out"]
    assert other.key in stranger and "recipe.epochs 1 instead of 10" in stranger
    assert found["claim"] == "held" and found["not_run"] == []


def made_with(study: Study, name: str, value: float, **changed: Any) -> dict[str, Any]:
    """The result of a cell's run with something in its spec changed."""
    cell = next(each for each in study.cells if each.name == name)
    spec = replace(cell.spec("fast", 0), **changed)
    return {**result(study, name, 0, value), "key": spec.key, "spec": spec.plain()}


def test_a_run_on_data_of_another_seed_is_named_and_not_averaged(tmp_path: Path) -> None:
    study = STUDIES["scored_pictures"]
    write(tmp_path, made_with(study, "Clean", 10.0, data_seed=7))
    store = gather(tmp_path)
    found = findings(study, store, Scale())
    assert found["cells"][0]["runs"] == 0 and not store.left_out
    assert "another protocol (data_seed 7 with seed 0)" in found["left_out"][0]
    assert len(missing([study], store, Scale())) == 2, "the run of the study is still to be made"
    write(tmp_path, result(study, "Clean", 0, 97.0))
    assert findings(study, gather(tmp_path), Scale())["cells"][0]["values"] == [97.0]


def test_another_protocol_is_told_beside_the_run_most_alike(tmp_path: Path) -> None:
    study = STUDIES["norm"]
    write(tmp_path, made_with(study, "L2", 97.0, precision="bf16"))
    (said,) = findings(study, gather(tmp_path), Scale())["left_out"]
    assert said.endswith("was left out: another protocol (precision bf16 instead of 32).")
    write(tmp_path / "usual", result(study, "L2", 0, 97.0))
    (_, said) = findings(study, gather(tmp_path), Scale(epochs=1))["left_out"]
    assert "recipe.epochs 10 instead of 1" in said, "where one epoch is asked for, the usual run is the other one"


def test_a_claim_is_told_at_every_scale_that_has_its_runs(tmp_path: Path) -> None:
    study = STUDIES["scored_pictures"]
    for name, usual, short in (("Clean", 97.0, 80.0), ("Augmented", 96.0, 85.0)):
        write(tmp_path, result(study, name, 0, usual))
        write(tmp_path, at_one_epoch(study, name, short))
    found = findings(study, gather(tmp_path), Scale())
    assert found["claim"] == "held"
    (said,) = found["elsewhere"]
    assert "recipe fast with 1 epoch a stage" in said and ": not held." in said and "difference -5.00" in said
    assert f"*At another scale*: {said}" in markdown(found)
    assert found["left_out"] == [], "told there, the short runs are not left out"
    (said,) = findings(study, gather(tmp_path), Scale(epochs=1))["elsewhere"]
    assert ": held." in said and "1 epoch" not in said, "the usual runs are the other ones there"


def test_another_scale_without_runs_enough_is_not_told(tmp_path: Path) -> None:
    study = STUDIES["scored_pictures"]
    write(tmp_path, at_one_epoch(study, "Clean", 80.0))
    assert findings(study, gather(tmp_path), Scale())["elsewhere"] == []


def test_another_scale_says_in_how_many_places_it_was_tested(tmp_path: Path) -> None:
    study = STUDIES["rho_sweep"]
    for name in ("Vanilla", "PGD"):
        write(tmp_path, at_one_epoch(study, name, 80.0))
    (said,) = findings(study, gather(tmp_path), Scale())["elsewhere"]
    assert "1 run a cell: held in 1 of 10 places. " in said and "Not run" not in said
    (part, *rest) = [each for each in found_in(gather(tmp_path)) if each["runs"] or each["elsewhere"]]
    assert part["study"] == "rho_sweep" and not rest and part["runs"] == 0, "the page has it, too"


def at_one_epoch(study: Study, name: str, value: float) -> dict[str, Any]:
    """The result of a cell's run with one epoch a stage."""
    spec = next(each for each in study.cells if each.name == name).spec("fast", 0, 1)
    return {**result(study, name, 0, value), "key": spec.key, "spec": spec.plain()}


def test_runs_that_two_lengths_share_are_told_once(tmp_path: Path) -> None:
    study = STUDIES["compute_time"]
    for name in ("Vanilla", "PGD"):  # of one stage and of two: ten epochs a stage are the usual run for the one only
        write(tmp_path, result(study, name, 0, 97.0))
    found = findings(replace(study, judge=lambda _: Verdict("held", "Yes.")), gather(tmp_path), Scale())
    assert found["elsewhere"] == []


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
    "recipe",
    [
        *({"name": "fast", "epochs": odd} for odd in (None, "10", [1], {}, 0, -3, 1.5, True)),
        *({"name": odd, "epochs": 10} for odd in ("features", "zzz", None, [])),
        *("fast", None, {}, {"name": "fast"}),
    ],
)
def test_odd_recipes_are_named_and_stop_nothing(tmp_path: Path, recipe: Any) -> None:
    odd = result(STUDIES["ab_hist"], "AUROC of norms", 0, 97.0)
    odd["spec"] = {**odd["spec"], "recipe": recipe}
    odd["key"] = f"cmnist-odd-{digest_of(odd['spec'])}"
    write(tmp_path, odd)
    store = gather(tmp_path)
    assert "no usable recipe" in store.left_out[0] and found_in(store) == []


@pytest.mark.parametrize(
    "histogram",
    [
        *("abc", [1], 5, {"mean": 3}, {"mean": {}, "aligned": "x", "conflicting": [1]}),
        {"mean": {"aligned": "x"}, "aligned": [1], "conflicting": [1]},
        {"mean": {}, "aligned": [1], "conflicting": []},
    ],
)
def test_odd_histograms_are_named_and_stop_nothing(tmp_path: Path, histogram: Any) -> None:
    write(tmp_path, {**result(STUDIES["ab_hist"], "AUROC of norms", 0, 97.0), "histogram": histogram})
    store = gather(tmp_path)
    assert "its histogram is none" in store.left_out[0] and found_in(store) == []


@pytest.mark.parametrize(
    "odd",
    [
        {"seconds": {"all": "long"}},
        {"seconds": {"all": None}},
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
    assert findings(study, store, Scale())["claim"] == "not testable"
    assert expected_seconds(study.cells[0].spec("fast", 0), list(store.all())) is None


def test_odd_parts_are_read_as_nothing() -> None:
    assert read({"histogram": [1]}, "histogram.mean.aligned") is None
    assert read({"histogram": {"mean": {"aligned": 10**400}}}, "histogram.mean.aligned") is None


def test_finished_runs_are_not_planned_again_but_incomplete_ones_are(tmp_path: Path) -> None:
    study, scale = STUDIES["scored_pictures"], Scale(seeds=2)
    assert len(missing([study, STUDIES["whole_network"]], gather(tmp_path), scale)) == 6  # the plain PGD is shared
    write(tmp_path, result(study, "Clean", 0, 97.0))
    left = missing([study], gather(tmp_path), scale)
    assert [each.spec.seed for each in left] == [0, 1, 1]
    histograms = STUDIES["ab_hist"].only(rho=0.005)
    assert len(missing([histograms], gather(tmp_path), Scale(seeds=1))) == 1, "its result has no histogram"
    write(tmp_path / "new", result(study, "Augmented", 0, 97.0, stages={}, histogram={}))
    assert gather(tmp_path).finished(study.cells[1], study.cells[1].spec("fast", 0))


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
    rows: list[dict[str, Any]] = [{"stage": "biased", "epoch": "1", "unbiased": "20", "valid_loss": "0.1"}]
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
    assert read(found, "histogram.conflicting.9") == 1 and read(found, "histogram.conflicting.99") is None


def test_tables_and_figures_show_ours_beside_published(tmp_path: Path) -> None:
    study, both = STUDIES["ablation"].only("cmnist"), "GCE yes, augmentation yes"
    write(tmp_path, result(study, both, 0, 97.88))
    found = findings(study, gather(tmp_path), Scale())
    headings, rows = text_table(found)
    assert headings == ["Cell", "Ours", "Runs", "Published", "Difference"]
    assert rows[-1] == [both, "97.88", "1", "96.88 ± 0.28", "+1.00"] and rows[0][1] == "–"
    text = markdown(found)
    assert (
        "not testable here" in text
        and "debiaser train cmnist --method pgd --rho 0.005 --seed 0 --set alpha=none" in text
    )
    drawn = write_figures(found, tmp_path / "figures")
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
    (folder / "notes.json").write_text("[]")
    report(tmp_path / "results", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "Clean 97.00, Augmented 96.00, difference +1.00" in page
    assert "cmnist/cmnist-half-0123456789.json: it was left out: it is no complete JSON" in page
    assert page.count("cmnist-half") == page.count("notes.json was left out") == 1, "each is named once"


def test_the_page_names_what_no_study_counts(tmp_path: Path) -> None:
    study = STUDIES["scored_pictures"]
    write(tmp_path, result(study, "Clean", 0, 97.0))
    tampered = result(study, "Clean", 3, 10.0)
    tampered["spec"]["recipe"]["epochs"] = 1
    write(tmp_path, tampered)
    write(tmp_path, '{"half": ', "half-written")
    report(tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert f"Studies: {tampered['key']}/result.json was left out: its settings are not those" in page
    assert page.count("it is no complete JSON") == 1


def test_numbers_are_told_as_what_they_are(tmp_path: Path) -> None:
    times = STUDIES["compute_time"]
    for seed, seconds in enumerate((100.0, 120.0)):
        write(tmp_path, {**result(times, "PGD", seed, 97.0), "seconds": {"score": seconds}})
    found = findings(times, gather(tmp_path), Scale())
    row = next(row for row in text_table(found)[1] if row[0] == "PGD")
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
    assert differing({"a": {"b": 1}, "seed": 1}, {"a": {"b": 2}, "seed": 2}) == ["a.b 2 instead of 1"]
