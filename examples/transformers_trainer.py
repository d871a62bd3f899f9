"""A debiased text classifier with the Hugging Face Trainer: `python examples/transformers_trainer.py`.

A tiny BERT with random weights. A pair of words in the text determines the label; in 95% of the samples the first
word predicts it too, and more easily.
"""

import sys
import tempfile

import torch
from transformers import BertConfig, BertForSequenceClassification, TrainingArguments

from debiaser.integrations.transformers import DebiasedTrainer

WORDS, LENGTH = 40, 8


def texts(rows: int, aligned: float, seed: int) -> tuple[list[dict[str, object]], torch.Tensor]:
    """Rows of token numbers with their label, and whether the first word goes against the label."""
    draw = torch.Generator().manual_seed(seed)
    y = torch.randint(2, (rows,), generator=draw)
    tokens = torch.randint(10, WORDS, (rows, LENGTH), generator=draw)
    against = torch.rand(rows, generator=draw) > aligned
    tokens[:, 0] = 2 + torch.where(against, 1 - y, y)
    tokens[torch.arange(rows), torch.randint(1, LENGTH, (rows,), generator=draw)] = 4 + y
    return [{"input_ids": ids, "labels": int(label)} for ids, label in zip(tokens, y, strict=True)], against


def main(folder: str, epochs: int = 6) -> dict[str, float]:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    model = BertForSequenceClassification(BertConfig(vocab_size=WORDS, max_position_embeddings=LENGTH, **sizes))
    rows, against = texts(600, 0.95, 0)
    options = {"learning_rate": 3e-3, "per_device_train_batch_size": 32, "num_train_epochs": epochs, "seed": 0}
    quiet = {"report_to": [], "disable_tqdm": True, "use_cpu": True, "logging_strategy": "no", "save_strategy": "no"}
    trainer = DebiasedTrainer(model, TrainingArguments(folder, **options, **quiet), train_dataset=rows, biased_epochs=1)
    trainer.train()
    test, _ = texts(400, 0.5, 1)
    answers = trainer.predict(test)
    return {
        "accuracy": float((answers.predictions.argmax(1) == answers.label_ids).mean()),
        "score of conflicting samples": float(trainer.scores_[against].mean()),
        "score of other samples": float(trainer.scores_[~against].mean()),
    }


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as empty:
        print(main(sys.argv[1] if len(sys.argv) > 1 else empty))
