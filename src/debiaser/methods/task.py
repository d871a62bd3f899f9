"""What a method is, and what it is given: data without bias labels, fresh networks, a loop, a look, and a journal."""

import copy
import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import partial, wraps
from math import isfinite
from operator import ge, gt, le, lt
from typing import Any, ClassVar, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from debiaser.data.augment import Augmentation
from debiaser.data.split import Batch, Split
from debiaser.errors import Misuse, Problem, known
from debiaser.io import derive, log, numpy_stream, torch_stream
from debiaser.learn import engine
from debiaser.learn.checkpoint import Checkpoint, Checkpoints, add_state
from debiaser.learn.distributed import ALONE, Processes
from debiaser.learn.forward import Outputs, last_layer, look
from debiaser.learn.groups import Groups, consecutive
from debiaser.learn.guard import Comparison
from debiaser.learn.losses import Objective, Supervised
from debiaser.learn.recipe import Recipe
from debiaser.learn.sampler import IndexSampler, Shares, Shuffle, reweighed

LIMITS = {"above": (gt, "above"), "at_least": (ge, "of at least"), "below": (lt, "below"), "at_most": (le, "at most")}


def bounded(default: float | None, **limits: float) -> Any:
    """A field of a method that must be a finite number: `above` or `at_least`, and `below` or `at_most` a limit."""
    return field(default=default, metadata={"limits": limits})


def choice(default: str, *others: str) -> Any:
    """A field of a method that must be one of these words."""
    return field(default=default, metadata={"choices": (default, *others)})


@dataclass(frozen=True)
class Method:
    """A debiasing algorithm: a frozen dataclass of hyperparameters whose `fit` reads like its paper's algorithm box.

    Fields declared by `bounded` and `choice` are checked when the method is made. With the field `augment` at False,
    `fit` is given the task without augmentation. Only a method that declares `uses_groups`, which every table shows,
    is given group labels.
    """

    uses_groups: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        fit = cls.fit

        @wraps(fit)
        def fit_task(self: Any, task: "Task") -> nn.Module:
            if task.groups is not None and not self.uses_groups:
                task = replace(task, groups=None)
            return fit(self, task if getattr(self, "augment", True) else replace(task, augment=None))

        cls.fit = fit_task  # type: ignore[method-assign]

    def __post_init__(self) -> None:
        for each in fields(self):
            value, limits = getattr(self, each.name), each.metadata.get("limits", {})
            if value not in each.metadata.get("choices", [value]):
                raise known(each.name, value, each.metadata["choices"])
            if value is None or not limits:
                continue
            if not (isfinite(value) and all(LIMITS[limit][0](value, bound) for limit, bound in limits.items())):
                allowed = " and ".join(f"{LIMITS[limit][1]} {bound:g}" for limit, bound in limits.items())
                optional = ", or none" if type(None) in get_args(each.type) else ""
                raise Misuse(f"{each.name} must be a finite number {allowed}{optional}, got {value:g}")

    def fit(self, task: "Task") -> nn.Module:
        """Return the debiased network."""
        raise NotImplementedError


