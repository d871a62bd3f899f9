"""Pages, tables and figures made from plain results; nothing here needs torch."""

import base64
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def render_page(
    template: str, styles: Sequence[str], scripts: Sequence[str] = (), inline_style: bool = True, **context: Any
) -> str:
    """A self-contained page from a template, styles and scripts of this folder.

    Scripts, and without `inline_style` styles too, are allowed by their hashes: text from the data can become neither.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    style, script = ("\n".join((HERE / name).read_text() for name in names) for names in (styles, scripts))

    digests = [hashlib.sha256(text.encode()).digest() for text in (style, script)]
    hashes = [f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests]
    allowed = "'unsafe-inline'" if inline_style else hashes[0]
    policy = f"default-src 'none'; img-src data:; style-src {allowed}; script-src {hashes[1]}"
    policy += "; base-uri 'none'; form-action 'none'"  # these two do not follow the first
    environment = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    own = {"policy": policy, "style": style, "script": script}
    ours = {name: Markup(each) for name, each in own.items()}  # noqa: S704 (from our own files)
    return environment.get_template(template).render(**ours, **context).lstrip()
