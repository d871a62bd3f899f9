"""One self-contained page of an audit, from what it found: `write_audit_page`.

Accuracies, error rates, `follows` and `chance` are in percent, excesses in points, shares between 0 and 1.
"""

import hashlib
import json
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from itertools import chain, zip_longest
from pathlib import Path, PureWindowsPath  # which knows both kinds of slashes
from typing import Any

import numpy as np
from markupsafe import Markup

from debiaser.io import log, replacing
from debiaser.report import figures, render_page, tables
from debiaser.report.figures import TINY, data_uri, heat_uri

Part = dict[str, Any]
KINDS = ("aligned", "conflicting", "mislabelled", "unsure", "unreadable")
TEXTS = ("id", "path", "label", "predicted", "kind")
NUMBERS = ("score", "probability", "rank", "p_conflicting", "p_mislabelled")
MOST_SUSPECTS, MOST_FOREST = 40, 24
LARGE_PAGE = 20_000_000  # characters from which on a warning tells of a page's size


def write_audit_page(
    destination: Path,
    findings: Part,
    rows: Mapping[str, Any],
    samples: Mapping[int, Part],
    swaps: Mapping[str, Sequence[Part]],
    redact: frozenset[str] = frozenset(),
    marks: Sequence[Part] = (),
) -> Path:
    """Write the page of an audit, readable by its owner only.

    findings: the content of audit.json. rows: the columns of scores.csv, without what could not be read, and `content`.
    samples: what can be shown, by its place in scores.csv: `image` (h, w, 3) or `text`, the probabilities `easy` of the
    biased model and `plain` of the plain one, and for some `look_easy` and `look_debiased`, a heat map (h, w) or
    [word, weight] pairs. swaps: by view, three `images` or `texts` (original, donor, swapped) with the `answers` to
    them. redact: `images` leaves samples and swaps out, `paths` replaces the names of files and samples by numbers.
    marks: what was marked before, as `place` (in scores.csv, or -1), `id`, `mark`, `label` and `content`.
    """
    columns = {name: np.asarray(rows[name]).tolist() for name in (*TEXTS, *NUMBERS, "content")}
    for entry in findings["unreadable"]:
        blank = {**dict.fromkeys((*TEXTS, "content"), ""), **dict.fromkeys(NUMBERS, np.nan)}
        blank |= {"id": entry["id"], "kind": "unreadable"}
        for name, cells in columns.items():
            cells.append(blank[name])
    if "images" in redact:
        samples, swaps = {}, {}
    key = hashlib.sha256(as_json([columns["id"], _short(columns["score"])]).encode("utf-8", "replace")).hexdigest()[:16]
    if "paths" in redact:
        findings, columns = without_paths(findings, columns)
        marks = [{**mark, "id": ""} for mark in marks]
    data = page_data(findings, columns, samples, swaps) | {"key": f"debiaser-{key}", "redacted": "paths" in redact}
    place = {row: number for number, row in enumerate(data["rows"]["row"])}
    data["marks"] = [{**mark, "place": place.get(mark["place"], -1)} for mark in marks]
    # Those flagged first, then by how much they tell.
    suspects = sorted(
        findings["suspects"], key=lambda each: (not each["flagged"], each["chance"] - each["balanced_accuracy"])
    )
    views = sorted(findings["views"], key=lambda view: float(view["chance"] - view["follows"]))
    text = render_page(
        "audit.html",
        ("page.css", "audit.css"),
        ("audit.js", "audit_slices.js", "audit_table.js", "audit_mark.js", "audit_review.js"),
        inline_style=False,
        found=findings,
        t=tables,
        things="texts" if findings["kind"] == "text" else "images",
        relied=[view for view in views if (view["excess"]["low"] or 0) > 0],
        others=[view for view in views if (view["excess"]["low"] or 0) <= 0],
        suspects=suspects[:MOST_SUSPECTS],
        cells=cell_table(findings["groups"]) if findings["groups"] else {},
        drawn=drawings(findings, suspects[:MOST_FOREST]),
        shown=data,
        redact=redact,
        data=Markup(as_json(data)),  # noqa: S704 (no "<" is left in it)
    )
    if len(text) > LARGE_PAGE:
        told = "%s has %.0f MB, which browsers open slowly; with --redact images it is smaller"
        log.warning(told, destination, len(text) / 1e6)
    with replacing(destination) as temporary:
        temporary.chmod(0o600)
        temporary.write_bytes(text.encode("utf-8", "replace"))  # half a character in a text must not stop the page
    return destination


