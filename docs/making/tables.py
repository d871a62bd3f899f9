"""The tables in README and docs, made from `results/`: no number in a document is typed by hand.

`python docs/making/tables.py` renews them; `--collect RUNS_DIR` first copies finished results into `results/`;
with `--check` it writes nothing and fails if a document is not up to date. A table stands between two marks:
`<!-- results: cmnist -->` and `<!-- end of results -->`; after the dataset may come `method=pgd`, to show only these,
and `usual`, to show no runs with fields changed. A file in place of a dataset (`search/bpa_clusters.json`) is shown as
its "rows" are; `theory` is the table of verdicts; `speed` is what `debiaser bench` measured; `studies` is what every
study says, `studies summary` a line of each.
"""

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from debiaser.errors import Problem
from debiaser.io import folder_name, write_json, write_text
from debiaser.methods import METHODS
from debiaser.paper.spec import new_spec
from debiaser.paper.studies import STUDIES
from debiaser.paper.studies.findings import Scale, findings, gather
from debiaser.report.figures import times
from debiaser.report.runs import Result
from debiaser.report.speed import bound, facts, short
from debiaser.report.tables import markdown_table, plural, spread, study_table, summary_rows, text_table, with_interval

SEEDS = 3  # that every study should have, but those that need more
NOT_RUN = "*Not run yet.*\n"
MARKS = {"held": "held", "not held": "**not held**", "not testable": "not testable here"}
MARK = re.compile(r"(<!-- results: (?P<what>[^>]*?) -->\n).*?(<!-- end of results -->)", re.DOTALL)


def collect(runs: Path, results: Path) -> None:
    """Copy the finished runs below a folder to `results/<dataset>/<key>.json`.

    What was measured after a run and stands in its copy stays there, if the model is the same.
    """
    kept = {result["key"]: result for result in gather(results).all()}
    for result in gather(runs).all():
        before = kept.get(result["key"], {"metrics": None})
        whole = {**(before if before["metrics"] == result["metrics"] else {}), **result}
        del whole["folder"]
        write_json(results / result["dataset"] / f"{result['key']}.json", whole)


def table(results: Path, what: str) -> str:
    """The table for a mark: `dataset [usual] [name=value]`, a file, `own`, `regret`, `theory`, `speed`, `studies`."""
    files = {"theory": results / "theory.json", "speed": results.parent / "benchmarks" / "results" / "speed.json"}
    if what in files:
        found: Any = json.loads(files[what].read_text()) if files[what].exists() else {"quick": True}
        if found.get("quick"):  # tiny inputs are no measurement
            return NOT_RUN
        return (speed_table(found) if what == "speed" else theory_table(found["statements"])) + "\n"
    dataset, *filters = what.split()
    made: dict[str, Callable[..., str]] = {"headline": headline_table, "studies": studies, "detection": detection}
    made["fix"] = lambda results, kind="marks": FIX_TABLES[kind](results)
    if dataset in made:
        return made[dataset](results, *filters) + "\n"
    if dataset in {"own", "regret"}:
        old, new = "named property exchanged", CANDIDATES["counterfactual copies"]  # what a candidate was called before
        texts = {path.stem: path.read_text().replace(old, new) for path in sorted((results / "own").glob("*.json"))}
        own = {name: json.loads(text) for name, text in texts.items()}
        if dataset == "own":
            return record_markdown([own_row(*each) for each in own.items()]) + "\n"
        return record_markdown([regret_row(*each) for each in own.items() if "regret" in each[1]]) + "\n"
    if dataset.endswith(".json"):
        path = results / dataset
        return record_markdown(json.loads(path.read_text())["rows"]) + "\n" if path.exists() else NOT_RUN
    store = gather(results / dataset)
    found = list(store.all())
    for condition in filters:
        name, _, value = condition.partition("=")
        if name == "usual":
            found = [result for result in found if is_usual(result)]
            continue
        found = [each for each in found if str(each.get(name, each["spec"]["fields"].get(name))) == value]
    rows = markdown_table(*text_table(summary_rows(found), kept_for_good=True)) if found else NOT_RUN.rstrip()
    return "\n\n".join([rows, *(f"*Left out*: {each}" for each in store.left_out)]) + "\n"


def headline_table(results: Path) -> str:
    """Colored MNIST at the paper's three shares of conflicting images: vanilla and PGD here, PGD as published."""
    usual = [each for each in gather(results / "cmnist").all() if is_usual(each) and each["recipe"] == "fast"]
    rows = []
    for rho in (0.005, 0.01, 0.05):
        told = {row["method"]: row for row in summary_rows([each for each in usual if each["rho"] == rho])}
        ours = [spread(told[name]["unbiased"], told[name]["unbiased_std"]) for name in ("vanilla", "pgd")]
        published = told["pgd"]["published"]
        rows.append((f"{rho:.1%}", *ours, spread(published["mean"], published["std"]), str(len(told["pgd"]["seeds"]))))
    return markdown_table(("against the shortcut", "vanilla", "PGD", "PGD, published", "seeds of PGD"), rows)


