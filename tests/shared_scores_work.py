"""What each of several processes scores in tests/test_shared_scores.py, each writing what it found as JSON."""

import json
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from debiaser import gradient_norms
from debiaser.learn.distributed import Processes, initialised

N = 201  # divides among neither 2 nor 4


class Rows:
    """Dictionaries, sample by sample; breaks where it is told to."""

    def __init__(self, x: Tensor, y: Tensor, breaks: int = -1) -> None:
        self.x, self.y, self.breaks, self.asked = x, y, breaks, 0

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, row: int) -> dict[str, Any]:
        self.asked += 1
        if row == self.breaks:
            raise ValueError(f"sample {row} cannot be read")
        return {"input": self.x[row], "labels": int(self.y[row])}


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 8), nn.Linear(8, 3)
    )


def said(act: Callable[[], object]) -> str:
    try:
        act()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def compared(ours: Tensor, alone: Tensor) -> list[float]:
    """How far all processes' scores are from the first one's, and ours from those of one process."""
    everyone = [torch.empty_like(ours) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, ours)
    between = max(float((each - everyone[0]).abs().max()) for each in everyone)
    return [between, float(((ours - alone).abs() / alone).max())]


def under_ddp(processes: Processes, data: TensorDataset) -> dict[str, Any]:
    model = DistributedDataParallel(network())
    for batch in torch.randn(3, 8, 1, 8, 8) + processes.rank:  # every process sees other data
        model(batch).sum().backward()
    x, y = data.tensors
    found, before = {}, model.module[1].running_mean.clone()
    whole = network()
    with torch.no_grad():
        whole.load_state_dict(processes.from_main(lambda: model.module.state_dict()))
    for name, options in {"head": {}, "all": {"parameters": "all"}, "inf": {"p": float("inf"), "bias": True}}.items():
        alone = gradient_norms(whole, data, shared=False, **options)
        found[name] = compared(gradient_norms(model, data, batch_size=16, **options), alone)
    alone, rows = gradient_norms(whole, data, shared=False), Rows(x, y)
    found["dictionaries"] = compared(gradient_norms(model, rows), alone)
    found["asked"] = rows.asked
    found["loader"] = compared(gradient_norms(model, DataLoader(Rows(x, y), 32)), alone)
    few = TensorDataset(x[:1], y[:1])  # fewer samples than processes
    found["few"] = compared(gradient_norms(model, few), gradient_norms(whole, few, shared=False))
    found["kept"] = bool(torch.equal(before, model.module[1].running_mean))
    broken = said(lambda: gradient_norms(model, Rows(x, y, breaks=N - 1)))  # of the last process's part
    labels = y.clone()
    labels[0] = 7
    found["refusals"] = [
        broken,
        said(lambda: gradient_norms(model, TensorDataset(x, labels))),
        said(lambda: gradient_norms(model, TensorDataset(x[processes.rank :], y[processes.rank :]))),
    ]
    found["statistics differ"] = compared(before, before)[0]
    return found


def under_fsdp(data: TensorDataset) -> dict[str, Any]:
    model, alone = network(), gradient_norms(network(), data, shared=False)
    for layer in (model[0], model[5]):
        fully_shard(layer)
    fully_shard(model)
    x, y = data.tensors
    found = {"head": compared(gradient_norms(model, data, batch_size=16), alone)}
    found["trains on"] = said(lambda: model(x[:4]).sum().backward())
    rooted = fully_shard(network())
    found["root"] = compared(gradient_norms(rooted, data), alone)
    found["refusals"] = [
        said(lambda: gradient_norms(model, data, parameters="all")),
        said(lambda: gradient_norms(model, Rows(x, y, breaks=N - 1), batch_size=16)),
        said(lambda: gradient_norms(FullyShardedDataParallel(network(), device_id=torch.device("cpu")), data)),
    ]
    return found


def work(rank: int, size: int, folder: str) -> None:
    torch.set_num_threads(1)
    logging.getLogger("debiaser").setLevel(logging.ERROR)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store{size}", rank=rank, world_size=size)
    processes = initialised()
    generator = torch.Generator().manual_seed(1)
    data = TensorDataset(torch.randn(N, 1, 8, 8, generator=generator), torch.arange(N) % 3)
    torch.manual_seed(rank)
    found = {"size": processes.size, "ddp": under_ddp(processes, data)}
    if size == 2:
        found["fsdp"] = under_fsdp(data)
    Path(folder, f"{size}-{rank}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    for many in (2, 4):  # forked: torch is imported once
        torch.multiprocessing.start_processes(work, (many, sys.argv[1]), many, start_method="fork")
