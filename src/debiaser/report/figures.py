"""Every figure: SVG for pages, readable on light and on dark, PDF and PNG for files, small images as data URIs."""

import base64
import io
import re
from collections.abc import Callable, Mapping, Sequence
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullFormatter
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from debiaser.io import replacing, write_bytes

Found = Mapping[str, Any]
Palette = Mapping[str, str]

# matplotlib knows no CSS: it draws in these colours that nobody would choose, and `svg` replaces them by variables.
NAMES = ("ink", "line", "aligned", "conflicting", "flipped", "unknown", "right", "unclear")
PAGE: Palette = {
    name: f"#01{number:04x}" for number, name in enumerate((*NAMES, *(f"series-{index}" for index in range(8))))
}
PRINTED = ("#3b6fb6", "#c8452f", "#3a8f7b", "#a0619f", "#b98a1d", "#6b7280")
PRINT: Palette = {"ink": "#1f2328", "aligned": "#3b6fb6", "conflicting": "#c8452f"} | {
    f"series-{index}": colour for index, colour in enumerate(PRINTED, 1)
}
# Drawn to match .line-0 to .line-7 of page.css: nobody should have to tell two curves apart by colour alone.
DASHES: tuple[Any, ...] = ((0, (4, 1.5)), "-", (0, (1, 1)), "-") * 2
PRINT_STYLE: Any = {"font.size": 10.0, "axes.spines.top": False, "axes.spines.right": False, "text.parse_math": False}
PAGE_STYLE: Any = PRINT_STYLE | {
    "svg.fonttype": "none",
    "svg.hashsalt": "debiaser",
    "axes.edgecolor": PAGE["line"],
    **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), PAGE["ink"]),
}
BINS = 28


on_page = matplotlib.rc_context(PAGE_STYLE)


def _axes(width: float = 5.2, height: float = 3.1) -> Axes:
    """Axes of a figure of so many inches."""
    return Figure(figsize=(width, height), layout="constrained").add_subplot()


def _svg(axes: Axes, name: str, alt: str) -> Markup:
    """The figure of these axes as an SVG inside a page: ids of its own, colours as variables.

    Style attributes become plain ones, so that a page's policy can forbid all inline style.
    """
    stream, nothing = io.StringIO(), dict.fromkeys(("Creator", "Date", "Format", "Type"))
    axes.get_figure(root=True).savefig(stream, format="svg", transparent=True, metadata=nothing)  # type: ignore[union-attr]
    text = re.sub(r"<!--.*?-->|<metadata>.*?</metadata>|<style.*?</style>", "", stream.getvalue(), flags=re.DOTALL)
    text = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', text)
    text = re.sub(r'(url\(#|href="#)', rf"\g<1>{name}-", text)
    text = re.sub(r'\bstyle="([^"]*)"', _as_attributes, text)
    text = re.sub(r">\s+<", "><", text)
    for colour, place in PAGE.items():
        text = text.replace(place, "currentColor" if colour == "ink" else f"var(--{colour})")
    box, content = re.search(r'<svg[^>]*(viewBox="[^"]+")[^>]*>(.*)', text, re.DOTALL).groups()  # type: ignore[union-attr]
    head = f'<svg class="figure" role="img" aria-label="{escape(alt)}" {box} stroke-linejoin="round"'
    links = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    return Markup(f"{head} {links}>{content}")  # noqa: S704 (our own drawing, its texts escaped)


def _as_attributes(style: re.Match[str]) -> str:
    pairs = (each.split(":", 1) for each in style[1].split(";") if each.strip())
    return " ".join(f'{name.strip()}="{value.strip()}"' for name, value in pairs if name.strip() != "font-family")


def save_figure(figure: Figure, folder: Path, name: str) -> list[Path]:
    """The figure as `<name>.pdf` and `<name>.png` in the folder."""
    written = []
    for kind, options in {"pdf": {"metadata": {"Creator": None, "CreationDate": None}}, "png": {"dpi": 160}}.items():
        stream = io.BytesIO()
        figure.savefig(stream, format=kind, **options)  # type: ignore[arg-type]
        write_bytes(folder / f"{name}.{kind}", stream.getvalue())
        written.append(folder / f"{name}.{kind}")
    return written