def detection(results: Path) -> str:
    """How often an audit found a shortcut that was there, and one that was not; and how long it takes."""
    rows = json.loads((results / "verdict" / "bank.json").read_text())["rows"]
    biased = [row for row in rows if row["sets"].startswith("coloured digits")]
    (even,) = [row for row in rows if row["sets"] == "all without a shortcut"]
    named, there = (sum(row[key] for row in biased) for key in ("colour named", "number"))
    timed = json.loads((results / "first_run.json").read_text())
    first, again = (
        f"{row['seconds'] / 60:.0f} minutes" if row["seconds"] > 90 else f"{row['seconds']:.0f} seconds"
        for row in timed["rows"]
    )
    return (
        f"`audit` named the colour in {named} of {there} sets of digits with a colour shortcut, and called "
        f"{even['biased']} of {even['number']} sets without a shortcut\nbiased; it often says *cannot tell*, and asks "
        f"for marks. `debias` takes {first} for {timed['images']:,} photographs on two cores,\nand {again} when you "
        "rerun it with new marks; images of up to 64 pixels train networks from scratch and take longer."
    )


def is_usual(result: Result) -> bool:
    """Whether a run has no fields, noise, epochs or network but those of the settings."""
    if result["method"] not in METHODS:
        return False  # a method of one's own
    spec = new_spec(result["dataset"], result["method"], result["rho"], result["recipe"], seed=result["seed"])
    return bool(spec.key == result["key"])


def studies(results: Path, short: str = "") -> str:
    """What every study says of all results at the recipe `fast`, and which of three seeds lack; or a line of each."""
    store = gather(results)
    found = [findings(each, store, Scale("fast"), Scale("fast", SEEDS)) for each in STUDIES.values()]
    if short:
        return studies_summary(found)
    left_out = [f"*Left out*: {each}" for each in store.left_out]
    return "\n\n".join([studies_summary(found), *left_out, *(study_markdown(each) for each in found)])


def study_markdown(found: Mapping[str, Any]) -> str:
    """A section of the docs: the claim, whether it held and at which scale, the table, what is not run."""
    parts = [
        f"### `{found['study']}`: {found['title']}",
        f"*Claim*: {found['statement']}",
        f"*Here*: {verdict(found)} ({found['scale']}). {found['sentence']}",
        markdown_table(*study_table(found)),
        f"*Protocol*: {found['protocol']}",
    ]
    notes = list(dict.fromkeys(each["note"] for each in found["cells"] if each["note"]))
    if notes:
        parts.append("*On the published numbers*: " + "; ".join(notes) + ".")
    if found["also_printed"]:
        parts.append("*Also in the paper*: " + "; ".join(found["also_printed"]) + ".")
    if found["not_run"]:
        told = f"Not run: {plural(len(found['not_run']), 'run')}"
        parts.append(f"{told}; `debiaser study {found['study']} --commands` lists them.")
    return "\n\n".join(parts)


def verdict(found: Mapping[str, Any]) -> str:
    """`held`, `held in 3 of 9 places`, `not testable here`."""
    return f"{MARKS[found['claim']]} {found['tested']}".strip()


def studies_summary(every: Sequence[Mapping[str, Any]]) -> str:
    """A table of all studies with their verdicts."""
    rows = [[f"`{each['study']}`", each["title"], verdict(each), each["scale"]] for each in every]
    return markdown_table(["Study", "Subject", "Claim", "Scale"], rows, numbers=False)


def record_markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """A record of measurements, a list of rows with named cells: one line per row, under the names of the first."""
    return markdown_table(list(rows[0]), ([row[name] for name in rows[0]] for row in rows), numbers=False)


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
        "average precision of p_conflicting": found.get("average_precision", {}).get("p_conflicting", "–"),
        "chosen": found.get("regret", {}).get("chosen", "–"),
        **{f"{each}, %": everyone.get(full, "–") for each, full in CANDIDATES.items()},
        "compared candidate minus vanilla": f"{compared} ({rival})" if compared else "–",
        "minutes, on an idle machine": found["seconds"] / 60 if found["seconds"] else "–",
    }


