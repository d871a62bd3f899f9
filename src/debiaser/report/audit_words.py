"""The findings of an audit in plain sentences and numbers, as plain dicts that the template only has to lay out.

Accuracies, error rates, `follows` and `chance` are in percent, excesses in points, shares between 0 and 1.
"""

import re
from collections.abc import Sequence
from typing import Any

from debiaser.report import figures
from debiaser.report.figures import break_even
from debiaser.report.runs import number
from debiaser.report.tables import count, signed, spread, with_interval
from debiaser.report.words import part, percent

Part = dict[str, Any]
VERDICTS = {
    "biased": ("found", "A shortcut was found"),
    "no evidence": ("none", "No evidence of a shortcut"),
    "cannot tell": ("unclear", "These data cannot tell whether there is a shortcut"),
}
# Words that lose their capital after a colon; others may be names.
PLAIN = frozenset({"a", "all", "an", "each", "every", "fewer", "in", "it", "most", "no", "none", "one", "the", "this"})
FEW_LISTED, MOST_LISTED, LONGEST = 8, 200, 500
MOST_SUSPECTS, MOST_VALUES, MOST_NEVER, MOST_FOREST = 40, 50, 4, 24


def headline(findings: Part) -> Part:
    """The verdict as a sentence, and the other reasons."""
    kind, words = VERDICTS.get(str(findings.get("verdict")), ("unclear", str(findings.get("verdict"))))
    reasons = [str(reason) for reason in findings.get("reasons") or []]
    first = reasons[0] if reasons else ""
    told = f"{words}: {_lowered(first)}" if first else f"{words}."
    if first.lower().startswith(words.lower()):
        told = first
    return {"kind": kind, "headline": told, "reasons": reasons[1:]}


def _lowered(sentence: str) -> str:
    first = sentence.split(" ", 1)[0]
    return sentence[:1].lower() + sentence[1:] if first.lower() in PLAIN else sentence


def value_of(estimate: Any) -> float | None:
    """The number in an estimate, or a number that stands for itself."""
    return number(estimate.get("value")) if isinstance(estimate, dict) else number(estimate)


def interval(estimate: Any, words: Any) -> str:
    """`between 0.8% and 1.7%`, or nothing where no interval is known."""
    if not isinstance(estimate, dict):
        return ""
    low, high = number(estimate.get("low")), number(estimate.get("high"))
    return f"between {words(low)} and {words(high)}" if low is not None and high is not None else ""


def tiles(findings: Part) -> list[Part]:
    """The big numbers with what they mean."""
    things = noun(findings)
    total = number(findings.get("n")) or 0.0
    health = findings.get("health") or {}
    shown = [
        (findings.get("conflicting_share"), part, f"of the {things} go against the easy rule"),
        (findings.get("mislabelled_share"), part, f"of the {things} are likely mislabelled"),
        (findings.get("effective_sample_size"), count, f"{things} of {count(total)} would carry a training against it"),
        (health.get("easy_accuracy"), percent, "accuracy of the easy rule alone"),
        (health.get("plain_accuracy"), percent, "accuracy of a plain model"),
    ]
    result = []
    for estimate, words, meaning in shown:
        value, between = value_of(estimate), interval(estimate, words)
        if value is not None or between:
            method = str(estimate.get("method") or "") if isinstance(estimate, dict) else ""
            big = words(value) if value is not None else between.removeprefix("between ").replace(" and ", "–")
            told = between if value is not None else ""  # where no point lies in it, the interval is the number
            result.append({"value": big, "words": meaning, "method": method, "interval": told})
    return result


def noun(findings: Part) -> str:
    """What the samples are."""
    return "texts" if findings.get("kind") == "text" else "pictures"


