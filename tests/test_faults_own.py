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
from disturbed import Process, begun, crew_of, ended, enlarge, gone, killed_at_random, mounted, proc
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


def start(pictures: Path, home: Path, workers: int = 1) -> Process:
    """An audit that runs, with a cache of its own."""
    words = ("--epochs", "1", "--seeds", "1", "--workers", str(workers), "--json", "--quiet")
    return begun("audit", str(pictures), *words, "--out", str(home / "out"), XDG_CACHE_HOME=str(home / "cache"))


def outcome(home: Path) -> tuple[str, Any]:
    """Scores and verdict of the audit."""
    found = json.loads((home / "out" / "audit.json").read_text())
    return (home / "out" / "scores.csv").read_text(), (found["verdict"], found["reasons"])


@proc
def test_ctrl_c_leaves_no_orphan(pictures: Path, tmp_path: Path) -> None:
    process = start(pictures, tmp_path, workers=2)
    crew = crew_of(process, 2)
    os.killpg(process.pid, signal.SIGINT)  # a terminal sends it to all of them
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


@pytest.fixture(scope="module")
def calm(pictures: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float]:
    """An audit that nothing disturbs, and its seconds."""
    home, started = tmp_path_factory.mktemp("calm"), time.monotonic()
    code, _, error = ended(start(pictures, home))
    assert code == 0, error
    return home, time.monotonic() - started


@pytest.mark.parametrize("kills", [1, pytest.param(50, marks=[pytest.mark.long, pytest.mark.timeout(3600)])])
def test_kills_of_an_audit(pictures: Path, calm: tuple[Path, float], tmp_path: Path, kills: int) -> None:
    home = tmp_path / "killed"
    hits = killed_at_random(lambda: start(pictures, home), lambda: shutil.rmtree(home), kills, calm[1], seed=kills)
    assert hits >= kills // 3
    assert outcome(calm[0]) == outcome(home)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_two_audits_with_one_cache(pictures: Path, calm: tuple[Path, float], tmp_path: Path) -> None:
    """They share what they find there, and each gives what it gives alone."""
    homes = [tmp_path / "one", tmp_path / "two"]
    for home in homes:
        home.mkdir()
        (home / "cache").symlink_to(tmp_path, target_is_directory=True)
    told = [ended(process) for process in [start(pictures, home) for home in homes]]
    assert [code for code, _, _ in told] == [0, 0], told
    assert outcome(homes[0]) == outcome(homes[1]) == outcome(calm[0])


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_an_audit_on_a_disk_that_is_full_at_some_moment(
    pictures: Path, calm: tuple[Path, float], tmp_path: Path
) -> None:
    for kilobytes in random.Random(1).sample(range(30, 1500), 8):
        with mounted(tmp_path / str(kilobytes), f"size={kilobytes}k") as disk:
            code, _, error = ended(start(pictures, disk))
            assert code in (0, 1) and (code == 0 or "disk is full" in error), error
            assert "Traceback" not in error
            assert not list(disk.rglob(".*.part")), "only half of the features, with its rows noted, may stay"
            enlarge(disk, "size=200m")
            assert ended(start(pictures, disk))[0] == 0, "with room, the same command goes on"
            assert outcome(calm[0]) == outcome(disk)


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
    assert {path.name for path in tmp_path.glob("[!.]*")} <= {"cache", "fetches", "waits", "tiny.npz"}
    assert not list(tmp_path.glob(".*.part")), "what the kills left half-written was swept"
