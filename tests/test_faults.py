"""Kills, full disks and rivals: nothing is lost, nothing is half-written, nothing is corrupted."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def line(out: Path, *words: str) -> list[str]:
    return [
        *(sys.executable, "-m", "debiaser", "train", "digits", "--method", "pgd", "--epochs", "4"),
        *("--quiet", "--json", "--out", str(out), *words),
    ]


def outcome(out: Path) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], dict[str, float]]:
    """Weights, vectors and metrics of the only run in a folder."""
    (folder,) = [path.parent for path in out.glob("*/result.json")]
    with np.load(folder / "vectors.npz", allow_pickle=False) as vectors:
        kept = dict(vectors)
    return load_file(folder / "model.safetensors"), kept, json.loads((folder / "result.json").read_text())["metrics"]


def assert_same(one: Path, two: Path) -> None:
    (weights, vectors, metrics), (others, more, numbers) = outcome(one), outcome(two)
    assert weights.keys() == others.keys() and all(np.array_equal(weights[name], others[name]) for name in weights)
    assert all(np.array_equal(vectors[name], more[name], equal_nan=True) for name in vectors)
    assert metrics == numbers


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float]:
    """A run that nothing disturbs, and its seconds."""
    out, started = tmp_path_factory.mktemp("calm") / "runs", time.monotonic()
    subprocess.run(line(out), env=ENVIRONMENT, check=True, capture_output=True)
    return out, time.monotonic() - started


def kill_at_random(out: Path, kills: int, within: float, seed: int) -> int:
    """Start the run again and again, killing it at random moments; how many kills hit it alive."""
    rng, hits = random.Random(seed), 0
    for _ in range(kills):
        process = subprocess.Popen(line(out), env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            process.wait(rng.uniform(0.3, 1) * within)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            hits += 1
        if list(out.glob("*/result.json")):  # it got to the end: begin anew, so that the next kill hits something
            shutil.rmtree(out)
    subprocess.run(line(out), env=ENVIRONMENT, check=True, capture_output=True)
    return hits


def test_three_kills(calm: tuple[Path, float], tmp_path: Path) -> None:
    assert kill_at_random(tmp_path / "killed", 3, calm[1], seed=0) >= 1
    assert_same(calm[0], tmp_path / "killed")
    assert not [path for path in (tmp_path / "killed").rglob("*") if path.name == "checkpoint"]


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_fifty_kills(calm: tuple[Path, float], tmp_path: Path) -> None:
    assert kill_at_random(tmp_path / "killed", 50, calm[1], seed=1) >= 25
    assert_same(calm[0], tmp_path / "killed")


def test_interrupt_keeps_what_was_done(tmp_path: Path) -> None:
    process = subprocess.Popen(
        line(tmp_path / "runs", "--epochs", "60"),
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 120
    while not list((tmp_path / "runs").glob("stages/*/state.safetensors")):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "the same command goes on" in error and "Traceback" not in error
    assert list((tmp_path / "runs").glob("stages/*/state.safetensors"))


def test_two_processes_on_the_same_run(tmp_path: Path) -> None:
    first, second = (
        subprocess.Popen(
            line(tmp_path / "runs"), env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for _ in range(2)
    )
    ended = [process.communicate(timeout=240) for process in (first, second)]
    assert first.returncode == second.returncode == 0, ended
    found = [json.loads(out.splitlines()[-1]) for out, _ in ended]
    assert sorted(each["resumed"] for each in found) == [False, True], "one works, the other finds it done"
    assert found[0]["metrics"] == found[1]["metrics"]
    assert any("another process is working" in error for _, error in ended)


@pytest.fixture
def small_disk(tmp_path: Path) -> Path:
    """A file system of a few hundred kilobytes."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(folder)], capture_output=True)
    if mounted.returncode:
        pytest.skip("a small file system cannot be mounted here: this test did not run")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_full_disk(small_disk: Path) -> None:
    done = subprocess.run(line(small_disk / "runs"), env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.strip().startswith("debiaser: cannot write") and "disk is full" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not list(small_disk.rglob("*.part")) and not list(small_disk.rglob("result.json"))


def test_a_truncated_result_is_made_again(calm: tuple[Path, float], tmp_path: Path) -> None:
    shutil.copytree(calm[0], tmp_path / "runs")
    (result,) = (tmp_path / "runs").glob("*/result.json")
    whole = json.loads(result.read_text())
    result.write_text(result.read_text()[:100])
    done = subprocess.run(line(tmp_path / "runs"), env=ENVIRONMENT, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1])["resumed"] is False
    assert json.loads(result.read_text())["metrics"] == whole["metrics"]


def test_a_truncated_checkpoint_and_a_clock_that_jumps(calm: tuple[Path, float], tmp_path: Path) -> None:
    """What an interrupted run left is cut and dated to another century: it is said, and the weights are the same."""
    process = subprocess.Popen(line(tmp_path / "cut"), env=ENVIRONMENT, stdout=subprocess.DEVNULL)
    until = time.monotonic() + 120
    while not (found := list((tmp_path / "cut").glob("stages/*/state.safetensors"))) and time.monotonic() < until:
        time.sleep(0.02)
    process.kill()
    process.wait()
    found[0].write_bytes(found[0].read_bytes()[:-7])
    for path in (tmp_path / "cut").rglob("*"):
        os.utime(path, (4e9, 4e9))
    done = subprocess.run(line(tmp_path / "cut"), env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 0 and "is damaged" in done.stderr and "starts again" in done.stderr
    assert_same(calm[0], tmp_path / "cut")
    for path in (tmp_path / "cut").rglob("*"):
        os.utime(path, (1e8, 1e8))
    again = subprocess.run(line(tmp_path / "cut"), env=ENVIRONMENT, capture_output=True, text=True, check=True)
    assert json.loads(again.stdout.splitlines()[-1])["resumed"] is True, "found, whatever the clock says"
