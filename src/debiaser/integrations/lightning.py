"""PGD inside a Lightning training: a callback that owns the sampler."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Sampler

from debiaser import integrations as shared
from debiaser.errors import Misuse, Problem
from debiaser.io import log
from debiaser.learn.guard import Comparison
from debiaser.learn.losses import GCELoss
from debiaser.learn.sampler import ScoreSampler, Shuffle
from debiaser.learn.streams import fingerprint

pl = shared.framework("lightning.pytorch", "lightning")
REMEDY = "train on a DataLoader(..., sampler=sampling.sampler), and pass Trainer(use_distributed_sampler=False)"


class PhasedSampler(Sampler[int]):
    """Yield every sample once per epoch until there are scores, then samples drawn by score.

    With several processes, each takes every world_size-th sample of one common draw; a remainder that does not divide
    is left out, and so are samples that are `held_out` (n,).
    """

    def __init__(self, held_out: Tensor, seed: int = 0) -> None:
        self.held_out, self.seed, self.epoch = held_out, seed, 0
        self.rank, self.size = 0, 1
        self.scores: Tensor | None = None  # what samples are drawn by

    def __len__(self) -> int:
        return int((~self.held_out).sum()) // self.size

    def __iter__(self) -> Iterator[int]:
        # a generator: what is drawn is decided when the first sample is asked for, not when the loader is made
        rows = (~self.held_out).nonzero()[:, 0].numpy()
        if self.scores is None:
            draw = Shuffle(len(rows), self.seed, rows).draw(self.epoch)
        else:
            draw = ScoreSampler(self.scores, len(rows), self.seed, rank=0, world_size=1).draw(self.epoch)
        self.epoch += 1
        yield from draw[self.rank : len(self) * self.size : self.size].tolist()

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next pass."""
        self.epoch = epoch


