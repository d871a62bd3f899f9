"""What a study is: cells (runs and a number to read from each), a claim, and a rule that judges it."""

import math
import statistics
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Concatenate, ParamSpec, TypeAlias, TypeVar

from debiaser.paper.results import Published, published
from debiaser.paper.settings import SETTINGS
from debiaser.paper.spec import Spec, new_spec
from debiaser.report.runs import Result
from debiaser.report.tables import FINE, LARGE, signed

HELD, NOT_HELD, NOT_TESTABLE = "held", "not held", "not testable"
Place: TypeAlias = tuple[str, float | None, float]  # dataset, rho, noise


@dataclass(frozen=True)
class Cell:
    """One number of a table: the runs behind it (one per seed) and what is read from each of them.

    `reads`: a path in a result, such as `metrics.unbiased`. `changes`: `--set` texts. `variant`, `metric` and `table`:
    under which the paper's number stands in `paper.csv`; `printed` is False where the paper has none for this cell.
    `options`: `--option` texts. `recipe`: its own, if not the one that is asked for.
    """

    name: str
    dataset: str
    method: str
    rho: float | None = None
    changes: tuple[str, ...] = ()
    noise: float = 0.0
    net: str | None = None
    reads: str = "metrics.unbiased"
    variant: str = ""
    metric: str = "unbiased"
    table: str = ""
    printed: bool = True
    options: tuple[str, ...] = ()
    recipe: str = ""

    @property
    def place(self) -> Place:
        """What cells must share to be compared."""
        return self.dataset, self.rho, self.noise

    def spec(self, recipe: str, seed: int, epochs: int | None = None) -> Spec:
        """The run of this seed."""
        more: dict[str, Any] = {"noise": self.noise, "net": self.net, "changes": self.changes, "options": self.options}
        return new_spec(self.dataset, self.method, self.rho, self.recipe or recipe, epochs, seed, **more)

    def command(self, recipe: str, seed: int, epochs: int | None = None) -> list[str]:
        """The words of the command that makes this run, without folders."""
        recipe = self.recipe or recipe
        noise, named = self.noise or None, recipe if recipe != "fast" else None
        pairs: list[tuple[str, Any]] = [("--method", self.method), ("--rho", self.rho), ("--noise", noise)]
        pairs += [("--net", self.net), ("--recipe", named), ("--epochs", epochs), ("--seed", seed)]
        pairs += [("--set", change) for change in self.changes] + [("--option", option) for option in self.options]
        words = ["train", self.dataset]
        for name, value in pairs:
            words += [] if value is None else [name, f"{value:g}" if isinstance(value, float) else str(value)]
        return words

    def read(self, result: Result) -> float | None:
        """The number that this cell shows of a result; None where there is none.

        `seconds` is the sum over stages; `drawn` the share of draws that went to conflicting samples, of a method that
        draws all alike their share of the samples.
        """
        if self.reads == "seconds":
            return float(sum(result["seconds"].values()))
        if self.reads == "drawn" and "score_auroc" not in result["metrics"]:
            against = result["rows"].get("conflicting")
            return None if against is None else float(against / result["rows"]["train"])
        found: Any = result
        for name in ("metrics.score_conflicting_mass" if self.reads == "drawn" else self.reads).split("."):
            if isinstance(found, list):
                found = found[int(name)]
            else:
                found = found.get(name) if isinstance(found, dict) else None
        return None if found is None else float(found)

    def published(self, study: str) -> Published | None:
        """The paper's number for this cell."""
        if not self.printed:
            return None
        return published(self.dataset, self.method, self.rho, self.metric, self.table or study, self.variant)


