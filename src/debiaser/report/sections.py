"""The parts of the page for one dataset and rho, as plain dicts that the template only has to lay out."""

from collections.abc import Sequence
from typing import Any

from debiaser.report import evidence
from debiaser.report.evidence import Allowance, Shown
from debiaser.report.making import making
from debiaser.report.runs import number
from debiaser.report.tables import ACCURACIES, HEADINGS, Row, count, duration, published, share, spread
from debiaser.report.words import Finding, bias_word, finding, noun, part, percent, points, share_before

Part = dict[str, Any]


def section(rows: Sequence[Row], shown: Sequence[Shown], identity: str, allowance: Allowance) -> Part:
    """Everything the page says about one dataset, rho, noise and recipe."""
    said = finding(rows)
    things, bias = noun(rows[0]["dataset"]), bias_word(rows[0])
    return {
        "id": identity,
        "rows": list(rows),
        "heading": heading(rows[0]),
        "finding": said,
        "tiles": tiles(said, things),
        "bars": [_bar(row) for row in rows if row["aligned"] is not None and row["conflicting"] is not None],
        "table": table(rows),
        "several_seeds": any(len(row["seeds"]) > 1 for row in rows),
        "things": things,
        "bias": bias,
        "representatives": _representatives(rows, shown),
        "scored": [one.result["method"] for one in shown if evidence.has_scores(one)],
        "histograms": [
            evidence.histogram(one, f"{identity}-score{n}", things, allowance) for n, one in enumerate(shown)
        ],
        "galleries": galleries(shown, bias, allowance),
        "unscored": _unscored(shown, things),
        "curves": evidence.curves(shown, identity, allowance),
        "answers": evidence.answers(shown, bias, things, allowance),
        "making": [making(one.label, one.result) for one in shown],
    }


def galleries(shown: Sequence[Shown], bias: str, allowance: Allowance) -> list[Part]:
    """The pictures by score of each run, PGD's first; only the first is unfolded."""
    scored = sorted(shown, key=lambda one: one.result["method"] != "pgd")
    made = [evidence.gallery(one, bias, 8 if len(shown) <= 3 else 4, allowance) for one in scored]
    first = next((one for one in made if one["classes"]), None)
    return [{**one, "first": one is first} for one in made]


def _unscored(shown: Sequence[Shown], things: str) -> str:
    """A sentence that names the methods without scores."""
    names = [one.label for one in shown if one.details.vectors is not None and not evidence.has_scores(one)]
    if not names:
        return ""
    listed = names[0] if len(names) == 1 else ", ".join(names[:-1]) + " and " + names[-1]
    return f"{listed} {'gives' if len(names) == 1 else 'give'} no score to single {things}."


def heading(row: Row) -> str:
    """`digits, 5% against the shortcut`."""
    parts = [row["dataset"]]
    if row["rho"] is not None:
        parts.append(f"{share(row['rho'])} against the shortcut")
    if row["noise"]:
        parts.append(f"{share(row['noise'])} of the labels flipped")
    if row["recipe"]:
        parts.append(f"{row['recipe']} recipe")
    return ", ".join(parts)


def tiles(said: Finding, things: str) -> list[Part]:
    """The big numbers: before and after where there are two models, else the one."""
    names = {
        "conflicting": f"right on {things} that go against the shortcut",
        "aligned": f"right on {things} that follow the shortcut",
        "unbiased": "right on the whole test set (unbiased accuracy)",
        "worst_group": "right in the worst group",
    }
    before, after = said.plain, said.treated
    if not _large_groups(before or after):
        del names["worst_group"]
    result = []
    for metric, words in names.items():
        values = [row[metric] if row else None for row in (before, after)]
        present = [percent(value) for value in values if value is not None]
        if not present:
            continue
        change = None
        if values[0] is not None and values[1] is not None:
            gain = values[1] - values[0]
            direction = "up" if gain >= 0.05 else "down" if gain <= -0.05 else "same"
            text = {"up": f"{points(gain)} more", "down": f"{points(gain)} fewer", "same": "no change"}[direction]
            change = {"direction": direction, "text": text}
        result.append({"values": present, "words": words, "change": change})
    return result + _draws(after, things)


def _large_groups(row: Row | None) -> bool:
    """Whether the groups (class x bias value) hold enough test samples for a big number; in the digits it is five."""
    if row is None:
        return False
    first = row["results"][0]
    return (number(first["rows"].get("test")) or 0.0) >= 20 * max(len(first["classes"]), 1) ** 2


def _draws(row: Row | None, things: str) -> list[Part]:
    """The tile on what resampling does to the training set."""
    mass = row["score_conflicting_mass"] if row else None
    before = share_before(row["results"][0]) if row else None
    if mass is None or before is None:
        return []
    words = f"of the training draws fall on {things} that go against the shortcut"
    return [{"values": [part(before), part(mass)], "words": words, "change": None}]


def _bar(row: Row) -> Part:
    return {"label": row["label"], "aligned": row["aligned"], "conflicting": row["conflicting"]}


def table(rows: Sequence[Row]) -> Part:
    """The table of all rows; a column that would be empty is left out."""
    accuracies = [name for name in ACCURACIES if any(row[name] is not None for row in rows)]
    values: dict[tuple[Any, str], set[float]] = {}
    for row in rows:
        for name in accuracies:
            if row[name] is not None:
                values.setdefault((row["place"], name), set()).add(row[name])
    best = {key: max(found) for key, found in values.items() if len(found) > 1}
    with_published = any(published(row) for row in rows)
    groups: dict[str, list[Part]] = {}
    for row in rows:
        cells = [
            {"heading": HEADINGS[name], "text": spread(row[name], row[f"{name}_std"]), "value": row[name]}
            | {"best": row[name] is not None and row[name] == best.get((row["place"], name))}
            for name in accuracies
        ]
        groups.setdefault(heading(row), []).append(
            {
                "label": row["label"],
                "cells": cells,
                "published": published(row),
                "published_label": str((row["published"] or {}).get("label") or ""),
                "seeds": ", ".join(map(str, row["seeds"])) if len(row["seeds"]) <= 5 else count(len(row["seeds"])),
                "number_of_seeds": len(row["seeds"]),
                "samples_seen": count(row["samples_seen"]),
                "time": duration(row["seconds"]),
            }
        )
    return {
        "headings": [HEADINGS[name] for name in accuracies],
        "groups": list(groups.items()),
        "published": with_published,
    }


def _representatives(rows: Sequence[Row], shown: Sequence[Shown]) -> str:
    total = sum(len(row["results"]) for row in rows)
    if total == len(shown):
        return ""
    runs = ", ".join(f"{one.label} (seed {one.result.get('seed')})" for one in shown)
    return f"The parts below show one run per method, the one with the lowest seed, out of {total}: {runs}."
