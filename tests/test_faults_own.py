"""Kills, dead workers and Ctrl-C while a person's own data is audited, and while raw data is fetched."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import test_raw
import web_site
from debiaser.data.split import Benchmark
from web_site import Handler, Site

ROOT = Path(__file__).resolve().parents[1]
PER_CLASS = 30


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory, benchmark_digits: Benchmark) -> Path:
    """Two coloured digits in two folders."""
    folder, train = tmp_path_factory.mktemp("own") / "digits", benchmark_digits.train
    for label in (3, 8):
        rows = torch.nonzero(train.y == label)[:PER_CLASS, 0]
        (folder / str(label)).mkdir(parents=True)
        for row, picture in zip(rows.tolist(), train.read(rows), strict=True):
            pixels = (picture * 255).round().byte().permute(1, 2, 0).numpy()
            Image.fromarray(pixels).save(folder / str(label) / f"{row}.png")
    return folder


def start(pictures: Path, home: Path, workers: int = 1) -> subprocess.Popen[str]:
    """An audit that runs, with a cache of its own."""
    words = (
        "--epochs",
        "1",
        "--seeds",
        "1",
        "--workers",
        str(workers),
        "--json",
        "--quiet",
        "--out",
        str(home / "out"),
    )
    return subprocess.Popen(
        [sys.executable, "-m", "debiaser", "audit", str(pictures), *words, "--out", str(home / "out")],
        env={**os.environ, "OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(home / "cache")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def outcome(home: Path) -> tuple[str, Any]:
    """Scores and verdict of the audit."""
    found = json.loads((home / "out" / "audit.json").read_text())
    return (home / "out" / "scores.csv").read_text(), (found["verdict"], found["reasons"])


def children(process: int) -> list[int]:
    """The processes that this one has started and that run."""
    found = []
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            facts = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
        except OSError:
            continue  # it has ended meanwhile
        if int(facts["PPid"]) == process and facts["State"].strip()[0] != "Z":
            found.append(int(status.parent.name))
    return found


def crew_of(process: subprocess.Popen[str], at_least: int) -> list[int]:
    """Its worker processes, once so many are there."""
    until = time.monotonic() + 120
    while len(found := children(process.pid)) < at_least:
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < until, "no worker came"
        time.sleep(0.02)
    return found


def is_alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/status").read_text().split("State:")[1].split()[0] != "Z"
    except OSError:
        return False


def gone(processes: list[int]) -> bool:
    """Whether all of them end within some seconds."""
    until = time.monotonic() + 20
    while any(map(is_alive, processes)) and time.monotonic() < until:
        time.sleep(0.05)
    return not any(map(is_alive, processes))


proc = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no /proc here: this test did not run")


@proc
def test_ctrl_c_leaves_no_orphan(pictures: Path, tmp_path: Path) -> None:
    process = start(pictures, tmp_path, workers=2)
    crew = crew_of(process, 2)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130 and "the same command goes on" in error and "Traceback" not in error
    assert gone(crew)


@proc
def test_a_worker_that_the_system_kills_is_told_in_one_line(pictures: Path, tmp_path: Path) -> None:
    """As when memory runs out and the kernel chooses a worker."""
    process = start(pictures, tmp_path, workers=2)
    crew = crew_of(process, 2)
    os.kill(crew[0], signal.SIGKILL)
    _, error = process.communicate(timeout=120)
    assert process.returncode == 1 and len(error.strip().splitlines()) == 1, error
    assert "memory" in error and gone(crew)


@proc
@pytest.mark.long
def test_an_audit_that_was_killed_leaves_no_orphan(pictures: Path, tmp_path: Path) -> None:
    process = start(pictures, tmp_path, workers=2)
    crew = crew_of(process, 2)
    process.kill()
    process.communicate()
    assert gone(crew)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_fifty_kills_of_an_audit(pictures: Path, tmp_path: Path) -> None:
    calm, killed, rng, hits = tmp_path / "calm", tmp_path / "killed", random.Random(0), 0
    started = time.monotonic()
    assert start(pictures, calm).wait(600) == 0
    whole = time.monotonic() - started
    for _ in range(50):
        process = start(pictures, killed)
        try:
            process.wait(rng.uniform(0.2, 1) * whole)
            shutil.rmtree(killed)  # it got to the end: begin anew, so that the next kill hits something
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            hits += 1
    assert start(pictures, killed).wait(600) == 0
    assert hits >= 25
    assert outcome(calm) == outcome(killed)
    assert not list(killed.rglob("*.part"))


@pytest.fixture
def site() -> Iterator[Site]:
    yield from web_site.running(Site(dict(test_raw.FILES)))


def fetch_with_kills(site: Site, home: Path, kills: int, seed: int) -> list[subprocess.Popen[str]]:
    """Processes that fetch the same set from a slow server, all but the last killed at random moments."""
    given = [str(ROOT / "tests"), str(ROOT / "src"), str(site.port), str(home)]
    line = [sys.executable, "-c", textwrap.dedent(test_raw.CHILD), *given]
    rng, ended = random.Random(seed), []
    for number in range(kills + 1):
        environment = {**os.environ, "XDG_CACHE_HOME": str(home / "cache")}
        process = subprocess.Popen(line, env=environment, stderr=subprocess.PIPE, text=True)
        ended.append(process)
        if number == kills:
            break
        until = time.monotonic() + 60
        while not site.seen and time.monotonic() < until and process.poll() is None:
            time.sleep(0.01)
        time.sleep(rng.uniform(0, 0.4))
        process.kill()
        process.communicate()
        site.seen.clear()
    return ended


def drip(handler: Handler, content: bytes) -> None:
    """The file in small pieces, slowly; a range where one is asked for."""
    asked = handler.headers.get("Range")
    first = int(asked.removeprefix("bytes=").rstrip("-")) if asked else 0
    if asked:
        handler.start(
            206, Content_Length=len(content) - first, Content_Range=f"bytes {first}-{len(content) - 1}/{len(content)}"
        )
    else:
        handler.start(200, Content_Length=len(content))
    step = max(1, len(content) // 8)
    for place in range(first, len(content), step):
        handler.wfile.write(content[place : place + step])
        handler.wfile.flush()
        time.sleep(0.02)


@pytest.mark.parametrize("kills", [2, pytest.param(50, marks=[pytest.mark.long, pytest.mark.timeout(900)])])
def test_kills_while_data_is_fetched(site: Site, tmp_path: Path, kills: int) -> None:
    site.behaviour = drip
    last = fetch_with_kills(site, tmp_path, kills, seed=0)[-1]
    assert last.communicate(timeout=100)[1] == "" and last.returncode == 0, "the set is whole and verified"
    # a kill between writing and renaming may leave a hidden temporary file, which nobody takes for data
    assert {path.name for path in tmp_path.glob("[!.]*")} <= {"cache", "fetches", "waits", "tiny.npz"}
