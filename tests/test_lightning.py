"""The Lightning callback: GCE first, its sampler in use, resuming, and what happens when it is replaced."""

import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("lightning", reason="lightning is not installed (pip install 'debiaser[lightning]')")

import lightning.pytorch as pl
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from conftest import example
from debiaser import GCELoss, gradient_norms
from debiaser.errors import DebiasingWarning, Misuse, Problem
from debiaser.integrations.lightning import DebiasedSampling, PhasedSampler
from debiaser.learn.sampler import ScoreSampler, Shuffle

pytestmark = pytest.mark.filterwarnings("ignore")
torch.manual_seed(0)
DATA = TensorDataset(torch.randn(50, 4), torch.randint(0, 3, (50,)))


class Small(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        self.loss, self.losses = nn.CrossEntropyLoss(), []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        self.losses.append(type(self.loss))
        return self.loss(self(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), 1e-2)


def trainer(epochs: int, *callbacks: pl.Callback, **changes: Any) -> pl.Trainer:
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    return pl.Trainer(
        max_epochs=epochs, accelerator="cpu", devices=1, callbacks=list(callbacks), **{**quiet, **changes}
    )


def loader(sampling: DebiasedSampling) -> DataLoader[Any]:
    return DataLoader(DATA, 10, sampler=sampling.sampler)


def test_the_example() -> None:
    found = example("lightning_callback").main()
    assert found["score of conflicting samples"] > 2 * found["score of other samples"]


def test_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    sampling, model = DebiasedSampling(DATA, biased_epochs=2), Small()
    drawn: list[Any] = []
    for kind in (Shuffle, ScoreSampler):
        original = kind.draw

        def draw(self: Any, epoch: int, kind: Any = kind, original: Any = original) -> Any:
            drawn.append((epoch, kind))
            return original(self, epoch)

        monkeypatch.setattr(kind, "draw", draw)
    trainer(4, sampling).fit(model, loader(sampling))
    assert model.losses == [GCELoss] * 10 + [nn.CrossEntropyLoss] * 10
    assert drawn == [(0, Shuffle), (1, Shuffle), (2, ScoreSampler), (3, ScoreSampler)]
    assert sampling.scores is not None and sampling.scores.shape == (50,)
    assert isinstance(model.loss, nn.CrossEntropyLoss)
    assert sampling.comparison is not None and len(sampling.comparison.debiased) == 3


@pytest.mark.parametrize("guard", [True, False])
def test_draws_are_guarded_unless_asked_otherwise(guard: bool) -> None:
    sampling, model = DebiasedSampling(DATA, biased_epochs=1, guard=guard), Small()
    trainer(2, sampling).fit(model, loader(sampling))
    shares = torch.bincount(DATA.tensors[1], sampling.sampler.scores.double())
    assert bool(torch.allclose(shares / shares.sum(), torch.full_like(shares, 1 / 3))) == guard, "classes alike"
    assert torch.equal(sampling.scores, sampling.sampler.scores) != guard
    kept = sampling.biased_state
    assert kept is not None and any(not torch.equal(kept[name], each) for name, each in model.state_dict().items())


def test_a_model_that_ends_with_the_reversed_rule_is_told() -> None:
    class Reversing(Small):
        def training_step(self, batch: Any, number: int) -> torch.Tensor:
            y = batch[1]
            wrong = y if isinstance(self.loss, GCELoss) else (y + 1) % 3
            return super().training_step((10 * nn.functional.one_hot(y, 4).float(), wrong), number)

    y = torch.arange(90) % 3
    data = TensorDataset(10 * nn.functional.one_hot(y, 4).float(), y)
    sampling = DebiasedSampling(data, biased_epochs=5)
    with pytest.warns(DebiasingWarning, match="below chance .* in biased_state"):
        trainer(15, sampling).fit(Reversing(), DataLoader(data, 10, sampler=sampling.sampler))
    assert sampling.comparison is not None and sampling.comparison.below_chance


def test_what_is_held_out_is_seen_by_neither_step(tmp_path: Path) -> None:
    """The models are compared on these samples, and a training that goes on holds the same ones out."""

    class Numbered(torch.utils.data.Dataset):  # type: ignore[type-arg]
        def __len__(self) -> int:
            return 250

        def __getitem__(self, row: int) -> tuple[torch.Tensor, int]:
            read.append(row)
            return DATA[row % 50][0], row % 3

    read, data = list[int](), Numbered()
    plain = DebiasedSampling([data[row] for row in range(250)], biased_epochs=2)
    loop = trainer(4, plain)
    read.clear()
    loop.fit(Small(), DataLoader(data, 10, sampler=plain.sampler))
    held_out = plain.sampler.held_out
    assert held_out.sum() == 25 and not held_out[read].any()
    assert len(read) == 4 * 225 and len(set(read[:450])) == 225, "all others, every epoch"
    assert plain.comparison is not None and plain.comparison.samples == 25
    assert len(plain.scores) == 250 and (plain.sampler.scores[held_out] == 0).all()
    loop.save_checkpoint(tmp_path / "whole.ckpt")
    again = DebiasedSampling(plain.dataset, biased_epochs=2, held_out=0)
    trainer(5, again).fit(Small(), DataLoader(data, 10, sampler=again.sampler), ckpt_path=tmp_path / "whole.ckpt")
    assert torch.equal(again.sampler.held_out, held_out) and again.comparison.samples == 25
    with pytest.raises(Misuse, match="held_out must lie between 0"):
        DebiasedSampling(data, biased_epochs=1, held_out=0.9)


def test_scores_are_those_of_the_biased_model() -> None:
    class Look(pl.Callback):
        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            found.append(gradient_norms(pl_module, DATA))

    found: list[torch.Tensor] = []
    sampling = DebiasedSampling(DATA, biased_epochs=1)
    trainer(2, sampling, Look()).fit(Small(), loader(sampling))
    assert torch.equal(found[0], sampling.scores) and not torch.equal(found[1], sampling.scores)


def test_resuming(tmp_path: Path) -> None:
    def fit(epochs: int, checkpoint: Path | None = None) -> tuple[Small, DebiasedSampling, pl.Trainer]:
        sampling, model = DebiasedSampling(DATA, biased_epochs=1, reset=False), Small()
        loop = trainer(epochs, sampling)
        loop.fit(model, loader(sampling), ckpt_path=checkpoint)
        return model, sampling, loop

    calm, scored, _ = fit(4)
    _, _, loop = fit(2)
    loop.save_checkpoint(tmp_path / "half.ckpt")
    resumed, again, _ = fit(4, tmp_path / "half.ckpt")
    assert torch.equal(scored.scores, again.scores)
    assert resumed.losses == [nn.CrossEntropyLoss] * 10
    assert all(torch.equal(value, resumed.state_dict()[name]) for name, value in calm.state_dict().items())


def test_a_replaced_sampler_stops_it() -> None:
    sampling = DebiasedSampling(DATA, biased_epochs=1)
    with pytest.raises(Problem, match=r"not in use .*RandomSampler.*use_distributed_sampler=False"):
        trainer(2, sampling).fit(model := Small(), DataLoader(DATA, 10, shuffle=True))
    assert isinstance(model.loss, nn.CrossEntropyLoss), "the loss is put back"


@pytest.fixture
def left_alone() -> Iterator[None]:
    """Under DDP Lightning joins a process group and sets variables, which other tests would find."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def test_ddp_replaces_it_unless_told(left_alone: None) -> None:
    """Under DDP Lightning puts a distributed sampler in its place; without that, the training runs."""
    warnings.simplefilter("ignore")
    sampling = DebiasedSampling(DATA, biased_epochs=1)
    with pytest.raises(Problem, match=r"not in use .*Distributed"):
        trainer(2, sampling, strategy="ddp").fit(Small(), loader(sampling))
    kept = DebiasedSampling(DATA, biased_epochs=1)
    loop = trainer(2, kept, strategy="ddp", use_distributed_sampler=False)
    loop.fit(Small(), loader(kept))
    assert kept.scores is not None


def test_the_processes_share_one_draw() -> None:
    everything = torch.zeros(50, dtype=torch.bool)
    one, parts = PhasedSampler(everything), [PhasedSampler(everything), PhasedSampler(everything)]
    for rank, part in enumerate(parts):
        part.rank, part.size = rank, 2
    for scores in (None, torch.rand(50)):
        one.scores = parts[0].scores = parts[1].scores = scores
        whole, first, second = list(one), *(list(part) for part in parts)
        assert whole[0::2] == first and whole[1::2] == second


def test_mistakes_are_told() -> None:
    with pytest.raises(Misuse, match="biased_epochs must be at least 1"):
        DebiasedSampling(DATA, biased_epochs=0)
    sampling = DebiasedSampling(DATA, biased_epochs=2)
    with pytest.raises(Misuse, match="max_epochs=2 leaves none"):
        trainer(2, sampling).fit(Small(), loader(sampling))
    named = DebiasedSampling(DATA, biased_epochs=1, loss="criterion")
    with pytest.raises(Misuse, match="has no module 'criterion'"):
        trainer(2, named).fit(Small(), loader(named))
    with pytest.raises(Misuse, match="scores of 3 samples, but the dataset has 50"):
        sampling.load_state_dict({"scores": torch.ones(3)})


class Apart(Small):
    """Trains by another loss than the one it keeps."""

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        logits = self(batch[0])
        self.loss(logits, batch[1])  # for a log
        return nn.functional.cross_entropy(logits, batch[1])


class ByHand(Small):
    """Steps by itself, with a plain backward pass and torch's own optimiser."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, number: int) -> None:
        optimizer = self.optimizers(use_pl_optimizer=False)
        optimizer.zero_grad()
        super().training_step(batch, number).backward()
        optimizer.step()


class ApartByHand(ByHand, Apart):
    """Both."""


class WithMore(ByHand):
    """A loss of its own beside, of a layer that GCE does not reach."""

    def __init__(self) -> None:
        super().__init__()
        self.more = nn.Linear(4, 1)

    def training_step(self, batch: Any, number: int) -> None:
        optimizer = self.optimizers(use_pl_optimizer=False)
        (Small.training_step(self, batch, number) + self.more(batch[0]).square().mean()).backward()
        optimizer.step()


@pytest.mark.parametrize("kind", [ByHand, WithMore])
def test_steps_made_by_hand(kind: type[Small]) -> None:
    sampling, model = DebiasedSampling(DATA, biased_epochs=1), kind()
    trainer(2, sampling).fit(model, loader(sampling))
    assert sampling.scores is not None and GCELoss in model.losses and model.losses[-1] is nn.CrossEntropyLoss


def test_what_cannot_work_is_told_before_a_weight_changes() -> None:
    """The loss in use is not the one replaced; the head, the data or the parameters cannot be scored."""
    labels = TensorDataset(DATA.tensors[0], DATA.tensors[1] + 5)
    cases = [(kind, DATA, {}, "does not use self.loss") for kind in (Apart, ApartByHand)]
    cases += [(Small, labels, {}, "but the model gives 3 logits")]
    for kind, data, options, told in (*cases, (Small, DATA, {"parameters": "absent"}, "no trainable parameter")):
        sampling, model = DebiasedSampling(data, biased_epochs=1, **options), kind()
        before = {name: each.clone() for name, each in model.state_dict().items()}
        with pytest.raises(Problem, match=told):
            trainer(2, sampling).fit(model, loader(sampling))
        assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())
        assert isinstance(model.loss, nn.CrossEntropyLoss), "the loss is put back"


@pytest.mark.parametrize("precision", ["bf16-true", "64-true"])
def test_weights_of_other_precision(precision: str) -> None:
    sampling = DebiasedSampling(DATA, biased_epochs=1)
    trainer(2, sampling, precision=precision).fit(Small(), loader(sampling))
    assert sampling.scores is not None and (sampling.scores > 0).all()


def test_a_training_that_ends_too_early_is_mentioned(caplog: pytest.LogCaptureFixture) -> None:
    sampling = DebiasedSampling(DATA, biased_epochs=2)
    trainer(9, sampling, max_steps=1).fit(Small(), loader(sampling))
    assert "the model is the biased one" in caplog.text
