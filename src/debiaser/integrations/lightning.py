"""PGD inside a Lightning training: a callback that owns the sampler."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Sampler

from debiaser import integrations as shared
from debiaser.errors import Misuse, Problem
from debiaser.io import log
from debiaser.learn.forward import fingerprint
from debiaser.learn.guard import Comparison
from debiaser.learn.losses import GCELoss
from debiaser.learn.sampler import ScoreSampler, Shuffle

pl = shared.framework("lightning.pytorch", "lightning")
REMEDY = "train on a DataLoader(..., sampler=sampling.sampler), and pass Trainer(use_distributed_sampler=False)"


class PhasedSampler(Sampler[int]):
    """Every sample once an epoch until there are scores, then samples drawn by score.

    Of several processes, each passes every so-manieth sample of one and the same draw; what does not divide is left
    out, and so are samples that are `held_out` (n,).
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
        """Make the next pass the draw of this epoch."""
        self.epoch = epoch


class DebiasedSampling(pl.Callback):  # type: ignore[misc, name-defined]
    """Trains the first epochs with GCE, scores every sample, then draws samples by score: PGD in one `Trainer.fit`.

    The training's loader must use `sampler`; if Lightning replaced it (as it does under DDP unless
    `Trainer(use_distributed_sampler=False)`), the callback stops the training. `scores` are in checkpoints. Draws are
    guarded: classes alike, at most half of a class's for samples that the biased model misclassifies, scores tempered.
    Some samples are held out of both steps; on these, after the training, `comparison` has both models' accuracies.
    `biased_state` has the weights before the second step.

    Args:
        dataset: what is trained on, for the scores: pairs of input and label, if possible without augmentation.
        biased_epochs: how long the first step is, of the trainer's max_epochs.
        loss: the module's attribute that holds its loss, which is GCE in the first step.
        alpha: GCE's exponent.
        p: which norm of the gradient.
        power: to which that norm is raised.
        head: the name of the last layer, where it cannot be found.
        parameters: whose gradient is meant, as in `gradient_norms`.
        seed: decides the draws.
        reset: the second step begins with a new optimiser and schedule.
        guard: False draws by the scores alone, as the paper does.
        held_out: share of the samples, at random by index, that neither step is trained on; where they would be fewer
            than 20, none is, and the models are compared on the samples that they were trained on.

    Warns:
        DebiasingWarning: the model ended below chance in a class, or lost too much, on what was held out.

    Raises:
        Misuse: values that cannot be meant, or a module whose loss is not found.
        Problem: the training draws by another sampler, or its loss is not the one that is replaced.

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
        self.gce = GCELoss(alpha)
        self.sampler = PhasedSampler(shared.choose_held_out(len(dataset), held_out, seed), seed)
        self._own_loss: Any = None  # the module's, while it is replaced
        self._lost: Any = None  # where GCE lies in the graph of the first step
        self._watch: Any = None  # that step is still to come

    @property
    def scores(self) -> Tensor | None:
        """(n,) how strongly every sample goes against the biased model; None before there are any."""
        return None if self._found is None else self._found["scores"]

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Put GCE in the place of the module's loss, unless the first step is over."""
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
            self._lost = None
            self._watch = self.gce.register_forward_hook(self._see)

    def _see(self, _: nn.Module, __: Any, loss: Tensor) -> None:
        """Keep what GCE gave, to find it in the loss of the step."""
        self._lost = loss.grad_fn

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Tensor) -> None:  # noqa: ARG002
        """Before the first step changes a weight: refuse a module that trains by another loss than the one replaced."""
        if self._watch is None:
            return
        self._watch.remove()
        self._watch = None
        if self._lost is None or not leads_to(loss.grad_fn, self._lost):
            raise Problem(
                f"the training_step of {type(pl_module).__name__} does not use self.{self.loss}, which is GCE in the "
                "first epochs: compute the loss with it, or name the module it uses: DebiasedSampling(..., loss=)"
            )

    def _converting(self, trainer: Any, pl_module: Any) -> Any:
        """Inside, the module is given its inputs in 16 or 64 bits, where its weights are."""
        convert = trainer.precision_plugin.convert_input
        return pl_module.register_forward_pre_hook(lambda _, *given: convert(given), with_kwargs=True)

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """Refuse to go on with another sampler than ours."""
        shared.check_sampler(trainer.train_dataloader, self.sampler, "DebiasedSampling", REMEDY)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """After the first step: scores, the module's own loss, and a new optimiser."""
        if self.scores is None and trainer.current_epoch + 1 >= self.biased_epochs:
            with self._converting(trainer, pl_module):
                found = shared.score_and_guard(pl_module, self.dataset, self.guard, self.sampler.held_out, **self.norm)
            self._found, self.sampler.scores = found, found["shares"]
            self.biased_state = {name: each.detach().cpu().clone() for name, each in pl_module.state_dict().items()}
            self._restore(pl_module)
            if self.reset:
                trainer.strategy.setup_optimizers(trainer)

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """The module has its own loss again, however far it came; how it does now is compared."""
        self._restore(pl_module)
        if self._found is None:
            told = "the training ended before biased_epochs=%d were over: the model is the biased one; train longer"
            log.warning(told, self.biased_epochs)
        elif "answers" in self._found:
            then = "the weights before it drew by score are in biased_state"
            with self._converting(trainer, pl_module):
                self.comparison = shared.warn_of_inversion(pl_module, self.dataset, self._found, then)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:  # noqa: ARG002
        """As `on_fit_end`."""
        self._restore(pl_module)

    def _restore(self, pl_module: Any) -> None:
        if self._watch is not None:
            self._watch.remove()
            self._watch = None
        if self._own_loss is not None:
            setattr(pl_module, self.loss, self._own_loss)
            self._own_loss = None

    def state_dict(self) -> dict[str, Any]:
        """The scores and what they are of, what is drawn by, and the biased model's answers, for the checkpoint."""
        kept: dict[str, Any] = {name: (self._found or {}).get(name) for name in shared.STATE}
        return {**kept, "dataset": None if self._found is None else fingerprint(self.dataset)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """What a checkpoint held."""
        scores, remedy = state_dict["scores"], "give the dataset that it was made with"
        if scores is not None:
            shared.check_scores(scores, self.dataset, state_dict.get("dataset") or "", "the checkpoint", remedy)
            # older ones have scores alone
            self._found = {name: state_dict[name] for name in shared.STATE if state_dict.get(name) is not None}
            self.sampler.scores = self._found.get("shares", scores)
            self.sampler.held_out = self._found.get("held_out", torch.zeros(len(scores), dtype=torch.bool))


def leads_to(end: Any, node: Any) -> bool:
    """Whether a node of autograd's graph lies on the way to this end."""
    waiting, seen = [end], set()
    while waiting:
        each = waiting.pop()
        if each is node:
            return True
        if each is not None and each not in seen:
            seen.add(each)
            waiting += [before for before, _ in each.next_functions]
    return False
