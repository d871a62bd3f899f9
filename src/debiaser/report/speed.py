"""What `debiaser bench` measured, as tables for the screen and as a page."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from debiaser.io import write_text
from debiaser.report import figures, render_page
from debiaser.report.figures import times

Found = Mapping[str, Any]


def facts(environment: Found) -> str:
    """The machine and the versions in one line."""
    told = [f"{environment['cores']} cores", f"{environment['threads']} torch threads"]
    told += [f"{name} {environment[name]}" for name in ("debiaser", "torch", "python")]
    return ", ".join(filter(None, [*told, environment.get("processor"), environment["platform"]]))


def table(claim: Found) -> dict[str, Any]:
    """The lines of one claim, as text."""
    ratios, apart, memory = claim["ratios"], claim["differences"], claim["peak_mb"]
    headings = ["ours / other" if claim["at_most"] else "other / ours", "range", "time"]
    headings += ["largest difference"] * bool(apart) + ["peak memory, MB"] * bool(memory)
    lines = []
    for way, seconds in claim["seconds"].items():
        spread = ratios.get(way)
        cells = (
            [times(spread["median"]), f"{times(spread['low'])} to {times(spread['high'])}"] if spread else ["–", "–"]
        )
        cells += [short(seconds)]
        cells += [f"{apart[way]:.1e}" if way in apart else "–"] * bool(apart)
        cells += [f"{memory[way]:,.0f}" if way in memory else "–"] * bool(memory)
        lines.append({"way": way, "cells": cells})
    rounds = max((spread["rounds"] for spread in ratios.values()), default=0)
    caption = f"Median over {rounds} interleaved rounds"
    return {"title": claim["title"], "headings": headings, "lines": lines, "caption": caption, "bound": bound(claim)}


def bound(claim: Found) -> str:
    """Whether the limit of a claim is kept, as a sentence; nothing where it has none."""
    if not claim["at_most"]:
        return ""
    worst = max(spread["median"] for spread in claim["ratios"].values())
    kept = "within" if worst <= claim["at_most"] else "above"
    return f"Ours / other: {worst:.3f}, {kept} our limit of {claim['at_most']:g}."


def short(seconds: float) -> str:
    """0.0123 s as `12.3 ms`."""
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1000:.3g} ms"


def write_speed_page(found: Found, destination: Path) -> Path:
    """Write the page of these measurements and return where it is."""
    faster = [claim for claim in found["claims"] if not claim["at_most"]]
    ratios = [(claim["title"], way, spread["median"]) for claim in faster for way, spread in claim["ratios"].items()]
    alt = "; ".join(f"{title}, {way}: {times(median)}" for title, way, median in ratios)
    text = render_page(
        "speed.html",
        ("page.css",),
        facts=facts(found["environment"]),
        quick=found["quick"],
        ratios=figures.ratios(faster, alt) if faster else "",
        claims=[table(claim) for claim in found["claims"]],
    )
    write_text(destination, text)
    return destination
