"""Copies of samples with a property of others: it no longer tells the label, and who learns from them is rid of it."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from debiaser.auditing.candidates import (
    COUNTERFACTUAL,
    VANILLA,
    Training,
    World,
    candidate_trainings,
    counterfactual_copies,
    draw_donors,
    train_candidates,
)
from debiaser.auditing.crossval import Job, Predictions, Rows, Trainer
from debiaser.auditing.inputs import Subject, own_of, prepare
from debiaser.auditing.views import View, image_views, word_view
from debiaser.data import bias as inject
from debiaser.data.benchmarks import digits
from debiaser.data.split import Split
from debiaser.learn.encoders import Encoder
from debiaser.learn.groups import balancing_weights

CLASSES, PER_CLASS = 4, 90
COLOUR = image_views()[0]
pytestmark = pytest.mark.usefixtures("cache")


def examined_of(
    subject: Subject, pool: Rows, folder: Path, epochs: int | None = None, named: View | None = None
) -> Any:
    """As much of an examination as copies and a trial need; no sample weighs more than another of its class."""
    y, place = subject.own.y.numpy(), np.full(len(subject.own), -1)
    place[pool] = np.arange(len(pool))
    trainer = Trainer(subject.material, y, np.where(place < 0, -1, 0), folder, epochs=epochs)
    return SimpleNamespace(subject=subject, trainer=trainer, pool=pool, place=place, named=named, degenerate=False)


def world_of(examined: Any) -> World:
    """A biased model that is as unsure of all samples of the pool."""
    y, k = examined.trainer.y, len(examined.trainer.material.classes)
    inside = np.where(examined.place < 0, np.nan, 1.0)
    return World(y, np.full((len(y), k), 1 / k) * inside[:, None], inside, np.ones(len(y)))


@pytest.fixture
def digits_by_colour() -> tuple[Subject, Rows]:
    """Digits whose colour is their class in the pool, and any in the samples after it; the pool."""
    part = digits.parts()["train"]
    chosen = [np.flatnonzero(part.target == k) for k in range(CLASSES)]
    rows = np.concatenate([each[start:end] for start, end in ((0, PER_CLASS), (PER_CLASS, 120)) for each in chosen])
    y, stream = part.target[rows], np.random.default_rng(0)
    pool = np.arange(CLASSES * PER_CLASS)
    bias = np.where(np.arange(len(y)) < len(pool), y, stream.integers(0, CLASSES, len(y)))
    read = inject.coloured(torch.from_numpy(part.images[rows]), torch.from_numpy(inject.draw_colours(bias, stream)))
    return prepare(own_of(Split(torch.from_numpy(y), read)), None), pool


def nearest_colour(pictures: torch.Tensor) -> Rows:
    """(b,) which of the palette's colours an image is painted with."""
    tint = pictures.float().flatten(2).amax(2)
    palette = torch.from_numpy(inject.PALETTE[:CLASSES]).float()
    return np.asarray(torch.cdist(tint / tint.norm(dim=1, keepdim=True), nn.functional.normalize(palette)).argmin(1))


def test_every_row_gives_its_property_once_to_another_of_its_split() -> None:
    split = np.array(["train"] * 50 + ["valid"] * 20)
    donors = draw_donors(split, 0)
    assert sorted(donors) == list(range(70)) and (donors != np.arange(70)).all()
    assert (split[donors] == split).all() and not np.array_equal(donors, draw_donors(split, 1))


def test_the_property_of_a_copy_does_not_tell_its_label(digits_by_colour: tuple[Subject, Rows], tmp_path: Path) -> None:
    subject, pool = digits_by_colour
    copies = counterfactual_copies(examined_of(subject, pool, tmp_path), COLOUR)
    assert copies is not None
    y, n = copies.y, len(subject.own)
    assert np.array_equal(y, np.concatenate([y[:n], y[pool]])) and len(copies.material.inputs) == n + len(pool)
    assert np.array_equal(copies.material.inputs[:n], subject.material.inputs)
    own, taken = (nearest_colour(torch.tensor(copies.material.inputs[rows])) for rows in (pool, slice(n, None)))
    assert (own == y[pool]).mean() > 0.95
    table = np.histogram2d(taken, y[pool], CLASSES)[0]
    assert table.sum(0) == pytest.approx(PER_CLASS) and table.sum(1) == pytest.approx(PER_CLASS, abs=3)
    assert table.min() > 10, table  # were colour and label independent, 22.5 each
    shapes = [torch.tensor(copies.material.inputs[rows]).amax(1) > 60 for rows in (pool, slice(n, None))]
    assert (shapes[0] == shapes[1]).float().mean() > 0.9  # what the image shows stays


