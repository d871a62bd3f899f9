"""One self-contained page from the plain files of an audit: `write_audit_page`."""

import base64
import hashlib
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

from debiaser.files import replacing
from debiaser.report import audit_words as words
from debiaser.report.audit_files import Audit, read_audit
from debiaser.report.audit_redact import check_redactions, without_paths
from debiaser.report.audit_repair import repair
from debiaser.report.audit_samples import as_json, page_data
from debiaser.report.tables import count

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
        "field": str((found.get("field") or {}).get("sentence") or ""),
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
