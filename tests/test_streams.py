"""Scores of streams against scores of the same rows in memory, also after a kill."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from debiaser import ScoreSampler, gradient_norms
from debiaser.errors import Misuse, Problem
from debiaser.learn.streams import read_scores, score_stream

parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not here: this test did not run")


class Rows(IterableDataset):
    """Pairs, one after the other; breaks where it is told to, and counts what was asked for."""

    def __init__(self, x: Tensor, y: Tensor, breaks: int | None = None) -> None:
        self.x, self.y, self.breaks, self.asked = x, y, breaks, 0

    def __iter__(self) -> Iterator[Any]:
        for row in range(len(self.y)):
            if row == self.breaks:
                raise ConnectionError("the network is gone")
            self.asked += 1
            yield self.x[row], int(self.y[row])


@pytest.fixture
def case() -> tuple[nn.Module, Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    model, x, y = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)), torch.randn(50, 6), torch.arange(50) % 3
    return model, x, y, gradient_norms(model, TensorDataset(x, y))


def test_streams_of_every_kind(case: tuple, tmp_path: Path) -> None:
    model, x, y, truth = case
    streams = {
        "iterable": Rows(x, y),
        "generator": ((a, int(b)) for a, b in zip(x, y, strict=True)),
        "loader of a stream": DataLoader(Rows(x, y), 7),
        "loader": DataLoader(TensorDataset(x, y), 7),
        "dataset": TensorDataset(x, y),
    }
    for name, stream in streams.items():
        assert score_stream(model, stream, tmp_path / name, batch_size=8, part_rows=16) == 50
        assert torch.allclose(read_scores(tmp_path / name), truth, rtol=1e-5), name
    table = parquet.read_table(tmp_path / "iterable" / "part-00001.parquet")
    assert table.column("row").to_pylist() == list(range(16, 32))
    assert table.column("label").to_pylist() == y[16:32].tolist()
    assert len(ScoreSampler(read_scores(tmp_path / "iterable", tmp_path / "loader"))) == 100
    with pytest.raises(Misuse, match="shuffle"):
        score_stream(model, DataLoader(TensorDataset(x, y), 7, shuffle=True), tmp_path / "shuffled")


def test_a_stream_that_breaks_is_taken_up_again(case: tuple, tmp_path: Path) -> None:
    model, x, y, truth = case
    with pytest.raises(ConnectionError):
        score_stream(model, Rows(x, y, breaks=45), tmp_path, batch_size=8, part_rows=16)
    assert sorted(path.name for path in tmp_path.glob("part-*")) == ["part-00000.parquet", "part-00001.parquet"]
    with pytest.raises(Problem, match="no finished scores"):
        read_scores(tmp_path)
    before = (tmp_path / "part-00000.parquet").stat().st_mtime_ns
    with pytest.raises(Problem, match="another label"):
        score_stream(model, Rows(x.flip(0), y.flip(0) * 0 + 2, None), tmp_path, batch_size=8, part_rows=16)
    seen: list[int] = []
    model[0].register_forward_hook(lambda _, args, __: seen.append(len(args[0])))
    assert score_stream(model, Rows(x, y), tmp_path, batch_size=8, part_rows=16) == 50
    assert sum(seen) - 2 == 50 - 32, "finished parts were scored again"  # 2 rows to find the head
    assert (tmp_path / "part-00000.parquet").stat().st_mtime_ns == before
    assert torch.equal(read_scores(tmp_path), whole(model, x, y, tmp_path / "whole"))
    assert torch.allclose(read_scores(tmp_path), truth, rtol=1e-5)
    done = Rows(x, y)
    assert score_stream(model, done, tmp_path, batch_size=8, part_rows=16) == 50 and done.asked == 0


def test_a_stream_that_became_shorter_is_refused(case: tuple, tmp_path: Path) -> None:
    model, x, y, _ = case
    with pytest.raises(ConnectionError):
        score_stream(model, Rows(x, y, breaks=45), tmp_path, batch_size=8, part_rows=16)
    for short in (Rows(x[:20], y[:20]), TensorDataset(x[:20], y[:20]), DataLoader(Rows(x[:20], y[:20]), 8)):
        with pytest.raises(Problem, match="ends before row 32"):
            score_stream(model, short, tmp_path, batch_size=8, part_rows=16)


def test_a_row_is_named_by_its_number_in_the_stream(case: tuple, tmp_path: Path) -> None:
    with pytest.raises(Problem, match=r"do not make a batch .*collate_fn"):
        score_stream(case[0], iter([(torch.zeros(6), 0), (torch.zeros(5), 1)]), tmp_path)
    model, x, y, _ = case
    x = x.clone()
    x[37] = float("nan")
    with pytest.raises(Problem, match="the first in row 37"):
        score_stream(model, Rows(x, y), tmp_path, batch_size=8, part_rows=16)


def whole(model: nn.Module, x: Tensor, y: Tensor, path: Path) -> Tensor:
    score_stream(model, Rows(x, y), path, batch_size=8, part_rows=16)
    return read_scores(path)


def test_other_models_options_and_empty_streams_are_refused(case: tuple, tmp_path: Path) -> None:
    model, x, y, _ = case
    score_stream(model, Rows(x, y), tmp_path / "a")
    with pytest.raises(Problem, match="another options"):
        score_stream(model, Rows(x, y), tmp_path / "a", p=1)
    with torch.no_grad():
        model[0].weight += 1
    with pytest.raises(Problem, match="another model"):
        score_stream(model, Rows(x, y), tmp_path / "a")
    with pytest.raises(Misuse, match="no rows"):
        score_stream(model, [], tmp_path / "b")
    with pytest.raises(Misuse, match="at least 1"):
        score_stream(model, Rows(x, y), tmp_path / "c", part_rows=0)
    (tmp_path / "a" / "part-00000.parquet").write_bytes(b"broken")
    with pytest.raises(Problem, match="cannot read"):
        read_scores(tmp_path / "a")


SLOW = """
import sys, time, torch
from torch import nn
from debiaser.learn.streams import score_stream

