"""One self-contained page from finished runs: `write_page`."""

import json
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup, escape

from debiaser.io import write_text
from debiaser.report import figures, render_page, tables
from debiaser.report.runs import TRACES, Arrays, Details, Found, Result, read_details
from debiaser.report.tables import HEADINGS, Row, count, method_name, part, percent, share, study_table, summary_rows
from debiaser.report.words import Finding, bias_word, finding, noun, score_words, share_before

Part = dict[str, Any]
# Characters for figures and images together, from which on further settings are shown without them.
ROOM = 2_000_000
MOST_CLASSES = 12
MOST_TEST_IMAGES = 40
LEFT_OUT = "left out to keep this page small; report on this run's folder alone to see it"


@dataclass(frozen=True)
class Shown:
    """The run that stands for a method in the detail parts."""

    label: str
    result: Result
    details: Details

    @property
    def scored(self) -> bool:
        """Whether the run gave scores to its training samples."""
        return self.details.vectors is not None and bool(np.isfinite(self.details.vectors["score"]).any())


def write_page(
    found: Found, destination: Path, title: str | None = None, studies: Sequence[Part] = (), audit: Part | None = None
) -> Path:
    """Write the page of these runs and return where it is; what had to be left out is named at its end.

    `studies`: what studies found in these runs, each as `study_part` makes it. `audit`: what an audit of their training
    images found, with `swaps` of the property that the model follows most and some images `to_mark`.
    """
    rows = summary_rows(found.results)
    used = min(sum(len(svg) for each in studies for _, svg in each["figures"]), ROOM // 2)
    sections: list[Part] = []
    for position, place in enumerate(dict.fromkeys(row["place"] for row in rows)):
        here = [row for row in rows if row["place"] == place]
        sections.append(section(here, representatives(here, used < ROOM), f"section{position}"))
        used += sum(len(str(sections[-1][name])) for name in ("histograms", "galleries", "curves", "answers"))
    page = render_page(
        "page.html",
        ("page.css",),
        ("page.js",),
        title=title or _title(rows),
        sections=sections,
        warnings=found.left_out,
        studies=studies,
        overview=table(rows) if len(sections) > 1 else None,
        audit=audit and {**audit, "page": os.path.relpath(audit["page"], destination.parent)},
        image=figures.data_uri,
        t=tables,
        code=with_code,
        command=command,
        as_json=partial(json.dumps, indent=2, sort_keys=True, default=str),
    )
    write_text(destination, page)
    return destination


def _title(rows: Sequence[Row]) -> str:
    datasets, methods = sorted({row["dataset"] for row in rows}), list(dict.fromkeys(row["method"] for row in rows))
    names = " beside ".join(map(method_name, methods)) if len(methods) <= 3 else f"{len(methods)} methods"
    listed = ", ".join(datasets) if len(datasets) <= 3 else f"{len(datasets)} datasets"
    return f"{listed}: {names}"


def with_code(text: str) -> Markup:
    """Escaped text in which what stands between `backticks` is set as code."""
    return Markup(re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(text))))  # noqa: S704 (escaped before)


def study_part(found: Mapping[str, Any]) -> Part:
    """What the page shows of a study: texts, table and figures."""
    run = {each["place"] for each in found["cells"] if each["runs"]}  # the others are named as not run
    headings, rows = study_table({**found, "cells": [each for each in found["cells"] if each["place"] in run]})
    runs = sum(each["runs"] for each in found["cells"])
    return {**found, "headings": headings, "rows": rows, "figures": figures.study_figures(found), "runs": runs}


def representatives(rows: Sequence[Row], in_detail: bool) -> list[Shown]:
    """One run per method: the lowest seed that all methods have, else its own lowest; never the best one."""
    first: dict[str, Row] = {}
    for row in rows:
        first.setdefault(row["method"], row)
    shared = set.intersection(*(set(row["seeds"]) for row in first.values()))
    chosen = [(row, row["results"][row["seeds"].index(min(shared)) if shared else 0]) for row in first.values()]
    nothing = Details(None, None, None, dict.fromkeys(TRACES, LEFT_OUT))
    return [
        Shown(row["label"], result, read_details(result["folder"]) if in_detail else nothing) for row, result in chosen
    ]


