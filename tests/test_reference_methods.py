"""Methods that begin with a reference model, each against its definition: BPA, CNC, EIIL and GEORGE."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from debiaser.data.split import Batch, Split
from debiaser.errors import Misuse
from debiaser.io import numpy_stream, torch_stream
from debiaser.learn import groups
from debiaser.learn.engine import Stage, split_rows
from debiaser.learn.forward import Outputs
from debiaser.learn.gradient_norms import scale_slope
from debiaser.learn.groups import Silhouettes
from debiaser.learn.losses import cross_entropy
from debiaser.learn.recipe import Recipe
from debiaser.methods import cnc
from debiaser.methods.bpa import BPA, ClusterWeighted, class_clusters
from debiaser.methods.cnc import CNC, Contrast, TaskSampler, contrastive
from debiaser.methods.eiil import EIIL, infer
from debiaser.methods.george import GEORGE, hard_pieces
from debiaser.methods.task import stage_key

# BPA: weights against an independent writing, clusters within classes, state that survives a kill.


CLUSTERS = torch.tensor([0] * 24 + [1] * 6 + [2] * 2)  # sizes 24, 6, 2


def new_objective(rule: BPA | None = None) -> ClusterWeighted:
    torch.manual_seed(0)
    return ClusterWeighted(nn.Linear(4, 3), CLUSTERS, rule or BPA()).train()


def batches(epoch: int = 0) -> list[Batch]:
    stream = torch.Generator().manual_seed(7)
    x, y = torch.randn(32, 4, generator=stream), torch.randint(3, (32,), generator=stream)
    stream = torch.Generator().manual_seed(epoch)
    return [Batch(x[rows], y[rows], rows) for rows in torch.randperm(32, generator=stream).split(8)]


@pytest.mark.parametrize("history", [False, True])
@pytest.mark.parametrize("average", ["expavg", "avg"])
def test_weights_are_their_formula(average, history):
    """Three epochs beside plain lists and loops, cluster losses renewed every third step and after each epoch."""
    objective = new_objective(BPA(average=average, history=history, every=3))
    losses, weights, means = [None] * 32, [1.0] * 32, [0.0] * 3

    def renew() -> None:
        for cluster in range(3):
            own = [loss for loss, where in zip(losses, CLUSTERS, strict=True) if where == cluster and loss is not None]
            means[cluster] = sum(own) / len(own) if own else means[cluster]

    for epoch in range(3):
        objective.begin(epoch, 3)
        for number, batch in enumerate(batches(epoch), 1):
            rows, where = batch.rows.tolist(), CLUSTERS[batch.rows].tolist()
            raw = [32 / [24, 6, 2][cluster] for cluster in where]
            if None not in losses:
                raw = [value * means[cluster] / sum(means) for value, cluster in zip(raw, where, strict=True)]
            raw = [value / (sum(raw) / len(raw)) for value in raw]
            last = [weights[row] for row in rows] if history else raw
            if average == "expavg":
                new = [old * math.exp(0.05 * value) for old, value in zip(last, raw, strict=True)]
            else:
                new = [0.7 * old + 0.3 * value for old, value in zip(last, raw, strict=True)]
            new = [value / (sum(new) / len(new)) for value in new]
            each = cross_entropy(objective.model(batch.x), batch.y).tolist()
            for row, weight, loss in zip(rows, new, each, strict=True):
                weights[row], losses[row] = weight, loss
            if number % 3 == 0:
                renew()
            expected = sum(weight * loss for weight, loss in zip(new, each, strict=True)) / len(each)
            assert objective(batch).item() == pytest.approx(expected, rel=1e-4)
            with torch.no_grad():
                objective.model.weight.mul_(1.1)  # losses that move
        renew()
    assert objective.weights.tolist() == pytest.approx(weights, rel=1e-4)


def test_the_weight_has_no_gradient_and_looking_changes_nothing():
    objective, batch = new_objective(), batches()[0]
    objective(batch).backward()
    found, before = objective.model.weight.grad.clone(), objective.weights.clone()
    objective.model.zero_grad()
    (cross_entropy(objective.model(batch.x), batch.y) * before[batch.rows]).mean().backward()
    assert torch.allclose(found, objective.model.weight.grad)
    objective.eval()(batches()[1])
    assert torch.equal(before, objective.weights)


def test_losses_of_zero_and_endless_compounding_stay_finite():
    objective = new_objective(BPA(history=True, step=50))
    for epoch in range(30):
        objective.begin(epoch, 30)
        for batch in batches(epoch):
            assert math.isfinite(objective(batch).item())
    assert (objective.weights > 0).all()
    objective.losses.zero_()
    objective.renew()
    assert torch.isfinite(objective.next_weights(torch.arange(32))).all()


def test_clusters_lie_within_classes():
    stream = torch.Generator().manual_seed(0)
    labels = torch.tensor([0] * 50 + [2] * 50 + [5] * 3)
    outputs = Outputs(torch.randn(103, 6, generator=stream), torch.randn(103, 6, generator=stream), labels)
    found = class_clusters(outputs, 8, seed=0)
    assert found.max() + 1 == 8 + 8 + 3, "a class of three rows has three clusters"
    assert len(set(zip(found.tolist(), labels.tolist(), strict=True))) == found.max() + 1
    assert np.array_equal(found, class_clusters(outputs, 8, seed=0))
    assert not np.array_equal(found, class_clusters(outputs, 8, seed=1))


# CNC: who may play which role, the layout of batches, the two-sided loss by hand.


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


def test_empty_pools_are_lent_rows_and_said(caplog):
    """Class 0 is always right and nobody is taken for it; 2 is never right, and 1 is now and then taken for it."""
    labels = np.repeat([0, 1, 2], 40)
    slices = labels.copy()
    slices[40:50], slices[80:] = 2, 1
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


# EIIL: closed form against autograd, an inference that only climbs, environments by the sign of the slope.


QUICK = EIIL(steps=600, lr=0.01)  # as far as 6,000 steps of 0.001


def slopes(n: int = 400, wrong: float = 0.1) -> torch.Tensor:
    """Two kinds of rows: most fitted, some not."""
    stream = torch.Generator().manual_seed(0)
    kind = torch.rand(n, generator=stream) < wrong
    return torch.where(kind, 1 + torch.rand(n, generator=stream), -0.1 - 0.3 * torch.rand(n, generator=stream))


def invariance_gap(membership: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
    """What the inference makes large, by its definition."""
    return ((membership * d).mean() ** 2 + ((1 - membership) * d).mean() ** 2) / 2


def test_slope_is_the_derivative_in_a_common_scale():
    stream = torch.Generator().manual_seed(0)
    logits, y = 4 * torch.randn(50, 6, generator=stream), torch.randint(6, (50,), generator=stream)
    scale = torch.ones(50, requires_grad=True)
    cross_entropy(scale[:, None] * logits, y).sum().backward()
    assert torch.allclose(scale_slope(Outputs(logits, logits, y)), scale.grad, atol=1e-5)


def test_inference_is_adam_on_the_objective():
    """The closed form takes the same path as autograd through the definition, one parameter per sample."""
    d = slopes(60).double()
    free = torch.randn(60, generator=torch_stream(0, "x"), dtype=torch.float64).requires_grad_()
    optimizer = torch.optim.Adam([free], 1e-3, maximize=True)
    for steps in range(30):
        assert torch.allclose(infer(d, steps, 1e-3, 1e-8, torch_stream(0, "x")), free.sigmoid(), atol=1e-12)
        optimizer.zero_grad()
        invariance_gap(free.sigmoid(), d).backward()
        optimizer.step()


@pytest.mark.parametrize("seed", range(4))
def test_two_kinds_of_rows_become_two_environments(seed):
    """Whichever side chance favours, environment 1 is the one that the reference suits worse."""
    assert torch.equal(QUICK.environments(slopes(), seed), (slopes() > 0).long())


@pytest.mark.parametrize("d", [torch.zeros(50), torch.ones(50), -torch.ones(50)])
def test_one_environment_is_said(d, caplog):
    assert not QUICK.environments(d, 0).any()
    assert "one environment only" in caplog.text


def test_a_reference_that_fits_too_well_is_said(caplog):
    d = torch.where(torch.arange(400) < 4, 1.0, -1e-7)
    assert not torch.equal(QUICK.environments(d, 0), (d > 0).long())
    assert "where chance had put them" in caplog.text
    assert torch.equal(replace(QUICK, epsilon=1e-30).environments(d, 0), (d > 0).long()), (
        "without epsilon, only signs count"
    )


def test_fit_with_one_environment(tiny_task, monkeypatch):
    """Every row in one environment: GroupDRO has the classes as groups, IRM one penalty."""
    monkeypatch.setattr(EIIL, "environments", lambda self, slopes, seed: torch.zeros(len(slopes), dtype=torch.long))
    for learner in ("groupdro", "irm"):
        assert not EIIL(learner=learner).fit(tiny_task()).training


# GEORGE: which pieces of clusters stand alone, and clusters within classes.


def hard_corner() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Two clusters; one of them has a corner of 60 rows that lies apart and has a high loss."""
    stream = np.random.default_rng(0)
    places = np.repeat([[0.0, 0.0], [1.2, 0.0], [3.0, 0.0]], [300, 60, 300], axis=0)
    points = places + stream.normal(0, 0.1, (660, 2))
    return points, (places[:, 0] == 3).astype(np.int64), np.where(places[:, 0] == 1.2, 3.0, 0.1)


