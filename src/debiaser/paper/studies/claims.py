"""Rules that judge a claim on tallies: pure functions from cells to held, not held or not testable."""

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

from debiaser.paper.studies.study import HELD, NOT_HELD, NOT_TESTABLE, Judge, Place, Tally, Verdict, at, places
from debiaser.report.tables import signed

LARGE = 1e4  # from here on numbers are written with a power of ten
FINE = 1.5  # numbers below are shares, which want more digits
Finding = tuple[bool, str]  # whether it holds at one place, and the numbers
Rule = Callable[[Sequence[Tally]], Finding | None]  # None: cannot be said, runs are missing


def everywhere(rule: Rule) -> Judge:
    """A claim that must hold at every place where there are runs; places without are named."""

    def judge(tallies: Sequence[Tally]) -> Verdict:
        found = {place: rule(here) for place, here in places(tallies).items()}
        return combined(found)

    return judge


def combined(found: dict[Place, Finding | None]) -> Verdict:
    """One verdict from those of several places."""
    said = {place: each for place, each in found.items() if each is not None}
    missing = [at(place) for place, each in found.items() if each is None]
    rest = f" Not run: {', '.join(missing)}." if missing else ""
    if not said:
        return Verdict(NOT_TESTABLE, f"The runs it needs are missing.{rest}")
    words = "; ".join(f"{at(place)}{'' if good else ' (not held)'}: {text}" for place, (good, text) in said.items())
    failed = sum(not good for good, _ in said.values())
    run = "that have runs" if missing else ""
    if failed:
        tested = f"in {failed} of {len(said)} places {run}".rstrip() if len(said) > 1 else ""
        return Verdict(NOT_HELD, f"{words}.{rest}", tested)
    return Verdict(HELD, f"{words}.{rest}", f"in {len(said)} of {len(found)} places" if missing else "")


def number(tally: Tally, digits: int = 2) -> str:
    """`97.52 ± 0.07`, without the deviation where there is one run."""
    form = f".{digits}f" if abs(tally.mean) < LARGE else ".3g"
    deviation = "" if tally.deviation is None else f" ± {tally.deviation:{form}}"
    return f"{tally.mean:{form}}{deviation}"


def named(tally: Tally, digits: int = 2) -> str:
    """`PGD 97.52 ± 0.07`."""
    return f"{tally.cell.name} {number(tally, digits)}"


def difference(one: Tally, two: Tally) -> str:
    """`PGD 97.52 ± 0.07, Vanilla 50.80 ± 1.54, difference +46.72`."""
    digits = 4 if max(abs(one.mean), abs(two.mean)) < FINE else 2
    apart = one.mean - two.mean
    told = signed(apart, digits) if abs(one.mean) < LARGE else f"{apart:+.3g}"
    return f"{named(one, digits)}, {named(two, digits)}, difference {told}"


def find(tallies: Iterable[Tally], name: str) -> Tally | None:
    """The tally of this name, if it has runs."""
    return next((each for each in tallies if each.cell.name == name and each), None)


def alike(found: Sequence[Tally]) -> tuple[list[Tally], str]:
    """Cells to compare, with the seeds that all of them have, as data and start differ from seed to seed.

    And words about it: empty where all of their seeds are the same. Where they share none, they stay as they are.
    """
    shared = set.intersection(*(set(each.seeds) for each in found))
    if not shared:
        return list(found), " (they share no seed)"
    cut = [each.of_seeds(shared) for each in found]
    if all(len(each.seeds) == len(shared) for each in found):
        return cut, ""
    return cut, f" (by the seed{'s' * (len(shared) > 1)} they share: {', '.join(map(str, sorted(shared)))})"


