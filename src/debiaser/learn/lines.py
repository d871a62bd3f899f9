"""Direct lines (sockets) between the processes of one machine: many times quicker to answer than a network's way.

A training step of some milliseconds waits for the others twice; gloo takes about a millisecond to say anything at all.
"""

import os
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import torch
from torch import Tensor

from debiaser.errors import Problem

MANY = 8  # processes from which everybody telling everybody is no longer the quickest way
EAGER = 0.005  # seconds of looking again and again, before going to sleep until something comes
LENGTH = 8  # bytes that say how long what follows is
PATIENCE = 60.0  # seconds that the others may take to call, once all have said that they will


class Lines:
    """A line to every other process, in the order of their numbers; all of them must exchange at the same time."""

    def __init__(self, rank: int, others: dict[int, socket.socket]) -> None:
        self.rank, self.others = rank, others
        # where processes share a core, one that looks again and again keeps the other from answering
        self.eager = EAGER if cores() > len(others) else 0.0

    def exchange(self, mine: Tensor) -> list[Tensor]:
        """What each process has here, all of one shape and type, in the order of their numbers."""
        found = {other: torch.empty(mine.shape, dtype=mine.dtype) for other in self.others}
        for other, line in sorted(self.others.items()):
            if self.rank < other:  # one speaks while the other listens, so that no two wait to be heard
                send(line, as_memory(mine))
                self.hear(line, as_memory(found[other]))
            else:
                self.hear(line, as_memory(found[other]))
                send(line, as_memory(mine))
        return [each for _, each in sorted({**found, self.rank: mine}.items())]

    def hear(self, line: socket.socket, into: memoryview) -> None:
        """Fill the memory with what another process sends, if that is as long."""
        length = bytearray(LENGTH)
        receive(line, memoryview(length), self.eager)
        if (sent := int.from_bytes(length, "little")) != len(into):
            raise Problem(
                f"the processes do not take the same steps: one sent {sent} bytes where {len(into)} were due, as when "
                "a network learns other parameters from other rows; run it in one process"
            )
        receive(line, into, self.eager)


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def as_memory(tensor: Tensor) -> memoryview:
    """The tensor's own bytes, or a copy of them where they do not lie in order."""
    return tensor.detach().reshape(-1).view(torch.uint8).numpy().data


def send(line: socket.socket, content: memoryview) -> None:
    """Send the memory, and how long it is before it."""
    line.sendall(len(content).to_bytes(LENGTH, "little"))
    line.sendall(content)


def receive(line: socket.socket, into: memoryview, eager: float) -> None:
    """Fill the memory with what comes; a process that sleeps is woken late, so the first moments are spent awake."""
    filled, until = 0, time.perf_counter() + eager
    while filled < len(into):
        awake = time.perf_counter() < until
        try:
            came = line.recv_into(into[filled:], 0, socket.MSG_DONTWAIT if awake else 0)
        except BlockingIOError:
            continue
        if not came:
            raise ConnectionError("the line to another process is closed")
        filled += came


@contextmanager
def connected_lines(
    rank: int, size: int, tell: Callable[[bytes], bytes], all_say: Callable[[bool], bool]
) -> Iterator[Lines | None]:
    """Lines between all processes where all are on this machine and few enough, else None: the network's way does it.

    `tell` gives what the first process has, `all_say` whether it is true in every process.
    """
    here = os.environ.get("LOCAL_WORLD_SIZE") == str(size) and hasattr(socket, "AF_UNIX") and size <= MANY
    if not all_say(here):
        yield None
        return
    with ExitStack() as lines:
        with ExitStack() as meeting:  # the folder is needed until all have met: a kill later on leaves nothing behind
            folder = ""
            with suppress(OSError):  # only its owner may enter it, so nobody else can call
                folder = meeting.enter_context(tempfile.TemporaryDirectory(prefix="lines-")) if rank == 0 else ""
            place = Path(os.fsdecode(tell(os.fsencode(folder))))
            door = meeting.enter_context(socket.socket(socket.AF_UNIX))
            others = met(rank, size, place, door, lines) if all_say(is_open(door, place, rank, size)) else None
            all_say(True)
        yield Lines(rank, others) if others else None


def is_open(door: socket.socket, place: Path, rank: int, size: int) -> bool:
    """Whether others can call here: not where the folder is on another machine, or its name too long for a socket."""
    door.settimeout(PATIENCE)
    if not place.is_absolute():
        return False
    try:
        door.bind(str(place / str(rank)))
        door.listen(size)
    except OSError:
        return False
    return True


def met(rank: int, size: int, place: Path, door: socket.socket, lines: ExitStack) -> dict[int, socket.socket]:
    """The lines to all others: those before us are called, those after us call."""
    others = {}
    for other in range(rank):
        others[other] = lines.enter_context(socket.socket(socket.AF_UNIX))
        others[other].connect(str(place / str(other)))
        others[other].sendall(bytes([rank]))
    for _ in range(size - rank - 1):
        line = lines.enter_context(door.accept()[0])
        name = bytearray(1)
        receive(line, memoryview(name), 0)
        others[name[0]] = line
    return others