def hard(parents, pieces, losses, points, valid=None) -> list[int]:
    return hard_pieces(parents, pieces, losses, Silhouettes(points, 0), valid).tolist()


def test_a_hard_corner_stands_alone():
    points, parents, losses = hard_corner()
    corner = losses > 1
    pieces, enough = parents * 5 + corner, np.repeat([0, 1], [100, 25])
    assert hard(parents, pieces, losses, points) == hard(parents, pieces, losses, points, enough) == [1]
    assert hard(parents, pieces, losses, points, enough[:-1]) == [], "24 samples in the validation data"
    assert hard(parents, pieces, np.where(corner, 0.0, losses), points) == [], "easier than its parent"
    assert hard(parents, pieces, np.ones(660), points) == [1], "as hard as its parent is enough"
    assert hard(parents, np.where(np.arange(660) % 5, 0, 1) + parents * 5, losses, points) == [], "not separated"
    few = np.flatnonzero(~corner | (corner.cumsum() <= 24))
    assert hard(parents[few], pieces[few], losses[few], points[few]) == [], "24 samples"
    unseen = Silhouettes(points, 0)
    unseen.rows, unseen.distances = np.flatnonzero(~corner), unseen.distances[~corner][:, ~corner]
    assert hard_pieces(parents, pieces, losses, unseen, None).tolist() == [], "nothing of it was looked at"


