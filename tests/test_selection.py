"""Kinds checked on planted samples, a model chosen without bias labels, what it costs, and shares as intervals."""

import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from debiaser.auditing.candidates import VANILLA, Candidate, Evaluation
from debiaser.auditing.comparison import (
    NEVER,
    PlantedAnswers,
    break_even,
    cell_difference,
    pays,
    price,
    report_evaluation,
)
from debiaser.auditing.crossval import OutOfFold
from debiaser.auditing.diagnosis import LEAST, Controls, Diagnosis, called, check_controls, without_kinds
from debiaser.auditing.estimates import Estimate, binomial_interval
from debiaser.auditing.findings import conflicting_share, mislabelled_share
from debiaser.auditing.groups import Groups
from debiaser.auditing.marks import Marks, random_sequence
from debiaser.auditing.selection import choose_model, main_property, ruled_out
from debiaser.auditing.swap_test import SwapTest
from debiaser.auditing.views import image_views

PGD = "PGD, 75% of draws by score"
NAN = Estimate(float("nan"))


# --- kinds and their controls -----------------------------------------------------------------------------------------


def peaked(answer: np.ndarray, classes: int = 4, sure: float = 0.94) -> np.ndarray:
    """(n, k) probabilities of a model that is sure of these answers."""
    probability = np.full((len(answer), classes), (1 - sure) / (classes - 1))
    probability[np.arange(len(answer)), answer] = sure
    return probability


def controls_of(judge_sees: float, n: int = 200) -> Controls:
    """Controls where the judge names the true label of a planted conflict in this share, else the donor's."""
    y, donor = np.arange(n) % 4, (np.arange(n) + 1) % 4
    sees = np.random.default_rng(0).random(n) < judge_sees
    biased = OutOfFold(peaked(y)[None], np.zeros((1, n)), ())
    judge = OutOfFold(np.stack([peaked(y)] * 2), np.zeros((2, n)), ())
    planted = peaked(donor), np.stack([peaked(np.where(sees, y, donor))] * 2)
    trainer: Any = SimpleNamespace(y=y, seed=0, material=SimpleNamespace(classes=tuple("abcd")))
    diagnosis = Diagnosis(np.zeros(n, bool), np.zeros((2, n)), np.full(n, "aligned"), judge, np.array([0.5, 0.5]))
    return check_controls(image_views()[0], np.arange(n), *planted, trainer, biased, diagnosis, np.arange(n))


def test_planted_samples_are_called_by_the_same_rule_as_all_others() -> None:
    controls = controls_of(0.9)
    assert controls.found.value == 100 and controls.flips_called.value == 100
    assert 4 < controls.conflicts_called.value < 16
    assert controls.doubts == "" and "planted samples" in controls.words
    assert "19 samples" in replace(controls, conflicts=19).doubts, "too few that fool the biased model prove nothing"
    y = np.array([0])
    doubts, trusts = peaked(np.array([1])), peaked(y)
    both = np.stack([doubts, doubts]), np.stack([doubts, trusts])  # a kind needs all seeds
    assert [called(doubts, each, y, np.array([0.5, 0.5])).tolist() for each in both] == [[True], [False]]
    nobody = Controls("colour", "colour", 90, Estimate(0, 0, 0), NAN, 90, Estimate(99, 98, 100))
    nothing = Controls("colour", "colour", 0, NAN, NAN, 0, NAN)
    assert "misclassifies 0.0%" in nobody.words
    assert "nan" not in nobody.words + nothing.words + nobody.doubts + nothing.doubts


def test_kinds_abstain_where_planted_conflicts_are_called_mislabelled() -> None:
    controls = controls_of(0.6)
    assert controls.conflicts_called.value > 20 and "no kind is asserted" in controls.doubts
    kind = np.array(["mislabelled", "conflicting", "aligned"])
    judge = OutOfFold(np.ones((1, 3, 2)), np.zeros((1, 3)), ())
    diagnosis = Diagnosis(np.array([True, True, False]), np.array([[1.0, 0.3, 0.0]]), kind, judge)
    assert diagnosis.trust == pytest.approx([LEAST, 0.7, 1.0]), "likely mislabelled ones weigh less, never nothing"
    silent = without_kinds(diagnosis, controls.doubts)
    assert list(silent.kind) == ["unsure", "unsure", "aligned"] and np.array_equal(silent.wrong, diagnosis.wrong)
    assert (silent.trust == 1).all()