@dataclass(frozen=True)
class Tally:
    """A cell and what its runs gave, by seed."""

    cell: Cell
    values: tuple[float, ...] = ()
    seeds: tuple[int, ...] = ()
    results: tuple[Result, ...] = field(default=(), repr=False)

    @property
    def mean(self) -> float:
        """The mean over seeds; not a number where there is none."""
        return statistics.fmean(self.values) if self.values else math.nan

    @property
    def deviation(self) -> float | None:
        """The sample standard deviation; None with fewer than two runs."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None

    def __bool__(self) -> bool:
        return bool(self.values)

    def of_seeds(self, seeds: Collection[int]) -> "Tally":
        """The same cell with the runs of these seeds alone."""
        kept = [each for each in zip(self.values, self.seeds, self.results, strict=True) if each[1] in seeds]
        return Tally(self.cell, *zip(*kept, strict=True)) if kept else Tally(self.cell)

    def number(self, digits: int = 2) -> str:
        """`97.52 ± 0.07`, without the deviation where there is one run."""
        form = f".{digits}f" if abs(self.mean) < LARGE else ".3g"
        deviation = "" if self.deviation is None else f" ± {self.deviation:{form}}"
        return f"{self.mean:{form}}{deviation}"

    def named(self, digits: int = 2) -> str:
        """`PGD 97.52 ± 0.07`."""
        return f"{self.cell.name} {self.number(digits)}"


@dataclass(frozen=True)
class Verdict:
    """held, not held or not testable; a sentence with the numbers behind it; `tested`: where, if not everywhere."""

    claim: str
    sentence: str
    tested: str = ""


Finding = tuple[bool, str]  # whether it holds at one place, and the numbers
Rule = Callable[[Sequence[Tally]], Finding]  # from the cells of one place; raises NotRun where it cannot be said
Judge: TypeAlias = Callable[[Sequence[Tally]], Verdict]


@dataclass(frozen=True)
class Study:
    """A table or figure of the paper, or a study of ours, by its label.

    `claim`: what is judged, in words. `protocol`: what the reader must know beyond recipe and seeds. `figure`: how it
    is drawn. `seeds`: at least so many.
    """

    title: str
    claim: str
    cells: tuple[Cell, ...]
    judge: Judge = field(repr=False)
    protocol: str = ""
    figure: str = "bars"
    seeds: int = 1
    ours: bool = False
    label: str = ""  # its name in `definitions`

    def on(self, dataset: str) -> "Study":
        """The study on another dataset, where the paper has no numbers: what it does on the first of its own.

        Of several rho with a whole comparison each, one is enough: the first, or the dataset's usual one if larger.
        A sweep keeps its places. Without cells where the study means its own dataset.
        """
        first, usual = self.cells[0], SETTINGS[dataset].rho
        if first.dataset == "cmnist-colour":  # nowhere else is the colour asked for
            return replace(self, cells=())
        sweep = self.figure == "lines"
        cells = [each for each in self.cells if (each.dataset == first.dataset if sweep else each.place == first.place)]
        if usual is None or len({cell.rho for cell in cells}) == 1:
            rho = None if usual is None or first.rho is None else max(usual, first.rho)
            cells = [replace(cell, rho=rho) for cell in cells if cell.rho == first.rho]
        own: dict[str, Any] = {"dataset": dataset, "net": None, "options": (), "printed": False}
        return replace(self, cells=tuple(replace(cell, **own) for cell in cells))

    def only(self, dataset: str | None = None, rho: float | None = None) -> "Study":
        """The cells of one dataset or rho alone."""
        kept = [c for c in self.cells if dataset in (None, c.dataset) and (rho is None or c.rho == rho)]
        return replace(self, cells=tuple(kept))


def at(place: Place) -> str:
    """A place in words: `cmnist at rho 0.5%`."""
    dataset, rho, noise = place
    words = dataset if rho is None else f"{dataset} at rho {rho * 100:.3g}%"
    return f"{words} with {noise * 100:.3g}% of labels flipped" if noise else words


# Rules that judge a claim: each takes the cells of one place, and `everywhere` makes a verdict of what it says.

P = ParamSpec("P")
Said = TypeVar("Said")


class NotRun(Exception):
    """A rule needs a cell that has no runs."""


def given_names(
    judged: Callable[Concatenate[Sequence[Tally], P], Said],
) -> Callable[P, Callable[[Sequence[Tally]], Said]]:
    """A rule or judge that takes its names first, and the cells when it judges."""

    def named(*names: P.args, **options: P.kwargs) -> Callable[[Sequence[Tally]], Said]:
        return lambda here: judged(here, *names, **options)

    return named


@given_names
def everywhere(tallies: Sequence[Tally], *rules: Rule, but: str = "") -> Verdict:
    """A claim that must hold at every place where there are runs (`but` on this dataset); places without are named.

    It holds at a place by all of these rules; what is known to fail fails, even while another is not known yet.
    """
    places: dict[Place, list[Tally]] = {}
    for tally in tallies:
        if tally.cell.dataset != but:
            places.setdefault(tally.cell.place, []).append(tally)
    said, missing = {}, []
    for place, here in places.items():
        known = [each for each in (attempt(rule, here) for rule in rules) if each is not None]
        failed = [each for each in known if not each[0]]
        if failed or len(known) == len(rules):
            said[place] = not failed, ", and ".join(text for _, text in failed or known)
        else:
            missing.append(at(place))
    rest = f" Not run: {', '.join(missing)}." if missing else ""
    if not said:
        return Verdict(NOT_TESTABLE, f"The required runs are missing.{rest}")
    words = "; ".join(f"{at(place)}{'' if good else ' (not held)'}: {text}" for place, (good, text) in said.items())
    lost = sum(not good for good, _ in said.values())
    if lost:
        where = " that have runs" if missing else ""
        tested = f"in {lost} of {len(said)} places{where}" if len(said) > 1 else ""
        return Verdict(NOT_HELD, f"{words}.{rest}", tested)
    return Verdict(HELD, f"{words}.{rest}", f"in {len(said)} of {len(places)} places" if missing else "")


def attempt(rule: Rule, here: Sequence[Tally]) -> Finding | None:
    """What a rule says; None where it cannot be said."""
    try:
        return rule(here)
    except NotRun:
        return None


def pick(here: Sequence[Tally], *names: str) -> list[Tally]:
    """The cells of these names; NotRun where one of them has no runs."""
    run = {each.cell.name: each for each in here if each}
    if not run.keys() >= set(names):
        raise NotRun
    return [run[name] for name in names]


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
    return cut, f" (on the shared seed{'s' * (len(shared) > 1)} {', '.join(map(str, sorted(shared)))})"


@given_names
def compare(
    here: Sequence[Tally],
    names: Sequence[str],
    holds: Callable[..., bool],
    tell: Callable[..., str],
    by_seed: bool = False,
) -> Finding:
    """Whether something holds of the means of these cells; `by_seed`: where not of all seeds, told of how many."""
    found, words = alike(pick(here, *names))
    good, seeds = holds(*(each.mean for each in found)), found[0].seeds
    text = tell(*found) + words
    if good and by_seed and len(seeds) > 1 and all(each.seeds == seeds for each in found):
        true = sum(holds(*values) for values in zip(*(each.values for each in found), strict=True))
        text += f" (in {true} of {len(seeds)} seeds)" if true < len(seeds) else ""
    return good, text


def listed(*found: Tally) -> str:
    """`PGD 97.52 ± 0.07, Vanilla 50.80 ± 1.54`."""
    return ", ".join(each.named() for each in found)


def difference(one: Tally, two: Tally) -> str:
    """`PGD 97.52 ± 0.07, Vanilla 50.80 ± 1.54, difference +46.72`."""
    digits = 4 if max(abs(one.mean), abs(two.mean)) < FINE else 2
    apart = one.mean - two.mean
    told = signed(apart, digits) if abs(one.mean) < LARGE else f"{apart:+.3g}"
    return f"{one.named(digits)}, {two.named(digits)}, difference {told}"


def above(name: str, other: str, by: float = 0.0) -> Rule:
    """One cell's mean is above another's, by at least so many points (a negative number: not lower by more)."""
    return compare((name, other), lambda a, b: a - b >= by and (a > b or by < 0), difference, by_seed=True)


def within(name: str, other: str, by: float) -> Rule:
    """Two cells' means are at most so many points apart, whichever is the higher."""
    return compare((name, other), lambda a, b: abs(a - b) <= by, difference)


