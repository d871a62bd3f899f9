"""What the numbers of runs say, in plain sentences, also when they say that nothing was gained."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from scipy import stats

from debiaser.report.runs import Result
from debiaser.report.tables import Row, count, method_name, part, percent, points

# A model whose accuracy differs less than this between the two kinds of samples is not said to follow the shortcut.
NOTICEABLE_GAP = 10.0
# Differences below one point are never called a gain, however many test samples there are.
SMALLEST_GAIN = 1.0
# Below this effective sample size a training hangs on a handful of samples.
FEW = 50
TEXTS = frozenset({"civilcomments"})


@dataclass(frozen=True)
class Finding:
    """The verdict, a headline, sentences and caveats; `kind` is helped, hurt, mixed, unclear, single or unknown."""

    kind: str
    headline: str
    sentences: Sequence[str] = ()
    caveats: Sequence[str] = ()
    plain: Row | None = None
    treated: Row | None = None


def noun(dataset: str) -> str:
    """What the samples of a dataset are."""
    return "comments" if dataset in TEXTS else "images"


def bias_word(row: Row) -> str:
    """The shortcut by its name, or `shortcut`."""
    return row["results"][0].get("bias_name") or "shortcut"


def finding(rows: Sequence[Row]) -> Finding:
    """What the rows of one section say together: PGD, or the first other method, beside plain training."""
    treated = min(
        (row for row in rows if row["method"] != "vanilla"), key=lambda row: row["method"] != "pgd", default=None
    )
    plain = [row for row in rows if row["method"] == "vanilla"]
    if not plain or treated is None:
        return _single(treated or plain[0])
    plain.sort(key=lambda row: row["samples_seen"] != treated["samples_seen"])  # as long a training, if there is one
    return _comparison(plain[0], treated, rows)


def _single(row: Row) -> Finding:
    things, bias, vanilla = noun(row["dataset"]), bias_word(row), row["method"] == "vanilla"
    who, measure = "The plain model" if vanilla else method_name(row["method"]), row["conflicting"]
    where = f"{things} that go against the {bias}"
    if measure is None:
        measure, where = row["unbiased"], f"test {things}"
    sides: dict[str, Any] = {"plain": row} if vanilla else {"treated": row}
    if measure is None:
        return Finding("unknown", "This run holds no accuracies.", **sides)
    sentences = [_describe(row, who)] if row["conflicting"] is not None else []
    other = "a run of PGD" if vanilla else "a plain run (vanilla)"
    sentences += [f"There is nothing to compare it with yet: {other} on the same data would show what changes."]
    return Finding("single", f"{who} is right on {percent(measure)} of the {where}.", sentences, _caveats(row), **sides)


def _describe(row: Row, name: str) -> str:
    """One sentence on whether a model follows the shortcut."""
    things, bias, aligned, conflicting = noun(row["dataset"]), bias_word(row), row["aligned"], row["conflicting"]
    if aligned is None:
        return f"{name} is right on {percent(conflicting)} of the {things} that go against the {bias}."
    follows = "follows" if aligned - conflicting >= NOTICEABLE_GAP else "shows little sign of following"
    return (
        f"{name} {follows} the {bias}: it is right on {percent(aligned)} of the {things} that follow the shortcut"
        f" and {percent(conflicting)} of those that go against it."
    )


def margin(plain: Row, treated: Row, metric: str) -> float:
    """The difference in points below which chance explains it: 95% from the test size, and from the seeds if three."""
    variance = 0.0
    for row in (plain, treated):
        # Agresti-Coull: half a sample on either side keeps 0% and 100% from looking certain.
        size = _tested(row, metric)
        rate = (row[metric] / 100 * size + 2) / (size + 4)
        variance += rate * (1 - rate) / (size + 4)
    by_seed = [
        {result["seed"]: value for result in row["results"] if (value := result["metrics"].get(metric)) is not None}
        for row in (plain, treated)
    ]
    gains = [by_seed[1][seed] - before for seed, before in by_seed[0].items() if seed in by_seed[1]]
    from_seeds = 0.0
    if len(gains) >= 3:
        from_seeds = float(stats.t.ppf(0.975, len(gains) - 1)) * float(stats.sem(gains))
    return max(SMALLEST_GAIN, 100 * 1.96 * math.sqrt(variance), from_seeds)


def _tested(row: Row, metric: str) -> float:
    """How many test samples stand behind a mean, over all its seeds."""
    size = float(sum(result["rows"].get("test", 0) for result in row["results"]))
    if metric == "unbiased":
        return max(size, 1.0)
    unbiased, aligned, conflicting = row["unbiased"], row["aligned"], row["conflicting"]
    # Accuracy on all is the weighted mean of the two kinds, which gives their shares unless both are equal.
    weight = 0.5
    if None not in (unbiased, aligned, conflicting) and abs(conflicting - aligned) > 2:
        weight = min(max((unbiased - aligned) / (conflicting - aligned), 0.05), 0.95)
    return max(size * (weight if metric == "conflicting" else 1 - weight), 1.0)


def _comparison(plain: Row, treated: Row, rows: Sequence[Row]) -> Finding:
    name, things, bias = method_name(treated["method"]), noun(plain["dataset"]), bias_word(rows[0])
    metric, where, those = "conflicting", f"{things} that go against the {bias}", "those"
    if plain["conflicting"] is None or treated["conflicting"] is None:
        metric, where, those = "unbiased", f"test {things}", f"the test {things}"
    gain = _gain(plain, treated, metric)
    if gain is None:
        return Finding("unknown", "These runs hold no accuracies to compare.", plain=plain, treated=treated)
    chance, overall = margin(plain, treated, metric), _gain(plain, treated, "unbiased")
    kind = "helped" if gain >= chance else "hurt" if gain <= -chance else "unclear"
    if kind == "helped" and overall is not None and overall <= -margin(plain, treated, "unbiased"):
        kind = "mixed"
    numbers = f"{percent(treated[metric])} of the {where}, plain training on {percent(plain[metric])}"
    headline = {
        "helped": f"{name} helped: it is right on {numbers}.",
        "hurt": f"{name} did not help here: it is right on {numbers}.",
        "mixed": f"{name} is a trade here: it is right on {numbers}, but on fewer {things} overall.",
        "unclear": f"No clear difference: {name} is right on {numbers}.",
    }[kind]
    change = f"{points(gain)} {'more' if gain >= 0 else 'fewer'}"
    told = f"{name}, without being told about the {bias}, is right on {percent(treated[metric])} of {those}"
    if kind == "unclear":
        size = "no different" if abs(gain) < 0.05 else change
        told += f": {size}, and a difference below {points(chance)} can be chance with a test set of this size."
    else:
        told += f", {change}."
    sentences = [told]
    if metric == "conflicting":
        sentences = [_describe(plain, "The plain model"), told, *_cost(plain, treated)]
    others = [row for row in rows if row is not treated and row["method"] != "vanilla" and row[metric] is not None]
    best = max(others, key=lambda row: float(row[metric]), default=treated)
    if best[metric] > treated[metric]:
        sentences.append(f"The best here on those is {best['label']} with {percent(best[metric])}.")
    return Finding(kind, headline, sentences, _caveats(plain, treated), plain, treated)


def _gain(plain: Row, treated: Row, metric: str) -> float | None:
    return None if plain[metric] is None or treated[metric] is None else float(treated[metric] - plain[metric])


def _cost(plain: Row, treated: Row) -> list[str]:
    """What the change did to the samples that follow the shortcut."""
    change = _gain(plain, treated, "aligned")
    if change is None:
        return []
    where, right = f"the {noun(plain['dataset'])} that follow the shortcut", f"{percent(treated['aligned'])} right"
    if abs(change) < SMALLEST_GAIN:
        return [f"On {where} next to nothing changes ({right})."]
    chance = margin(plain, treated, "aligned")
    doubt = (
        f"; the test set has few of these, so below {points(chance)} it can be chance" if abs(change) < chance else ""
    )
    return [f"On {where} it {'loses' if change < 0 else 'gains'} {points(change)} ({right}{doubt})."]


def _caveats(*rows: Row) -> list[str]:
    """Whether the trainings were as long, and how many seeds stand behind the numbers."""
    seen, seeds = [row["samples_seen"] for row in rows], min(len(row["seeds"]) for row in rows)
    told = []
    if len(rows) == 2 and None not in seen:
        told = [f"Both were trained on the same number of samples seen ({count(seen[0])})."]
        if abs(seen[0] - seen[1]) > 0.01 * max(seen):
            told = [
                f"They did not see the same number of samples (plain {count(seen[0])}, {method_name(rows[1]['method'])}"
                f" {count(seen[1])}), so part of the difference may come from the length of training."
            ]
    if seeds > 1:
        return [*told, f"Averages over {seeds} seeds."]
    return [*told, "One seed each: another seed will give somewhat other numbers." if len(rows) > 1 else "One seed."]


def share_before(result: Result) -> float | None:
    """The share of the training set that goes against the shortcut: counted if known, else rho."""
    conflicting: float | None = result["rows"].get("conflicting")
    rho: float | None = result["rho"]
    return rho if conflicting is None else conflicting / result["rows"]["train"]


def score_words(result: Result, things: str) -> list[str]:
    """What the scores of one run are worth, in sentences."""
    names = ("auroc", "conflicting_mass", "average_precision", "effective_sample_size")
    auroc, mass, precision, size = (result["metrics"].get(f"score_{name}") for name in names)
    train, before = result["rows"]["train"], share_before(result)
    sentences = []
    if auroc is not None:
        sentences.append(
            f"Draw one of the {things} that go against the shortcut and one that follows it: in {percent(auroc * 100)}"
            f" of such pairs the first has the higher score (AUROC {auroc:.3f}; a blind guess gives 0.500)."
        )
    if precision is not None:
        blind = f"; a blind guess gives {before:.3f}" if before is not None else ""
        sentences.append(f"Average precision {precision:.3f}{blind}.")
    if mass is not None and before is not None:
        sentences.append(
            f"The {things} that go against the shortcut are {part(before)} of the training set"
            f" and get {part(mass)} of the draws of the debiased training."
        )
    if size is not None:
        told = f"Effective sample size of the debiased training: about {count(size)} of {count(train)} {things}."
        sentences.append(told + (" That is few, so expect other seeds to differ." if size < FEW else ""))
    return sentences
