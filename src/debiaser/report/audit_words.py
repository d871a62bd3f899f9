"""What an audit found in plain sentences, numbers and figures, as plain dicts that the template only has to lay out.

Accuracies, error rates, `follows` and `chance` are in percent, excesses in points, shares between 0 and 1.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from debiaser.report import figures
from debiaser.report.tables import count, part, percent, signed, spread, with_interval

Part = dict[str, Any]
VERDICTS = {
    "biased": ("found", "A shortcut was found"),
    "no evidence": ("none", "No evidence of a shortcut"),
    "cannot tell": ("unclear", "These data cannot tell whether there is a shortcut"),
}
# Words that lose their capital after a colon; others may be names.
PLAIN = frozenset({"a", "all", "an", "each", "every", "fewer", "in", "it", "most", "no", "none", "one", "the", "this"})
FEW_LISTED, MOST_LISTED, LONGEST = 8, 200, 500
MOST_SUSPECTS, MOST_NEVER, MOST_FOREST = 40, 4, 24


def page_parts(findings: Part) -> Part:
    """Everything the template lays out that comes from the findings alone."""
    things, units = noun(findings), findings["units"]
    between = interval(findings["conflicting_share"], part)
    return {
        **{name: findings[name] for name in ("source", "examined", "health", "notes", "choices", "next")},
        "verdict": headline(findings),
        "things": things,
        "n": count(findings["n"]),
        "units": count(units) if units != findings["n"] else "",
        "tiles": tiles(findings),
        "classes": [_class_bar(each) for each in findings["classes"]],
        "views": views(findings),
        "suspects": suspects(findings),
        "histogram": score_figure(findings),
        "plane": plane_figure(findings),
        "forest": forest_figure(findings),
        "looks_words": f"The share of {things} that go against the rule is {between}.",
        "kinds_why": findings["kinds"]["why"],
        "planted": (findings["planted"] or {}).get("sentence", ""),
        "repair": repair(findings),
        "lists": {name: listing(findings[name]) for name in ("unreadable", "left_out")},
        "duplicates": duplicates(findings),
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


def views(findings: Part) -> list[Part]:
    """How far the model follows each property that was swapped, strongest first, and the debiased model after it."""
    later = {view["name"]: view for view in (findings["repair"] or {}).get("views_after", ())}
    return [
        _view(view, later.get(view["name"]))
        for view in sorted(findings["views"], key=lambda view: float(view["chance"] - view["follows"]))
    ]


def _view(view: Part, after: Part | None) -> Part:
    follows, chance, excess = view["follows"], view["chance"], view["excess"]
    whisker = None if excess["low"] is None else (chance + excess["low"], chance + excess["high"])
    between = interval(excess, signed)
    beyond = f"{signed(excess['value'])} points beyond chance" + (f", {between}" if between else "")
    return {
        "name": view["name"],
        "title": view["title"][:1].upper() + view["title"][1:],
        "follows": percent(follows),
        "chance": percent(chance),
        "facts": "; ".join((beyond, p_words(view["p"]), f"{count(view['rows'])} swaps")),
        "nuisance": view["nuisance"],
        "bar": figures.bar(follows, chance, whisker, view["null"]),
        "followed": (excess["low"] or 0.0) > 0,  # swaps that the model did not follow need not be looked at
        "after": after
        and {
            "follows": percent(after["follows"]),
            "bar": figures.bar(after["follows"], after["chance"], null=after["null"]),
            "rows": count(after["rows"]),
        },
    }


def p_words(p: float, letter: str = "p") -> str:
    """`p = 0.03`."""
    return f"{letter} < 0.001" if p < 0.001 else f"{letter} = {p:.2g}"


def _ordered(suspects: Sequence[Part]) -> list[Part]:
    """Those flagged first, then by how much they tell."""
    return sorted(suspects, key=lambda each: (not each["flagged"], each["chance"] - each["balanced_accuracy"]))


def suspects(findings: Part) -> list[Part]:
    """The columns that give the label away, those flagged first."""
    result = []
    for each in _ordered(findings["suspects"])[:MOST_SUSPECTS]:
        accuracy, chance = each["balanced_accuracy"], each["chance"]
        never = [f"“{cell['value']}” never goes with label “{cell['label']}”" for cell in each["empty"]]
        more = [f"and {len(never) - MOST_NEVER} more"] if len(never) > MOST_NEVER else []
        told = {"column": each["column"], "flagged": each["flagged"], "never": never[:MOST_NEVER] + more}
        told |= {"accuracy": percent(accuracy), "chance": percent(chance), "bar": figures.bar(accuracy, chance)}
        told["facts"] = f"{p_words(each['p'])}; {p_words(each['q'], 'q')}"
        told["values"] = [
            {"value": value["value"], "n": count(value["n"]), "error": percent(value["error_rate"])}
            for value in each["values"]
        ]
        result.append(told)
    return result


def _class_bar(entry: Part) -> Part:
    """A class, its size and how far the easy rule alone gets."""
    easy = entry["easy_accuracy"]
    told = "–" if easy is None else percent(easy)
    return {"name": entry["name"], "n": count(entry["n"]), "easy": told, "bar": figures.bar(easy or 0.0)}


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


def forest_figure(findings: Part) -> Any:
    """The suspects at a glance; None where there are none."""
    shown = _ordered(findings["suspects"][:MOST_FOREST])
    rows = [(each["column"], each["balanced_accuracy"], each["chance"], each["flagged"]) for each in shown]
    alt = "How well each column tells the label: " + "; ".join(f"{name} {value:.0f}%" for name, value, _, _ in rows)
    return figures.forest(rows, alt[:LONGEST]) if rows else None


def listing(entries: Sequence[Part]) -> Part:
    """A list that folds when it is long and ends where it would swamp the page."""
    more, told = max(len(entries) - MOST_LISTED, 0), entries[:MOST_LISTED]
    return {
        "n": count(len(entries)),
        "entries": [{"name": entry["id"][:LONGEST], "reason": entry["reason"][:LONGEST]} for entry in told],
        "more": count(more) if more else "",
        "folded": len(told) > FEW_LISTED,
    }


def duplicates(findings: Part) -> Part:
    """Groups of samples that are (nearly) the same, those that straddle a split first."""
    groups = sorted(findings["duplicates"], key=lambda entry: not entry["across"])
    told = [
        {
            "id": " = ".join(entry["ids"][:6]) + (" …" if len(entry["ids"]) > 6 else ""),
            "reason": "on both sides of a split" if entry["across"] else "",
        }
        for entry in groups
    ]
    across = sum(entry["across"] for entry in groups)
    return listing(told) | {"across": count(across) if across else ""}


# What training against the shortcut brought


def repair(findings: Part) -> Part | None:
    """The models before and after and their controls; None where nothing was trained."""
    content = findings["repair"]
    if not content:
        return None
    models = [
        ({"easy": "the easy model itself"}.get(name, name), role, numbers)
        for side, role in (("before", "before"), ("controls", "control"), ("after", "after"))
        for name, numbers in sorted(content[side].items(), key=_in_order)
    ]
    misses = {"on": "rows the easy model misses", **content["test"]["easy_misses"]}
    selection = content["selection"]
    return {
        "helped": content["helped"],
        "sentence": content["sentence"],
        "seeds": content["seeds"],
        "samples_seen": count(content["samples_seen"]),
        "tests": [_test(test) for test in (content["test"], misses) if test["difference"] is not None],
        "rows": [
            {"name": name, "role": role, "minus": with_interval(numbers["minus_vanilla"] or {})}
            | {key: _cell(numbers[key]) for key in ("overall", "easy_misses")}
            for name, role, numbers in models
        ],
        "tables": [_table(models, *kind) for kind in (("per_class", "Per class"), ("groups", "Per group"))],
        "selection": {
            "sentence": selection["sentence"],
            "rows": [_candidate(each, selection["chosen"]) for each in selection["candidates"]],
        },
        "price": content["price"] and _price(content["price"], findings["conflicting_share"]),
    }


def _in_order(model: tuple[str, Part]) -> tuple[bool, int, str]:
    """Controls first, then PGD from its weakest to its strongest form."""
    strength = re.search(r"\d+", model[0])
    return model[0].startswith("PGD"), int(strength.group()) if strength else 0, model[0]


def _cell(accuracy: Mapping[str, float | None] | None) -> str:
    return spread(accuracy["mean"], accuracy["sd"]) if accuracy else "–"


def _table(models: list[tuple[str, str, Part]], key: str, title: str) -> Part:
    """One line per class or group, one column per model."""
    names = dict.fromkeys(name for _, _, numbers in models for name in numbers[key])
    rows = [(name, [_cell(numbers[key].get(name)) for _, _, numbers in models]) for name in names]
    return {"title": title, "models": [name for name, _, _ in models], "rows": rows}


def _test(test: Part) -> str:
    """The difference with its uncertainty, as one sentence; too few units allow no interval."""
    told, units = with_interval(test), f"{count(test['units'])} units"
    if not told:
        return f"Difference on {test['on']}: {signed(test['difference'])} points ({units})."
    return f"Difference on {test['on']}: {told} points (95% interval, {p_words(test['p'])}, {units})."


def _candidate(row: Part, chosen: str) -> Part:
    numbers = {name: spread(row[name], None) for name in ("worst_class", "planted", "overall")}
    told = {"name": row["name"], "chosen": row["name"] == chosen, "vetoed": row["vetoed"]}
    return {**told, **numbers, "criterion": spread(row["criterion"], row["error"])}


def _price(price: Part, here: Part) -> Part:
    """When it pays: the sentence and its figure."""
    even, drawn = price["break_even"], ""
    if even["low"] is not None and (even["low"] > 0 or even["high"] < 100):  # a band from end to end says nothing
        drawn = figures.break_even(price["before"], price["after"], even, here, price["sentence"])
    return {"sentence": price["sentence"], "svg": drawn}
