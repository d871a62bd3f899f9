"""The machinery of an audit: jobs that are found again, models that never saw what they judge, kinds, intervals."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.optim.swa_utils import AveragedModel

from debiaser.auditing.crossval import (
    Job,
    OutOfFold,
    Predictions,
    Trainer,
    read_predictions,
    run_jobs,
    running_mean,
    train_biased_models,
)
from debiaser.auditing.diagnosis import (
    Diagnosis,
    above_chance,
    check_health,
    degenerate,
    diagnose,
    judging_weights,
    label_errors,
    likelihoods,
    name_kinds,
    posterior,
)
from debiaser.auditing.estimates import resampled_means, share
from debiaser.auditing.inputs import Material, of_steps
from debiaser.data.split import Benchmark
from debiaser.errors import Problem
from debiaser.learn.recipe import Recipe
from debiaser.learn.sampler import effective_sample_size

ROWS = 120


@pytest.fixture
def material(tmp_path: Path, benchmark_digits: Benchmark) -> Material:
    """The pixels of some coloured digits."""
    pixels = (benchmark_digits.train.read(torch.arange(ROWS)) * 255).round().to(torch.uint8)
    np.save(tmp_path / "pixels.npy", pixels.numpy())
    return Material(tmp_path / "pixels.npy", benchmark_digits.classes, "some digits")


@pytest.fixture
def labels(benchmark_digits: Benchmark) -> np.ndarray:
    return benchmark_digits.train.y[:ROWS].numpy()


def make_job(material: Material, y: np.ndarray, **changes: object) -> Job:
    plan = {"name": "easy", "material": material, "y": y, "train": np.arange(80), "ask": np.arange(80, ROWS)}
    return Job(**{**plan, "recipe": Recipe(epochs=1, batch_size=16, lr=0.02), "alpha": 0.7, **changes})  # type: ignore[arg-type]


def test_every_thing_that_decides_the_outcome_is_in_the_key(material: Material, labels: np.ndarray) -> None:
    changes = [{}, {"seed": 1}, {"alpha": None}, {"weight": np.ones(80)}, {"train": np.arange(79)}, {"averaged": True}]
    changes += [{"y": np.roll(labels, 1)}, {"recipe": Recipe(epochs=2, batch_size=16, lr=0.02)}]
    assert len({make_job(material, **{"y": labels, **each}).key for each in changes}) == 8


def test_answers_score_by_the_gradient_of_the_last_layer() -> None:
    generator = torch.Generator().manual_seed(0)
    features, weight = torch.randn(5, 7, generator=generator), torch.randn(3, 7, generator=generator)
    y = torch.tensor([0, 1, 2, 0, 1])
    weight.requires_grad_(True)
    norms = []
    for feature, label in zip(features, y, strict=True):
        loss = torch.nn.functional.cross_entropy((weight @ feature)[None], label[None])
        norms.append(float(torch.autograd.grad(loss, weight)[0].norm()))
    said = Predictions(np.arange(5), (features @ weight.T).detach().numpy(), features.norm(dim=1).numpy())
    assert said.gradient_norm(y.numpy()) == pytest.approx(norms, rel=1e-3)


def test_no_row_is_judged_by_a_model_that_was_trained_on_it(
    tmp_path: Path, material: Material, labels: np.ndarray
) -> None:
    """A sample's label changes nothing about what is said of that sample: only other folds' models see it."""
    fold = np.arange(ROWS) % 3
    flipped = labels.copy()
    flipped[0] = (flipped[0] + 1) % 10

    def probability(y: np.ndarray) -> np.ndarray:
        trainer = Trainer(material, y, fold, tmp_path / "work", epochs=1)
        return train_biased_models(trainer, 1).probability

    before, after = probability(labels), probability(flipped)
    mine = fold == fold[0]
    assert np.array_equal(before[mine], after[mine])
    assert not np.array_equal(before[~mine], after[~mine])


def test_a_biased_head_learns_what_is_easiest_and_knows_how_sure_it_may_be(tmp_path: Path) -> None:
    """The shortcut is clearer than what the label follows: samples that go against it have the highest scores."""
    rng, y = np.random.default_rng(0), np.arange(1000) % 2
    against = rng.random(1000) < 0.1
    features = 0.3 * rng.normal(size=(1000, 20))
    features[:, :4] += 0.4 * y[:, None]
    features[:, 4:12] += 0.8 * np.where(against, 1 - y, y)[:, None]
    np.save(tmp_path / "features.npy", 100 * features.astype(np.float32))  # whatever their scale
    made = Material(tmp_path / "features.npy", ("no", "yes"), "two rules")
    trainer = Trainer(made, y, np.arange(1000) // 2 % 5, tmp_path / "work")
    said = train_biased_models(trainer, 2)
    assert said.keys[0] == said.keys[1], "it is the same under every seed"
    assert (said.answer != y)[against].mean() > 0.9 and said.score[against].mean() > 3 * said.score[~against].mean()
    sure = said.probability.max(1)
    assert abs(sure.mean() - (said.answer == y).mean()) < 0.05, "its probabilities are calibrated"


def test_what_is_done_is_not_done_again_and_damage_is_noticed(
    tmp_path: Path, material: Material, labels: np.ndarray
) -> None:
    job = make_job(material, labels)
    (first,) = run_jobs([job], tmp_path, "easy")
    model = tmp_path / job.key / "model.safetensors"
    made = model.stat().st_mtime_ns
    (second,) = run_jobs([job], tmp_path, "easy")
    assert model.stat().st_mtime_ns == made and np.array_equal(first.logits, second.logits)
    answers = tmp_path / job.key / "answers.npz"
    answers.write_bytes(answers.read_bytes()[:100])
    assert read_predictions(tmp_path / job.key) is None
    (third,) = run_jobs([job], tmp_path, "easy")
    assert np.array_equal(first.logits, third.logits)


@pytest.mark.parametrize("harm", ["cut", "removed"])
def test_a_model_that_is_not_whole_is_trained_again_and_that_is_said(
    harm: str, tmp_path: Path, material: Material, labels: np.ndarray, caplog: pytest.LogCaptureFixture
) -> None:
    """Its answers are there still, but the swaps and the page ask the model itself."""
    job = make_job(material, labels)
    run_jobs([job], tmp_path, "easy")
    model = tmp_path / job.key / "model.safetensors"
    whole = model.read_bytes()
    model.write_bytes(whole[:-5]) if harm == "cut" else model.unlink()
    run_jobs([job], tmp_path, "easy")
    assert model.read_bytes() == whole and "it is trained again" in caplog.text


def test_two_processes_give_what_one_gives(tmp_path: Path, material: Material, labels: np.ndarray) -> None:
    jobs = [make_job(material, labels, seed=seed) for seed in range(3)]
    alone, shared = (run_jobs(jobs, tmp_path / str(workers), "easy", workers) for workers in (1, 2))
    assert all(np.array_equal(one.logits, other.logits) for one, other in zip(alone, shared, strict=True))


def test_a_problem_of_a_worker_is_told_and_ends_the_others(
    tmp_path: Path, material: Material, labels: np.ndarray
) -> None:
    bad = make_job(material, labels, recipe=Recipe(epochs=1, batch_size=16, lr=1e30))
    with pytest.raises(Problem, match="NaN"):
        run_jobs([bad, make_job(material, labels)], tmp_path, "easy", workers=2)


def test_a_mistake_of_ours_in_a_worker_is_one_line_too(
    tmp_path: Path, material: Material, labels: np.ndarray, capfd: pytest.CaptureFixture[str]
) -> None:
    """What went wrong there comes with it, for the report; nothing is printed in between."""
    jobs = [make_job(Material(tmp_path / "absent.npy", material.classes, "gone"), labels, seed=seed) for seed in (0, 1)]
    with pytest.raises(FileNotFoundError) as raised:
        run_jobs(jobs, tmp_path, "easy", workers=2)
    assert "Traceback" in str(raised.value.__cause__) and "Traceback" not in capfd.readouterr().err


def test_intervals_resample_units_not_rows() -> None:
    """Ten copies of every sample do not make an estimate surer."""
    stream = np.random.default_rng(0)
    hits = stream.random(200) < 0.3
    once = share(hits, np.arange(200))
    copies = share(np.repeat(hits, 10), np.repeat(np.arange(200), 10))
    assert copies.value == once.value
    width, copied = once.high - once.low, copies.high - copies.low  # type: ignore[operator]
    assert copied == pytest.approx(width, rel=0.1)
    assert width / 2 == pytest.approx(196 * np.sqrt(0.3 * 0.7 / 200), rel=0.15)


def test_resampled_means_have_the_mean_and_spread_of_the_mean() -> None:
    values = np.random.default_rng(1).normal(size=(500, 2))
    drawn = resampled_means(values, np.arange(500))
    assert drawn.mean(0) == pytest.approx(values.mean(0), abs=0.01)
    assert drawn.std(0) == pytest.approx(values.std(0) / np.sqrt(500), rel=0.1)


def test_the_probability_of_a_wrong_label_is_its_definition() -> None:
    stream = np.random.default_rng(2)
    judge, biased = (stream.dirichlet(np.ones(4), 50) for _ in range(2))
    y = stream.integers(0, 4, 50)
    pi = 0.3
    nu = posterior(pi, *likelihoods(judge, biased, y))
    for row in range(50):
        others = [c for c in range(4) if c != y[row]]
        against = sum(judge[row, c] * biased[row, c] for c in others) / (1 - biased[row, y[row]])
        expected = pi * against / (pi * against + (1 - pi) * judge[row, y[row]])
        assert nu[row] == pytest.approx(expected)


@pytest.mark.long
def test_much_noise_does_not_hide_the_rows_that_go_against_the_rule(tmp_path: Path) -> None:
    """Five labels are wrong for each bias-conflicting sample; the first judging models are not sure of these."""
    stream, n, classes = np.random.default_rng(0), 3000, 5
    truth, others = stream.integers(0, classes, n), stream.integers(1, classes, (2, n))
    conflicting, flipped = stream.random((2, n)) < np.array([[0.02], [0.1]])
    rule = np.where(conflicting, truth + others[0], truth) % classes
    y = np.where(flipped, truth + others[1], truth) % classes
    features = stream.normal(size=(n, 2 * classes)).astype(np.float32)
    features[np.arange(n), truth] += 5
    features[np.arange(n), classes + rule] += 8
    np.save(tmp_path / "features.npy", features)
    material = Material(tmp_path / "features.npy", tuple("abcde"), "two rules")
    trainer = Trainer(material, y, np.arange(n) % 5, tmp_path)
    biased = train_biased_models(trainer, 2)
    kind = diagnose(trainer, biased, 2).kind
    assert (kind[flipped] == "mislabelled").mean() > 0.9
    assert (kind[conflicting & ~flipped] == "mislabelled").mean() < 0.25


def test_kinds_need_all_seeds() -> None:
    wrong = np.array([[0.9, 0.9, 0.1, 0.5, 0.0], [0.85, 0.6, 0.15, 0.5, 0.0]])
    misclassified = np.array([True, True, True, True, False])
    named = name_kinds(np.ones(5, bool), misclassified, wrong)
    assert list(named) == ["mislabelled", "unsure", "conflicting", "unsure", "aligned"]


def test_judging_draws_rest_on_enough_rows(material: Material, labels: np.ndarray, tmp_path: Path) -> None:
    trainer = Trainer(material, labels, np.arange(ROWS) % 5, tmp_path)
    misclassified = np.arange(ROWS) < 2
    weight = judging_weights(trainer, misclassified, np.where(misclassified, 0.5, 0))
    assert effective_sample_size(weight / weight.sum()) >= 0.1 * ROWS and weight[misclassified].sum() > 0


def test_health_tells_a_model_that_guesses_from_one_that_knows() -> None:
    y = np.repeat([0, 1, 2], 100)
    assert above_chance(y == y, y) == 1 and above_chance(np.zeros(300, int) == y, y) == 0
    rare = np.repeat([0, 2], [960, 40])  # 85% right in both classes, below always naming the larger
    assert above_chance(np.arange(1000) % 20 >= 3, rare) == pytest.approx(0.7)
    weak = check_health(y, np.zeros(300, int), np.zeros(300, int), ("a", "b", "c"), "Try a backbone.")
    assert "hardly better" in weak[0].what and weak[0].do == "Try a backbone."
    perfect = check_health(y, y, y, ("a", "b", "c"), "")
    assert len(perfect) == 1 and "misclassifies none of" in perfect[0].what
    collapsed = np.where(y == 2, 1, y)
    assert any("'c'" in each.what for each in check_health(y, collapsed, y, ("a", "b", "c"), ""))


@pytest.mark.parametrize(
    ("said", "lost"), [([0, 0, 1, 1, 2, 2], False), ([0, 0, 1, 1, 1, 1], True), ([1, 2, 2, 0, 0, 1], True)]
)
def test_a_biased_model_that_leaves_a_class_out_or_guesses_is_degenerate(said: list[int], lost: bool) -> None:
    assert degenerate(np.repeat([0, 1, 2], 20), np.repeat(said, 10)) is lost


def test_likely_label_errors_are_those_that_the_judge_does_not_believe() -> None:
    y, misclassified = np.array([0, 0, 1, 1, 0]), np.array([True, True, True, True, False])
    wrong = np.array([[0.9, 0.95, 0.4, 0.99, 0.0]])
    judged = np.array([[0.1, 0.9], [0.05, 0.95], [0.9, 0.1], [0.3, 0.7], [0.1, 0.9]])
    judge = OutOfFold(judged[None], np.ones((1, 5)), ())
    diagnosis = Diagnosis(misclassified, wrong, np.full(5, "unsure"), judge)
    assert label_errors(diagnosis, y).tolist() == [1, 0]  # 2: more likely right; 3: the judge believes it; 4: not asked
    assert not len(label_errors(Diagnosis(misclassified, wrong, np.full(5, "unsure")), y))


def test_rare_classes_are_drawn_as_often(tmp_path: Path) -> None:
    """A class of one sample in twenty that is easy to tell is not given up by the biased model."""
    rng, y = np.random.default_rng(0), (np.arange(600) % 20 == 0).astype(np.int64)
    features = rng.normal(size=(600, 8)) + y[:, None] * np.tile([1, -1], 4)
    np.save(tmp_path / "features.npy", features.astype(np.float32))
    material = Material(tmp_path / "features.npy", ("no", "yes"), "rare")
    trainer = Trainer(material, y, np.arange(600) // 20 % 3, tmp_path / "work")
    said = train_biased_models(trainer, 1)
    assert (said.answer[y == 1] == 1).mean() > 0.7
    jobs = trainer.fold_jobs("easy", trainer.recipe("biased", 400), 0)
    assert all(job.weight[y[job.train] == 1].sum() == pytest.approx(job.weight.sum() / 2) for job in jobs)


def test_recipes_take_about_the_steps_that_are_asked() -> None:
    for rows in (200, 4000, 60_000):
        recipe = of_steps(rows, 400)
        assert recipe.epochs in (2, 60) or 200 <= recipe.epochs * rows / recipe.batch_size <= 800


def test_averaged_weights_are_the_mean_and_counts_the_last() -> None:
    network = torch.nn.BatchNorm1d(2)
    average = AveragedModel(network, avg_fn=running_mean, use_buffers=True)
    for value in (4, 9, 16):
        with torch.no_grad():
            for each in network.state_dict().values():
                each.fill_(value)
        average.update_parameters(network)
    state = average.module.state_dict()
    assert state.pop("num_batches_tracked") == 16
    assert all(each.allclose(torch.tensor(29 / 3)) for each in state.values())


def test_a_job_may_average_and_says_so(tmp_path: Path, material: Material, labels: np.ndarray) -> None:
    one, other = run_jobs([make_job(material, labels, averaged=each) for each in (False, True)], tmp_path, "easy")
    assert not np.array_equal(one.logits, other.logits) and np.isfinite(other.logits).all()