def rows():
    for row in range(60):
        time.sleep(0.05 if sys.argv[2] == "slow" else 0)
        yield torch.full((4,), float(row)), row % 3

torch.manual_seed(0)
print(score_stream(nn.Linear(4, 3), rows(), sys.argv[1], batch_size=4, part_rows=8))
"""


def test_a_process_that_is_killed_loses_at_most_a_part(tmp_path: Path) -> None:
    folder = tmp_path / "scores"
    words = [sys.executable, "-c", SLOW, str(folder)]
    first = subprocess.Popen([*words, "slow"], env={**os.environ, "OMP_NUM_THREADS": "1"})
    while first.poll() is None and not (folder / "part-00001.parquet").exists():
        time.sleep(0.01)
    first.send_signal(signal.SIGKILL)
    first.wait()
    kept = (folder / "part-00001.parquet").stat().st_mtime_ns
    done = subprocess.run([*words, "fast"], capture_output=True, text=True)
    assert done.stdout.strip() == "60", done.stderr
    assert (folder / "part-00001.parquet").stat().st_mtime_ns == kept
    torch.manual_seed(0)
    x, y = torch.arange(60.0)[:, None].expand(-1, 4), torch.arange(60) % 3
    truth = gradient_norms(nn.Linear(4, 3), TensorDataset(x, y))
    assert torch.allclose(read_scores(folder), truth, rtol=1e-5)
    assert not [path for path in folder.iterdir() if path.suffix == ".part"]


def test_a_mistake_does_not_spoil_the_folder(case: tuple, tmp_path: Path) -> None:
    model, x, y, _ = case
    with pytest.raises(Problem, match="no layer"):
        score_stream(model, Rows(x, y), tmp_path, head="absent")
    assert score_stream(model, Rows(x, y), tmp_path) == 50
    assert score_stream(model, Rows(x, y), tmp_path, p=2.0, chunk=7) == 50, "the usual values, said"


def test_options_are_the_same_in_every_process(case: tuple, tmp_path: Path) -> None:
    model, x, y, _ = case
    last = list(model.modules())[-1]
    name = next(name for name, module in model.named_modules() if module is last)
    kept = []
    for number, chosen in enumerate(({"parameters": lambda each: each.startswith(name)}, {"head": last})):
        score_stream(model, Rows(x, y), tmp_path / str(number), **chosen)
        kept.append((tmp_path / str(number) / "stream.json").read_text())
    assert "0x" not in kept[0] and name in kept[0] and name in kept[1]
    with pytest.raises(Problem, match="another options"):
        score_stream(model, Rows(x, y), tmp_path / "0", parameters=lambda _: True)


def test_a_part_that_was_lost_is_made_again(case: tuple, tmp_path: Path) -> None:
    model, x, y, _ = case
    score_stream(model, Rows(x, y), tmp_path, batch_size=8, part_rows=16)
    before = read_scores(tmp_path)
    (tmp_path / "part-00001.parquet").unlink()
    with pytest.raises(Problem, match="run score_stream again"):
        read_scores(tmp_path)
    assert score_stream(model, Rows(x, y), tmp_path, batch_size=8, part_rows=16) == 50
    assert torch.equal(read_scores(tmp_path), before)
    (tmp_path / "part-00001.parquet").write_bytes(b"PAR1 and nothing that holds")
    with pytest.raises(Problem, match="delete it, then run score_stream again"):
        score_stream(model, Rows(x, y), tmp_path, batch_size=8, part_rows=16)


def test_parts_of_unknown_origin_are_not_taken_for_ours(case: tuple, tmp_path: Path) -> None:
    model, x, y, _ = case
    score_stream(nn.Linear(6, 3), Rows(x, y), tmp_path, batch_size=8, part_rows=16)
    (tmp_path / "stream.json").unlink()
    with pytest.raises(Problem, match="scores of another"):
        score_stream(model, Rows(x, y), tmp_path, batch_size=8, part_rows=16)


def test_a_network_whose_state_is_not_all_tensors(case: tuple, tmp_path: Path) -> None:
    class Counted(nn.Linear):
        seen = 1

        def get_extra_state(self) -> Any:
            return self.seen

    _, x, y, _ = case
    model = Counted(6, 3)
    assert score_stream(model, Rows(x, y), tmp_path) == 50
    model.seen = 2
    with pytest.raises(Problem, match="another model"):
        score_stream(model, Rows(x, y), tmp_path)
