"""The sets that are folders or archives of files, by name: what is here of them, and fetching them."""

from dataclasses import replace
from pathlib import Path

from debiaser.data import published
from debiaser.data.benchmarks import bar, bffhq, celeba, civilcomments
from debiaser.data.sources import Status
from debiaser.errors import Problem

HOLDINGS = {each.name: each for each in (bar.SET, bffhq.SET, celeba.SET, civilcomments.SET)}
UNKNOWN = "the bytes of its files, of which no checksums are published"


def fetch(name: str, root: Path | None = None) -> Path:
    """Where the set now lies, checked; fetched if it was nowhere and needs no login."""
    return published.fetch(HOLDINGS[name], root)


def status(name: str, root: Path | None = None, thorough: bool = True, partial: bool = False) -> Status:
    """What is here of a set; nothing is fetched, and bad content is told, not raised.

    Unless `thorough`, it is only looked for: to open an archive and count its files can take seconds. `partial`: any
    counts will do.
    """
    known = replace(HOLDINGS[name], counts={}) if partial else HOLDINGS[name]
    path = published.look(known, root)
    if path is None:
        return Status(name, known.title, known.licence, problem=str(published.absent(known, root)))
    if not thorough:
        return Status(name, known.title, known.licence, path, verified=True)
    try:
        counts = published.check_set(known, published.opened(known, root))
    except Problem as problem:
        return Status(name, known.title, known.licence, path, problem=str(problem))
    return Status(name, known.title, known.licence, path, verified=True, counts=counts, unknown=UNKNOWN)
