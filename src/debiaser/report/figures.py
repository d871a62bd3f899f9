"""Small SVG figures whose colours are CSS variables, so that one file is readable on light and on dark."""

import io
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from debiaser.io import replacing, write_bytes

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


# --- Small drawings as SVG without a style attribute, so that the page's policy can forbid all inline style

WIDTH, HEIGHT = 400, 240
LEFT, RIGHT, TOP, BOTTOM = 44, 10, 10, 40


def drawing(content: str, alt: str, width: int = WIDTH, height: int = HEIGHT, kind: str = "figure") -> Markup:
    """An SVG that scales, read aloud as `alt`."""
    head = f'<svg class="{kind}" role="img" aria-label="{escape(alt)}" viewBox="0 0 {width} {height}">'
    return Markup(f"{head}{content}</svg>")  # noqa: S704 (numbers and escaped text only)


def _text(x: float, y: float, text: str, anchor: str = "middle") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, kind: str = "rule") -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _rect(x: float, y: float, width: float, height: float, kind: str) -> str:
    return f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{max(width, 0):.1f}" height="{max(height, 0):.1f}"/>'


def score_histogram(edges: Sequence[float], everything: Sequence[float], missed: Sequence[float], alt: str) -> Markup:
    """Two histograms over the same bins, each as shares of its own total, so that the small one is as visible."""
    series = [(kind, _shares(counts)) for kind, counts in (("all", everything), ("missed", missed)) if sum(counts)]
    top = _round_up(max((max(shares) for _, shares in series), default=1.0))
    wide, tall = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    step = wide / max(len(edges) - 1, 1)
    parts = []
    for number in range(5):
        y = TOP + tall * (1 - number / 4)
        parts += [_line(LEFT, y, WIDTH - RIGHT, y), _text(LEFT - 6, y + 4, f"{top * number / 4 * 100:g}%", "end")]
    for kind, shares in series:
        bars = (_bar(LEFT + n * step, step, share / top * tall, TOP + tall) for n, share in enumerate(shares) if share)
        parts.append(f'<g class="bins {kind}">{"".join(bars)}</g>')
    for number in range(5):
        place = round(number * (len(edges) - 1) / 4)
        anchor = ("start", "middle", "middle", "middle", "end")[number]
        parts.append(_text(LEFT + place * step, HEIGHT - 22, f"{edges[place]:.2g}", anchor))
    parts.append(_text(LEFT + wide / 2, HEIGHT - 4, "score: how hard the sample pulls against the easy rule"))
    return drawing("".join(parts), alt)


def _round_up(share: float) -> float:
    """The next share that four lines divide into plain numbers."""
    return next((top for top in (0.04, 0.08, 0.12, 0.2, 0.4, 0.6, 0.8) if share <= top), 1.0)


def _shares(counts: Sequence[float]) -> list[float]:
    total = sum(counts)
    return [count / total for count in counts]


def _bar(x: float, width: float, height: float, floor: float) -> str:
    return _rect(x + 0.5, floor - height, width - 1, height, "bin")


def bar(
    value: float,
    chance: float | None = None,
    low: float | None = None,
    high: float | None = None,
    null: float | None = None,
) -> Markup:
    """A bar from 0 to 100, the interval as a whisker, and behind it the band that chance gives: its mean, and what it
    reaches in 19 of 20 draws (`null`)."""
    parts = [_rect(0, 4, 100, 10, "track-back")]
    if chance is not None:
        parts.append(_rect(0, 1, min(max(chance, null or 0), 100), 16, "chance-band"))
    parts.append(_rect(0, 4, min(max(value, 0), 100), 10, "bar-fill"))
    if low is not None and high is not None:
        parts.append(_line(max(low, 0), 9, min(high, 100), 9, "whisker"))
    if chance is not None:
        parts.append(_line(min(chance, 100), 0, min(chance, 100), 18, "chance-line"))
    content = "".join(parts)
    return Markup(  # noqa: S704 (numbers only)
        f'<svg class="bar-drawing" viewBox="0 0 100 18" preserveAspectRatio="none" aria-hidden="true">{content}</svg>'
    )