def _logarithmic(axes: Axes, numbers: str = "{x:g}") -> None:
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(numbers)
    axes.xaxis.set_minor_formatter(NullFormatter())


def _write(axes: Axes, text: str, at: tuple[float, float], beside: tuple[float, float], **look: Any) -> None:
    """A text so many points beside a place."""
    axes.annotate(text, at, beside, textcoords="offset points", **look)


def _steps(axes: Axes, edges: Any, heights: Any, colour: str, label: str | None = None) -> None:
    axes.stairs(heights, edges, fill=True, color=colour, alpha=0.3, linewidth=0)
    axes.stairs(heights, edges, color=colour, linewidth=1.6, label=label)


def _shares(counts: Any) -> Any:
    """Percent of their sum, so that a small kind is as visible as a large one."""
    return np.asarray(counts, dtype=float) / max(np.sum(counts), 1) * 100


# Scores, curves


@on_page
def histogram(
    edges: Any, counts: Sequence[tuple[str, Any]], name: str, alt: str, logarithmic: bool, xlabel: str = "score"
) -> Markup:
    """Counts per bin of kinds that are named by their colour, each as shares of its own total."""
    axes = _axes()
    for kind, each in counts:
        _steps(axes, edges, _shares(each), PAGE[kind])
    if logarithmic:
        _logarithmic(axes)
    axes.set(xlim=(edges[0], edges[-1]), xlabel=xlabel + (" (logarithmic)" if logarithmic else ""))
    axes.set_ylim(bottom=0)
    axes.set_ylabel("% of its kind")
    return _svg(axes, name, alt)


def score_histogram(scores: np.ndarray, kinds: Mapping[str, np.ndarray], name: str, alt: str) -> Markup:
    """The scores of the training samples of each kind, named by its colour, given by its mask."""
    finite = np.isfinite(scores)
    edges, logarithmic = score_bins(scores[finite])
    inside = np.clip(scores, edges[0], edges[-1])
    counts = [(kind, np.histogram(inside[mask & finite], edges)[0]) for kind, mask in kinds.items()]
    return histogram(edges, counts, name, alt, logarithmic)


def score_bins(scores: np.ndarray) -> tuple[np.ndarray, bool]:
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


Point = tuple[float, float, str]  # samples seen, accuracy, stage


@on_page
def curves(series: Sequence[tuple[int, list[Point], list[float]]], ylabel: str, name: str, alt: str) -> Markup:
    """Learning curves: each its line style from 0 to 7, its points, and where a stage ends, marked by a dotted line."""
    axes = _axes()
    axes.grid(axis="y", color=PAGE["line"], linewidth=0.6)
    for style, points, _ in series:
        stages = list(dict.fromkeys(stage for *_, stage in points))
        for stage in stages:  # a line each, all but the last one thin: some methods start anew or train two networks
            seen, values = zip(*((x, y) for x, y, own in points if own == stage), strict=True)
            line: Any = {"color": PAGE[f"series-{style}"], "linestyle": DASHES[style], "markersize": 3.2}
            width, marker = 2.0 if stage == stages[-1] else 1.3, "o" if len(points) <= 40 else None
            axes.plot(seen, values, linewidth=width, marker=marker, **line)
    borders = {border for *_, borders in series for border in borders}
    for border in sorted(borders):
        axes.axvline(border, color=PAGE["ink"], linewidth=0.9, linestyle=(0, (2, 2)))
    if len(borders) == 1:
        _write(axes, "stage border", (borders.pop(), 100), (4, -1), va="top", fontsize=8.5)
    axes.set(ylim=(-2, 102), xlabel="training samples seen", ylabel=ylabel)
    axes.set_xlim(left=0)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter("{x:,.0f}")
    return _svg(axes, name, alt)


# Of an audit


