"""Kills, Ctrl-C, full disks and rivals of commands: nothing is lost, half-written or corrupted, no process is left."""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.numpy import load_file

import test_raw
import web_site
from conftest import ROOT
from debiaser.data.split import Benchmark
from web_site import Site

Process = subprocess.Popen[str]
Start = Callable[..., Process]
Calm = Callable[[str], tuple[Path, float, str]]
proc = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no /proc here: this test did not run")


def long(*values: object) -> Any:
    """A case of the long tests."""
    return pytest.param(*values, marks=[pytest.mark.long, pytest.mark.timeout(3600)])


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory, benchmark_digits: Benchmark) -> Start:
    """Begins a training, a study of two runs that share a stage, or an audit of two coloured digits in two folders."""
    folder, train = tmp_path_factory.mktemp("own") / "digits", benchmark_digits.train
    for label in (3, 8):
        rows = torch.nonzero(train.y == label)[:30, 0]
        (folder / str(label)).mkdir(parents=True)
        for row, picture in zip(rows.tolist(), train.read(rows), strict=True):
            pixels = (picture * 255).round().byte().permute(1, 2, 0).numpy()
            Image.fromarray(pixels).save(folder / str(label) / f"{row}.png")
    kinds = {
        "train": ("train", "digits", "--method", "pgd", "--epochs", "4"),
        "study": ("study", "scored_pictures", "--on", "digits", "--epochs", "1"),
        "audit": ("audit", str(folder), "--epochs", "1", "--seeds", "1", "--workers", "1"),
    }

    def begin(kind: str, home: Path, *words: str) -> Process:
        """In a process group of its own, with its output and its cache in this folder."""
        line = [sys.executable, "-m", "debiaser", *kinds[kind], "--quiet", "--json", "--out", str(home / "out"), *words]
        variables = {**os.environ, "OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(home / "cache")}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(line, env=variables, text=True, start_new_session=True, **pipes)

    return begin


def ended(process: Process, timeout: float = 600) -> tuple[int, str, str]:
    """Its exit code, and what it said on standard output and standard error."""
    out, error = process.communicate(timeout=timeout)
    return process.returncode, out, error


@pytest.fixture(scope="module")
def calm(start: Start, tmp_path_factory: pytest.TempPathFactory) -> Calm:
    """The folder of a command of this kind that nothing disturbed, its seconds, and what it printed."""

    @cache
    def made(kind: str) -> tuple[Path, float, str]:
        home, started = tmp_path_factory.mktemp("calm"), time.monotonic()
        code, out, error = ended(start(kind, home))
        assert code == 0, error
        return home, time.monotonic() - started, out

    return made


def last_json(out: str) -> dict[str, Any]:
    return dict(json.loads(out.splitlines()[-1]))


def outcome(home: Path) -> dict[str, Any]:
    """Weights, vectors and metrics of every run, bit for bit; scores and verdict of an audit."""
    found: dict[str, Any] = {}
    for path in (home / "out").glob("*/result.json"):
        with np.load(path.parent / "vectors.npz", allow_pickle=False) as vectors:
            arrays = load_file(path.parent / "model.safetensors") | dict(vectors)
        bits = {name: (array.dtype, array.shape, array.tobytes()) for name, array in arrays.items()}
        found[path.parent.name] = bits, json.loads(path.read_text())["metrics"]
    for path in (home / "out").glob("audit.json"):
        told = json.loads(path.read_text())
        found["audit"] = told["verdict"], told["reasons"], (home / "out" / "scores.csv").read_text()
    assert found
    return found


def killed_at_random(begin: Callable[[], Process], home: Path, kills: int, within: float) -> int:
    """Start it again and again and kill -9 it, alone or with all that it started; how many kills hit it alive.

    One that got to the end is forgotten, so that the next kill hits something. At last it is left in peace.
    """
    rng, hits = random.Random(kills), 0
    for _ in range(kills):
        process, moment, alone = begin(), rng.uniform(0.3, 1) * within, rng.random() < 0.5
        try:
            process.communicate(timeout=moment)
            shutil.rmtree(home)
        except subprocess.TimeoutExpired:
            (os.kill if alone else os.killpg)(process.pid, signal.SIGKILL)
            process.wait()
            hits += 1
    code, _, error = ended(begin())
    assert code == 0, error
    return hits


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("kind", "kills"), [long("train", 2), ("audit", 1), long("train", 50), long("audit", 50), long("study", 50)]
)
def test_kills(kind: str, kills: int, start: Start, calm: Calm, tmp_path: Path) -> None:
    home, seconds, out = calm(kind)
    killed = tmp_path / "killed"
    assert killed_at_random(lambda: start(kind, killed), killed, kills, seconds) >= kills // 3
    assert outcome(home) == outcome(killed)
    assert kind != "train" or not list(killed.rglob("checkpoint"))
    if kind == "study":
        assert last_json(ended(start(kind, killed, "--show"))[1])["cells"] == last_json(out)["cells"]