def regret_row(name: str, found: Mapping[str, Any]) -> dict[str, Any]:
    """What the choice without bias labels lost against the candidate that was best on the held-out samples."""
    regret = found["regret"]
    chosen, oracle, everyone = regret["chosen"], regret["oracle"], regret["overall"]
    return {
        "data": name.removesuffix("_debias"),
        "vanilla, %": everyone[CANDIDATES["vanilla"]],
        "chosen": chosen,
        "its accuracy, %": everyone[chosen],
        "best candidate (oracle)": oracle,
        "accuracy of the best, %": everyone[oracle],
        "regret, points": f"{regret['points']:.1f}",
    }


# What `benchmarks/fix.py` measured, by set, as means over draws


def fix_means(
    results: Path, row_of: Callable[[Mapping[str, Any]], dict[str, float]], shortcut: bool = True
) -> dict[str, tuple[int, dict[str, float]]]:
    """By set with (or without) a shortcut: how many draws there are, and the mean of what they give for a row."""
    sets = dict[str, list[dict[str, float]]]()
    for path in sorted((results / "fix").glob("*.json")):
        found = json.loads(path.read_text())
        if found["shortcut"] == shortcut:
            stages = {str(each["stage"]): each for each in found["stages"]}
            sets.setdefault(found["set"].replace("_", " "), []).append(row_of(stages))
    return {
        name: (len(draws), {each: sum(draw[each] for draw in draws) / len(draws) for each in draws[0]})
        for name, draws in sets.items()
    }


def means_table(means: Mapping[str, tuple[int, dict[str, float]]]) -> str:
    """A line for every set."""
    rows = [(name, str(draws), *(f"{each:.1f}" for each in mean.values())) for name, (draws, mean) in means.items()]
    if not rows:
        return NOT_RUN.rstrip()
    (_, columns), *_ = means.values()
    return markdown_table(("set", "draws", *columns), rows)


def marks_table(results: Path) -> str:
    """What marks bring in the worst group, and how much of the gap between vanilla and all group labels they close."""
    rows, shares = [], list[list[float]]()
    for name, (draws, mean) in fix_means(results, marked_row).items():
        gap = mean["all group labels"] - mean["vanilla"]
        won = [mean[marks] - mean["vanilla"] for marks in ("60 marks", "120 marks")]
        closed = [100 * each / gap for each in won] if gap >= GAP else []
        shares += [closed] if closed else []
        rows.append((name, str(draws), *(f"{value:.1f}" for value in mean.values()), percents(closed) or "–"))
    if not rows:
        return NOT_RUN.rstrip()
    if shares:
        middle = percents([sum(each) / len(shares) for each in zip(*shares, strict=True)])
        rows.append((f"mean of {len(shares)} sets", *[""] * (len(mean) + 1), middle))
    return markdown_table(("set", "draws", *mean, "gap closed"), rows)


def short_marks_table(results: Path) -> str:
    """The same for the README, of sets with a gap to close, and what 60 marks add to the mean of all groups."""
    means, averages = (fix_means(results, row) for row in (marked_row, average_row))
    rows = [
        (SHORTCUTS.get(name, name), *(f"{row[each]:.0f}" for each in SHORT), f"{averages[name][1]['change']:+.0f}")
        for name, (_, row) in means.items()
        if row["all group labels"] - row["vanilla"] >= GAP
    ]
    return markdown_table(("dataset (shortcut)", *SHORT, "mean of all groups"), rows)


def percents(values: Iterable[float]) -> str:
    """`60% / 75%`."""
    return " / ".join(f"{value:.0f}%" for value in values)


GAP = 3.0  # points between vanilla and all group labels, below which there is nothing to close
SHORT = ("vanilla", "exported, no marks", "60 marks", "all group labels")  # what the README shows of each set
SHORTCUTS = {  # what it calls them
    "celeba attractive": "CelebA, attractive (gender)",
    "celeba blond": "CelebA, blond hair (gender)",
    "celeba smiling": "CelebA, smiling (gender)",
    "fairface age": "FairFace, age (gender)",
    "reviews sentence": "film reviews (an added sentence)",
    "waterbirds": "Waterbirds (background)",
}


def marked_row(stages: Mapping[str, Any]) -> dict[str, float]:
    """The accuracy of exported models in the worst group."""
    worst = {name: stage["test"]["model"]["worst"] for name, stage in stages.items()}
    names = {"exported, no marks": "none", "60 marks": "60", "120 marks": "120", "all group labels": "all"}
    vanilla = {"vanilla": stages["none"]["test"]["vanilla-class-balanced"]["worst"]}
    return vanilla | {name: worst[stage] for name, stage in names.items()}


def average_row(stages: Mapping[str, Any]) -> dict[str, float]:
    """What the model exported after 60 marks adds to the mean accuracy over class x group."""
    return {"change": stages["60"]["test"]["model"]["mean"] - stages["60"]["test"]["vanilla-class-balanced"]["mean"]}


