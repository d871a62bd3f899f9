"""One self-contained page from the plain files of an audit: `write_audit_page`."""

import base64
import csv
import hashlib
import io
import json
import re
import zipfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup
from PIL import Image

from debiaser.errors import Problem, known
from debiaser.io import UNREADABLE, replacing
from debiaser.report import audit_words as words
from debiaser.report.audit_words import repair
from debiaser.report.runs import Arrays, why
from debiaser.report.tables import count
from debiaser.report.thumbnails import TINY, data_uri

# --- Reading what an audit wrote into its folder; only a missing or torn finding is a problem, the rest becomes a note

Findings = dict[str, Any]
KINDS = ("aligned", "conflicting", "mislabelled", "unsure", "unreadable")
COLUMNS = ("id", "path", "label", "predicted", "kind")
NUMBERS = ("score", "probability", "rank", "p_conflicting", "p_mislabelled")
MOST_CHARACTERS = 2_000_000  # of one cell; an id beyond that is a mistake in the table

Read = TypeVar("Read")


@dataclass(frozen=True, eq=False)
class Scores:
    """`scores.csv` by column: text as lists, numbers as float arrays with NaN where a cell is empty."""

    text: dict[str, list[str]]
    numbers: dict[str, np.ndarray]

    def __len__(self) -> int:
        return len(self.text["id"])


@dataclass(frozen=True, eq=False)
class Audit:
    """All that the page is made of; `digest` tells two audits apart, `notes` says what could not be read."""

    findings: Findings
    scores: Scores
    digest: str
    pictures: Arrays | None
    swaps: Arrays | None
    texts: dict[int, dict[str, Any]]
    notes: tuple[str, ...]
    text_swaps: dict[str, list[dict[str, Any]]] = field(default_factory=dict)


def read_audit(folder: Path, with_samples: bool = True) -> Audit:
    """The audit in this folder; without samples no picture and no text is even opened."""
    findings = _needed(folder / "audit.json", _read_findings)
    scores = _needed(folder / "scores.csv", _read_scores)
    digest = hashlib.sha256((folder / "scores.csv").read_bytes()).hexdigest()[:16]
    notes: list[str] = []
    pictures = swaps = None
    texts: dict[int, dict[str, Any]] = {}
    text_swaps: dict[str, list[dict[str, Any]]] = {}
    if with_samples and findings.get("kind") == "text":
        texts = _optional(folder / "texts.json", _read_texts, notes) or {}
        text_swaps = _optional(folder / "swaps.json", _read_text_swaps, notes) or {}
    elif with_samples:
        pictures = _optional(folder / "pictures.npz", _read_pictures, notes)
        swaps = _optional(folder / "swaps.npz", _read_swaps, notes)
    return Audit(findings, scores, digest, pictures, swaps, texts, tuple(notes), text_swaps)


def _needed(path: Path, read: Callable[[Path], Read]) -> Read:
    try:
        return read(path)
    except FileNotFoundError as error:
        raise Problem(f"no {path.name} in {path.parent}: no audit ended there; run `debiaser audit` again") from error
    except (*UNREADABLE, csv.Error) as error:
        raise Problem(f"cannot read {path}: {why(error)}; run `debiaser audit` again") from error


def _optional(path: Path, read: Callable[[Path], Read], notes: list[str]) -> Read | None:
    if not path.exists():
        return None
    try:
        return read(path)
    except UNREADABLE as error:
        notes.append(f"{path.name} cannot be read ({why(error)}), so what it holds is not shown.")
        return None


def _read_findings(path: Path) -> Findings:
    content = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict) or "verdict" not in content:
        raise ValueError("it holds no verdict")
    return content


def _read_scores(path: Path) -> Scores:
    csv.field_size_limit(max(csv.field_size_limit(), MOST_CHARACTERS))
    with path.open(newline="", encoding="utf-8") as stream:
        reader = csv.reader(stream)
        heading = next(reader, [])
        missing = [name for name in (*COLUMNS, *NUMBERS) if name not in heading]
        if missing:
            raise ValueError(f"it has no column {missing[0]}")
        rows = [row for row in reader if row]
    if any(len(row) != len(heading) for row in rows):
        raise ValueError("its rows and its heading differ in length")
    columns = list(zip(*rows, strict=True)) or [()] * len(heading)
    by_name = dict(zip(heading, columns, strict=True))
    numbers = {name: np.array([float(cell) if cell else np.nan for cell in by_name[name]]) for name in NUMBERS}
    return Scores({name: list(by_name[name]) for name in COLUMNS}, numbers)


def _read_arrays(path: Path) -> Arrays:
    if not zipfile.is_zipfile(path):
        raise ValueError("it is no .npz archive")
    with np.load(path, allow_pickle=False) as archive:
        return {name: np.asarray(archive[name]) for name in archive.files}