def plane(easy: Sequence[float], judge: Sequence[float], kinds: Sequence[str], alt: str) -> Markup:
    """Each sample by the probability that the easy model (across) and the judging one (up) give to its label."""
    side = HEIGHT - TOP - BOTTOM
    parts = [_rect(LEFT, TOP, side, side, "frame"), _line(LEFT, TOP + side, LEFT + side, TOP, "diagonal")]
    for share in (0.0, 0.5, 1.0):
        parts.append(_text(LEFT + share * side, TOP + side + 16, f"{share:.0%}"))
        parts.append(_text(LEFT - 6, TOP + side * (1 - share) + 4, f"{share:.0%}", "end"))
    for x, y, kind in zip(easy, judge, kinds, strict=True):
        across, up = LEFT + x * side, TOP + (1 - y) * side
        parts.append(f'<circle class="dot kind-{escape(kind)}" cx="{across:.1f}" cy="{up:.1f}" r="3"/>')
    parts.append(_text(LEFT + side / 2, HEIGHT - 6, "easy model"))
    return drawing("".join(parts), alt, LEFT + side + RIGHT + 8, HEIGHT, "figure plane")


ROW, NAMES, LONGEST = 22, 150, 22  # of a forest: height of a row, room for names, characters of a name


def forest(rows: Sequence[tuple[str, float, float, bool]], alt: str) -> Markup:
    """A row for each (name, value, chance, flagged), in percent: a tick at chance, a line from it to a dot."""
    wide, height = WIDTH - NAMES - 2 * RIGHT, ROW * len(rows) + 30
    parts = []
    for number in range(5):
        x = NAMES + wide * number / 4
        parts += [_line(x, 4, x, height - 22), _text(x, height - 6, f"{25 * number}%")]
    for number, (name, value, chance, flagged) in enumerate(rows):
        y = 4 + ROW * (number + 0.5)
        told = name if len(name) <= LONGEST else name[: LONGEST - 1] + "…"
        here, there = (NAMES + wide * min(max(each, 0), 100) / 100 for each in (value, chance))
        kind = "conflicting" if flagged else "aligned"
        parts += [_text(NAMES - 10, y + 4, told, "end"), _line(there, y, here, y, f"reach {kind}")]
        parts += [_line(there, y - 6, there, y + 6, "chance-line")]
        parts.append(f'<circle class="dot kind-{kind}" cx="{here:.1f}" cy="{y:.1f}" r="4.5"/>')
    return drawing("".join(parts), alt, WIDTH, height)


def break_even(
    before: tuple[float, float],
    after: tuple[float, float],
    even: tuple[float, float, float],
    marks: Sequence[tuple[str, float, float]],
    alt: str,
) -> Markup:
    """Accuracy against the share of cases that go against the rule: a line each for (following, against) before and
    after, the band where they cross, and bars below for the shares that are known (name, low, high), all in percent."""
    value, low, high = even
    wanted = max(2 * min(high, 50.0), *(1.2 * mark[2] for mark in marks), 0.0)
    far = next((end for end in (4.0, 8.0, 20.0, 40.0, 60.0, 80.0) if wanted <= end), 100.0)
    height = HEIGHT + 20 * len(marks)
    wide, tall = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    ends = [side[0] + (side[1] - side[0]) * share / 100 for side in (before, after) for share in (0.0, far)]
    bottom, top = max(0.0, min(ends) - 3), min(100.0, max(ends) + 3)

    def at(share: float, accuracy: float) -> tuple[float, float]:
        return LEFT + wide * share / far, TOP + tall * (top - accuracy) / max(top - bottom, 1e-9)

    x = at(min(low, far), bottom)[0]
    parts = [_rect(x, TOP, at(min(high, far), bottom)[0] - x, tall, "even-band")]
    for number in range(5):
        accuracy = bottom + (top - bottom) * number / 4
        share = far * number / 4
        parts += [_line(LEFT, at(0, accuracy)[1], WIDTH - RIGHT, at(0, accuracy)[1])]
        parts += [_text(LEFT - 6, at(0, accuracy)[1] + 4, f"{accuracy:.0f}%", "end")]
        parts += [_text(at(share, 0)[0], TOP + tall + 16, f"{share:.3g}%", "middle" if number < 4 else "end")]
    if value < far:
        parts.append(_line(at(value, 0)[0], TOP, at(value, 0)[0], TOP + tall, "even-line"))
    for kind, (follow, against) in (("before", before), ("after", after)):
        end = follow + (against - follow) * far / 100
        parts.append(_line(*at(0, follow), *at(far, end), f"course {kind}"))
    parts.append(_text(LEFT + wide / 2, TOP + tall + 34, "share of cases that go against the rule"))
    for number, (name, start, stop) in enumerate(marks):
        y = TOP + tall + 50 + 20 * number
        left, right = at(min(start, far), 0)[0], at(min(stop, far), 0)[0]
        parts.append(_rect(left, y - 4, max(right - left, 3), 8, "known"))
        room = right < LEFT + 0.7 * wide  # else the name stands before its bar
        parts.append(_text(right + 8 if room else left - 6, y + 4, name, "start" if room else "end"))
    return drawing("".join(parts), alt, WIDTH, height + 14 * bool(marks))