def falling(*names: str) -> Rule:
    """The means of these cells fall from each to the next."""
    return compare(names, lambda *means: all(a > b for a, b in pairwise(means)), listed, by_seed=True)


def lowest(*names: str) -> Rule:
    """The first cell has the lowest mean."""
    return compare(
        names,
        lambda mean, *rest: mean <= min(rest),
        lambda chosen, *rest: f"{chosen.named()}, the others {listed(*rest)}",
    )


def share_of(name: str, whole: str, at_most: float) -> Rule:
    """One cell's mean is at most this share of another's."""
    return compare(
        (name, whole),
        lambda part, whole: part <= at_most * whole,
        lambda part, all_: f"{part.cell.name} is {part.mean / all_.mean * 100:.1f}% of {all_.cell.name}",
    )


@given_names
def best(here: Sequence[Tally], name: str, *rivals: str, needed: int = 1) -> Finding:
    """The cell of this name has the highest mean, or is within one deviation of the highest (a tie, D29).

    `rivals`: the others that count, all without any; so many of them are `needed`.
    """

    def lead(one: Tally, other: Tally) -> float:
        """By how much one mean is above another; 0 where it is below by less than the deviation of a difference."""
        ahead, noise = one.mean - other.mean, math.hypot(one.deviation or 0.0, other.deviation or 0.0)
        return 0.0 if -noise <= ahead < 0 else ahead

    (champion,) = pick(here, name)
    others = [each for each in here if each.cell.name != name and (not rivals or each.cell.name in rivals)]
    absent = [each.cell.name for each in others if not each]
    if len(others) - len(absent) < needed:
        raise NotRun
    duels = [alike([champion, each]) for each in others if each]
    (champion, rival), words = min(duels, key=lambda duel: lead(*duel[0]))
    good, behind = lead(champion, rival) >= 0, champion.mean < rival.mean
    text = f"{champion.named()}, best of the others: {rival.named()}"
    text += (" (a tie within one standard deviation)" if good and behind else "") + words
    return good, text + (f" (without {', '.join(absent)})" if absent else "")


