"""Kills and Ctrl-C while the runs of a study are made, each in a process of its own."""

import json
import os
import shutil
import signal
import time
from pathlib import Path

import pytest

from disturbed import Process, assert_same, begun, crew_of, ended, gone, killed_at_random, proc


def study(folder: Path, *words: str) -> Process:
    """A study of two runs that share a stage."""
    tiny = ("--on", "digits", "--epochs", "1", "--quiet", "--json")
    return begun("study", "scored_pictures", *tiny, "--out", str(folder / "runs"), *words)


@proc
def test_ctrl_c_leaves_no_orphan_of_a_study(tmp_path: Path) -> None:
    process = study(tmp_path, "--workers", "2")
    crew = crew_of(process, 2)
    os.killpg(process.pid, signal.SIGINT)  # a terminal sends it to all of them
    code, _, error = ended(process, 60)
    assert code == 130 and "the same command goes on" in error and "Traceback" not in error
    assert gone(crew)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kills", [2, pytest.param(50, marks=[pytest.mark.long, pytest.mark.timeout(3600)])])
def test_kills_of_a_study(tmp_path: Path, kills: int) -> None:
    calm, killed, started = tmp_path / "calm", tmp_path / "killed", time.monotonic()
    code, told, error = ended(study(calm))
    assert code == 0, error
    whole = time.monotonic() - started

    def forget() -> None:
        shutil.rmtree(killed)

    hits = killed_at_random(lambda: study(killed), forget, kills, whole, seed=kills)
    assert hits >= kills // 3
    assert_same(calm / "runs", killed / "runs")
    _, again, _ = ended(study(killed, "--show"))
    assert json.loads(again.splitlines()[-1])["cells"] == json.loads(told.splitlines()[-1])["cells"]