def children(process: int) -> list[int]:
    """The workers that this one has started and that run."""
    found = []
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            if b"resource_tracker" in (status.parent / "cmdline").read_bytes():
                continue  # of Python's own, beside the workers of a pool
            facts = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
        except OSError:
            continue  # it has ended meanwhile
        if int(facts["PPid"]) == process and facts["State"].strip()[0] != "Z":
            found.append(int(status.parent.name))
    return found


def is_alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/status").read_text().split("State:")[1].split()[0] != "Z"
    except OSError:
        return False


@proc
@pytest.mark.parametrize(
    ("kind", "hit", "code", "told"),
    [
        ("audit", "ctrl-c", 130, "rerun the same command"),
        ("study", "ctrl-c", 130, "rerun the same command"),
        ("audit", "worker", 1, "memory"),  # the kernel chooses a worker when memory runs out
        long("audit", "parent", -signal.SIGKILL, ""),
    ],
)
def test_no_orphan_is_left(kind: str, hit: str, code: int, told: str, start: Start, tmp_path: Path) -> None:
    process, until = start(kind, tmp_path, "--workers", "2"), time.monotonic() + 120
    while len(crew := children(process.pid)) < 2:
        assert process.poll() is None and time.monotonic() < until, "no worker came"
        time.sleep(0.02)
    if hit == "ctrl-c":
        os.killpg(process.pid, signal.SIGINT)  # a terminal sends it to all of them
    else:
        os.kill(crew[0] if hit == "worker" else process.pid, signal.SIGKILL)
    found, _, error = ended(process, 120)
    assert found == code and told in error and "Traceback" not in error, error
    assert hit != "worker" or len(error.strip().splitlines()) == 1, error
    until = time.monotonic() + 20
    while any(map(is_alive, crew)) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(map(is_alive, crew))


def wait_for_checkpoint(process: Process, home: Path) -> Path:
    """The first checkpoint of a training that runs."""
    until = time.monotonic() + 120
    while not (found := list((home / "out").glob("stages/*/state.safetensors"))):
        assert time.monotonic() < until and process.poll() is None
        time.sleep(0.02)
    return found[0]


def test_interrupt_keeps_what_was_done(start: Start, tmp_path: Path) -> None:
    process = start("train", tmp_path, "--epochs", "60")
    checkpoint = wait_for_checkpoint(process, tmp_path)
    process.send_signal(signal.SIGINT)
    code, _, error = ended(process, 60)
    assert code == 130 and "rerun the same command" in error and "Traceback" not in error
    assert checkpoint.exists()


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_interrupts_at_any_time(start: Start, calm: Calm, tmp_path: Path) -> None:
    """From the first import to the last file: it ends at once, says nothing technical, and rerun the same command."""
    home, seconds, _ = calm("train")
    rng = random.Random(0)
    for _ in range(20):
        process = start("train", tmp_path)
        time.sleep(rng.uniform(0, 1) * seconds)
        process.send_signal(signal.SIGINT)
        code, _, error = ended(process, 60)
        assert code in (0, 130, -signal.SIGINT) and "Traceback" not in error.replace("KeyboardInterrupt", ""), error
        if code == 0:
            shutil.rmtree(tmp_path / "out")
    assert ended(start("train", tmp_path))[0] == 0
    assert outcome(home) == outcome(tmp_path)


def test_two_processes_on_the_same_run(start: Start, tmp_path: Path) -> None:
    rivals = [start("train", tmp_path) for _ in range(2)]
    all_ended = [ended(process, 240) for process in rivals]
    assert [code for code, _, _ in all_ended] == [0, 0], all_ended
    found = [last_json(out) for _, out, _ in all_ended]
    assert sorted(each["resumed"] for each in found) == [False, True], "one works, the other finds it done"
    assert found[0]["metrics"] == found[1]["metrics"]
    assert any("another process is working" in error for _, _, error in all_ended)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_two_audits_with_one_cache(start: Start, calm: Calm, tmp_path: Path) -> None:
    """They share what they find there, and each gives what it gives alone."""
    homes = [tmp_path / "one", tmp_path / "two"]
    for home in homes:
        home.mkdir()
        (home / "cache").symlink_to(tmp_path, target_is_directory=True)
    told = [ended(process) for process in [start("audit", home) for home in homes]]
    assert [code for code, _, _ in told] == [0, 0], told
    assert outcome(homes[0]) == outcome(homes[1]) == outcome(calm("audit")[0])


