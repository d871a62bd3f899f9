"""The share of rows that go against the rule, as an interval: above by planted rows, below by what a person saw."""

import numpy as np
from numpy.typing import NDArray

from debiaser.auditing.audit import Examined
from debiaser.auditing.estimates import Estimate
from debiaser.auditing.jobs import Rows
from debiaser.auditing.reliance import binomial_interval
from debiaser.randomness import numpy_stream

LOOKS = 60  # rows, at random, that a person is asked to look at


def looks(examined: Examined) -> Rows:
    """Up to LOOKS of the rows that the easy model misses, at random, the same for the same data."""
    missed = easy_misses(examined)
    return np.sort(numpy_stream(examined.desk.seed, "looks").permutation(missed)[:LOOKS])


def easy_misses(examined: Examined) -> Rows:
    """The examined rows that the easy model misses, whatever was confirmed about them."""
    pool = examined.pool
    return np.asarray(pool[examined.easy.answer[pool] != examined.desk.y[pool]])


def conflicting_share(examined: Examined) -> Estimate:
    """From 0 to 1. Rows that go against the rule are missed, and not called mislabelled, as often as planted ones are:
    that bounds them above. What a person marked, best in the random looks, bounds them below."""
    n, missed = len(examined.pool), easy_misses(examined)
    kinds, controls = examined.kinds, examined.controls
    high, how = len(missed) / n, ["at most all rows that the easy model misses"]
    if controls is not None and controls.found.low is not None:
        called = 0.0 if kinds.abstains else (controls.conflicts_called.high or 0.0) / 100
        kept = missed[kinds.kind[missed] != "mislabelled"] if not kinds.abstains else missed
        reached = controls.found.low / 100 * (1 - called)
        high = min(1.0, len(kept) / n / reached) if reached > 0 else 1.0
        how = [f"at most what planted rows allow, of which {controls.found.words()} are missed"]
    low = 0.0
    if len(examined.confirmed):
        low, words = lower_end(examined, missed)
        how.append(words)
    expected = float(np.where(kinds.missed, 1 - kinds.wrong, 0.0)[examined.pool].mean())
    high = max(high, low)
    value = float("nan") if kinds.abstains else float(np.clip(expected, low, high))  # no kinds, no point in between
    return Estimate(value, low, high, "; ".join(how))


def lower_end(examined: Examined, missed: Rows) -> tuple[float, str]:
    """The least share that the marks allow, and how it was found: every confirmed row counts; the random looks, all
    marked, stand for the rest."""
    marks, n = examined.kinds.kind, len(examined.pool)
    seen = examined.confirmed
    counted = int((marks[seen] == "conflicting").sum()) / n
    drawn = looks(examined)
    looked = drawn[np.isin(drawn, seen)]
    if len(looked) < len(drawn) or not len(drawn):
        return counted, f"at least the rows confirmed to ({len(looked)} of the {len(drawn)} random looks are marked)"
    share = float((marks[looked] == "conflicting").mean())
    units = len(np.unique(examined.subject.own.unit[looked]))  # ten looks at one unit are one look
    projected = binomial_interval(share, units)[0] * len(missed) / n
    return max(counted, projected), f"at least what {len(looked)} random looks show, {share:.0%} of them conflicting"


def mislabelled_share(examined: Examined) -> Estimate:
    """From 0 to 1: expected; from the rows called so, less those that planted conflicts lead one to expect, to all
    that the easy model misses."""
    kinds, pool = examined.kinds, examined.pool
    missed: NDArray[np.bool_] = kinds.missed[pool]
    expected = float(np.where(missed, kinds.wrong[pool], 0.0).mean())
    low, high = 0.0, max(float(missed.mean()), expected)
    if not kinds.abstains:
        named = float((kinds.kind[pool] == "mislabelled").mean())
        amiss = (examined.controls.conflicts_called.high or 0.0) / 100 if examined.controls else 0.0
        low = max(0.0, named - amiss * float(missed.mean()))
    how = "no kind is asserted" if kinds.abstains else "from the rows called so, less those called so by mistake"
    value = float("nan") if kinds.abstains else expected
    return Estimate(value, min(low, expected), high, f"expected share; {how}, to all that the easy model misses")
