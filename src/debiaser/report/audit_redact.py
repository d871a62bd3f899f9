"""Taking the names of files and samples out of an audit before a page is made of it."""

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from debiaser.errors import known
from debiaser.report.audit_files import Audit, Scores

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
