"""`debiaser study` as a command, on the embedded digits: two processes, runs found again, failures that stop none."""

import json
import os
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from conftest import ROOT, Done, debiaser
from debiaser.paper.results import finished
from debiaser.paper.studies import STUDIES, findings
from debiaser.paper.studies.findings import Scale, add_fisher, add_fishers, cores, gather, make_runs, missing

TINY = ("--on", "digits", "--epochs", "1")


def study(*words: str, cwd: Path) -> Done:
    """`debiaser study ...` run as a command."""
    return debiaser("study", *words, cwd=cwd, env={"COLUMNS": "160"})


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which two workers made the two runs of a study."""
    folder = tmp_path_factory.mktemp("study")
    done = study("scored_pictures", *TINY, "--workers", "2", "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    found = done.last_json
    assert found["study"] == "scored_pictures" and found["claim"] in {"held", "not held"}
    assert [cell["runs"] for cell in found["cells"]] == [1, 1] and not found["not_run"]
    assert "2 of 2" in done.stderr and "Protocol: Recipe `fast`" in done.stderr
    return folder


def test_finished_runs_are_found_again_and_shared_stages_were_trained_once(made: Path) -> None:
    times = {path: path.stat().st_mtime for path in made.glob("runs/*/result.json")}
    assert len(times) == 2 and len(list((made / "runs" / "stages").glob("biased-*.lock"))) == 1
    again = study("scored_pictures", *TINY, "--figures", "figures", cwd=made)
    assert again.returncode == 0 and "Clean" in again.stdout and "Augmented" in again.stdout
    assert {path: path.stat().st_mtime for path in made.glob("runs/*/result.json")} == times, "nothing was repeated"
    assert {path.name for path in (made / "figures").iterdir()} == {"scored_pictures.pdf", "scored_pictures.png"}


def test_copies_of_results_count_as_finished(made: Path, tmp_path: Path) -> None:
    for path in made.glob("runs/*/result.json"):
        (tmp_path / "kept" / "digits").mkdir(parents=True, exist_ok=True)
        shutil.copy(path, tmp_path / "kept" / "digits" / f"{path.parent.name}.json")
    (tmp_path / "kept" / "digits" / "digits-strange.json").write_text("{}")
    done = study("scored_pictures", *TINY, "--results", "kept", "--commands", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "") and "strange.json: it was left out" in done.stderr
    planned = study("scored_pictures", *TINY, "--commands", cwd=tmp_path)
    assert [line.split()[:5] for line in planned.stdout.splitlines()] == [
        ["debiaser", "train", "digits", "--method", "pgd"]
    ] * 2
    shown = study("scored_pictures", *TINY, "--results", "kept", cwd=tmp_path)
    assert shown.returncode == 0 and "strange.json: it was left out" in shown.stderr


def test_a_failed_run_is_told_and_the_rest_goes_on(made: Path, tmp_path: Path) -> None:
    shutil.copytree(made / "runs", tmp_path / "runs")
    augmented = next(
        path.parent
        for path in (tmp_path / "runs").glob("*/result.json")
        if json.loads(path.read_text())["spec"]["fields"]["score_on"] == "augmented"
    )
    shutil.rmtree(augmented)
    augmented.write_text("in the way")
    done = study("scored_pictures", *TINY, "--json", cwd=tmp_path)
    assert done.returncode == 1 and f"1 run failed: {augmented.name}" in done.stderr
    assert "Traceback" not in done.stderr
    found = done.last_json
    assert [cell["runs"] for cell in found["cells"]] == [1, 0] and found["claim"] == "not testable"


def test_the_plan_is_there_at_once() -> None:
    before = os.times()
    done = study("control", "--recipe", "fast", "--seeds", "3", "--dry-run", cwd=ROOT)
    after = os.times()
    assert done.returncode == 0 and "runs missing" in done.stdout.splitlines()[-1]
    seconds = after.children_user - before.children_user + after.children_system - before.children_system
    assert seconds < 8, "of processor time, most of it to load torch, on a machine that may have other work"
    assert "debiaser train ccifar --method pgd --rho 0.05 --seed 2" in done.stdout


def test_figures_that_cannot_be_written_are_told_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "figures").write_text("in the way")
    done = study("scored_pictures", *TINY, "--figures", "figures", cwd=tmp_path)
    assert done.returncode == 1 and "cannot write figures" in done.stderr and not (tmp_path / "runs").exists()


def test_a_plan_without_past_runs_names_no_time(tmp_path: Path) -> None:
    done = study("scored_pictures", *TINY, "--dry-run", cwd=tmp_path)
    assert done.stdout.splitlines()[-1].startswith("scored_pictures: 2 runs missing; 2 runs of unknown length")
    listed = study("scored_pictures", *TINY, "--commands", "--json", cwd=tmp_path)
    assert len(json.loads(listed.stdout)["commands"]) == 2


def test_long_stages_say_when_they_end() -> None:
    from debiaser.cli.console import until

    assert until(30.0, 500.0) == "" and until(300.0, 400.0).startswith(", until about ")


def test_threads_are_divided_among_workers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    told: list[str] = []
    show = "import os, sys; sys.exit(os.environ['OMP_NUM_THREADS'])"
    monkeypatch.setattr(findings, "python", lambda *_: [sys.executable, "-c", show])
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    runs = missing([STUDIES["scored_pictures"]], gather(tmp_path), Scale())
    for workers, share in ((1, 3), (2, max(1, cores() // 2)), (10_000, 1)):
        told.clear()
        failures = make_runs(runs, lambda run: list(run.words), workers, lambda _, line: told.append(line))
        assert told == [str(share)] * 2 and [each.reason for each in failures] == told, (
            "each failed, none stopped another"
        )
    monkeypatch.setattr(findings, "python", lambda *_: [sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"])
    assert {each.reason for each in make_runs(runs, lambda run: list(run.words))} == {"signal 9 ended it"}


def test_the_fisher_information_of_a_run_is_added_to_its_result(made: Path, tmp_path: Path) -> None:
    folder = tmp_path / next(made.glob("runs/*/result.json")).parent.name
    shutil.copytree(made / "runs" / folder.name, folder)
    result, _ = finished(folder)
    assert result is not None
    fisher = add_fisher(folder, result)["fisher"]
    assert fisher["1e-6"] > fisher["1e-4"] > fisher["1e-2"] > 0, "more damping, smaller inverse"
    again, _ = finished(folder)
    assert again is not None and again["fisher"] == fisher and again["metrics"] == result["metrics"]


def test_the_fisher_information_is_measured_wherever_the_run_is(made: Path, tmp_path: Path) -> None:
    """Runs from another machine lie deeper; a damaged one is told and does not stop the others."""
    cells = tuple(replace(cell, reads="fisher.1e-6") for cell in STUDIES["scored_pictures"].on("digits").cells)
    wanted, scale = replace(STUDIES["invq_compare"], cells=cells), Scale(epochs=1)
    shutil.copytree(made / "runs", tmp_path / "another machine")
    damaged, whole = (cell.spec("fast", 0, 1).key for cell in cells)
    (tmp_path / "another machine" / damaged / "model.safetensors").write_bytes(b"cut off")
    (failure,) = add_fishers([wanted], gather(tmp_path), scale, None, lambda _: None)
    assert failure.key == damaged and re.search("are damaged .*; remove that folder and run it again", failure.reason)
    result, _ = finished(tmp_path / "another machine" / whole)
    assert result is not None and "fisher" in result