def test_who_learns_from_copies_stops_following_the_colour(
    digits_by_colour: tuple[Subject, Rows], tmp_path: Path
) -> None:
    subject, pool = digits_by_colour
    examined = examined_of(subject, pool, tmp_path, epochs=8, named=COLOUR)
    trainings = candidate_trainings(examined, world_of(examined))
    debiased = [name for name in trainings if name.startswith("PGD") and name.endswith(COUNTERFACTUAL)]
    assert list(trainings)[2] == COUNTERFACTUAL and len(debiased) == 1
    asked = np.setdiff1d(np.arange(len(subject.own)), pool)
    chosen = {name: trainings[name] for name in (VANILLA, COUNTERFACTUAL, *debiased)}
    evaluation = train_candidates(examined.trainer, [(pool, asked)], chosen, subject.own.unit, 1)
    right = {name: (each.answers == evaluation.labels).mean() for name, each in evaluation.candidates.items()}
    assert right[VANILLA] < 0.7 < 0.85 < min(right[COUNTERFACTUAL], right[debiased[0]]), right


def test_copies_are_drawn_like_their_rows(
    digits_by_colour: tuple[Subject, Rows], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many steps and the same weights as on the samples themselves, and answers to the samples themselves."""
    subject, pool = digits_by_colour
    examined = examined_of(subject, pool, tmp_path, epochs=1)
    copies = counterfactual_copies(examined, COLOUR)
    asked = np.arange(len(pool), len(pool) + 10)
    draws = balancing_weights(examined.trainer.y)
    trainings = {VANILLA: Training(draws), COUNTERFACTUAL: Training(draws, copies=copies)}
    trainings["PGD"] = Training(draws, from_biased=True)
    jobs: dict[str, Job] = {}

    def run(given: list[Job], *_: Any) -> list[Predictions]:
        jobs.update({job.name: job for job in given})
        return [Predictions(asked, np.zeros((10, CLASSES), np.float32), np.zeros(10, np.float32)) for _ in given]

    monkeypatch.setattr("debiaser.auditing.candidates.run_jobs", run)
    evaluation = train_candidates(examined.trainer, [(pool[:100], asked)], trainings, subject.own.unit, 1)
    with_rows, with_copies = jobs["vanilla"], jobs["exchanged"]
    assert np.array_equal(with_rows.weight, with_copies.weight)  # type: ignore[arg-type]
    assert np.array_equal(with_copies.train, len(subject.own) + with_rows.train)
    assert np.array_equal(with_copies.ask, asked) and evaluation.samples_seen == 2 * 100
    assert with_rows.recipe.epochs == jobs["biased"].recipe.epochs + jobs["debiased"].recipe.epochs
    assert [job.averaged for job in (with_rows, with_copies, jobs["debiased"])] == [True] * 3


# --- texts ------------------------------------------------------------------------------------------------------------


WORDS = ("Tuesday", "Thursday")


def counting(seen: list[str], most: list[int]) -> Encoder:
    """An encoder of two words, that remembers what it was given and breaks off after so many texts."""

    def encode(texts: list[str]) -> torch.Tensor:
        if len(seen) + len(texts) > most[0]:
            raise KeyboardInterrupt
        seen.extend(texts)
        return torch.tensor([[text.count(word) for word in WORDS] for text in texts]).float()

    return Encoder("counting", "text", 0, 2, "counting", nn.Identity(), encode)


def giveaway(*words: str) -> View:
    return word_view("giveaway", "giveaway word", True, (frozenset(words),), np.zeros(900, np.int64))


def test_copies_of_texts_take_the_words_of_others_and_are_encoded_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a kill comes between: what was encoded by then is not encoded again."""
    seen, most = list[str](), [1000 + 600]
    texts = [(f"{WORDS[row % 2]}. It rained on film {row}", row % 2) for row in range(1000)]
    monkeypatch.setattr("debiaser.auditing.inputs.find_encoder", lambda *_: counting(seen, most))
    subject, pool = prepare(own_of(texts), None), np.arange(900)
    examined, view = examined_of(subject, pool, tmp_path), giveaway("tuesday", "thursday")
    with pytest.raises(KeyboardInterrupt):
        counterfactual_copies(examined, view)
    reached, most[0] = len(seen), 1000 + 900 + 512
    assert 1000 < reached < 1000 + 900
    copies = counterfactual_copies(examined, view)
    assert copies is not None
    taken, labels = copies.material.inputs[1000:], copies.y[1000:]
    assert (taken.sum(1) == 1).all()  # one word left, one arrived
    assert abs(np.corrcoef(taken[:, 1], labels)[0, 1]) < 0.12
    assert np.corrcoef(copies.material.inputs[:900, 1], labels)[0, 1] > 0.99
    assert len(seen) <= most[0] and all("rained on film" in text for text in seen)
    most[0] = len(seen)
    again = counterfactual_copies(examined, view)
    assert again is not None and again.material.array == copies.material.array
    with pytest.raises(KeyboardInterrupt):  # other words, other copies
        counterfactual_copies(examined, giveaway("rained"))
