"""Several processes that work as one (joined by accelerate): who we are, and the few things they tell each other."""

import json
import logging
import os
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from safetensors.torch import load
from torch import Tensor, nn

from debiaser.data.split import Batch, Split, each_tensor
from debiaser.errors import Misuse, Problem
from debiaser.io import derive, torch_stream
from debiaser.learn.checkpoint import State, saved
from debiaser.learn.forward import evaluating, find_head
from debiaser.learn.losses import Objective

# --- Direct lines (sockets) between the processes of one machine: many times quicker to answer than a network's way

MANY = 8  # processes from which everybody telling everybody is no longer the quickest way
EAGER = 0.005  # seconds of looking again and again, before going to sleep until something comes
LENGTH = 8  # bytes that say how long what follows is
LINE_PATIENCE = 60.0  # seconds that the others may take to call, once all have said that they will


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
    door.settimeout(LINE_PATIENCE)
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


# --- One batch among several processes: networks see a part of it, the objective sees all of it

DRIFT = 1e-3  # relative difference of weights between processes that is still rounding


class _Gather(torch.autograd.Function):
    """The rows of all processes; backward, our own rows' gradient times the number of processes.

    So the mean over processes of any parameter's gradient is the gradient of the whole batch, before and after it.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, processes: Processes, sizes: list[int]) -> Tensor:
        ctx.first, ctx.length, ctx.many = sum(sizes[: processes.rank]), len(x), processes.size
        return processes.gather(x, sizes)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return gradients[0][ctx.first : ctx.first + ctx.length] * ctx.many, None, None


class Sharing:
    """Hooks on an objective's modules that share every batch among the processes.

    A network is whatever module is given the batch's inputs. Features are gathered where they enter the last layer; of
    a network that has none, or is hidden in another module, the output is gathered.
    """

    def __init__(self, objective: Objective, processes: Processes) -> None:
        self.objective, self.processes = objective, processes
        self.heads: dict[nn.Module, nn.Module | None] = {}  # of every network seen
        self.network: nn.Module | None = None  # that is running
        self.x: Any = None  # the batch's inputs
        self.gathered, self.seed, self.calls = False, 0, 0
        self.sizes: list[int] | None = None  # of the parts of this batch; None: every process has all of it
        inner = [module for module in objective.modules() if module is not objective]
        self.hooks = [module.register_forward_pre_hook(self.enter, with_kwargs=True) for module in inner]
        self.hooks += [module.register_forward_hook(self.leave) for module in inner]

    def take(self, rows: Tensor) -> tuple[Tensor, torch.Generator]:
        """Begin a step on these rows: those of them that are ours, and a stream to augment them by."""
        self.seed, self.calls, many = int(torch.randint(2**62, ())), 0, self.processes.size
        if len(rows) < 2 * many:  # too few to share: all do all of it, by the same draws
            self.sizes = None
            return rows, torch_stream(self.seed, "augment")
        parts = torch.tensor_split(rows, many)
        self.sizes = [len(part) for part in parts]
        return parts[self.processes.rank], torch_stream(self.seed, "augment", self.processes.rank)

    def whole(self, batch: Batch, y: Tensor, rows: Tensor) -> Batch:
        """The batch with our inputs, and labels and row numbers of all."""
        if not self.heads:  # before the step, since looking at a network runs it
            self.heads = {each: head for each in self.objective.children() if (head := last_layer(each, batch.x))}
        self.x = batch.x
        return Batch(batch.x, y.to(batch.y), rows.to(batch.rows))

    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any] | None:
        """Before a module runs: a network gets draws of its own, its last layer the features of all rows."""
        if self.network is None:
            if self.x is not None and given(self.x, args, kwargs):
                self.heads.setdefault(module, None)
                self.network, self.gathered = module, self.sizes is None
                words = () if self.sizes is None else (self.processes.rank,)
                reseed(derive(self.seed, "network", self.calls, *words))
            return None
        if module is self.heads.get(self.network) and not self.gathered:
            self.gathered = True
            return (self.gather(args[0]), *args[1:]), kwargs
        return None

    def leave(self, module: nn.Module, _: Any, output: Any) -> Any:
        """After a network ran: its output for all rows, and the draws that all processes share."""
        if module is not self.network:
            return None
        self.network, self.calls = None, self.calls + 1
        reseed(derive(self.seed, "objective", self.calls))
        return output if self.gathered else self.gather(output)

    def gather(self, x: Any) -> Tensor:
        """(b, ...) what all processes have here."""
        if not isinstance(x, Tensor):
            raise Problem(
                f"a network that gives {type(x).__name__} and ends in no linear layer cannot be shared; "
                "train it with one process"
            )
        gathered: Tensor = _Gather.apply(x, self.processes, self.sizes)  # type: ignore[no-untyped-call]
        return gathered

    def average_gradients(self) -> None:
        """Make every gradient that of the whole batch."""
        self.processes.average([each.grad for each in self.objective.parameters() if each.grad is not None])

    def settle(self) -> None:
        """After an epoch: networks get the mean of their buffers (BatchNorm's statistics), all else must be equal."""
        buffers = {id(each): each for network in self.heads for each in network.buffers() if each.is_floating_point()}
        self.processes.average(list(buffers.values()))
        kept = [each for each in self.objective.state_dict().values() if isinstance(each, Tensor)]
        ours = torch.cat([each.detach().reshape(-1).float() for each in kept])
        mean = ours.clone()
        self.processes.average([mean])
        apart = torch.tensor([float(not torch.allclose(ours, mean, rtol=DRIFT, atol=1e-6))])
        if bool(self.processes.gather(apart).any()):
            raise Problem(
                "the processes no longer hold the same weights: the method keeps something that it does not learn "
                "from the whole batch, or the machines differ; run it in one process"
            )


@contextmanager
def sharing(objective: Objective, processes: Processes) -> Iterator[Sharing | None]:
    """The objective's batches shared among the processes while in the block; None where there is only one."""
    if processes.size == 1:
        yield None
        return
    shared = Sharing(objective, processes)
    try:
        yield shared
    finally:
        for hook in shared.hooks:
            hook.remove()


def reseed(seed: int) -> None:
    """Seed the generators in use; `torch.manual_seed` takes a millisecond where CUDA has not been used."""
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed_all(seed)


def given(x: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a tensor of the batch's inputs is among the arguments."""
    wanted = tensors_in(x)
    return any(wanted & tensors_in(each) for each in (*args, *kwargs.values()))


def tensors_in(nest: Any) -> set[int]:
    """The identities of all tensors in a nest of dicts, tuples and lists."""
    found: list[int] = []

    def note(tensor: Tensor) -> Tensor:
        found.append(id(tensor))
        return tensor

    each_tensor(nest, note)
    return set(found)


def last_layer(module: nn.Module, x: Any) -> nn.Module | None:
    """The linear layer that gives its logits, None where the module is no network of these inputs or has no such."""
    with evaluating(module):
        try:
            return find_head(module, x)
        except Exception:  # a loss, an average: whatever they say to being given pictures
            return None