@on_page
def forest(rows: Sequence[tuple[str, float, float, bool]], alt: str) -> Markup:
    """A line for each (name, value, chance, flagged), in percent, from a tick at chance to a dot."""
    axes = _axes(5.2, 0.3 * len(rows) + 0.6)
    for place, (_, value, chance, flagged) in enumerate(rows):
        colour = PAGE["conflicting" if flagged else "aligned"]
        axes.plot([chance, value], [place, place], color=colour, linewidth=1.6)
        axes.plot([chance], [place], "|", color=PAGE["aligned"], markersize=9)
        axes.plot([value], [place], "o", color=colour, markersize=6, gid=f"dot-{place}")
    axes.set_yticks(range(len(rows)), [name if len(name) <= 22 else f"{name[:21]}…" for name, *_ in rows])
    axes.set(xlim=(0, 100), ylim=(len(rows) - 0.4, -0.6))
    axes.xaxis.set_major_formatter("{x:.0f}%")
    axes.grid(axis="x", color=PAGE["line"], linewidth=0.6)
    return _svg(axes, "forest", alt)


@on_page
def break_even(before: Found, after: Found, even: Found, share: Found, alt: str) -> Markup:
    """Accuracy against the share of bias-conflicting cases, in percent: a line each before and after, the band where
    they cross, and below it what is known of the share in these data (from 0 to 1)."""
    axes, here = _axes(), (share["low"] * 100, share["high"] * 100)
    wanted = max(2 * min(even["high"], 50.0), 1.2 * here[1])
    far = next((end for end in (4.0, 8.0, 20.0, 40.0, 60.0, 80.0) if wanted <= end), 100.0)
    axes.axvspan(even["low"], min(even["high"], far), color=PAGE["unclear"], alpha=0.22, linewidth=0, gid="even-band")
    if even["value"] < far:
        axes.axvline(even["value"], color=PAGE["unclear"], linewidth=1.2, linestyle=(0, (4, 3)), gid="even-line")
    for side, colour in ((before, "aligned"), (after, "right")):
        end = side["follow"] + (side["against"] - side["follow"]) * far / 100
        axes.plot([0, far], [side["follow"], end], color=PAGE[colour], linewidth=2, gid=f"course-{colour}")
    axes.plot(here, [0.02, 0.02], color=PAGE["conflicting"], linewidth=6, transform=axes.get_xaxis_transform())
    right = here[1] > 0.7 * far  # then the words stand before its end
    words: Any = {"xycoords": axes.get_xaxis_transform(), "ha": "right" if right else "left", "fontsize": 9}
    _write(axes, "your data", (here[1], 0.02), (0 if right else 5, 7), **words)
    axes.set(xlim=(0, far), xlabel="share of cases that go against the shortcut", ylabel="accuracy")
    axes.xaxis.set_major_formatter("{x:g}%")
    axes.yaxis.set_major_formatter("{x:g}%")
    axes.grid(axis="y", color=PAGE["line"], linewidth=0.6)
    return _svg(axes, "price", alt)


# Of the bench


@on_page
def ratios(claims: Sequence[Found], alt: str) -> Markup:
    """Every alternative as a line from its lowest to its highest ratio on a logarithmic axis, grouped by claim."""
    number = sum(len(claim["ratios"]) for claim in claims)
    axes = _axes(7.4, 0.7 + 0.26 * number + 0.3 * len(claims))
    place, ticks = 0.0, {}
    for claim in claims:
        place -= 1.1
        words: Any = {"weight": "bold", "fontsize": 9, "va": "center", "xycoords": ("axes fraction", "data")}
        _write(axes, claim["title"], (0, place), (4, 0), **words)
        for way, spread in claim["ratios"].items():
            place -= 1
            ticks[place] = way
            line: Any = {"color": PAGE["series-1"]}
            axes.plot([spread["low"], spread["high"]], [place, place], linewidth=2.2, alpha=0.6, **line)
            axes.plot([spread["median"]], [place], "o", markersize=5.5, **line)
            _write(axes, times(spread["median"]), (spread["high"], place), (7, 0), va="center", fontsize=9)
    axes.axvline(1, color=PAGE["ink"], linewidth=0.9, linestyle=(0, (2, 2)))
    _logarithmic(axes, "{x:g}×")
    axes.set_xlim(right=4 * max(spread["high"] for claim in claims for spread in claim["ratios"].values()))
    axes.grid(axis="x", color=PAGE["line"], linewidth=0.6)
    axes.set_yticks(list(ticks), list(ticks.values()))
    axes.set(ylim=(place - 0.8, 0), xlabel="its time over ours (logarithmic)")
    return _svg(axes, "ratios", alt)


