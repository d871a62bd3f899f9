"""PGD as a callback in a Lightning training: `python examples/lightning_callback.py`."""

import lightning.pytorch as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from debiaser.data.benchmarks import digits
from debiaser.integrations.lightning import DebiasedSampling
from debiaser.learn.forward import predict
from debiaser.learn.nets import SimConv1


class Classifier(pl.LightningModule):
    """A network of one's own; the callback needs its loss as an attribute, to replace it in the first epochs."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.loss = SimConv1(10), nn.CrossEntropyLoss()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        x, y = batch
        return self.loss(self(x), y)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), 3e-3)


def main(epochs: int = 6) -> dict[str, float]:
    pl.seed_everything(0, verbose=False)
    data = digits.load(None, 0.05, 0)
    train = next(data.train.batches(len(data.train)))
    sampling = DebiasedSampling(TensorDataset(train.x, train.y), biased_epochs=2)
    quiet = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    trainer = pl.Trainer(max_epochs=epochs, accelerator="cpu", callbacks=[sampling], **dict.fromkeys(quiet, False))
    trainer.fit(model := Classifier(), DataLoader(sampling.dataset, 64, sampler=sampling.sampler))
    against = data.truth["train"].conflicting(data.train.y) == 1
    return {
        "accuracy": float((predict(model, data.test.batches(500)).argmax(1) == data.test.y).float().mean()),
        "score of conflicting samples": float(sampling.scores[against].mean()),
        "score of other samples": float(sampling.scores[~against].mean()),
    }


if __name__ == "__main__":
    print(main())
