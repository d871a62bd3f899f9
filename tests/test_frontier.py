"""The methods since 2023 and those that are told the groups, each against its definition, and input that is odd."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from debiaser import AFR, BAM, DFR, DPR, PGD, RWG, ULA, XRM, Cells, GroupDRO, NeuronTune, Recipe
from debiaser.data.split import Batch, Split, Truth
from debiaser.errors import Misuse, Problem
from debiaser.learn.forward import Outputs
from debiaser.learn.gradient_norms import disagreement, residual_norm
from debiaser.learn.groups import cell_weights
from debiaser.learn.last_layer import LogisticFit
from debiaser.learn.sampler import Shuffle
from debiaser.methods.afr import confidence_weights
from debiaser.methods.bam import Auxiliary
from debiaser.methods.neurontune import mistake_differences
from debiaser.methods.task import Method, Task, plain_network
from debiaser.methods.ula import Adjusted, label_given_answer
from debiaser.methods.xrm import Twins
from kills import Watched, same

N, CLASSES = 120, 3


def stream(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def new_outputs(n: int = 40, k: int = CLASSES, scale: float = 3) -> Outputs:
    return Outputs(
        torch.randn(n, 5, generator=stream(1)),
        scale * torch.randn(n, k, generator=stream(2)),
        torch.randint(k, (n,), generator=stream(3)),
    )


def new_net(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, CLASSES))


@pytest.fixture
def small_task() -> Callable[..., Task]:
    """A maker of tasks on 120 vectors: the first three numbers tell a bias that holds for all but every tenth."""
    y = torch.arange(N) % CLASSES
    bias = torch.where(torch.arange(N) % 10 == 0, (y + 1) % CLASSES, y)
    x = torch.cat([2.0 * F.one_hot(bias, CLASSES), F.one_hot(y, CLASSES)], 1)
    x = x + 0.3 * torch.randn(N, 6, generator=stream())
    truth = Truth(y, bias[:, None])

    def make(**changes: Any) -> Task:
        plan: dict[str, Any] = {"recipe": Recipe(epochs=2, batch_size=32, lr=0.05), "groups": truth.groups(y)}
        return Task(Split.of(x, y), new_net, **{**plan, **changes})

    return make


@pytest.fixture
def task(small_task: Callable[..., Task]) -> Task:
    return small_task()


# DPR


@pytest.mark.parametrize("temperature", [0.5, 1, 2])
def test_disagreement_is_its_definition(temperature: float) -> None:
    outputs = new_outputs()
    expected = 1 - (outputs.logits / temperature).softmax(1)[torch.arange(40), outputs.labels]
    torch.testing.assert_close(disagreement(temperature)(outputs), expected, rtol=1e-4, atol=1e-7)
    sure = replace(outputs, logits=40.0 * F.one_hot(outputs.labels, CLASSES))
    assert (disagreement()(sure) > 0).all(), "exact where 1 - softmax would be 0"


def test_dpr_is_pgd_by_the_l1_norm_of_the_residual(small_task: Callable[..., Task]) -> None:
    """Scores are half of PGD's, so every draw and the whole run are the same; another temperature is another run."""
    outputs = new_outputs()
    torch.testing.assert_close(2 * disagreement()(outputs), residual_norm(1)(outputs), rtol=1e-6, atol=0)
    methods = (DPR(), PGD(score="residual", p=1), DPR(temperature=2))
    dpr, pgd, other = (method.fit(small_task()) for method in methods)
    assert same(dpr, pgd) and not same(dpr, other)


# Cells


@pytest.mark.parametrize("share", [0.005, 0.01, 0.05, 0.2, 0.5])
def test_power_moves_the_share_of_draws_on_conflicting_samples(share: float) -> None:
    """Two classes, a share of each in the small cell: as in the data, even, and inverted."""
    small = np.arange(2000) % 1000 < 1000 * share
    labels = np.repeat([0, 1], 1000)
    for power, expected in ((0, share), (1, 0.5), (2, 1 - share)):
        weights = cell_weights(labels, small.astype(np.int64), power)
        assert weights[small].sum() / weights.sum() == pytest.approx(expected)
        assert weights[labels == 0].sum() == pytest.approx(weights[labels == 1].sum())


def test_cells_without_misclassified_samples_are_drawn_evenly(caplog: pytest.LogCaptureFixture) -> None:
    labels, answers = np.array([0, 0, 0, 1, 1, 2]), np.array([0, 0, 2, 1, 1, 2])
    weights = Cells().weights(labels, answers)
    assert "misclassifies no sample of 2 of 3 classes: these are drawn evenly" in caplog.text
    np.testing.assert_allclose(weights, [0.25, 0.25, 0.5, 0.5, 0.5, 1])


