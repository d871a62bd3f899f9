"""The swap test against its definition, on models whose reliance is known, and the rules of the verdict."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from debiaser.auditing.estimates import Estimate, binomial_interval
from debiaser.auditing.swap_test import (
    FOLLOWED,
    Design,
    InClass,
    Reliance,
    SwapAnswers,
    SwapTest,
    by_chance,
    draw_pairs,
    estimates,
    excesses,
    swap_test,
)
from debiaser.auditing.verdict import BIASED, CANNOT_TELL, NO_EVIDENCE, Health, verdict
from debiaser.auditing.views import image_view, image_views
from debiaser.errors import Problem

HEALTHY = Health(skill=0.9, biased_errors=100)


def labels(n: int = 600, classes: int = 3, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, classes, n)


def answers_that_follow(share: float, design: Design, seed: int = 0) -> SwapAnswers:
    """A model that answers the donor's class in a share of swaps, else its own."""
    follows = np.random.default_rng(seed).random(len(design.own)) < share
    other = np.where(follows, design.donor, design.own)
    return SwapAnswers(other, design.own.copy(), np.ones(len(other), bool))


def design_of(y: np.ndarray, unit: np.ndarray | None = None) -> Design:
    pairs = draw_pairs(y, np.ones(len(y), bool), 10_000, 0)
    return Design(y[pairs.rows], y[pairs.donors], np.arange(len(y)) if unit is None else unit[pairs.rows])


def test_pairs():
    y = np.repeat([0, 1, 2], [500, 40, 60])
    eligible = np.random.default_rng(0).random(600) < 0.9
    pairs = draw_pairs(y, eligible, 100, 3)
    assert eligible[pairs.rows].all() and len(np.unique(pairs.rows)) == len(pairs.rows)
    assert np.bincount(y[pairs.rows]).tolist() == [100, eligible[500:540].sum(), eligible[540:].sum()]
    assert (y[pairs.donors] != y[pairs.rows]).all()
    assert (y[pairs.same] == y[pairs.rows]).all() and (pairs.same != pairs.rows).all()
    large = np.bincount(y[pairs.donors[y[pairs.rows] == 0]], minlength=3)
    assert abs(large[1] - large[2]) < 35  # classes are as likely, however many samples they have
    assert np.array_equal(draw_pairs(y, eligible, 100, 3).donors, pairs.donors)


def test_chance_is_the_mean_over_permutations_and_the_null_is_drawn_from_it():
    """Against a plain loop that permutes the donors' labels within each class."""
    design = design_of(labels(90))
    asked = [answers_that_follow(0.4, design), answers_that_follow(0.1, design, 1)]
    found = excesses(asked, design, np.ones((1, 90)))[:, 0]
    rng, drawn = np.random.default_rng(0), []
    for _ in range(2000):
        donor = design.donor.copy()
        for label in range(3):
            donor[design.own == label] = rng.permutation(donor[design.own == label])
        parts = [np.ones(90, bool), *(donor == label for label in range(3))]  # all, and by the donor's class
        drawn.append([[(each.other == donor)[part].mean() for part in parts] for each in asked])
    parts = [np.ones(90, bool), *(design.donor == label for label in range(3))]
    hits = np.array([[(each.other == design.donor)[part].mean() for part in parts] for each in asked])
    drawn = np.array(drawn)
    assert found == pytest.approx(hits - drawn.mean(0), abs=0.008)
    null = by_chance(asked, design, 0)
    assert null.mean(1) == pytest.approx(np.zeros((2, 4)), abs=0.01)
    assert null.std(1) == pytest.approx(drawn.std(0), rel=0.15)


def test_two_classes_use_donors_of_the_same_class():
    design = design_of(labels(400, 2))
    assert design.paired
    asked = answers_that_follow(0.3, design)
    own = design.own.copy()
    own[:40] = design.donor[:40]  # the swap itself breaks a tenth of the answers
    asked = replace(asked, same=own)
    ((excess, *by_class),) = estimates([asked], design, 0)
    assert excess.value == pytest.approx(100 * (asked.other == design.donor).mean() - 10)
    assert excess.low < excess.value < excess.high
    for label, each in enumerate(by_class):
        mine = design.donor == label
        assert each.value == pytest.approx(100 * ((asked.other == label)[mine].mean() - (own == label)[mine].mean()))
    null = by_chance([asked], design, 0)[..., 0]
    gain = (asked.other == design.donor).astype(int) - (asked.same == design.donor)
    assert null.std() == pytest.approx(np.sqrt((gain**2).sum()) / 400, rel=0.1)


