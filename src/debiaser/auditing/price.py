"""What debiasing gains on rows that go against the rule, what it costs on rows that follow it, and when it pays."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from debiaser.auditing.estimates import FEWEST_UNITS, Estimate, resampled_means, resampled_seeds
from debiaser.auditing.jobs import Rows
from debiaser.auditing.repair import VANILLA, Trial
from debiaser.auditing.scoring import Vector

NEVER = 100.0  # percent: there is no share of cases from which it pays


def price(trial: Trial, chosen: str, seed: int = 0) -> dict[str, Any] | None:
    """Gain and cost in points, and the share in percent of cases against the rule from which the chosen model is
    better than vanilla: cost / (cost + gain). Intervals over units and seeds; None without rows of both kinds."""
    against = trial.misses
    if not against.any() or against.all():
        return None
    right = {name: (trial.contenders[name].answers == trial.labels).astype(np.float64) for name in (VANILLA, chosen)}
    change = 100 * (right[chosen] - right[VANILLA])  # (s, m)
    gains = resampled_changes(change, against, trial.unit, seed)
    costs = -resampled_changes(change, ~against, trial.unit, seed)
    gain, cost = float(change[:, against].mean()), -float(change[:, ~against].mean())
    shares = [break_even(*pair) for pair in zip(costs.tolist(), gains.tolist(), strict=True)]
    method = f"bootstrap over {len(np.unique(trial.unit)):,} units and {trial.seeds} seeds"

    def estimate(value: float, values: Any) -> Estimate:
        if len(np.unique(trial.unit)) < FEWEST_UNITS:
            return Estimate(value, method=f"{method}, too few for an interval")
        low, high = np.percentile(values, [2.5, 97.5])
        return Estimate(value, float(low), float(high), method)

    even = estimate(break_even(cost, gain), shares)
    before, after = (
        {"against": 100 * float(each[:, against].mean()), "follow": 100 * float(each[:, ~against].mean())}
        for each in (right[VANILLA], right[chosen])
    )
    return {
        "gain": estimate(gain, gains).plain,
        "cost": estimate(cost, costs).plain,
        "break_even": even.plain,
        "before": before,
        "after": after,
        "rows_against": int(against.sum()),
        "rows_follow": int((~against).sum()),
        "sentence": pays(even, cost, gain),
    }


def resampled_changes(change: Vector, part: NDArray[np.bool_], unit: Rows, seed: int) -> Vector:
    """(DRAWS,) the mean change (s, m) over a part of the rows, over bootstrap samples of units and seeds."""
    columns = np.concatenate([change * part, part[None].astype(np.float64)]).T
    drawn = resampled_means(columns, unit, seed)
    by_seed = drawn[:, :-1] / np.maximum(drawn[:, -1:], 1e-12)
    return np.asarray((by_seed * resampled_seeds(len(change), len(drawn), seed)).sum(1))


def break_even(cost: float, gain: float) -> float:
    """The share in percent from which a gain outweighs a cost: 0 where nothing is lost, NEVER where nothing is won."""
    if gain <= 0:
        return NEVER
    return 0.0 if cost <= 0 else 100 * cost / (cost + gain)


def pays(even: Estimate, cost: float, gain: float) -> str:
    """When it pays, in words."""
    points = f"({gain:+.1f} points on those, {-cost:+.1f} on the others)"
    if (even.low or 0.0) <= 0 and (NEVER if even.high is None else even.high) >= NEVER:
        return f"These rows cannot tell from how many cases against the rule on it is better {points}."
    if gain <= 0 and cost < 0:  # the other way round: what it wins is on rows that follow the rule
        return f"Better only if fewer than {100 * cost / (cost + gain):.1f}% of the cases go against the rule {points}."
    if even.value >= NEVER:
        return "No share of cases that go against the rule makes it better: it gains nothing on them."
    told = f"Better if more than {even.words()} of the cases in the field go against the rule"
    if even.value <= 0:
        told = f"Better at any share of cases that go against the rule [{even.low:.1f}, {even.high:.1f}%]"
    return f"{told} {points}."


def compared(sentence: str, here: dict[str, Any], field: dict[str, Any] | None) -> str:
    """The sentence with the shares of such cases in this data and, where it was looked at, in the field."""
    told = f"{sentence[:-1]}; your data: between {100 * here['low']:.1f}% and {100 * here['high']:.1f}%"
    if field is not None and field["value"] is not None:
        told += f"; the field folder: {field['value']:.1f}% [{field['low']:.1f}, {field['high']:.1f}]"
    return told + "."