@dataclass
class Journal:
    """What happened: vectors over the training samples, seconds per stage, one row per epoch, and the stages' keys.

    Each key says whether its stage is the run's own, which no other run may use. `model`: what the last stage gave;
    `decisions`: what was decided, and why; `models`: those that were compared, by name, and `comparison` how.
    """

    vectors: dict[str, NDArray[Any]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    history: list[engine.Row] = field(default_factory=list)
    stages: dict[str, bool] = field(default_factory=dict)
    model: nn.Module | None = field(default=None, repr=False)
    decisions: list[str] = field(default_factory=list)
    models: dict[str, nn.Module] = field(default_factory=dict, repr=False)
    comparison: Comparison | None = None

    def note(self, name: str, vector: Tensor | NDArray[Any]) -> None:
        """Keep one number per training sample under this name."""
        self.vectors[name] = np.asarray(vector.detach().cpu() if isinstance(vector, Tensor) else vector)

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Add the seconds that the block takes under this name."""
        started = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0) + time.perf_counter() - started


@dataclass
class Task:
    """Data to learn from, and the means; no bias labels but `groups`, for methods that declare their use."""

    train: Split
    make_model: Callable[[int], nn.Module]
    recipe: Recipe = field(default_factory=Recipe)
    seed: int = 0
    valid: Split | None = None
    augment: Augmentation | None = None
    device: torch.device | str = "cpu"
    identity: str = ""
    checkpoints: Checkpoints = field(default_factory=Checkpoints)
    watch: Callable[[nn.Module], engine.Row] | None = None
    journal: Journal = field(default_factory=Journal)
    processes: Processes = ALONE
    precision: str = "32"
    groups: Tensor | None = field(default=None, repr=False)  # (n,) of the training samples
    reweigh: Callable[[Shares], Shares] | None = None  # changes the probabilities (n,) of all draws

    def new_model(self, name: str = "model") -> nn.Module:
        """A fresh network; networks of different names start from different weights."""
        return self.make_model(derive(self.seed, "init", name))

    def fit(
        self,
        objective: Objective,
        stage: str,
        sampler: IndexSampler | None = None,
        length: float = 1,
        until: int | None = None,
        owner: str = "",
        rate: float = 1,
        after_step: Callable[[int], None] | None = None,
    ) -> nn.Module:
        """The network that comes out of training the objective through this stage of the recipe.

        A stage is found by what goes into it (start, data, recipe, draws), so runs that share one train it once. With
        `until` it stops after that many of its epochs and the next call goes on: its sampler may change in between.
        Such a stage is its `owner`'s alone: what else decides it is for the owner to say. `length` and `rate` multiply
        the recipe's epochs and its learning rate; `after_step` is called with the number of steps taken. The recipe
        knows stages that are repeated, as `amplified 1` and `amplified 2`, by their first word.
        """
        recipe = self.recipe.of_stage(stage.partition(" ")[0], length, rate)
        augment = self.augment if recipe.augment else None
        if self.reweigh is not None:
            n = len(self.train)
            sampler = reweighed(sampler or Shuffle(n, derive(self.seed, stage)), n, self.reweigh)
        means = (self.device, self.watch, self.processes, self.precision, after_step)
        plan = engine.Stage(stage, self.train, recipe, derive(self.seed, stage), sampler, augment, *means)
        key = stage_key(objective, plan, self.identity, owner)
        self.processes.agree(f"how stage '{stage}' begins", key)
        with self.processes.held(lambda: self.checkpoints.stage(key)) as checkpoint:
            history = engine.fit(objective, plan, checkpoint or Checkpoint(None), until)
        self.journal.stages[key], self.journal.model = bool(owner), objective.model
        self.journal.seconds[stage] = sum(row["seconds"] for row in history)
        self.journal.history = [row for row in self.journal.history if row["stage"] != stage] + history
        return objective.model

    def outputs(self, model: nn.Module, split: Split | None = None) -> Outputs:
        """What the network makes of all clean samples of a split, by default of the training one, collected."""

        def collected(batches: Iterator[Batch]) -> tuple[Tensor, ...]:
            looked = look(model, batches, device=self.device)
            seen = [(each.features.cpu(), each.logits.cpu(), each.labels.cpu()) for each in looked]
            return tuple(torch.cat(parts) for parts in zip(*seen, strict=True))

        size = max(256, self.recipe.batch_size)
        return Outputs(*self.processes.over(self.train if split is None else split, size, collected))

    def scores(self, model: nn.Module, score: Callable[[Outputs], Tensor], augmented: bool = False) -> Tensor:
        """(n,) one number per training sample from one forward pass in eval mode, streamed."""
        looked = partial(look, model, device=self.device)
        return self.measured(lambda batches: (score(each).cpu() for each in looked(batches)), augmented)

    def measured(self, measure: Callable[[Iterator[Batch]], Iterable[Tensor]], augmented: bool = False) -> Tensor:
        """(n,) what `measure` gives for the training samples, part by part in their order; its time is noted."""

        def prepared(batch: Batch) -> Batch:
            if not (augmented and self.augment):
                return batch
            stream = torch_stream(self.seed, "score", "augment", int(batch.rows[0]))
            return replace(batch, x=self.augment(batch.x, stream))

        size = max(256, self.recipe.batch_size)
        with self.journal.timed("score"):
            return self.processes.over(self.train, size, lambda each: (torch.cat([*measure(map(prepared, each))]),))[0]

    def known_groups(self) -> Groups:
        """(n,) the group of every training sample, numbered from 0 without a gap; each lies within one class."""
        if self.groups is None:
            raise Problem(
                "this method learns from group labels, and here are none: take a benchmark whose bias is known in "
                "training, or a method that needs no group labels"
            )
        groups = consecutive(self.groups.numpy())
        sizes = np.bincount(groups)
        if len(sizes) == len(np.unique(self.train.y.numpy())):
            raise Problem("the group labels are the labels: every class is one group; give groups that divide classes")
        if alone := int((sizes == 1).sum()):
            told = "%d of %d groups have one sample, which then counts as much as the whole of any other group"
            log.warning(told, alone, len(sizes))
        return groups


def stage_key(objective: Objective, plan: engine.Stage, identity: str, owner: str = "") -> str:
    """A name for a stage of training made of everything that determines its outcome."""
    digest = hashlib.blake2b(digest_size=10)
    parts = [identity, plan.name, plan.seed, plan.recipe.plain(), repr(plan.augment), repr(objective), str(plan.device)]
    parts += [f"{plan.processes.size} processes"] if plan.processes.size > 1 else []
    parts += [plan.precision] if plan.precision != "32" else []
    digest.update(json.dumps(parts, sort_keys=True).encode())
    add_state(digest, objective.state_dict())
    if owner:
        digest.update(owner.encode())
    elif plan.sampler is not None:
        digest.update(plan.sampler.identity)
    return f"{plan.name}-{digest.hexdigest()}"


# What methods that only fit a last layer begin with: a plainly trained network, and samples that it never saw


@dataclass(frozen=True)
class Frozen:
    """A trained network that only a new last layer can change; `held_out` (m,) are the samples to fit it on."""

    task: Task
    model: nn.Module
    held_out: Groups

    def look(self, rows: Groups) -> Outputs:
        """Features, logits and labels of these training samples."""
        return self.task.outputs(self.model, self.task.train.subset(torch.from_numpy(rows)))

    def with_last_layer(self, weights: NDArray[Any], biases: NDArray[Any]) -> nn.Module:
        """A copy of the network with these weights (k, h) and biases (k,) in its last layer."""
        changed = copy.deepcopy(self.model)
        layer = self.head(changed)
        with torch.no_grad():
            layer.weight.copy_(torch.from_numpy(weights).reshape(layer.weight.shape))
            layer.bias.copy_(torch.from_numpy(biases))
        return changed

    def head(self, model: nn.Module) -> Any:
        """The last layer of the network or of its copy."""
        layer = last_layer(model, self.task.train.batch(torch.arange(2)).to(self.task.device))
        if layer.bias is None:
            raise Problem("the network's last layer has no bias, which a fitted one needs; give that layer a bias")
        return layer


def plain_network(task: Task, share: float) -> Frozen:
    """A network trained plainly on all but this share of every class; with a share of 0 it sees all, and so may fit."""
    if task.reweigh is not None:
        raise Misuse("a last layer that is fitted anew has weights of its own, not yours; take a method that draws")
    labels, stream = task.train.y.numpy(), numpy_stream(task.seed, "held out")
    parts = [stream.permutation(np.flatnonzero(labels == label)) for label in np.unique(labels)]
    held_out = np.sort(np.concatenate([each[: int(share * len(each))] for each in parts]))
    if share and not len(held_out):
        raise Misuse(f"held_out={share:g} of so few samples leaves none to fit the last layer on; hold out more")
    rest = np.setdiff1d(np.arange(len(labels)), held_out)
    sampler = Shuffle(len(labels), derive(task.seed, "vanilla"), rest) if share else None
    model = task.fit(Supervised(task.new_model()), "vanilla", sampler, length=task.recipe.single_stage)
    return Frozen(task, model, held_out if share else rest)
