"""The verdict: biased, no evidence, or cannot tell; every threshold is here, and every reason is a sentence."""

from collections.abc import Sequence
from dataclasses import dataclass

from debiaser.auditing.diagnosis import FEW, WEAK
from debiaser.auditing.swap_test import LEVEL, Reliance, SwapTest

BIASED, NO_EVIDENCE, CANNOT_TELL = "biased", "no evidence", "cannot tell"

MATTERS = (
    5.0  # points beyond chance: reliance that matters, and answers that a swap may break without being off the data
)
OFF_DATA = 0.5  # flips with donors of the same class over flips with donors of another: above, the swap itself confuses
ELIGIBLE = 100  # rows that the model gets right, in every class, for "no evidence"
UNITS = 50  # in every class, for any verdict


@dataclass(frozen=True)
class Health:
    """What else a verdict rests on.

    skill: of the model from guessing (0) to perfect (1), out of fold; easy_errors: rows that the easy model misses, out
    of fold; recoverable: whether rows that go against the easy rule look learnable; empty: a phrase for each label that
    never goes with a value of a suspect column.
    """

    skill: float
    biased_errors: int
    recoverable: bool = False
    empty: Sequence[str] = ()


def off_data(reliance: Reliance) -> bool:
    """Whether donors of the same class break the answers too: then following the donor proves nothing."""
    same = reliance.flips_same_class
    return same >= MATTERS and same > OFF_DATA * reliance.flips


def fires(reliance: Reliance) -> bool:
    """Whether the model follows a property that it should not, beyond chance and beyond what is negligible."""
    low = reliance.excess.low
    return reliance.nuisance and reliance.p <= LEVEL and low is not None and low >= MATTERS and not off_data(reliance)


def verdict(test: SwapTest, health: Health) -> tuple[str, list[str]]:
    """One of the three verdicts, and why, the most telling sentence first.

    A test that is unsound as a whole rules nothing. Else a view that fires rules alone: what is unclear about other
    views does not take that back. Else anything unclear means "cannot tell".
    """
    found = [each for each in test.reliances if fires(each)]
    if unsound := unsound_reasons(test, health):
        hints = found if health.skill >= WEAK else []
        return CANNOT_TELL, unsound + [f"{followed(each)} So far that is a hint, not a finding." for each in hints]
    if found:
        return BIASED, [followed(each) for each in found]
    if unclear := unclear_reasons(test, health):
        return CANNOT_TELL, unclear
    return NO_EVIDENCE, clear_reasons(test)


def unsound_reasons(test: SwapTest, health: Health) -> list[str]:
    """Why no swap can be judged at all."""
    reasons = []
    if health.skill < WEAK:
        reasons.append("The model is close to guessing, so what it follows means nothing.")
    if test.fewest_units < UNITS:
        told = f"A class has only {test.fewest_units:,} separate units (rows, unless --unit is given)"
        reasons.append(f"{told}; {UNITS} are needed.")
    if not any(each.nuisance for each in test.reliances):
        reasons.append("No property could be swapped that a model should not follow.")
    return reasons


def unclear_reasons(test: SwapTest, health: Health) -> list[str]:
    """Why a shortcut is neither shown nor ruled out."""
    reasons = []
    for each in test.reliances:
        if each.nuisance and off_data(each):
            reasons.append(
                f"Swapping the {each.title} changes the answer in {each.flips_same_class:.0f}% of cases even within a "
                f"class (between classes {each.flips:.0f}%), so that swap cannot be judged."
            )
        elif each.nuisance and (each.excess.high is None or each.excess.high >= MATTERS):
            reasons.append(f"{followed(each)} That is too uncertain: {each.excess.words(' points')} beyond chance.")
    if test.fewest_eligible < ELIGIBLE:
        reasons.append(f"The model is right on only {test.fewest_eligible:,} rows of a class; {ELIGIBLE} are needed.")
    if health.biased_errors < FEW:
        reasons.append(
            f"The easy model misses only {health.biased_errors:,} rows: a shortcut that goes with the label everywhere "
            "is not ruled out."
        )
    if health.recoverable:
        reasons.append("Some rows go against an easy rule, but no property that was tested explains which rule it is.")
    reasons += [f"A suspect column has an empty cell: {cell}." for cell in health.empty]
    return reasons


def clear_reasons(test: SwapTest) -> list[str]:
    """What was tested and how small an effect would have been seen."""
    tested = [each for each in test.reliances if each.nuisance]
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
    return reasons + [f"Not tested: {each.title} ({each.reason})." for each in test.untested]


def followed(reliance: Reliance) -> str:
    """`The model follows the colour cast in 30% of swaps, chance 6%.`"""
    return f"The model follows the {reliance.title} in {reliance.follows:.0f}% of swaps, chance {reliance.chance:.0f}%."