def test_amplification_keeps_the_surest_of_every_class(small_task: Callable[..., Task]) -> None:
    task = small_task(groups=None)  # else the method is given a copy of the task
    watched = Watched(task)
    Cells(share=0.5, amplify=2).fit(task)
    assert list(watched.samplers) == ["biased", "amplified 1", "amplified 2", "debiased"]
    for stage in list(watched.samplers)[:3]:
        assert np.bincount(task.train.y[watched.samplers[stage].draw(0)]).tolist() == [20, 20, 20], stage
    assert sum(row["seen"] for row in task.journal.history) == 2 * (60 * 3 + N)
    assert task.recipe.of_stage("amplified").epochs == 2


# uLA


def test_labels_given_the_answer_are_counted_with_one_more_in_every_cell() -> None:
    outputs = new_outputs()
    soft = (outputs.logits.double() / 2).softmax(1)
    for b in range(CLASSES):
        row = [1 + sum(float(soft[i, b]) for i in range(40) if outputs.labels[i] == c) for c in range(CLASSES)]
        found = label_given_answer(outputs, 2)[b]
        np.testing.assert_allclose(found, np.array(row) / sum(row), rtol=1e-9)


@pytest.mark.parametrize("scale", [1e6, 1e30])
def test_an_adjustment_stays_finite_however_sure_the_biased_model_is(scale: float) -> None:
    sure = new_outputs()
    sure = replace(sure, logits=scale * (2.0 * F.one_hot(sure.labels, CLASSES) - 1))
    offsets = label_given_answer(sure, 0.1).log()
    assert offsets.isfinite().all()
    with pytest.raises(Problem, match="logits are not finite, so its answers cannot be counted; lower lr"):
        label_given_answer(replace(sure, logits=sure.logits * torch.inf), 1)


def test_the_adjusted_loss_is_that_of_shifted_logits(small_task: Callable[..., Task]) -> None:
    task = small_task(groups=None)
    batch, net, offsets = task.train.batch(torch.arange(7, 19)), new_net(0), torch.randn(N, CLASSES, generator=stream())
    expected = -(net(batch.x) + offsets[7:19]).log_softmax(1)[torch.arange(12), batch.y].mean()
    torch.testing.assert_close(Adjusted(net, offsets)(batch), expected)
    watched = Watched(task)
    ULA(strength=100).fit(task)
    seen = watched.objectives["debiased"].offsets
    assert seen.shape == (N, CLASSES) and float(seen.abs().max()) == 5, "capped"


# BAM


def test_free_vectors_take_their_share_of_the_gradient() -> None:
    """At 0 the loss is cross-entropy; the gradient of a vector is amplify times that of the logits, else 0."""
    net, rows = new_net(0), torch.tensor([4, 2])
    batch = Batch(torch.randn(2, 6, generator=stream()), torch.tensor([0, 2]), rows)
    objective = Auxiliary(net, Split.of(torch.zeros(6, 6), torch.zeros(6)), amplify=5)
    loss = objective(batch)
    torch.testing.assert_close(loss, F.cross_entropy(net(batch.x), batch.y))
    loss.backward()
    residual = (net(batch.x).softmax(1) - F.one_hot(batch.y, CLASSES)).detach()
    assert objective.vectors.grad is not None
    torch.testing.assert_close(objective.vectors.grad[rows], 5 * residual / 2)
    assert not objective.vectors.grad[[0, 1, 3, 5]].any()


def test_bam_trains_on_and_is_plain_without_errors(task: Task, caplog: pytest.LogCaptureFixture) -> None:
    BAM(upweight=4).fit(task)
    assert set(np.unique(task.journal.vectors["score"])) <= {1.0, 5.0}
    easy = replace(task, train=Split.of(20.0 * F.one_hot(task.train.y, 6), task.train.y))
    BAM(amplify=0, identification=10).fit(easy)
    assert "misclassifies none of 120 samples, so the second training is plain" in caplog.text


# XRM


def test_twins_learn_from_their_own_half_and_flip_the_other(task: Task) -> None:
    twins = Twins(new_net(0), new_net(1), task).train()
    batch = task.train.batch(torch.arange(0, N, 3))
    assert not twins.model(batch.x).any(), "last layers begin with zeros"
    for net, seed in ((twins.model, 5), (twins.other, 6)):
        net.load_state_dict(new_net(seed).state_dict())
    logits = [net(batch.x) for net in (twins.model, twins.other)]
    twins.running[:60] = (twins.running[:60] + 1) % CLASSES
    labels, half = twins.running[batch.rows].clone(), twins.assigned[batch.rows]
    means = []
    for c in range(CLASSES):
        own = [-logits[0 if half[i] else 1][i].log_softmax(0)[c] for i in range(len(batch)) if labels[i] == c]
        means += [sum(own) / len(own)] if own else []
    torch.testing.assert_close(twins(batch), torch.stack(means).sum())
    moved = twins.running[batch.rows] != labels
    outside = torch.where(half[:, None], logits[1], logits[0]).argmax(1)
    assert moved.any() and torch.equal(twins.running[batch.rows][moved], outside[moved])


