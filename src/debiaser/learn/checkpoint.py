"""Where a stage of training keeps its state after every epoch: in a file that is whole or absent, or in memory."""

import copy
import hashlib
import json
import shutil
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import safetensors
import torch
from safetensors.torch import save
from torch import Tensor, nn

from debiaser.errors import Problem
from debiaser.io import SEAL, check_seal, locked, log, write_bytes


class State(NamedTuple):
    """Tensors and plain values, as saved."""

    tensors: dict[str, Tensor]
    plain: dict[str, Any]


def detached(state: Mapping[str, Any]) -> dict[str, Any]:
    """Copies on the CPU that nobody else changes, of tensors and of what a module's `get_extra_state` gave."""
    return {
        name: each.detach().cpu().contiguous().clone() if isinstance(each, Tensor) else copy.deepcopy(each)
        for name, each in state.items()
    }


def add_state(digest: hashlib.blake2b, state: Mapping[str, Any]) -> None:
    """Take the names and values of a module's state into a digest."""
    for name, each in state.items():
        digest.update(name.encode())
        if isinstance(each, Tensor):
            digest.update(each.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        else:
            digest.update(repr(each).encode())


def write_tensors(path: Path, state: Mapping[str, Any], **plain: Any) -> None:
    """A safetensors file, atomically and sealed, with plain values as JSON in its header."""
    other = [name for name, each in state.items() if not isinstance(each, Tensor)]
    if other:
        raise Problem(f"the network keeps no tensor under '{other[0]}' (get_extra_state); files hold tensors only")
    write_bytes(path, save(detached(state), {"plain": json.dumps({**plain, "seal": SEAL})}))


def read_tensors(path: Path) -> State:
    """What `write_tensors` wrote; a file that is not as it was written is refused."""
    check_seal(path)
    with safetensors.safe_open(path, framework="pt") as stream:
        tensors = {name: stream.get_tensor(name) for name in stream.keys()}  # noqa: SIM118
        plain = json.loads((stream.metadata() or {}).get("plain", "{}"))
    return State(tensors, {name: each for name, each in plain.items() if name != "seal"})


class Checkpoint:
    """The latest state of one stage."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._kept: State | None = None

    def save(self, tensors: dict[str, Tensor], **plain: Any) -> None:
        """Replace the state; a kill in the middle leaves the former one."""
        if self.path:
            write_tensors(self.path, tensors, **plain)
        else:
            self._kept = State(detached(tensors), json.loads(json.dumps(plain)))

    def load(self) -> State | None:
        """The state, or None where there is none; a damaged file is said, removed and counts as none."""
        if self.path is None:
            return self._kept
        if not self.path.exists():
            return None
        try:
            return read_tensors(self.path)
        except (safetensors.SafetensorError, OSError, ValueError) as error:
            log.warning("the checkpoint %s is damaged (%s); this stage starts again", self.path, error)
            self.path.unlink(missing_ok=True)
            return None


class Checkpoints:
    """The checkpoints of all stages, each found by its own key, below a folder; without one, in memory.

    `fresh`: what earlier processes left is not used.
    """

    def __init__(self, folder: Path | None = None, fresh: bool = False) -> None:
        self.folder, self._fresh = folder, fresh
        self._kept: dict[str, Checkpoint] = {}
        self._begun: set[str] = set()

    @contextmanager
    def stage(self, key: str) -> Iterator[Checkpoint]:
        """The checkpoint of this stage, ours alone while in use: a second process waits."""
        if self.folder is None:
            yield self._kept.setdefault(key, Checkpoint(None))
            return
        with locked(self.folder / f"{key}.lock"):
            if self._fresh and key not in self._begun:
                shutil.rmtree(self.folder / key, ignore_errors=True)
            self._begun.add(key)
            yield Checkpoint(self.folder / key / "state.safetensors")

    def remove(self, key: str) -> None:
        """Forget a stage whose model is kept elsewhere."""
        self._kept.pop(key, None)
        if self.folder is not None:
            with locked(self.folder / f"{key}.lock"):
                shutil.rmtree(self.folder / key, ignore_errors=True)


def training_state(objective: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> dict[str, Any]:
    """The state of an objective and of its optimiser under flat names: objective.NAME, optimizer.PARAMETER.NAME."""
    state = {f"objective.{name}": each for name, each in objective.state_dict().items()}
    for number, values in optimizer.state_dict()["state"].items() if optimizer else ():
        state |= {f"optimizer.{number}.{name}": each for name, each in values.items() if isinstance(each, Tensor)}
    return state


def restore(objective: nn.Module, optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """Put what `training_state` gave back into an objective and a fresh optimiser."""
    own: dict[str, Any] = {}
    moments: dict[int, dict[str, Tensor]] = defaultdict(dict)
    for name, each in state.items():
        kind, _, rest = name.partition(".")
        if kind == "objective":
            own[rest] = each
        else:
            number, _, what = rest.partition(".")
            moments[int(number)][what] = each
    objective.load_state_dict(own)
    optimizer.load_state_dict({"state": dict(moments), "param_groups": optimizer.state_dict()["param_groups"]})
