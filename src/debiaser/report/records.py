"""A record of measurements, a list of rows with named cells, as a Markdown table."""

from collections.abc import Mapping, Sequence
from typing import Any


def record_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """One line per row, under the names that the first one has."""
    names = list(rows[0])
    lines = [names, ["---"] * len(names), *([as_cell(row[name]) for name in names] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def as_cell(value: Any) -> str:
    """Three digits of a share or ratio; anything else as it is."""
    text = f"{value:.3g}" if isinstance(value, float) else str(value)
    return text.replace("|", "&#124;")
