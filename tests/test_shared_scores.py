"""Scores that several processes share: identical in all of them, and those of one process."""

import json
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from conftest import ROOT
from debiaser import gradient_norms
from debiaser.errors import Problem


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[dict[str, Any]]]:
    """What each of two and of four processes found in tests/shared_scores_work.py."""
    pytest.importorskip("torch.distributed.fsdp", reason="this torch has no torch.distributed")
    folder = tmp_path_factory.mktemp("work")
    line = [sys.executable, str(ROOT / "tests" / "shared_scores_work.py"), str(folder)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    return {size: [json.loads((folder / f"{size}-{rank}.json").read_text()) for rank in range(size)] for size in (2, 4)}


@pytest.mark.parametrize("size", [2, 4])
def test_every_process_gets_the_vector_of_one_process(size: int, found: dict[int, Any]) -> None:
    assert [each["size"] for each in found[size]] == [size] * size
    for each in (told["ddp"] for told in found[size]):
        assert each["statistics differ"] > 0.01, "the processes' BatchNorm statistics are to differ"
        for what in ("head", "all", "inf", "dictionaries", "loader", "few"):
            between, apart = each[what]
            assert between == 0 and apart < 1e-5, what
        assert each["asked"] == -(-201 // size), "each reads its part alone"
        assert each["kept"], "the model is left as it was"


@pytest.mark.parametrize("size", [2, 4])
def test_what_fails_in_one_process_ends_all(size: int, found: dict[int, Any]) -> None:
    broken, labels, lengths = zip(*(told["ddp"]["refusals"] for told in found[size]), strict=True)
    assert all("sample 200 cannot be read" in each for each in broken)
    assert [f"process {size - 1}: " in each for each in broken] == [True] * (size - 1) + [False]
    assert all("the label of sample 0 is 7" in each for each in labels)
    assert all("do not have the same weights, data and options" in each for each in lengths)


def test_fsdp(found: dict[int, Any]) -> None:
    for each in (told["fsdp"] for told in found[2]):
        for between, apart in (each["head"], each["root"]):
            assert between == 0 and apart < 1e-5
        assert each["trains on"] == ""
        every, broken, first = each["refusals"]
        assert "only parameters='head'" in every and "sample 200 cannot be read" in broken and "fully_shard" in first


def test_no_gradient_is_an_error() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2))
    model.register_parameter("unused", nn.Parameter(torch.ones(3)))
    data = TensorDataset(torch.randn(5, 2), torch.tensor([0, 1, 0, 1, 0]))
    with pytest.raises(Problem, match="every gradient norm is 0: the loss does not depend on the chosen parameters"):
        gradient_norms(model, data, parameters="unused")
