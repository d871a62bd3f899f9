"""What lies behind the numbers of one run per method: scores, pictures, curves, answers."""

import base64
import hashlib
import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import cycle, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup, escape

from debiaser.errors import Problem
from debiaser.io import UNREADABLE, write_text
from debiaser.report import figures, thumbnails
from debiaser.report.runs import LARGEST, Details, Found, Result, find_runs, number, read_details, read_result, why
from debiaser.report.tables import (
    ACCURACIES,
    HEADINGS,
    Row,
    count,
    duration,
    method_name,
    place_order,
    plural,
    published,
    share,
    spread,
    summary_rows,
)
from debiaser.report.words import Finding, bias_word, finding, noun, part, percent, points, score_words, share_before

# --- How a run was made: the command that makes it again, its settings and the versions behind it

ENVIRONMENT = {
    "debiaser": "debiaser",
    "commit": "commit",
    "python": "Python",
    "torch": "torch",
    "numpy": "numpy",
    "pillow": "Pillow",
    "scikit-learn": "scikit-learn",
    "scipy": "scipy",
    "device": "device",
    "threads": "threads",
    "cores": "cores",
    "world_size": "processes",
    "processor": "processor",
    "platform": "platform",
}


def command(result: Result) -> str:
    """The command line that makes the run again."""
    spec = result["spec"]
    words = [
        "debiaser",
        "train",
        str(result["dataset"]),
        "--method",
        str(result["spec"].get("method") or result["method"]),
    ]
    for option, value in (
        ("--rho", result.get("rho")),
        ("--noise", spec.get("noise") or None),
        ("--recipe", result.get("recipe")),
        ("--epochs", _epochs(spec)),
        ("--net", spec.get("net")),
        ("--weights", spec.get("weights")),
        ("--augment", spec.get("augment")),
        ("--seed", result.get("seed")),
        ("--data-seed", spec.get("data_seed")),
    ):
        if value is not None:
            words += [option, str(value)]
    for option, name in (("--set", "fields"), ("--option", "options")):
        chosen = spec.get(name)
        if isinstance(chosen, dict):
            for key, value in sorted(chosen.items()):
                words += [option, f"{key}={_value(value)}"]
    return " ".join(shlex.quote(word) for word in words)


def _epochs(spec: dict[str, Any]) -> int | None:
    recipe = spec.get("recipe")
    if not isinstance(recipe, dict):
        return None
    stages = recipe.get("stages")
    if isinstance(stages, dict) and any(isinstance(own, dict) and "epochs" in own for own in stages.values()):
        return None  # --epochs would set them all alike
    epochs = number(recipe.get("epochs"))
    return None if epochs is None else int(epochs)


def _value(value: Any) -> str:
    if value is None:
        return "none"
    return value if isinstance(value, str) else json.dumps(value)


def making(label: str, result: Result) -> dict[str, Any]:
    """Command, settings, sizes, times and versions of one run."""
    environment, rows = result["environment"], result["rows"]
    return {
        "label": label,
        "seed": result.get("seed"),
        "folder": result["folder"].name,
        "command": command(result),
        "spec": json.dumps(result["spec"], indent=2, sort_keys=True, default=str),
        "rows": [
            (str(name), "unknown" if number(value) is None else count(number(value))) for name, value in rows.items()
        ],
        "seconds": [(str(stage), duration(number(value))) for stage, value in result["seconds"].items()],
        "notes": [str(note) for note in result["notes"]],
        "versions": [(words, str(environment[name])) for name, words in ENVIRONMENT.items() if environment.get(name)],
    }


Part = dict[str, Any]
MOST_CLASSES = 12
MOST_TEST_PICTURES = 40
LEFT_OUT = "left out to keep this page small; report on this run's folder alone to see it."


@dataclass
class Allowance:
    """The characters that figures and pictures may still take, so that a page of a big folder stays small."""

    left: int

    def take(self, size: int) -> bool:
        """Whether there was room, which is then used up."""
        if size > self.left:
            return False
        self.left -= size
        return True


@dataclass(frozen=True)
class Shown:
    """The run that stands for a method in the detail parts."""

    label: str
    result: Result
    details: Details


def _missing(one: Shown, file: str, otherwise: str) -> str:
    note = next((note for note in one.details.notes if note.startswith(file)), None)
    return f"{one.label}: not shown, {note}." if note else f"{one.label}: {otherwise}"


