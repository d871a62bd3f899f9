"""The field: how many cases there go against the rule, from inputs without labels.

Where the easy and the judging model disagree, a case probably goes against the rule. How often they disagree on rows
that follow it (a) and on rows made to go against it (b) is known here, so a share D of disagreements in the field means
a share (D - a) / (b - a) of such cases (Rogan and Gladen), if they look there as they do here.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from debiaser.auditing.crossval import ask_panel, read_panel
from debiaser.auditing.estimates import DRAWS, Estimate, resampled_means
from debiaser.auditing.examine import Examined
from debiaser.auditing.export import TABLES, picture_paths, texts_of
from debiaser.auditing.inputs import Subject, pictures_of
from debiaser.auditing.swap_test import BATCH, binomial_interval
from debiaser.data.images import Files, Pictures
from debiaser.data.own import READERS
from debiaser.data.own.folder import PICTURES
from debiaser.data.own.rows import first
from debiaser.errors import Problem
from debiaser.io import numpy_stream

MOST = 2000  # inputs that are read, at random
APART = 0.2  # points between b and a, as a share, below which disagreement says nothing
OTHER_SIZE = 2.0  # times larger or smaller than the data's own pictures: made in another way
TEXTS = {".csv", ".tsv", ".txt"}


@dataclass(frozen=True, eq=False)
class Field:
    """Inputs from where the model failed; read(start, stop) gives them as the audit's own."""

    inputs: Pictures | list[str]
    size: int

    def __len__(self) -> int:
        return len(self.inputs)

    def read(self, start: int, stop: int) -> Any:
        if isinstance(self.inputs, list):
            return self.inputs[start:stop]
        return self.inputs.read(torch.arange(start, min(stop, len(self.inputs))), self.size)

    @property
    def failed(self) -> list[str]:
        """Names of the inputs that were read so far and could not be: they are grey and count for nothing."""
        return [] if isinstance(self.inputs, list) else [*self.inputs.failed]

    def readable(self, start: int, count: int) -> NDArray[np.bool_]:
        """(count,) which of the inputs from `start` on, once read, are what they should be."""
        if isinstance(self.inputs, list):
            return np.ones(count, bool)
        return np.array([name not in self.inputs.failed for name in self.inputs.ids[start : start + count]], bool)


def find_field(path: Path, subject: Subject, seed: int = 0, column: str | None = None) -> Field:
    """The inputs in a folder or table, some of them at random where there are many; another kind or size is refused.

    `column`: of the data's own inputs; a table that has it too is read by it.
    """
    if not path.exists():
        raise Problem(f"no field folder {path}; check the path given to --field")
    files = [each for each in path.rglob("*") if each.is_file()] if path.is_dir() else [path]
    suffixes, stream = {each.suffix.lower() for each in files}, numpy_stream(seed, "field")
    if subject.own.kind == "text":
        named = sorted(str(each) for each in files if each.suffix.lower() in TEXTS) if path.is_dir() else [str(path)]
        if not named or suffixes <= PICTURES:
            there = "pictures" if suffixes & PICTURES else "no .txt or .csv files"
            raise Problem(f"--field {path} holds {there}, the data are texts; give a folder or CSV of texts")
        found = [text for each in named for _, text in texts_of([each], held(each, column)) if text.strip()]
        return Field([found[each] for each in drawn(len(found), stream, path)], subject.size)
    if path.is_dir() and not suffixes & PICTURES:
        there = "texts" if suffixes & TEXTS else "no pictures"
        raise Problem(f"--field {path} holds {there}, the data are pictures; give a folder of pictures")
    paths = list(picture_paths(str(path), held(str(path), column)))
    chosen = [paths[each] for each in drawn(len(paths), stream, path)]
    check_sizes(chosen, subject, path)
    return Field(Pictures(chosen, Files(chosen), np.zeros((len(chosen), 2), np.int64), ""), subject.size)


def held(path: str, column: str | None) -> str | None:
    """The column, where this is a table that has it."""
    table = Path(path)
    known = column is not None and table.is_file() and table.suffix.lower() in TABLES
    return column if known and column in READERS[table.suffix.lower()](table).columns else None


def drawn(n: int, stream: np.random.Generator, path: Path) -> list[int]:
    """At most MOST of n places, in order."""
    if not n:
        raise Problem(f"--field {path} holds nothing to read; give pictures or texts from where the model is used")
    return sorted(stream.permutation(n)[:MOST].tolist())