# The parts of the page for one dataset, rho, noise and recipe


def section(rows: Sequence[Row], shown: Sequence[Shown], identity: str) -> Part:
    """Everything the page says about one dataset, rho, noise and recipe."""
    said, things, bias = finding(rows), noun(rows[0]["dataset"]), bias_word(rows[0])
    return {
        "id": identity,
        "heading": heading(rows[0]),
        "finding": said,
        "tiles": tiles(said, things),
        "bars": [row for row in rows if row["aligned"] is not None and row["conflicting"] is not None],
        "table": table(rows),
        "several_seeds": any(len(row["seeds"]) > 1 for row in rows),
        "things": things,
        "bias": bias,
        "shown": shown,
        "total": sum(len(row["results"]) for row in rows),
        "missing": {
            file: [f"{one.label}: not shown, {one.details.notes[file]}." for one in shown if file in one.details.notes]
            for file in TRACES
        },
        "scored": [one.result["method"] for one in shown if one.scored],
        "unscored": [one.label for one in shown if one.details.vectors is not None and not one.scored],
        "histograms": [histogram(one, f"{identity}-score{n}", things) for n, one in enumerate(shown) if one.scored],
        "galleries": galleries(shown, bias),
        "curves": curves(shown, identity),
        "answers": answers(shown, bias, things),
    }


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
    """The big numbers: before and after with the gain where there are two models, else the one."""
    names = {
        "conflicting": f"right on {things} that go against the shortcut",
        "aligned": f"right on {things} that follow the shortcut",
        "unbiased": "right on the whole test set (unbiased accuracy)",
        "worst_group": "right in the worst group",
    }
    rows = [row for row in (said.plain, said.treated) if row]
    first = rows[0]["results"][0]
    if first["rows"].get("test", 0) < 20 * max(len(first["classes"]), 1) ** 2:
        del names["worst_group"]  # the groups (class x bias value) are too small for a big number; in the digits, five
    result = []
    for metric, words in names.items():
        if values := [row[metric] for row in rows if row[metric] is not None]:
            gain = values[1] - values[0] if len(values) == 2 else None
            result.append({"values": list(map(percent, values)), "words": words, "gain": gain})
    mass = said.treated["score_conflicting_mass"] if said.treated else None
    drawn = share_before(said.treated["results"][0]) if said.treated else None
    if mass is not None and drawn is not None:  # what resampling does to the training set
        words = f"of the training draws fall on {things} that go against the shortcut"
        result.append({"values": [part(drawn), part(mass)], "words": words, "gain": None})
    return result


def table(rows: Sequence[Row]) -> Part:
    """The rows of a table by place, and the columns that would not be empty."""
    names = [name for name in HEADINGS if any(row[name] for row in rows)]  # a column of zeros tells nothing
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(heading(row), []).append(row)
    return {"names": names, "groups": groups, "published": any(row["published"] for row in rows)}


def histogram(one: Shown, name: str, things: str) -> Part:
    """The scores of one run as a figure with words."""
    vectors = one.details.vectors or {}
    conflicting, mistaken = vectors["conflicting"], vectors["flipped"] == 1
    kinds = {
        "aligned": ("follow the shortcut", (conflicting == 0) & ~mistaken),
        "conflicting": ("go against it", (conflicting == 1) & ~mistaken),
        "flipped": ("wrongly labelled", mistaken),
        "unknown": ("kind unknown", (conflicting == -1) & ~mistaken),
    }
    masks = {kind: mask for kind, (_, mask) in kinds.items() if mask.any()}
    legend = [(kind, f"{kinds[kind][0]} ({count(int(mask.sum()))})") for kind, mask in masks.items()]
    alt = f"Histogram of the scores of {one.label}: " + "; ".join(text for _, text in legend)
    svg = figures.score_histogram(vectors["score"].astype(float), masks, name, alt)
    return {"label": one.label, "svg": svg, "legend": legend, "sentences": score_words(one.result, things)}


