"""What a method is given: splits without bias labels, a fresh network, a loop, a look, and a journal."""

import copy
import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from debiaser.data.augment import Augmentation
from debiaser.data.split import Batch, Split
from debiaser.io import derive, torch_stream
from debiaser.learn import engine
from debiaser.learn.checkpoint import Checkpoint, Checkpoints, add_state
from debiaser.learn.distributed import ALONE, Processes
from debiaser.learn.forward import Outputs, collect, look, reduce
from debiaser.learn.losses import Objective
from debiaser.learn.recipe import Recipe
from debiaser.learn.sampler import IndexSampler


class Method(Protocol):
    """A debiasing algorithm: a frozen dataclass of hyperparameters whose `fit` reads like its paper's box."""

    def fit(self, task: "Task") -> nn.Module:
        """The debiased network."""
        ...


@dataclass
class Journal:
    """What happened: vectors over the training rows, seconds per stage, one row per epoch, the keys of the stages.

    `owned`: the keys of those that no other run may use.
    """

    vectors: dict[str, NDArray[Any]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    history: list[engine.Row] = field(default_factory=list)
    stages: list[str] = field(default_factory=list)
    owned: list[str] = field(default_factory=list)

    def note(self, name: str, vector: Tensor | NDArray[Any]) -> None:
        """Keep one number per training row under this name."""
        self.vectors[name] = np.asarray(vector.detach().cpu() if isinstance(vector, Tensor) else vector)

    def add_stage(self, stage: str, key: str, history: list[engine.Row], owned: bool = False) -> None:
        """Keep a stage's history; a stage that was continued replaces what was known of it."""
        if key not in self.stages:
            self.stages.append(key)
        if owned and key not in self.owned:
            self.owned.append(key)
        others = [row for row in self.history if row["stage"] != stage]
        self.history = others + history
        self.seconds[stage] = sum(row["seconds"] for row in history)


@dataclass
class Task:
    """Data to learn from, and the means; no bias labels anywhere."""

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

    def new_model(self, name: str = "model") -> nn.Module:
        """A fresh network; networks of different names start from different weights."""
        return self.make_model(derive(self.seed, "init", name))

    def plain(self) -> "Task":
        """The same task without augmentation."""
        return replace(self, augment=None)

    def epochs(self, stage: str, length: float = 1) -> int:
        """How many epochs a stage of this name takes."""
        return self.recipe.of_stage(stage, length).epochs

    def fit(
        self,
        objective: Objective,
        stage: str,
        sampler: IndexSampler | None = None,
        length: float = 1,
        until: int | None = None,
        owner: str = "",
        rate: float = 1,
    ) -> nn.Module:
        """The network that comes out of training the objective through this stage of the recipe.

        A stage is found by what goes into it (start, data, recipe, draws), so runs that share one train it once. With
        `until` it stops after that many of its epochs and the next call goes on: what its rows are drawn by may change.
        Such a stage is its `owner`'s alone: what else decides it is for the owner to say. `length` and `rate` multiply
        the recipe's epochs and its learning rate.
        """
        recipe = self.recipe.of_stage(stage, length, rate)
        plan = engine.Stage(
            stage,
            self.train,
            recipe,
            derive(self.seed, stage),
            sampler,
            self.augment if recipe.augment else None,
            self.device,
            self.watch,
            self.processes,
            self.precision,
        )
        key = stage_key(objective, plan, self.identity, owner)
        self.processes.agree(f"how stage '{stage}' begins", key)
        with self.processes.held(lambda: self.checkpoints.stage(key)) as checkpoint:
            history = engine.fit(objective, plan, checkpoint or Checkpoint(None), until)
        self.journal.add_stage(stage, key, history, owned=bool(owner))
        return objective.model

    def outputs(self, model: nn.Module, head: nn.Module | str | None = None) -> Outputs:
        """What the network makes of all clean training rows, collected."""

        def seen(batches: Iterator[Batch]) -> tuple[Tensor, ...]:
            found = collect(look(model, batches, head, self.device))
            return found.features, found.logits, found.labels

        return Outputs(*self.processes.over(self.train, self.look_size, seen))

    def scores(self, model: nn.Module, score: Callable[[Outputs], Tensor], augmented: bool = False) -> Tensor:
        """(n,) one number per training row from one forward pass in eval mode, streamed."""
        return self.measured(lambda batches: [reduce(look(model, batches, device=self.device), score)], augmented)

    def measured(self, measure: Callable[[Iterator[Batch]], Iterable[Tensor]], augmented: bool = False) -> Tensor:
        """(n,) what `measure` gives for the training rows, part by part in their order; its time is noted."""
        started = time.perf_counter()

        def seen(clean: Iterator[Batch]) -> tuple[Tensor]:
            return (torch.cat(list(measure(map(self._augmented, clean) if augmented else clean))),)

        (result,) = self.processes.over(self.train, self.look_size, seen)
        self.journal.seconds["score"] = self.journal.seconds.get("score", 0) + time.perf_counter() - started
        return result

    @property
    def look_size(self) -> int:
        """Rows per batch where nothing is learnt."""
        return max(256, self.recipe.batch_size)

    def _augmented(self, batch: Batch) -> Batch:
        if not self.augment:
            return batch
        stream = torch_stream(self.seed, "score", "augment", int(batch.rows[0]))
        return Batch(self.augment(batch.x, stream), batch.y, batch.rows)


def clone(model: nn.Module) -> nn.Module:
    """A copy with weights and BatchNorm statistics."""
    return copy.deepcopy(model)


def stage_key(objective: Objective, plan: engine.Stage, identity: str, owner: str = "") -> str:
    """A name for a stage of training made of everything that determines its outcome."""
    digest = hashlib.blake2b(digest_size=10)
    parts = [identity, plan.name, plan.seed, plan.recipe.plain(), repr(plan.augment), repr(objective), str(plan.device)]
    if plan.processes.size > 1:
        parts.append(f"{plan.processes.size} processes")
    if plan.precision != "32":
        parts.append(plan.precision)
    digest.update(json.dumps(parts, sort_keys=True).encode())
    add_state(digest, objective.state_dict())
    if owner:
        digest.update(owner.encode())
    elif plan.sampler is not None:
        digest.update(plan.sampler.identity)
    return f"{plan.name}-{digest.hexdigest()}"