def _read_pictures(path: Path) -> Arrays:
    arrays = _read_arrays(path)
    rows, picture = arrays["rows"], arrays["picture"]
    if picture.shape[:1] != rows.shape or picture.shape[3:] != (3,) or picture.dtype != np.uint8:
        raise ValueError("it holds no 8-bit colour picture per row")
    for name in ("probability_easy", "probability_debiased"):
        if name in arrays and arrays[name].shape[:1] != rows.shape:
            raise ValueError(f"{name} has not one line per row")
    return arrays


def _read_swaps(path: Path) -> Arrays:
    arrays = _read_arrays(path)
    if len({len(arrays[name]) for name in ("view", "original", "donor", "swapped", "answers")}) != 1:
        raise ValueError("its arrays differ in length")
    return arrays


def _read_texts(path: Path) -> dict[int, dict[str, Any]]:
    content = json.loads(path.read_text(encoding="utf-8"))
    return {int(row): entry for row, entry in content.items()}


def _read_text_swaps(path: Path) -> dict[str, list[dict[str, Any]]]:
    content = json.loads(path.read_text(encoding="utf-8"))
    if any(len(each["texts"]) != 3 or len(each["answers"]) != 3 for strips in content.values() for each in strips):
        raise ValueError("a swap in it has not three texts and three answers")
    return {str(view): strips for view, strips in content.items()}


# --- Taking the names of files and samples out of an audit before a page is made of it

REDACTIONS = frozenset({"paths", "images"})
HIDDEN = "(not shown)"
# Shorter or plainer names ("7", "cat") would be found inside ordinary sentences.
DISTINCT = re.compile(r"(?=.{4})(?=.*[\d/\\._-])", re.DOTALL)
LOCATION = re.compile(r"""(?<![\w/.])(?:~?/|\.{1,2}/|[A-Za-z]:\\)[^\s"'<>|]+""")
FOLDERS = r"""(?:[^\s"'<>|]*[/\\])?"""  # the part of a path before a name goes with it
NAMED = re.compile(r"path|name|folder|token|file$", re.IGNORECASE)


def check_redactions(redact: Iterable[str]) -> None:
    """A Misuse that names the known ones, should one be unknown."""
    for name in redact:
        if name not in REDACTIONS:
            raise known("redaction", name, REDACTIONS)


def without_paths(audit: Audit) -> Audit:
    """The same audit in which a sample is its row number and no sentence names a file."""
    found, source = audit.findings, str(audit.findings.get("source", ""))
    rows = {name: str(row) for row, name in enumerate(audit.scores.text["id"])}
    scrub = _scrubber({*rows, *audit.scores.text["path"], *_named(found)}, source)
    kept = {key: value for key, value in found.items() if key not in {"classes", "unreadable", "left_out"}}
    findings = {**found, **_mapped(kept, scrub), "source": HIDDEN}
    for part in ("unreadable", "left_out"):
        findings[part] = [_entry(entry, rows) for entry in found.get(part) or []]
    findings["duplicates"] = [
        {**entry, "ids": [_row(name, rows) for name in entry["ids"]]} for entry in found.get("duplicates") or []
    ]
    findings["suspects"] = [_suspect(entry) for entry in findings.get("suspects") or []]
    findings["reasons"] = [_unnamed(str(each), found.get("suspects") or []) for each in findings.get("reasons") or []]
    if source and found.get("next"):
        snippet = str(found["next"].get("snippet", "")).replace(repr(source), "'SOURCE'")
        findings["next"]["snippet"] = scrub(snippet.replace(source, "SOURCE"))
    return replace(audit, findings=findings, scores=_numbered(audit.scores))


def _numbered(scores: Scores) -> Scores:
    numbers = [str(row) for row in range(len(scores))]
    return Scores({**scores.text, "id": numbers, "path": [""] * len(numbers)}, scores.numbers)


def _named(findings: dict[str, Any]) -> set[str]:
    """The ids that stand in the findings, also those of rows that were left out."""
    listed = [*(findings.get("unreadable") or []), *(findings.get("left_out") or [])]
    return {str(entry["id"]) for entry in listed} | {
        str(name) for entry in findings.get("duplicates") or [] for name in entry["ids"]
    }


def _scrubber(names: set[str], source: str) -> Callable[[str], str]:
    """What takes the names out of a sentence, longest first so that no part of one remains."""
    bare = {re.split(r"[/\\]", name)[-1] for name in names}
    distinct = sorted(filter(DISTINCT.match, names | bare | {source}), key=len, reverse=True)

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
    if isinstance(value, list):
        return [_mapped(each, change) for each in value]
    if isinstance(value, dict):
        return {key: _mapped(each, change) for key, each in value.items()}
    return value


def _row(name: Any, rows: dict[str, str]) -> str:
    return f"row {rows[str(name)]}" if str(name) in rows else HIDDEN


