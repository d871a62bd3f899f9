"""What every test may use: one thread, real data where it is, tiny tasks, the command run as a command."""

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import settings
from PIL import Image

from debiaser.data.augment import PAPER
from debiaser.data.benchmarks import digits
from debiaser.data.split import Benchmark
from debiaser.learn.nets import new_net
from debiaser.learn.recipe import Recipe
from debiaser.methods.task import Task

ROOT = Path(__file__).resolve().parents[1]
torch.set_num_threads(1)
# Started in the background, tests ignore Ctrl-C, and so would the commands that they interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)
# The same examples every time, so that a commit passes or fails for what it changed.
settings.register_profile("same", derandomize=True)
settings.load_profile("same")


def script(place: str) -> ModuleType:
    """The module in a file of this repository that is not in the package."""
    name = Path(place).stem
    spec = importlib.util.spec_from_file_location(name, ROOT / place)
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def example(name: str) -> Any:
    """One of the examples, as a module."""
    return script(f"examples/{name}.py")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two classes of ten noisy pictures."""
    stream = np.random.default_rng(0)
    for name in ("cat", "dog"):
        (tmp_path / "data" / name).mkdir(parents=True)
        for number in range(10):
            pixels = stream.integers(0, 256, (30, 30, 3), np.uint8)
            Image.fromarray(pixels).save(tmp_path / "data" / name / f"{number}.png")
    return tmp_path / "data"


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder with real raw data; without one, the test says that it did not run."""
    named = os.environ.get("DEBIASER_DATA")
    folder = Path(named) if named else ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("real data is not here (set DEBIASER_DATA): this test did not run")
    return folder


@pytest.fixture(scope="session")
def benchmark_digits() -> Benchmark:
    return digits.load(None, 0.05, 0)


@pytest.fixture
def tiny_task(benchmark_digits: Benchmark) -> Callable[..., Task]:
    """A maker of tasks on 192 rows, one epoch a stage."""
    rows = torch.arange(192)

    def make(**changes: Any) -> Task:
        plan: dict[str, Any] = {
            "train": benchmark_digits.train.subset(rows),
            "make_model": lambda seed: new_net("simconv1", 10, seed),
            "recipe": Recipe(epochs=1, batch_size=64, lr=0.05),
            "valid": benchmark_digits.valid,
            "augment": PAPER,
        }
        return Task(**{**plan, **changes})

    return make


class Done(subprocess.CompletedProcess[str]):
    """A command that has ended."""

    @property
    def last_json(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads(self.stdout.strip().splitlines()[-1])
        return content


def debiaser(*words: str, cwd: Path | None = None, env: dict[str, str] | None = None, timeout: float = 280) -> Done:
    """`debiaser ...` run as a command."""
    variables = {**os.environ, "OMP_NUM_THREADS": "1", **(env or {})}
    line = [sys.executable, "-m", "debiaser", *words]
    done = subprocess.run(line, cwd=cwd, env=variables, capture_output=True, text=True, timeout=timeout)
    return Done(done.args, done.returncode, done.stdout, done.stderr)


def assert_refused(done: Done, code: int, told: str) -> None:
    """That a command ended with this code and nothing but one line, in which this is found."""
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith("debiaser: ") and re.search(told, line), line


@pytest.fixture
def command(tmp_path: Path) -> Callable[..., Done]:
    """`debiaser ...` run as a command in an empty folder."""
    return partial(debiaser, cwd=tmp_path)