def views(findings: Part) -> list[Part]:
    """How far the model follows each property that was swapped, strongest first."""
    later = {str(view.get("name")): view for view in (findings.get("repair") or {}).get("views_after") or []}
    result = []
    for view in findings.get("views") or []:
        follows, chance = number(view.get("follows")) or 0.0, number(view.get("chance")) or 0.0
        excess = view.get("excess") or {}
        low, high = number(excess.get("low")), number(excess.get("high"))
        whisker = [None if bound is None else chance + bound for bound in (low, high)]
        title = str(view.get("title") or view.get("name"))
        entry: Part = {"name": str(view.get("name")), "title": title[:1].upper() + title[1:]}
        entry |= {"follows": percent(follows), "chance": percent(chance), "excess": _points(excess)}
        entry |= {"p": p_words(view.get("p")), "rows": count(number(view.get("rows")))}
        null = number(view.get("null"))
        entry |= {
            "nuisance": bool(view.get("nuisance")),
            "bar": figures.bar(follows, chance, whisker[0], whisker[1], null),
        }
        entry["after"] = _after(later.get(entry["name"]))
        entry["followed"] = (low or 0.0) > 0  # swaps that the model did not follow need not be looked at
        result.append((follows - chance, entry))
    return [entry for _, entry in sorted(result, key=lambda pair: -pair[0])]


def _after(view: Part | None) -> Part | None:
    """The same property for the model that was trained against the rule."""
    if view is None:
        return None
    follows, chance = number(view.get("follows")) or 0.0, number(view.get("chance")) or 0.0
    drawn = figures.bar(follows, chance, null=number(view.get("null")))
    return {"follows": percent(follows), "bar": drawn, "rows": count(number(view.get("rows")))}


def _points(estimate: Part) -> str:
    value = value_of(estimate)
    if value is None:
        return ""
    between = interval(estimate, signed)
    return f"{signed(value)} points beyond chance" + (f", {between}" if between else "")


def p_words(value: Any) -> str:
    """`p = 0.03`, or nothing."""
    p = number(value)
    if p is None:
        return ""
    return "p < 0.001" if p < 0.001 else f"p = {p:.2g}"


def suspects(findings: Part) -> list[Part]:
    """The columns that give the label away, those flagged first."""
    result = []
    for entry in findings.get("suspects") or []:
        accuracy, chance = number(entry.get("balanced_accuracy")) or 0.0, number(entry.get("chance")) or 0.0
        values = [
            {"value": str(value.get("value")) or "(empty)", "n": count(number(value.get("n")))}
            | {"error": percent(number(value.get("error_rate")) or 0.0)}
            for value in (entry.get("values") or [])[:MOST_VALUES]
        ]
        told = {"column": str(entry.get("column")), "flagged": bool(entry.get("flagged")), "values": values}
        told |= {"accuracy": percent(accuracy), "chance": percent(chance), "bar": figures.bar(accuracy, chance)}
        told |= {"p": p_words(entry.get("p")), "q": p_words(entry.get("q")).replace("p ", "q ")}
        never = [f"“{cell['value']}” never goes with label “{cell['label']}”" for cell in entry.get("empty") or []]
        told["never"] = never[:MOST_NEVER] + (
            [f"and {len(never) - MOST_NEVER} more"] if len(never) > MOST_NEVER else []
        )
        result.append(((not told["flagged"], chance - accuracy), told))
    return [told for _, told in sorted(result, key=lambda pair: pair[0])[:MOST_SUSPECTS]]


def classes(findings: Part) -> list[Part]:
    """The classes with their sizes and how far the easy rule alone gets."""
    result = []
    for entry in findings.get("classes") or []:
        easy = number(entry.get("easy_accuracy"))
        told = {"name": str(entry["name"]), "n": count(number(entry.get("n")))}
        told |= {"easy": "–" if easy is None else percent(easy), "bar": figures.bar(easy or 0.0)}
        result.append(told)
    return result


def scores_figure(findings: Part) -> Part | None:
    """The histogram of the scores and its legend."""
    drawn = findings.get("histogram") or {}
    edges, everything, missed = (drawn.get(name) or [] for name in ("edges", "all", "easy_wrong"))
    if len(edges) < 2 or len(everything) != len(edges) - 1 or len(missed) != len(everything) or not sum(everything):
        return None
    things = noun(findings)
    legend = [
        ("all", f"all {things} ({count(sum(everything))})"),
        ("missed", f"those that the easy model misses ({count(sum(missed))})"),
    ]
    alt = "Histogram of the scores: " + "; ".join(text for _, text in legend)
    return {"svg": figures.score_histogram(edges, everything, missed, alt), "legend": legend}


