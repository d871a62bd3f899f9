"""The Hugging Face trainer: three steps, its sampler in use, resuming."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("transformers", reason="transformers is not installed (pip install 'debiaser[models]')")
pytest.importorskip("accelerate", reason="accelerate is not installed (pip install 'debiaser[trainer]')")

import transformers
from torch.utils.data import DataLoader, RandomSampler
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    ResNetConfig,
    ResNetForImageClassification,
    TrainerCallback,
    TrainingArguments,
)

from conftest import example
from debiaser import gradient_norms
from debiaser.errors import Misuse, Problem
from debiaser.integrations.transformers import DebiasedTrainer

EXAMPLE = example("transformers_trainer")
ROWS = EXAMPLE.texts(64, 0.9, 0)[0]


def bert() -> BertForSequenceClassification:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    return BertForSequenceClassification(BertConfig(vocab_size=40, max_position_embeddings=8, **sizes))


def arguments(folder: Path, **changes: Any) -> TrainingArguments:
    usual = {
        "per_device_train_batch_size": 16,
        "num_train_epochs": 2,
        "learning_rate": 1e-3,
        "seed": 0,
        "report_to": [],
        "disable_tqdm": True,
        "use_cpu": True,
        "logging_strategy": "no",
        "save_strategy": "no",
    }
    return TrainingArguments(str(folder), **{**usual, **changes})


def weights(trainer: DebiasedTrainer) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in trainer.model.state_dict().items()}


class Interrupt(TrainerCallback):
    """Interrupts the training at a step."""

    def __init__(self, stop: int) -> None:
        self.stop = stop

    def on_step_end(self, args, state, control, **_):  # type: ignore[no-untyped-def]
        if state.global_step == self.stop:
            raise KeyboardInterrupt


def test_the_example(tmp_path: Path) -> None:
    found = EXAMPLE.main(str(tmp_path))
    assert found["score of conflicting samples"] > 2 * found["score of other samples"]
    assert found["accuracy"] > 0.6
    assert (tmp_path / "debiaser_scores.npz").exists()


def test_steps_and_resuming(tmp_path: Path) -> None:
    """Scores are those of the biased model; interrupted in the last step, it ends as undisturbed."""
    calm = DebiasedTrainer(bert(), arguments(tmp_path / "calm"), train_dataset=ROWS)
    calm.train()
    assert calm.scores_ is not None and calm.scores_.shape == (64,)
    assert calm.sampler_.epoch == 2, "the sampler was asked for two epochs"
    assert calm.comparison_ is not None and calm.biased_state_ is not None
    labels = np.array([int(row["labels"]) for row in ROWS])
    assert np.allclose(np.bincount(labels, calm.sampler_.probabilities), 0.5), "classes are drawn alike"
    saving = arguments(tmp_path / "broken", save_strategy="epoch")
    broken = DebiasedTrainer(bert(), saving, train_dataset=ROWS, callbacks=[Interrupt(stop=6)])
    with pytest.raises(KeyboardInterrupt):
        broken.train()
    again = DebiasedTrainer(bert(), saving, train_dataset=ROWS)
    again.train(resume_from_checkpoint=True)
    assert torch.equal(again.scores_, calm.scores_)
    assert all(torch.allclose(value, weights(calm)[name], atol=1e-6) for name, value in weights(again).items())
    with pytest.raises(Misuse, match="scores of 64 samples, but the dataset has 32"):
        DebiasedTrainer(bert(), saving, train_dataset=ROWS[:32]).train(resume_from_checkpoint=True)


def test_what_is_held_out_is_seen_by_neither_training(tmp_path: Path) -> None:
    class Seen(BertForSequenceClassification):
        def forward(self, input_ids: Any = None, labels: Any = None) -> Any:
            if self.training:
                seen.extend(map(tuple, input_ids.tolist()))
            return super().forward(input_ids, labels=labels)

    rows, seen = EXAMPLE.texts(250, 0.9, 0)[0], list[Any]()
    trainer = DebiasedTrainer(Seen(bert().config), arguments(tmp_path), train_dataset=rows, biased_epochs=1)
    trainer.train()
    held_out = {tuple(row["input_ids"].tolist()) for row, out in zip(rows, trainer.held_out, strict=True) if out}
    assert len(held_out) == 25 and not held_out & set(seen) and len(seen) == 3 * 225
    assert len(set(seen[:225])) == 225, "the first training sees all others"
    assert trainer.comparison_.samples == 25 and trainer.scores_.shape == (250,)


def test_an_image_classifier_and_accumulated_batches(tmp_path: Path) -> None:
    torch.manual_seed(0)
    sizes = {"embedding_size": 8, "hidden_sizes": [8, 8], "depths": [1, 1], "num_labels": 3}
    rows = [{"pixel_values": torch.randn(3, 16, 16), "labels": row % 3} for row in range(24)]
    model = ResNetForImageClassification(ResNetConfig(**sizes))
    args = arguments(tmp_path, num_train_epochs=1, per_device_train_batch_size=4, gradient_accumulation_steps=2)
    trainer = DebiasedTrainer(model, args, train_dataset=rows, biased_epochs=1)
    trainer.train()
    assert trainer.scores_.shape == (24,) and (trainer.scores_ > 0).all()
    loader = DataLoader(rows, 8)
    assert not torch.allclose(gradient_norms(trainer.model, loader), trainer.scores_), "step three trained on"


def test_a_replaced_sampler_stops_it(tmp_path: Path) -> None:
    class Other(DebiasedTrainer):
        def get_train_dataloader(self) -> Any:
            return DataLoader(ROWS, 16, sampler=RandomSampler(ROWS))

    stopped = Other(bert(), arguments(tmp_path), train_dataset=ROWS, biased_epochs=1)
    with pytest.raises(Problem, match=r"is not in use .*RandomSampler"):
        stopped.train()
    wrong = [{**ROWS[0], "labels": 7}, *ROWS[1:]]
    cases = ((wrong, {}, "label of sample 0 is 7"), (ROWS, {"head": "bert"}, "no linear layer"))
    for rows, options, told in (*cases, (ROWS, {"parameters": "absent"}, "no trainable parameter is meant")):
        stopped = DebiasedTrainer(bert(), arguments(tmp_path), train_dataset=rows, **options)
        with pytest.raises(Problem, match=told):
            stopped.train()
    assert not (tmp_path / "biased").exists(), "nothing was trained before"


SIZES = {"num_hidden_layers": 1, "num_attention_heads": 2, "hidden_size": 16, "vocab_size": 40, "pad_token_id": 0}


@pytest.mark.parametrize("kind", ["GPT2", "Llama", "Qwen2"])
def test_decoders_are_pooled_after_the_head(kind: str, tmp_path: Path) -> None:
    """Texts of several lengths, padded on either side: the feature is that of the last token."""
    torch.manual_seed(0)
    more = {} if kind == "GPT2" else {"intermediate_size": 16, "num_key_value_heads": 1}
    config = getattr(transformers, f"{kind}Config")(num_labels=2, **SIZES, **more)
    model = getattr(transformers, f"{kind}ForSequenceClassification")(config)
    rows = []
    for row in range(8):
        real = torch.arange(8) < 3 + row % 4 if row % 2 else torch.arange(8) >= 3 + row % 4
        ids = torch.randint(1, 40, (8,)) * real
        rows.append({"input_ids": ids, "attention_mask": real.long(), "labels": row // 4})
    head = gradient_norms(model, DataLoader(rows, 4))
    assert torch.allclose(head, gradient_norms(model, DataLoader(rows, 4), parameters="score.weight"), rtol=1e-4)
    assert torch.allclose(head, gradient_norms(model, DataLoader(rows, 4), head="score"), rtol=0)
    args = arguments(tmp_path, num_train_epochs=1)
    trainer = DebiasedTrainer(model, args, train_dataset=rows, parameters="score" if kind == "Llama" else "head")
    trainer.train()
    assert trainer.scores_.shape == (8,) and (trainer.scores_ > 0).all()


def test_gce_of_a_step(tmp_path: Path) -> None:
    from debiaser import GCELoss

    trainer = DebiasedTrainer(bert(), arguments(tmp_path), train_dataset=ROWS, alpha=0.5)
    logits, labels = torch.randn(6, 2), torch.randint(0, 2, (6,))
    whole = GCELoss(0.5)(logits, labels)
    assert torch.isclose(trainer._gce({"logits": logits}, labels), whole)
    parts = [trainer._gce({"logits": logits[part]}, labels[part], 6) for part in (slice(2), slice(2, 6))]
    assert torch.isclose(sum(parts), whole)


def test_bf16_and_metrics(tmp_path: Path) -> None:
    choice = {"eval_strategy": "epoch", "save_strategy": "epoch", "metric_for_best_model": "sure"}
    args = arguments(tmp_path, bf16=True, num_train_epochs=1, load_best_model_at_end=True, **choice)
    named = {"eval_dataset": ROWS, "compute_metrics": lambda answers: {"sure": float(answers.predictions.max())}}
    trainer = DebiasedTrainer(bert(), args, train_dataset=ROWS, **named)
    trainer.train()
    assert trainer.state.best_metric is not None and (trainer.scores_ > 0).all()


def test_a_model_that_is_made_by_a_function_is_trained_on(tmp_path: Path) -> None:
    class Begun(TrainerCallback):
        def on_train_begin(self, args, state, control, model=None, **_):  # type: ignore[no-untyped-def]
            self.scores = gradient_norms(model, DataLoader(ROWS, 8))

    given = DebiasedTrainer(bert(), arguments(tmp_path / "given"), train_dataset=ROWS)
    given.train()
    made = DebiasedTrainer(
        model_init=bert, args=arguments(tmp_path / "made"), train_dataset=ROWS, callbacks=[begun := Begun()]
    )
    for _ in range(2):
        made.train()
        assert torch.equal(made.scores_, given.scores_), "each time the first step begins with a new model"
        assert torch.equal(begun.scores, made.scores_), "the last step goes on with it"


def test_a_first_training_that_cannot_be_meant(tmp_path: Path) -> None:
    with pytest.raises(Misuse, match="biased_epochs must be at least 0"):
        DebiasedTrainer(bert(), arguments(tmp_path), train_dataset=ROWS, biased_epochs=-1)