def cell_table(groups: Part) -> dict[str, list[Part]]:
    """By class its cells, one for every group; of very many classes those with the lowest accuracy."""
    table: dict[str, list[Part]] = {}
    for cell in groups["cells"]:
        table.setdefault(cell["class"], []).append(cell)
    if len(table) <= MOST_CLASSES:
        return table
    lowest = {name: min(cell["plain"]["value"] for cell in cells if cell["n"]) for name, cells in table.items()}
    return {name: table[name] for name in sorted(table, key=lambda name: float(lowest[name]))[:MOST_CLASSES]}


def drawings(findings: Part, suspects: Sequence[Part]) -> dict[str, Markup]:
    """The figures that these findings give, by name."""
    scores = findings["histogram"]
    alt = "Histogram of the scores of all samples, and of those that the biased model misclassifies"
    counts = [("aligned", scores["all"]), ("conflicting", scores["easy_wrong"])]
    xlabel = "score: how strongly the sample disagrees with the shortcut"
    drawn = {"scores": figures.histogram(scores["edges"], counts, "scores", alt, True, xlabel)}
    if suspects:
        lines = [(each["column"], each["balanced_accuracy"], each["chance"], each["flagged"]) for each in suspects]
        alt = "How well each column tells the label: " + "; ".join(f"{name} {value:.0f}%" for name, value, *_ in lines)
        drawn["forest"] = figures.forest(lines, alt[:500])
    price = findings["repair"] and findings["repair"]["price"]
    even: Part = price["break_even"] if price else {"low": None}
    if even["low"] is not None and (even["low"] > 0 or even["high"] < 100):  # a band from end to end says nothing
        here = findings["conflicting_share"]
        drawn["price"] = figures.break_even(price["before"], price["after"], even, here, price["sentence"])
    return drawn


def as_json(data: Any) -> str:
    """JSON that can stand inside a script element: without "<" nothing in it can end or begin an element."""
    return json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


# Taking the names of files and samples out of the findings

HIDDEN = "(not shown)"
# Shorter or plainer names ("7", "cat") would be found inside ordinary sentences.
DISTINCT = re.compile(r"(?=.{4})(?=.*[\d/\\._-])", re.DOTALL)
LOCATION = re.compile(r"""(?<![\w/.])(?:~?/|\.{1,2}/|[A-Za-z]:\\)[^\s"'<>|]+""")
FOLDERS = r"""(?:[^\s"'<>|]*[/\\])?"""  # the part of a path before a name goes with it
NAMED = re.compile(r"path|name|folder|token|file$", re.IGNORECASE)  # columns that are made of names


