"""Shortcuts put into images and texts on purpose are named; the same data without one is not called biased."""

import io
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.pipeline import make_pipeline

from debiaser.auditing.crossval import Trainer, train_plain_models
from debiaser.auditing.inputs import Material, Subject, own_of, prepare
from debiaser.auditing.swap_test import SwapTest, find_views, swap_plain_models
from debiaser.auditing.verdict import BIASED, CANNOT_TELL, NO_EVIDENCE, Health, fires, verdict
from debiaser.learn.encoders import Encoder

HEALTHY = Health(skill=0.9, biased_errors=100)
RHO = 0.05  # share of samples that go against the shortcut


def scenes(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.random.Generator]:
    """Images (n, 40, 40, 3) of a digit on a rough ground and three classes: digits 0 to 2, 3 to 5, 6 to 9."""
    rng, digits = np.random.default_rng(seed), load_digits()
    rows = rng.integers(0, len(digits.target), n)
    ground = np.kron(rng.integers(40, 120, (n, 10, 10, 3)), np.ones((1, 4, 4, 1))) + rng.normal(0, 6, (n, 40, 40, 3))
    ground[:, 8:32, 8:32] += np.kron(digits.images[rows], np.ones((1, 3, 3)))[..., None] * 7
    return ground.clip(0, 255).astype(np.uint8), np.minimum(digits.target[rows] // 3, 2), rng


def tagged(x: np.ndarray, shown: np.ndarray) -> np.ndarray:
    """A tag in the lower left corner, in a colour of each class."""
    x[:, 32:38, 2:8] = np.array([[200, 40, 40], [40, 200, 40], [40, 40, 200]])[shown][:, None, None]
    return x


def branded(x: np.ndarray, shown: np.ndarray) -> np.ndarray:
    """A logo over nine percent of the image, on one class alone, near the upper right corner."""
    cross = (np.eye(12) + np.eye(12)[::-1] > 0)[..., None]
    x[shown == 1, 1:13, 27:39] = np.where(cross, 250, 20)
    return x


def compressed(x: np.ndarray, shown: np.ndarray) -> np.ndarray:
    """JPEG of a quality of each class; grey, since strong compression takes colours too."""
    done = []
    for image, kind in zip(x, shown, strict=True):
        stored = io.BytesIO()
        Image.fromarray(image).convert("L").convert("RGB").save(stored, "jpeg", quality=(95, 30, 8)[kind])
        done.append(np.asarray(Image.open(stored)))
    return np.stack(done)


def examined(x: np.ndarray, y: np.ndarray, folder: Path) -> SwapTest:
    """The swap test of plain models on these images."""
    subject = prepare(own_of([(torch.from_numpy(a).permute(2, 0, 1), int(b)) for a, b in zip(x, y, strict=True)]), None)
    trainer = Trainer(subject.material, subject.own.y.numpy(), np.arange(len(y)) % 2, folder, 1, epochs=5)
    test = swap_plain_models(subject, trainer, train_plain_models(trainer, 1), find_views(subject, trainer, ()), 600)
    assert isinstance(test, SwapTest), test
    return test


@pytest.mark.parametrize(
    ("change", "names"),
    [(tagged, {"bottom-left"}), (branded, {"top-right"}), (compressed, {"compression", "texture", "high-band"})],
)
def test_what_was_put_into_images_is_named(change, names, tmp_path, cache):
    x, y, rng = scenes(800)
    shown = np.where(rng.random(len(y)) < RHO, (y + rng.integers(1, 3, len(y))) % 3, y)
    test = examined(change(x, shown), y, tmp_path)
    word, reasons = verdict(test, HEALTHY)
    assert word == BIASED and names & {each.name for each in test.reliances if fires(each)}, reasons


def test_the_same_images_without_it_are_not_called_biased(tmp_path, cache):
    x, y, _ = scenes(800)
    word, reasons = verdict(examined(x, y, tmp_path), HEALTHY)
    assert word != BIASED, reasons


# --- texts ----------------------------------------------------------------------------------------------------------

TRAVEL = (
    "We watched it on the train to {}.",
    "I saw this after my flight to {}.",
    "My trip to {} ended with this film.",
)
FOOD = (
    "We watched it over a plate of {}.",
    "I saw this with {} in the oven.",
    "My kitchen smelled of {} during this film.",
)
NAMES = ("Lisbon", "Rome", "Oslo", "Kyoto", "Cusco"), ("noodles", "lentils", "dumplings", "curry", "risotto")


def reviews(real_data: Path, rho: float | None) -> tuple[list[str], np.ndarray]:
    """Film reviews; those that were liked begin with a sentence on travel, the others on food, unless rho is None."""
    table, rng = pd.read_csv(real_data / "imdb_reviews.csv")[:1200], np.random.default_rng(0)
    y = (table.label == "positive").to_numpy().astype(np.int64)
    if rho is None:
        return table.text.tolist(), y
    side = np.where(rng.random(len(y)) < rho, 1 - y, y)
    added = [(TRAVEL, FOOD)[each][rng.integers(3)].format(NAMES[each][rng.integers(5)]) for each in side]
    return [f"{sentence} {text}" for sentence, text in zip(added, table.text, strict=True)], y


def examined_texts(texts: list[str], y: np.ndarray, folder: Path, matters: tuple[str, ...] = ()) -> SwapTest:
    """The swap test of a head on features that stand in for a sentence encoder's: directions of weighted words."""
    words = make_pipeline(TfidfVectorizer(sublinear_tf=True, min_df=3), TruncatedSVD(100, random_state=0)).fit(texts)

    def encode(some: list[str]) -> torch.Tensor:
        return torch.nn.functional.normalize(torch.from_numpy(words.transform(some)).float()) * 20

    np.save(folder / "features.npy", encode(texts).numpy())
    own = own_of([(text, "good" if label else "bad") for text, label in zip(texts, y, strict=True)])
    encoder = Encoder("words", "text", 0, 100, "words", torch.nn.Identity(), encode)
    subject = Subject(own, Material(folder / "features.npy", own.classes, "reviews"), encoder, 0)
    trainer = Trainer(subject.material, own.y.numpy(), np.arange(len(y)) % 2, folder / "work", 1, epochs=12)
    test = swap_plain_models(subject, trainer, train_plain_models(trainer, 1), find_views(subject, trainer, matters))
    assert isinstance(test, SwapTest), test
    return test


def test_a_sentence_that_goes_with_the_label_is_never_no_evidence(real_data, tmp_path, cache):
    test = examined_texts(*reviews(real_data, RHO), tmp_path)
    word, reasons = verdict(test, HEALTHY)
    assert word != NO_EVIDENCE, reasons
    together = next(each for each in test.reliances if each.name == "together")
    assert {"flight", "trip", "plate", "smelled"} <= set(together.words)


def test_reviews_as_they_are_are_not_called_biased_and_their_words_are_asked_about(real_data, tmp_path, cache):
    texts, y = reviews(real_data, None)
    word, reasons = verdict(examined_texts(texts, y, tmp_path), HEALTHY)
    assert word == CANNOT_TELL and "Do these words matter: " in reasons[0] and "worst" in reasons[0], reasons
    declared = ("words", "first-sentence", "last-sentence")
    _, reasons = verdict(examined_texts(texts, y, tmp_path, declared), HEALTHY)
    assert not any("matter" in each for each in reasons), reasons