def check_sizes(paths: list[str], subject: Subject, path: Path) -> None:
    """Pictures much larger or smaller than the data's own come from another source: what is seen in them is not the
    same world."""
    from PIL import Image

    sides = []
    for each in paths[:: max(1, len(paths) // 200)]:
        try:
            with Image.open(each) as picture:
                sides.append(max(picture.size))
        except (OSError, ValueError, Image.DecompressionBombError):
            continue
    if not sides:
        raise Problem(f"none of the pictures in --field {path} can be read; give a folder of pictures that open")
    own, there = pictures_of(subject.own).median_side, int(np.median(sides))
    if not own / OTHER_SIZE <= there <= own * OTHER_SIZE:
        raise Problem(
            f"pictures in --field {path} are about {there} pixels a side, the data's about {own}: what the "
            "models learnt of one does not hold for the other; give field pictures of the same size"
        )


def estimate_share(examined: Examined, path: Path, column: str | None = None) -> dict[str, Any]:
    """The share in percent of cases in the field that go against the rule, with its interval and a sentence."""
    found = find_field(path, examined.subject, examined.desk.seed, column)
    kinds, planted = examined.kinds, examined.planted
    if kinds.judge is None or planted is None:
        why = "No property is named that the model follows, so cases that go against it cannot be counted in the field."
        return {**Estimate(float("nan"), method="none").plain, "value": None, "n": len(found), "sentence": why}
    pool = examined.pool
    y, easy = examined.desk.y[pool], examined.easy.answer[pool]
    follow = (easy != kinds.judge.answer[pool])[easy == y]
    against = planted.easy.argmax(1) != planted.judge.mean(0).argmax(1)
    field = disagreements(examined, found)
    unit, seed = examined.subject.own.unit, examined.desk.seed
    share = told(follow, against, field, unit, pool[easy == y], planted.rows, seed)
    if failed := found.failed:
        share["sentence"] += f" {len(failed):,} files there could not be read and were left out: {first(failed)}."
    return share


def disagreements(examined: Examined, found: Field) -> NDArray[np.bool_]:
    """(m,) where the easy and the judging models of one fold, a random one for each input, differ."""
    desk = examined.desk
    assert examined.kinds.judge is not None
    panels = [read_panel(desk, each) for each in (examined.easy, examined.kinds.judge)]
    stand_ins = numpy_stream(desk.seed, "field", "folds").choice(desk.rows, len(found))
    parts = []
    for start in range(0, len(found), BATCH):
        entered = examined.subject.enter(found.read(start, start + BATCH))
        rows = stand_ins[start : start + BATCH]
        easy, judge = (ask_panel(desk, panel, rows, entered).mean(0).argmax(1) for panel in panels)
        parts.append((easy != judge)[found.readable(start, len(rows))])
    return np.concatenate(parts)


def told(
    follow: NDArray[np.bool_],
    against: NDArray[np.bool_],
    field: NDArray[np.bool_],
    unit: NDArray[np.int64],
    follow_rows: NDArray[np.int64],
    against_rows: NDArray[np.int64],
    seed: int,
) -> dict[str, Any]:
    """The corrected share of disagreements, from those on rows that follow the rule and on rows planted against it."""
    n = len(field)
    few, many, seen = (float(each.mean()) if len(each) else 0.0 for each in (follow, against, field))
    why = ""
    if many - few < APART or not n:
        why = "The models hardly disagree on rows made to go against the rule, so cases in the field cannot be counted."
    elif binomial_interval(seen, n)[0] > binomial_interval(many, len(np.unique(unit[against_rows])))[1]:
        why = (
            f"The models disagree on {seen:.0%} of the cases in the field, and only on {many:.0%} of rows made to go "
            "against the rule: the field differs in more than that, so such cases cannot be counted there."
        )
    if why:
        return {**Estimate(float("nan"), method="none").plain, "value": None, "n": n, "sentence": why}
    a = resampled_means(follow.astype(np.float64), unit[follow_rows], seed)[:, 0]
    b = resampled_means(against.astype(np.float64), unit[against_rows], seed + 1)[:, 0]
    d = numpy_stream(seed, "field", "bootstrap").binomial(n, seen, DRAWS) / n
    shares = np.clip(100 * (d - a) / np.maximum(b - a, 1e-6), 0, 100)
    low, high = (float(each) for each in np.percentile(shares, [2.5, 97.5]))
    value = float(np.clip(100 * (seen - few) / (many - few), 0, 100))
    method = f"disagreement of two models on {n:,} inputs, corrected by rows planted here; bootstrap"
    words = f"In the field {value:.1f}% [{low:.1f}, {high:.1f}] of {n:,} cases go against the rule."
    return {**Estimate(value, low, high, method).plain, "n": n, "sentence": words}
