"""Several processes that train as one (under torchrun): who we are, what they tell each other, a batch among them."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from debiaser.data.split import Batch, Split, each_tensor
from debiaser.errors import Misuse, Problem
from debiaser.io import derive, torch_stream
from debiaser.learn.forward import evaluating, find_head
from debiaser.learn.losses import Objective

T = TypeVar("T")
PATIENCE = timedelta(days=1)  # the main process may wait long for a lock; one that died is noticed at once
DRIFT = 1e-3  # relative difference of weights between processes that is still rounding


class Elsewhere(Problem):
    """What another process said, or said otherwise; every process knows of it already."""


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

    @property
    def main(self) -> bool:
        """Whether this is the process that reads, writes and speaks."""
        return self.rank == 0

    def from_main(self, make: Callable[[], T]) -> T:
        """What the main process makes: the others wait for it, and do not make it."""
        if self.size == 1:
            return make()
        made: list[Any] = [make() if self.main else None]
        with connected():
            dist.broadcast_object_list(made, src=0)
        told: T = made[0]
        return told

    def from_all(self, mine: T) -> list[T]:
        """What every process has, in the order of their numbers."""
        found = [mine] * self.size
        if self.size > 1:
            with connected():
                dist.all_gather_object(found, mine)
        return found

    def agree(self, what: str, text: str) -> None:
        """Refuse to go on where the processes do not all have this text."""
        if len(set(self.from_all(text))) > 1:
            raise Problem(
                f"the processes do not agree on {what}: start all of them with the same command, data and versions"
            )

    def tell(self, error: str = "", common: str = "") -> None:
        """Meet the other processes: raises where another brings an error, or not all bring the same `common`."""
        told = self.from_all((error, common))
        wrong = next((f"process {rank}: {text}" for rank, (text, _) in enumerate(told) if text), "")
        if not error and (wrong or len(set(told)) > 1):
            raise Elsewhere(
                wrong or "the processes do not have the same weights, data and options; give every process the same"
            )

    @contextmanager
    def failing_together(self) -> Iterator[None]:
        """Where one process fails in the block, all do: none waits for it."""
        try:
            yield
        except Elsewhere:
            raise
        except Exception as error:
            self.tell(str(error) or type(error).__name__)
            raise
        self.tell()

    def in_step(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """The batches, each once every process has its next one: networks that talk in their forward pass need it."""
        for batch in batches:
            self.tell()
            yield batch

    @contextmanager
    def same_buffers(self, model: nn.Module) -> Iterator[None]:
        """Inside, all have the main process's buffers (BatchNorm's statistics), which are those that DDP saves."""
        buffers = [] if self.size == 1 else list(model.buffers())
        own = [each.detach().clone() for each in buffers]
        for buffer, values in zip(buffers, self.from_main(lambda: [each.cpu() for each in own]), strict=True):
            buffer.detach().copy_(values)
        try:
            yield
        finally:
            for buffer, values in zip(buffers, own, strict=True):
                buffer.detach().copy_(values)

    def share(self, n: int) -> Tensor:
        """Our part of n numbers, as long as everyone's: all parts in order, the last number repeated, cover them."""
        length = -(-n // self.size)
        return torch.arange(self.rank * length, (self.rank + 1) * length).clamp(max=n - 1)

    def gather(self, rows: Tensor, sizes: Sequence[int] | None = None) -> Tensor:
        """(n, ...) what all processes have, in the order of their numbers; `sizes`: how many each has, if known."""
        if self.size == 1:
            return rows
        sizes = self.from_all(len(rows)) if sizes is None else sizes
        with connected():
            device = "cuda" if dist.get_backend() == "nccl" else rows.device  # nccl takes nothing from the CPU
            padded = torch.zeros(max(sizes), *rows.shape[1:], dtype=rows.dtype, device=device)
            padded[: len(rows)] = rows
            received = [torch.empty_like(padded) for _ in sizes]
            # as bytes: any type, any value, unchanged
            dist.all_gather([each.view(-1).view(torch.uint8) for each in received], padded.view(-1).view(torch.uint8))
        return torch.cat([each[:size] for each, size in zip(received, sizes, strict=True)]).to(rows.device)

    def average(self, tensors: Sequence[Tensor]) -> None:
        """Replace tensors by their mean over the processes, in place."""
        if self.size == 1 or not tensors:
            return
        flat = torch.cat([tensor.detach().reshape(-1) for tensor in tensors])
        with connected():
            dist.all_reduce(flat)
        flat /= self.size
        for tensor, mean in zip(tensors, torch.split(flat, [tensor.numel() for tensor in tensors]), strict=True):
            tensor.detach().copy_(mean.view_as(tensor))

    def over(
        self, split: Split, size: int, function: Callable[[Iterator[Batch]], tuple[Tensor, ...]]
    ) -> tuple[Tensor, ...]:
        """What the function makes of all batches of so many samples, in order, each batch looked at by one process.

        The batches are those of a process alone, so each sample comes out the same. Too few batches: each does all.
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
        with held() if self.main else nullcontext() as kept:
            self.from_main(lambda: None)
            yield kept
            self.from_main(lambda: None)


ALONE = Processes()


@contextmanager
def connected() -> Iterator[None]:
    """Turns a broken connection into the clear line."""
    try:
        yield
    except (RuntimeError, ConnectionError, TimeoutError, ValueError) as error:
        raise Lost(
            f"another process of this job ended or cannot be reached ({(str(error).splitlines() or ['?'])[0][:80]}); "
            "what was done is kept: rerun the same command to resume"
        ) from error


def initialised() -> Processes:
    """The processes that torch.distributed connects, whoever initialised it; alone where nobody did."""
    if not (dist.is_available() and dist.is_initialized()):
        return ALONE
    return Processes(dist.get_rank(), dist.get_world_size())


def is_sharded(model: nn.Module) -> bool:
    """Whether FSDP2 keeps a part of each weight in every process; refused where they are divided in another way."""
    if initialised().size == 1:
        return False
    from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
    from torch.distributed.tensor import DTensor

    kept = [each for each in model.parameters() if isinstance(each, DTensor)]
    parts = max((sum(placement.is_shard() for placement in each.placements) for each in kept), default=0)
    is_fsdp = any(isinstance(each, FSDPModule) for each in model.modules())
    if any(isinstance(each, FullyShardedDataParallel) for each in model.modules()):
        raise Problem("FullyShardedDataParallel hides the weights that the scores need; shard with fully_shard (FSDP2)")
    if kept and (parts > 1 or not is_fsdp):
        raise Problem(
            "the weights are divided by tensor parallelism, where all processes need the same samples; score a copy "
            "of the model that is whole, or sharded with fully_shard alone"
        )
    return is_fsdp


def launched() -> Processes:
    """Which process this is, as the launcher says; alone where there was none."""
    rank, size = os.environ.get("RANK", "0"), os.environ.get("WORLD_SIZE", "1")
    if not (rank.isdigit() and size.isdigit()):
        raise Misuse(f"the environment says RANK={rank}, WORLD_SIZE={size}; start with torchrun, or unset both")
    return Processes(int(rank), int(size))


@contextmanager
def joined(device: str) -> Iterator[Processes]:
    """The processes that the launcher started, connected; alone where it started one."""
    asked = launched()
    if asked.size == 1:
        yield ALONE
        return
    local = int(os.environ.get("LOCAL_RANK", 0))
    if device == "mps" or (device == "cuda" and local >= torch.cuda.device_count()):
        raise Misuse(f"process {asked.rank} has no {device} device of its own; start one per GPU, or add --device cpu")
    if device == "cuda":
        torch.cuda.set_device(local)
    # Its functions keep the group that exists when it is imported, as the first optimiser does: never destroyed, gloo's
    # threads would outlive it, and a thread that is alive when Python ends may abort the process.
    import_module("torch.distributed.nn.functional")
    with connected():  # what is told in words travels from the CPU
        dist.init_process_group("cpu:gloo,cuda:nccl" if device == "cuda" else "gloo", timeout=PATIENCE)
    try:
        yield asked
        with connected():
            dist.barrier()  # all leave together: one that is still talking would lose the other
    finally:
        dist.destroy_process_group()


class _Gather(torch.autograd.Function):
    """The samples of all processes; backward, our own ones' gradient times the number of processes.

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

    Networks see a part of the batch, the objective sees all of it. A network is whatever module is given the batch's
    inputs. Features are gathered where they enter the last layer; of a network that has none, or is hidden in another
    module, the output is gathered.
    """

    def __init__(self, objective: Objective, processes: Processes) -> None:
        self.objective, self.processes = objective, processes
        self.heads: dict[nn.Module, nn.Module | None] = {}  # of every network seen
        self.network: nn.Module | None = None  # that is running
        self.inputs: set[int] = set()  # identities of the tensors in the batch's inputs
        self.gathered, self.seed, self.calls = False, 0, 0
        self.sizes: list[int] | None = None  # of the parts of this batch; None: every process has all of it
        inner = [module for module in objective.modules() if module is not objective]
        self.hooks = [module.register_forward_pre_hook(self.enter, with_kwargs=True) for module in inner]
        self.hooks += [module.register_forward_hook(self.leave) for module in inner]

    def take(self, rows: Tensor) -> tuple[Tensor, torch.Generator]:
        """Begin a step on these samples: those of them that are ours, and a stream to augment them by."""
        self.seed, self.calls, many = int(torch.randint(2**62, ())), 0, self.processes.size
        if len(rows) < 2 * many:  # too few to share: all do all of it, by the same draws
            self.sizes = None
            return rows, torch_stream(self.seed, "augment")
        parts = torch.tensor_split(rows, many)
        self.sizes = [len(part) for part in parts]
        return parts[self.processes.rank], torch_stream(self.seed, "augment", self.processes.rank)

    def whole(self, batch: Batch, y: Tensor, rows: Tensor) -> Batch:
        """The batch with our inputs, and labels and indices of all."""
        if not self.heads:  # before the step, since looking at a network runs it
            self.heads = {each: head for each in self.objective.children() if (head := head_of(each, batch.x))}
        self.inputs = tensors_in(batch.x)
        return Batch(batch.x, y.to(batch.y), rows.to(batch.rows))

    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any] | None:
        """Before a module runs: a network gets draws of its own, its last layer the features of all samples."""
        if self.network is None:
            if any(self.inputs & tensors_in(each) for each in (*args, *kwargs.values())):
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
        """After a network ran: its output for all samples, and the draws that all processes share."""
        if module is not self.network:
            return None
        self.network, self.calls = None, self.calls + 1
        reseed(derive(self.seed, "objective", self.calls))
        return output if self.gathered else self.gather(output)

    def gather(self, x: Any) -> Tensor:
        """(b, ...) what all processes have here."""
        apply: Callable[..., Tensor] = _Gather.apply  # some releases of torch type it, some do not
        return apply(x, self.processes, self.sizes)

    def settle(self) -> None:
        """After an epoch: networks get the mean of their buffers (BatchNorm's statistics), all else must be equal."""
        buffers = {id(each): each for network in self.heads for each in network.buffers() if each.is_floating_point()}
        self.processes.average(list(buffers.values()))
        ours = torch.cat([each.detach().reshape(-1).float() for each in self.objective.state_dict().values()])
        mean = ours.clone()
        self.processes.average([mean])
        same = torch.tensor([torch.allclose(ours, mean, rtol=DRIFT, atol=1e-6)])
        if not bool(self.processes.gather(same).all()):
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


def tensors_in(nest: Any) -> set[int]:
    """The identities of all tensors in a nest of dicts, tuples and lists."""
    found: dict[int, Tensor] = {}
    each_tensor(nest, lambda tensor: found.setdefault(id(tensor), tensor))
    return set(found)


def head_of(module: nn.Module, x: Any) -> nn.Module | None:
    """The linear layer that gives its logits, None where the module is no network of these inputs or has no such."""
    with evaluating(module):
        try:
            return find_head(module, x)
        except Exception:  # a loss, an average: whatever they say to being given images
            return None
