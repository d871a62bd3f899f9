"""Several processes that work as one (joined by accelerate): who we are, and the few things they tell each other."""

import json
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from safetensors.torch import load
from torch import Tensor

from debiaser.data.split import Batch, Split
from debiaser.errors import Misuse, Problem
from debiaser.learn.checkpoint import State, saved
from debiaser.learn.lines import Lines, connected_lines

log = logging.getLogger("debiaser")
T = TypeVar("T")
PATIENCE = timedelta(days=1)  # the main process may wait long for a lock; one that died is noticed at once


class Lost(Problem):
    """Another process is gone; the one that failed gets some seconds to say why before torchrun ends all of them."""

    wait = 5.0


@dataclass(frozen=True)
class Processes:
    """This process among all: its number, and how many there are; by default it is alone and tells nobody anything.

    Number 0 is the main one, which alone reads and writes files. The others do the same steps in the same order.
    """

    rank: int = 0
    size: int = 1
    lines: Lines | None = None  # where all are on one machine, for what is told in every step

    @property
    def main(self) -> bool:
        """Whether this is the process that reads, writes and speaks."""
        return self.rank == 0

    def tell_bytes(self, content: bytes) -> bytes:
        """What the main process has."""
        if self.size == 1:
            return content
        with connected():
            length = torch.tensor([len(content) if self.main else 0])
            dist.broadcast(length, 0)
            told = torch.frombuffer(bytearray(content or b"\0"), dtype=torch.uint8)
            told = told if self.main else torch.empty(max(1, int(length)), dtype=torch.uint8)
            dist.broadcast(told, 0)
        return bytes(told.numpy().tobytes())[: int(length)]

    def from_main(self, make: Callable[[], T]) -> T:
        """What the main process makes (plain values): the others wait for it, and do not make it."""
        if self.size == 1:
            return make()
        made = json.dumps(make()).encode() if self.main else b""
        told: T = json.loads(self.tell_bytes(made))
        return told

    def tell_state(self, state: State | None) -> State | None:
        """The main process's state."""
        if self.size == 1:
            return state
        plain = self.from_main(lambda: state and state.plain)
        if plain is None:
            return None
        tensors = self.tell_bytes(saved(state.tensors) if state else b"")
        return state or State(load(tensors), plain)

    def all_say(self, fine: bool) -> bool:
        """Whether it is true in every process."""
        return bool(self.gather(torch.tensor([fine])).all())

    def agree(self, what: str, text: str) -> None:
        """Refuse to go on where the processes do not all have this text."""
        if not self.all_say(self.from_main(lambda: text) == text):
            raise Problem(
                f"the processes do not agree on {what}: start all of them with the same command, data and versions"
            )

    def gather(self, rows: Tensor, sizes: Sequence[int] | None = None) -> Tensor:
        """(n, ...) the rows of all processes, in the order of their numbers; `sizes`: how many each has, if known."""
        if self.size == 1:
            return rows
        with connected():
            if sizes is None:
                counts = [torch.zeros(1, dtype=torch.long) for _ in range(self.size)]
                dist.all_gather(counts, torch.tensor([len(rows)]))
                sizes = [int(count) for count in counts]
            # bytes travel as floats do not: any type, any value, unchanged
            padded = rows.new_zeros(max(sizes), *rows.shape[1:])
            padded[: len(rows)] = rows
            received = self.exchange(padded)
        return torch.cat([each[:size] for each, size in zip(received, sizes, strict=True)])

    def exchange(self, mine: Tensor) -> list[Tensor]:
        """What each process has here, all of one shape and type."""
        if self.lines and mine.device.type == "cpu":
            return self.lines.exchange(mine)
        received = [torch.empty_like(mine) for _ in range(self.size)]
        dist.all_gather([as_bytes(each) for each in received], as_bytes(mine))
        return received

    def average(self, tensors: Sequence[Tensor]) -> None:
        """Replace tensors by their mean over the processes, in place."""
        if self.size == 1 or not tensors:
            return
        flat = torch.cat([tensor.detach().reshape(-1) for tensor in tensors])
        with connected():
            if self.lines and flat.device.type == "cpu":
                flat = torch.stack(self.exchange(flat)).sum(0)  # in one order: the same to the last bit for all
            else:
                dist.all_reduce(flat)
        flat /= self.size
        for tensor, mean in zip(tensors, torch.split(flat, [tensor.numel() for tensor in tensors]), strict=True):
            tensor.detach().copy_(mean.view_as(tensor))

    def over(
        self, split: Split, size: int, function: Callable[[Iterator[Batch]], tuple[Tensor, ...]]
    ) -> tuple[Tensor, ...]:
        """What the function makes of all batches of so many rows, in order, each batch looked at by one process.

        The batches are those of a process alone, so each row comes out the same. Too few batches: each does all.
        """
        chunks = torch.split(torch.arange(len(split)), size)
        if self.size == 1 or len(chunks) < self.size:
            return function(split.batches(size))
        first, last = (len(chunks) * rank // self.size for rank in (self.rank, self.rank + 1))
        return tuple(self.gather(each) for each in function(map(split.batch, chunks[first:last])))

    @contextmanager
    def main_first(self) -> Iterator[None]:
        """The block is run by the main process, then by the others."""
        if not self.main:
            self.from_main(lambda: None)
        yield
        if self.main:
            self.from_main(lambda: None)

    @contextmanager
    def held(self, held: Callable[[], AbstractContextManager[T]]) -> Iterator[T | None]:
        """The main process holds something (a lock) while all are in the block; the others get None."""
        if not self.main:
            self.from_main(lambda: None)
            yield None
            self.from_main(lambda: None)
            return
        with held() as kept:
            self.from_main(lambda: None)
            yield kept
            self.from_main(lambda: None)


ALONE = Processes()


def as_bytes(tensor: Tensor) -> Tensor:
    """The tensor's memory as a vector of bytes."""
    return tensor.reshape(-1).view(torch.uint8)


@contextmanager
def connected() -> Iterator[None]:
    """Turns a broken connection into the clear line."""
    try:
        yield
    except (RuntimeError, ConnectionError, TimeoutError) as error:
        raise Lost(
            f"another process of this job ended or cannot be reached ({(str(error).splitlines() or ['?'])[0][:80]}); "
            "what was done is kept: start the same command again, and it goes on from there"
        ) from error


def number_of(name: str, otherwise: int) -> int:
    """A number from the environment that the launcher (torchrun) set."""
    text = os.environ.get(name, str(otherwise))
    if not text.isdigit():
        raise Misuse(f"the environment says {name}={text}, which is not a number; start with torchrun, or unset it")
    return int(text)


def launched() -> Processes:
    """Which process this is, as the launcher says; alone where there was none."""
    return Processes(number_of("RANK", 0), max(1, number_of("WORLD_SIZE", 1)))


@contextmanager
def joined(device: str) -> Iterator[Processes]:
    """The processes that the launcher started, connected; alone where it started one."""
    asked = launched()
    if asked.size == 1:
        if "ACCELERATE_USE_CPU" in os.environ:  # what its --num_processes said is not in the environment
            log.warning(
                "accelerate launch started one process, as it always does without several GPUs; for N processes: "
                "torchrun --standalone --nproc-per-node N -m debiaser ..."
            )
        yield ALONE
        return
    if device == "mps":
        raise Misuse("several processes cannot share the mps device; add --device cpu, or start one process")
    if device == "cuda" and number_of("LOCAL_RANK", 0) >= torch.cuda.device_count():
        raise Problem(f"process {asked.rank} finds {torch.cuda.device_count()} GPUs here; start one process per GPU")
    state = join(asked, device)
    try:
        found = torch.ones(1)
        with connected():
            dist.all_reduce(found)
        if not int(found) == dist.get_world_size() == asked.size:
            raise Problem(f"{asked.size} processes were asked for, but {int(found)} are here; start them with torchrun")
        with ExitStack() as stack:
            with connected():
                lines = stack.enter_context(connected_lines(asked.rank, asked.size, asked.tell_bytes, asked.all_say))
            yield replace(asked, lines=lines)
            with connected():
                dist.barrier()  # all leave together: one that is still talking would lose the other
    finally:
        state.destroy_process_group()


def join(asked: Processes, device: str) -> Any:
    """accelerate's state of this process, which has taken its device and is connected with the others."""
    try:
        from accelerate import PartialState
    except ImportError as error:
        raise Problem(
            "several processes need accelerate, which is not installed: pip install 'debiaser[distributed]' gets it"
        ) from error
    backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"  # what is told in words travels from the CPU
    try:
        return PartialState(cpu=device == "cpu", backend=backend, timeout=PATIENCE)
    except (RuntimeError, ValueError) as error:
        raise Problem(
            f"process {asked.rank} cannot join the others ({str(error).splitlines()[0][:80]}); "
            "check the rendezvous address and start all of them with the same torchrun command"
        ) from error


def check_size(processes: Processes, batch_size: int) -> None:
    """Refuse batches that cannot give every process two rows (BatchNorm cannot train on one)."""
    if batch_size < 2 * processes.size:
        fewer = f" for {processes.size} processes, or start fewer" if processes.size > 1 else ""
        raise Misuse(
            f"a batch of {batch_size} cannot train BatchNorm, which needs two rows; take a batch_size of at least "
            f"{2 * processes.size}{fewer}"
        )