def test_units_widen_the_interval():
    y = np.repeat(labels(60), 10)
    follows = np.repeat(np.random.default_rng(0).random(60) < 0.3, 10)

    def width(unit: np.ndarray) -> float:
        design = design_of(y, unit)
        asked = SwapAnswers(np.where(follows, design.donor, design.own), design.own, follows)
        ((excess, *_),) = estimates([asked], design, 0)
        return excess.high - excess.low

    assert width(np.repeat(np.arange(60), 10)) > 2 * width(np.arange(600))


def test_the_interval_holds_the_truth():
    """At a true excess of 20% of (1 - 1/2): 95% intervals hold it in most of 60 draws."""
    held = 0
    for seed in range(60):
        design = design_of(labels(300, seed=seed))
        ((excess, *_),) = estimates([answers_that_follow(0.2, design, seed + 100)], design, seed)
        held += excess.low <= 10 <= excess.high
    assert held >= 52


def test_nothing_seen_is_not_certainty():
    design = design_of(labels(200))
    ((excess, *by_class),) = estimates([answers_that_follow(0.0, design)], design, 0)
    assert excess.value == 0 and len(by_class) == 3
    assert excess.high == pytest.approx(100 * (1 - 0.025 ** (1 / 200)))  # the exact bound after 0 of 200
    assert binomial_interval(1, 10) == pytest.approx((0.025**0.1, 1))


# --- the whole test, on images ------------------------------------------------------------------------------------


def coloured(n: int = 400, classes: int = 4) -> tuple[torch.Tensor, np.ndarray]:
    """Images whose left half says the class by brightness and whose tint says it by colour."""
    y = labels(n, classes)
    tint = torch.tensor([[1, 0.3, 0.3], [0.3, 1, 0.3], [0.3, 0.3, 1], [1, 1, 0.3]])[y]
    x = torch.full((n, 3, 16, 16), 60.0)
    x[..., 8:] = 120 + 20 * torch.from_numpy(y)[:, None, None, None].float()
    return (x * tint[:, :, None, None]).round().to(torch.uint8), y