def remount(folder: Path, options: str) -> None:
    """Mount it again with other options; what is on it stays."""
    subprocess.run(["mount", "-o", f"remount,{options}", str(folder)], check=True)


SIZES = [long("train", 400), *(long("train", size) for size in random.Random(0).sample(range(40, 900), 12))]
SIZES += [long("audit", size) for size in random.Random(1).sample(range(30, 1500), 8)]


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("kind", "kilobytes"), SIZES)
def test_a_disk_that_is_full_at_some_moment(
    kind: str, kilobytes: int, start: Start, calm: Calm, tmp_path: Path
) -> None:
    with test_raw.mounted(tmp_path / "small", f"size={kilobytes}k") as disk:
        code, _, error = ended(start(kind, disk))
        assert code in ((1,) if kilobytes == 400 else (0, 1)) and "Traceback" not in error, error
        if code:
            assert "disk is full" in error and not list(disk.rglob("result.json"))
            assert kind == "audit" or re.fullmatch(r"debiaser: cannot write .*", error.strip()), error
        # Of an audit, half of the features, with its rows noted, may stay.
        assert not list(disk.rglob(".*.part" if kind == "audit" else "*.part"))
        remount(disk, "size=200m")
        assert ended(start(kind, disk))[0] == 0, "with room, rerun the same command"
        assert outcome(calm(kind)[0]) == outcome(disk)


def test_a_disk_that_may_only_be_read(start: Start, calm: Calm, tmp_path: Path) -> None:
    with test_raw.mounted(tmp_path / "disk", "size=8m") as disk:
        shutil.copytree(calm("train")[0], disk, dirs_exist_ok=True)
        remount(disk, "ro")
        code, out, error = ended(start("train", disk))
        assert code == 0 and last_json(out)["resumed"] is True, error
        code, _, error = ended(start("train", disk, "--seed", "1"))
        assert code == 1 and "the file system is read-only; choose another folder" in error
        assert len(error.strip().splitlines()) == 1


def test_a_truncated_result_is_made_again(start: Start, calm: Calm, tmp_path: Path) -> None:
    shutil.copytree(calm("train")[0], tmp_path, dirs_exist_ok=True)
    (result,) = (tmp_path / "out").glob("*/result.json")
    result.write_text(result.read_text()[:100])
    code, out, error = ended(start("train", tmp_path))
    assert code == 0 and last_json(out)["resumed"] is False, error
    assert "it is no complete JSON" in error and "the run is made again" in error
    assert outcome(calm("train")[0]) == outcome(tmp_path)


def test_a_truncated_checkpoint_and_a_clock_that_jumps(start: Start, calm: Calm, tmp_path: Path) -> None:
    """What an interrupted run left is cut and dated to another century: it is said, and the weights are the same."""
    process = start("train", tmp_path)
    checkpoint = wait_for_checkpoint(process, tmp_path)
    process.kill()
    process.communicate()
    checkpoint.write_bytes(checkpoint.read_bytes()[:-7])
    for path in tmp_path.rglob("*"):
        os.utime(path, (4e9, 4e9))
    code, _, error = ended(start("train", tmp_path))
    assert code == 0 and "is damaged" in error and "starts again" in error
    assert outcome(calm("train")[0]) == outcome(tmp_path)
    for path in tmp_path.rglob("*"):
        os.utime(path, (1e8, 1e8))
    assert last_json(ended(start("train", tmp_path))[1])["resumed"] is True, "found, whatever the clock says"


@pytest.mark.parametrize("kills", [2, long(50)])
def test_kills_while_data_is_fetched(tmp_path: Path, kills: int) -> None:
    """From a slow server, by processes that are killed at random moments, all but the last."""
    with contextmanager(web_site.running)(Site(dict(test_raw.FILES), partial(web_site.serve, pieces=8))) as site:
        given = [str(ROOT / "tests"), str(ROOT / "src"), str(site.port), str(tmp_path)]
        line = [sys.executable, "-c", textwrap.dedent(test_raw.CHILD), *given]
        begin = partial(
            subprocess.Popen,
            line,
            env={**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")},
            stderr=subprocess.PIPE,
            text=True,
        )
        rng = random.Random(0)
        for _ in range(kills):
            process, until = begin(), time.monotonic() + 60
            while not site.seen and time.monotonic() < until and process.poll() is None:
                time.sleep(0.01)
            time.sleep(rng.uniform(0, 0.4))
            process.kill()
            process.communicate()
            site.seen.clear()
        assert ended(begin(), 100) == (0, None, ""), "the set is whole and verified"
    assert {path.name for path in tmp_path.glob("[!.]*")} <= {"cache", "fetches", "waits", "tiny.npz"}
    assert not list(tmp_path.glob(".*.part")), "what the kills left half-written was swept"