# --- Figures of studies as the paper draws them: bars with error bars, histograms of norms and of trials, lines

Found = dict[str, Any]
Draw = Callable[[Axes, Found, "Palette"], None]


@dataclass(frozen=True)
class Palette:
    """Colours of one output: of a page, where they are replaced by variables, or of a file."""

    ink: str
    aligned: str
    conflicting: str
    series: tuple[str, ...]


PAGE = Palette(INK, ALIGNED, CONFLICTING, SERIES[1:])
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
        with matplotlib.rc_context(STYLE):
            figure = Figure(figsize=size(shown, draw), layout="constrained")
            FigureCanvasSVG(figure)
            draw(figure.add_subplot(), shown, PAGE)
            alt = f"{found['title']}, {name}: {found['sentence']}"
            drawn.append((name, as_svg(figure, f"study-{found['study']}-{number}", alt)))
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


# --- A sheet of sample pictures: one column per class, rows that follow the shortcut above a row that goes against it

CELL, GAP, HEAD, MARGIN = 64, 4, 22, 96
LETTERS = 13, 7  # pixels: as large as the name of a column allows


def write_sheet(
    path: Path, columns: Sequence[str], rows: Sequence[tuple[str, Sequence[NDArray[np.uint8] | None]]]
) -> Path:
    """The PNG at `path`: each row is its name and one picture (h, w, 3) per column, or None where there is none."""
    names = [name for name, _ in rows]
    width = MARGIN + len(columns) * (CELL + GAP) + GAP
    breaks = [number for number in range(1, len(names)) if names[number] != names[number - 1]]
    height = HEAD + len(rows) * (CELL + GAP) + GAP + len(breaks) * GAP * 3
    sheet = Image.new("RGB", (width, height), "white")
    draw, font, heading = ImageDraw.Draw(sheet), ImageFont.load_default(LETTERS[0]), fitting(columns, CELL)
    for number, column in enumerate(columns):
        middle = MARGIN + number * (CELL + GAP) + CELL / 2, HEAD / 2
        draw.text(middle, column, "black", heading, "mm")
    for number, (name, pictures) in enumerate(rows):
        top = HEAD + number * (CELL + GAP) + sum(GAP * 3 for each in breaks if each <= number)
        if number == 0 or number in breaks:
            draw.text((6, top + CELL / 2), name, "black", font, "lm")
        for place, picture in enumerate(pictures):
            if picture is not None:
                small = max(picture.shape[:2]) <= CELL  # its pixels are shown as they are; more of them are averaged
                how = Image.Resampling.NEAREST if small else Image.Resampling.BOX
                cell = Image.fromarray(picture).resize((CELL, CELL), how)
                sheet.paste(cell, (MARGIN + place * (CELL + GAP), top))
    with replacing(path) as temporary:
        sheet.save(temporary, "PNG")
    return path


def fitting(texts: Sequence[str], width: int) -> ImageFont.ImageFont | ImageFont.FreeTypeFont:
    """The largest letters in which all the texts are at most so many pixels wide."""
    sizes = (ImageFont.load_default(size) for size in range(LETTERS[0], LETTERS[1], -1))
    fits = (font for font in sizes if all(font.getlength(text) <= width for text in texts))
    return next(fits, ImageFont.load_default(LETTERS[1]))