def in_seeds(found: Sequence[Tally], holds: Callable[..., bool]) -> str:
    """` in 2 of 3 seeds`, where something is not true of the single seeds that cells share; empty if it is of all."""
    seeds = [each.seeds for each in found]
    if len(set(seeds)) > 1 or len(seeds[0]) < 2:
        return ""
    true = sum(holds(*values) for values in zip(*(each.values for each in found), strict=True))
    return f" (so in {true} of {len(seeds[0])} seeds)" if true < len(seeds[0]) else ""


def noise_of(one: Tally, other: Tally) -> float:
    """The deviation of a difference between single runs of both; 0 where it is not known."""
    return math.hypot(one.deviation or 0.0, other.deviation or 0.0)


def lead(one: Tally, other: Tally) -> float:
    """By how much one mean is above another; 0 where it is below by less than a deviation, which is a tie (D29)."""
    ahead = one.mean - other.mean
    return 0.0 if -noise_of(one, other) <= ahead < 0 else ahead


def best(name: str, rivals_needed: int = 1) -> Rule:
    """The cell of this name has the highest mean, or is within one deviation of the highest (a tie, D29)."""

    def rule(here: Sequence[Tally]) -> Finding | None:
        champion = find(here, name)
        rivals = [each for each in here if each and each.cell.name != name]
        if champion is None or len(rivals) < rivals_needed:
            return None
        duels = [alike([champion, each]) for each in rivals]
        (champion, rival), words = min(duels, key=lambda duel: lead(*duel[0]))
        good, behind = lead(champion, rival) >= 0, champion.mean < rival.mean
        absent = [each.cell.name for each in here if not each]
        text = f"{named(champion)} against {number(rival)} of the best other, {rival.cell.name}"
        text += (" (a tie within one deviation)" if good and behind else "") + words
        return good, text + (f" (without {', '.join(absent)})" if absent else "")

    return rule


def among(names: Sequence[str], rule: Rule) -> Rule:
    """A rule for the cells of these names alone."""
    return lambda here: rule([each for each in here if each.cell.name in names])


def of_two(name: str, other: str, compare: Callable[[Tally, Tally], Finding]) -> Rule:
    """What a comparison says of two cells, where both have runs."""

    def rule(here: Sequence[Tally]) -> Finding | None:
        one, two = find(here, name), find(here, other)
        if one is None or two is None:
            return None
        pair, words = alike([one, two])
        good, text = compare(*pair)
        return good, text + words

    return rule


def above(name: str, other: str, by: float = 0.0) -> Rule:
    """One cell's mean is above another's, by at least so many points (a negative number: not lower by more)."""

    def compare(one: Tally, two: Tally) -> Finding:
        ahead = one.mean - two.mean
        good = ahead >= by and (ahead > 0 or by < 0)
        return good, difference(one, two) + (in_seeds([one, two], lambda a, b: a - b >= by) if good else "")

    return of_two(name, other, compare)


def within(name: str, other: str, by: float) -> Rule:
    """Two cells' means are at most so many points apart, whichever is the higher."""
    return of_two(name, other, lambda one, two: (abs(one.mean - two.mean) <= by, difference(one, two)))


def both(*rules: Rule) -> Rule:
    """All of these rules at once; what is known to fail fails, even while another is not known yet."""

    def rule(here: Sequence[Tally]) -> Finding | None:
        said = [each for each in (one(here) for one in rules) if each is not None]
        failed = [each for each in said if not each[0]]
        if len(said) < len(rules) and not failed:
            return None
        return not failed, ", and ".join(text for _, text in failed or said)

    return rule


def beside(rule: Rule, other: Rule, reading: str) -> Rule:
    """Judged by the first rule; whether the second holds, of what can be read otherwise, is told as well."""

    def told(here: Sequence[Tally]) -> Finding | None:
        finding, more = rule(here), other(here)
        if finding is None or more is None:
            return finding
        return finding[0], f"{finding[1]} ({reading}, {'held' if more[0] else 'not held'}: {more[1]})"

    return told


