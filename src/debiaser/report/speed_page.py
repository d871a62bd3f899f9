"""The page of `debiaser bench`: ratios with their spread, tables, and how cost grows."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from debiaser.files import write_text
from debiaser.report.figures import DASHES, FAINT, INK, SERIES, STYLE, as_svg, empty
from debiaser.report.speed_tables import Found, facts, table, times

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
