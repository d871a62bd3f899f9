"""Shortcuts put into images and texts on purpose are named; the same data without one is not called biased."""

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

from debiaser.auditing.crossval import Trainer, train_plain_models
from debiaser.auditing.inputs import own_of, prepare
from debiaser.auditing.swap_test import SwapTest, find_views, swap_plain_models
from debiaser.auditing.verdict import BIASED, Health, fires, verdict

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
    """JPEG of a quality of each class."""
    done = []
    for image, kind in zip(x, shown, strict=True):
        stored = io.BytesIO()
        Image.fromarray(image).save(stored, "jpeg", quality=(95, 30, 8)[kind])
        done.append(np.asarray(Image.open(stored)))
    return np.stack(done)


def examined(x: np.ndarray, y: np.ndarray, folder: Path, monkeypatch: pytest.MonkeyPatch) -> SwapTest:
    """The swap test of plain models on these images."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    subject = prepare(own_of([(torch.from_numpy(a).permute(2, 0, 1), int(b)) for a, b in zip(x, y, strict=True)]), None)
    trainer = Trainer(subject.material, subject.own.y.numpy(), np.arange(len(y)) % 2, folder, 1, epochs=5)
    test = swap_plain_models(subject, trainer, train_plain_models(trainer, 1), find_views(subject, trainer, ()), 600)
    assert isinstance(test, SwapTest), test
    return test


@pytest.mark.parametrize(
    ("change", "names"),
    [(tagged, {"bottom-left"}), (branded, {"top-right"}), (compressed, {"compression", "texture", "high-band"})],
)
def test_what_was_put_into_images_is_named(change, names, tmp_path, monkeypatch):
    x, y, rng = scenes(1200)
    shown = np.where(rng.random(len(y)) < RHO, (y + rng.integers(1, 3, len(y))) % 3, y)
    test = examined(change(x, shown), y, tmp_path, monkeypatch)
    word, reasons = verdict(test, HEALTHY)
    assert word == BIASED and names & {each.name for each in test.reliances if fires(each)}, reasons


def test_the_same_images_without_it_are_not_called_biased(tmp_path, monkeypatch):
    x, y, _ = scenes(1200)
    word, reasons = verdict(examined(x, y, tmp_path, monkeypatch), HEALTHY)
    assert word != BIASED, reasons
