"""A record of measurements, a list of rows with named cells, as a Markdown table."""

from collections.abc import Mapping, Sequence
from typing import Any

from debiaser.report.tables import with_interval


def record_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """One line per row, under the names that the first one has."""
    names = list(rows[0])
    lines = [names, ["---"] * len(names), *([as_cell(row[name]) for name in names] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def own_row(name: str, found: Mapping[str, Any]) -> dict[str, Any]:
    """What an audit or a debiasing of someone's own data reached (`benchmarks/own_data.py`), as a row."""
    everyone = found.get("regret", {}).get("overall", {})
    compared, rival = with_interval(found.get("test", {})), found.get("selection", {}).get("rival")
    return {
        "data": name.replace("_noise", ", labels flipped: ").removesuffix("_debias"),
        "verdict": found["verdict"],
        "why": " ".join(found["reasons"]),
        "flagged columns": ", ".join(found.get("flagged", ["–"])) or "none",
        "average precision of the scores": found.get("average_precision", {}).get("score", "–"),
        "of p_conflicting": found.get("average_precision", {}).get("p_conflicting", "–"),
        "chosen": found.get("regret", {}).get("chosen", "–"),
        **{f"{each}, %": everyone.get(full, "–") for each, full in CANDIDATES.items()},
        "its rival minus vanilla": f"{compared} ({rival})" if compared else "–",
        "minutes, where nothing else ran": found["seconds"] / 60 if found["seconds"] else "–",
    }


def regret_row(name: str, found: Mapping[str, Any]) -> dict[str, Any]:
    """What the choice without bias labels lost against the candidate that was best on the held-out rows."""
    regret = found["regret"]
    chosen, oracle, everyone = regret["chosen"], regret["oracle"], regret["overall"]
    return {
        "data": name.removesuffix("_debias"),
        "vanilla, %": everyone[CANDIDATES["vanilla"]],
        "chosen": chosen,
        "its held-out accuracy, %": everyone[chosen],
        "an oracle would choose": oracle,
        "which reaches, %": everyone[oracle],
        "regret, points": f"{regret['points']:.1f}",
    }


# by what the table calls them
CANDIDATES = {
    "vanilla": "vanilla (class-balanced)",
    "named property exchanged": "named property exchanged",
    "PGD, half of the draws by score": "PGD, 50% of draws by score",
    "PGD, all draws by score": "PGD, 100% of draws by score",
    "PGD, three quarters by score, named property exchanged": "PGD, 75% of draws by score, named property exchanged",
}


def as_cell(value: Any) -> str:
    """Three digits of a share or ratio; anything else as it is."""
    text = f"{value:.3g}" if isinstance(value, float) else str(value)
    return text.replace("|", "&#124;")
