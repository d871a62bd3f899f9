"""Figures of studies as the paper draws them: bars with error bars, histograms of norms and of trials, lines."""

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from debiaser.files import write_bytes
from debiaser.report import figures

Found = dict[str, Any]
Draw = Callable[[Axes, Found, "Palette"], None]


@dataclass(frozen=True)
class Palette:
    """Colours of one output: of a page, where they are replaced by variables, or of a file."""

    ink: str
    aligned: str
    conflicting: str
    series: tuple[str, ...]


PAGE = Palette(figures.INK, figures.ALIGNED, figures.CONFLICTING, figures.SERIES[1:])
PRINT = Palette("#1f2328", "#3b6fb6", "#c8452f", ("#3b6fb6", "#c8452f", "#3a8f7b", "#a0619f", "#b98a1d", "#6b7280"))
PRINT_STYLE: Any = {"font.size": 10.0, "axes.spines.top": False, "axes.spines.right": False, "text.parse_math": False}


def panels(found: Found) -> list[tuple[str, Found, Draw]]:
    """What there is to draw: a name, what it shows, and how; one panel for each place."""
    if found["figure"] == "histograms":
        return [(each["place"], each, draw_histogram) for each in found["histograms"]]
    if found["figure"] == "lines":
        shown = [each for each in found["cells"] if each["mean"] is not None]
        return [(found["title"], {**found, "cells": shown}, draw_lines)] if shown else []
    draw = draw_trials if found["figure"] == "trials" else draw_bars
    return [(place, {"cells": cells}, draw) for place, cells in by_place(found["cells"])]


def by_place(cells: Sequence[Found]) -> Iterator[tuple[str, list[Found]]]:
    """The cells with runs at each place that are in one unit, so that they share an axis."""
    for place in dict.fromkeys(each["place"] for each in cells):
        here = [each for each in cells if each["place"] == place and each["mean"] is not None]
        for metric in dict.fromkeys(each["metric"] for each in here):
            if metric != "samples":
                same = [each for each in here if each["metric"] == metric]
                yield (place if metric == here[0]["metric"] else f"{place}, {metric}"), same


def draw_bars(axes: Axes, shown: Found, palette: Palette) -> None:
    """Bars with error bars, in the order of the table; a short line where the paper's number is."""
    cells = shown["cells"]
    height = np.arange(len(cells))[::-1]
    deviations = [each["std"] or 0.0 for each in cells]
    axes.barh(
        height,
        [each["mean"] for each in cells],
        0.62,
        color=palette.series[0],
        alpha=0.85 if palette is PRINT else 0.45,
    )
    axes.errorbar(
        [each["mean"] for each in cells], height, xerr=deviations, fmt="none", ecolor=palette.ink, capsize=2.5
    )
    printed = [(each["published"], at) for each, at in zip(cells, height, strict=True) if each["published"] is not None]
    for number, at in printed:
        axes.plot([number, number], [at - 0.4, at + 0.4], color=palette.conflicting, linewidth=2.2)
    for each, at in zip(cells, height, strict=True):
        colour = "white" if palette is PRINT else palette.ink
        at_edge: Any = {"xycoords": axes.get_yaxis_transform(), "textcoords": "offset points"}
        axes.annotate(
            f"{each['mean']:.{3 if each['mean'] >= 1e4 else 4}g}", (0, at), (5, 0), va="center", color=colour, **at_edge
        )
    axes.set_yticks(height, [each["name"] for each in cells])
    axes.set_ylim(min(len(cells), 3) - 3.5, len(cells) - 0.5)  # one or two bars are not drawn as walls
    smallest, largest = min(each["mean"] for each in cells), max(each["mean"] for each in cells)
    if smallest > 0 and largest > 100 * smallest:
        axes.set_xscale("log")
        axes.set_xlim(left=smallest / 100)
        axes.xaxis.set_major_formatter(matplotlib.ticker.FuncFormatter(lambda each, _: f"{each:.0e}"))
        axes.xaxis.set_minor_formatter(matplotlib.ticker.NullFormatter())
    else:
        axes.set_xlim(left=0)
    axes.set_xlabel(unit(cells[0]) + (" (red line: published)" if printed else ""), loc="right")  # ends with the axes


def unit(cell: Found) -> str:
    """What an axis counts."""
    words = {"unbiased": "unbiased accuracy in %", "worst_group": "accuracy in %", "group_average": "accuracy in %"}
    words |= {"seconds": "seconds", "fisher_trace": "trace of the damped inverse"}
    return words.get(str(cell["metric"]), str(cell["metric"]))