def times(ratio: float) -> str:
    """A ratio with as many digits as it deserves."""
    return f"{ratio:,.0f}×" if ratio >= 100 else f"{ratio:.3g}×"


# Of studies, as the paper draws them: bars with error bars, histograms of norms and of trials, lines

Draw = Callable[[Axes, Sequence[Found], Palette], None]


def panels(found: Found) -> list[tuple[str, Sequence[Found], Draw]]:
    """What there is to draw of a study: a name, what it shows, and how; one panel for each place and unit."""
    if found["figure"] == "histograms":
        return [(each["place"], [each], draw_norms) for each in found["histograms"]]
    cells = [each for each in found["cells"] if each["mean"] is not None]
    if found["figure"] == "lines":
        return [(found["title"], cells, draw_lines)] if cells else []
    if found["figure"] == "draws":
        places = dict.fromkeys(each["place"] for each in cells if each["metric"] == "drawn")
        return [(place, [each for each in cells if each["place"] == place], draw_draws) for place in places]
    draw = draw_trials if found["figure"] == "trials" else draw_bars
    made: list[tuple[str, Sequence[Found], Draw]] = []
    for place in dict.fromkeys(each["place"] for each in cells):
        here = [each for each in cells if each["place"] == place]
        for metric in dict.fromkeys(each["metric"] for each in here):
            if metric != "samples":
                name = place if metric == here[0]["metric"] else f"{place}, {metric}"
                made.append((name, [each for each in here if each["metric"] == metric], draw))
    return made


def draw_bars(axes: Axes, cells: Sequence[Found], palette: Palette) -> None:
    """Bars with error bars, in the order of the table; a short line where the paper's number is."""
    heights, means = np.arange(len(cells))[::-1], [each["mean"] for each in cells]
    printed = palette is PRINT
    axes.barh(heights, means, 0.62, color=palette["series-1"], alpha=0.85 if printed else 0.45)
    deviations = [each["std"] or 0.0 for each in cells]
    axes.errorbar(means, heights, xerr=deviations, fmt="none", ecolor=palette["ink"], capsize=2.5)
    published = [
        (each["published"], at) for each, at in zip(cells, heights, strict=True) if each["published"] is not None
    ]
    for number, at in published:
        axes.plot([number, number], [at - 0.4, at + 0.4], color=palette["conflicting"], linewidth=2.2)
    inside: Any = {"xycoords": axes.get_yaxis_transform(), "color": "white" if printed else palette["ink"]}
    for mean, at in zip(means, heights, strict=True):
        _write(axes, f"{mean:.{3 if mean >= 1e4 else 4}g}", (0, at), (5, 0), va="center", **inside)
    axes.set_yticks(heights, [each["name"] for each in cells])
    axes.set_ylim(min(len(cells), 3) - 3.5, len(cells) - 0.5)  # one or two bars are not drawn as walls
    if min(means) > 0 and max(means) > 100 * min(means):
        _logarithmic(axes, "{x:.0e}")
        axes.set_xlim(left=min(means) / 100)
    else:
        axes.set_xlim(left=0)
    units = {"unbiased": "unbiased accuracy in %", "worst_group": "accuracy in %", "group_average": "accuracy in %"}
    units |= {"fisher_trace": "trace of the damped inverse"}
    metric = str(cells[0]["metric"])
    axes.set_xlabel(
        units.get(metric, metric) + (" (red line: published)" if published else ""), loc="right"
    )  # ends with the axes


