"""Which samples the page shows, and the data its script draws: each picture or text once, wherever it appears."""

import base64
import io
import json
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from PIL import Image

from debiaser.report.audit_files import KINDS, NUMBERS, Audit, Scores
from debiaser.report.pictures import TINY, data_uri
from debiaser.report.runs import Arrays

Part = dict[str, Any]
MOST_ROWS, ID_ROOM = 10_000, 1_200_000
MOST_SAMPLES, MOST_CLASSES, MOST_PER_SIDE = 400, 30, 10
MOST_TRIPLETS, MOST_MISLABELLED, MOST_LOOKS, SHEET = 12, 24, 12, 24
PICTURE_ROOM, SIDES = 2_400_000, (192, 144, 112, 80, 56)
TEXT_LENGTH, MOST_WORDS, WORD_LENGTH = 1_200, 200, 40
MOST_STRIPS = 3  # per view
LIKELY = 3  # classes told for one answer


def page_data(audit: Audit) -> Part:
    """All that the script needs, as plain values for JSON; samples are named by their position in `rows`."""
    order, listed = table_order(audit.scores)
    chosen = _chosen(audit)
    parts = (chosen["sixty"], *chosen["triplets"], *_turns(chosen), *_rest(chosen))  # all sixty, or they say nothing
    shown = _unique([row for rows in parts for row in rows])
    shown = shown[:MOST_SAMPLES]
    order = _unique([*order, *shown])
    position = {row: place for place, row in enumerate(order)}
    kept = {row: position[row] for row in shown}
    samples = _texts(audit, kept) if audit.texts else _pictures(audit, kept)
    kept = {row: place for row, place in kept.items() if place in samples}  # some pictures may not have found room
    names = class_names(audit)
    return {
        "key": f"debiaser-{audit.digest}",
        "kind": "text" if audit.findings.get("kind") == "text" else "image",
        "names": names,
        "kinds": KINDS,
        "tiny": audit.pictures is not None and audit.pictures["picture"].shape[1] <= TINY,
        "listed": listed,
        "rows": _columns(audit.scores, order, names),
        "samples": samples,
        "galleries": [
            {"class": name, "typical": _places(low, kept), "against": _places(high, kept)}
            for name, low, high in chosen["galleries"]
        ],
        "triplets": [_places(rows, kept) for rows in chosen["triplets"] if all(row in kept for row in rows)],
        "mislabelled": _places(chosen["mislabelled"], kept),
        "looks": _places(chosen["looks"], kept),
        "sixty": _places(chosen["sixty"], kept),
        "sheet": _places(sorted(kept)[:: max(len(kept) // SHEET, 1)][:SHEET], kept) if audit.pictures else [],
        "swaps": _strips(audit.swaps, names) | _text_strips(audit.text_swaps, names),
    }


def as_json(data: Any) -> str:
    """JSON that can stand inside a script element: without "<" nothing in it can end or begin an element."""
    return json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def table_order(scores: Scores) -> tuple[list[int], int]:
    """The rows of the table from the highest rank down, and how many there are: fewer where ids are very long."""
    rank = np.nan_to_num(scores.numbers["rank"], nan=np.inf)
    order = np.argsort(rank, kind="stable")[:MOST_ROWS].tolist()
    names = [scores.text["id"][row] + scores.text["path"][row] for row in order]
    length = np.cumsum([len(as_json(name).encode("utf-8", "replace")) for name in names])  # as the page holds them
    listed = int(np.searchsorted(length, ID_ROOM, side="right"))
    return order[:listed], listed


def class_names(audit: Audit) -> list[str]:
    """The classes in the order of the probabilities, then whatever else stands in the table."""
    known = [str(entry["name"]) for entry in audit.findings.get("classes") or []]
    return _unique([*known, *audit.scores.text["label"], *audit.scores.text["predicted"]])


def _unique(values: Iterable[Any]) -> list[Any]:
    return list(dict.fromkeys(values))


def _places(rows: Iterable[int], kept: dict[int, int]) -> list[int]:
    return [kept[row] for row in rows if row in kept]


def _available(audit: Audit) -> list[int]:
    """The rows that have a picture or a text."""
    rows = audit.pictures["rows"].tolist() if audit.pictures is not None else list(audit.texts)
    return [row for row in _unique(map(int, rows)) if 0 <= row < len(audit.scores)]


def _chosen(audit: Audit) -> Part:
    """The rows of every part of the page that shows samples."""
    rows, text = _available(audit), audit.scores.text
    there = set(rows)
    triplets = [[int(each[name]) for name in ("row", "same", "other")] for each in audit.findings.get("triplets") or []]
    doubt = audit.scores.numbers["p_mislabelled"]
    mislabelled = [row for row in rows if text["kind"][row] == "mislabelled"]
    mislabelled.sort(key=lambda row: -np.nan_to_num(doubt[row]))
    if audit.pictures is not None:
        looks = [int(row) for row in audit.pictures.get("heat_rows", [])]
    else:
        looks = [row for row in rows if audit.texts[row].get("easy")]
        looks.sort(key=lambda row: -np.nan_to_num(audit.scores.numbers["score"][row]))
    return {
        "galleries": galleries(audit, rows),
        "triplets": [each for each in triplets if there.issuperset(each)][:MOST_TRIPLETS],
        "mislabelled": mislabelled[:MOST_MISLABELLED],
        "looks": [row for row in looks if row in there][:MOST_LOOKS],
        "sixty": [int(row) for row in audit.findings.get("looks") or [] if int(row) in there],
        "others": rows[:: max(len(rows) // SHEET, 1)],
    }


def galleries(audit: Audit, rows: Sequence[int]) -> list[tuple[str, list[int], list[int]]]:
    """Per class its name, the rows with the lowest scores and those with the highest, no row on both sides."""
    score, label = audit.scores.numbers["score"], audit.scores.text["label"]
    classes = list(audit.findings.get("classes") or [])
    if len(classes) > MOST_CLASSES:  # then those on which the easy rule fails most
        classes = sorted(classes, key=lambda entry: entry.get("easy_accuracy") or 0.0)[:MOST_CLASSES]
    per_side = max(2, min(MOST_PER_SIDE, MOST_SAMPLES * 3 // 4 // (2 * max(len(classes), 1))))
    members: dict[str, list[int]] = {str(entry["name"]): [] for entry in classes}
    for row in sorted((row for row in rows if np.isfinite(score[row])), key=lambda row: -score[row]):
        members.get(label[row], []).append(row)
    shown = []
    for name, found in members.items():
        half = (len(found) + 1) // 2
        against = [row for row in found[:half] if goes_against(audit.scores, row)]
        shown.append((name, found[half:][::-1][:per_side], against[:per_side]))
    return [entry for entry in shown if entry[1] or entry[2]]


def goes_against(scores: Scores, row: int) -> bool:
    """Whether the easy rule gets this row wrong, or the audit says that it is no typical one."""
    text = scores.text
    return text["predicted"][row] != text["label"][row] or text["kind"][row] in {"conflicting", "mislabelled"}


def _turns(chosen: Part) -> list[list[int]]:
    """The galleries by turns, one sample of each side of each class at a time, so that a limit hits all alike."""
    sides = [side for _, low, high in chosen["galleries"] for side in (high, low)]
    longest = max(map(len, sides), default=0)
    return [[side[turn] for side in sides if turn < len(side)] for turn in range(longest)]


def _rest(chosen: Part) -> list[list[int]]:
    return [chosen["mislabelled"], chosen["looks"], chosen["others"]]


def _columns(scores: Scores, order: Sequence[int], names: Sequence[str]) -> Part:
    """The table by column, numbers with the digits that are worth telling."""
    number = {name: index for index, name in enumerate(names)}
    kinds = {kind: index for index, kind in enumerate(KINDS)}
    text = scores.text
    paths = ["" if text["path"][row] == text["id"][row] else text["path"][row] for row in order]
    columns: Part = {
        "row": list(order),
        "id": [text["id"][row] for row in order],
        "path": paths if any(paths) else None,
        "label": [number[text["label"][row]] for row in order],
        "predicted": [number[text["predicted"][row]] for row in order],
        "kind": [kinds.get(text["kind"][row], kinds["unsure"]) for row in order],
    }
    for name in NUMBERS:
        columns[name] = [_short(value) for value in scores.numbers[name][list(order)].tolist()]
    columns["rank"] = [None if rank is None else int(rank) for rank in columns["rank"]]
    return columns


def _short(value: float) -> float | None:
    return float(f"{value:.6g}") if np.isfinite(value) else None


def _answer(model: str, probabilities: Any, label: str, numbers: dict[str, int]) -> Part:
    """What a model says: the most probable classes as [number, probability], and the probability of the label."""
    if probabilities is None or not len(probabilities):
        return {}
    values = np.nan_to_num(np.asarray(probabilities, dtype=float))
    order = np.argsort(-values, kind="stable")[:LIKELY]
    own = numbers[label]
    told: Part = {model: [[int(index), round(float(values[index]), 3)] for index in order]}
    return told | ({f"label_{model}": round(float(values[own]), 3)} if own < len(values) else {})


def _pictures(audit: Audit, kept: dict[int, int]) -> dict[int, Part]:
    """A sample per picture, as large as there is room for all of them."""
    if audit.pictures is None:
        return {}
    arrays = audit.pictures
    at = {int(row): place for place, row in enumerate(arrays["rows"])}
    heat = {int(row): place for place, row in enumerate(arrays.get("heat_rows", []))}
    side = _side([arrays["picture"][at[row]] for row in list(kept)[:: max(len(kept) // 20, 1)]], len(kept))
    numbers = {name: index for index, name in enumerate(class_names(audit))}
    room, samples = PICTURE_ROOM, {}
    for row, place in kept.items():
        entry: Part = {"src": data_uri(arrays["picture"][at[row]], side)}
        room -= len(entry["src"])
        if room < 0:
            break
        for name in ("easy", "debiased"):
            table = arrays.get(f"probability_{name}")
            entry |= _answer(name, None if table is None else table[at[row]], audit.scores.text["label"][row], numbers)
            if row in heat and f"heat_{name}" in arrays:
                entry[f"heat_{name}"] = heat_uri(arrays[f"heat_{name}"][heat[row]])
        samples[place] = entry
    return samples


def _side(pictures: Sequence[np.ndarray], number: int) -> int:
    """The largest side at which so many pictures like these fit."""
    for side in SIDES[:-1]:
        if sum(len(data_uri(picture, side)) for picture in pictures) * number <= PICTURE_ROOM * 0.95 * len(pictures):
            return side
    return SIDES[-1]


def heat_uri(heat: np.ndarray) -> str:
    """Where a model looks as a picture of one colour, the more opaque the hotter."""
    alpha = Image.fromarray(np.ascontiguousarray(heat, dtype=np.uint8))
    alpha.thumbnail((SIDES[-1], SIDES[-1]), Image.Resampling.LANCZOS)
    picture = Image.new("RGB", alpha.size, (255, 64, 0))
    picture.putalpha(alpha)
    stream = io.BytesIO()
    picture.save(stream, "WEBP", quality=60, method=4)
    return "data:image/webp;base64," + base64.b64encode(stream.getvalue()).decode()


def _strips(swaps: Arrays | None, names: Sequence[str]) -> dict[str, list[Part]]:
    """Per view a few swaps: original, donor, swapped, and what was answered to each."""
    strips: dict[str, list[Part]] = {}
    for place, view in enumerate(swaps["view"].tolist() if swaps is not None else []):
        if swaps is not None and len(strips.setdefault(str(view), [])) < MOST_STRIPS:
            pictures = [data_uri(swaps[name][place], 96) for name in ("original", "donor", "swapped")]
            told = [names[answer] if 0 <= answer < len(names) else "" for answer in swaps["answers"][place].tolist()]
            strips[str(view)].append({"pictures": pictures, "answers": told})
    return strips


def _text_strips(swaps: dict[str, list[Part]], names: Sequence[str]) -> dict[str, list[Part]]:
    """The same for texts, each cut to what shows the swap."""
    return {
        view: [
            {
                "texts": [str(text)[:TEXT_LENGTH] for text in strip["texts"]],
                "answers": [names[answer] if 0 <= answer < len(names) else "" for answer in strip["answers"]],
            }
            for strip in strips[:MOST_STRIPS]
        ]
        for view, strips in swaps.items()
    }


def _texts(audit: Audit, kept: dict[int, int]) -> dict[int, Part]:
    """A sample per text: its beginning, its words with their weights, and what the models say."""
    numbers = {name: index for index, name in enumerate(class_names(audit))}
    samples: dict[int, Part] = {}
    for row, place in kept.items():
        entry = audit.texts[row]
        text = str(entry.get("text", ""))
        samples[place] = {"text": text[:TEXT_LENGTH] + ("…" if len(text) > TEXT_LENGTH else "")}
        for name in ("easy", "debiased"):
            samples[place] |= _answer(name, entry.get(f"probability_{name}"), audit.scores.text["label"][row], numbers)
            if entry.get(name):
                samples[place][f"words_{name}"] = _weighted(entry[name])
    return samples


def _weighted(words: Sequence[Sequence[Any]]) -> list[list[Any]]:
    cut = [[str(word)[:WORD_LENGTH], round(float(weight), 2)] for word, weight in words[:MOST_WORDS]]
    return cut + ([["…", 0.0]] if len(words) > MOST_WORDS else [])
