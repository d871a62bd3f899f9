"""One self-contained page from finished runs: `write_page`, and `find_runs` to find them."""

import base64
import hashlib
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup, escape

from debiaser.errors import Problem
from debiaser.files import UNREADABLE, write_text
from debiaser.report.evidence import Allowance, Shown
from debiaser.report.names import method_name, plural
from debiaser.report.runs import Found, Result, find_runs, read_details, read_result, why
from debiaser.report.sections import section, table
from debiaser.report.tables import Row, place_order, summary_rows

__all__ = ["find_runs", "write_page"]

HERE = Path(__file__).parent
# Characters for figures and pictures together; with tables and text the page stays well under 3 MB.
ROOM = 2_000_000


def write_page(
    run_dirs: Sequence[Path], destination: Path, title: str | None = None, studies: Sequence[dict[str, Any]] = ()
) -> Path:
    """Write the page of these runs and return where it is; what `find_runs` had to leave out is named at its end.

    `studies`: what studies found in these runs, each as `report.studies.page_part` makes it.
    """
    results, said = _read(run_dirs)
    left_out = run_dirs.left_out if isinstance(run_dirs, Found) else []
    if not results:
        reason = f" ({said[0].rstrip('.')})" if said else ""
        raise Problem(f"no finished run to report on{reason}; run `debiaser demo` or `debiaser train` first")
    drawn = sum(len(svg) for each in studies for _, svg in each["figures"])
    sections = _sections(summary_rows(results), max(ROOM - drawn, ROOM // 2))
    write_text(destination, render(title or _title(results), sections, [*left_out, *said], studies))
    return destination


def _read(run_dirs: Sequence[Path]) -> tuple[list[Result], list[str]]:
    """The results, each once, and a sentence for each folder that was left out."""
    results: list[Result] = []
    warnings: list[str] = []
    keys: set[str] = set()
    for folder in sorted({Path(one) for one in run_dirs}):
        try:
            result = read_result(folder)
        except UNREADABLE as error:
            warnings.append(f"{folder.name}: result.json was left out: {why(error)}.")
            continue
        if result.get("key") and str(result["key"]) in keys:
            warnings.append(f"{folder.name}: left out, the same run is there twice.")
            continue
        keys.add(str(result.get("key")))
        results.append(result)
    return results, warnings


def _sections(rows: Sequence[Row], room: int) -> list[dict[str, Any]]:
    places = sorted({row["place"] for row in rows}, key=place_order)
    allowance = Allowance(room)
    sections = []
    for position, place in enumerate(places):
        here = [row for row in rows if row["place"] == place]
        shown = [Shown(row["label"], result, read_details(result["folder"])) for row, result in representatives(here)]
        sections.append(section(here, shown, f"section{position}", allowance))
    return sections


def representatives(rows: Sequence[Row]) -> list[tuple[Row, Result]]:
    """One run per method: the lowest seed that all methods have, else its own lowest; never the best one."""
    first: dict[str, Row] = {}
    for row in rows:
        first.setdefault(row["method"], row)
    shared = set.intersection(*(set(row["seeds"]) for row in first.values()))
    chosen = []
    for row in first.values():
        position = row["seeds"].index(min(shared)) if shared else 0
        chosen.append((row, row["results"][position]))
    return chosen


def _title(results: Sequence[Result]) -> str:
    datasets = sorted({str(result["dataset"]) for result in results})
    methods = list(dict.fromkeys(row["method"] for row in summary_rows(results)))
    names = " beside ".join(map(method_name, methods)) if len(methods) <= 3 else f"{len(methods)} methods"
    listed = ", ".join(datasets) if len(datasets) <= 3 else f"{len(datasets)} datasets"
    return f"{listed}: {names}"


@cache
def _template() -> Template:
    environment = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"plural": plural, "code": with_code}
    return environment.get_template("page.html")


def with_code(text: str) -> Markup:
    """Escaped text in which what stands between `backticks` is set as code."""
    return Markup(re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(text))))  # noqa: S704 (escaped before)


def render(
    title: str,
    sections: Sequence[dict[str, Any]],
    warnings: Sequence[str],
    studies: Sequence[dict[str, Any]] = (),
) -> str:
    """The page as text."""
    style, script = (HERE / "page.css").read_text(), (HERE / "page.js").read_text()
    # The script is allowed by its hash: text from the data can never become a second one.
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    policy += "; base-uri 'none'; form-action 'none'"  # these two do not follow the first
    text = _template().render(
        title=title,
        sections=sections,
        warnings=warnings,
        studies=studies,
        policy=policy,
        style=Markup(style),  # noqa: S704 (our own files)
        script=Markup(script),  # noqa: S704
        overview=overview(sections) if len(sections) > 1 else None,
    )
    return text.lstrip()


def overview(sections: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The rows of all sections in one table."""
    return table([row for part in sections for row in part["rows"]])