@pytest.mark.parametrize(("confidence", "chance"), [(1 / 3, 0.0), (0.6, 0.4), (1.0, 1.0)])
def test_a_label_is_flipped_as_often_as_the_other_twin_is_sure(confidence: float, chance: float, task: Task) -> None:
    twins, n = Twins(new_net(0), new_net(1), task), 20_000
    rest = max((1 - confidence) / 2, 1e-30)
    logits = torch.tensor([confidence + 1e-7 * (chance == 0), rest, rest]).log().expand(n, CLASSES)
    found = twins.flipped(logits, torch.full((n,), 2), 0)
    assert set(found.tolist()) <= {0, 2}
    assert float((found == 0).double().mean()) == pytest.approx(chance, abs=5 * math.sqrt(0.25 / n))


def test_a_void_run_is_said_and_its_classes_are_drawn_evenly(caplog: pytest.LogCaptureFixture) -> None:
    labels, group = np.array([0, 0, 0, 1, 1, 2, 2]), np.array([0, 1, 0, 0, 0, 1, 1])
    weights = XRM().weights(labels, group)
    assert "XRM is void: in 2 of 3 classes the twins misclassify all samples or none" in caplog.text
    np.testing.assert_allclose(weights, [0.25, 0.5, 0.25, 0.5, 0.5, 0.5, 0.5])


def test_the_flip_rate_is_kept(task: Task) -> None:
    XRM(learner="balanced").fit(task)
    flip = task.journal.vectors["flip"]
    assert flip.dtype == np.int8 and 0 < flip.mean() < 1


# Last layers: AFR, DFR and NeuronTune


def test_the_network_never_sees_what_is_held_out(small_task: Callable[..., Task]) -> None:
    whole, part = plain_network(small_task(), 0), plain_network(small_task(), 0.25)
    assert len(whole.held_out) == N and np.bincount(part.task.train.y[part.held_out]).tolist() == [10, 10, 10]
    changed = part.task.train.read(torch.arange(N)).clone()
    changed[part.held_out] += 7
    other = plain_network(replace(small_task(), train=Split.of(changed, part.task.train.y)), 0.25)
    assert same(part.model, other.model)
    with pytest.raises(Misuse, match=r"held_out=0\.01 of so few samples leaves none"):
        plain_network(small_task(), 0.01)


def test_rows_are_shuffled_alone() -> None:
    rows = np.array([3, 5, 8])
    assert sorted(Shuffle(10, 1, rows).draw(0).tolist()) == [3, 5, 8]
    assert Shuffle(10, 1, rows).identity != Shuffle(10, 1).identity


@pytest.mark.parametrize("gamma", [0, 4, 1e6])
def test_confidence_weights_are_their_formula(gamma: float) -> None:
    outputs = new_outputs()
    weights = confidence_weights(outputs, gamma)
    assert float(weights.sum()) == pytest.approx(1) and weights.isfinite().all()
    if gamma < 1e6:
        sure = outputs.logits.double().softmax(1)[torch.arange(40), outputs.labels]
        each = torch.exp(-gamma * sure) * 40 / torch.bincount(outputs.labels)[outputs.labels]
        torch.testing.assert_close(weights, each / each.sum())


def test_afr_descends_along_the_gradient_that_autograd_gives() -> None:
    outputs, start = new_outputs(), torch.randn(CLASSES, 6, generator=stream(4), dtype=torch.float64)
    weights, rule = confidence_weights(outputs, 2), AFR(anchor=0.3, steps=3, lr=0.5)
    layer = start.clone().requires_grad_()
    for _ in range(3):
        logits = outputs.features.double() @ layer[:, :-1].T + layer[:, -1]
        losses = F.cross_entropy(logits, outputs.labels, reduction="none")
        (gradient,) = torch.autograd.grad(weights @ losses + 0.3 * (layer - start).square().sum(), layer)
        gradient = gradient / max(1.0, float(gradient.norm()))
        layer = (layer - 0.5 * gradient).detach().requires_grad_()
    torch.testing.assert_close(rule.descend(outputs, weights, start), layer.detach())


@pytest.mark.parametrize("method", [AFR(), DFR(), DFR(held_out=0, penalty="l2"), NeuronTune()])
def test_only_the_last_layer_is_fitted(method: Method, small_task: Callable[..., Task]) -> None:
    model = method.fit(small_task())
    plain = plain_network(small_task(), method.held_out).model  # type: ignore[attr-defined]
    before = plain.state_dict()
    different = [name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])]
    assert different == ["2.weight", "2.bias"]


