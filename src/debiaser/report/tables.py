"""Results into rows: the one place that averages over seeds, for the page and for the terminal alike."""

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from debiaser.report.runs import Result, number

# --- How things are called on tables and pages

METHODS = {
    "vanilla": "Vanilla",
    "lff": "LfF",
    "jtt": "JTT",
    "disen": "Disen",
    "eiil": "EIIL",
    "cnc": "CNC",
    "george": "GEORGE",
    "bpa": "BPA",
    "pgd": "PGD",
}


def plural(number: int, word: str) -> str:
    """`1 run`, `2 runs`."""
    return f"{number:,} {word}" + ("" if number == 1 else "s")


def method_name(method: str) -> str:
    """The method as its paper writes it."""
    return METHODS.get(method, method)


Row = dict[str, Any]

ACCURACIES = ("unbiased", "aligned", "conflicting", "worst_group")
SCORE_METRICS = ("score_auroc", "score_average_precision", "score_conflicting_mass", "score_effective_sample_size")
HEADINGS = {
    "unbiased": "Unbiased",
    "aligned": "Aligned",
    "conflicting": "Conflicting",
    "worst_group": "Worst group",
}


def own_data_seed(spec: Mapping[str, Any]) -> bool:
    """Whether the data was drawn with another seed than the run's."""
    return bool("data_seed" in spec and spec["data_seed"] != spec.get("seed"))


def settings(result: Result) -> dict[str, Any]:
    """Everything beyond dataset, rho, noise, method and seeds that was chosen for the run, by flat names."""
    spec = result["spec"]
    flat: dict[str, Any] = {
        "protocol": result["protocol"],
        "net": spec.get("net"),
        "weights": spec.get("weights"),
        "precision": spec.get("precision", "32"),
        "augment": spec.get("augment", "as usual"),
        "processes": spec.get("world_size", 1),
        "code": str(spec.get("code", ""))[:10],
        "data_seed": spec["data_seed"] if own_data_seed(spec) else "as the seed",
    }
    for prefix, name in (("", "fields"), ("recipe.", "recipe"), ("option.", "options")):
        chosen = spec.get(name)
        if isinstance(chosen, dict):
            flat.update({f"{prefix}{key}": value for key, value in chosen.items()})
    return flat | _of_stages(flat.pop("recipe.stages", None), flat.get("recipe.epochs"))


def _of_stages(stages: Any, epochs: Any) -> dict[str, Any]:
    """`biased.epochs`, ...: what a recipe says of each stage, with its usual length where it says none."""
    told = stages if isinstance(stages, dict) else {}
    return {
        f"{stage}.{name}": value
        for stage, changed in told.items()
        if isinstance(changed, dict)
        for name, value in {"epochs": epochs, **changed}.items()
    }


def place(result: Result) -> tuple[str, float | None, float, str]:
    """What two runs must share to be compared: dataset, rho, noise, recipe."""
    noise = number(result["spec"].get("noise"))
    return str(result["dataset"]), number(result.get("rho")), noise or 0.0, str(result.get("recipe") or "")


def place_order(key: tuple[str, float | None, float, str]) -> tuple[Any, ...]:
    """A sort key for places, in which an unknown rho comes last."""
    dataset, rho, noise, recipe = key
    return dataset, rho is None, rho or 0.0, noise, recipe


def summary_rows(results: Sequence[Result]) -> list[Row]:
    """One row per dataset, rho, noise, recipe, method and differing setting: mean and deviation over its seeds.

    `row["unbiased"]` is the mean, `row["unbiased_std"]` the sample standard deviation (None with one seed).
    """
    families: dict[tuple[Any, ...], list[Result]] = {}
    for result in results:
        families.setdefault((*place(result), str(result["method"])), []).append(result)
    rows: list[Row] = []
    for family in families.values():
        names = _differing(family)
        variants: dict[str, list[Result]] = {}
        for result in family:
            chosen = settings(result)
            identity = json.dumps([chosen.get(name) for name in names], sort_keys=True, default=str)
            variants.setdefault(identity, []).append(result)
        rows.extend(_row(members, names) for members in variants.values())
    return sorted(rows, key=_row_order)