@given_names
def beside(here: Sequence[Tally], rule: Rule, other: Rule, reading: str) -> Finding:
    """Judged by the first rule; whether the second holds, of what can be read otherwise, is told as well."""
    (good, text), more = rule(here), attempt(other, here)
    return good, text + (f" ({reading}, {'held' if more[0] else 'not held'}: {more[1]})" if more else "")


@given_names
def longer_with_more(here: Sequence[Tally], name: str, other: str) -> Finding:
    """Where the first cell's runs see more samples than the second's, they take longer; else times are not compared."""
    one, two = pick(here, name, other)
    seen = [min(result["samples_seen"] for result in each.results) for each in (one, two)]
    if seen[0] <= seen[1]:
        return True, f"{name} and {other} see the same number of samples here, so their times are not compared"
    return one.mean > two.mean, f"{one.named(0)} s, {two.named(0)} s"


@given_names
def superior(here: Sequence[Tally], name: str, other: str, trials: int) -> Finding:
    """Welch's test, one-sided, at 5%: the first cell's values are larger than the second's; both have enough trials."""
    from scipy import stats

    one, two = pick(here, name, other)
    if min(len(one.values), len(two.values)) < trials:
        raise NotRun
    p = float(stats.ttest_ind(one.values, two.values, equal_var=False, alternative="greater").pvalue)
    counts = f"{len(one.values)} trials of {name}, {len(two.values)} of {other}"
    return p < 0.05 and one.mean > two.mean, f"{listed(one, two)}, p = {p:.2g} (Welch, one-sided; {counts})"


@given_names
def same_order(tallies: Sequence[Tally], *rules: str) -> Verdict:
    """The methods rank alike under every selection rule: cells are named `method, rule`."""
    orders: dict[str, list[str]] = {}
    run = [each for each in tallies if each]
    shared, told = alike(run) if run else ([], "")
    for rule in rules:
        under = [each for each in shared if each.cell.name.endswith(f", {rule}")]
        ranked = sorted(under, key=lambda each: -each.mean)
        orders[rule] = [each.cell.name.removesuffix(f", {rule}") for each in ranked]
    if min(map(len, orders.values())) < 2 or len({frozenset(order) for order in orders.values()}) > 1:
        return Verdict(NOT_TESTABLE, "Fewer than two methods have runs for every selection rule.")
    words = "; ".join(f"{rule}: {' > '.join(order)}" for rule, order in orders.items()) + told
    return Verdict(HELD if len({tuple(order) for order in orders.values()}) == 1 else NOT_HELD, f"{words}.")