def histogram(one: Shown, name: str, things: str, allowance: Allowance) -> Part:
    """The scores of one run as a figure with words, or the reason why there is none."""
    vectors = one.details.vectors
    if vectors is None:
        return {"label": one.label, "missing": _missing(one, "vectors.npz", ""), "scored": False}
    score, conflicting, flipped = vectors["score"], vectors["conflicting"], vectors["flipped"]
    if not has_scores(one):
        return {"label": one.label, "missing": "", "scored": False}
    kinds = [
        ("aligned", f"follow the shortcut ({count(_size(conflicting == 0, flipped))})"),
        ("conflicting", f"go against it ({count(_size(conflicting == 1, flipped))})"),
        ("flipped", f"wrongly labelled ({count(int((flipped == 1).sum()))})"),
        ("unknown", f"kind unknown ({count(_size(conflicting == -1, flipped))})"),
    ]
    legend = [kind for kind in kinds if not kind[1].endswith("(0)")]
    alt = f"Histogram of the scores of {one.label}: " + "; ".join(text for _, text in legend)
    svg = figures.histogram(score.astype(float), conflicting, flipped, name, alt)
    if not allowance.take(len(svg)):
        return {"label": one.label, "missing": f"{one.label}: the figure was {LEFT_OUT}", "scored": True}
    words = score_words(one.result, things)
    return {"label": one.label, "svg": Markup(svg), "legend": legend, "sentences": words, "scored": True}  # noqa: S704


def has_scores(one: Shown) -> bool:
    """Whether the run gave its training rows scores that can be read."""
    if one.details.vectors is None:
        return False
    score = one.details.vectors["score"]
    known = score[np.isfinite(score)] if np.isrealobj(score) else score[:0]
    return len(known) > 0 and bool((np.abs(known) < LARGEST).all()) and not np.isinf(score).any()


def _size(mask: np.ndarray, flipped: np.ndarray) -> int:
    return int((mask & (flipped != 1)).sum())


def gallery(one: Shown, bias: str, per_side: int, allowance: Allowance) -> Part:
    """The highest- and lowest-scored training pictures of one run, or the reason why there are none."""
    samples = one.details.samples
    if samples is None:
        return {"label": one.label, "missing": _missing(one, "samples.npz", ""), "classes": []}
    if not len(samples["train_rows"]):
        return {"label": one.label, "missing": "", "classes": []}
    classes = thumbnails.scored_classes(samples, one.result["classes"], bias, per_side, MOST_CLASSES)
    shown = [picture for entry in classes for side in ("highest", "lowest") for picture in entry[side]]
    if not allowance.take(sum(len(picture["uri"]) + 200 for picture in shown)):
        return {"label": one.label, "missing": f"{one.label}: the pictures were {LEFT_OUT}", "classes": []}
    marked = {
        side: _marked([picture for entry in classes for picture in entry[side]]) for side in ("highest", "lowest")
    }
    total = len(set(samples["train_labels"].tolist()))
    more = f"The first {MOST_CLASSES} of {total} classes." if total > MOST_CLASSES else ""
    short = max(len(entry["name"]) for entry in classes) <= 3
    return {"label": one.label, "classes": classes, "marked": marked, "more": more, "short_names": short}


def _marked(shown: Sequence[Part]) -> str:
    return f"{sum(picture['conflicting'] for picture in shown)} of {len(shown)}"


def curves(shown: Sequence[Shown], identity: str, allowance: Allowance) -> Part:
    """Unbiased and conflicting accuracy against samples seen, and who is missing."""
    drawn = [one for one in shown if one.details.history is not None]
    notes = [_missing(one, "history.csv", "") for one in shown if one.details.history is None]
    styles = line_styles([one.result["method"] for one in drawn])
    legend = [(style, one.label) for style, one in zip(styles, drawn, strict=True)]
    result: Part = {"figures": [], "legend": legend, "notes": notes}
    for metric in ("unbiased", "conflicting"):
        series = [curve(one, metric, style) for style, one in zip(styles, drawn, strict=True)]
        if not any(line.seen for line in series):
            continue
        ends = ", ".join(f"{line.label} ends at {percent(line.values[-1])}" for line in series if line.values)
        alt = f"{HEADINGS[metric]} accuracy against training samples seen: {ends}"
        svg = figures.curves(series, f"{metric} accuracy (%)", f"{identity}-{metric}", alt)
        if allowance.take(len(svg)):
            entry = {"svg": Markup(svg), "caption": f"{HEADINGS[metric]} accuracy"}  # noqa: S704 (our own SVG)
            result["figures"].append(entry)
        else:
            notes.append(f"The curve of {metric} accuracy was {LEFT_OUT}")
    if drawn and not result["figures"] and not notes:
        notes.append("No accuracies were measured while training.")
    return result


def line_styles(methods: Sequence[str]) -> list[int]:
    """A line style per method: plain training and PGD keep theirs on every page."""
    fixed = {"vanilla": 0, "pgd": 1}
    free = cycle(range(len(fixed), len(figures.SERIES)))
    return [fixed[method] if method in fixed else next(free) for method in methods]