def falling(names: Sequence[str]) -> Rule:
    """The means of these cells fall from each to the next."""

    def rule(here: Sequence[Tally]) -> Finding | None:
        found = [each for each in (find(here, name) for name in names) if each is not None]
        if len(found) < len(names):
            return None
        found, words = alike(found)
        falls = all(one.mean > two.mean for one, two in pairwise(found))
        words += in_seeds(found, lambda *values: list(values) == sorted(values, reverse=True)) if falls else ""
        return falls, ", ".join(named(each) for each in found) + words

    return rule


def lowest(name: str) -> Rule:
    """The cell of this name has the lowest mean, once all of them have runs."""

    def rule(here: Sequence[Tally]) -> Finding | None:
        chosen = find(here, name)
        if chosen is None or not all(here):
            return None
        (chosen, *others), words = alike([chosen, *(each for each in here if each is not chosen)])
        text = f"{named(chosen)}, the others {', '.join(named(each) for each in others)}{words}"
        return all(chosen.mean <= each.mean for each in others), text

    return rule


def share_of(name: str, whole: str, at_most: float) -> Rule:
    """One cell's mean is at most this share of another's."""

    def compare(part: Tally, all_of_it: Tally) -> Finding:
        share = part.mean / all_of_it.mean if all_of_it.mean else math.inf
        return share <= at_most, f"{part.cell.name} is {share * 100:.1f}% of {all_of_it.cell.name}"

    return of_two(name, whole, compare)


def longer_with_more(name: str, other: str) -> Rule:
    """Where the first cell's runs see more samples than the second's, they take longer; else times are not compared."""

    def rule(here: Sequence[Tally]) -> Finding | None:
        one, two = find(here, name), find(here, other)
        if one is None or two is None:
            return None
        seen = [min(result["samples_seen"] for result in each.results) for each in (one, two)]
        if seen[0] <= seen[1]:
            return True, f"{name} and {other} see as many samples here, so their times are not compared"
        return one.mean > two.mean, f"{named(one, 0)} s, {named(two, 0)} s"

    return rule


def superior(name: str, other: str, trials: int, level: float = 0.05) -> Rule:
    """Welch's test, one-sided: the first cell's values are larger than the second's, with enough trials of both."""

    def rule(here: Sequence[Tally]) -> Finding | None:
        one, two = find(here, name), find(here, other)
        if one is None or two is None or min(len(one.values), len(two.values)) < trials:
            return None
        p = welch(one.values, two.values)
        counts = f"{len(one.values)} trials of {name}, {len(two.values)} of {other}"
        text = f"{named(one)}, {named(two)}, p = {p:.2g} (Welch, one-sided; {counts})"
        return p < level and one.mean > two.mean, text

    return rule


def welch(one: Sequence[float], two: Sequence[float]) -> float:
    """The one-sided p-value of Welch's test that `one` has the larger mean."""
    from scipy import stats

    return float(stats.ttest_ind(one, two, equal_var=False, alternative="greater").pvalue)


def same_order(rules: Sequence[str]) -> Judge:
    """The methods rank alike under every selection rule: cells are named `method, rule`."""

    def judge(tallies: Sequence[Tally]) -> Verdict:
        orders: dict[str, list[str]] = {}
        run = [each for each in tallies if each]
        shared, told = alike(run) if run else ([], "")
        for rule in rules:
            under = [each for each in shared if each.cell.name.endswith(f", {rule}")]
            ranked = sorted(under, key=lambda each: -each.mean)
            orders[rule] = [each.cell.name.removesuffix(f", {rule}") for each in ranked]
        if min(map(len, orders.values())) < 2 or len({frozenset(order) for order in orders.values()}) > 1:
            return Verdict(NOT_TESTABLE, "Fewer than two methods have runs that tell every selection rule.")
        words = "; ".join(f"{rule}: {' > '.join(order)}" for rule, order in orders.items()) + told
        return Verdict(HELD if len({tuple(order) for order in orders.values()}) == 1 else NOT_HELD, f"{words}.")

    return judge
