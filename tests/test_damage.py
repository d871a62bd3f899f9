"""Damaged bytes are never served: single flipped bits in every kind of file that is read back."""

import json
import logging
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from debiaser import read_scores, score_stream
from debiaser.auditing.export import FORMAT, digest_of, read_exported
from debiaser.data.cache import ArrayCache, load_arrays
from debiaser.data.images import RESIZED
from debiaser.errors import Problem
from debiaser.io import SEAL, check_seal, guarded, unguarded, write_arrays, write_bytes, write_json
from debiaser.learn.checkpoint import Checkpoint, write_tensors

FLIPS = 200
Case = tuple[list[Path], Callable[[], bool]]


def checkpoint(folder: Path) -> Case:
    stage = Checkpoint(folder / "state.safetensors")
    stage.save({"weight": torch.randn(8, 8)}, epoch=3)
    return [stage.path], lambda: stage.load() is None


def exported(folder: Path) -> Case:
    how = {"size": 0, "resize": RESIZED, "encoder": None, "encoder_identity": None}
    config = {"format": FORMAT, "architecture": "linear", "inputs": [4], "classes": ["a", "b"], "kind": "image"}
    write_json(folder / "config.json", {**config, "preprocessing": how})
    state = nn.Linear(4, 2).state_dict()
    digest = digest_of(folder / "config.json")
    write_tensors(folder / "model.safetensors", {f"fc.{name}": each for name, each in state.items()}, config=digest)
    return [folder / "model.safetensors", folder / "config.json"], lambda: not read_exported(folder)


def features(folder: Path) -> Case:
    """Rows that are damaged are computed again; nothing else is handed out."""
    values, asked = np.random.default_rng(0).random((20, 6)).astype(np.float32), list[int]()

    def compute(rows: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
        asked.extend(rows.tolist())
        return [(rows, values[rows])]

    def rebuilt() -> bool:
        asked.clear()
        found = ArrayCache(folder, values.shape, values.dtype, "features").fill(compute)
        assert np.array_equal(found, values)
        return bool(asked)

    rebuilt()
    return [path for path in folder.iterdir() if path.suffix in (".npy", ".rows")], rebuilt


def arrays(folder: Path) -> Case:
    write_arrays(folder / "kept.npz", rows=np.arange(30), names=np.array(["a", "b"]))
    return [folder / "kept.npz"], lambda: load_arrays(folder / "kept.npz") is None


def scores(folder: Path) -> Case:
    stream = [(torch.randn(3), row % 2) for row in range(40)]
    score_stream(nn.Linear(3, 2), stream, folder, batch_size=8, part_rows=16)
    return [*folder.glob("part-*"), folder / "stream.json"], lambda: not len(read_scores(folder))


@pytest.mark.parametrize("make", [checkpoint, exported, features, arrays, scores])
def test_every_flipped_bit_is_noticed(
    make: Callable[[Path], Case], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Of all files of a kind, so many bits at random places: each is rebuilt (and said), or refused in one line."""
    if make is scores:
        pytest.importorskip("pyarrow", reason="pyarrow is not here: this test did not run")
    torch.manual_seed(0)
    draws = random.Random(0)
    files, noticed = make(tmp_path)
    for _ in range(FLIPS // 5):
        path = draws.choices(files, [each.stat().st_size for each in files])[0]
        whole, bit = path.read_bytes(), draws.randrange(8 * path.stat().st_size)
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        caplog.clear()
        try:
            with caplog.at_level(logging.WARNING, "debiaser"):
                assert noticed(), f"bit {bit} of {path.name} was not noticed"
            assert any("damaged" in record.message for record in caplog.records), f"bit {bit} of {path.name}"
        except Problem as problem:
            assert "\n" not in str(problem) and str(path.parent) in str(problem)
        path.write_bytes(whole)
    if make is not features:
        assert not noticed(), "the whole files are read"


def test_files_without_a_seal_are_read(tmp_path: Path) -> None:
    """As earlier versions wrote them."""
    np.savez_compressed(tmp_path / "old.npz", x=np.arange(3))
    assert load_arrays(tmp_path / "old.npz") is not None
    write_bytes(tmp_path / "sealed", b"before " + SEAL.encode() + b" after")
    check_seal(tmp_path / "sealed")
    assert SEAL.encode() not in (tmp_path / "sealed").read_bytes()
    (tmp_path / "empty").touch()
    check_seal(tmp_path / "empty")


def test_cells_that_a_spreadsheet_would_run() -> None:
    bad = ["=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\tx", "\rx", "'=1", "''@x"]
    assert all(guarded(cell) == f"'{cell}" and unguarded(guarded(cell)) == cell for cell in bad)
    good = ["a=1", "-1", "+2.5e-3", "'tis", "", "cat.jpg"]
    assert all(guarded(cell) == unguarded(cell) == cell for cell in good) and guarded(1.5) == 1.5
    assert json.dumps(good)
