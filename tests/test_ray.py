"""Scores by Ray on two local workers: those of one process, keyed, resumable, refused where they are stale."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

pytest.importorskip("ray", reason="ray is not installed (pip install 'debiaser[ray]'): this test did not run")

import pyarrow
import ray
from pyarrow import parquet

from conftest import ROOT, example
from debiaser import ScoreSampler, gradient_norms, read_scores
from debiaser.errors import Misuse, Problem
from debiaser.integrations.ray import connect, score_dataset

pytestmark = pytest.mark.timeout(1500)  # workers are interpreters of their own, which start slowly
N = 500


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    homes = [str(ROOT / "tests"), str(ROOT / "examples"), os.environ.get("PYTHONPATH", "")]
    ray.init(
        runtime_env={"env_vars": {"PYTHONPATH": os.pathsep.join(filter(None, homes))}},
        num_cpus=2,
        include_dashboard=False,
        logging_level="ERROR",
        object_store_memory=100 * 2**20,
    )
    ray.data.DataContext.get_current().enable_progress_bars = False
    yield
    ray.shutdown()


def write(path: Path, x: Tensor, y: Tensor, keys: np.ndarray) -> Path:
    rows = pyarrow.FixedSizeListArray.from_arrays(x.flatten().numpy(), x.shape[1])
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pyarrow.table({"x": rows, "label": y.numpy(), "name": keys}), path)
    return path


@pytest.mark.long
def test_scores_of_two_workers(cluster: None, tmp_path: Path) -> None:
    """Equal to direct scoring, whatever order the files come in; a second call makes only what is missing."""
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(N, 6, generator=generator), torch.arange(N) % 3
    keys = np.array([f"sample {row:03d}" for row in range(N)])
    for part in range(4):
        rows = slice(part * 125, (part + 1) * 125)
        write(tmp_path / "data" / f"{part}.parquet", x[rows], y[rows], keys[rows])
    options = {"key": "name", "cpus": 0.5, "part_rows": 50, "batch_size": 32}
    out, truth = tmp_path / "scores", gradient_norms(network(), TensorDataset(x, y))
    blocks = ray.data.read_parquet(str(tmp_path / "data"), override_num_blocks=4)  # for both workers
    assert score_dataset(blocks, network(), out, **options) == N
    mixed = np.random.default_rng(0).permutation(N)
    assert torch.allclose(read_scores(out, keys=keys[mixed]), truth[mixed], rtol=1e-5)
    assert torch.allclose(read_scores(out), truth, rtol=1e-5), "from the smallest key on"
    assert len(ScoreSampler(read_scores(out, keys=keys))) == N
    parts = sorted(out.glob("part-*"))
    before = {part: part.stat().st_mtime_ns for part in parts}
    parts[0].unlink()
    damaged = bytearray(parts[1].read_bytes())
    damaged[len(damaged) // 2] ^= 4
    parts[1].write_bytes(damaged)
    with pytest.raises(Problem, match="is damaged"):
        read_scores(out)
    assert score_dataset(ray.data.read_parquet(str(tmp_path / "data")), network, out, **options) == N
    assert torch.allclose(read_scores(out), truth, rtol=1e-5)
    assert sum(part.stat().st_mtime_ns == before.get(part) for part in out.glob("part-*")) == len(parts) - 2
    with pytest.raises(Problem, match="no score, the first with key 'sample 999'"):
        read_scores(out, keys=np.array(["sample 001", "sample 999"]))
    with pytest.raises(Problem, match="scores of another model"):
        score_dataset(tmp_path / "data", nn.Linear(6, 3), out, **options)
    with pytest.raises(Problem, match=r"other content under .* of these keys, the first 'sample \d+'"):
        write(tmp_path / "data" / "0.parquet", -x[:125], y[:125], keys[:125])
        score_dataset(tmp_path / "data", network(), out, **options)
    assert len(read_scores(out)) == N, "what was there is as it was"
    with pytest.raises(Problem, match=r"^the label of sample [0-9]+ is 3, but the model gives 3 logits"):
        write(tmp_path / "wrong" / "0.parquet", x, y + 1, keys)
        score_dataset(tmp_path / "wrong", network(), tmp_path / "other", **options)
    with pytest.raises(Problem, match=r"^a worker failed, KeyError: 'absent'; look at prepare"):
        score_dataset(tmp_path / "wrong", network, tmp_path / "other", prepare=lambda found: found["absent"], **options)
    with pytest.raises(Misuse, match="no column 'id'"):
        score_dataset(tmp_path / "data", network(), out)
    with pytest.raises(Misuse, match="leave none of 2 to read with"):
        score_dataset(tmp_path / "data", network(), out, key="name", cpus=1)


@pytest.mark.parametrize("listening", [False, True])
def test_an_address_without_a_cluster(listening: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("debiaser.integrations.ray.PATIENCE", 15)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        if not listening:
            server.close()
        with pytest.raises(Problem, match=f"no Ray cluster at {address}"):
            connect(address)


def test_the_example(cluster: None, tmp_path: Path) -> None:
    sampler = example("ray_scores").main(str(tmp_path), rows=60)
    assert 1 < sampler.effective_sample_size <= 60
