"""Direct lines between processes: everybody gets what everybody has, however much it is, and notices who left."""

import itertools
import os
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from debiaser.learn.lines import Lines, connected_lines


def all_lines(size: int) -> list[Lines]:
    ends: list[dict[int, socket.socket]] = [{} for _ in range(size)]
    for one, other in itertools.combinations(range(size), 2):
        ends[one][other], ends[other][one] = socket.socketpair()
    return [Lines(rank, each) for rank, each in enumerate(ends)]


@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("values", [0, 1, 2_000_000])  # nothing; less and far more than a line holds
def test_everybody_gets_what_everybody_has(size: int, values: int) -> None:
    mine = [torch.full((values,), float(rank)) + torch.arange(values) % 7 for rank in range(size)]
    lines = all_lines(size)  # kept: a line that nobody holds is closed
    with ThreadPoolExecutor(size) as threads:
        found = list(threads.map(Lines.exchange, lines, mine))
    for received in found:
        assert len(received) == size
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(received, mine, strict=True))


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.bfloat16, torch.float64])
def test_any_type_and_a_part_of_a_larger_tensor(dtype: torch.dtype) -> None:
    whole = torch.arange(60).reshape(6, 10).to(dtype)
    mine = [whole[:, ::3], whole.T[::3].T.contiguous()]  # the same values, laid out differently
    lines = all_lines(2)
    with ThreadPoolExecutor(2) as threads:
        found = list(threads.map(Lines.exchange, lines, mine))
    assert all(torch.equal(each, mine[0]) for received in found for each in received)


def test_a_process_that_left_is_noticed() -> None:
    first, second = all_lines(2)
    second.others[0].close()
    with pytest.raises(ConnectionError):
        first.exchange(torch.zeros(3))


def test_processes_of_several_machines_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    with connected_lines(0, 4, lambda told: told) as lines:
        assert lines is None


THREE = """
import torch
from debiaser.learn.processes import joined

with joined("cpu") as processes:
    assert processes.lines is not None
    mean = torch.full((100_000,), 10.0 * processes.rank)
    processes.average([mean])
    rows = processes.gather(torch.full((processes.rank, 2), processes.rank))
    if processes.main:
        print(mean.unique().tolist(), rows.tolist())
"""


def test_three_processes_find_each_other(tmp_path: Path) -> None:
    script = tmp_path / "three.py"
    script.write_text(THREE)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3", str(script)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False
    )
    assert done.stdout == "[10.0] [[1, 1], [2, 2], [2, 2]]\n", done.stderr
