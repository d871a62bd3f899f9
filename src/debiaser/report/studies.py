"""What studies found, from plain values: tables for the terminal, Markdown for the docs, parts of the page."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from debiaser.report.tables import count, duration, plural, signed, spread

Found = dict[str, Any]
MARKS = {"held": "held", "not held": "**not held**", "not testable": "not testable here"}
WHOLE = ("samples",)
LARGE = 1e4  # from here on numbers are written with a power of ten
FINE = 1.5  # numbers whose largest is below are shares, which want more digits


def text_table(found: Found) -> tuple[list[str], list[list[str]]]:
    """Headings and cells as text: ours beside published, with the difference."""
    cells = found["cells"]
    several, printed = len({each["place"] for each in cells}) > 1, any(each["published"] is not None for each in cells)
    headings = [
        "Cell",
        *(["Where"] if several else []),
        "Ours",
        "Runs",
        *(["Published", "Difference"] if printed else []),
    ]
    return headings, [text_row(each, several, printed) for each in cells]


def text_row(cell: Found, several: bool, printed: bool) -> list[str]:
    """One cell as text."""
    published = value(cell, cell["published"], cell["published_std"]) if printed else ""
    difference = "–" if cell["difference"] is None else signed(cell["difference"], digits(cell))
    if cell["metric"] == "seconds" and cell["difference"] is not None:
        difference += " s"
    row = [
        cell["name"],
        *([cell["place"]] if several else []),
        value(cell, cell["mean"], cell["std"]),
        str(cell["runs"]),
    ]
    return [*row, *([published, difference] if printed else [])]


def value(cell: Found, mean: float | None, deviation: float | None) -> str:
    """A number as its metric is written: accuracies with two digits, counts whole, times as durations."""
    if mean is None:
        return "–"
    if cell["metric"] in (*WHOLE, "seconds"):
        written = count if cell["metric"] in WHOLE else duration
        return written(mean) + ("" if deviation is None else f" ± {written(deviation)}")
    if abs(mean) >= LARGE:
        return f"{mean:.3g}" + ("" if deviation is None else f" ± {deviation:.2g}")
    return spread(mean, deviation, digits(cell))


def digits(cell: Found) -> int:
    """Digits after the point."""
    if cell["metric"] in (*WHOLE, "seconds"):
        return 0
    largest = max((abs(each) for each in (cell["mean"], cell["published"]) if each is not None), default=0.0)
    return 4 if largest < FINE else 2 if largest < 1000 else 0


def markdown(found: Found) -> str:
    """A section of the docs: the claim, whether it held and at which scale, the table, what is not run."""
    headings, rows = text_table(found)
    lines = [headings, ["---", *["--:"] * (len(headings) - 1)], *rows]
    table = "\n".join(f"| {' | '.join(each.replace('|', '&#124;') for each in line)} |" for line in lines)
    parts = [
        f"### `{found['study']}`: {found['title']}",
        f"*Claim*: {found['statement']}",
        f"*Here*: {verdict(found)} ({found['scale']}). {found['sentence']}",
        table,
        f"*Protocol*: {found['protocol']}",
    ]
    notes = list(dict.fromkeys(each["note"] for each in found["cells"] if each["note"]))
    if notes:
        parts.append("*On the published numbers*: " + "; ".join(notes) + ".")
    if found["also_printed"]:
        parts.append("*Also in the paper*: " + "; ".join(found["also_printed"]) + ".")
    if found["not_run"]:
        runs = found["not_run"]
        listed = "\n".join(f"debiaser {each}" for each in runs)
        told = f"Not run: {plural(len(runs), 'run')}"
        parts.append(f"<details><summary>{told}</summary>\n\n```sh\n{listed}\n```\n\n</details>")
    return "\n\n".join(parts)


def verdict(found: Found) -> str:
    """`held`, `held in 3 of 9 places`, `not testable here`."""
    return f"{MARKS[found['claim']]} {found['tested']}".strip()


def summary(every: Sequence[Found]) -> str:
    """A table of all studies with their verdicts."""
    rows = [[f"`{each['study']}`", each["title"], verdict(each), each["scale"]] for each in every]
    lines = [["Study", "What", "Claim here", "Scale"], ["---"] * 4, *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def page_part(found: Found) -> Found:
    """What the page shows of a study: texts, table and figures."""
    from debiaser.report.figures import svg_figures

    run = {each["place"] for each in found["cells"] if each["runs"]}  # the others are named as not run
    headings, rows = text_table({**found, "cells": [each for each in found["cells"] if each["place"] in run]})
    figures = [(caption, Markup(svg)) for caption, svg in svg_figures(found)]  # noqa: S704 (our own drawing, escaped)
    runs = sum(each["runs"] for each in found["cells"])
    return {**found, "headings": headings, "rows": rows, "figures": figures, "runs": runs}


def write_figures(found: Found, folder: Path) -> list[Path]:
    """The figures of a study as PDF and PNG files; none where there is nothing to draw."""
    from debiaser.report.figures import file_figures

    return file_figures(found, folder)
