"""Numbers as text, and results into rows: the one place that averages over seeds, for pages and terminal alike."""

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from debiaser.report.runs import Result

Row = dict[str, Any]
Found = Mapping[str, Any]

METHODS = {name.lower(): name for name in ("Vanilla", "LfF", "JTT", "Disen", "EIIL", "CNC", "GEORGE", "BPA", "PGD")}
METHODS |= {name.lower(): name for name in ("DPR", "Cells", "XRM", "uLA", "BAM", "AFR", "NeuronTune")}
METHODS |= {name.lower(): f"{name} (group labels)" for name in ("GroupDRO", "RWG", "DFR")}  # they are told the groups
METHODS["guarded"] = "Guarded PGD"
HEADINGS = {"unbiased": "Unbiased", "aligned": "Aligned", "conflicting": "Conflicting", "worst_group": "Worst group"}
HEADINGS["weighted_average"] = "Weighted by training groups"
ACCURACIES = tuple(HEADINGS)
SCORE_METRICS = ("score_auroc", "score_average_precision", "score_conflicting_mass", "score_effective_sample_size")


# Numbers and names as people write them


def plural(number: int, word: str) -> str:
    """`1 run`, `2 runs`."""
    return f"{number:,} {word}" + ("" if number == 1 else "s")


def method_name(method: str, uses_groups: bool = False) -> str:
    """The method as its paper writes it; marked if it uses group labels, which a person's own says in its result."""
    return METHODS.get(method, f"{method} (group labels)" if uses_groups else method)


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


def with_interval(compared: Found) -> str:
    """`+37.5 [31.0, 44.0]`: a difference in points and its 95% interval; nothing where one of them is unknown."""
    value, bounds = compared.get("difference"), compared.get("interval") or [None]
    if value is None or None in bounds:
        return ""
    return f"{signed(value)} [{', '.join(f'{round(bound, 1) + 0.0:.1f}' for bound in bounds)}]"


def percent(value: float) -> str:
    """Whole percent, except where rounding would claim all or nothing."""
    rounded = round(value)
    if rounded in (0, 100) and value != rounded:
        return f"{value:.1f}%" if 0.05 <= value < 99.95 else ("almost 100%" if rounded else "almost 0%")
    return f"{rounded}%"


def part(fraction: float) -> str:
    """A share in percent, with a decimal where it is small."""
    return percent(fraction * 100) if fraction >= 0.0995 else f"{fraction * 100:.2g}%"


def share(fraction: float | None) -> str:
    """0.005 as `0.5%`."""
    return "unknown" if fraction is None else f"{fraction * 100:.3g}%"


def points(value: float) -> str:
    """A difference of accuracies, without its sign."""
    text = f"{abs(value):.1f}"
    return f"{text} point" if text == "1.0" else f"{text} points"


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


# Runs into rows


def own_data_seed(spec: Found) -> bool:
    """Whether the data was drawn with another seed than the run's."""
    return bool("data_seed" in spec and spec["data_seed"] != spec.get("seed"))


def settings(result: Result) -> dict[str, Any]:
    """Everything beyond dataset, rho, noise, method and seeds that was chosen for the run, by flat names.

    `biased.epochs`, ...: what a recipe says of each stage, with its usual length where it says none.
    """
    spec = result["spec"]
    flat: dict[str, Any] = {
        "protocol": result["protocol"],
        "net": spec.get("net"),
        "weights": spec.get("weights"),
        "precision": spec.get("precision", "32"),
        "augment": spec.get("augment", "as usual"),
        "processes": spec.get("world_size", 1),
        "code": str(spec.get("code", ""))[:10],
        "part": spec.get("part", ""),
        "data_seed": spec["data_seed"] if own_data_seed(spec) else "as the seed",
    }
    for prefix, name in (("", "fields"), ("recipe.", "recipe"), ("option.", "options")):
        flat |= {f"{prefix}{key}": value for key, value in spec.get(name, {}).items()}
    for stage, changed in flat.pop("recipe.stages", {}).items():
        flat |= {f"{stage}.{name}": value for name, value in {"epochs": flat.get("recipe.epochs"), **changed}.items()}
    return flat