def test_clusters_of_a_class(monkeypatch):
    monkeypatch.setattr(groups, "unit_rows", lambda features: np.asarray(features, dtype=float))
    points, parents, losses = hard_corner()
    method = GEORGE(reduce="none", cluster="kmeans", largest_k=2)
    features = torch.from_numpy(points)
    whole = GEORGE(reduce="none", cluster="kmeans", largest_k=2, overcluster=False)
    assert len(set(zip(whole.class_clusters(features, losses, None, 0), parents, strict=True))) == 2
    found = method.class_clusters(features, losses, None, 0)
    corner = found[losses > 1]
    assert set(found) == set(range(found.max() + 1)) and found.max() >= 2
    assert not set(corner) & set(found[losses < 1]), "the corner is on its own"
    few = method.class_clusters(features, losses, features[:20], 0)
    assert few.max() == 1, "20 validation rows cannot confirm a piece"
    assert np.array_equal(found, method.class_clusters(features, losses, None, 0))


def test_gaussians_need_few_dimensions():
    with pytest.raises(Misuse, match="needs cluster=kmeans"):
        GEORGE(reduce="none")


def test_fit_without_validation_data_or_balance(tiny_task):
    method = GEORGE(reduce="pca", cluster="kmeans", largest_k=2, balanced=False, adjustment=1)
    assert not method.fit(tiny_task(valid=None)).training
