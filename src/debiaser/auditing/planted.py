"""Controls made on purpose: rows that go against the rule by construction, and labels that are wrong by construction.

A row that follows the rule and takes the named property from a row of another class must be conflicting; a row whose
label is replaced by another must be mislabelled. What the models call them says how far their word can be trusted.
"""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from debiaser.auditing.estimates import Estimate, share
from debiaser.auditing.health import FEW
from debiaser.auditing.jobs import Rows
from debiaser.auditing.kinds import SURE, Kinds, likelihoods, posterior
from debiaser.auditing.scoring import Desk, OutOfFold, Vector, ask_panel, read_panel
from debiaser.auditing.subject import Subject
from debiaser.auditing.swap import BATCH, Pairs
from debiaser.auditing.views import View
from debiaser.learn.engine import told_of
from debiaser.randomness import numpy_stream

MOST = 600  # rows planted
TOLERATED = 20.0  # percent of planted conflicts that may be called mislabelled before no kind is asserted
UNNAMED = (
    "No property is named that the model follows, so a row that goes against the easy rule cannot be told from a wrong "
    "label: no kind is asserted."
)


@dataclass(frozen=True, eq=False)
class Planted:
    """Rows (m,) with the named property of rows of another class, and what models that never saw them say.

    easy (m, k) and judge (s, m, k) are probabilities; donor (m,) the class whose property arrived.
    """

    view: View
    rows: Rows
    donor: Rows
    easy: Vector
    judge: NDArray[np.float64]


@dataclass(frozen=True)
class Controls:
    """What became of planted rows, in percent: conflicts that the easy model misses (found), conflicts and flips that
    were called mislabelled, the former of those found."""

    view: str
    title: str
    conflicts: int
    found: Estimate
    conflicts_called: Estimate
    flips: int
    flips_called: Estimate

    @property
    def plain(self) -> dict[str, Any]:
        shares = {name: getattr(self, name).plain for name in ("found", "conflicts_called", "flips_called")}
        return {**asdict(self), **shares, "sentence": self.words}

    @property
    def words(self) -> str:
        """What the controls showed."""
        if not self.conflicts:
            return "No row could be made on purpose: the easy model follows the rule on none that could take another's."
        missed = f"the easy model misses {self.found.words()}"
        if self.found.value:
            missed += f", and {self.conflicts_called.words()} of these would be called mislabelled"
        return (
            f"Checked on rows made on purpose: of {self.conflicts:,} that took the {self.title} of another class "
            f"{missed}; of {self.flips:,} labels made wrong {self.flips_called.words()} would be called mislabelled."
        )

    @property
    def doubts(self) -> str:
        """Why no kind may be asserted; empty where kinds may."""
        missed = round(self.conflicts * self.found.value / 100) if self.conflicts else 0
        if missed < FEW:
            return (
                f"Only {missed:,} rows that were made to go against the rule fooled the easy model; {FEW} are needed "
                "to check what kinds are called: no kind is asserted."
            )
        if self.conflicts_called.value > TOLERATED:
            return (
                f"Of {missed:,} rows that were made to go against the rule, {self.conflicts_called.value:.0f}% would "
                f"have been called mislabelled, more than {TOLERATED:.0f}%: no kind is asserted."
            )
        return ""


def plant(subject: Subject, desk: Desk, easy: OutOfFold, judge: OutOfFold, view: View, pairs: Pairs) -> Planted:
    """Rows that follow the rule, made to go against it: each takes the view from its donor of another class."""
    pool = desk.rows
    follows = np.flatnonzero(easy.answer[pool[pairs.rows]] == desk.y[pool[pairs.rows]])
    mixed = numpy_stream(desk.seed, "planted").permutation(follows)
    chosen = np.sort(mixed[:MOST])
    rows, donors = pool[pairs.rows[chosen]], pool[pairs.donors[chosen]]
    easy_panel, judge_panel = read_panel(desk, easy), read_panel(desk, judge)
    easy_said, judge_said = [], []
    for start in told_of(desk.listener, "planted rows", range(0, len(rows), BATCH)):
        part = slice(start, start + BATCH)
        x, other = (subject.read(torch.from_numpy(each[part])) for each in (rows, donors))
        entered = subject.enter(view.swap(x, other, torch.from_numpy(pairs.rows[chosen][part])))
        easy_said.append(ask_panel(desk, easy_panel, rows[part], entered).mean(0))
        judge_said.append(ask_panel(desk, judge_panel, rows[part], entered))
    classes = len(desk.material.classes)
    return Planted(
        view,
        rows,
        desk.y[donors],
        np.concatenate([np.zeros((0, classes)), *easy_said]),
        np.concatenate([np.zeros((len(judge.keys), 0, classes)), *judge_said], 1),
    )


def check_controls(planted: Planted, desk: Desk, easy: OutOfFold, kinds: Kinds, unit: Rows) -> Controls:
    """What the rule for kinds calls planted conflicts, and labels that were flipped on rows that follow the rule."""
    assert kinds.judge is not None
    assert kinds.noise is not None
    label = desk.y[planted.rows]
    missed = planted.easy.argmax(1) != label
    conflicts = called(planted.easy, planted.judge, label, kinds.noise)[missed]
    stream, classes = numpy_stream(desk.seed, "planted", "flips"), len(desk.material.classes)
    flipped = (label + stream.integers(1, classes, len(label))) % classes
    flips = called(
        easy.probability[planted.rows], kinds.judge.probability_by_seed[:, planted.rows], flipped, kinds.noise
    )
    of_rows = unit[planted.rows]
    return Controls(
        planted.view.name,
        planted.view.title,
        len(label),
        share(missed, of_rows, desk.seed),
        share(conflicts, of_rows[missed], desk.seed),
        len(flips),
        share(flips, of_rows, desk.seed),
    )


def called(easy: Vector, judge: NDArray[np.float64], label: Rows, noise: Vector) -> NDArray[np.bool_]:
    """(m,) whether rows with these labels would be called mislabelled: sure in all seeds."""
    sure = [posterior(pi, *likelihoods(each, easy, label)) > SURE for pi, each in zip(noise, judge, strict=True)]
    return np.asarray(np.stack(sure).all(0))