# --- selection --------------------------------------------------------------------------------------------------------


def trial_of(right: dict[str, np.ndarray], misclassified: Any = None, labels: Any = None, seeds: int = 3) -> Evaluation:
    """A trial on two classes in which each model is right where `right` (m,) says so, in every seed."""
    m = len(next(iter(right.values())))
    row, labels = np.arange(m), np.arange(m) % 2 if labels is None else labels
    candidates = {
        name: Candidate(np.tile(np.where(each, labels, 1 - labels), (seeds, 1)), np.zeros((m, 2)), ())
        for name, each in right.items()
    }
    against = np.zeros(m, bool) if misclassified is None else misclassified
    return Evaluation(row, labels, row, against, candidates, 1, seeds)


def test_cells_that_a_bootstrap_sample_misses_are_left_out_of_its_mean() -> None:
    """Cells of two samples are often missing; counted as right for both models, they had drawn the interval to 0."""
    trial = trial_of({VANILLA: np.zeros(60, bool), "other": np.ones(60, bool)})
    cells = [np.arange(60) // 2 == each for each in range(30)]
    found = cell_difference(trial, "other", cells)
    assert found["difference"] == 100 and found["interval"] == [100, 100] == found["worst_interval"]


def share_right(share: float, m: int = 400) -> np.ndarray:
    return np.random.default_rng(int(1000 * share)).random(m) < share


def chosen_of(right: dict[str, float], planted: dict[str, float], max_cost: float | None = None) -> Any:
    """What is chosen of models that are right in these shares of samples, and of planted ones."""
    trial = trial_of({name: share_right(each) for name, each in right.items()})
    return choose_model(trial, None, planted_of(planted), nothing, max_cost)


def planted_of(right: dict[str, float]) -> PlantedAnswers:
    """Samples with another colour cast, of which models are right in these shares."""
    moved = {name: np.tile(share_right(each), (3, 1)) for name, each in right.items()}
    return PlantedAnswers("colour cast", np.arange(400), moved)


def nothing(_: str) -> np.ndarray:
    return np.array([0.0, 0.1, -0.1])


def test_planted_accuracy_decides_where_the_worst_class_cannot() -> None:
    choice = chosen_of({VANILLA: 0.95, PGD: 0.949}, {VANILLA: 0.3, PGD: 0.9})
    assert choice.chosen == PGD and "colour cast of another class" in choice.sentence
    rows = {row["name"]: row for row in choice.candidates}
    assert rows[PGD]["criterion"] == pytest.approx((rows[PGD]["worst_class"] + rows[PGD]["planted"]) / 2)
    close = chosen_of({VANILLA: 0.9, PGD: 0.905}, {VANILLA: 0.9, PGD: 0.905})
    assert (close.chosen, close.rival) == (VANILLA, PGD), "what is no better than its error stays vanilla"


def test_what_giving_the_shortcut_up_costs_on_biased_data_is_no_veto_unless_a_person_says_so() -> None:
    costly = {VANILLA: 0.95, PGD: 0.9}, {VANILLA: 0.1, PGD: 0.99}
    assert chosen_of(*costly).chosen == PGD
    told = chosen_of(*costly, 2.0)
    assert (told.chosen, told.at_any_cost, told.rival) == (VANILLA, PGD, PGD)
    allowing = re.search(rf"--max-cost (\d+) allows {re.escape(PGD)}", told.sentence)
    assert allowing and chosen_of(*costly, float(allowing[1])).chosen == PGD
    # One that gains less than it costs even where every second case goes against the shortcut is out.
    lost = chosen_of({VANILLA: 0.99, PGD: 0.6}, {VANILLA: 0.5, PGD: 0.8})
    assert lost.chosen == VANILLA and "better only where nearly all cases" in lost.sentence


def test_groups_decide_by_the_worst_of_them() -> None:
    """Vanilla is better on average, the other in the worst group; a group of a handful decides nothing."""
    group = np.repeat([0, 1, 2], [300, 94, 6])
    vanilla, fair = group == 0, (share_right(0.85) & (group < 2)) | (group == 0) & share_right(0.9)
    choice = choose_model(trial_of({VANILLA: vanilla, PGD: fair}), group, None, nothing, None)
    assert choice.chosen == PGD and "worst of 2 groups" in choice.sentence
    rows = {row["name"]: row["criterion"] for row in choice.candidates}
    assert rows[VANILLA] == 0 and rows[PGD] == pytest.approx(100 * fair[group == 1].mean())


def test_a_handful_decides_where_it_is_all_that_goes_against_the_shortcut() -> None:
    labels = np.arange(400) % 2
    group = 2 * labels + np.where(np.arange(400) < 8, 1 - labels, labels)  # of each class four against it
    vanilla, fair = np.arange(400) >= 8, share_right(0.85)
    choice = choose_model(trial_of({VANILLA: vanilla, PGD: fair | (np.arange(400) < 8)}), group, None, nothing, None)
    assert choice.chosen == PGD and "worst of 4 groups" in choice.sentence


def test_groups_and_planted_samples_decide_together_and_planted_ones_rule_nothing_out() -> None:
    """Both candidates mend the group, one also what was planted; a third, which mends the group, would lose there."""
    group = np.repeat([0, 1], [300, 100])
    right = {VANILLA: group == 0, PGD: share_right(0.8), "cells": share_right(0.79), "AFR": share_right(0.82)}
    planted = planted_of({VANILLA: 0.6, PGD: 0.5, "cells": 0.9, "AFR": 0.4})
    choice = choose_model(trial_of(right), group, planted, nothing, None)
    assert choice.chosen == "cells" and "accuracy in the worst of 2 groups and on 400 samples given" in choice.sentence
    assert not any(row["vetoed"] for row in choice.candidates)


def test_a_property_that_is_followed_seldom_does_not_decide() -> None:
    view, pairs = SimpleNamespace(name="frame"), SimpleNamespace(rows=np.arange(2), donors=np.arange(2))
    for points, decides in ((9.0, False), (30.0, True)):
        reliance: Any = SimpleNamespace(name="frame", excess=Estimate(points))
        swaps = SwapTest((reliance,), (), 100, 100, pairs, {})  # type: ignore[arg-type]
        examined: Any = SimpleNamespace(named=view, swaps=swaps)
        assert main_property(examined) is (view if decides else None)


def test_a_gain_that_a_null_world_gives_too_is_none() -> None:
    misclassified = np.arange(400) % 4 < 2
    right = {VANILLA: ~misclassified & share_right(0.9), PGD: share_right(0.8)}
    trial = trial_of(right, misclassified)
    assert choose_model(trial, None, None, nothing, None).chosen == PGD
    gain = choose_model(trial, None, None, nothing, None).candidates
    same = gain[1]["criterion"] - gain[0]["criterion"]
    kept = choose_model(trial, None, None, lambda _: np.array([same, same + 1, same - 1]), None)
    assert kept.chosen == VANILLA and "in a null world" in kept.sentence


def test_a_gain_that_costs_more_than_it_brings_is_none() -> None:
    """Forty of four hundred samples are misclassified: lifting them by some points costs all others more."""
    misclassified = np.arange(400) % 10 < 2
    right = {VANILLA: ~misclassified & share_right(0.95), PGD: share_right(0.6)}
    trial = trial_of(right, misclassified)
    choice = choose_model(trial, None, None, nothing, None)
    rows = {row["name"]: row for row in choice.candidates}
    assert 3 < rows[PGD]["criterion"] - rows[VANILLA]["criterion"] < rows[VANILLA]["overall"] - rows[PGD]["overall"]
    assert choice.chosen == VANILLA


def test_a_model_below_chance_in_a_class_is_never_chosen() -> None:
    even = np.arange(400) % 2 == 0  # the first class
    misclassified = ~even & share_right(0.5)
    right = {VANILLA: even & share_right(0.6) | ~misclassified & ~even & share_right(0.7), PGD: ~even}
    choice = choose_model(trial_of(right, misclassified), None, None, nothing, None)
    assert choice.chosen == VANILLA and "below chance in a class" in choice.sentence


def test_what_is_ruled_out_is_told_shortly() -> None:
    below = dict.fromkeys((PGD, "cells", "AFR"), "below chance in a class")
    told = ruled_out({**below, "GroupDRO": "too few marks"})
    assert told == " Ruled out: 3 candidates (below chance in a class); GroupDRO (too few marks)."
    assert ruled_out({}) == ""


# --- the price --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("cost", "gain", "share"), [(1, 9, 10), (0, 5, 0), (-1, 5, 0), (2, 0, NEVER), (2, -3, NEVER)])
def test_break_even(cost: float, gain: float, share: float) -> None:
    assert break_even(cost, gain) == pytest.approx(share)


def test_an_interval_from_end_to_end_is_told_as_not_knowing() -> None:
    assert pays(Estimate(25.3, 0.0, 100.0), 2.1, 6.2) == (
        "Too little evidence to say at what share of cases against the shortcut it becomes better "
        "(+6.2 points on those, -2.1 on the others)."
    )
    assert pays(Estimate(25.3, 4.0, 60.0), 2.1, 6.2).startswith("Better if more than 25.3% [4.0, 60.0] of the cases")


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ((0.8, 0.8), (0.6, 0.9), "Better only if fewer than 33.3% of the cases go against the shortcut (-20.0 points"),
        ((0.5, 0.9), (0.5, 0.8), "No share of cases"),
        ((0.5, 0.9), (0.5, 1.0), "Better only if fewer than 100.0%"),
    ],
)
def test_what_gains_on_aligned_samples_is_not_called_useless(before: Any, after: Any, words: str) -> None:
    """Accuracies on samples against the shortcut, and on those that follow it."""
    right = [np.concatenate([np.arange(200) < 200 * share for share in shares]) for shares in (before, after)]
    found = price(trial_of(dict(zip((VANILLA, PGD), right, strict=True)), np.arange(400) < 200), PGD)
    assert found is not None and found["sentence"].startswith(words), found


