"""The one training loop. Its random streams begin anew each epoch from (seed, epoch): a checkpoint needs no others."""

import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from debiaser.data.augment import Augmentation
from debiaser.data.split import Split
from debiaser.errors import Misuse, Problem
from debiaser.io import derive, torch_stream
from debiaser.learn.checkpoint import Checkpoint, restore, training_state
from debiaser.learn.distributed import ALONE, Processes, Sharing, sharing
from debiaser.learn.losses import Objective
from debiaser.learn.recipe import Recipe
from debiaser.learn.sampler import IndexSampler, Shuffle
from debiaser.progress import task

Row = dict[str, Any]  # one epoch of the history
PRECISIONS = ("32", "bf16")


@dataclass(frozen=True)
class Stage:
    """Everything a stage of training depends on besides the objective."""

    name: str
    split: Split
    recipe: Recipe
    seed: int
    sampler: IndexSampler | None = None
    augment: Augmentation | None = None
    device: torch.device | str = "cpu"
    watch: Callable[[torch.nn.Module], Row] | None = None
    processes: Processes = ALONE
    precision: str = "32"
    after_step: Callable[[int], None] | None = None  # is given how many steps the stage has taken


def new_optimizer(recipe: Recipe, objective: Objective) -> torch.optim.Optimizer:
    """A fresh optimiser over everything trainable."""
    parameters = [parameter for parameter in objective.parameters() if parameter.requires_grad]
    if not parameters:
        raise Problem("nothing can be trained: every parameter of the network is frozen (requires_grad is False)")
    if recipe.optimizer == "sgd":
        return torch.optim.SGD(
            parameters, recipe.lr, momentum=recipe.momentum, weight_decay=recipe.weight_decay, fused=True
        )
    kind = torch.optim.Adam if recipe.optimizer == "adam" else torch.optim.AdamW
    return kind(parameters, recipe.lr, weight_decay=recipe.weight_decay, fused=True)


def fit(objective: Objective, stage: Stage, checkpoint: Checkpoint, until: int | None = None) -> list[Row]:
    """Train the objective in place to the end of the recipe (or of epoch `until`); the history, one row per epoch.

    Goes on from the checkpoint where there is one, and writes one after every epoch: a run that was killed and started
    again ends with the same weights, bit for bit. Of several processes, the main one has the checkpoint.
    """
    recipe, processes = stage.recipe, stage.processes
    if recipe.batch_size < 2 * processes.size:
        raise Misuse(
            f"a batch_size of {recipe.batch_size} leaves some of {processes.size} processes fewer than the two samples "
            f"that BatchNorm needs; take at least {2 * processes.size}"
        )
    objective.to(stage.device)
    optimizer = new_optimizer(recipe, objective)
    saved = processes.from_main(checkpoint.load)
    history: list[Row] = saved.plain["history"] if saved else []
    if saved:
        restore(objective, optimizer, saved.tensors)
    sampler = stage.sampler or Shuffle(len(stage.split), stage.seed)
    last = recipe.epochs if until is None else min(until, recipe.epochs)
    if len(history) < last:
        steps = steps_in(len(sampler.draw(0)), recipe.batch_size)
        told = task(stage.name, last * steps, len(history) * steps)
        with torch.random.fork_rng(devices=[]), told as advance:
            for epoch in range(len(history), last):
                history.append(run_epoch(objective, optimizer, stage, sampler, epoch, advance))
                if processes.main:
                    unfinished = optimizer if epoch + 1 < recipe.epochs else None
                    checkpoint.save(training_state(objective, unfinished), history=history)
    objective.eval()
    return history


def steps_in(rows: int, batch_size: int) -> int:
    """Steps of an epoch; a last batch of one sample joins the one before, since BatchNorm cannot train on one."""
    return max(1, math.ceil(rows / batch_size) - (rows % batch_size == 1))


def split_rows(rows: Tensor, batch_size: int) -> list[Tensor]:
    """The samples of each step."""
    borders = [step * batch_size for step in range(1, steps_in(len(rows), batch_size))]
    return list(torch.tensor_split(rows, borders))


def run_epoch(
    objective: Objective,
    optimizer: torch.optim.Optimizer,
    stage: Stage,
    sampler: IndexSampler,
    epoch: int,
    advance: Callable[[], None] = lambda: None,
) -> Row:
    """One epoch; its row of the history. `advance` is called after every step."""
    started = time.perf_counter()
    torch.manual_seed(derive(stage.seed, stage.name, "network", epoch))
    augmenting = torch_stream(stage.seed, stage.name, "augment", epoch)
    objective.train()
    objective.begin(epoch, stage.recipe.epochs)
    rows = sampler.draw(epoch)
    parts = split_rows(rows, stage.recipe.batch_size)
    total, rate = 0.0, stage.recipe.lr
    with sharing(objective, stage.processes) as shared:
        for number, part in enumerate(parts):
            rate = stage.recipe.learning_rate(epoch * len(parts) + number, len(parts))
            for group in optimizer.param_groups:
                group["lr"] = rate
            loss = step(objective, optimizer, stage, part, augmenting, shared)
            if not math.isfinite(loss):
                raise diverged(stage, epoch, number, part)
            total += loss * len(part)
            if stage.after_step:
                stage.after_step(epoch * len(parts) + number + 1)
            advance()
        if shared:
            shared.settle()
    row: Row = {"stage": stage.name, "epoch": epoch + 1, "seen": len(rows), "lr": rate, "loss": total / len(rows)}
    row["seconds"] = time.perf_counter() - started
    if stage.watch:
        row |= stage.watch(objective.model)
    return row


def step(
    objective: Objective,
    optimizer: torch.optim.Optimizer,
    stage: Stage,
    rows: Tensor,
    augmenting: torch.Generator,
    shared: Sharing | None = None,
) -> float:
    """One update on these samples; the loss before it. Where the batch is shared, inputs are read of our part only."""
    mine, augmenting = shared.take(rows) if shared else (rows, augmenting)
    batch = stage.split.batch(mine)
    if stage.augment:
        batch = replace(batch, x=stage.augment(batch.x, augmenting))
    batch = batch.to(stage.device)
    if shared:
        batch = shared.whole(batch, stage.split.y[rows], rows)
    lower = stage.precision == "bf16"  # weights and updates stay in float32
    with torch.autocast(torch.device(stage.device).type, torch.bfloat16) if lower else nullcontext():
        loss: Tensor = objective(batch)
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    if shared:
        stage.processes.average([each.grad for each in objective.parameters() if each.grad is not None])
    if stage.recipe.clip:
        torch.nn.utils.clip_grad_norm_(objective.parameters(), stage.recipe.clip)
    optimizer.step()
    return float(loss.detach())


def diverged(stage: Stage, epoch: int, number: int, rows: Tensor) -> Problem:
    """What to say when the loss of these samples is no longer a number."""
    x = stage.split.batch(rows).x
    if isinstance(x, Tensor) and not bool((finite := x.isfinite().reshape(len(rows), -1).all(1)).all()):
        return Problem(f"the input of training sample {int(rows[~finite][0])} is NaN or infinite; fix or remove it")
    return Problem(
        f"the loss became NaN or infinite in stage '{stage.name}', epoch {epoch + 1}, step {number + 1}: "
        f"the learning rate {stage.recipe.lr:g} is probably too high; try a smaller one, or clip the gradient"
    )