class DebiasedSampling(pl.Callback):  # type: ignore[misc, name-defined]
    """Train the first epochs with GCE, score every sample, then draw samples by score: PGD in one `Trainer.fit`.

    The training loader must use `sampler`. If Lightning replaces it (as it does under DDP unless you pass
    `Trainer(use_distributed_sampler=False)`), the callback raises an error. Draws are guarded: classes are drawn
    equally often, samples that the biased model misclassifies at most so often that its predictions tell nothing, and
    the scores are tempered. Some samples are held out of both steps; after training, `comparison` has the accuracies of
    both models on them. `biased_state` has the weights from before the second step. Checkpoints include `scores`.

    Args:
        dataset: the training data, for the scores: pairs of input and label, preferably without augmentation.
        biased_epochs: how many of the trainer's max_epochs belong to the first step.
        loss: attribute of the module that holds its loss, which is replaced by GCE in the first step.
        alpha: exponent of GCE.
        p: the norm of the gradient, as in `gradient_norms`.
        power: power that the norm is raised to.
        head: name of the last layer, if it is not detected automatically.
        seed: seed of the draws.
        reset: start the second step with a new optimiser and schedule.
        parameters: parameters whose gradient is used, as in `gradient_norms`.
        guard: if False, draw by the scores alone, as the paper does.
        held_out: share of the samples, drawn at random, that neither step is trained on. If these would be fewer than
            20, none is held out, and the models are compared on their training samples.

    Warns:
        DebiasingWarning: the model is below chance in a class, or lost too much accuracy, on held-out samples.

    Raises:
        Misuse: an argument is invalid, or the module's loss is not found.
        Problem: the training uses another sampler, or does not use the loss that is replaced.

    >>> sampling = DebiasedSampling(dataset, biased_epochs=1)
    >>> trainer = lightning.Trainer(max_epochs=2, callbacks=[sampling], **quiet)
    >>> trainer.fit(module, DataLoader(dataset, batch_size=16, sampler=sampling.sampler))
    >>> sampling.scores.shape == (len(dataset),)
    True
    """

    def __init__(
        self,
        dataset: Any,
        biased_epochs: int,
        loss: str = "loss",
        alpha: float = 0.7,
        p: float = 2,
        power: float = 1,
        head: str | None = None,
        seed: int = 0,
        reset: bool = True,
        parameters: str | Callable[[str], bool] = "head",
        guard: bool = True,
        held_out: float = 0.1,
    ) -> None:
        if biased_epochs < 1:
            raise Misuse(f"biased_epochs must be at least 1, got {biased_epochs}")
        self.dataset, self.biased_epochs, self.loss = dataset, biased_epochs, loss
        self.norm: dict[str, Any] = {"p": p, "power": power, "head": head, "parameters": parameters}
        self.reset, self.guard = reset, guard
        self.comparison: Comparison | None = None
        self.biased_state: dict[str, Tensor] | None = None
        self._found: dict[str, Tensor] | None = None  # scores, shares of draws, answers of the biased model
        self._scored: str | None = None  # the fingerprint of the dataset that they are of
        self.gce = GCELoss(alpha)
        self.sampler = PhasedSampler(shared.choose_held_out(len(dataset), held_out, seed), seed)
        self._own_loss: Any = None  # the module's, while it is replaced
        self._watch = ExitStack()  # of the first backward pass, until it is over

    @property
    def scores(self) -> Tensor | None:
        """How strongly each sample (n,) goes against the biased model; None before scoring."""
        return None if self._found is None else self._found["scores"]

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Replace the module's loss by GCE, unless the first step is over."""
        if trainer.max_epochs is not None and 0 <= trainer.max_epochs <= self.biased_epochs:
            raise Misuse(
                f"max_epochs={trainer.max_epochs} leaves none after biased_epochs={self.biased_epochs}; train longer"
            )
        self.sampler.rank, self.sampler.size = trainer.global_rank, trainer.world_size
        if self.scores is None:
            if not isinstance(getattr(pl_module, self.loss, None), nn.Module):
                raise Misuse(
                    f"{type(pl_module).__name__} has no module '{self.loss}' that computes its loss from logits and "
                    "labels; keep it as an attribute and name it: DebiasedSampling(..., loss='criterion')"
                )
            with self._converting(trainer, pl_module):
                shared.probe(pl_module, self.dataset, **self.norm)
            self._own_loss = getattr(pl_module, self.loss)
            setattr(pl_module, self.loss, self.gce)
            self._watch_backward(pl_module)

    def _watch_backward(self, pl_module: Any) -> None:
        """Refuse a module whose first backward pass does not go through GCE: before a weight changes, whoever steps."""
        reached, passed = list[Tensor](), list[Tensor]()

        def see(_: nn.Module, __: Any, loss: Tensor) -> None:
            if loss.requires_grad:
                loss.register_hook(passed.append)  # type: ignore[no-untyped-call]

        def arrive(weight: Tensor) -> None:
            reached.append(weight)
            if len(reached) == 1:
                torch.autograd.Variable._execution_engine.queue_callback(check)

        def check() -> None:
            self._watch.close()
            if not passed:
                raise Problem(
                    f"the training_step of {type(pl_module).__name__} does not use self.{self.loss}, which is GCE in "
                    "the first epochs: compute the loss with it, or name the module it uses: "
                    "DebiasedSampling(..., loss=)"
                )

        self._watch.enter_context(self.gce.register_forward_hook(see))
        for weight in filter(lambda each: each.requires_grad, pl_module.parameters()):
            self._watch.enter_context(weight.register_post_accumulate_grad_hook(arrive))

    def _converting(self, trainer: Any, pl_module: Any) -> Any:
        """Inside, the module is given its inputs in 16 or 64 bits, where its weights are."""
        convert = trainer.precision_plugin.convert_input
        return pl_module.register_forward_pre_hook(lambda _, *given: convert(given), with_kwargs=True)

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """Refuse a loader with any sampler other than ours."""
        shared.check_sampler(trainer.train_dataloader, self.sampler, "DebiasedSampling", REMEDY)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """After the first step, score the samples, restore the module's loss, and reset the optimiser."""
        if self.scores is None and trainer.current_epoch + 1 >= self.biased_epochs:
            with self._converting(trainer, pl_module):
                found = shared.score_and_guard(pl_module, self.dataset, self.guard, self.sampler.held_out, **self.norm)
            self._found, self.sampler.scores, self._scored = found, found["shares"], fingerprint(self.dataset)
            self.biased_state = {name: each.detach().cpu().clone() for name, each in pl_module.state_dict().items()}
            self._restore(pl_module)
            if self.reset:
                trainer.strategy.setup_optimizers(trainer)

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """Restore the module's loss, even if training ended early, and compare the two models."""
        self._restore(pl_module)
        if self._found is None:
            told = "the training ended before biased_epochs=%d were over: the model is the biased one; train longer"
            log.warning(told, self.biased_epochs)
        elif "answers" in self._found:
            then = "the weights before it drew by score are in biased_state"
            with self._converting(trainer, pl_module):
                self.comparison = shared.warn_of_inversion(pl_module, self.dataset, self._found, then)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:  # noqa: ARG002
        """Restore the module's loss."""
        self._restore(pl_module)

    def _restore(self, pl_module: Any) -> None:
        self._watch.close()
        if self._own_loss is not None:
            setattr(pl_module, self.loss, self._own_loss)
            self._own_loss = None

    def state_dict(self) -> dict[str, Any]:
        """Return the scores and their dataset, the sampling shares, and the biased model's predictions."""
        kept: dict[str, Any] = {name: (self._found or {}).get(name) for name in shared.STATE}
        return {**kept, "dataset": self._scored}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        scores, remedy = state_dict["scores"], "give the dataset that it was made with"
        if scores is not None:
            self._scored = state_dict.get("dataset")
            shared.check_scores(scores, self.dataset, self._scored or "", "the checkpoint", remedy)
            # older ones have scores alone
            self._found = {name: state_dict[name] for name in shared.STATE if state_dict.get(name) is not None}
            self.sampler.scores = self._found.get("shares", scores)
            self.sampler.held_out = self._found.get("held_out", torch.zeros(len(scores), dtype=torch.bool))
