"""Kinds checked on planted rows, a model chosen without bias labels, what it costs, and shares as intervals."""

import re
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from debiaser.auditing.candidates import COUNTERFACTUAL, VANILLA, Candidate, Evaluation
from debiaser.auditing.crossval import OutOfFold
from debiaser.auditing.diagnosis import LEAST, Controls, Diagnosis, Planted, called, check_controls, without_kinds
from debiaser.auditing.estimates import Estimate
from debiaser.auditing.findings import LOOKS, conflicting_share, looks, mislabelled_share
from debiaser.auditing.selection import NEVER, PlantedAnswers, break_even, choose_model, price, report_evaluation
from debiaser.auditing.views import image_views

PGD = "PGD, 75% of draws by score"


# --- kinds and their controls -----------------------------------------------------------------------------------------


def peaked(answer: np.ndarray, classes: int = 4, sure: float = 0.94) -> np.ndarray:
    """(n, k) probabilities of a model that is sure of these answers."""
    probability = np.full((len(answer), classes), (1 - sure) / (classes - 1))
    probability[np.arange(len(answer)), answer] = sure
    return probability


def controls_of(judge_sees: float, n: int = 200) -> Controls:
    """Controls where the judge names the true label of a planted conflict in this share of rows, else the donor's."""
    stream = np.random.default_rng(0)
    y, donor = np.arange(n) % 4, (np.arange(n) + 1) % 4
    sees = stream.random(n) < judge_sees
    biased = OutOfFold(peaked(y)[None], np.zeros((1, n)), ())
    judge = OutOfFold(np.stack([peaked(y)] * 2), np.zeros((2, n)), ())
    said = peaked(np.where(sees, y, donor))
    planted = Planted(image_views()[0], np.arange(n), peaked(donor), np.stack([said] * 2))
    trainer: Any = SimpleNamespace(y=y, seed=0, material=SimpleNamespace(classes=tuple("abcd")))
    diagnosis = Diagnosis(np.zeros(n, bool), np.zeros((2, n)), np.full(n, "aligned"), judge, np.array([0.5, 0.5]))
    return check_controls(planted, trainer, biased, diagnosis, np.arange(n))


def test_planted_rows_are_called_by_the_same_rule_as_all_others() -> None:
    controls = controls_of(0.9)
    assert controls.found.value == 100 and controls.flips_called.value == 100
    assert 4 < controls.conflicts_called.value < 16
    assert controls.doubts == "" and "made on purpose" in controls.words


def test_kinds_abstain_where_planted_conflicts_are_called_mislabelled() -> None:
    controls = controls_of(0.6)
    assert controls.conflicts_called.value > 20 and "no kind is asserted" in controls.doubts
    diagnosis = Diagnosis(
        np.array([True, True, False]), np.array([[0.9, 0.1, 0.0]]), np.array(["mislabelled", "conflicting", "aligned"])
    )
    silent = without_kinds(diagnosis, controls.doubts)
    assert list(silent.kind) == ["unsure", "unsure", "aligned"] and np.array_equal(silent.wrong, diagnosis.wrong)
    assert (silent.trust == 1).all()


def test_too_few_planted_rows_that_fool_the_easy_model_prove_nothing() -> None:
    assert "19 rows" in replace(controls_of(0.9, 200), conflicts=19).doubts


def test_a_kind_needs_all_seeds_also_of_planted_rows() -> None:
    y = np.array([0])
    doubts, trusts = peaked(np.array([1])), peaked(y)
    both = np.stack([doubts, doubts]), np.stack([doubts, trusts])
    assert [called(doubts, each, y, np.array([0.5, 0.5])).tolist() for each in both] == [[True], [False]]


def test_likely_mislabelled_rows_weigh_less_and_never_nothing() -> None:
    judge = OutOfFold(np.ones((1, 3, 2)) / 2, np.zeros((1, 3)), ())
    diagnosis = Diagnosis(np.array([True, True, False]), np.array([[1.0, 0.3, 0.0]]), np.array(["", "", ""]), judge)
    assert diagnosis.trust == pytest.approx([LEAST, 0.7, 1.0])