def curve(one: Shown, metric: str, style: int) -> figures.Curve:
    """One run's points of a metric, and where its stages end."""
    history = one.details.history or []
    measured = [(row["seen"], row[metric], row["stage"]) for row in history]
    kept = [point for point in measured if point[0] is not None and point[1] is not None]
    ends = [row["seen"] for row, following in pairwise(history) if following["stage"] != row["stage"]]
    if len(ends) >= len({row["stage"] for row in history}):
        ends = []  # stages that take turns have no border
    return figures.Curve(
        one.label,
        style,
        tuple(point[0] for point in kept),
        tuple(point[1] for point in kept),
        tuple(point[2] for point in kept),
        tuple(end for end in ends if end is not None),
    )


def answers(shown: Sequence[Shown], bias: str, things: str, allowance: Allowance) -> Part:
    """What the models say about the same test pictures."""
    notes = [_missing(one, "samples.npz", "") for one in shown if one.details.samples is None]
    named = [(one, one.details.samples) for one in shown if one.details.samples is not None]
    named = [(one, samples) for one, samples in named if len(samples["test_rows"])]
    if not named:
        return {"cards": [], "notes": notes or [f"These runs kept no test {things}."], "sentences": []}
    first = named[0][1]
    same = [(one.label, samples) for one, samples in named if thumbnails.same_pictures(first, samples)]
    others = [one.label for one, samples in named if not thumbnails.same_pictures(first, samples)]
    if others:
        notes.append(f"Not beside the others, as asked about other {things} (another data seed): {', '.join(others)}.")
    cards = thumbnails.answers(same, named[0][0].result["classes"], bias, MOST_TEST_PICTURES)
    if not allowance.take(sum(len(card["uri"]) + 700 for card in cards)):
        return {"cards": [], "notes": [*notes, f"The test {things} were {LEFT_OUT}"], "sentences": []}
    return {"cards": cards, "notes": notes, "sentences": answer_words(cards, bias, things)}


def answer_words(cards: Sequence[Part], bias: str, things: str) -> list[str]:
    """How often each model is right on the pictures shown that go against the shortcut, and why it errs."""
    against = [card for card in cards if card["conflicting"] == 1]
    if not against:
        return []
    models = [answer["model"] for answer in against[0]["says"]]
    right = [sum(card["says"][n]["right"] for card in against) for n in range(len(models))]
    counts = ", ".join(f"{model} on {hits}" for model, hits in zip(models, right, strict=True))
    sentences = [f"Of the {len(against)} {things} shown that go against the shortcut, right: {counts}."]
    for n in sorted({0, len(models) - 1}):  # the plain model and the one the page is about, not all nine
        model = models[n]
        wrong = [card["says"][n] for card in against if not card["says"][n]["right"]]
        fooled = sum(answer["fooled"] for answer in wrong)
        if fooled:
            sentences.append(
                f"{model} errs on {len(wrong)} of them; {times(fooled)} it names the class its {bias} usually means."
            )
    return sentences


def times(number: int) -> str:
    """How often, in words."""
    return {1: "once", 2: "twice"}.get(number, f"{number} times")


# --- The parts of the page for one dataset and rho, as plain dicts that the template only has to lay out


def section(rows: Sequence[Row], shown: Sequence[Shown], identity: str, allowance: Allowance) -> Part:
    """Everything the page says about one dataset, rho, noise and recipe."""
    said = finding(rows)
    things, bias = noun(rows[0]["dataset"]), bias_word(rows[0])
    return {
        "id": identity,
        "rows": list(rows),
        "heading": heading(rows[0]),
        "finding": said,
        "tiles": tiles(said, things),
        "bars": [_bar(row) for row in rows if row["aligned"] is not None and row["conflicting"] is not None],
        "table": table(rows),
        "several_seeds": any(len(row["seeds"]) > 1 for row in rows),
        "things": things,
        "bias": bias,
        "representatives": _representatives(rows, shown),
        "scored": [one.result["method"] for one in shown if has_scores(one)],
        "histograms": [histogram(one, f"{identity}-score{n}", things, allowance) for n, one in enumerate(shown)],
        "galleries": galleries(shown, bias, allowance),
        "unscored": _unscored(shown, things),
        "curves": curves(shown, identity, allowance),
        "answers": answers(shown, bias, things, allowance),
        "making": [making(one.label, one.result) for one in shown],
    }


def galleries(shown: Sequence[Shown], bias: str, allowance: Allowance) -> list[Part]:
    """The pictures by score of each run, PGD's first; only the first is unfolded."""
    scored = sorted(shown, key=lambda one: one.result["method"] != "pgd")
    made = [gallery(one, bias, 8 if len(shown) <= 3 else 4, allowance) for one in scored]
    first = next((one for one in made if one["classes"]), None)
    return [{**one, "first": one is first} for one in made]


