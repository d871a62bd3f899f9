"""Several processes: the command under torchrun, every method beside one process, a process that dies."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from conftest import ROOT, Done
from debiaser.data.split import Split
from debiaser.errors import Misuse
from debiaser.learn.distributed import ALONE, Processes, joined, launched
from debiaser.paper.spec import new_spec
from processes_work import FIELDS

pytestmark = [
    pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed"),
    pytest.mark.timeout(900),  # each launch starts three interpreters, which a busy machine runs in turn
]
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
OWN = """
import os
from dataclasses import dataclass
from debiaser.errors import Problem
from debiaser import Vanilla

@dataclass(frozen=True)
class Own:
    def fit(self, task):
        if os.environ["RANK"] == "1":
            raise Problem("this machine is too old")
        return Vanilla().fit(task)
"""
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def torchrun(*words: str, cwd: Path) -> Done:
    line: dict[str, Any] = {"cwd": cwd, "env": ENVIRONMENT, "capture_output": True, "text": True, "timeout": 280}
    done = subprocess.run([*TORCHRUN, *words], **line)
    return Done(done.args, done.returncode, done.stdout, done.stderr)


def train(out: Path, *words: str) -> list[str]:
    line = ["-m", "debiaser", "train", "digits", "--method", "pgd", "--epochs", "2", "--json", "--out", str(out)]
    return [*line, *words]


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What two processes found in tests/processes_work.py."""
    done = torchrun(str(ROOT / "tests" / "processes_work.py"), cwd=tmp_path_factory.mktemp("work"))
    assert done.returncode == 0, done.stderr
    assert done.last_json["size"] == 2
    return done.last_json


@pytest.mark.long
@pytest.mark.parametrize("method", FIELDS)
def test_every_method_does_what_one_process_does(method: str, work: dict[str, Any]) -> None:
    """Without BatchNorm, dropout and augmentation only rounding differs, also where a last batch cannot be shared."""
    weights, noted = work["methods"][method]
    assert weights < 1e-5 and noted < 1e-5


def test_all_processes_end_with_the_same_weights(work: dict[str, Any]) -> None:
    digests = work["network"]["digests"]
    assert all(first == second for first, second in digests.values()), "BatchNorm's statistics included"
    assert digests["pgd"] != digests["bf16"], "the precision changes nothing"


def test_no_thread_of_the_connection_is_left(work: dict[str, Any]) -> None:
    """One that is still there when Python ends may abort the process."""
    assert work["left behind"] == []


def test_scores_of_the_same_weights_are_those_of_one_process(work: dict[str, Any]) -> None:
    assert work["network"]["rows"] == 1167
    assert max(work["network"]["scores"]) < 1e-5


def test_what_cannot_work_is_refused(work: dict[str, Any]) -> None:
    said = work["refusals"]
    assert "do not agree on the run" in said["agree"] and said["agreed"] == ""
    assert "no longer hold the same weights" in said["drift"]
    assert "a batch_size of 3 leaves some of 2 processes" in said["small"] and "at least 4" in said["small"]


def rank_of(process: int) -> str:
    """The number that torchrun gave to a process."""
    variables = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
    return next((each[5:].decode() for each in variables if each.startswith(b"RANK=")), "")


def kill_second(launcher: subprocess.Popen[str], out: Path) -> None:
    """End the second process at once, as soon as something is kept."""
    deadline = time.monotonic() + 200
    while not list(out.glob("stages/*/state.safetensors")):
        assert time.monotonic() < deadline and launcher.poll() is None, "it ended by itself"
        time.sleep(0.02)
    children = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()
    (second,) = [int(child) for child in children if rank_of(int(child)) == "1"]
    os.kill(second, signal.SIGKILL)


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> tuple[Done, Path]:
    """The command under torchrun, with two processes."""
    out = tmp_path_factory.mktemp("calm")
    return torchrun(*train(out), cwd=out), out


