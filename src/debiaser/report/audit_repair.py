"""What training against the shortcut brought, as rows of a table and sentences."""

import re
from typing import Any

from debiaser.report.audit_figures import break_even
from debiaser.report.audit_words import interval, p_words, value_of
from debiaser.report.runs import number
from debiaser.report.tables import count, signed, spread, with_interval

Part = dict[str, Any]
PLAIN = {"easy": "the easy model itself"}
SIDES = (("before", "before"), ("controls", "control"), ("after", "after"))


def repair(findings: Part) -> Part | None:
    """The models before and after and their controls; None where nothing was trained."""
    content = findings.get("repair")
    if not content:
        return None
    models = [
        (PLAIN.get(name, name), role, numbers)
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
    marks = []
    for name, share, scale in (("your data", "conflicting_share", 100.0), ("the field", "field", 1.0)):
        here = findings.get(share) or {}
        low, high = number(here.get("low")), number(here.get("high"))
        if low is not None and high is not None:
            marks.append((name, scale * low, scale * high))
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