def without_paths(findings: Part, columns: Part) -> tuple[Part, Part]:
    """The same findings and columns in which a sample is a number and no sentence names a file."""
    numbers = {name: f"sample {row}" for row, name in enumerate(columns["id"])}
    listed = [*findings["unreadable"], *findings["left_out"]]
    doubles = [name for entry in findings["duplicates"] for name in entry["ids"]]
    scrub = _scrubber({*numbers, *columns["path"], *(entry["id"] for entry in listed), *doubles}, findings["source"])
    reasons = findings["reasons"]
    for column, cell in ((each["column"], cell) for each in findings["suspects"] for cell in each["empty"]):
        if NAMED.search(column):
            reasons = [each.replace(f"'{cell['value']}'", f"'{HIDDEN}'") for each in reasons]
    clean: Part = _mapped({**findings, "reasons": reasons}, scrub)
    clean |= {"source": HIDDEN, "classes": findings["classes"]}
    clean["next"] = {**clean["next"], **_without_source(findings["next"], findings["source"], scrub)}
    for suspect in clean["suspects"]:
        if NAMED.search(suspect["column"]):  # a column made of names keeps its numbers and loses its values
            values = [{**value, "value": f"value {number}"} for number, value in enumerate(suspect["values"], 1)]
            suspect |= {"values": values, "empty": []}
    if findings["groups"] and NAMED.search(findings["groups"]["column"]):
        clean["groups"] = None
        for side in ("before", "after", "controls") if clean["repair"] else ():
            clean["repair"][side] = {name: {**told, "groups": {}} for name, told in clean["repair"][side].items()}
    clean["duplicates"] = [
        {**entry, "ids": [numbers.get(name, HIDDEN) for name in entry["ids"]]} for entry in findings["duplicates"]
    ]
    for part in ("unreadable", "left_out"):
        clean[part] = []
        for name, reason in ((entry["id"], entry["reason"]) for entry in findings[part]):
            for each in filter(None, (name, PureWindowsPath(name).name)):  # its own name, however short
                reason = reason.replace(each, HIDDEN)
            clean[part].append({"id": numbers.get(name, HIDDEN), "reason": scrub(reason)})
    total = len(columns["id"])
    return clean, {**columns, "id": [str(row) for row in range(total)], "path": [""] * total}


def _without_source(lines: Part, source: str, scrub: Callable[[str], str]) -> dict[str, str]:
    """The lines to copy, with SOURCE in capitals for the person to fill in."""
    written = {repr(source): "'SOURCE'", shlex.quote(source): "SOURCE", source: "SOURCE"}
    return {
        name: scrub(reduce(lambda line, pair: line.replace(*pair), written.items(), str(lines[name])))
        for name in ("snippet", "marks", "again")
    }