def by_colour(rows: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """A model that names the colour: which channels are strong."""
    mean = x.float().mean((2, 3))
    strong = mean > 0.6 * mean.amax(1, keepdim=True)
    return torch.where(strong[:, 0] & strong[:, 1], 3, strong.int().argmax(1))


def test_a_model_of_colour_follows_colour_alone():
    x, y = coloured()
    test = swap_test(image_views(), x.__getitem__, y, np.arange(len(y)), y, by_colour)
    first, *others = test.reliances
    assert (first.name, first.p, first.flips_same_class) == ("colour", 0.001, 0) and first.follows > 95
    assert first.chance == pytest.approx(100 / 3, abs=3)
    assert all(each.excess.high < 5 for each in others)
    told = f"The model follows the colour cast in {first.follows:.0f}% of swaps, chance {first.chance:.0f}%."
    assert verdict(test, HEALTHY) == (BIASED, [told])
    assert test.answers["colour"].shape == test.pairs.rows.shape


def test_a_model_of_content_follows_nothing():
    """It sees how much brighter the right half is, whatever the colour."""
    x, y = coloured(1200)

    def by_shape(rows: torch.Tensor, pictures: torch.Tensor) -> torch.Tensor:
        value = pictures.float().amax(1)
        ratio = value[:, 4:12, 9:12].mean((1, 2)) / value[:, 4:12, 4:7].mean((1, 2)).clamp_min(1)
        return ((ratio - 2) * 3).round().clamp(0, 3).long()

    said = by_shape(torch.arange(len(y)), x).numpy()
    assert (said == y).all()
    views = [view for view in image_views() if view.name in {"colour", "frame"}]
    test = swap_test(views, x.__getitem__, y, np.arange(len(y)), said, by_shape, limit=200)
    word, reasons = verdict(test, HEALTHY)
    assert word == NO_EVIDENCE and "Tested: " in reasons[2], reasons
    assert all(each.p > 0.05 for each in test.reliances) and 0 < test.reliances[0].detectable < 5


def test_a_view_that_cannot_be_computed_is_listed():
    y = labels(60)
    x = torch.from_numpy(y * 50).to(torch.uint8)[:, None, None, None].expand(-1, 3, 1, 1)
    test = swap_test(image_views(), x.__getitem__, y, np.arange(60), y, lambda rows, x: torch.from_numpy(y)[rows])
    assert [each.name for each in test.reliances] == ["colour"]
    assert {each["name"] for each in test.untested} == {view.name for view in image_views()} - {"colour"}
    assert "at least 8 pixels" in test.untested[0]["reason"]


@pytest.mark.parametrize("screened", [0, 64])
def test_a_tag_of_one_class_is_found_in_its_corner(screened):
    """Class 2 of four has a tag; a model that goes by it follows no other class into anything."""
    y = labels(800, 4)
    x = torch.full((800, 3, 16, 16), 40, dtype=torch.uint8)
    x[..., 6:10, 6:10] += (20 * torch.from_numpy(y)).to(torch.uint8)[:, None, None, None]
    x[y == 2, :, :3, 13:] = 250
    asked = []

    def by_tag(rows: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
        asked.append(len(rows))
        shape = ((images[:, 0, 7, 7].float() - 40) / 20).round().long()
        return torch.where(images[:, 0, 1, 15] > 200, 2, torch.where(shape == 2, 1, shape))

    views = [view for view in image_views() if view.local]
    names = ("ant", "bee", "cat", "dog")
    test = swap_test(views, x.__getitem__, y, np.arange(800), y, by_tag, screened=screened, names=names)
    found = {each.name: each for each in test.reliances}
    corner = found["top-right"]
    assert corner.strongest.name == "cat" and corner.strongest.excess.low > 50 and corner.strongest.p <= 0.05
    assert corner.by_class["cat"] > 50 and all(abs(corner.by_class[name]) < 40 for name in ("ant", "dog"))
    assert not corner.screened and found["bottom-left"].screened == bool(screened) and corner.p <= 0.05
    word, reasons = verdict(test, HEALTHY)
    assert word == BIASED and "top right corner" in " ".join(reasons)
    if screened:
        calm = found["bottom-left"]
        assert calm.rows == screened and calm.by_class["cat"] == 0 and "bottom-left" not in test.answers
        of_so_many = np.random.default_rng(0).binomial(screened, calm.detectable / 100, 4000)
        assert (of_so_many >= FOLLOWED).mean() == pytest.approx(0.8, abs=0.03)


def test_too_little_for_a_test():
    y = np.zeros(20, np.int64)
    with pytest.raises(Problem, match="1 classes of two samples"):
        draw_pairs(y, y == 0, 10, 0)
    with pytest.raises(Problem, match="0 samples that the model gets right"):
        draw_pairs(labels(20), np.zeros(20, bool), 10, 0)


def test_false_alarms_keep_their_rate():
    """Answers that flip at random, to any class: p is below .05 in about a twentieth of draws, largest over views."""
    alarms, view = 0, image_view("a", "a", True, lambda x, donors: x + 1)
    for seed in range(80):
        rng, y = np.random.default_rng(seed), labels(150, seed=seed)

        def answer(rows: torch.Tensor, x: torch.Tensor, rng=rng, y=y) -> np.ndarray:
            return np.where(rng.random(len(rows)) < 0.4, rng.integers(0, 3, len(rows)), y[rows.numpy()])

        x = torch.zeros(150, 3, 1, 1, dtype=torch.uint8)
        views = [view, replace(view, name="b"), replace(view, name="c")]
        test = swap_test(views, x.__getitem__, y, np.arange(150), y, answer, seed, limit=50)
        alarms += min(each.p for each in test.reliances) <= 0.05
    assert alarms <= 10  # 4 expected; more than 10 has probability below 0.2%


# --- the rules ------------------------------------------------------------------------------------------------------


def reliance(low: float, high: float, **changes) -> Reliance:
    value = (low + high) / 2
    start = Reliance(
        "colour", "colour cast", True, 1000, value + 6, 6, Estimate(value, low, high), 0.001, 20, 1, 100, 1
    )
    return replace(start, **changes)


def a_test(*reliances: Reliance, eligible: int = 200, units: int = 200) -> SwapTest:
    return SwapTest(reliances, (), eligible, units, draw_pairs(labels(), labels() >= 0, 1, 0), {})


CALM = reliance(-0.3, 0.8, p=0.6, flips=1.0, flips_same_class=0.8, name="frame", title="frame")


WORDS = reliance(20, 28, nuisance=False, name="words", words=("dull", "fine"))
IN_ONE_CLASS = reliance(1, 4, strongest=InClass("cat", Estimate(30, 20, 40), 0.01))
HIDING = Health(0.9, 100, hidden=["A network would follow the frame."])
UNSURE = InClass("cat", Estimate(30, 20, 40), 0.06)


@pytest.mark.parametrize(
    ("test", "health", "word", "sentence"),
    [
        (a_test(reliance(20, 28), CALM), HEALTHY, BIASED, "follows the colour cast in 30% of swaps, chance 6%"),
        (a_test(reliance(5.0, 9), CALM), HEALTHY, BIASED, "colour cast"),
        (a_test(reliance(4.9, 9), CALM), HEALTHY, CANNOT_TELL, "too uncertain"),
        (a_test(reliance(20, 28, p=0.06), CALM), HEALTHY, CANNOT_TELL, "too uncertain"),
        (a_test(reliance(20, 28, nuisance=False), CALM), HEALTHY, CANNOT_TELL, "Does that matter for the task? If so"),
        (a_test(WORDS, CALM), HEALTHY, CANNOT_TELL, "Do these words matter: dull, fine? If so, say --matters words."),
        (a_test(replace(WORDS, declared=True), CALM), HEALTHY, NO_EVIDENCE, "the least certain is the frame"),
        (a_test(replace(WORDS, excess=CALM.excess), CALM), HEALTHY, NO_EVIDENCE, "the least certain is the frame"),
        (a_test(IN_ONE_CLASS, CALM), HEALTHY, BIASED, "and that of 'cat' by 30.0 points [20.0, 40.0] beyond chance"),
        (a_test(replace(IN_ONE_CLASS, strongest=UNSURE), CALM), HEALTHY, NO_EVIDENCE, "follows none"),
        (a_test(reliance(4, 28, screened=True), CALM), HEALTHY, NO_EVIDENCE, "Tried on 1000 swaps each"),
        (a_test(CALM), HIDING, CANNOT_TELL, "would follow the frame"),
        (a_test(CALM), Health(0.9, 100, degenerate=True), CANNOT_TELL, "biased model is degenerate"),
        (a_test(reliance(20, 28, flips=40, flips_same_class=21), CALM), HEALTHY, CANNOT_TELL, "even within a class"),
        (a_test(CALM), HEALTHY, NO_EVIDENCE, "follows none"),
        (a_test(CALM, eligible=99), HEALTHY, CANNOT_TELL, "gets 99 samples of a class right"),
        (a_test(CALM, units=49), HEALTHY, CANNOT_TELL, "only 49 separate units"),
        (a_test(reliance(20, 28), units=49), HEALTHY, CANNOT_TELL, "only 49 separate units"),
        (a_test(reliance(20, 28), units=49), HEALTHY, CANNOT_TELL, "chance 6%. So far that is a hint, not a finding."),
        (a_test(reliance(20, 28)), Health(0.05, 100), CANNOT_TELL, "close to guessing"),
        (a_test(CALM), Health(0.9, 19), CANNOT_TELL, "misclassifies only 19 samples"),
        (a_test(CALM), Health(0.9, 0), CANNOT_TELL, "misclassifies no samples"),
        (a_test(reliance(20, 28)), Health(0.9, 19), BIASED, "colour cast"),
        (a_test(CALM), Health(0.9, 100, recoverable=True), CANNOT_TELL, "no property that was tested explains"),
        (a_test(CALM), Health(0.9, 100, empty=["site 'A' never goes with label 'ill'"]), CANNOT_TELL, "site 'A'"),
        (a_test(replace(CALM, nuisance=False)), HEALTHY, CANNOT_TELL, "No property could be swapped"),
        (a_test(), HEALTHY, CANNOT_TELL, "No property could be swapped"),
    ],
)
def test_verdict(test, health, word, sentence):
    found, reasons = verdict(test, health)
    assert found == word and any(sentence in reason for reason in reasons), reasons


def test_a_model_is_asked_only_about_inputs_that_a_swap_changed() -> None:
    y = labels(120)
    x = torch.arange(120, dtype=torch.uint8)[:, None, None, None].expand(-1, 3, 2, 2)
    view = image_view("odd", "odd", True, lambda x, donors: torch.where(x % 2 == 1, donors, x))
    seen: list[int] = []

    def answer(rows: torch.Tensor, changed: torch.Tensor) -> np.ndarray:
        assert len(rows) == len(changed)
        seen.extend(rows.tolist())
        return (y[rows.numpy()] + 1) % 3

    test = swap_test([view], x.__getitem__, y, np.arange(120), y, answer)
    assert seen and all(row % 2 == 1 for row in seen)
    answers = test.answers["odd"]
    assert (answers == np.where(test.pairs.rows % 2 == 1, (y[test.pairs.rows] + 1) % 3, y[test.pairs.rows])).all()


def test_what_is_followed_a_little_is_not_called_followed_by_nobody() -> None:
    slight = reliance(2.0, 4.0, flips=5.0, flips_same_class=0.5)
    found, reasons = verdict(a_test(slight, CALM), HEALTHY)
    assert found == NO_EVIDENCE
    assert "none of the properties that were swapped by 5 points or more" in reasons[0]
    assert reasons[1] == "It follows the colour cast a little: 3.0 points [2.0, 4.0] beyond chance."
    _, calm = verdict(a_test(CALM), HEALTHY)
    assert "by 5 points or more" not in calm[0] and not any("a little" in each for each in calm)