def test_planted_rows_that_fool_nobody_are_told_in_numbers() -> None:
    nobody = Controls("colour", "colour", 90, Estimate(0, 0, 0), Estimate(float("nan")), 90, Estimate(99, 98, 100))
    nothing = Controls("colour", "colour", 0, *(Estimate(float("nan")),) * 2, 0, Estimate(float("nan")))
    assert "misses 0.0%" in nobody.words and "nan" not in nobody.words + nothing.words + nobody.doubts + nothing.doubts


# --- selection --------------------------------------------------------------------------------------------------------


def trial_of(right: dict[str, np.ndarray], misclassified: np.ndarray | None = None, seeds: int = 3) -> Evaluation:
    """A trial on two classes in which each model is right where `right` (m,) says so, in every seed."""
    m = len(next(iter(right.values())))
    labels = np.arange(m) % 2
    candidates = {
        name: Candidate(np.tile(np.where(each, labels, 1 - labels), (seeds, 1)), np.zeros((m, 2)), ())
        for name, each in right.items()
    }
    return Evaluation(
        np.arange(m),
        labels,
        np.arange(m),
        np.zeros(m, bool) if misclassified is None else misclassified,
        candidates,
        1,
        seeds,
    )


def share_right(share: float, m: int = 400) -> np.ndarray:
    return np.random.default_rng(int(1000 * share)).random(m) < share


def planted_of(right: dict[str, float], m: int = 400) -> PlantedAnswers:
    return PlantedAnswers(
        "colour cast", np.arange(m), {name: np.tile(share_right(each), (3, 1)) for name, each in right.items()}
    )


def test_planted_accuracy_decides_where_the_worst_class_cannot() -> None:
    same = trial_of({VANILLA: share_right(0.95), PGD: share_right(0.949)})
    choice = choose_model(same, planted_of({VANILLA: 0.3, PGD: 0.9}), 2.0)
    assert choice.chosen == PGD and "colour cast of another class" in choice.sentence
    rows = {row["name"]: row for row in choice.candidates}
    assert rows[PGD]["criterion"] == pytest.approx((rows[PGD]["worst_class"] + rows[PGD]["planted"]) / 2)


def test_what_is_no_better_than_its_error_stays_vanilla() -> None:
    close = trial_of({VANILLA: share_right(0.9), PGD: share_right(0.905)})
    choice = choose_model(close, planted_of({VANILLA: 0.9, PGD: 0.905}), 2.0)
    assert (choice.chosen, choice.rival) == (VANILLA, PGD)


def test_a_model_that_costs_too_much_is_out_however_good_elsewhere() -> None:
    costly = trial_of({VANILLA: share_right(0.95), PGD: share_right(0.9)})
    planted = planted_of({VANILLA: 0.1, PGD: 0.99})
    assert choose_model(costly, planted, 2.0).chosen == VANILLA
    told = choose_model(costly, planted, 2.0)
    assert "costing more than 2 points" in told.sentence and (told.at_any_cost, told.rival) == (PGD, PGD)
    allowing = re.search(r"--max-cost (\d+) allows it", told.sentence)
    assert allowing and choose_model(costly, planted, float(allowing[1])).chosen == PGD
    assert "--max-cost" not in choose_model(costly, planted, 20.0).sentence


def test_the_rival_is_what_the_veto_kept_out() -> None:
    """Of two that are too costly, the simpler one within an error of the best, not the best."""
    models = {VANILLA: 0.99, COUNTERFACTUAL: 0.8, PGD: 0.8}
    evaluation = trial_of({name: share_right(share) for name, share in models.items()})
    choice = choose_model(evaluation, planted_of({VANILLA: 0.1, COUNTERFACTUAL: 0.8, PGD: 0.801}), 2.0)
    assert (choice.chosen, choice.rival) == (VANILLA, COUNTERFACTUAL) and COUNTERFACTUAL in choice.sentence


def test_without_a_named_property_the_worst_class_decides() -> None:
    even = np.arange(400) % 2 == 0
    vanilla, better = even | share_right(0.4), even | share_right(0.9)
    choice = choose_model(trial_of({VANILLA: vanilla, PGD: better}), None, 2.0)
    assert choice.chosen == PGD and "no property is named" in choice.sentence
    assert choice.candidates[0]["worst_class"] == pytest.approx(100 * vanilla[~even].mean())