def galleries(shown: Sequence[Shown], bias: str) -> list[Part]:
    """The highest- and lowest-scored training images of each run that kept some, PGD's first."""
    made: list[Part] = []
    for one in sorted(shown, key=lambda one: one.result["method"] != "pgd"):
        if one.details.samples is not None and len(one.details.samples["train_labels"]):
            classes = scored_classes(one.details.samples, one.result["classes"], bias, 8 if len(shown) <= 3 else 4)
            total = len(set(one.details.samples["train_labels"].tolist()))
            made.append({"label": one.label, "classes": classes, "total": total})
    return made


def scored_classes(samples: Arrays, classes: Sequence[Any], bias: str, per_side: int) -> list[Part]:
    """Per class the highest- and the lowest-scored training images with the words that belong to each."""
    labels, scores = samples["train_labels"], samples["train_scores"]
    bias_words, _ = _bias_words(samples, "train", bias, classes)

    def described(position: int) -> Part:
        conflicting = int(samples["train_conflicting"][position])
        words = [
            class_name(classes, int(labels[position])),
            bias_words[position],
            f"score {float(scores[position]):.3g}",
            KIND_WORDS.get(conflicting, ""),
            f"sample {int(samples['train_rows'][position])}",
        ]
        uri = figures.data_uri(samples["train_images"][position])
        return {"uri": uri, "words": ", ".join(filter(None, words)), "conflicting": conflicting == 1}

    shown = []
    for label in sorted({int(label) for label in labels})[:MOST_CLASSES]:
        members = np.flatnonzero((labels == label) & np.isfinite(scores))
        members = members[np.argsort(-scores[members], kind="stable")]
        half = (len(members) + 1) // 2
        sides = {"highest": members[:half][:per_side], "lowest": members[half:][::-1][:per_side]}
        images = {side: [described(int(position)) for position in rows] for side, rows in sides.items()}
        shown.append({"name": class_name(classes, label), **images})
    return shown


KIND_WORDS = {1: "goes against the shortcut", 0: "follows the shortcut"}


def class_name(classes: Sequence[Any], index: int) -> str:
    """The name of a class, or its number where it has none."""
    return str(classes[index]) if 0 <= index < len(classes) else str(index)


def _bias_words(samples: Arrays, part: str, name: str, classes: Sequence[Any]) -> tuple[list[str], bool]:
    """`colour usual for 7`, `colour 7`, or nothing when unknown, for each sample; and whether bias value b is the usual
    one of class b, as far as the samples that follow the shortcut show."""
    bias = samples[f"{part}_bias"]
    following = (samples[f"{part}_conflicting"] == 0) & (bias >= 0)
    as_class = bool(following.any() and (samples[f"{part}_labels"][following] == bias[following]).all())
    told = [f"{name} usual for {class_name(classes, int(value))}" if as_class else f"{name} {value}" for value in bias]
    return [words if value >= 0 else "" for words, value in zip(told, bias, strict=True)], as_class


def curves(shown: Sequence[Shown], identity: str) -> Part:
    """Unbiased and conflicting accuracy against samples seen."""
    drawn = [one for one in shown if one.details.history is not None]
    fixed = {"vanilla": 0, "pgd": 1}  # plain training and PGD keep their line style on every page
    free = cycle(range(len(fixed), len(figures.DASHES)))
    styles = [fixed[one.result["method"]] if one.result["method"] in fixed else next(free) for one in drawn]
    made = []
    for metric in ("unbiased", "conflicting"):
        series, ends = [], []
        for style, one in zip(styles, drawn, strict=True):
            history = [row for row in one.details.history or () if row["seen"] is not None]
            borders = [row["seen"] for row, following in pairwise(history) if following["stage"] != row["stage"]]
            if len(borders) >= len({row["stage"] for row in history}):
                borders = []  # stages that take turns have no border
            points = [(row["seen"], row[metric], row["stage"]) for row in history if row[metric] is not None]
            series.append((style, points, borders))
            ends += [f"{one.label} ends at {percent(points[-1][1])}"] if points else []
        if ends:
            alt = f"{HEADINGS[metric]} accuracy against training samples seen: {', '.join(ends)}"
            svg = figures.curves(series, f"{metric} accuracy (%)", f"{identity}-{metric}", alt)
            made.append({"svg": svg, "caption": f"{HEADINGS[metric]} accuracy"})
    return {"figures": made, "legend": list(zip(styles, (one.label for one in drawn), strict=True))}


