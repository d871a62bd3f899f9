"""What the numbers say, in plain sentences, also when they say that nothing was gained."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scipy import stats

from debiaser.report.runs import Result, number
from debiaser.report.tables import Row, count, method_name, seed_of

# A model whose accuracy differs less than this between the two kinds of pictures is not said to follow the shortcut.
NOTICEABLE_GAP = 10.0
# Differences below one point are never called a gain, however many test pictures there are.
SMALLEST_GAIN = 1.0
# Below this effective sample size a training hangs on a handful of samples.
FEW = 50
TEXTS = frozenset({"civilcomments"})


@dataclass(frozen=True)
class Finding:
    """The verdict, a headline, sentences and caveats; `kind` is helped, hurt, mixed, unclear, single or unknown."""

    kind: str
    headline: str
    sentences: tuple[str, ...]
    caveats: tuple[str, ...]
    plain: Row | None
    treated: Row | None


def noun(dataset: str) -> str:
    """What the rows of a dataset are."""
    return "comments" if dataset in TEXTS else "pictures"


def percent(value: float) -> str:
    """Whole percent, except where rounding would claim all or nothing."""
    rounded = round(value)
    if rounded in (0, 100) and value != rounded:
        return f"{value:.1f}%" if 0.05 <= value < 99.95 else ("almost 100%" if rounded else "almost 0%")
    return f"{rounded}%"


def points(value: float) -> str:
    """A difference of accuracies, without its sign."""
    text = f"{abs(value):.1f}"
    return f"{text} point" if text == "1.0" else f"{text} points"


def finding(rows: Sequence[Row]) -> Finding:
    """What the rows of one section say together."""
    treated = next((row for row in rows if row["method"] == "pgd"), None)
    treated = treated or next((row for row in rows if row["method"] != "vanilla"), None)
    plain = _control(rows, treated)
    things, bias = noun(rows[0]["dataset"]), bias_word(rows[0])
    if plain is None or treated is None:
        return _single(plain or treated or rows[0], things, bias)
    metric = "conflicting" if plain["conflicting"] is not None and treated["conflicting"] is not None else "unbiased"
    if plain[metric] is None or treated[metric] is None:
        headline = "These runs hold no accuracies to compare."
        return Finding("unknown", headline, (), (), plain, treated)
    return _comparison(plain, treated, metric, things, bias, _better(rows, treated, metric))


def _better(rows: Sequence[Row], treated: Row, metric: str) -> str:
    """A sentence on the best other row, if it beats the one that the summary is about."""
    others = [row for row in rows if row is not treated and row["method"] != "vanilla" and row[metric] is not None]
    best = max(others, key=lambda row: float(row[metric]), default=None)
    if best is None or best[metric] <= treated[metric]:
        return ""
    return f"The best here on those is {best['label']} with {percent(best[metric])}."


def bias_word(row: Row) -> str:
    """The shortcut by its name, or `shortcut`."""
    name = row["results"][0].get("bias_name")
    return name if isinstance(name, str) and name else "shortcut"


def _control(rows: Sequence[Row], treated: Row | None) -> Row | None:
    """The plain model, the one that saw as many samples as the other where there are several."""
    plain = [row for row in rows if row["method"] == "vanilla"]
    if treated is not None:
        plain.sort(key=lambda row: row["samples_seen"] != treated["samples_seen"])
    return plain[0] if plain else None


def _single(row: Row, things: str, bias: str) -> Finding:
    who = _subject(row)
    sentences = [_describe(row, who, things, bias)] if row["conflicting"] is not None else []
    other = "a run of PGD" if row["method"] == "vanilla" else "a plain run (vanilla)"
    sentences += [f"There is nothing to compare it with yet: {other} on the same data would show what changes."]
    measure = row["conflicting"] if row["conflicting"] is not None else row["unbiased"]
    if measure is None:
        return Finding("unknown", "This run holds no accuracies.", (), (), None, None)
    where = f"{things} that go against the {bias}" if row["conflicting"] is not None else f"test {things}"
    headline = f"{who[0].upper()}{who[1:]} is right on {percent(measure)} of the {where}."
    plain, treated = (row, None) if row["method"] == "vanilla" else (None, row)
    return Finding("single", headline, tuple(sentences), (_certainty([row]),), plain, treated)


def _subject(row: Row) -> str:
    return "the plain model" if row["method"] == "vanilla" else method_name(row["method"])


def _describe(row: Row, who: str, things: str, bias: str) -> str:
    """One sentence on whether a model follows the shortcut."""
    name = f"{who[0].upper()}{who[1:]}"
    aligned, conflicting = row["aligned"], row["conflicting"]
    if aligned is None:
        return f"{name} is right on {percent(conflicting)} of the {things} that go against the {bias}."
    both = (
        f"it is right on {percent(aligned)} of the {things} that follow the shortcut"
        f" and {percent(conflicting)} of those that go against it."
    )
    if aligned - conflicting >= NOTICEABLE_GAP:
        return f"{name} follows the {bias}: {both}" if bias != "shortcut" else f"{name} follows a shortcut: {both}"
    return f"{name} shows little sign of following the {bias}: {both}"


def margin(plain: Row, treated: Row, metric: str) -> float:
    """The difference in points below which chance explains it: 95% from the test size, and from the seeds if three."""
    tested = [_tested(row, metric) for row in (plain, treated)]
    variance = 0.0
    for row, size in zip((plain, treated), tested, strict=True):
        # Agresti-Coull: half a picture on either side keeps 0% and 100% from looking certain.
        rate = (row[metric] / 100 * size + 2) / (size + 4)
        variance += rate * (1 - rate) / (size + 4)
    from_test = 100 * 1.96 * math.sqrt(variance)
    differences = _paired_differences(plain, treated, metric)
    from_seeds = 0.0
    if len(differences) >= 3:
        error = float(stats.sem(differences))
        from_seeds = float(stats.t.ppf(0.975, len(differences) - 1)) * error
    return max(SMALLEST_GAIN, from_test, from_seeds)


def _tested(row: Row, metric: str) -> float:
    """How many test pictures stand behind a mean, over all its seeds."""
    size = sum(number(result["rows"].get("test")) or 0.0 for result in row["results"])
    if metric not in ("aligned", "conflicting"):
        return max(size, 1.0)
    unbiased, aligned, conflicting = row["unbiased"], row["aligned"], row["conflicting"]
    # Accuracy on all is the weighted mean of the two kinds, which gives their shares unless both are equal.
    weight = 0.5
    if None not in (unbiased, aligned, conflicting) and abs(conflicting - aligned) > 2:
        weight = min(max((unbiased - aligned) / (conflicting - aligned), 0.05), 0.95)
    return max(size * (weight if metric == "conflicting" else 1 - weight), 1.0)


def _paired_differences(plain: Row, treated: Row, metric: str) -> list[float]:
    first = {seed_of(result): number(result["metrics"].get(metric)) for result in plain["results"]}
    second = {seed_of(result): number(result["metrics"].get(metric)) for result in treated["results"]}
    pairs = [(first[seed], second.get(seed)) for seed in first]
    return [after - before for before, after in pairs if before is not None and after is not None]


def _comparison(plain: Row, treated: Row, metric: str, things: str, bias: str, better: str) -> Finding:
    name = method_name(treated["method"])
    gain, chance = treated[metric] - plain[metric], margin(plain, treated, metric)
    kind = "helped" if gain >= chance else "hurt" if gain <= -chance else "unclear"
    overall = _difference(plain, treated, "unbiased")
    if kind == "helped" and overall is not None and overall <= -margin(plain, treated, "unbiased"):
        kind = "mixed"
    where = f"{things} that go against the {bias}" if metric == "conflicting" else f"test {things}"
    numbers = f"{percent(treated[metric])} of the {where}, plain training on {percent(plain[metric])}"
    headline = {
        "helped": f"{name} helped: it is right on {numbers}.",
        "hurt": f"{name} did not help here: it is right on {numbers}.",
        "mixed": f"{name} is a trade here: it is right on {numbers}, but on fewer {things} overall.",
        "unclear": f"No clear difference: {name} is right on {numbers}.",
    }[kind]
    sentences = [_describe(plain, "the plain model", things, bias)] if metric == "conflicting" else []
    sentences += [_change(name, treated, metric, gain, chance, kind, where, bias)]
    sentences += _cost(plain, treated, things) if metric == "conflicting" else []
    sentences += [better] if better else []
    caveats = [sentence for sentence in (_fairness(plain, treated), _certainty([plain, treated])) if sentence]
    return Finding(kind, headline, tuple(sentences), tuple(caveats), plain, treated)


def _change(name: str, treated: Row, metric: str, gain: float, chance: float, kind: str, where: str, bias: str) -> str:
    right = f"is right on {percent(treated[metric])} of " + ("those" if metric == "conflicting" else f"the {where}")
    told = f"{name}, without being told about the {bias}, {right}"
    direction = "more" if gain >= 0 else "fewer"
    if kind == "unclear":
        size = "no different" if abs(gain) < 0.05 else f"{points(gain)} {direction}"
        return f"{told}: {size}, and a difference below {points(chance)} can be chance with a test set of this size."
    return f"{told}, {points(gain)} {direction}."


def _difference(plain: Row, treated: Row, metric: str) -> float | None:
    if plain[metric] is None or treated[metric] is None:
        return None
    return float(treated[metric] - plain[metric])


def _cost(plain: Row, treated: Row, things: str) -> list[str]:
    """What the change did to the pictures that follow the shortcut."""
    change = _difference(plain, treated, "aligned")
    if change is None:
        return []
    where, right = f"the {things} that follow the shortcut", f"{percent(treated['aligned'])} right"
    if abs(change) < SMALLEST_GAIN:
        return [f"On {where} next to nothing changes ({right})."]
    doubt = ""
    if abs(change) < margin(plain, treated, "aligned"):
        doubt = (
            f"; the test set has few of these, so below {points(margin(plain, treated, 'aligned'))} it can be chance"
        )
    verb = "it loses" if change < 0 else "it gains"
    return [f"On {where} {verb} {points(change)} ({right}{doubt})."]


def _fairness(plain: Row, treated: Row) -> str:
    first, second = plain["samples_seen"], treated["samples_seen"]
    if first is None or second is None:
        return ""
    if abs(first - second) <= 0.01 * max(first, second):
        return f"Both were trained on the same number of samples seen ({count(first)})."
    return (
        f"They did not see the same number of samples (plain {count(first)}, {method_name(treated['method'])}"
        f" {count(second)}), so part of the difference may come from the length of training."
    )


def _certainty(rows: Sequence[Row]) -> str:
    seeds = min(len(row["seeds"]) for row in rows)
    if seeds == 1:
        return "One seed each: another seed will give somewhat other numbers." if len(rows) > 1 else "One seed."
    return f"Averages over {seeds} seeds."


def part(fraction: float) -> str:
    """A share in percent, with a decimal where it is small."""
    return percent(fraction * 100) if fraction >= 0.0995 else f"{fraction * 100:.2g}%"


def share_before(result: Result) -> float | None:
    """The share of the training set that goes against the shortcut: counted if known, else rho."""
    train, conflicting = number(result["rows"].get("train")), number(result["rows"].get("conflicting"))
    return conflicting / train if train and conflicting is not None else number(result.get("rho"))


def score_words(result: Result, things: str) -> list[str]:
    """What the scores of one run are worth, in sentences."""
    metrics, rows = result["metrics"], result["rows"]
    auroc, mass = number(metrics.get("score_auroc")), number(metrics.get("score_conflicting_mass"))
    precision, size = (
        number(metrics.get("score_average_precision")),
        number(metrics.get("score_effective_sample_size")),
    )
    train, before = number(rows.get("train")), share_before(result)
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
    if size is not None and train:
        few = " That is few, so expect other seeds to differ." if size < FEW else ""
        sentences.append(f"The debiased training rests on about {count(size)} of {count(train)} {things}.{few}")
    return sentences
