"""Small SVG figures whose colours are CSS variables, so that one file is readable on light and on dark."""

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

# matplotlib knows no CSS: it draws in these colours that nobody would choose, and the text is replaced afterwards.
INK, FAINT, ALIGNED, CONFLICTING, FLIPPED = "#010101", "#010102", "#010103", "#010104", "#010105"
SERIES = tuple(f"#0102{index:02x}" for index in range(8))
VARIABLES = {
    INK: "currentColor",
    FAINT: "var(--line)",
    ALIGNED: "var(--aligned)",
    CONFLICTING: "var(--conflicting)",
    FLIPPED: "var(--flipped)",
    **{colour: f"var(--series-{index})" for index, colour in enumerate(SERIES)},
}
# Drawn to match .line-0 to .line-7 of page.css: nobody should have to tell two curves apart by colour alone.
DASHES: tuple[Any, ...] = ((0, (4, 1.5)), "-", (0, (1, 1)), "-", (0, (4, 1.5)), "-", (0, (1, 1)), "-")
STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "debiaser",
    "font.size": 10.0,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": FAINT,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.parse_math": False,
    "path.simplify": True,
}
BINS = 28


@dataclass(frozen=True)
class Curve:
    """One run's accuracy against the samples seen; `stages` has one name per point, `style` is below eight."""

    label: str
    style: int
    seen: tuple[float, ...]
    values: tuple[float, ...]
    stages: tuple[str, ...]
    borders: tuple[float, ...]


def histogram(scores: np.ndarray, conflicting: np.ndarray, flipped: np.ndarray, name: str, alt: str) -> str:
    """The scores of the training rows as an SVG: shares within each kind, so that a small kind is as visible."""
    finite = np.isfinite(scores)
    scores, conflicting, flipped = scores[finite], conflicting[finite], flipped[finite]
    kinds = _kinds(conflicting, flipped)
    edges, logarithmic = bin_edges(scores)
    with matplotlib.rc_context(STYLE):
        figure, axes = empty()
        floor = np.clip(scores, edges[0], edges[-1])
        for colour, mask in kinds:
            shares = np.histogram(floor[mask], edges)[0] / max(int(mask.sum()), 1) * 100
            axes.stairs(shares, edges, fill=True, color=colour, alpha=0.28, linewidth=0)
            axes.stairs(shares, edges, color=colour, linewidth=1.6)
        if logarithmic:
            axes.set_xscale("log")
            axes.xaxis.set_major_formatter(matplotlib.ticker.FuncFormatter(lambda value, _: f"{value:g}"))
            axes.xaxis.set_minor_formatter(matplotlib.ticker.NullFormatter())
        axes.set_xlim(edges[0], edges[-1])
        axes.set_ylim(bottom=0)
        axes.set_xlabel("score" + (" (logarithmic)" if logarithmic else ""))
        axes.set_ylabel("% of its kind")
        return as_svg(figure, name, alt)


def bin_edges(scores: np.ndarray) -> tuple[np.ndarray, bool]:
    """Edges of the bins, and whether they are logarithmic: for positive scores with a tail of tenfold the median."""
    low, high = float(scores.min()), float(scores.max())
    positive = scores[scores > 0]
    if low >= 0 and len(positive) > len(scores) / 2 and high > 10 * float(np.median(scores)):
        # The lowest thousandth goes into the first bin, else a single tiny score stretches the axis over decades.
        start = max(float(np.quantile(positive, 0.001)), high * 1e-6)
        return np.geomspace(start, high * 1.0000001, BINS + 1), True
    if high <= low:
        return np.linspace(low - 0.5, low + 0.5, BINS + 1), False
    return np.linspace(low, high, BINS + 1), False


def _kinds(conflicting: np.ndarray, flipped: np.ndarray) -> list[tuple[str, np.ndarray]]:
    mistaken = flipped == 1
    kinds = [
        (ALIGNED, (conflicting == 0) & ~mistaken),
        (CONFLICTING, (conflicting == 1) & ~mistaken),
        (FLIPPED, mistaken),
        (INK, (conflicting == -1) & ~mistaken),
    ]
    return [(colour, mask) for colour, mask in kinds if mask.any()]


def curves(series: Sequence[Curve], ylabel: str, name: str, alt: str) -> str:
    """Learning curves as an SVG, with a dotted line where a run goes from one stage to the next."""
    with matplotlib.rc_context(STYLE):
        figure, axes = empty()
        axes.grid(axis="y", color=FAINT, linewidth=0.6)
        for curve in series:
            _draw_stages(axes, curve)
        _draw_borders(axes, series)
        axes.set_ylim(-2, 102)
        axes.set_xlim(left=0)
        axes.set_xlabel("training samples seen")
        axes.set_ylabel(ylabel)
        axes.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(5))
        axes.xaxis.set_major_formatter(matplotlib.ticker.FuncFormatter(lambda value, _: f"{value:,.0f}"))
        return as_svg(figure, name, alt)


def _draw_stages(axes: Axes, curve: Curve) -> None:
    """Each stage as a line of its own, all but the last one thin: some methods start anew or train two networks."""
    colour, dash = SERIES[curve.style], DASHES[curve.style]
    marker = "o" if len(curve.seen) <= 40 else None
    names = list(dict.fromkeys(curve.stages))
    for stage in names:
        points = [point for point in zip(curve.seen, curve.values, curve.stages, strict=True) if point[2] == stage]
        axes.plot(
            [point[0] for point in points],
            [point[1] for point in points],
            color=colour,
            linestyle=dash,
            linewidth=2.0 if stage == names[-1] else 1.3,
            marker=marker,
            markersize=3.2,
        )


def _draw_borders(axes: Axes, series: Sequence[Curve]) -> None:
    drawn: set[float] = set()
    for curve in series:
        for border in curve.borders:
            if border not in drawn:
                axes.axvline(border, color=INK, linewidth=0.9, linestyle=(0, (2, 2)))
                drawn.add(border)
    if len(drawn) == 1:
        axes.annotate("stage border", (drawn.pop(), 100), (4, -1), textcoords="offset points", va="top", fontsize=8.5)


def empty(width: float = 5.2, height: float = 3.1) -> tuple[Figure, Axes]:
    """A figure of so many inches with one pair of axes."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasSVG(figure)
    return figure, figure.add_subplot()


def as_svg(figure: Figure, name: str, alt: str) -> str:
    """The figure's text, made fit to stand inside a page: no prolog, ids of its own, colours as variables."""
    stream = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(stream, format="svg", transparent=True, metadata=nothing)
    text = stream.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<!--.*?-->|<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', text)
    text = re.sub(r'(url\(#|href="#)', rf"\g<1>{name}-", text)
    text = re.sub(r">\s+<", "><", text)
    for colour, variable in VARIABLES.items():
        text = text.replace(colour, variable)
    box = re.search(r'viewBox="[^"]+"', text)
    head = f'<svg class="figure" role="img" aria-label="{escape(alt)}" xmlns="http://www.w3.org/2000/svg"'
    links = ' xmlns:xlink="http://www.w3.org/1999/xlink"'
    return re.sub(r"<svg[^>]*>", f"{head}{links} {box.group() if box else ''}>", text, count=1)