def _differing(family: Sequence[Result]) -> list[str]:
    """The settings in which runs of one method are not all equal."""
    flat = [settings(result) for result in family]
    names = sorted({name for one in flat for name in one})
    return [n for n in names if len({json.dumps(one.get(n), sort_keys=True, default=str) for one in flat}) > 1]


def _row_order(row: Row) -> tuple[Any, ...]:
    known = list(METHODS)
    rank = known.index(row["method"]) if row["method"] in known else len(known)
    usual = bool(row["published"])  # a method as the paper runs it comes before the same with fields changed
    return *place_order(row["place"]), rank, row["method"], not usual, row["label"]


def _row(members: Sequence[Result], names: Sequence[str]) -> Row:
    members = sorted(_distinct(members), key=lambda result: (seed_of(result), str(result.get("key", ""))))
    first = members[0]
    dataset, rho, noise, recipe = place(first)
    chosen = settings(first)
    differing = {name: chosen[name] for name in names if name in chosen}  # unsaid: as usual
    label = ", ".join([method_name(str(first["method"])), *(f"{k} {plain(v)}" for k, v in differing.items())])
    row: Row = {
        "place": place(first),
        "dataset": dataset,
        "rho": rho,
        "noise": noise,
        "recipe": recipe,
        "method": str(first["method"]),
        "differing": differing,
        "label": label,
        "seeds": [seed_of(result) for result in members],
        "results": list(members),
        "published": first.get("published"),
    }
    readers: dict[str, Callable[[Result], Any]] = {
        "samples_seen": lambda result: result.get("samples_seen"),
        "seconds": lambda result: total_seconds(result),
        **{name: _metric(name) for name in (*ACCURACIES, "valid", *SCORE_METRICS)},
    }
    for name, read in readers.items():
        row[name], row[f"{name}_std"] = mean_and_deviation([read(result) for result in members])
    return row


def _metric(name: str) -> Callable[[Result], Any]:
    return lambda result: result["metrics"].get(name)


def seed_of(result: Result) -> int:
    """The seed, 0 where none is named."""
    seed = number(result.get("seed"))
    return int(seed) if seed is not None else 0


def _distinct(members: Sequence[Result]) -> list[Result]:
    """Each run once: a copy of a run folder is no further seed."""
    seen: dict[str, Result] = {}
    for position, result in enumerate(members):
        seen.setdefault(str(result.get("key") or position), result)
    return list(seen.values())


def mean_and_deviation(values: Sequence[Any]) -> tuple[float | None, float | None]:
    """Mean and sample standard deviation of the numbers among `values`; None where there are too few."""
    numbers = [value for value in map(number, values) if value is not None]
    if not numbers:
        return None, None
    return statistics.fmean(numbers), statistics.stdev(numbers) if len(numbers) > 1 else None


def total_seconds(result: Result) -> float | None:
    """The time of all stages together."""
    times = [value for value in map(number, result["seconds"].values()) if value is not None]
    return sum(times) if times else None


