"""A Hugging Face Trainer that runs PGD's three steps on any classifier of transformers."""

import copy
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Subset

from debiaser import integrations as shared
from debiaser.errors import Misuse, Problem, brief
from debiaser.io import UNREADABLE, private, read_arrays, write_arrays
from debiaser.learn.gradient_norms import check_norm
from debiaser.learn.guard import Comparison
from debiaser.learn.losses import GCELoss
from debiaser.learn.sampler import ScoreSampler
from debiaser.learn.streams import fingerprint

shared.framework("accelerate", "trainer")
library = shared.framework("transformers", "trainer")
get_last_checkpoint: Any = shared.framework("transformers.trainer_utils", "trainer").get_last_checkpoint

SCORES = "debiaser_scores.npz"
REMEDY = "do not override get_train_dataloader, and leave train_sampling_strategy as it is"


class DebiasedTrainer(library.Trainer):  # type: ignore[misc, name-defined]
    """A Trainer whose `train` runs PGD: train with GCE, score every sample, then continue training on samples drawn by
    score.

    `scores_` (n,) is in the order of train_dataset and is saved in output_dir; `train(resume_from_checkpoint=True)`
    resumes whichever stage was interrupted. At the start of every epoch, `train` raises an error if the loader's
    sampler was replaced. Draws are guarded: classes are drawn equally often, samples that the biased model
    misclassifies at most so often that its predictions tell nothing, and the scores are tempered. Some samples are held
    out of both stages; after training, `comparison_` has the accuracies of both models on them. `biased_state_` has the
    weights after the first stage.

    Args:
        *args: arguments of Trainer; its `args` describe the second stage.
        **named: further arguments of Trainer.
        biased_epochs: epochs of the first stage, whose files are in output_dir/biased; by default as many as in the
            second.
        alpha: exponent of GCE.
        p: the norm of the gradient, as in `gradient_norms`.
        power: power that the norm is raised to.
        head: name of the last layer, if it is not detected automatically.
        parameters: parameters whose gradient is used, as in `gradient_norms`.
        guard: if False, draw by the scores alone, as the paper does.
        held_out: share of train_dataset, drawn at random, that neither stage is trained on. If this would be fewer than
            20 samples, none is held out, and the models are compared on their training samples.

    Warns:
        DebiasingWarning: the model is below chance in a class, or lost too much accuracy, on held-out samples.

    Raises:
        Misuse: an argument is invalid, or the training data has no length.
        Problem: (in `train`, before its first step) the model, data or loader cannot be scored or sampled.

    >>> trainer = DebiasedTrainer(model, args, train_dataset=dataset, biased_epochs=1)
    >>> output = trainer.train()
    >>> trainer.scores_.shape == (len(dataset),)
    True
    """

    sampler_: ScoreSampler | None = None  # that of the last training, once it is under way

    def __init__(
        self,
        *args: Any,
        biased_epochs: float | None = None,
        alpha: float = 0.7,
        p: float = 2,
        power: float = 1,
        head: str | None = None,
        parameters: str | Callable[[str], bool] = "head",
        guard: bool = True,
        held_out: float = 0.1,
        **named: Any,
    ) -> None:
        super().__init__(*args, **named)
        self.loss = GCELoss(alpha, reduction="none")
        check_norm(p, power)
        if not hasattr(self.train_dataset, "__len__"):
            raise Misuse("DebiasedTrainer scores every sample: give a train_dataset with a length, not a stream")
        if biased_epochs is not None and biased_epochs < 0:
            raise Misuse(f"biased_epochs must be at least 0 (the model leans already), got {biased_epochs:g}")
        self.biased_epochs, self.guard = biased_epochs, guard
        self.held_out = shared.choose_held_out(len(self.train_dataset), held_out, self.args.seed)
        self.norm: dict[str, Any] = {"p": p, "power": power, "head": head, "parameters": parameters}
        self.scores_: Tensor | None = None
        self.biased_state_: dict[str, Tensor] | None = None
        self.comparison_: Comparison | None = None
        self.add_callback(OwnSampler(self))

    def train(self, resume_from_checkpoint: str | bool | None = None, trial: Any = None, **named: Any) -> Any:
        """Run the three steps and return what `Trainer.train` returns for the last one."""
        self.sampler_ = None
        if self.model_init is not None:  # as in Trainer, every training begins with a new model
            library.set_seed(self.args.seed)
            self.model = self.call_model_init(trial)
        kept = Path(self.args.output_dir) / SCORES
        resuming = bool(resume_from_checkpoint)
        under_way = isinstance(resume_from_checkpoint, str) or get_last_checkpoint(self.args.output_dir) is not None
        collate = self._get_collator_with_removed_columns(self.data_collator, description="scoring")
        loader = DataLoader(self.train_dataset, self.args.eval_batch_size, collate_fn=collate)
        if resuming and under_way and kept.exists():  # else the biased model is not at hand either
            found = self._read_scores(kept)
        else:
            self._probe(collate)
            self._train_biased(resuming)  # step 1
            found = shared.score_and_guard(self.model, loader, self.guard, self.held_out, **self.norm)  # step 2
            self.biased_state_ = {name: each.cpu().clone() for name, each in self.model.state_dict().items()}
            if self.args.process_index == 0:
                origin = {name: np.array(each) for name, each in self._origin().items()}
                with private():
                    write_arrays(kept, **{name: each.numpy() for name, each in found.items()}, **origin)
        self.scores_, shares = found["scores"], found.get("shares", found["scores"])
        # accelerate deals whole batches out to the processes, so the sampler itself draws for all of them
        drawn = len(shares) - int(found.get("held_out", torch.zeros(1)).sum())
        self.sampler_ = ScoreSampler(shares, drawn, seed=self.args.seed, rank=0, world_size=1)
        if resuming and resume_from_checkpoint is True and get_last_checkpoint(self.args.output_dir) is None:
            resume_from_checkpoint = None  # it was interrupted before the last step had a checkpoint
        output = super().train(resume_from_checkpoint, trial, **named)  # step 3
        if "answers" in found:
            then = "the weights of the first training are in biased_state_"
            self.comparison_ = shared.warn_of_inversion(self.model, loader, found, then)
        return output

    def _origin(self) -> dict[str, str]:
        """What decides the scores: the dataset, the network (not its weights, which are trained on) and the norm."""
        shapes = [(name, tuple(each.shape)) for name, each in self.model.state_dict().items()]
        return {
            "dataset": fingerprint(self.train_dataset),
            "model": hashlib.blake2b(repr(shapes).encode(), digest_size=10).hexdigest(),
            "norm": repr({name: each for name, each in self.norm.items() if not callable(each)}),
        }

    def _read_scores(self, kept: Path) -> dict[str, Tensor]:
        """What an interrupted training left: scores, shares, answers; refused if of other data, network or norm."""
        remedy = "use another output_dir"
        try:
            arrays = read_arrays(kept)
        except UNREADABLE as error:
            raise Problem(f"{kept} is damaged ({brief(error)}); delete it, and train anew") from error
        known = str(arrays.get("dataset", ""))
        # older ones: scores alone
        found = {name: torch.from_numpy(arrays[name]) for name in shared.STATE if name in arrays}
        shared.check_scores(found["scores"], self.train_dataset, known, str(kept), remedy)
        for name, each in self._origin().items():
            if str(arrays.get(name, each)) != each:
                raise Misuse(f"{kept} has scores of another {name}; {remedy}")
        return found

    def _probe(self, collate: Any) -> None:
        """Refuse what the later steps cannot do before the first one is made."""
        shared.probe(self.model, self.train_dataset, collate, **self.norm)
        self.sampler_ = ScoreSampler(torch.ones(len(self.train_dataset)), rank=0, world_size=1)
        try:
            shared.check_sampler(self.get_train_dataloader(), self.sampler_, "DebiasedTrainer", REMEDY)
        finally:
            self.sampler_ = None

    def call_model_init(self, trial: Any = None) -> Any:
        """Return a new model; in the last step, the biased model, which is trained further."""
        return super().call_model_init(trial) if self.sampler_ is None else self.model

    def _train_biased(self, resuming: bool) -> None:
        """Train the model with GCE, in place."""
        args = copy.copy(self.args)
        args.output_dir = str(Path(self.args.output_dir) / "biased")
        if self.biased_epochs is not None:
            args.num_train_epochs, args.max_steps = self.biased_epochs, -1
        args.load_best_model_at_end = False
        dataset: Any = self.train_dataset
        if self.held_out.any():
            rows = (~self.held_out).nonzero()[:, 0].tolist()
            dataset = dataset.select(rows) if hasattr(dataset, "select") else Subset(dataset, rows)
        Path(args.output_dir).mkdir(parents=True, exist_ok=True)
        biased = library.Trainer(
            self.model,
            args,
            data_collator=self.data_collator,
            train_dataset=dataset,
            eval_dataset=self.eval_dataset,
            processing_class=self.processing_class,
            compute_loss_func=self._gce,
            compute_metrics=self.compute_metrics,
            preprocess_logits_for_metrics=self.preprocess_logits_for_metrics,
        )
        biased.train(resume_from_checkpoint=get_last_checkpoint(args.output_dir) if resuming else None)

    def _gce(self, outputs: Any, labels: Tensor, num_items_in_batch: Tensor | int | None = None) -> Tensor:
        """GCE over the samples of a step, which may be made of several batches."""
        logits = outputs["logits"] if isinstance(outputs, dict) else outputs[0]
        losses: Tensor = self.loss(logits, labels.view(-1))
        return losses.mean() if num_items_in_batch is None else losses.sum() / num_items_in_batch

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        return super()._get_train_sampler(train_dataset) if self.sampler_ is None else self.sampler_


class OwnSampler(library.TrainerCallback):  # type: ignore[misc, name-defined]
    """Stops a training whose loader does not draw by the trainer's scores."""

    def __init__(self, trainer: DebiasedTrainer) -> None:
        self.trainer = trainer

    def on_epoch_begin(self, args: Any, state: Any, control: Any, train_dataloader: Any = None, **_: Any) -> None:  # noqa: ARG002
        """Look for the sampler below whatever accelerate wrapped the loader in."""
        if self.trainer.sampler_ is not None:
            shared.check_sampler(train_dataloader, self.trainer.sampler_, "DebiasedTrainer", REMEDY)