def test_a_handful_of_held_out_units_proves_nothing() -> None:
    """One hospital in which it is better is no interval, however many images it has."""
    trial = trial_of({VANILLA: np.arange(400) % 4 == 0, PGD: np.ones(400, bool)}, np.arange(400) % 4 == 1)
    evaluation = replace(trial, unit=np.arange(400) % 5, chosen=PGD)
    own: Any = SimpleNamespace(classes=("a", "b"), group=None)
    told = report_evaluation(evaluation, PGD, own, None, None)["repair"]
    assert not told["helped"] and told["test"]["interval"] == [None, None] and told["test"]["difference"] == 75
    assert "+75.0 on all" in told["sentence"] and "5 held-out units are too few" in told["sentence"]
    paid = price(evaluation, PGD)
    assert paid is not None and paid["gain"]["low"] is None and "Too little evidence" in paid["sentence"]
    assert report_evaluation(replace(evaluation, unit=np.arange(400) % 6), PGD, own, None, None)["helped"]


def test_a_chosen_model_that_lifts_the_worst_group_is_kept_though_the_mean_falls() -> None:
    stream = np.random.default_rng(0)
    group = np.arange(400) % 4
    vanilla = stream.random(400) < np.array([0.98, 0.98, 0.98, 0.1])[group]
    lifts, harms = (stream.random(400) < np.array(each)[group] for each in ([0.6, 0.6, 0.6, 0.6], [0.5, 0.5, 0.5, 0.0]))
    labels = group // 2
    own: Any = SimpleNamespace(classes=("a", "b"), group=None, y=torch.from_numpy(labels))
    groups = Groups(group % 2, ("land", "water"), np.zeros(400, bool), "marks")
    for right, kept in ((lifts, True), (harms, False)):
        trial = replace(trial_of({VANILLA: vanilla, PGD: right}, group == 3, labels), chosen=PGD)
        found = report_evaluation(trial, PGD, own, groups, None)
        assert found["test"]["cells"]["interval"][1] < 0 and found["kept"] is kept


