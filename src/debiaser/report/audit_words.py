"""What an audit found in plain sentences, numbers and figures, as plain dicts that the template only has to lay out.

Accuracies, error rates, `follows` and `chance` are in percent, excesses in points, shares between 0 and 1.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any

from debiaser.report import figures, tables
from debiaser.report.tables import count, part, percent, signed, with_interval

Part = dict[str, Any]
VERDICTS = {
    "biased": ("found", "A shortcut was found"),
    "no evidence": ("none", "No evidence of a shortcut"),
    "cannot tell": ("unclear", "These data cannot tell whether there is a shortcut"),
}
# Words that lose their capital after a colon; others may be names.
PLAIN = frozenset({"a", "all", "an", "each", "every", "fewer", "in", "it", "most", "no", "none", "one", "the", "this"})
MOST_SUSPECTS, MOST_FOREST, LONGEST = 40, 24, 500


def page_parts(findings: Part) -> Part:
    """What the template lays out beside the findings themselves (`found`): figures, sentences and what is put in order.

    The template writes numbers with the functions of `tables` (`t`).
    """
    shown = _ordered(findings["suspects"])
    return {
        "found": findings,
        "t": tables,
        "bar": figures.bar,
        "interval": interval,
        "p_words": p_words,
        "verdict": headline(findings),
        "things": noun(findings),
        "tiles": tiles(findings),
        "views": sorted(findings["views"], key=lambda view: float(view["chance"] - view["follows"])),
        "views_after": {view["name"]: view for view in (findings["repair"] or {}).get("views_after", ())},
        "suspects": shown[:MOST_SUSPECTS],
        "histogram": score_figure(findings),
        "plane": plane_figure(findings),
        "forest": forest_figure(shown[:MOST_FOREST]),
        "duplicates": duplicates(findings),
        "repair": repair(findings),
    }


def headline(findings: Part) -> Part:
    """The verdict as a sentence, and the other reasons."""
    kind, words = VERDICTS[findings["verdict"]]
    first, *others = findings["reasons"] or [""]
    told = f"{words}."
    if first.lower().startswith(words.lower()):
        told = first
    elif first:
        plain = first.split(" ", 1)[0].lower() in PLAIN
        told = f"{words}: {first[:1].lower() + first[1:] if plain else first}"
    return {"kind": kind, "headline": told, "reasons": others}


def interval(estimate: Part, write: Callable[[float], str]) -> str:
    """`between 0.8% and 1.7%`, or nothing where no interval is known."""
    return "" if estimate["low"] is None else f"between {write(estimate['low'])} and {write(estimate['high'])}"


def tiles(findings: Part) -> list[Part]:
    """The big numbers with what they mean; where no point lies in an interval, the interval is the number."""
    things, health = noun(findings), findings["health"]
    carried = f"{things} of {count(findings['n'])} would carry a training against it"
    shown: list[tuple[Part, Callable[[float], str], str]] = [
        (findings["conflicting_share"], part, f"of the {things} go against the easy rule"),
        (findings["mislabelled_share"], part, f"of the {things} are likely mislabelled"),
        (findings["effective_sample_size"], count, carried),
        (health["easy_accuracy"], percent, "accuracy of the easy rule alone"),
        (health["plain_accuracy"], percent, "accuracy of a plain model"),
    ]
    result = []
    for estimate, write, meaning in shown:
        between, tile = interval(estimate, write), {"words": meaning, "method": estimate["method"]}
        if estimate["value"] is not None:
            result.append({**tile, "value": write(estimate["value"]), "interval": between})
        elif between:
            result.append({**tile, "value": f"{write(estimate['low'])}–{write(estimate['high'])}", "interval": ""})
    return result


def noun(findings: Part) -> str:
    """What the samples are."""
    return "texts" if findings["kind"] == "text" else "pictures"


def p_words(p: float, letter: str = "p") -> str:
    """`p = 0.03`."""
    return f"{letter} < 0.001" if p < 0.001 else f"{letter} = {p:.2g}"


def _ordered(suspects: Sequence[Part]) -> list[Part]:
    """Those flagged first, then by how much they tell."""
    return sorted(suspects, key=lambda each: (not each["flagged"], each["chance"] - each["balanced_accuracy"]))


def score_figure(findings: Part) -> Part:
    """The histogram of the scores and its legend."""
    drawn = findings["histogram"]
    everything, wrong = drawn["all"], drawn["easy_wrong"]
    legend = [
        ("aligned", f"all {noun(findings)} ({count(sum(everything))})"),
        ("conflicting", f"those that the easy model misses ({count(sum(wrong))})"),
    ]
    counts = [("aligned", everything), ("conflicting", wrong)]
    alt = "Histogram of the scores: " + "; ".join(text for _, text in legend)
    xlabel = "score: how hard the sample pulls against the easy rule"
    return {"svg": figures.histogram(drawn["edges"], counts, "scores", alt, True, xlabel), "legend": legend}


PLANE = {
    "aligned": "follows the rule",
    "conflicting": "goes against it",
    "mislabelled": "likely mislabelled",
    "unsure": "unsure",
    "planted": "made on purpose to go against it",
}


def plane_figure(findings: Part) -> Part | None:
    """Samples by what the easy and the judging models give to their label, and those made on purpose among them."""
    points = [(each["easy"], each["judge"], each["kind"]) for each in findings["plane"] or ()]
    if not points:
        return None
    alt = f"Probability of the label for {len(points)} samples: easy model across, judging model up"
    there = {kind for *_, kind in points}
    return {"svg": figures.plane(points, alt), "legend": [(kind, PLANE[kind]) for kind in PLANE if kind in there]}


def forest_figure(suspects: Sequence[Part]) -> Any:
    """The suspects at a glance; None where there are none."""
    rows = [(each["column"], each["balanced_accuracy"], each["chance"], each["flagged"]) for each in suspects]
    alt = "How well each column tells the label: " + "; ".join(f"{name} {value:.0f}%" for name, value, _, _ in rows)
    return figures.forest(rows, alt[:LONGEST]) if rows else None


def duplicates(findings: Part) -> list[Part]:
    """Groups of samples that are (nearly) the same, those that straddle a split first."""
    return [
        {
            "id": " = ".join(entry["ids"][:6]) + (" …" if len(entry["ids"]) > 6 else ""),
            "reason": "on both sides of a split" if entry["across"] else "",
        }
        for entry in sorted(findings["duplicates"], key=lambda entry: not entry["across"])
    ]


# What training against the shortcut brought


def repair(findings: Part) -> Part | None:
    """The models before and after and their controls as (name, role, numbers), the tests between them, and when it
    pays; None where nothing was trained."""
    content = findings["repair"]
    if not content:
        return None
    models = [
        ({"easy": "the easy model itself"}.get(name, name), role, numbers)
        for side, role in (("before", "before"), ("controls", "control"), ("after", "after"))
        for name, numbers in sorted(content[side].items(), key=_in_order)
    ]
    misclassified = {"on": "rows the easy model misses", **content["test"]["easy_misses"]}
    tests = [_test(test) for test in (content["test"], misclassified) if test["difference"] is not None]
    price, drawn = content["price"], ""
    even: Part = price["break_even"] if price else {"low": None}
    if even["low"] is not None and (even["low"] > 0 or even["high"] < 100):  # a band from end to end says nothing
        here = findings["conflicting_share"]
        drawn = figures.break_even(price["before"], price["after"], even, here, price["sentence"])
    return {**content, "models": models, "tests": tests, "price_figure": drawn}


def _in_order(model: tuple[str, Part]) -> tuple[bool, int, str]:
    """Controls first, then PGD from its weakest to its strongest form."""
    strength = re.search(r"\d+", model[0])
    return model[0].startswith("PGD"), int(strength.group()) if strength else 0, model[0]


def _test(test: Part) -> str:
    """The difference with its uncertainty, as one sentence; too few units allow no interval."""
    told, units = with_interval(test), f"{count(test['units'])} units"
    if not told:
        return f"Difference on {test['on']}: {signed(test['difference'])} points ({units})."
    return f"Difference on {test['on']}: {told} points (95% interval, {p_words(test['p'])}, {units})."