def draw_norms(axes: Axes, cells: Sequence[Found], palette: Palette) -> None:
    """Shares of each kind per tenth of the largest norm."""
    (shown,) = cells
    for kind in ("aligned", "conflicting"):
        counts = shown[kind]
        label = f"{kind} ({int(np.sum(counts)):,} samples)"
        _steps(axes, np.linspace(0, 1, len(counts) + 1), _shares(counts), palette[kind], label=label)
    axes.set(xlim=(0, 1), xlabel=f"gradient norm over the largest, seed {shown['seed']}", ylabel="% of its kind")
    axes.legend(frameon=False)


def draw_trials(axes: Axes, cells: Sequence[Found], palette: Palette) -> None:
    """How many trials of each method reached which accuracy."""
    every = [value for each in cells for value in each["values"]]
    edges = np.linspace(min(every) - 0.05, max(every) + 0.05, 13)
    for number, each in enumerate(cells, 1):
        label = f"{each['name']} ({each['runs']} trials)"
        _steps(axes, edges, np.histogram(each["values"], edges)[0], palette[f"series-{number}"], label=label)
    axes.set(xlabel="unbiased accuracy in %", ylabel="trials")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(frameon=False)


def draw_lines(axes: Axes, cells: Sequence[Found], palette: Palette) -> None:
    """Accuracy against rho, or against the share of flipped labels."""
    sweep = "noise" if len({each["noise"] for each in cells}) > 1 else "rho"
    for number, name in enumerate(dict.fromkeys(each["name"] for each in cells)):
        line = sorted((each for each in cells if each["name"] == name), key=lambda each: each[sweep] or 0)
        look: Any = {"color": palette[f"series-{number + 1}"], "marker": "os^D"[number % 4], "markersize": 4.5}
        deviations = [each["std"] or 0.0 for each in line]
        shares, means = [(each[sweep] or 0) * 100 for each in line], [each["mean"] for each in line]
        axes.errorbar(shares, means, yerr=deviations, capsize=2.5, label=name, **look)
    if sweep == "rho":
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlabel("rho in %" if sweep == "rho" else "flipped training labels in %")
    axes.set_ylabel("unbiased accuracy in %")
    axes.legend(frameon=False)


def draw_draws(axes: Axes, cells: Sequence[Found], palette: Palette) -> None:
    """Accuracy against the share of draws that went to conflicting samples; each point named."""
    accuracy = {each["name"]: each["mean"] for each in cells if each["metric"] == "unbiased"}
    drawn = {each["name"].removesuffix(", draws"): each["mean"] * 100 for each in cells if each["metric"] == "drawn"}
    for name in (each for each in drawn if each in accuracy):
        axes.plot([drawn[name]], [accuracy[name]], "o", color=palette["series-1"], markersize=5)
        left = drawn[name] > 60  # then the words stand before the point
        words: Any = {"fontsize": 8, "va": "center", "ha": "right" if left else "left"}
        _write(axes, name, (drawn[name], accuracy[name]), (-6 if left else 6, 0), **words)
    axes.set(xlim=(-2, 102), xlabel="% of draws on conflicting samples", ylabel="unbiased accuracy in %")


def study_height(cells: Sequence[Found], draw: Draw) -> float:
    """Inches: bars need room for each of them."""
    return max(3.1, 0.36 * len(cells) + 0.9) if draw is draw_bars else 3.3


@on_page
def study_figures(found: Found) -> list[tuple[str, Markup]]:
    """Caption and SVG of each panel of a study, for the page."""
    drawn = []
    for number, (name, cells, draw) in enumerate(panels(found)):
        alt = f"{found['title']}, {name}: {found['sentence']}"
        axes = _axes(5.2, study_height(cells, draw))
        draw(axes, cells, PAGE)
        drawn.append((name, _svg(axes, f"study-{found['study']}-{number}", alt)))
    return drawn