@pytest.mark.parametrize(("recovered", "chosen"), [(80.0, "GroupDRO"), (70.0, VANILLA), (None, VANILLA)])
def test_groupdro_is_ruled_out_where_marks_of_rarer_groups_are_not_recovered(
    recovered: float | None, chosen: str
) -> None:
    group, stream = np.arange(400) % 4, np.random.default_rng(0)
    vanilla = (group != 3) | (stream.random(400) < 0.2)
    right = {VANILLA: vanilla, "GroupDRO": stream.random(400) < 0.8}
    cells = [
        {"class": name, "value": value, "n": n, "found_again": share}
        for name in "ab"
        for value, n, share in (("land", 150, 20.0), ("water", 50, recovered))
    ]
    known = Groups(group % 2, ("land", "water"), np.zeros(400, bool), "marks", {"groups": cells})
    choice = choose_model(trial_of(right, labels=group // 2), group, None, None, None, known=known)
    assert choice.chosen == chosen and ("rarer groups" in choice.sentence) == (chosen == VANILLA)


@pytest.mark.parametrize("rare", [0, 6])
def test_held_out_samples_that_hardly_have_a_group_do_not_overrule_what_helps_it(rare: int) -> None:
    """Of the rare group, which the candidate lifts from 0 to 100%, six held-out samples, or none: no proof of harm."""
    stream, n = np.random.default_rng(0), 400
    group = np.where(np.arange(n) < rare, 3, np.arange(n) % 3)
    vanilla, lifts = (group != 3) & (stream.random(n) < 0.95), (group == 3) | (stream.random(n) < 0.7)
    trial = trial_of({VANILLA: vanilla, PGD: lifts}, group == 3)
    labels = trial.labels
    own: Any = SimpleNamespace(classes=("a", "b"), group=None, y=torch.from_numpy(np.append(labels, 0)))
    names, value = tuple("wxyz"), np.append(group, 3)
    groups = Groups(value, names, np.zeros(n + 1, bool), "marks")
    assert report_evaluation(replace(trial, chosen=PGD), PGD, own, groups, None)["kept"]


def test_marked_held_out_samples_are_told_by_their_marks() -> None:
    right = np.zeros(400, bool)
    right[:20] = True
    trial = trial_of({VANILLA: ~right, PGD: right}, np.arange(400) % 4 == 1)
    own: Any = SimpleNamespace(classes=("a", "b"), group=None, y=torch.from_numpy(trial.labels))
    known = np.zeros(400, bool)
    known[:10] = known[30] = True
    value = np.where(np.arange(400) == 30, 1, 0)
    groups = Groups(value, ("land", "water"), known, "marks")
    marked = report_evaluation(replace(trial, chosen=PGD), PGD, own, groups, None)["test"]["marked"]
    cells = len({(int(trial.labels[row]), int(value[row])) for row in np.flatnonzero(known)})
    assert marked == {"rows": 11, "before": pytest.approx(100 / cells), "after": pytest.approx(100 - 100 / cells)}


def test_the_price_is_what_the_accuracies_say() -> None:
    """At the break-even share both models are as good; the interval holds it and the sentence names it."""
    misclassified, stream = np.arange(1000) % 5 == 0, np.random.default_rng(0)
    before = np.where(misclassified, stream.random(1000) < 0.4, stream.random(1000) < 0.98)
    after = np.where(misclassified, stream.random(1000) < 0.8, stream.random(1000) < 0.95)
    found = price(trial_of({VANILLA: before, PGD: after}, misclassified), PGD)
    assert found is not None
    share = found["break_even"]["value"] / 100
    expected = [(1 - share) * found[side]["follow"] + share * found[side]["against"] for side in ("before", "after")]
    assert expected[0] == pytest.approx(expected[1])
    assert found["gain"]["value"] == pytest.approx(100 * (after[misclassified].mean() - before[misclassified].mean()))
    assert found["break_even"]["low"] < 100 * share < found["break_even"]["high"]
    assert f"more than {100 * share:.1f}% [" in found["sentence"]
    assert price(trial_of({VANILLA: before, PGD: after}), PGD) is None  # no sample goes against the shortcut


def test_samples_of_one_unit_are_one_piece_of_evidence() -> None:
    stream = np.random.default_rng(1)
    before, after = (np.repeat(stream.random(40) < share, 10) for share in (0.9, 0.5))
    alone = trial_of({VANILLA: before, PGD: after}, np.arange(400) % 2 == 0)
    costs = [price(each, PGD)["cost"] for each in (replace(alone, unit=np.repeat(np.arange(40), 10)), alone)]  # type: ignore[index]
    assert costs[0]["high"] - costs[0]["low"] > 1.5 * (costs[1]["high"] - costs[1]["low"])


# --- shares -----------------------------------------------------------------------------------------------------------


def made(controls: Any = None, marks: Any = ()) -> Any:
    """As much of an examination as shares need: of 1000 samples, the biased model misclassifies the first 100."""
    n, missed = 1000, np.arange(1000) < 100
    kind = np.where(missed, "unsure", "aligned").astype(object)
    for row, mark in marks:
        kind[row] = mark
    return SimpleNamespace(
        pool=np.arange(n),
        trainer=SimpleNamespace(y=np.zeros(n, np.int64), seed=0),
        biased=SimpleNamespace(answer=np.where(missed, 1, 0)),
        diagnosis=Diagnosis(missed, np.where(missed, 0.5, 0.0)[None], kind.astype(str), abstains="nobody knows"),
        controls=controls,
        confirmed=np.array([row for row, _ in marks], np.int64),
        marks=Marks(dict(marks)),
        subject=SimpleNamespace(own=SimpleNamespace(unit=np.arange(n))),
    )


@pytest.mark.parametrize(
    ("found", "called_so", "high"),
    [(None, NAN, 0.1), (Estimate(50, 50, 50), Estimate(5, 5, 5), 0.2), (Estimate(0, 0, 0), NAN, 1)],
)
def test_planted_samples_bound_the_share_above(found: Any, called_so: Estimate, high: float) -> None:
    """If half of them are misclassified, twice as many may be conflicting as are misclassified; if none, any number."""
    controls = found and Controls("colour", "colour", 600, found, called_so, 600, Estimate(99, 98, 100))
    share = conflicting_share(made(controls))
    assert (share.low, share.high, share.plain["value"]) == (0, pytest.approx(high), None)
    assert mislabelled_share(made(controls)).low == 0


def test_random_marks_decide_the_share_and_others_bound_it_below() -> None:
    drawn = random_sequence(np.zeros(1000, np.int64), 0, 0)
    few = conflicting_share(made(marks=[(row, "conflicting") for row in drawn[:9]]))
    assert (few.low, few.high) == (pytest.approx(0.009), pytest.approx(0.1))
    kinds = [(row, "conflicting" if n < 3 else "aligned") for n, row in enumerate(drawn[:30])]
    scored = [(row, "conflicting") for row in drawn[500:530]]  # marked for their scores, not at random
    share = conflicting_share(made(marks=[*kinds, *scored]))
    low, high = binomial_interval(0.1, 30)
    assert low < 0.033 and (share.value, share.low, share.high) == pytest.approx((0.1, 0.033, high))
    none = conflicting_share(made(marks=[*((row, "aligned") for row in drawn[:30]), *scored]))
    assert (none.value, none.low) == pytest.approx((0.03, 0.03)), "thirty were marked so: the share is not 0"
    alone = made(marks=kinds)
    alone.subject.own.unit[drawn[:30]] = np.arange(30) % 10  # thirty marks of ten units are ten pieces of evidence
    assert conflicting_share(alone).high == pytest.approx(binomial_interval(0.1, 10)[1])


def test_shares_of_classes_count_by_their_size_and_the_rarer_tag_conflicts() -> None:
    y = np.repeat([0, 1], [900, 100])
    tags = {0: ["land"] * 9 + ["water"], 1: ["water"] * 8 + ["land"] * 2}
    marks = [pair for k in (0, 1) for pair in zip(random_sequence(y, k, 0)[:10].tolist(), tags[k], strict=True)]
    examined = made(marks=marks)
    examined.trainer.y[:] = y
    share = conflicting_share(examined)
    assert share.value == pytest.approx(0.9 * 0.1 + 0.1 * 0.2) and "3 of 20" in share.method
    assert share.low < 0.11 < share.high
    same = made(marks=[(row, "land") for row, _ in marks])  # one tag for all: nothing is rarer
    same.trainer.y[:] = y
    assert conflicting_share(same).plain["value"] is None
