"""What `debiaser bench` measured, as tables: for the screen, the page and the documents."""

from collections.abc import Mapping
from typing import Any

from debiaser.report.records import record_table

Found = Mapping[str, Any]


def markdown(found: Found) -> str:
    """Every alternative of every claim as a line, the growth with the number of rows, and the machine."""
    rows = [row(claim, way) for claim in found["claims"] for way in claim["ratios"]]
    parts = [record_table(rows)] if rows else []
    parts += [sentence for claim in found["claims"] if (sentence := bound(claim))]
    if "growth" in found:
        sizes, things = found["growth"]["sizes"], found["growth"]["things"]
        listed = ", ".join(f"{name} {thing['exponent']:.2f}" for name, thing in things.items())
        parts.append(f"Exponents from {sizes[0]:,} to {sizes[-1]:,} rows, where 1 is linear: {listed}.")
    return "\n\n".join([*parts, f"Measured on: {facts(found['environment'])}."])


def row(claim: Found, way: str) -> dict[str, str]:
    """One alternative: how many times as long it takes, or ours over it where that is bounded, and both memories."""
    spread, memory = claim["ratios"][way], claim["peak_mb"]
    peaks = [f"{memory[each]:,.0f}" if each in memory else "–" for each in ("ours", way)]
    return {
        "What": claim["title"],
        "Beside": way,
        "Times as long": times(spread["median"]) + (" (ours over it)" if claim["at_most"] else ""),
        "Lowest to highest": f"{times(spread['low'])} to {times(spread['high'])}",
        "Ours": short(claim["seconds"]["ours"]),
        "Peak memory, MB: ours, it": " – ".join(peaks) if memory else "–",
    }


def facts(environment: Mapping[str, Any]) -> str:
    """The machine and the versions in one line."""
    told = [f"{environment['cores']} cores", f"threads of torch: {environment['threads']}"]
    told += [f"{name} {environment[name]}" for name in ("debiaser", "torch", "python")]
    return ", ".join(filter(None, [*told, environment.get("processor"), environment["platform"]]))


def table(claim: Found) -> dict[str, Any]:
    """The lines of one claim, as text."""
    limit, ratios, memory = claim["at_most"], claim["ratios"], claim["peak_mb"]
    headings = ["ours over it" if limit else "over ours", "lowest to highest", "seconds"]
    headings += ["largest difference"] if claim["differences"] else []
    headings += ["peak memory, MB"] if memory else []
    lines = []
    for way, seconds in claim["seconds"].items():
        spread = ratios.get(way)
        cells = [times(spread["median"]) if spread else "–"]
        cells += [f"{times(spread['low'])} to {times(spread['high'])}" if spread else "–", short(seconds)]
        cells += [f"{claim['differences'][way]:.1e}" if way in claim["differences"] else "–"] * bool(
            claim["differences"]
        )
        cells += [f"{memory[way]:,.0f}" if way in memory else "–"] if memory else []
        lines.append({"way": way, "cells": cells})
    rounds = max((spread["rounds"] for spread in ratios.values()), default=0)
    caption = f"Median over {rounds} rounds, taken in turns"
    return {"title": claim["title"], "headings": headings, "lines": lines, "caption": caption, "bound": bound(claim)}


def bound(claim: Found) -> str:
    """Whether the limit of a claim is kept, as a sentence; nothing where it has none."""
    if not claim["at_most"]:
        return ""
    worst = max(spread["median"] for spread in claim["ratios"].values())
    kept = "kept" if worst <= claim["at_most"] else "not kept"
    return f"To be at most {claim['at_most']:g} times; measured {worst:.3f}: {kept}."


def times(value: float) -> str:
    """A ratio with as many digits as it deserves."""
    return f"{value:,.0f}×" if value >= 100 else f"{value:.3g}×"


def short(seconds: float) -> str:
    """0.0123 s as `12.3 ms`."""
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1000:.3g} ms"