def test_the_command(calm: tuple[Done, Path]) -> None:
    done, out = calm
    assert done.returncode == 0, done.stderr
    lines = done.stdout.strip().splitlines()
    assert len(lines) == 1 and not done.last_json["resumed"], "one process prints"
    assert done.stderr.count("pgd · biased: done") == 1
    result = json.loads((Path(done.last_json["run_dir"]) / "result.json").read_text())
    assert result["environment"]["world_size"] == result["spec"]["world_size"] == 2
    assert result["samples_seen"] == 4 * 1167 and result["metrics"]["score_auroc"] > 0.6
    assert not list(out.rglob("checkpoint"))
    again = torchrun(*train(out, "--quiet"), cwd=out)
    assert again.last_json["resumed"] and again.last_json["metrics"] == done.last_json["metrics"]


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="finding the second process needs /proc")
@pytest.mark.long  # each launch imports torch three times
def test_a_process_that_dies(calm: tuple[Done, Path], tmp_path: Path) -> None:
    """The job ends with a clear line, and the same command ends as if nothing had happened."""
    line = [*TORCHRUN, *train(tmp_path, "--quiet")]
    with subprocess.Popen(line, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as launcher:
        kill_second(launcher, tmp_path)
        out, error = launcher.communicate(timeout=120)
    assert launcher.returncode != 0 and out == ""
    told = [each for each in error.splitlines() if each.startswith("debiaser: ")]
    assert len(told) == 1 and "rerun the same command" in told[0], error
    assert not list(tmp_path.glob("*/result.json"))
    done = torchrun(*train(tmp_path), cwd=tmp_path)
    assert done.returncode == 0 and "biased: done" not in done.stderr.split("resumed")[0], done.stderr
    undisturbed, other = (Path(each.last_json["run_dir"]) for each in (calm[0], done))
    weights, others = (load_file(folder / "model.safetensors") for folder in (undisturbed, other))
    assert all(np.array_equal(weights[name], others[name]) for name in weights)
    assert done.last_json["metrics"] == calm[0].last_json["metrics"]


@pytest.mark.long  # each launch imports torch three times
def test_a_mistake_is_told_once(tmp_path: Path) -> None:
    done = torchrun(*train(tmp_path, "--rho", "2"), cwd=tmp_path)
    told = [each for each in done.stderr.splitlines() if each.startswith("debiaser: ")]
    assert done.returncode != 0 and len(told) == 1 and told[0].startswith("debiaser: rho must lie"), done.stderr


@pytest.mark.long  # each launch imports torch three times
def test_a_mistake_of_one_is_told_by_that_one(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    done = torchrun(*train(tmp_path, "--method", f"{tmp_path}/own.py:Own"), cwd=tmp_path)
    told = sorted(each for each in done.stderr.splitlines() if each.startswith("debiaser: "))
    assert done.returncode != 0 and len(told) == 2, done.stderr
    assert "another process of this job ended" in told[0] and told[1] == "debiaser: process 1: this machine is too old"


def test_keys_say_only_what_is_unusual() -> None:
    usual = new_spec("digits", "pgd")
    assert not {"precision", "world_size"} & usual.plain().keys()
    keys = {usual.key, new_spec("digits", "pgd", precision="bf16").key, new_spec("digits", "pgd", world_size=2).key}
    assert len(keys) == 3
    with pytest.raises(Misuse, match="unknown precision '16'; known: 32, bf16"):
        new_spec("digits", "pgd", precision="16")


@pytest.mark.long
def test_bf16_as_a_command(command: Any) -> None:
    words = ("train", "digits", "--method", "vanilla", "--epochs", "1", "--json", "--quiet")
    full, half = command(*words), command(*words, "--precision", "bf16")
    assert full.returncode == half.returncode == 0, half.stderr
    assert full.last_json["run_dir"] != half.last_json["run_dir"]
    assert full.last_json["metrics"]["valid"] - half.last_json["metrics"]["valid"] < 15


def test_one_process_talks_to_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert launched() == ALONE == Processes(0, 1)
    with joined("cpu") as processes:
        assert processes is ALONE and not torch.distributed.is_initialized()
    split = Split.of(torch.arange(10.0)[:, None], torch.zeros(10))
    (found,) = ALONE.over(split, 3, lambda batches: (torch.cat([batch.x for batch in batches]),))
    assert found[:, 0].tolist() == list(range(10))
    monkeypatch.setenv("WORLD_SIZE", "two")
    with pytest.raises(Misuse, match="WORLD_SIZE=two"):
        launched()
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(Misuse, match="mps"), joined("mps"):
        pass