def answers(shown: Sequence[Shown], bias: str, things: str) -> Part:
    """What the models say about the same test images; `others` were asked about other ones."""
    kept = [(one, one.details.samples) for one in shown if one.details.samples is not None]
    asked = [(one, samples) for one, samples in kept if len(samples["test_rows"])]
    if not asked:
        return {"cards": [], "others": [], "sentences": []}
    first, names = asked[0][1], ("test_rows", "test_labels", "test_images")
    alike = [all(np.array_equal(first[name], samples[name]) for name in names) for _, samples in asked]
    others = [one.label for (one, _), same in zip(asked, alike, strict=True) if not same]
    named = [(one.label, samples) for (one, samples), same in zip(asked, alike, strict=True) if same]
    cards = answer_cards(named, asked[0][0].result["classes"], bias)
    return {"cards": cards, "others": others, "sentences": answer_words(cards, bias, things)}


def answer_cards(named: Sequence[tuple[str, Arrays]], classes: Sequence[Any], bias: str) -> list[Part]:
    """For each of the test images that the runs share, what every one of them says about it."""
    first = named[0][1]
    bias_words, as_class = _bias_words(first, "test", bias, classes)
    cards = []
    for position in range(min(len(first["test_rows"]), MOST_TEST_IMAGES)):
        label, usual = int(first["test_labels"][position]), int(first["test_bias"][position]) if as_class else -1
        conflicting = int(first["test_conflicting"][position])
        says = []
        for model, samples in named:
            odds = samples["test_probabilities"][position]
            said = int(np.argmax(odds))
            told = {"model": model, "said": class_name(classes, said), "probability": float(odds[said])}
            says.append({**told, "right": said == label, "fooled": said == usual and said != label})
        cards.append(
            {
                "uri": figures.data_uri(first["test_images"][position]),
                "label": class_name(classes, label),
                "bias": bias_words[position],
                "kind": KIND_WORDS.get(conflicting, ""),
                "conflicting": conflicting,
                "says": says,
                "disagree": len({answer["said"] for answer in says}) > 1,
            }
        )
    return cards


def answer_words(cards: Sequence[Part], bias: str, things: str) -> list[str]:
    """How often each model is right on the images shown that go against the shortcut, and why it errs."""
    against = [card["says"] for card in cards if card["conflicting"] == 1]
    if not against:
        return []
    by_model = list(zip(*against, strict=True))
    counts = ", ".join(f"{said[0]['model']} on {sum(answer['right'] for answer in said)}" for said in by_model)
    sentences = [f"Of the {len(against)} {things} shown that go against the shortcut, right: {counts}."]
    for said in by_model[:1] + by_model[1:][-1:]:  # the plain model and the one the page is about, not all nine
        wrong, fooled = sum(not answer["right"] for answer in said), sum(answer["fooled"] for answer in said)
        if fooled:
            times = {1: "once", 2: "twice"}.get(fooled, f"{fooled} times")
            told = f"{said[0]['model']} errs on {wrong} of them; {times} it names the class its {bias} usually means."
            sentences.append(told)
    return sentences


# How a run was made


def command(result: Result) -> str:
    """The command line that makes the run again."""
    spec = result["spec"]
    recipe = spec.get("recipe", {})
    alike = not any("epochs" in own for own in recipe.get("stages", {}).values())  # --epochs would set them all
    words = ["debiaser", "train", result["dataset"], "--method", spec.get("method") or result["method"]]
    for option, value in (
        ("--rho", result["rho"]),
        ("--noise", spec.get("noise") or None),
        ("--recipe", result["recipe"]),
        ("--epochs", recipe.get("epochs") if alike else None),
        ("--net", spec.get("net")),
        ("--weights", spec.get("weights")),
        ("--augment", spec.get("augment")),
        ("--seed", result["seed"]),
        ("--data-seed", spec.get("data_seed")),
    ):
        if value is not None:
            words += [option, str(value)]
    for option, name in (("--set", "fields"), ("--option", "options")):
        for key, value in sorted(spec.get(name, {}).items()):
            written = "none" if value is None else value if isinstance(value, str) else json.dumps(value)
            words += [option, f"{key}={written}"]
    return shlex.join(words)
