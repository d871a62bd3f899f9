"""The page of `debiaser bench`: ratios with their spread, tables, and how cost grows."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from debiaser.io import write_text
from debiaser.report.figures import DASHES, FAINT, INK, SERIES, STYLE, as_svg, empty
from debiaser.report.tables import record_table

# --- What `debiaser bench` measured, as tables: for the screen, the page and the documents

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


HERE = Path(__file__).parent


def write_speed_page(found: Found, destination: Path) -> Path:
    """Write the page of these measurements and return where it is."""
    environment = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    speedups = [claim for claim in found["claims"] if not claim["at_most"]]
    text = environment.get_template("speed.html").render(
        style=Markup((HERE / "page.css").read_text()),  # noqa: S704 (our own file)
        facts=facts(found["environment"]),
        quick=found["quick"],
        ratios=ratio_figure(speedups) if speedups else "",
        claims=[table(claim) for claim in found["claims"]],
        growth=growth(found["growth"]) if "growth" in found else None,
    )
    write_text(destination, text)
    return destination


def ratio_figure(claims: Sequence[Found]) -> Markup:
    """Every alternative as a line on a logarithmic axis, grouped by claim."""
    rows = [(claim, way, spread) for claim in claims for way, spread in claim["ratios"].items()]
    with matplotlib.rc_context(STYLE):
        figure, axes = empty(7.4, 0.7 + 0.26 * len(rows) + 0.3 * len(claims))
        place, ticks, names = 0.0, [], []
        for claim in claims:
            place -= 1.1
            words: dict[str, Any] = {"weight": "bold", "fontsize": 9, "va": "center"}
            axes.annotate(claim["title"], (0, place), (4, 0), ("axes fraction", "data"), "offset points", **words)
            for way, spread in claim["ratios"].items():
                place -= 1
                axes.plot([spread["low"], spread["high"]], [place, place], color=SERIES[1], linewidth=2.2, alpha=0.6)
                axes.plot([spread["median"]], [place], "o", color=SERIES[1], markersize=5.5)
                beside: dict[str, Any] = {"textcoords": "offset points", "va": "center", "fontsize": 9}
                axes.annotate(times(spread["median"]), (spread["high"], place), (7, 0), **beside)
                ticks.append(place)
                names.append(way)
        axes.axvline(1, color=INK, linewidth=0.9, linestyle=(0, (2, 2)))
        axes.set_xscale("log")
        axes.set_xlim(right=max(spread["high"] for *_, spread in rows) * 4)
        axes.xaxis.set_major_formatter(matplotlib.ticker.FuncFormatter(lambda value, _: f"{value:g}×"))
        axes.xaxis.set_minor_formatter(matplotlib.ticker.NullFormatter())
        axes.grid(axis="x", color=FAINT, linewidth=0.6)
        axes.set_yticks(ticks, names)
        axes.set_ylim(place - 0.8, 0)
        axes.set_xlabel("its time over ours (logarithmic)")
        alt = "; ".join(f"{claim['title']}, {way}: {times(spread['median'])}" for claim, way, spread in rows)
        return Markup(as_svg(figure, "ratios", alt))  # noqa: S704 (our own SVG)


def growth(found: Found) -> dict[str, Any]:
    """The figure of growth and its legend."""
    sizes, things = found["sizes"], found["things"]
    with matplotlib.rc_context(STYLE):
        figure, axes = empty(5.6, 3.4)
        for number, thing in enumerate(things.values()):
            axes.plot(sizes, thing["seconds"], "o", linestyle=DASHES[number], color=SERIES[number], markersize=4)
        axes.set_xscale("log")
        axes.set_yscale("log")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(
                matplotlib.ticker.FuncFormatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}")
            )
            axis.set_minor_formatter(matplotlib.ticker.NullFormatter())
        axes.grid(color=FAINT, linewidth=0.6)
        axes.set_xlabel("rows")
        axes.set_ylabel("seconds")
        words = [f"{name}: exponent {thing['exponent']:.2f}" for name, thing in things.items()]
        drawn = Markup(as_svg(figure, "growth", "Seconds against rows: " + "; ".join(words)))  # noqa: S704 (our own SVG)
    ends = {"smallest": f"{sizes[0]:,}", "largest": f"{sizes[-1]:,}"}
    return {"svg": drawn, "legend": list(enumerate(words)), **ends}