def test_a_model_that_the_veto_did_not_keep_out_is_not_offered_for_a_higher_cost() -> None:
    """The best is too costly, and so uncertain that vanilla is within its error; the best that is left is not."""
    row, everywhere = np.arange(400), np.ones(400, bool)
    evaluation = trial_of({VANILLA: everywhere, COUNTERFACTUAL: everywhere, PGD: (row % 2 == 0) | (row >= 24)})
    before, steady = row % 5 == 0, row % 25 < 5
    moved = {VANILLA: [before] * 3, COUNTERFACTUAL: [before | steady] * 3, PGD: [everywhere, before, before]}
    planted = PlantedAnswers("colour cast", row, {name: np.stack(each) for name, each in moved.items()})
    choice = choose_model(evaluation, planted, 2.0)
    assert (choice.chosen, choice.at_any_cost) == (COUNTERFACTUAL, VANILLA) and "Out, for costing" in choice.sentence
    assert "--max-cost" not in choice.sentence


# --- the price --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("cost", "gain", "share"), [(1, 9, 10), (0, 5, 0), (-1, 5, 0), (2, 0, NEVER), (2, -3, NEVER)])
def test_break_even(cost: float, gain: float, share: float) -> None:
    assert break_even(cost, gain) == pytest.approx(share)


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ((0.8, 0.8), (0.6, 0.9), "Better only if fewer than 33.3% of the cases go against the rule (-20.0 points on"),
        ((0.5, 0.9), (0.5, 0.8), "No share of cases"),
        ((0.5, 0.9), (0.5, 1.0), "Better only if fewer than 100.0%"),
    ],
)
def test_what_gains_on_rows_that_follow_the_rule_is_not_called_useless(
    before: tuple[float, float], after: tuple[float, float], words: str
) -> None:
    """Accuracies on rows against the rule, and on rows that follow it."""
    misclassified = np.arange(400) < 200

    def right(shares: tuple[float, float]) -> np.ndarray:
        return np.concatenate([np.arange(200) < 200 * share for share in shares])

    found = price(trial_of({VANILLA: right(before), PGD: right(after)}, misclassified), PGD)
    assert found is not None and found["sentence"].startswith(words), found


def test_a_handful_of_held_out_units_proves_nothing() -> None:
    """One hospital in which it is better is no interval, however many pictures it has."""
    worse, better = np.arange(400) % 4 == 0, np.ones(400, bool)
    evaluation = replace(
        trial_of({VANILLA: worse, PGD: better}, np.arange(400) % 4 == 1), unit=np.arange(400) % 5, chosen=PGD
    )
    own = SimpleNamespace(classes=("a", "b"), group=None)
    told = report_evaluation(evaluation, PGD, own, 2.0)["repair"]  # type: ignore[arg-type]
    assert not told["helped"] and told["test"]["interval"] == [None, None] and told["test"]["difference"] == 75
    assert "+75.0 points" in told["sentence"] and "5 held-out units are too few" in told["sentence"]
    paid = price(evaluation, PGD)
    assert paid is not None and paid["gain"]["low"] is None and "cannot tell" in paid["sentence"]
    assert report_evaluation(replace(evaluation, unit=np.arange(400) % 6), PGD, own, 2.0)["helped"]  # type: ignore[arg-type]


def test_the_price_is_what_the_accuracies_say() -> None:
    """At the break-even share both models are as good; the interval holds it and the sentence names it."""
    misclassified = np.arange(1000) % 5 == 0
    stream = np.random.default_rng(0)
    before = np.where(misclassified, stream.random(1000) < 0.4, stream.random(1000) < 0.98)
    after = np.where(misclassified, stream.random(1000) < 0.8, stream.random(1000) < 0.95)
    found = price(trial_of({VANILLA: before, PGD: after}, misclassified), PGD)
    assert found is not None
    share = found["break_even"]["value"] / 100

    def expected(side: dict[str, float]) -> float:
        return (1 - share) * side["follow"] + share * side["against"]

    assert expected(found["before"]) == pytest.approx(expected(found["after"]))
    assert found["gain"]["value"] == pytest.approx(100 * (after[misclassified].mean() - before[misclassified].mean()))
    assert found["break_even"]["low"] < 100 * share < found["break_even"]["high"]
    assert f"more than {100 * share:.1f}% [" in found["sentence"]
    assert price(trial_of({VANILLA: before, PGD: after}), PGD) is None  # no row goes against the rule