def _scrubber(names: set[str], source: str) -> Callable[[str], str]:
    """What takes the names out of a sentence, longest first so that no part of one remains."""
    distinct = sorted(
        filter(DISTINCT.match, {*names, *(PureWindowsPath(name).name for name in names), source}), key=len, reverse=True
    )

    def scrub(text: str) -> str:
        for name in distinct:
            if name in text:
                text = re.sub(FOLDERS + re.escape(name), HIDDEN, text)
        return LOCATION.sub(HIDDEN, text)

    return scrub


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    """The same nested value with every string in it changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list | tuple):
        return [_mapped(each, change) for each in value]
    if isinstance(value, dict):
        return {key: _mapped(each, change) for key, each in value.items()}
    return value


# Which samples the page shows, and the data its script draws: each image or text once, wherever it appears

MOST_ROWS, ID_ROOM = 10_000, 1_200_000
MOST_SAMPLES, MOST_CLASSES, MOST_PER_SIDE = 400, 30, 10
MOST_MISLABELLED, MOST_LOOKS, SHEET = 24, 12, 24
IMAGE_ROOM, SIDES = 1_900_000, (192, 144, 112, 80, 56)
LARGE_ROOM, LARGE_SIDES = 1_300_000, (320, 256, 192, 144)  # of the images to mark
TEXT_LENGTH, LARGE_LENGTH, WORD_LENGTH = 1_200, 8_000, 40
MOST_SLICED = 200  # samples of slices beside the others
LIKELY = 3  # classes told for one answer


def by_turns(lists: Iterable[Sequence[int]]) -> list[int]:
    """One of each list at a time, so that a limit hits all alike."""
    return [each for each in chain(*zip_longest(*lists)) if each is not None]


def page_data(findings: Part, columns: Part, samples: Mapping[int, Part], swaps: Mapping[str, Sequence[Part]]) -> Part:
    """All that the script needs, as plain values for JSON; samples are named by their place in `rows`."""
    listed = table_order(columns)
    sides = galleries(findings, columns, samples)
    kind, doubt, score = columns["kind"], columns["p_mislabelled"], columns["score"]
    mislabelled = sorted((row for row in samples if kind[row] == "mislabelled"), key=lambda row: -doubt[row])
    mislabelled = mislabelled or [row for row in findings["label_errors"] if row in samples]  # no kind is asserted
    looks = sorted((row for row in samples if "look_easy" in samples[row]), key=lambda row: -score[row])
    asked = [each["place"] for each in findings["to_mark"]]
    parts = {"mislabelled": mislabelled[:MOST_MISLABELLED], "looks": looks[:MOST_LOOKS], "to_mark": asked}
    turns = by_turns(side for _, low, high in sides for side in (high, low))
    sliced = by_turns(each["places"] for each in findings["slices"])
    sheet = [row for row in list(samples)[:: max(len(samples) // SHEET, 1)] if row not in asked]
    wanted = dict.fromkeys([*asked, *turns, *parts["mislabelled"], *parts["looks"], *sheet])
    shown = [row for row in wanted if row in samples][:MOST_SAMPLES]
    shown = [*dict.fromkeys([*shown, *[row for row in sliced if row in samples][:MOST_SLICED]])]
    order = list(dict.fromkeys([*listed, *shown]))
    names = list(dict.fromkeys([*(str(entry["name"]) for entry in findings["classes"]), ""]))
    place = {row: number for number, row in enumerate(order)}
    large, others = ({place[row]: samples[row] for row in shown if (row in asked) == each} for each in (True, False))
    drawn = draw_samples(large, LARGE_ROOM, LARGE_SIDES, LARGE_LENGTH) | draw_samples(others)
    kept = {row: place[row] for row in shown if place[row] in drawn}  # some images may not have found room
    first = next(iter(samples.values()), {})

    def places(rows: Iterable[int]) -> list[int]:
        return [kept[row] for row in rows if row in kept]

    return {
        "kind": findings["kind"],
        "names": names,
        "kinds": KINDS,
        "tiny": "image" in first and first["image"].shape[0] <= TINY,
        "listed": len(listed),
        "total": len(kind),
        "unreadable": len(findings["unreadable"]),
        "rows": table_columns(columns, order, names),
        "samples": drawn,
        "galleries": [{"class": name, "typical": places(low), "against": places(high)} for name, low, high in sides],
        **{name: places(rows) for name, rows in parts.items()},
        "slices": [{**each, "places": places(each["places"])} for each in findings["slices"]],
        "map": map_data(findings["map"], columns, names, place) if findings["map"] else None,
        "sheet": places(sheet[:SHEET]) if "image" in first else [],
        "swaps": {
            view: [
                each if "texts" in each else {**each, "images": [data_uri(image) for image in each["images"]]}
                for each in strips
            ]
            for view, strips in swaps.items()
        },
    }


def map_data(found: Part, columns: Part, names: Sequence[str], place: Mapping[int, int]) -> Part:
    """The points of the map: label, whether the biased model misclassifies it, and place where the page knows it."""
    label, predicted = ([columns[name][row] for row in found["places"]] for name in ("label", "predicted"))
    return {
        "x": found["x"],
        "y": found["y"],
        "label": [names.index(name) for name in label],
        "wrong": [int(one != other) for one, other in zip(label, predicted, strict=True)],
        "place": [place.get(row) for row in found["places"]],
    }


def table_order(columns: Part) -> list[int]:
    """The rows of the table from the highest rank down; fewer where ids are very long."""
    rank = np.nan_to_num(np.array(columns["rank"], dtype=float), nan=np.inf)
    order: list[int] = np.argsort(rank, kind="stable")[:MOST_ROWS].tolist()
    names = [columns["id"][row] + columns["path"][row] for row in order]
    length = np.cumsum([len(as_json(name).encode("utf-8", "replace")) for name in names])  # as the page holds them
    return order[: int(np.searchsorted(length, ID_ROOM, side="right"))]


def galleries(findings: Part, columns: Part, samples: Iterable[int]) -> list[tuple[str, list[int], list[int]]]:
    """Per class its name, the samples with the lowest scores and those with the highest that the biased model
    misclassifies or the audit calls untypical; none on both sides."""
    classes, score, label = findings["classes"], columns["score"], columns["label"]
    if len(classes) > MOST_CLASSES:  # then those on which the shortcut fails most
        classes = sorted(classes, key=lambda entry: entry["easy_accuracy"] or 0.0)[:MOST_CLASSES]
    per_side = max(2, min(MOST_PER_SIDE, MOST_SAMPLES * 3 // 4 // (2 * len(classes))))
    members: dict[str, list[int]] = {str(entry["name"]): [] for entry in classes}
    for row in sorted(samples, key=lambda row: -score[row]):
        members.get(label[row], []).append(row)
    shown = []
    for name, found in members.items():
        high, low = found[: (len(found) + 1) // 2], found[(len(found) + 1) // 2 :]
        against = [
            row
            for row in high
            if columns["predicted"][row] != label[row] or columns["kind"][row] in {"conflicting", "mislabelled"}
        ]
        if low or against:
            shown.append((name, low[::-1][:per_side], against[:per_side]))
    return shown


def table_columns(columns: Part, order: Sequence[int], names: Sequence[str]) -> Part:
    """The table by column, numbers with the digits that are worth telling, classes and kinds by number."""
    text = {name: [columns[name][row] for row in order] for name in TEXTS}
    numbers = {name: _short(columns[name][row] for row in order) for name in NUMBERS}
    paths = ["" if path == name else path for path, name in zip(text["path"], text["id"], strict=True)]
    number = {name: index for index, name in enumerate(names)}
    return {
        "row": list(order),
        "id": text["id"],
        "path": paths if any(paths) else None,
        "label": [number[name] for name in text["label"]],
        "predicted": [number[name] for name in text["predicted"]],
        "kind": [KINDS.index(kind) for kind in text["kind"]],
        "content": [columns["content"][row] for row in order],
        **numbers,
        "rank": [None if rank is None else int(rank) for rank in numbers["rank"]],
    }


def _short(values: Iterable[float]) -> list[float | None]:
    return [float(f"{value:.6g}") if np.isfinite(value) else None for value in values]


def draw_samples(
    samples: Mapping[int, Part], room: int = IMAGE_ROOM, sides: Sequence[int] = SIDES, length: int = TEXT_LENGTH
) -> dict[int, Part]:
    """Each sample for the script: the image or the beginning of the text, where the models look, and what they say
    as [class, probability]. Images are as large as there is room for all of them."""
    images = [sample["image"] for sample in samples.values() if "image" in sample]
    few = images[:: max(len(images) // 20, 1)]
    most = room * 0.95 * len(few) / max(len(images), 1)
    side = next((side for side in sides if sum(len(data_uri(image, side)) for image in few) <= most), sides[-1])
    drawn = {}
    for place, sample in samples.items():
        told: Part = {}
        for model in ("easy", "plain"):
            likely = np.argsort(-sample[model], kind="stable")[:LIKELY]
            told[model] = [[int(index), round(float(sample[model][index]), 3)] for index in likely]
        looks = {name.removeprefix("look_"): sample[name] for name in ("look_easy", "look_debiased") if name in sample}
        if "image" in sample:
            told["src"] = data_uri(sample["image"], side)
            told |= {f"heat_{model}": heat_uri(look) for model, look in looks.items()}
            room -= len(told["src"])
        else:
            text = sample["text"]
            told["text"] = text[:length] + ("…" if len(text) > length else "")
            for model, look in looks.items():
                told[f"words_{model}"] = [[word[:WORD_LENGTH], round(weight, 2)] for word, weight in look]
        if room < 0:
            break
        drawn[place] = told
    return drawn