def plain(value: Any) -> str:
    """A setting as a person would write it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    return "none" if value is None else str(value)


def spread(mean: float | None, deviation: float | None, digits: int = 1) -> str:
    """`71.2 ± 1.3`, `71.2` with one seed, a dash when unknown."""
    if mean is None:
        return "–"
    return f"{mean:.{digits}f}" if deviation is None else f"{mean:.{digits}f} ± {deviation:.{digits}f}"


def signed(value: float, digits: int = 1) -> str:
    """+0.4, and never -0.0."""
    return f"{round(value, digits) + 0.0:+,.{digits}f}"


def with_interval(compared: Mapping[str, Any]) -> str:
    """`+37.5 [31.0, 44.0]`: a difference in points and its 95% interval; nothing where one of them is unknown."""
    value, *bounds = (number(each) for each in (compared.get("difference"), *(compared.get("interval") or ())))
    if value is None or len(bounds) != 2 or None in bounds:
        return ""
    return f"{signed(value)} [{', '.join(f'{round(bound or 0.0, 1) + 0.0:.1f}' for bound in bounds)}]"


def share(fraction: float | None) -> str:
    """0.005 as `0.5%`."""
    return "unknown" if fraction is None else f"{fraction * 100:.3g}%"


def count(value: float | None) -> str:
    """A whole number with commas."""
    return "–" if value is None else f"{value:,.0f}"


def duration(seconds: float | None) -> str:
    """`6.6 s`, `3 min 20 s` or `2 h 05 min`."""
    if seconds is None:
        return "–"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def published(row: Row) -> str:
    """The number the paper prints for this cell, or nothing."""
    printed = row["published"] or {}
    mean = number(printed.get("mean"))
    return "" if mean is None else spread(mean, number(printed.get("std")), 2)


def text_table(rows: Sequence[Row], kept_for_good: bool = False) -> tuple[list[str], list[list[str]]]:
    """Headings and cells as text; columns that would be empty or all alike are left out.

    What is `kept_for_good`, in a document, has the detector's figures and no times, which belong to one machine.
    """
    columns: list[tuple[str, Callable[[Row], str], bool]] = [
        ("Method", lambda row: row["label"], True),
        ("Dataset", lambda row: row["dataset"], _differ(rows, "dataset")),
        ("rho", lambda row: share(row["rho"]), _differ(rows, "rho")),
        ("Noise", lambda row: share(row["noise"]), _differ(rows, "noise")),
        ("Recipe", lambda row: row["recipe"], _differ(rows, "recipe")),
        *((HEADINGS[name], _accuracy_cell(name), _any(rows, name)) for name in ACCURACIES),
        ("Published", lambda row: published(row) or "–", any(published(row) for row in rows)),
        ("Difference", difference, kept_for_good and any(published(row) for row in rows)),
        ("Seeds", lambda row: count(len(row["seeds"])), True),
        ("Conflicting rows drawn", drawn, kept_for_good),
        ("AUROC of scores", lambda row: digits_of(row["score_auroc"]), kept_for_good and _any(rows, "score_auroc")),
        ("Samples seen", lambda row: count(row["samples_seen"]), _any(rows, "samples_seen")),
        ("Time", lambda row: duration(row["seconds"]), not kept_for_good and _any(rows, "seconds")),
    ]
    kept = [(heading, cell) for heading, cell, wanted in columns if wanted]
    return [heading for heading, _ in kept], [[cell(row) for _, cell in kept] for row in rows]


def markdown_table(rows: Sequence[Row]) -> str:
    """The table as Markdown, for README and docs."""
    headings, cells = text_table(rows, kept_for_good=True)
    lines = [headings, ["---", *["--:"] * (len(headings) - 1)], *cells]
    return "\n".join(f"| {' | '.join(cell.replace('|', '&#124;') for cell in line)} |" for line in lines)


def difference(row: Row) -> str:
    """Ours minus the published number, in points."""
    printed = number((row["published"] or {}).get("mean"))
    return "–" if printed is None or row["unbiased"] is None else signed(row["unbiased"] - printed, 2)


def drawn(row: Row) -> str:
    """How many training rows go against the shortcut, seed by seed."""
    counts = [result["rows"].get("conflicting") for result in row["results"]]
    return ", ".join("unknown" if value is None else f"{value:,}" for value in counts)


def digits_of(value: float | None) -> str:
    """0.9963, or a dash."""
    return "–" if value is None else f"{value:.4f}"


def _any(rows: Sequence[Row], name: str) -> bool:
    return any(row[name] is not None for row in rows)


def _differ(rows: Sequence[Row], name: str) -> bool:
    return len({row[name] for row in rows}) > 1


def _accuracy_cell(name: str) -> Callable[[Row], str]:
    return lambda row: spread(row[name], row[f"{name}_std"])


# --- A record of measurements, a list of rows with named cells, as a Markdown table


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
