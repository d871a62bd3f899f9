"""Kills, full disks and rivals of a training: nothing is lost, nothing is half-written, nothing is corrupted."""

import json
import os
import random
import shutil
import signal
import time
from pathlib import Path

import pytest

from disturbed import Process, assert_same, begun, ended, enlarge, killed_at_random, mounted

WORDS = ("train", "digits", "--method", "pgd", "--epochs", "4", "--quiet", "--json")


def training(out: Path, *words: str) -> Process:
    return begun(*WORDS, "--out", str(out), *words)


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float]:
    """A run that nothing disturbs, and its seconds."""
    out, started = tmp_path_factory.mktemp("calm") / "runs", time.monotonic()
    code, _, error = ended(training(out))
    assert code == 0, error
    return out, time.monotonic() - started


@pytest.mark.parametrize("kills", [3, pytest.param(50, marks=[pytest.mark.long, pytest.mark.timeout(1800)])])
def test_kills(calm: tuple[Path, float], tmp_path: Path, kills: int) -> None:
    out = tmp_path / "killed"
    hits = killed_at_random(lambda: training(out), lambda: shutil.rmtree(out), kills, calm[1], seed=kills)
    assert hits >= kills // 3
    assert_same(calm[0], out)
    assert not [path for path in out.rglob("*") if path.name == "checkpoint"]


def test_interrupt_keeps_what_was_done(tmp_path: Path) -> None:
    process = training(tmp_path / "runs", "--epochs", "60")
    deadline = time.monotonic() + 120
    while not list((tmp_path / "runs").glob("stages/*/state.safetensors")):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    code, _, error = ended(process, 60)
    assert code == 130
    assert "the same command goes on" in error and "Traceback" not in error
    assert list((tmp_path / "runs").glob("stages/*/state.safetensors"))


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_interrupts_at_any_time(calm: tuple[Path, float], tmp_path: Path) -> None:
    """From the first import to the last file: it ends at once, says nothing technical, and the same command goes on."""
    rng = random.Random(0)
    for _ in range(20):
        process = training(tmp_path / "runs")
        time.sleep(rng.uniform(0, 1) * calm[1])
        process.send_signal(signal.SIGINT)
        code, _, error = ended(process, 60)
        assert code in (0, 130, -signal.SIGINT) and "Traceback" not in error.replace("KeyboardInterrupt", ""), error
        if code == 0:
            shutil.rmtree(tmp_path / "runs")
    assert ended(training(tmp_path / "runs"))[0] == 0
    assert_same(calm[0], tmp_path / "runs")


def test_two_processes_on_the_same_run(tmp_path: Path) -> None:
    rivals = [training(tmp_path / "runs") for _ in range(2)]
    all_ended = [ended(process, 240) for process in rivals]
    assert [code for code, _, _ in all_ended] == [0, 0], all_ended
    found = [json.loads(out.splitlines()[-1]) for _, out, _ in all_ended]
    assert sorted(each["resumed"] for each in found) == [False, True], "one works, the other finds it done"
    assert found[0]["metrics"] == found[1]["metrics"]
    assert any("another process is working" in error for _, _, error in all_ended)


DRAWN = random.Random(0).sample(range(40, 900), 12)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("kilobytes", [400, *(pytest.param(size, marks=pytest.mark.long) for size in DRAWN)])
def test_a_disk_that_is_full_at_some_moment(calm: tuple[Path, float], tmp_path: Path, kilobytes: int) -> None:
    with mounted(tmp_path / "small", f"size={kilobytes}k") as disk:
        code, _, error = ended(training(disk / "runs"))
        if code:
            assert code == 1 and len(error.strip().splitlines()) == 1
            assert error.startswith("debiaser: cannot write") and "disk is full" in error
            assert not list(disk.rglob("result.json"))
        assert not list(disk.rglob("*.part"))
        assert code or kilobytes != 400
        enlarge(disk, "size=64m")
        assert ended(training(disk / "runs"))[0] == 0, "with room, the same command goes on"
        assert_same(calm[0], disk / "runs")


def test_a_disk_that_may_only_be_read(calm: tuple[Path, float], tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", "size=8m") as disk:
        shutil.copytree(calm[0], disk / "runs")
        enlarge(disk, "ro")
        code, out, error = ended(training(disk / "runs"))
        assert code == 0 and json.loads(out.splitlines()[-1])["resumed"] is True, error
        code, _, error = ended(training(disk / "runs", "--seed", "1"))
        assert code == 1 and "the file system is read-only; choose another folder" in error
        assert len(error.strip().splitlines()) == 1


def test_a_truncated_result_is_made_again(calm: tuple[Path, float], tmp_path: Path) -> None:
    shutil.copytree(calm[0], tmp_path / "runs")
    (result,) = (tmp_path / "runs").glob("*/result.json")
    result.write_text(result.read_text()[:100])
    code, out, error = ended(training(tmp_path / "runs"))
    assert code == 0 and json.loads(out.splitlines()[-1])["resumed"] is False, error
    assert "it is no complete JSON" in error and "the run is made again" in error
    assert_same(calm[0], tmp_path / "runs")


def test_a_truncated_checkpoint_and_a_clock_that_jumps(calm: tuple[Path, float], tmp_path: Path) -> None:
    """What an interrupted run left is cut and dated to another century: it is said, and the weights are the same."""
    process = training(tmp_path / "cut")
    until = time.monotonic() + 120
    while not (found := list((tmp_path / "cut").glob("stages/*/state.safetensors"))) and time.monotonic() < until:
        time.sleep(0.02)
    process.kill()
    process.communicate()
    found[0].write_bytes(found[0].read_bytes()[:-7])
    for path in (tmp_path / "cut").rglob("*"):
        os.utime(path, (4e9, 4e9))
    code, _, error = ended(training(tmp_path / "cut"))
    assert code == 0 and "is damaged" in error and "starts again" in error
    assert_same(calm[0], tmp_path / "cut")
    for path in (tmp_path / "cut").rglob("*"):
        os.utime(path, (1e8, 1e8))
    _, out, _ = ended(training(tmp_path / "cut"))
    assert json.loads(out.splitlines()[-1])["resumed"] is True, "found, whatever the clock says"