def place(result: Result) -> tuple[str, float | None, float, str]:
    """What two runs must share to be compared: dataset, rho, noise, recipe."""
    return result["dataset"], result["rho"], result["spec"].get("noise") or 0.0, result["recipe"]


def summary_rows(results: Sequence[Result]) -> list[Row]:
    """One row per dataset, rho, noise, recipe, method and differing setting, in this order; unknown rho comes last.

    `row["unbiased"]` is the mean over seeds, `row["unbiased_std"]` the sample standard deviation (None with one seed).
    """
    families: dict[tuple[Any, ...], list[Result]] = {}
    for result in {each["key"]: each for each in reversed(results)}.values():  # a copy of a run is no further seed
        families.setdefault((*place(result), result["method"]), []).append(result)
    rows: list[Row] = []
    for family in families.values():
        chosen = [settings(each) for each in family]
        names = sorted({name for each in chosen for name in each})
        texts = {name: [json.dumps(each.get(name), sort_keys=True, default=str) for each in chosen] for name in names}
        differing = [name for name in names if len(set(texts[name])) > 1]
        variants: dict[tuple[str, ...], list[Result]] = {}
        for position, result in enumerate(family):
            variants.setdefault(tuple(texts[name][position] for name in differing), []).append(result)
        rows.extend(_row(members, differing) for members in variants.values())
    return sorted(rows, key=_row_order)


def _row_order(row: Row) -> tuple[Any, ...]:
    dataset, rho, noise, recipe = row["place"]
    rank = list(METHODS).index(row["method"]) if row["method"] in METHODS else len(METHODS)
    usual = bool(row["published"])  # a method as the paper runs it comes before the same with fields changed
    return dataset, rho is None, rho or 0.0, noise, recipe, rank, row["method"], not usual, row["label"]


def _row(members: Sequence[Result], names: Sequence[str]) -> Row:
    members = sorted(members, key=lambda result: (result["seed"], result["key"]))
    first, chosen = members[0], settings(members[0])
    differing = [f"{name} {plain(chosen[name])}" for name in names if name in chosen and name != "part"]
    if chosen["part"]:  # of a set that was not whole, whatever the others are
        differing.append(f"on {chosen['part'].rpartition(', ')[0]}")
    row: Row = {
        "place": place(first),
        **dict(zip(("dataset", "rho", "noise", "recipe"), place(first), strict=True)),
        "method": first["method"],
        "label": ", ".join([method_name(first["method"], bool(first.get("uses_groups"))), *differing]),
        "seeds": [result["seed"] for result in members],
        "results": members,
        "published": first["published"],
    }
    columns = {name: [result["metrics"].get(name) for result in members] for name in (*ACCURACIES, *SCORE_METRICS)}
    columns["samples_seen"] = [result["samples_seen"] for result in members]
    columns["seconds"] = [sum(result["seconds"].values()) or None for result in members]  # of all stages
    for name, values in columns.items():
        numbers = [float(value) for value in values if value is not None]
        row[name] = statistics.fmean(numbers) if numbers else None
        row[f"{name}_std"] = statistics.stdev(numbers) if len(numbers) > 1 else None
    return row


def published(row: Row) -> str:
    """The number the paper prints for this cell, or nothing."""
    return spread(row["published"]["mean"], row["published"]["std"], 2) if row["published"] else ""


