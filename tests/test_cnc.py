"""CNC: who may play which role, the layout of batches, the two-sided loss by hand."""

import logging
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from debiaser.data.split import Batch, Split
from debiaser.errors import Misuse
from debiaser.io import numpy_stream
from debiaser.learn.engine import Stage, split_rows
from debiaser.learn.forward import Outputs
from debiaser.learn.recipe import Recipe
from debiaser.methods import cnc
from debiaser.methods.cnc import CNC, Contrast, TaskSampler, contrastive, deal
from debiaser.methods.task import stage_key


def labelled(n: int = 500, classes: int = 4, wrong: float = 0.2) -> tuple[np.ndarray, np.ndarray]:
    stream = numpy_stream(0, "labels")
    labels = stream.integers(classes, size=n)
    return labels, np.where(stream.random(n) < wrong, stream.integers(classes, size=n), labels)


@pytest.mark.parametrize("tasks", [1, 2, 4])
def test_roles(tasks):
    labels, slices = labelled()
    sampler = TaskSampler(labels, slices, 64, tasks, seed=1)
    parts = split_rows(sampler.draw(0), 64)
    assert [len(part) for part in parts] == [64] * 7 + [500 % 64 // (4 * tasks) * 4 * tasks]
    for part in parts:
        for rows in part.numpy().reshape(tasks, 4, -1):
            (y, s), k = (labels[rows], slices[rows]), labels[rows[0, 0]]
            assert (y[0] == k).all() and (s[0] == k).all(), "anchors: right, of one class"
            assert (y[1] == k).all() and (s[1] != k).all(), "positives: the class, another slice"
            assert (y[2] != k).all() and (s[2] == k).all(), "negatives: the slice, another class"
            assert (y[3] == s[1, 0]).all() and (s[3] == s[1, 0]).all(), "easy negatives: right, in the positive's slice"
            assert (y[3] != k).all()
            assert len(set(rows[0].tolist())) == rows.shape[1], "no anchor twice in a task"


def test_draws_are_seeded_by_epoch_and_cover_the_anchors():
    labels, slices = labelled()
    sampler = TaskSampler(labels, slices, 64, 2, seed=1)
    assert torch.equal(sampler.draw(3), TaskSampler(labels, slices, 64, 2, seed=1).draw(3))
    assert not torch.equal(sampler.draw(3), sampler.draw(4))
    assert not torch.equal(sampler.draw(3), TaskSampler(labels, slices, 64, 2, seed=2).draw(3))
    tasks = sampler.draw_tasks(2000, numpy_stream(0, "x"))
    found = np.bincount(labels[tasks[:, 0, 0]], minlength=4) / 2000
    right = np.bincount(labels[labels == slices], minlength=4)
    assert np.allclose(found, right / right.sum(), atol=0.05), "classes come as often as they have anchors"


@pytest.mark.parametrize("n", [3, 4, 17, 63, 64, 65, 129])
def test_an_epoch_has_n_rows_but_a_remainder(n):
    labels, slices = labelled(200)
    labels, slices = np.resize(labels, n), np.resize(slices, n)
    labels[:2] = slices[:2] = [0, 1]
    rows = TaskSampler(labels, slices, 64, 4).draw(0)
    assert 16 <= len(rows) <= max(16, n) and len(rows) > n - 16 and len(rows) % 16 == 0


def test_deal():
    stream = numpy_stream(0, "deal")
    hands = deal(np.arange(10, 20), 7, 3, stream)
    assert hands.shape == (7, 3) and all(len(set(hand)) == 3 for hand in hands.tolist())
    assert len(set(hands[:3].ravel().tolist())) == 9, "no card comes back before the pack is used"
    small = deal(np.array([5, 6]), 4, 5, stream)
    assert small.shape == (4, 5) and set(small.ravel().tolist()) == {5, 6}
    counts = np.bincount(deal(np.arange(7), 7000, 2, stream).ravel())
    assert np.allclose(counts / counts.sum(), 1 / 7, atol=0.01), "every row equally often"


def test_empty_pools_are_lent_rows_and_said(caplog):
    """Class 0 is always right and nobody is taken for it; 2 is never right, and 1 is now and then taken for it."""
    labels = np.repeat([0, 1, 2], 40)
    slices = labels.copy()
    slices[40:50], slices[80:] = 2, 1
    with caplog.at_level(logging.WARNING, "debiaser"):
        sampler = TaskSampler(labels, slices, 32, 2)
    assert "2 classes lack anchors" in caplog.text
    tasks = sampler.draw_tasks(400, numpy_stream(0, "x"))
    classes = labels[tasks[:, 0, 0]]
    assert set(classes) == {0, 1}, "a class without anchors has no task of its own"
    lent = tasks[classes == 0]
    assert (labels[lent[:, 1]] == 0).all(), "all rows of the class as positives"
    assert set(labels[lent[:, 2]].ravel()) == set(labels[lent[:, 3]].ravel()) == {1, 2}, "all others as negatives"
    rest = tasks[classes == 1]
    assert (slices[rest[:, 1]] == 2).all()
    assert set(labels[rest[:, 3]].ravel()) == {0, 2}, "slice 2 has nobody right: all rows of other classes"


def test_a_reference_that_is_never_right_is_said(caplog):
    labels = np.arange(100) % 3
    with caplog.at_level(logging.WARNING, "debiaser"):
        sampler = TaskSampler(labels, (labels + 1) % 3, 32, 2)
    assert "predicts no sample right" in caplog.text
    tasks = sampler.draw_tasks(20, numpy_stream(0, "x"))
    assert (labels[tasks[:, :2]] == labels[tasks[:, :1, :1]]).all()
    assert (labels[tasks[:, 2:]] != labels[tasks[:, :1, :1]]).all()


def test_loss_by_hand():
    anchor = torch.tensor([[1.0, 0.0]])
    positives, negatives = torch.tensor([[[1.0, 0.0], [0.0, 1.0]]]), torch.tensor([[[-1.0, 0.0]]])
    expected = math.log(math.e + 1 + 1 / math.e) - 0.5
    assert contrastive(anchor, positives, negatives, 1.0).tolist() == pytest.approx([expected])
    expected = math.log(math.e**2 + 1 + math.e**-2) - 1
    assert contrastive(anchor, positives, negatives, 0.5).tolist() == pytest.approx([expected])


def test_objective_by_hand():
    """Two tasks of one row in each role, directions written down; lengths must not matter to the contrast."""
    model = nn.Sequential(nn.Identity(), nn.Linear(2, 2))
    x = torch.tensor([[2.0, 0], [0, 3], [1, 0], [0, -1], [0, 1], [0, 5], [-2, 0], [0, 1]])
    y = torch.tensor([0, 0, 1, 1, 1, 1, 0, 0])
    rule = CNC(tasks=2, temperature=1, contrast=0.75)
    found = Contrast(model, model[1], rule)(Batch(x, y, torch.arange(8)))

    def one(towards: float, against: float) -> float:
        return -math.log(math.exp(towards) / (math.exp(towards) + math.exp(against)))

    first = one(0, 1) + one(0, -1)  # anchor against positive and negative; positive against anchor and easy negative
    second = one(1, 0) + one(1, 1)
    entropy = nn.functional.cross_entropy(model(x), y).item()
    assert found.item() == pytest.approx(0.75 * (first + second) / 2 + 0.25 * entropy, rel=1e-5)


def test_frozen_statistics(tiny_task):
    task = tiny_task()
    for frozen in (True, False):
        model = task.new_model()
        objective = Contrast(model, model.fc, CNC(frozen_statistics=frozen)).train()
        objective(task.train.batch(torch.arange(64)))
        assert model.body[1].training != frozen and model.fc.training
        assert bool(model.body[1].running_mean.any()) != frozen


def test_clusters_are_named_after_labels(monkeypatch):
    monkeypatch.setattr(cnc, "reduce_features", lambda points, others, *_: (points, others))
    labels, slices = labelled(300, 3)
    points = 10 * np.eye(3)[slices] + 0.1 * numpy_stream(0, "points").normal(size=(300, 3))
    outputs = Outputs(torch.from_numpy(points), torch.zeros(300, 3), torch.from_numpy(labels))
    assert np.array_equal(CNC(slice_by="features").slices(outputs, 0), slices)


def test_slices_are_part_of_the_key():
    labels, slices = labelled()
    split, recipe = Split.of(torch.zeros(500, 2), torch.from_numpy(labels)), Recipe(batch_size=64)
    model = nn.Linear(2, 4)

    def key(sampler: TaskSampler | None, rule: CNC = CNC()) -> str:  # noqa: B008
        return stage_key(Contrast(model, model, rule), Stage("debiased", split, recipe, 0, sampler), "x")

    other = np.roll(slices, 1)
    keys = [key(TaskSampler(labels, slices, 64, 4)), key(TaskSampler(labels, other, 64, 4)), key(None)]
    keys += [key(TaskSampler(labels, slices, 64, 4, seed=1)), key(TaskSampler(labels, slices, 64, 2))]
    keys += [key(TaskSampler(labels, slices, 64, 4), CNC(temperature=0.1))]
    assert len(set(keys)) == 6
    assert keys[0] == key(TaskSampler(labels, slices, 64, 4))


def test_misuse(tiny_task):
    with pytest.raises(Misuse, match="multiple of 16"):
        CNC().fit(tiny_task(recipe=Recipe(epochs=1, batch_size=40)))
    task = tiny_task()
    with pytest.raises(Misuse, match="only one"):
        CNC().fit(replace(task, train=task.train.subset(torch.nonzero(task.train.y == 3)[:, 0])))