def draw_histogram(axes: Axes, shown: Found, palette: Palette) -> None:
    """Shares of each kind per tenth of the largest norm, so that the few conflicting rows are as visible."""
    for kind, colour in (("aligned", palette.aligned), ("conflicting", palette.conflicting)):
        counts = np.asarray(shown[kind], dtype=float)
        edges = np.linspace(0, 1, len(counts) + 1)
        share = counts / max(counts.sum(), 1) * 100
        axes.stairs(share, edges, fill=True, color=colour, alpha=0.3, linewidth=0)
        axes.stairs(share, edges, color=colour, linewidth=1.6, label=f"{kind} ({int(counts.sum()):,} rows)")
    axes.set_xlabel(f"gradient norm over the largest, seed {shown['seed']}")
    axes.set_ylabel("% of its kind")
    axes.set_xlim(0, 1)
    axes.legend(frameon=False)


def draw_trials(axes: Axes, shown: Found, palette: Palette) -> None:
    """How many trials of each method reached which accuracy."""
    every = [value for each in shown["cells"] for value in each["values"]]
    low, high = min(every), max(every)
    edges = np.linspace(low - 0.05, high + 0.05, 13)
    for each, colour in zip(shown["cells"], palette.series, strict=False):
        counts = np.histogram(each["values"], edges)[0]
        axes.stairs(counts, edges, fill=True, color=colour, alpha=0.4, linewidth=0)
        axes.stairs(counts, edges, color=colour, linewidth=1.6, label=f"{each['name']} ({each['runs']} trials)")
    axes.set_xlabel("unbiased accuracy in %")
    axes.set_ylabel("trials")
    axes.yaxis.set_major_locator(matplotlib.ticker.MaxNLocator(integer=True))
    axes.legend(frameon=False)


def draw_lines(axes: Axes, shown: Found, palette: Palette) -> None:
    """Accuracy against rho, or against the share of flipped labels."""
    sweep = "noise" if len({each["noise"] for each in shown["cells"]}) > 1 else "rho"
    for number, name in enumerate(dict.fromkeys(each["name"] for each in shown["cells"])):
        cells = sorted((each for each in shown["cells"] if each["name"] == name), key=lambda each: each[sweep] or 0)
        axes.errorbar(
            [(each[sweep] or 0) * 100 for each in cells],
            [each["mean"] for each in cells],
            yerr=[each["std"] or 0.0 for each in cells],
            color=palette.series[number],
            marker="os^D"[number % 4],
            markersize=4.5,
            capsize=2.5,
            label=name,
        )
    if sweep == "rho":
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(matplotlib.ticker.FuncFormatter(lambda each, _: f"{each:g}"))
    axes.set_xlabel("rho in %" if sweep == "rho" else "flipped training labels in %")
    axes.set_ylabel("unbiased accuracy in %")
    axes.legend(frameon=False)


def svg_figures(found: Found) -> list[tuple[str, str]]:
    """Caption and SVG of each panel, for the page."""
    drawn = []
    for number, (name, shown, draw) in enumerate(panels(found)):
        with matplotlib.rc_context(figures.STYLE):
            figure = Figure(figsize=size(shown, draw), layout="constrained")
            FigureCanvasSVG(figure)
            draw(figure.add_subplot(), shown, PAGE)
            alt = f"{found['title']}, {name}: {found['sentence']}"
            drawn.append((name, figures.as_svg(figure, f"study-{found['study']}-{number}", alt)))
    return drawn


def size(shown: Found, draw: Draw) -> tuple[float, float]:
    """Inches: bars need room for each of them."""
    return 5.2, max(3.1, 0.36 * len(shown["cells"]) + 0.9) if draw is draw_bars else 3.3


def file_figures(found: Found, folder: Path) -> list[Path]:
    """All panels of a study side by side, as `<study>.pdf` and `<study>.png`."""
    shown = panels(found)
    if not shown:
        return []
    columns = min(3, len(shown))
    rows = -(-len(shown) // columns)
    width, height = 5.2 * columns, max(size(each, draw)[1] for _, each, draw in shown) * rows + 0.3
    with matplotlib.rc_context(PRINT_STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)
        for number, (name, each, draw) in enumerate(shown):
            axes = figure.add_subplot(rows, columns, number + 1)
            draw(axes, each, PRINT)
            axes.set_title(name, fontsize=10.5)
        written = []
        for kind in ("pdf", "png"):
            stream = io.BytesIO()
            figure.savefig(stream, format=kind, dpi=160, metadata={"Creator": None} if kind == "pdf" else None)
            write_bytes(folder / f"{found['study']}.{kind}", stream.getvalue())
            written.append(folder / f"{found['study']}.{kind}")
    return written