def test_l1_leaves_weights_at_zero_and_is_optimal() -> None:
    """No step along a coordinate lowers the objective of the L1 regression, of standardised features."""
    x, noise = torch.randn(200, 8, generator=stream()).numpy(), torch.randn(200, generator=stream(1)).numpy()
    y = (x[:, 0] + 0.5 * noise > 0).astype(np.int64)
    fits = LogisticFit(x, y, 2, strength=0.05, l1=True)
    weights, biases = fits.fit()
    direction = weights[1] - weights[0]
    assert direction[0] > 0 and (np.abs(direction[1:]) < 1e-3).sum() >= 5

    standard, cut = direction / fits.scale, biases[1] - biases[0] + direction @ fits.mean

    def objective(changed: np.ndarray) -> float:
        logits = fits.x @ changed + cut
        return float(0.05 * np.logaddexp(0, np.where(y == 1, -logits, logits)).sum() + np.abs(changed).sum())

    for k in range(8):
        for step in (-0.05, 0.05):
            assert objective(standard + step * np.eye(8)[k]) >= objective(standard) - 1e-3


def test_dfr_chooses_its_strength_by_the_worst_group(task: Task) -> None:
    """One that leaves weights: with few samples in a group the smaller of the authors' leave all at 0."""
    task.recipe = Recipe(epochs=8, batch_size=32, lr=0.05)
    model, least = DFR(held_out=0.5).fit(task), DFR(held_out=0.5, strength=0.001).fit(task)
    x = task.train.read(torch.arange(N))
    right = [float((net(x).argmax(1) == task.train.y).double().mean()) for net in (model, least)]
    assert right[1] < 0.5 < 0.7 < right[0]


def test_differences_are_medians_of_wrong_less_right() -> None:
    features = np.array([[1.0, 5], [3, 1], [9, 2], [4, 4], [2, 0], [7, 7]])
    labels, answers = np.array([0, 0, 0, 1, 1, 2]), np.array([0, 1, 1, 1, 0, 2])
    np.testing.assert_allclose(mistake_differences(features, labels, answers), [[5, -3.5], [-2, -4]])
    differences = np.array([[1.0, 1, -1], [2, -1, -2]])
    assert NeuronTune(classes="every").biased(differences).tolist() == [True, False, False]
    assert NeuronTune(classes="any").biased(differences).tolist() == [True, True, False]


def test_without_mistakes_no_feature_is_suppressed(caplog: pytest.LogCaptureFixture) -> None:
    labels = np.array([0, 0, 1])
    differences = mistake_differences(np.ones((3, 4)), labels, labels)
    assert differences.shape == (0, 4) and not NeuronTune().biased(differences).any()
    assert "no class has held-out samples both right and wrong: no feature is set to 0" in caplog.text


# Group labels


def test_equal_draws_of_every_group(task: Task) -> None:
    assert task.groups is not None
    RWG().fit(task)
    scores = task.journal.vectors["score"]
    masses = [scores[task.groups.numpy() == group].sum() for group in range(6)]
    np.testing.assert_allclose(masses, N)


def test_groups_are_for_methods_that_declare_them(task: Task) -> None:
    @dataclass(frozen=True)
    class Peeking(Method):
        def fit(self, task: Task) -> nn.Module:
            task.known_groups()
            return new_net(0)

    with pytest.raises(Problem, match="learns from group labels, and here are none"):
        Peeking().fit(task)


@pytest.mark.parametrize("method", [GroupDRO(), RWG(), DFR()])
def test_groups_that_are_the_label_are_refused(method: Method, task: Task) -> None:
    with pytest.raises(Problem, match="the group labels are the labels: every class is one group; give groups that"):
        method.fit(replace(task, groups=task.train.y + 5))


@pytest.mark.parametrize("method", [GroupDRO(), RWG(), DFR(held_out=0)])
def test_a_group_of_one_sample_is_said(method: Method, task: Task, caplog: pytest.LogCaptureFixture) -> None:
    groups = task.train.y.clone()
    groups[0] = 7
    model = method.fit(replace(task, groups=groups))
    assert "1 of 4 groups have one sample, which then counts as much as the whole of any other group" in caplog.text
    assert all(tensor.isfinite().all() for tensor in model.state_dict().values())


def test_unknown_bias_labels_give_no_groups() -> None:
    y, bias = torch.tensor([0, 0, 1, 1]), torch.tensor([[0], [1], [0], [0]])
    assert Truth(y, bias).groups(y).tolist() == [0, 1, 2, 2]  # type: ignore[union-attr]
    assert Truth(y, torch.tensor([[0], [-1], [0], [0]])).groups(y) is None