def _unscored(shown: Sequence[Shown], things: str) -> str:
    """A sentence that names the methods without scores."""
    names = [one.label for one in shown if one.details.vectors is not None and not has_scores(one)]
    if not names:
        return ""
    listed = names[0] if len(names) == 1 else ", ".join(names[:-1]) + " and " + names[-1]
    return f"{listed} {'gives' if len(names) == 1 else 'give'} no score to single {things}."


def heading(row: Row) -> str:
    """`digits, 5% against the shortcut`."""
    parts = [row["dataset"]]
    if row["rho"] is not None:
        parts.append(f"{share(row['rho'])} against the shortcut")
    if row["noise"]:
        parts.append(f"{share(row['noise'])} of the labels flipped")
    if row["recipe"]:
        parts.append(f"{row['recipe']} recipe")
    return ", ".join(parts)


def tiles(said: Finding, things: str) -> list[Part]:
    """The big numbers: before and after where there are two models, else the one."""
    names = {
        "conflicting": f"right on {things} that go against the shortcut",
        "aligned": f"right on {things} that follow the shortcut",
        "unbiased": "right on the whole test set (unbiased accuracy)",
        "worst_group": "right in the worst group",
    }
    before, after = said.plain, said.treated
    if not _large_groups(before or after):
        del names["worst_group"]
    result = []
    for metric, words in names.items():
        values = [row[metric] if row else None for row in (before, after)]
        present = [percent(value) for value in values if value is not None]
        if not present:
            continue
        change = None
        if values[0] is not None and values[1] is not None:
            gain = values[1] - values[0]
            direction = "up" if gain >= 0.05 else "down" if gain <= -0.05 else "same"
            text = {"up": f"{points(gain)} more", "down": f"{points(gain)} fewer", "same": "no change"}[direction]
            change = {"direction": direction, "text": text}
        result.append({"values": present, "words": words, "change": change})
    return result + _draws(after, things)


def _large_groups(row: Row | None) -> bool:
    """Whether the groups (class x bias value) hold enough test samples for a big number; in the digits it is five."""
    if row is None:
        return False
    first = row["results"][0]
    return (number(first["rows"].get("test")) or 0.0) >= 20 * max(len(first["classes"]), 1) ** 2


def _draws(row: Row | None, things: str) -> list[Part]:
    """The tile on what resampling does to the training set."""
    mass = row["score_conflicting_mass"] if row else None
    before = share_before(row["results"][0]) if row else None
    if mass is None or before is None:
        return []
    words = f"of the training draws fall on {things} that go against the shortcut"
    return [{"values": [part(before), part(mass)], "words": words, "change": None}]


def _bar(row: Row) -> Part:
    return {"label": row["label"], "aligned": row["aligned"], "conflicting": row["conflicting"]}


def table(rows: Sequence[Row]) -> Part:
    """The table of all rows; a column that would be empty is left out."""
    accuracies = [name for name in ACCURACIES if any(row[name] is not None for row in rows)]
    values: dict[tuple[Any, str], set[float]] = {}
    for row in rows:
        for name in accuracies:
            if row[name] is not None:
                values.setdefault((row["place"], name), set()).add(row[name])
    best = {key: max(found) for key, found in values.items() if len(found) > 1}
    with_published = any(published(row) for row in rows)
    groups: dict[str, list[Part]] = {}
    for row in rows:
        cells = [
            {"heading": HEADINGS[name], "text": spread(row[name], row[f"{name}_std"]), "value": row[name]}
            | {"best": row[name] is not None and row[name] == best.get((row["place"], name))}
            for name in accuracies
        ]
        groups.setdefault(heading(row), []).append(
            {
                "label": row["label"],
                "cells": cells,
                "published": published(row),
                "published_label": str((row["published"] or {}).get("label") or ""),
                "seeds": ", ".join(map(str, row["seeds"])) if len(row["seeds"]) <= 5 else count(len(row["seeds"])),
                "number_of_seeds": len(row["seeds"]),
                "samples_seen": count(row["samples_seen"]),
                "time": duration(row["seconds"]),
            }
        )
    return {
        "headings": [HEADINGS[name] for name in accuracies],
        "groups": list(groups.items()),
        "published": with_published,
    }


def _representatives(rows: Sequence[Row], shown: Sequence[Shown]) -> str:
    total = sum(len(row["results"]) for row in rows)
    if total == len(shown):
        return ""
    runs = ", ".join(f"{one.label} (seed {one.result.get('seed')})" for one in shown)
    return f"The parts below show one run per method, the one with the lowest seed, out of {total}: {runs}."


# --- One self-contained page from finished runs: `write_page`, and `find_runs` to find them

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