def _entry(entry: dict[str, Any], rows: dict[str, str]) -> dict[str, Any]:
    """A row that was left out, told by its number where it has one; its reason is scrubbed of its own name."""
    name, reason = str(entry["id"]), str(entry["reason"])
    for part in (name, re.split(r"[/\\]", name)[-1]):
        reason = reason.replace(part, HIDDEN) if part else reason
    return {"id": _row(name, rows), "reason": LOCATION.sub(HIDDEN, reason)}


def _suspect(entry: dict[str, Any]) -> dict[str, Any]:
    """A column made of names keeps its numbers and loses its values."""
    if not NAMED.search(str(entry.get("column", ""))):
        return entry
    values = [{**value, "value": f"value {number}"} for number, value in enumerate(entry.get("values") or [], 1)]
    return {**entry, "values": values, "empty": []}


def _unnamed(sentence: str, suspects: Iterable[dict[str, Any]]) -> str:
    """A sentence without the values of columns that are made of names."""
    for entry in suspects:
        column = str(entry.get("column", ""))
        for cell in (entry.get("empty") or []) if NAMED.search(column) else []:
            sentence = sentence.replace(f"{column} '{cell['value']}'", f"{column} '{HIDDEN}'")
    return sentence


# --- Which samples the page shows, and the data its script draws: each picture or text once, wherever it appears

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


HERE = Path(__file__).parent
STYLES = ("page.css", "audit.css")
SCRIPTS = ("audit.js", "audit_table.js", "audit_review.js")


def write_audit_page(folder: Path, redact: frozenset[str] = frozenset()) -> Path:
    """Write `report.html` of the audit in `folder`, readable by its owner only; redact may name paths and images."""
    check_redactions(redact)
    audit = read_audit(folder, with_samples="images" not in redact)
    if "paths" in redact:
        audit = without_paths(audit)
    destination = folder / "report.html"
    content = render(audit, redact).encode("utf-8", "replace")  # half a character in a text must not stop the page
    with replacing(destination) as temporary:
        temporary.chmod(0o600)
        temporary.write_bytes(content)
    return destination


@cache
def _template() -> Template:
    environment = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template("audit.html")


def render(audit: Audit, redact: frozenset[str] = frozenset()) -> str:
    """The page as text."""
    style = "\n".join((HERE / name).read_text() for name in STYLES)
    script = "\n".join((HERE / name).read_text() for name in SCRIPTS)
    # Style and script are allowed by their hashes: text from the data can never become either.
    policy = (
        f"default-src 'none'; img-src data:; style-src 'sha256-{_digest(style)}'; script-src 'sha256-{_digest(script)}'"
        "; base-uri 'none'; form-action 'none'"
    )
    unreadable = audit.scores.text["kind"].count("unreadable")
    data = page_data(audit) | {"redacted": "paths" in redact, "total": len(audit.scores), "unreadable": unreadable}
    text = _template().render(
        **_context(audit, data, redact),
        policy=policy,
        style=Markup(style),  # noqa: S704 (our own files)
        script=Markup(script),  # noqa: S704
        data=Markup(as_json(data)),  # noqa: S704 (no "<" is left in it)
    )
    return text.lstrip()


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _context(audit: Audit, data: dict[str, Any], redact: frozenset[str]) -> dict[str, Any]:
    """What the template lays out."""
    found = audit.findings
    following = found.get("next") or {}
    total, classes = len(audit.scores), len(found.get("classes") or [])
    return {
        "source": str(found.get("source", "")),
        "examined": str(found.get("examined") or ""),
        "verdict": words.headline(found),
        "things": words.noun(found),
        "n": count(found.get("n") or total),
        "units": count(found["units"]) if found.get("units") not in (None, 0, found.get("n")) else "",
        "tiles": words.tiles(found),
        "health": {"ok": True, "findings": []} | (found.get("health") or {}),
        "classes": words.classes(found),
        "views": words.views(found),
        "suspects": words.suspects(found),
        "histogram": words.scores_figure(found),
        "plane": words.plane_figure(found),
        "forest": words.forest_figure(found),
        "looks_words": words.looks_words(found),
        "kinds_why": str((found.get("kinds") or {}).get("why") or ""),
        "planted": str((found.get("planted") or {}).get("sentence") or ""),
        "repair": repair(found),
        "next": {"sentences": following.get("sentences") or [], "snippet": following.get("snippet") or ""},
        "lists": {name: words.listing(found.get(name) or []) for name in ("unreadable", "left_out")},
        "duplicates": words.duplicates(found),
        "notes": [*(found.get("notes") or []), *audit.notes],
        "choices": [(str(name), str(value)) for name, value in (found.get("choices") or {}).items()],
        "shown": data,
        "more_classes": count(classes) if len(data["galleries"]) < classes else "",
        "listed": count(data["listed"]),
        "total": count(total) if total > data["listed"] else "",
        "hidden_images": "images" in redact,
        "hidden_paths": "paths" in redact,
    }
