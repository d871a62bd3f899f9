"""One batch among several processes: networks see a part of it, the objective sees all of it.

Every process runs each network up to its last layer on its own rows; the features are gathered, and the last layer and
the objective work on the whole batch in every process. So objectives with a memory (averages per row, weights of
groups) or with relations between rows (swaps, contrasts) are exact, and their memories stay the same everywhere.
What differs from one process: BatchNorm normalises by the statistics of a process's own rows, and dropout and
augmentation draw from streams of their own.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from debiaser.data.split import Batch, each_tensor
from debiaser.errors import Problem
from debiaser.learn.objectives import Objective
from debiaser.learn.outputs import evaluating, find_head
from debiaser.learn.processes import Processes
from debiaser.randomness import derive, torch_stream

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
