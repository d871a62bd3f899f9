"""Direct lines between processes: everybody gets what everybody has, however much it is, and notices who left."""

import itertools
import os
import socket
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from debiaser.errors import Problem
from debiaser.learn.distributed import EAGER, Lines, connected_lines


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


def test_processes_that_send_other_lengths_are_told_apart() -> None:
    """One of them would wait for ever for the rest."""
    first, second = all_lines(2)
    with ThreadPoolExecutor(2) as threads:
        ours, theirs = threads.submit(first.exchange, torch.zeros(5)), threads.submit(second.exchange, torch.zeros(3))
        with pytest.raises(Problem, match="20 bytes where 12 were due"):
            theirs.result(20)
        second.others[0].close()  # as it is when the process ends
        with pytest.raises(ConnectionError):
            ours.result(20)


def test_a_tensor_whose_axes_are_swapped_arrives_in_order() -> None:
    mine = [torch.arange(12.0).reshape(3, 4).T, torch.arange(12.0).reshape(3, 4).T + 50]
    with ThreadPoolExecutor(2) as threads:
        found = list(threads.map(Lines.exchange, all_lines(2), mine))
    assert all(torch.equal(each, mine[rank]) for received in found for rank, each in enumerate(received))


def test_who_shares_a_core_does_not_look_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("debiaser.learn.distributed.cores", lambda: 1)
    assert [each.eager for each in all_lines(2)] == [0, 0]
    monkeypatch.setattr("debiaser.learn.distributed.cores", lambda: 2)
    assert [each.eager for each in all_lines(2)] == [EAGER, EAGER]


class Meeting:
    """Processes as threads: what they tell and say goes over a board that all see."""

    def __init__(self, size: int) -> None:
        self.size, self.wall, self.board = size, threading.Barrier(size), [None] * size

    def join(self, rank: int) -> tuple[Any, Any]:
        def shown(mine: Any) -> list[Any]:
            self.board[rank] = mine
            self.wall.wait(20)
            seen = list(self.board)
            self.wall.wait(20)
            return seen

        return lambda mine: shown(mine)[0], lambda fine: all(shown(fine))

    def exchanged(self, rank: int) -> list[list[float]] | None:
        with connected_lines(rank, self.size, *self.join(rank)) as lines:
            return lines and [each.tolist() for each in lines.exchange(torch.tensor([float(rank)]))]

    def held(self) -> list[list[list[float]] | None]:
        with ThreadPoolExecutor(self.size) as threads:
            return list(threads.map(self.exchanged, range(self.size)))


@pytest.mark.parametrize("size", [2, 3])
def test_lines_are_made_and_leave_nothing_behind(size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(size))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert Meeting(size).held() == [[[float(rank)] for rank in range(size)]] * size
    assert not list(tmp_path.iterdir())


def test_processes_of_several_machines_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    assert Meeting(2).held() == [None, None]


@pytest.mark.parametrize("folder", ["a" * 110, "nowhere"])  # longer than a socket's name may be; cannot be written
def test_a_folder_that_does_not_do_leaves_the_network_way(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ("a" * 110)).mkdir()
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / folder))
    assert Meeting(2).held() == [None, None]
    assert [each.name for each in tmp_path.iterdir()] == ["a" * 110] and not list((tmp_path / ("a" * 110)).iterdir())


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
