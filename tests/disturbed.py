"""Commands that are disturbed: killed at random moments, on small or read-only disks; and what their runs left."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

Process = subprocess.Popen[str]
proc = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no /proc here: this test did not run")


def begun(*words: str, **variables: str) -> Process:
    """`debiaser words...`, running in a process group of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "debiaser", *words],
        env={**os.environ, "OMP_NUM_THREADS": "1", **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def ended(process: Process, timeout: float = 600) -> tuple[int, str, str]:
    """Its exit code, and what it said on standard output and standard error."""
    out, error = process.communicate(timeout=timeout)
    return process.returncode, out, error


def killed_at_random(
    start: Callable[[], Process], forget: Callable[[], object], kills: int, within: float, seed: int
) -> int:
    """Start it again and again and kill -9 it, alone or with all that it started; how many kills hit it alive.

    One that got to the end is forgotten, so that the next kill hits something. At last it is left in peace.
    """
    rng, hits = random.Random(seed), 0
    for _ in range(kills):
        process, moment, alone = start(), rng.uniform(0.3, 1) * within, rng.random() < 0.5
        try:
            process.communicate(timeout=moment)
            forget()
        except subprocess.TimeoutExpired:
            (os.kill if alone else os.killpg)(process.pid, signal.SIGKILL)
            process.wait()
            hits += 1
    code, _, error = ended(start())
    assert code == 0, error
    return hits


def outcomes(out: Path) -> dict[str, Any]:
    """Weights, vectors and metrics of every run in a folder."""
    found = {}
    for path in sorted(out.glob("*/result.json")):
        with np.load(path.parent / "vectors.npz", allow_pickle=False) as vectors:
            kept = dict(vectors)
        weights = load_file(path.parent / "model.safetensors")
        found[path.parent.name] = {**weights, **kept}, json.loads(path.read_text())["metrics"]
    return found


def assert_same(one: Path, two: Path) -> None:
    """That both folders hold the same runs, bit for bit."""
    first, second = outcomes(one), outcomes(two)
    assert first and first.keys() == second.keys()
    for key, (arrays, metrics) in first.items():
        others, numbers = second[key]
        assert metrics == numbers and arrays.keys() == others.keys()
        assert all(np.array_equal(arrays[name], others[name], equal_nan=True) for name in arrays)


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


def crew_of(process: Process, at_least: int) -> list[int]:
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


@contextmanager
def mounted(folder: Path, options: str) -> Iterator[Path]:
    """A file system in memory with these options."""
    folder.mkdir()
    line = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    if subprocess.run(line, capture_output=True).returncode:
        pytest.skip("a small file system cannot be mounted here: this test did not run")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def enlarge(folder: Path, options: str) -> None:
    """Mount it again with other options; what is on it stays."""
    subprocess.run(["mount", "-o", f"remount,{options}", str(folder)], check=True)