PLANE = {
    "aligned": "follows the rule",
    "conflicting": "goes against it",
    "mislabelled": "likely mislabelled",
    "unsure": "unsure",
    "planted": "made on purpose to go against it",
}


def plane_figure(findings: Part) -> Part | None:
    """Samples by what the easy and the judging models give to their label, and those made on purpose among them."""
    points = [
        (number(each.get("easy")) or 0.0, number(each.get("judge")) or 0.0, str(each.get("kind")))
        for each in findings.get("plane") or []
        if str(each.get("kind")) in PLANE
    ]
    if not points:
        return None
    alt = f"Probability of the label for {len(points)} samples: easy model across, judging model up"
    easy, judge, kinds = zip(*points, strict=True)
    legend = [(kind, words) for kind, words in PLANE.items() if kind in kinds]
    return {"svg": figures.plane(easy, judge, kinds, alt), "n": count(len(points)), "legend": legend}


def forest_figure(findings: Part) -> Any:
    """The suspects at a glance; None where there are none."""
    rows = [
        (
            str(entry.get("column")),
            value_of(entry.get("balanced_accuracy")) or 0.0,
            value_of(entry.get("chance")) or 0.0,
            bool(entry.get("flagged")),
        )
        for entry in (findings.get("suspects") or [])[:MOST_FOREST]
    ]
    rows.sort(key=lambda row: (not row[3], row[2] - row[1]))
    alt = "How well each column tells the label: " + "; ".join(f"{name} {value:.0f}%" for name, value, _, _ in rows)
    return figures.forest(rows, alt[:LONGEST]) if rows else None


def looks_words(findings: Part) -> str:
    """What sixty looks are for."""
    share = findings.get("conflicting_share")
    between = interval(share, part)
    return f"The share of {noun(findings)} that go against the rule is {between}." if between else ""


def listing(entries: Sequence[Part]) -> Part:
    """A list that folds when it is long and ends where it would swamp the page."""
    more, told = max(len(entries) - MOST_LISTED, 0), entries[:MOST_LISTED]
    return {
        "n": count(len(entries)),
        "entries": [{"name": str(entry["id"])[:LONGEST], "reason": str(entry["reason"])[:LONGEST]} for entry in told],
        "more": count(more) if more else "",
        "folded": len(told) > FEW_LISTED,
    }


def duplicates(findings: Part) -> Part:
    """Groups of samples that are (nearly) the same, those that straddle a split first."""
    groups = sorted(findings.get("duplicates") or [], key=lambda entry: not entry.get("across"))
    told = [
        {
            "id": " = ".join(map(str, entry["ids"][:6])) + (" …" if len(entry["ids"]) > 6 else ""),
            "reason": "on both sides of a split" if entry.get("across") else "",
        }
        for entry in groups
    ]
    across = sum(bool(entry.get("across")) for entry in groups)
    return listing(told) | {"across": count(across) if across else ""}


# --- What training against the shortcut brought, as rows of a table and sentences

PLAIN_NAMES = {"easy": "the easy model itself"}
SIDES = (("before", "before"), ("controls", "control"), ("after", "after"))


def repair(findings: Part) -> Part | None:
    """The models before and after and their controls; None where nothing was trained."""
    content = findings.get("repair")
    if not content:
        return None
    models = [
        (PLAIN_NAMES.get(name, name), role, numbers)
        for side, role in SIDES
        for name, numbers in sorted(_named(content.get(side) or {}, role).items(), key=_in_order)
    ]
    return {
        "helped": bool(content.get("helped")),
        "sentence": str(content.get("sentence") or ""),
        "seeds": _seeds(content.get("seeds")),
        "samples_seen": count(number(content.get("samples_seen"))),
        "tests": _tests(content.get("test") or {}),
        "rows": [
            {"name": name, "role": role, "minus": with_interval(numbers.get("minus_vanilla") or {})}
            | {key: _cell(numbers.get(key)) for key in ("overall", "easy_misses")}
            for name, role, numbers in models
        ],
        "tables": [table for table in (_table(models, *kind) for kind in KINDS) if table],
        "cost": _cost(content.get("cost") or {}),
        "selection": _selection(content.get("selection") or {}),
        "price": _price(content.get("price") or {}, findings),
    }