@matplotlib.rc_context(PRINT_STYLE)
def write_study_figures(found: Found, folder: Path) -> list[Path]:
    """All panels of a study side by side, as PDF and PNG files; none where there is nothing to draw."""
    shown = panels(found)
    if not shown:
        return []
    columns = min(3, len(shown))
    rows = -(-len(shown) // columns)
    height = max(study_height(cells, draw) for _, cells, draw in shown) * rows + 0.3
    figure = Figure(figsize=(5.2 * columns, height), layout="constrained")
    for number, (name, cells, draw) in enumerate(shown, 1):
        axes = figure.add_subplot(rows, columns, number)
        draw(axes, cells, PRINT)
        axes.set_title(name, fontsize=10.5)
    return save_figure(figure, folder, found["study"])


# Images

TINY, THUMBNAIL, HEAT = 64, 96, 56  # pixels: up to which an image is kept without loss; of a thumbnail; of a heat map
CELL, GAP, HEAD, MARGIN = 64, 4, 22, 96  # pixels of a sheet
LETTERS = 13, 7  # pixels: as large as the name of a column allows


def data_uri(image: np.ndarray, side: int = THUMBNAIL) -> str:
    """An (h, w, 3) image as a WebP data URI: tiny ones without loss, larger ones as a thumbnail."""
    drawn = Image.fromarray(np.ascontiguousarray(image), "RGB")
    if max(drawn.size) <= TINY:
        return _webp(drawn, lossless=True, quality=100)
    drawn.thumbnail((side, side), Image.Resampling.LANCZOS)
    return _webp(drawn, quality=78)


def heat_uri(heat: np.ndarray) -> str:
    """(h, w) where a model looks, as an image of one colour, the more opaque the hotter."""
    alpha = Image.fromarray(np.ascontiguousarray(heat, dtype=np.uint8))
    alpha.thumbnail((HEAT, HEAT), Image.Resampling.LANCZOS)
    drawn = Image.new("RGB", alpha.size, (255, 64, 0))
    drawn.putalpha(alpha)
    return _webp(drawn, quality=60)


def _webp(image: Image.Image, **options: Any) -> str:
    stream = io.BytesIO()
    image.save(stream, "WEBP", method=4, **options)
    return "data:image/webp;base64," + base64.b64encode(stream.getvalue()).decode()


def write_sheet(
    path: Path, columns: Sequence[str], rows: Sequence[tuple[str, Sequence[NDArray[np.uint8] | None]]]
) -> Path:
    """The PNG at `path`: each row is its name and one image (h, w, 3) per column, or None where there is none.

    Rows of one name stand together, under a name that is written once.
    """
    parts = [(name, [images for _, images in part]) for name, part in groupby(rows, key=lambda row: row[0])]
    width = MARGIN + len(columns) * (CELL + GAP) + GAP
    height = HEAD + len(rows) * (CELL + GAP) + GAP + (len(parts) - 1) * GAP * 3
    sheet = Image.new("RGB", (width, height), "white")
    draw, font, heading = ImageDraw.Draw(sheet), ImageFont.load_default(LETTERS[0]), fitting(columns, CELL)
    for number, column in enumerate(columns):
        draw.text((MARGIN + number * (CELL + GAP) + CELL / 2, HEAD / 2), column, "black", heading, "mm")
    top = HEAD
    for name, lines in parts:
        draw.text((6, top + CELL / 2), name, "black", font, "lm")
        for images in lines:
            for number, image in enumerate(images):
                if image is not None:
                    small = max(image.shape[:2]) <= CELL  # its pixels are shown as they are; more of them are averaged
                    how = Image.Resampling.NEAREST if small else Image.Resampling.BOX
                    cell = Image.fromarray(image).resize((CELL, CELL), how)
                    sheet.paste(cell, (MARGIN + number * (CELL + GAP), top))
            top += CELL + GAP
        top += GAP * 3
    with replacing(path) as temporary:
        sheet.save(temporary, "PNG")
    return path


def fitting(texts: Sequence[str], width: int) -> ImageFont.ImageFont | ImageFont.FreeTypeFont:
    """The largest letters in which all the texts are at most so many pixels wide."""
    sizes = (ImageFont.load_default(size) for size in range(LETTERS[0], LETTERS[1], -1))
    fits = (font for font in sizes if all(font.getlength(text) <= width for text in texts))
    return next(fits, ImageFont.load_default(LETTERS[1]))
