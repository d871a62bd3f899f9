"""What a study is: cells (runs and a number to read from each), a claim, and a rule that judges it. Plain values."""

import math
import statistics
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from debiaser.paper.published import Published, published
from debiaser.paper.results import is_number
from debiaser.paper.settings import SETTINGS
from debiaser.paper.spec import Spec, planned_spec

HELD, NOT_HELD, NOT_TESTABLE = "held", "not held", "not testable"
Place: TypeAlias = tuple[str, float | None, float]  # dataset, rho, noise


@dataclass(frozen=True)
class Cell:
    """One number of a table: the runs behind it (one per seed) and what is read from each of them.

    `reads`: a path in a result, such as `metrics.unbiased`. `changes`: `--set` texts. `variant`, `metric` and `table`:
    under which the paper's number stands in `paper.csv`; `printed` is False where the paper has none for this cell.
    `options`: `--option` texts.
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

    @property
    def part(self) -> str:
        """Which part of a result is read."""
        return self.reads.partition(".")[0]

    @property
    def place(self) -> Place:
        """What cells must share to be compared."""
        return self.dataset, self.rho, self.noise

    def spec(self, recipe: str, seed: int, epochs: int | None = None) -> Spec:
        """The run of this seed."""
        return planned_spec(
            self.dataset, self.method, self.rho, recipe, epochs, seed, self.noise, self.net, self.changes, self.options
        )

    def command(self, recipe: str, seed: int, epochs: int | None = None) -> list[str]:
        """The words of the command that makes this run, without folders."""
        words = ["train", self.dataset, "--method", self.method]
        for option, value in (("--rho", self.rho), ("--noise", self.noise or None), ("--net", self.net)):
            words += [] if value is None else [option, f"{value:g}" if isinstance(value, float) else value]
        words += ["--recipe", recipe] if recipe != "fast" else []
        words += [] if epochs is None else ["--epochs", str(epochs)]
        words += ["--seed", str(seed)]
        pairs = [("--set", change) for change in self.changes]
        pairs += [("--option", option) for option in self.options]
        return words + [word for pair in pairs for word in pair]

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
    results: tuple[dict[str, Any], ...] = field(default=(), repr=False)

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


@dataclass(frozen=True)
class Verdict:
    """held, not held or not testable; a sentence with the numbers behind it; `tested`: where, if not everywhere."""

    claim: str
    sentence: str
    tested: str = ""


Judge: TypeAlias = Callable[[Sequence[Tally]], Verdict]


@dataclass(frozen=True)
class Study:
    """A table or figure of the paper, or a study of ours, by its label.

    `claim`: what is judged, in words. `protocol`: what the reader must know beyond recipe and seeds. `figure`: how it
    is drawn. `seeds`: at least so many.
    """

    label: str
    title: str
    claim: str
    cells: tuple[Cell, ...]
    judge: Judge = field(repr=False)
    protocol: str = ""
    figure: str = "bars"
    seeds: int = 1
    ours: bool = False

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


def read(result: dict[str, Any], path: str) -> float | None:
    """The number at a path of a result; `seconds` is the sum over stages; None where there is none."""
    if path == "seconds":
        return float(sum(result["seconds"].values()))
    found: Any = result
    for name in path.split("."):
        if isinstance(found, list):
            found = found[int(name)] if name.isdecimal() and int(name) < len(found) else None
        else:
            found = found.get(name) if isinstance(found, dict) else None
    return float(found) if is_number(found) else None


def places(tallies: Iterable[Tally]) -> dict[Place, list[Tally]]:
    """The tallies by place, in order."""
    found: dict[Place, list[Tally]] = {}
    for tally in tallies:
        found.setdefault(tally.cell.place, []).append(tally)
    return found


def at(place: Place) -> str:
    """A place in words: `cmnist at rho 0.5%`."""
    dataset, rho, noise = place
    words = dataset if rho is None else f"{dataset} at rho {rho * 100:.3g}%"
    return f"{words} with {noise * 100:.3g}% of labels flipped" if noise else words