def _in_order(model: tuple[str, Part]) -> tuple[bool, int, str]:
    """Controls first, then PGD from its weakest to its strongest form."""
    strength = re.search(r"\d+", model[0])
    return model[0].startswith("PGD"), int(strength.group()) if strength else 0, model[0]


KINDS = (("per_class", "Per class"), ("groups", "Per group"))


def _named(side: Part, role: str) -> dict[str, Part]:
    """The models of one side by name; a lone model may stand there without one."""
    return {role: side} if "overall" in side else side


def _seeds(seeds: Any) -> str:
    number_of = len(seeds) if isinstance(seeds, list) else number(seeds)
    return count(number_of) if number_of is not None else ""


def _cell(value: Any) -> str:
    if isinstance(value, dict):
        return spread(number(value.get("mean")), number(value.get("sd")))
    return spread(number(value), None)


def _table(models: list[tuple[str, str, Part]], key: str, title: str) -> Part | None:
    """One line per class or group, one column per model."""
    names = list(dict.fromkeys(name for _, _, numbers in models for name in numbers.get(key) or {}))
    if not names:
        return None
    rows = [(name, [_cell((numbers.get(key) or {}).get(name)) for _, _, numbers in models]) for name in names]
    return {"title": title, "models": [name for name, _, _ in models], "rows": rows}


def _tests(test: Part) -> list[str]:
    """The difference on all rows, and on those that the easy model misses where that was tested."""
    there = test.get("easy_misses")
    told = [_test(test)]
    if isinstance(there, dict):
        told.append(_test({"on": "rows the easy model misses", **there}))
    return [sentence for sentence in told if sentence]


def _test(test: Part) -> str:
    """The difference with its uncertainty, as one sentence."""
    difference = number(test.get("difference"))
    if difference is None:
        return ""
    told, units = with_interval(test), number(test.get("units"))
    parts = ["95% interval" if told else "", p_words(test.get("p")), "" if units is None else f"{count(units)} units"]
    where = f" on {test['on']}" if test.get("on") else ""
    detail = f" ({', '.join(filter(None, parts))})" if any(parts) else ""
    return f"Difference{where}: {told or signed(difference)} points{detail}."


def _selection(choice: Part) -> Part | None:
    """How the model was chosen: a sentence, and a line per candidate."""
    if not choice:
        return None
    names = ("criterion", "worst_class", "planted", "overall")
    rows = [
        {"name": str(each.get("name")), "chosen": each.get("name") == choice.get("chosen")}
        | {
            name: spread(number(each.get(name)), number(each.get("error")) if name == "criterion" else None)
            for name in names
        }
        | {"vetoed": bool(each.get("vetoed"))}
        for each in choice.get("candidates") or []
    ]
    return {"sentence": str(choice.get("sentence") or ""), "rows": rows}


def _ends(side: Part) -> tuple[float, float]:
    """Accuracy on rows that follow the rule and on rows that go against it."""
    return number(side.get("follow")) or 0.0, number(side.get("against")) or 0.0


def _price(price: Part, findings: Part) -> Part | None:
    """When it pays: the sentence and its picture."""
    even = price.get("break_even") or {}
    bounds = [number(even.get(name)) for name in ("value", "low", "high")]
    if not price or bounds[0] is None:
        return None
    before, after = (_ends(price.get(side) or {}) for side in ("before", "after"))
    here = findings.get("conflicting_share") or {}
    low, high = number(here.get("low")), number(here.get("high"))
    marks = [] if low is None or high is None else [("your data", 100.0 * low, 100.0 * high)]
    sentence = str(price.get("sentence") or "")
    value, low, high = (0.0 if bound is None else bound for bound in bounds)
    known = None not in bounds and (low > 0 or high < 100)  # a band from end to end says nothing
    drawn = break_even(before, after, (value, low, high), marks, sentence) if known else ""
    return {"sentence": sentence, "svg": drawn}


def _cost(cost: Part) -> list[tuple[str, str]]:
    """What it costs elsewhere, name by name; estimates with their interval."""
    told = []
    for name, content in cost.items():
        value = value_of(content)
        between = interval(content, lambda bound: f"{bound:.3g}")
        text = str(content) if value is None else f"{value:.3g}" + (f", {between}" if between else "")
        told.append((str(name).replace("_", " "), text))
    return told