def even_row(stages: Mapping[str, Any]) -> dict[str, float]:
    """The accuracy of vanilla, and what the exported model adds to it, overall and in the worst class."""
    exported, vanilla = (stages["none"]["test"][name] for name in ("model", "vanilla-class-balanced"))
    measures = {"overall": "overall", "worst class": "worst_class"}
    return {f"vanilla, {name}": vanilla[key] for name, key in measures.items()} | {
        f"exported minus vanilla, {name}": exported[key] - vanilla[key] for name, key in measures.items()
    }


def regrets(stages: Mapping[str, Any]) -> dict[str, float]:
    """By rule, how far its choice is below the best candidate of all in the worst group of the test set."""
    none, marked = stages["none"], stages["60"]
    worst = {name: each["worst"] for name, each in marked["test"].items()}
    best = max(worst.values())
    picked = {
        rule: worst[folder_name(max(none["selection"]["candidates"], key=lambda row: row[key])["name"])]
        for rule, key in (("accuracy", "overall"), ("worst class", "worst_class"), ("mean cell", "mean_cell"))
    }
    picked |= {"null world": none["test"]["model"]["worst"], "60 marks": worst["model"]}
    return {"oracle": best} | {f"regret: {rule}": best - value for rule, value in picked.items()}


FIX_TABLES: dict[str, Callable[[Path], str]] = {
    "marks": marks_table,
    "short": short_marks_table,
    "even": lambda results: means_table(fix_means(results, even_row, shortcut=False)),
    "regret": lambda results: means_table(fix_means(results, regrets)),
}

# by what the table calls them
CANDIDATES = {
    "vanilla": "vanilla (class-balanced)",
    "counterfactual copies": "counterfactual copies",
    "PGD, half of the draws by score": "PGD, 50% of draws by score",
    "PGD, all draws by score": "PGD, 100% of draws by score",
    "PGD, three quarters by score, counterfactual copies": "PGD, 75% of draws by score, counterfactual copies",
}


def speed_table(found: Mapping[str, Any]) -> str:
    """Every alternative of every claim as a line, and the machine."""
    rows = [speed_row(claim, way) for claim in found["claims"] for way in claim["ratios"]]
    parts = [record_markdown(rows)] if rows else []
    parts += [sentence for claim in found["claims"] if (sentence := bound(claim))]
    return "\n\n".join([*parts, f"Measured on: {facts(found['environment'])}."])


def speed_row(claim: Mapping[str, Any], way: str) -> dict[str, str]:
    """One alternative: how many times as long it takes, or ours over it where that is bounded, and both memories."""
    spread, memory = claim["ratios"][way], claim["peak_mb"]
    peaks = [f"{memory[each]:,.0f}" if each in memory else "–" for each in ("ours", way)]
    return {
        "Task": claim["title"],
        "Compared with": way,
        "Its time / ours": times(spread["median"]) + (" (ours / its)" if claim["at_most"] else ""),
        "Range": f"{times(spread['low'])} to {times(spread['high'])}",
        "Our time": short(claim["seconds"]["ours"]),
        "Peak memory, MB (ours – its)": " – ".join(peaks) if memory else "–",
    }


def theory_table(statements: Iterable[Mapping[str, str]]) -> str:
    """A row per statement of the paper's theory, from what `debiaser theory --json` printed."""
    rows = [(f"*{each['name']}*: {each['claim']}", f"**{each['verdict']}**", each["found"]) for each in statements]
    return markdown_table(("Statement", "Verdict", "Found"), rows, numbers=False)


def renew(text: str, results: Path) -> str:
    """The document with every marked table made anew."""
    return MARK.sub(lambda mark: f"{mark[1]}\n{table(results, mark['what'])}\n{mark[3]}", text)


def documents(root: Path) -> Iterable[Path]:
    """The documents that may hold tables."""
    return [root / "README.md", *sorted((root / "docs").rglob("*.md"))]


def main(arguments: list[str]) -> None:
    """Renew, or check, all documents of the checkout that is the current folder."""
    parser = argparse.ArgumentParser(prog="python docs/making/tables.py")
    parser.add_argument("--collect", type=Path)
    parser.add_argument("--check", action="store_true")
    chosen, root = parser.parse_args(arguments), Path.cwd()
    if chosen.collect:
        collect(chosen.collect, root / "results")
    stale = []
    for path in documents(root):
        text = path.read_text()
        renewed = renew(text, root / "results")
        if renewed != text:
            stale.append(str(path.relative_to(root)))
            if not chosen.check:
                write_text(path, renewed)
    if stale and chosen.check:
        raise Problem(f"tables are not up to date in {', '.join(stale)}: run `make results`")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except Problem as problem:
        sys.exit(str(problem))