def test_rows_of_one_unit_are_one_piece_of_evidence() -> None:
    misclassified = np.arange(400) % 2 == 0
    stream = np.random.default_rng(1)
    before, after = (np.repeat(stream.random(40) < share, 10) for share in (0.9, 0.5))
    alone = trial_of({VANILLA: before, PGD: after}, misclassified)
    together = replace(alone, unit=np.repeat(np.arange(40), 10))

    def width(evaluation: Evaluation) -> float:
        cost = price(evaluation, PGD)["cost"]  # type: ignore[index]
        return float(cost["high"] - cost["low"])

    assert width(together) > 1.5 * width(alone)


# --- shares -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Made:
    """As much of an examination as shares need."""

    pool: np.ndarray
    trainer: Any
    biased: Any
    diagnosis: Diagnosis
    controls: Any
    confirmed: np.ndarray
    subject: Any


def made(
    misclassified: int = 100, n: int = 1000, controls: Any = None, why: str = "nobody knows", marks: Any = ()
) -> Any:
    wrong = np.zeros((1, n))
    wrong[:, :misclassified] = 0.5
    kind = np.where(np.arange(n) < misclassified, "unsure", "aligned").astype(object)
    confirmed = np.array([row for row, _ in marks], np.int64)
    for row, mark in marks:
        kind[row] = mark
    answers = np.where(np.arange(n) < misclassified, 1, 0)
    diagnosis = Diagnosis(np.arange(n) < misclassified, wrong, kind.astype(str), abstains=why)
    trainer, biased = SimpleNamespace(y=np.zeros(n, np.int64), seed=0), SimpleNamespace(answer=answers)
    subject = SimpleNamespace(own=SimpleNamespace(unit=np.arange(n)))
    return Made(np.arange(n), trainer, biased, diagnosis, controls, confirmed, subject)


def test_without_controls_and_looks_the_share_is_anywhere_up_to_all_that_is_missed() -> None:
    share = conflicting_share(made())
    assert (share.low, share.high) == (0, pytest.approx(0.1)) and share.plain["value"] is None
    assert mislabelled_share(made()).low == 0


def test_planted_rows_bound_the_share_above() -> None:
    """If half of the planted rows are missed, twice as many rows may go against the rule as are missed."""
    controls = Controls("colour", "colour", 600, Estimate(50, 50, 50), Estimate(5, 5, 5), 600, Estimate(99, 98, 100))
    assert conflicting_share(made(controls=controls)).high == pytest.approx(0.2)


def test_looks_bound_the_share_below_once_all_are_marked() -> None:
    drawn = looks(made())
    assert len(drawn) == LOOKS and (drawn < 100).all() and len(np.unique(drawn)) == LOOKS
    some = conflicting_share(made(marks=[(row, "conflicting") for row in drawn[:10]]))
    assert some.low == pytest.approx(0.01) and "10 of the 60" in some.method
    every = conflicting_share(
        made(marks=[(row, "conflicting" if n < 45 else "mislabelled") for n, row in enumerate(drawn)])
    )
    assert 0.06 < every.low < 0.075 and every.low <= every.high


def test_planted_rows_that_are_not_missed_bound_nothing_above() -> None:
    """Rows that go against the rule and are got right all the same are not among those that are missed."""
    controls = Controls("colour", "colour", 600, Estimate(0, 0, 0), Estimate(float("nan")), 600, Estimate(99, 98, 100))
    assert conflicting_share(made(controls=controls)).high == 1


def test_looks_at_one_unit_are_one_look() -> None:
    marks = [(row, "conflicting") for row in looks(made())]
    alone, together = made(marks=marks), made(marks=marks)
    together.subject.own.unit[:] = np.arange(1000) // 50  # 100 missed rows of two units
    assert 0.09 < conflicting_share(alone).low < 0.1
    assert conflicting_share(together).low == pytest.approx(0.06)  # no more than was seen
