"""Everything that was examined, and the verdict: biased, no evidence, or cannot tell, each with its reasons.

Every threshold of the verdict is here, and every reason is a sentence.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from debiaser.auditing.crossval import OutOfFold, Rows, Trainer, Vector
from debiaser.auditing.diagnosis import FEW, WEAK, Controls, Diagnosis, Trouble, above_chance, degenerate
from debiaser.auditing.estimates import Estimate
from debiaser.auditing.inputs import Subject
from debiaser.auditing.leakage import Leakage
from debiaser.auditing.marks import Marks, choose_to_mark
from debiaser.auditing.swap_test import LEVEL, Probe, Reliance, SwapTest
from debiaser.auditing.views import View
from debiaser.errors import Problem
from debiaser.learn.sampler import effective_sample_size

BIASED, NO_EVIDENCE, CANNOT_TELL = "biased", "no evidence", "cannot tell"

MATTERS = 5.0  # points beyond chance: reliance that matters, and flips by a swap that may put an input off the data
OFF_DATA = 0.5  # flips with donors of the same class over flips with donors of another: above, the swap itself confuses
ELIGIBLE = 100  # samples that the model gets right, in every class, for "no evidence"
UNITS = 50  # in every class, for any verdict
CONFIDENT = 0.9  # probability of a wrong answer from which the biased model follows a rule, not a guess
RECOVERABLE = 0.005  # share of samples, confidently misclassified yet learnable, from which a rule must be suspected
FLOOR = 1e-8  # no probability is exactly 0
TO_MARK = 60  # samples that a person is asked to mark
WORDS = 12  # of a view that a person is asked about
STRENGTH = 0.75  # share of the draws that go by score where nothing chooses it: `debias` does, on validation samples


@dataclass(frozen=True, eq=False)
class Examined:
    """Everything that was computed about the samples of `pool`.

    model: which model was examined, in words; named: the property that it is found to follow; probe: a small network
    beside it that learns from the pixels; marks: of a person, also of samples outside the pool.
    """

    subject: Subject
    trainer: Trainer
    pool: Rows
    biased: OutOfFold
    plain: OutOfFold
    diagnosis: Diagnosis
    swaps: SwapTest | Problem
    leakage: Sequence[Leakage]
    troubles: list[Trouble]
    verdict: str
    reasons: list[str]
    model: str
    views: Sequence[View] = ()
    named: View | None = None
    controls: Controls | None = None
    probe: Probe | None = None
    marks: Marks = field(default_factory=Marks)

    @property
    def degenerate(self) -> bool:
        """Whether the biased model leaves a class out, or guesses: nothing may be made of its scores then."""
        return degenerate(self.trainer.y[self.pool], self.biased.answer[self.pool])

    @property
    def score(self) -> Vector:
        """(n,) how strongly a sample goes against the biased model; NaN outside the pool."""
        return np.asarray(np.maximum(self.biased.score, FLOOR))

    @property
    def probability(self) -> Vector:
        """(n,) with which each sample would be drawn; 0 outside the pool."""
        score = np.nan_to_num(self.score)
        return np.asarray(score / score.sum())

    @property
    def place(self) -> Rows:
        """(n,) where each sample stands among the examined ones; -1 for others."""
        place = np.full(len(self.subject.own), -1)
        place[self.pool] = np.arange(len(self.pool))
        return place

    @property
    def confirmed(self) -> Rows:
        """The samples of the pool that a person has marked."""
        rows = np.array(list(self.marks.by_sample), np.int64)
        return np.asarray(rows[self.place[rows] >= 0])

    @property
    def effective_rows(self) -> Estimate:
        """On how many samples a training by score would rest."""
        return Estimate(effective_sample_size(self.probability), method="1 / sum of squared probabilities")

    def to_mark(self, n: int = TO_MARK) -> tuple[Rows, list[str]]:
        """The next samples worth a mark, and why each; none where the scores mean nothing."""
        if self.degenerate:
            return np.zeros(0, np.int64), []
        y, seed = self.trainer.y, self.trainer.seed
        return choose_to_mark(y, self.score, self.pool, self.marks.by_sample, n, seed)


@dataclass(frozen=True)
class Health:
    """What else a verdict rests on.

    skill: of the model from guessing (0) to perfect (1), out of fold; biased_errors: samples that the biased model
    misclassifies, out of fold; recoverable: whether bias-conflicting samples look learnable; empty: a phrase
    for each label that never goes with a value of a suspect column; hidden: a sentence for each property that another
    network would follow; degenerate: whether nothing may be made of the biased model's scores.
    """

    skill: float
    biased_errors: int
    recoverable: bool = False
    empty: Sequence[str] = ()
    hidden: Sequence[str] = ()
    degenerate: bool = False


def rule(
    swaps: SwapTest | Problem,
    biased: OutOfFold,
    plain: OutOfFold,
    diagnosis: Diagnosis,
    leakage: Sequence[Leakage],
    pool: Rows,
    y: Rows,
    probe: Probe | None = None,
) -> tuple[str, list[str]]:
    """The verdict on what models said about the samples of `pool`, and why."""
    if isinstance(swaps, Problem):
        return CANNOT_TELL, [str(swaps)]
    skill = above_chance(plain.answer[pool] == y[pool], y[pool])
    empty = [each.first_empty_cell() for each in leakage if each.flagged and each.empty]
    wrong = int((biased.answer[pool] != y[pool]).sum())
    lost = degenerate(y[pool], biased.answer[pool])
    suspected = not lost and recoverable(biased, diagnosis, pool, y)
    able = probe and above_chance(probe.plain.answer[pool] == y[pool], y[pool]) >= WEAK
    told = hidden(probe, swaps, skill) if probe and able else []
    return verdict(swaps, Health(skill, wrong, suspected, empty, told, lost))


def hidden(probe: Probe, swaps: SwapTest, skill: float) -> list[str]:
    """What a network that is trained on the pixels follows, or can learn, and the examined model does not."""
    tested = () if isinstance(probe.swaps, Problem) else probe.swaps.reliances
    followed = {each.name for each in swaps.reliances if fires(each)}
    found = [
        f"A network trained on the pixels would follow the {each.title}, in {each.follows:.0f}% of swaps (chance "
        f"{each.chance:.0f}%): the features hide it, another model would not."
        for each in tested
        if fires(each) and each.name not in followed
    ]
    if skill < WEAK:
        found.append("A small network trained on the pixels learns the task better: try --finetune.")
    return found


def recoverable(biased: OutOfFold, diagnosis: Diagnosis, pool: Rows, y: Rows) -> bool:
    """Whether many samples are confidently misclassified by the biased model although others predict their label."""
    if diagnosis.judge is None:
        return False
    sure = diagnosis.misclassified & (np.nan_to_num(biased.probability).max(1) >= CONFIDENT)
    return bool((sure & (diagnosis.judge.answer == y)).sum() >= max(FEW, RECOVERABLE * len(pool)))


def named_view(views: Sequence[View], swaps: SwapTest | Problem, ruling: str) -> View | None:
    """The property that the model is found to follow most; None where the verdict is another."""
    if ruling != BIASED or isinstance(swaps, Problem):
        return None
    strongest = next(each.name for each in swaps.reliances if fires(each))
    return next(view for view in views if view.name == strongest)


def off_data(reliance: Reliance) -> bool:
    """Whether donors of the same class break the answers too: then following the donor proves nothing."""
    same = reliance.flips_same_class
    return same >= MATTERS and same > OFF_DATA * reliance.flips


def far_beyond_chance(reliance: Reliance) -> bool:
    """Whether a property is followed beyond chance and beyond what is negligible, in all swaps or into one class."""
    if reliance.screened or off_data(reliance):
        return False
    everywhere, one = (reliance.excess.low, reliance.p), reliance.strongest
    of_class = (one.excess.low, one.p) if one else everywhere
    return any(low is not None and low >= MATTERS and p <= LEVEL for low, p in (everywhere, of_class))


def fires(reliance: Reliance) -> bool:
    """Whether the model follows a property that it should not."""
    return reliance.nuisance and far_beyond_chance(reliance)


def verdict(test: SwapTest, health: Health) -> tuple[str, list[str]]:
    """One of the three verdicts, and why, the most telling sentence first.

    A test that is unsound as a whole rules nothing. Else a view that fires rules alone: what is unclear about other
    views does not take that back. Else anything unclear means "cannot tell".
    """
    found, unsound = [each for each in test.reliances if fires(each)], []
    if health.skill < WEAK:
        unsound.append(
            "The model is close to guessing: its inputs are not informative enough for the task, so what it follows "
            "means nothing."
        )
    if test.fewest_units < UNITS:
        told = f"A class has only {test.fewest_units:,} separate units (samples, unless --unit is given)"
        unsound.append(f"{told}; {UNITS} are needed.")
    if not any(each.nuisance for each in test.reliances):
        unsound.append("No property could be swapped that a model should not follow.")
    lost = [DEGENERATE] if health.degenerate else []
    if unsound:
        hints = [f"{followed(each)} So far that is a hint, not a finding." for each in found if health.skill >= WEAK]
        return CANNOT_TELL, unsound + hints + [*health.hidden] + lost
    if found:
        return BIASED, [followed(each) for each in found] + [*health.hidden] + lost
    if unclear := lost + unclear_reasons(test, health):
        return CANNOT_TELL, unclear
    return NO_EVIDENCE, clear_reasons(test)


DEGENERATE = (
    "The biased model is degenerate: it almost never predicts one of the classes, or is no better than guessing. Its "
    "scores are meaningless, so no samples are ranked or proposed for marking, and no break-even share is computed."
)


def unclear_reasons(test: SwapTest, health: Health) -> list[str]:
    """Why a shortcut is neither shown nor ruled out."""
    reasons = []
    for each in test.reliances:
        if not each.nuisance and not each.declared and far_beyond_chance(each):
            words = f": {', '.join(each.words[:WORDS])}" + (", ..." if len(each.words) > WORDS else "")
            asked = f"Do these words matter{words}?" if each.words else "Does that matter for the task?"
            reasons.append(f"{followed(each)} {asked} If so, say --matters {each.name}.")
        elif each.screened:
            continue
        elif each.nuisance and off_data(each):
            flips = f"{each.flips_same_class:.0f}% of cases even within a class (between classes {each.flips:.0f}%)"
            reasons.append(f"Swapping the {each.title} changes the answer in {flips}, so that swap cannot be judged.")
        elif each.nuisance and (each.excess.high is None or each.excess.high >= MATTERS):
            reasons.append(f"{followed(each)} That is too uncertain: {each.excess.words(' points')} beyond chance.")
    if test.fewest_eligible < ELIGIBLE:
        reasons.append(f"The model gets {test.fewest_eligible:,} samples of a class right; {ELIGIBLE} are needed.")
    if health.biased_errors < FEW:
        few = f"only {health.biased_errors:,}" if health.biased_errors else "no"
        left = "a shortcut that goes with the label everywhere is not ruled out"
        reasons.append(f"The biased model misclassifies {few} samples: {left}.")
    if health.recoverable:
        reasons.append("Some samples go against a shortcut, but no property that was tested explains which one it is.")
    reasons += [f"A suspect column has an empty cell: {cell}." for cell in health.empty]
    return [*reasons, *health.hidden]


def clear_reasons(test: SwapTest) -> list[str]:
    """What was tested and how small an effect would have been seen."""
    tested = [each for each in test.reliances if each.nuisance and not each.screened]
    tried = [each for each in test.reliances if each.nuisance and each.screened]
    tested, tried = (tested, tried) if tested else (tried, [])
    worst = max(tested, key=lambda each: each.excess.high or 0)
    smallest = max(each.detectable for each in tested)
    slight = [each for each in tested if each.p <= LEVEL]
    most = f" by {MATTERS:.0f} points or more" if slight else ""
    reasons = [
        f"The model follows none of the properties that were swapped{most}; the least certain is the {worst.title}: "
        f"{worst.excess.words(' points')} beyond chance.",
        *(f"It follows the {each.title} a little: {each.excess.words(' points')} beyond chance." for each in slight),
        f"An effect of {smallest:.1f} points would have been found in four of five such tests.",
        f"Tested: {', '.join(each.title for each in tested)}.",
    ]
    if tried:
        smallest = max(each.detectable for each in tried)
        told = f"Tried on {tried[0].rows} swaps each, where {smallest:.1f} points would have been seen"
        reasons.append(f"{told}: {', '.join(each.title for each in tried)}.")
    return reasons + [f"Not tested: {each['title']} ({each['reason']})." for each in test.untested]


def followed(reliance: Reliance) -> str:
    """`The model follows the colour cast in 30% of swaps, chance 6%.`"""
    told = f"The model follows the {reliance.title} in {reliance.follows:.0f}% of swaps, chance {reliance.chance:.0f}%"
    one, low = reliance.strongest, reliance.excess.low
    if one and far_beyond_chance(reliance) and (low is None or low < MATTERS or reliance.p > LEVEL):
        told += f", and that of '{one.name}' by {one.excess.words(' points')} beyond chance"
    return f"{told}."


def in_words(subject: Subject, folds: int, seeds: int) -> str:
    """Which model was examined, and what it cannot see."""
    encoder = None if subject.whole else subject.encoder
    network, count = subject.material.network, "1 seed" if seeds == 1 else f"{seeds} seeds"
    how = f"trained here on this data (out of fold, {folds} folds, {count})."
    if encoder is None:
        return f"{network}, {how}"
    name = NAMES.get(encoder.name, encoder.name)
    examined = network.replace("frozen features", f"frozen {name} features")
    return f"{examined}, {how} It cannot see what these features do not carry."


NAMES = {"efficientnet_lite0": "EfficientNet-Lite0", "minilm": "MiniLM"}