def text_table(rows: Sequence[Row], kept_for_good: bool = False) -> tuple[list[str], list[list[str]]]:
    """Headings and cells as text; columns that would be empty, all alike or 0 for every method are left out.

    What is `kept_for_good`, in a document, has the detector's figures and no times, which belong to one machine.
    """
    measured = (*ACCURACIES, "score_auroc", "samples_seen", "seconds")
    known = {name for name in measured if any(row[name] for row in rows)}
    differ = {name for name in ("dataset", "rho", "noise", "recipe") if len({row[name] for row in rows}) > 1}
    printed = any(row["published"] for row in rows)
    aurocs = ["–" if row["score_auroc"] is None else f"{row['score_auroc']:.4f}" for row in rows]
    differences = [
        signed(row["unbiased"] - row["published"]["mean"], 2) if row["published"] else "–" for row in rows
    ]  # in points
    conflicting = [[result["rows"].get("conflicting") for result in row["results"]] for row in rows]
    drawn = [", ".join("unknown" if each is None else f"{each:,}" for each in counts) for counts in conflicting]
    columns = [
        ("Method", True, [row["label"] for row in rows]),
        ("Dataset", "dataset" in differ, [row["dataset"] for row in rows]),
        ("rho", "rho" in differ, [share(row["rho"]) for row in rows]),
        ("Noise", "noise" in differ, [share(row["noise"]) for row in rows]),
        ("Recipe", "recipe" in differ, [row["recipe"] for row in rows]),
        *(
            (HEADINGS[each], each in known, [spread(row[each], row[f"{each}_std"]) for row in rows])
            for each in ACCURACIES
        ),
        ("Published", printed, [published(row) or "–" for row in rows]),
        ("Difference", kept_for_good and printed, differences),
        ("Seeds", True, [count(len(row["seeds"])) for row in rows]),
        ("Conflicting in training", kept_for_good, drawn),
        ("AUROC of scores", kept_for_good and "score_auroc" in known, aurocs),
        ("Samples seen", "samples_seen" in known, [count(row["samples_seen"]) for row in rows]),
        ("Time", not kept_for_good and "seconds" in known, [duration(row["seconds"]) for row in rows]),
    ]
    return _wanted(columns)


def _wanted(columns: Sequence[tuple[str, bool, list[str]]]) -> tuple[list[str], list[list[str]]]:
    """Headings and lines of those columns (heading, wanted, cells) that are wanted."""
    shown = [(heading, cells) for heading, wanted, cells in columns if wanted]
    return [heading for heading, _ in shown], [list(line) for line in zip(*(cells for _, cells in shown), strict=True)]


# Markdown


def markdown_table(headings: Sequence[str], rows: Iterable[Sequence[Any]], numbers: bool = True) -> str:
    """The table as Markdown, of floats three digits; `numbers`: all columns but the first are set to the right."""
    lines = [headings, ["---", *["--:" if numbers else "---"] * (len(headings) - 1)], *rows]
    texts = [[f"{cell:.3g}" if isinstance(cell, float) else str(cell) for cell in line] for line in lines]
    return "\n".join(f"| {' | '.join(text.replace('|', '&#124;') for text in line)} |" for line in texts)


# Studies: ours beside published

LARGE = 1e4  # from here on numbers are written with a power of ten
FINE = 1.5  # numbers whose largest is below are shares, which want more digits


def study_table(found: Found) -> tuple[list[str], list[list[str]]]:
    """Headings and cells as text: ours beside published, with the difference."""
    cells = found["cells"]
    several, printed = len({each["place"] for each in cells}) > 1, any(each["published"] is not None for each in cells)
    columns = [
        ("Cell", True, [each["name"] for each in cells]),
        ("Where", several, [each["place"] for each in cells]),
        ("Ours", True, [_value(each, each["mean"], each["std"]) for each in cells]),
        ("Runs", True, [str(each["runs"]) for each in cells]),
        ("Published", printed, [_value(each, each["published"], each["published_std"]) for each in cells]),
        ("Difference", printed, [_study_difference(each) for each in cells]),
    ]
    return _wanted(columns)


def _study_difference(cell: Found) -> str:
    if cell["difference"] is None:
        return "–"
    return signed(cell["difference"], _digits(cell)) + (" s" if cell["metric"] == "seconds" else "")


def _value(cell: Found, mean: float | None, deviation: float | None) -> str:
    """A number as its metric is written: accuracies with two digits, counts whole, times as durations."""
    if mean is None:
        return "–"
    if cell["metric"] in ("samples", "seconds"):
        written = count if cell["metric"] == "samples" else duration
        return written(mean) + ("" if deviation is None else f" ± {written(deviation)}")
    if abs(mean) >= LARGE:
        return f"{mean:.3g}" + ("" if deviation is None else f" ± {deviation:.2g}")
    return spread(mean, deviation, _digits(cell))


def _digits(cell: Found) -> int:
    """Digits after the point."""
    largest = max((abs(each) for each in (cell["mean"], cell["published"]) if each is not None), default=0.0)
    return 0 if cell["metric"] in ("samples", "seconds") or largest >= 1000 else 4 if largest < FINE else 2
