"""A Hugging Face Trainer that runs PGD's three steps on any classifier of transformers."""

import copy
import importlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from debiaser.errors import Misuse, Problem
from debiaser.integrations import absent
from debiaser.io import write_arrays
from debiaser.learn.gradient_norms import check_norm, gradient_norms
from debiaser.learn.losses import check_alpha, generalised_cross_entropy
from debiaser.learn.sampler import ScoreSampler

try:
    importlib.import_module("accelerate")
    library = importlib.import_module("transformers")
except ImportError as error:
    raise absent("transformers with accelerate", "trainer") from error
Trainer: Any = library.Trainer
set_seed: Any = library.set_seed
TrainerCallback: Any = library.TrainerCallback
get_last_checkpoint: Any = importlib.import_module("transformers.trainer_utils").get_last_checkpoint

SCORES = "debiaser_scores.npz"


class DebiasedTrainer(Trainer):  # type: ignore[misc]
    """`train` trains the model with GCE, scores every training row, then trains on with rows drawn by score.

    The arguments are those of Trainer; `args` describes the second training, `biased_epochs` (by default as long) the
    first, whose files are in output_dir/biased. alpha: GCE's exponent; p, power: the norm of the gradient; head: the
    last layer, where it cannot be found.

    `scores_` (n,) is in the order of train_dataset, and kept in output_dir; `train(resume_from_checkpoint=True)` goes
    on in whichever training was interrupted. At every epoch the sampler is looked for in the loader, and `train` stops
    if something replaced it.
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
        **named: Any,
    ) -> None:
        super().__init__(*args, **named)
        check_alpha(alpha)
        check_norm(p, power)
        if not hasattr(self.train_dataset, "__len__"):
            raise Misuse("DebiasedTrainer scores every training row: give a train_dataset with a length, not a stream")
        if biased_epochs is not None and biased_epochs < 0:
            raise Misuse(f"biased_epochs must be at least 0 (the model leans already), got {biased_epochs:g}")
        self.biased_epochs, self.alpha, self.p, self.power, self.head = biased_epochs, alpha, p, power, head
        self.scores_: Tensor | None = None
        self.add_callback(OwnSampler(self))

    def train(self, resume_from_checkpoint: str | bool | None = None, trial: Any = None, **named: Any) -> Any:
        """The three steps; what Trainer.train gives for the last one."""
        self.sampler_ = None
        if self.model_init is not None:  # as in Trainer, every training begins with a new model
            set_seed(self.args.seed)
            self.model = self.call_model_init(trial)
        kept = Path(self.args.output_dir) / SCORES
        resuming = bool(resume_from_checkpoint)
        self.scores_ = read_scores(kept, len(self.train_dataset)) if resuming else None
        if self.scores_ is None:
            self._train_biased(resuming)  # step 1
            self.scores_ = gradient_norms(self.model, self._rows(), self.p, self.power, head=self.head)  # step 2
            if self.args.process_index == 0:
                write_arrays(kept, scores=self.scores_.numpy())
        # accelerate deals whole batches out to the processes, so the sampler itself draws for all of them
        self.sampler_ = ScoreSampler(self.scores_, seed=self.args.seed, rank=0, world_size=1)
        if resuming and resume_from_checkpoint is True and get_last_checkpoint(self.args.output_dir) is None:
            resume_from_checkpoint = None  # it was interrupted before the last step had a checkpoint
        return super().train(resume_from_checkpoint, trial, **named)  # step 3

    def call_model_init(self, trial: Any = None) -> Any:
        """A new model; in the last step, that of the first one, which is trained on."""
        return super().call_model_init(trial) if self.sampler_ is None else self.model

    def _train_biased(self, resuming: bool) -> None:
        """Train the model with GCE, in place."""
        args = copy.copy(self.args)
        args.output_dir = str(Path(self.args.output_dir) / "biased")
        if self.biased_epochs is not None:
            args.num_train_epochs, args.max_steps = self.biased_epochs, -1
        args.load_best_model_at_end = False
        Path(args.output_dir).mkdir(parents=True, exist_ok=True)
        biased = Trainer(
            self.model,
            args,
            data_collator=self.data_collator,
            train_dataset=self.train_dataset,
            eval_dataset=self.eval_dataset,
            processing_class=self.processing_class,
            compute_loss_func=self._gce,
            compute_metrics=self.compute_metrics,
            preprocess_logits_for_metrics=self.preprocess_logits_for_metrics,
        )
        last = get_last_checkpoint(args.output_dir) if resuming else None
        biased.train(resume_from_checkpoint=last)

    def _gce(self, outputs: Any, labels: Tensor, num_items_in_batch: Tensor | int | None = None) -> Tensor:
        """GCE over the rows of a step, which may be made of several batches."""
        logits = outputs["logits"] if isinstance(outputs, dict) else outputs[0]
        losses = generalised_cross_entropy(logits, labels.view(-1), self.alpha)
        return losses.mean() if num_items_in_batch is None else losses.sum() / num_items_in_batch

    def _rows(self) -> DataLoader[Any]:
        """The training rows in order, as the model is given them."""
        collate = self._get_collator_with_removed_columns(self.data_collator, description="scoring")
        return DataLoader(self.train_dataset, self.args.eval_batch_size, collate_fn=collate)

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        if self.sampler_ is None:
            return super()._get_train_sampler(train_dataset)
        return self.sampler_


class OwnSampler(TrainerCallback):  # type: ignore[misc]
    """Stops a training whose loader does not draw by the trainer's scores."""

    def __init__(self, trainer: DebiasedTrainer) -> None:
        self.trainer, self.epoch = trainer, -1

    def on_epoch_begin(self, args: Any, state: Any, control: Any, train_dataloader: Any = None, **_: Any) -> None:  # noqa: ARG002
        """Look for the sampler below whatever accelerate wrapped the loader in."""
        if self.trainer.sampler_ is not None and self.trainer.sampler_ not in samplers(train_dataloader):
            kinds = ", ".join(type(each).__name__ for each in samplers(train_dataloader)) or "none"
            raise Problem(
                f"the sampler of DebiasedTrainer is not in use (the loader has: {kinds}): something replaced it; do "
                "not override get_train_dataloader, and leave train_sampling_strategy as it is"
            )


def samplers(loader: Any) -> list[Any]:
    """Every sampler in a loader, from the outermost to the one that chooses rows."""
    found: list[Any] = []
    waiting = [loader]
    while waiting:
        each = waiting.pop(0)
        inner = [getattr(each, name, None) for name in ("base_dataloader", "batch_sampler", "sampler")]
        fresh = [part for part in inner if part is not None and not any(part is known for known in found)]
        found += fresh
        waiting += fresh
    return found


def read_scores(path: Path, rows: int) -> Tensor | None:
    """The scores that an interrupted training left, None where it left none."""
    if not path.exists():
        return None
    with np.load(path, allow_pickle=False) as kept:
        scores = torch.from_numpy(kept["scores"])
    if len(scores) != rows:
        raise Misuse(f"{path} has scores of {len(scores)} rows, but train_dataset has {rows}; use another output_dir")
    return scores
