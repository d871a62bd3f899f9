"""From stored results to what a study says: tallies, a verdict, and plain values for screen, page and docs."""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from debiaser.paper.published import table
from debiaser.paper.results import MEASURED_PARTS, Result, examine, measured
from debiaser.paper.settings import SETTINGS
from debiaser.paper.spec import UNSAID, UNSAID_FIELDS, Spec, digest_of
from debiaser.paper.studies.study import NOT_TESTABLE, Cell, Study, Tally, at, read
from debiaser.report.tables import own_data_seed, plural

# --- Finished runs, found by what they are: in a folder of runs, in copies of their results, or in both

SEEDS = ("seed", "data_seed")
STAGES = "stages"  # the folder below a folder of runs that keeps stages for other runs; it holds no results


@dataclass(frozen=True)
class Store:
    """Results by signature (everything but the seed) and seed; `left_out` has a sentence for each that cannot count."""

    results: Mapping[str, Mapping[int, Result]] = field(default_factory=dict)
    folders: Mapping[str, Path] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()

    def of(self, spec: Spec) -> Mapping[int, Result]:
        """The results of this run with any seed."""
        return self.results.get(signature(spec.plain()), {})

    def finished(self, cell: Cell, spec: Spec) -> Result | None:
        """The result of this run, if it has the part that the cell reads or can be given it."""
        result = self.of(spec).get(spec.seed)
        if result is None or cell.part in result or (cell.part in MEASURED_PARTS and MEASURED_PARTS[0] in result):
            return result
        can_be_measured = cell.part == "fisher" and (self.folders.get(spec.key, Path()) / "model.safetensors").is_file()
        return result if can_be_measured else None

    def all(self) -> Iterable[Result]:
        """Every result."""
        return [result for seeds in self.results.values() for result in seeds.values()]


def signature(plain: Mapping[str, Any]) -> str:
    """A spec without its seeds, as text: what runs must share to be averaged."""
    return json.dumps(seedless(plain), sort_keys=True)


def seedless(plain: Mapping[str, Any]) -> dict[str, Any]:
    """A spec without its seeds; a seed of the data stays where it is not the run's, for that is another protocol."""
    dropped = ("seed",) if own_data_seed(plain) else SEEDS
    return {name: value for name, value in plain.items() if name not in dropped}


def gather(runs: Path, copies: Path | None = None) -> Store:
    """The results below a folder of runs, and copies of results by dataset; each run once, a run's own folder first."""
    found: dict[str, dict[int, Result]] = {}
    folders: dict[str, Path] = {}
    left_out: list[str] = []
    for path, key, shown in [*run_files(runs), *copy_files(copies)]:
        try:
            result = checked(path, key)
        except (OSError, ValueError, RecursionError) as error:
            left_out.append(f"{shown} was left out: {reason(error)}.")
            continue
        if path.name == "result.json" and MEASURED_PARTS[0] not in result:  # made before runs kept these parts
            result |= measured(path.parent)
        same = found.setdefault(signature(result["spec"]), {})
        first = same.setdefault(int(result["seed"]), result)
        if path.name == "result.json":
            folders.setdefault(key, path.parent)
        if first["metrics"] != result["metrics"]:
            left_out.append(f"{shown} was left out: the same run is there with other numbers.")
        elif first is not result:
            same[int(result["seed"])] = {**result, **first}  # a copy may know what an old folder does not
    return Store(found, folders, tuple(left_out))


def run_files(runs: Path) -> list[tuple[Path, str, str]]:
    """File, key and name to show of every result at any depth below a folder."""
    found = []
    for name, subfolders, files in os.walk(runs):
        subfolders[:] = sorted(each for each in subfolders if each != STAGES)
        here = Path(name)
        if "result.json" in files:
            found.append((here / "result.json", here.name, (here / "result.json").relative_to(runs).as_posix()))
    return found


def copy_files(copies: Path | None) -> list[tuple[Path, str, str]]:
    """The same for `<dataset>/<key>.json` below a folder of copies."""
    if copies is None:
        return []
    return [
        (path, path.stem, path.relative_to(copies).as_posix())
        for dataset in SETTINGS
        for path in sorted((copies / dataset).glob("*.json"))
    ]


def reason(error: Exception) -> str:
    """Why a file is no result, in a few words and without a path of this machine."""
    if isinstance(error, UnicodeDecodeError):
        return "it is no text"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return f"it cannot be read: {error.strerror}" if isinstance(error, OSError) else str(error)


def checked(path: Path, key: str) -> Result:
    """The result in a file; a ValueError if it is none, or its spec is not the one that its key was made of."""
    result = examine(path, key)
    spec = result["spec"]
    if digest_of(spec) != str(result["key"]).rpartition("-")[2]:
        raise ValueError("its settings are not those that its key was made of")
    if not is_count(result["seed"], 0) or spec.get("seed") != result["seed"]:
        raise ValueError("its seed is none, or not that of its settings")
    recipe = spec.get("recipe")
    if not isinstance(recipe, dict) or recipe.get("name") != result["recipe"] or not is_count(recipe.get("epochs"), 1):
        raise ValueError("its settings have no usable recipe")
    return result


def is_count(value: object, least: int) -> bool:
    """Whether it is a whole number of at least so much."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


Specs = Mapping[str, Mapping[str, Any]]  # plain specs by their signatures


def strangers(store: Store, own: Specs, every: Specs) -> list[str]:
    """A sentence for each result that looks like one of a study's own runs but was made otherwise, and is not averaged.

    `every`: the specs of all studies, whose results have places of their own. A stranger is told in the studies that
    have the run most alike, with what differs.
    """
    said = []
    for text, seeds in store.results.items():
        spec = next(iter(seeds.values()))["spec"]
        if text in every:
            continue
        nearest = min(apart(every, spec), key=len, default=[])
        others = min(apart(own, spec), key=len, default=None)
        if others is None or len(others) > len(nearest):
            continue
        keys = [str(result["key"]) for result in seeds.values()]
        were = "was" if len(keys) == 1 else "were"
        said.append(f"{', '.join(keys)} {were} left out: another protocol ({', '.join(others)}).")
    return said


def apart(specs: Specs, spec: Mapping[str, Any]) -> list[list[str]]:
    """In what a spec differs from each of these that have its dataset, method, rho, noise and recipe's name."""

    def place(each: Mapping[str, Any]) -> list[Any]:
        return [*map(each.get, ("dataset", "method", "rho", "noise")), each["recipe"]["name"]]

    return [differing(each, spec) for each in specs.values() if place(each) == place(spec)]


def differing(usual: Mapping[str, Any], spec: Mapping[str, Any], above: str = "") -> list[str]:
    """`recipe.epochs 1 instead of 10`, for every setting in which two specs differ, the run's seed aside."""
    said = [f"data_seed {spec['data_seed']} with seed {spec['seed']}"] if own_data_seed(spec) else []
    for name in sorted({*usual, *spec} - set(SEEDS)):
        one, other = (each.get(name, (UNSAID | UNSAID_FIELDS).get(name)) for each in (usual, spec))
        if isinstance(one, dict) and isinstance(other, dict):
            said += differing(one, other, f"{above}{name}.")
        elif one != other:
            said.append(f"{above}{name} {other} instead of {one}")
    return said


RECIPES = ("fast", "paper")  # those that every benchmark has


@dataclass(frozen=True)
class Scale:
    """How a study is run: recipe, number of seeds (None: all that are there), epochs per stage if not the recipe's."""

    recipe: str = "fast"
    seeds: int | None = None
    epochs: int | None = None

    def of(self, study: Study) -> range:
        """The seeds of a study: those asked for, but at least as many as it needs."""
        return range(max(self.seeds or 1, study.seeds))


@dataclass(frozen=True)
class Missing:
    """A run that a study lacks."""

    cell: Cell
    spec: Spec
    words: tuple[str, ...]


def tally(study: Study, store: Store, scale: Scale) -> list[Tally]:
    """The cells of a study with what their runs gave."""
    found = []
    for cell in study.cells:
        results = store.of(cell.spec(scale.recipe, 0, scale.epochs))
        seeds = sorted(seed for seed in results if scale.seeds is None or seed in scale.of(study))
        told = [
            (seed, results[seed], value) for seed in seeds if (value := read(results[seed], cell.reads)) is not None
        ]
        values = tuple(value for _, _, value in told)
        found.append(Tally(cell, values, tuple(seed for seed, *_ in told), tuple(result for _, result, _ in told)))
    return found


def missing(studies: Sequence[Study], store: Store, scale: Scale) -> list[Missing]:
    """The runs that are not finished, each once, all cells of a seed before the next seed."""
    found: dict[str, Missing] = {}
    for study in studies:
        for seed in scale.of(study):
            for cell in study.cells:
                spec = cell.spec(scale.recipe, seed, scale.epochs)
                if store.finished(cell, spec) is None:
                    words = tuple(cell.command(scale.recipe, seed, scale.epochs))
                    found.setdefault(spec.key, Missing(cell, spec, words))
    return list(found.values())


@cache
def planned(recipe: str, epochs: int | None) -> dict[str, dict[str, Any]]:
    """The specs of every cell of every study by their signatures."""
    from debiaser.paper.studies import STUDIES

    cells = {cell for study in STUDIES.values() for cell in study.cells}
    return by_signature(cell.spec(recipe, 0, epochs) for cell in cells)


def by_signature(specs: Iterable[Spec]) -> dict[str, dict[str, Any]]:
    """Plain specs by what runs must share to be averaged."""
    return {signature(plain): plain for plain in (spec.plain() for spec in specs)}


def findings(study: Study, store: Store, scale: Scale, wanted: Scale | None = None) -> dict[str, Any]:
    """What a study says, as plain values; `wanted`: at which scale runs that lack are named, if not at its own."""
    tallies = tally(study, store, scale)
    verdict = study.judge(tallies)
    specs = [cell.spec(scale.recipe, 0, scale.epochs) for cell in study.cells]
    own = by_signature(specs)
    others = elsewhere(study, store, scale, tallies)
    told = by_signature(cell.spec(each.recipe, 0, each.epochs) for each in others for cell in study.cells)
    return {
        "study": study.label,
        "title": study.title,
        "ours": study.ours,
        "claim": verdict.claim,
        "statement": study.claim,
        "sentence": verdict.sentence,
        "tested": verdict.tested,
        "scale": scale_in_words(tallies, scale),
        "protocol": protocol(study, tallies, scale),
        "also_printed": also_printed(study),
        "figure": study.figure,
        "cells": [plain_cell(study, each) for each in tallies],
        "histograms": histograms(tallies) if study.figure == "histograms" else [],
        "not_run": [" ".join(each.words) for each in missing([study], store, wanted or scale)],
        "elsewhere": list(others.values()),
        "left_out": strangers(store, own, planned(scale.recipe, scale.epochs) | own | told),
    }


def elsewhere(study: Study, store: Store, scale: Scale, told: Sequence[Tally]) -> dict[Scale, str]:
    """What the claim comes to with another recipe or length, a sentence for each that has runs enough to judge it."""
    said, known = {}, runs_of(told)
    recipes = [each["spec"]["recipe"] for each in store.all() if each["recipe"] in RECIPES]
    for recipe, epochs in sorted({(each["name"], epochs) for each in recipes for epochs in (0, each["epochs"])}):
        other = Scale(recipe, scale.seeds, epochs or None)
        tallies = tally(study, store, other)
        run = {each.cell.place for each in tallies if each}
        whole, here = study.judge(tallies), study.judge([each for each in tallies if each.cell.place in run])
        if whole.claim != NOT_TESTABLE and runs_of(tallies) - known:
            claim = f"{whole.claim} {whole.tested}".rstrip()
            said[other] = f"{scale_in_words(tallies, other)}: {claim}. {here.sentence}"
        known |= runs_of(tallies)
    return said


def runs_of(tallies: Sequence[Tally]) -> set[str]:
    """The keys of the runs behind some cells."""
    return {str(result["key"]) for each in tallies for result in each.results}


def plain_cell(study: Study, tally: Tally) -> dict[str, Any]:
    """A cell as plain values: ours beside published."""
    cell, printed = tally.cell, tally.cell.published(study.label)
    mean = tally.mean if tally else None
    return {
        "name": cell.name,
        "place": at(cell.place),
        "dataset": cell.dataset,
        "method": cell.method,
        "rho": cell.rho,
        "noise": cell.noise,
        "settings": list(cell.changes),
        "metric": cell.metric,
        "reads": cell.reads,
        "mean": mean,
        "std": tally.deviation,
        "runs": len(tally.values),
        "seeds": list(tally.seeds),
        "values": list(tally.values),
        "published": printed.mean if printed else None,
        "published_std": printed.std if printed else None,
        "difference": mean - printed.mean if mean is not None and printed and printed.mean is not None else None,
        "note": printed.note if printed else "",
    }


def also_printed(study: Study) -> list[str]:
    """What the paper prints under this label that stands beside no cell: differences, p-values, shares of time."""
    beside = [cell.published(study.label) for cell in study.cells]
    rest = [each for each in table(study.label) if each.mean is not None and each not in beside]
    here = {(cell.dataset, cell.rho) for cell in study.cells}
    return [
        f"{each.metric.replace('_', ' ')} of {each.method} {each.variant}".rstrip()
        + ("" if each.rho is None else f" at rho {each.rho * 100:.3g}%")
        + f": {each.mean:g}"
        for each in rest
        if (each.dataset, each.rho) in here
    ]


def histograms(tallies: Sequence[Tally]) -> list[dict[str, Any]]:
    """The histogram of the lowest seed at each place."""
    found: dict[str, dict[str, Any]] = {}
    for tally in tallies:
        for seed, result in zip(tally.seeds, tally.results, strict=True):
            if result.get("histogram"):
                found.setdefault(at(tally.cell.place), {"seed": seed, **result["histogram"]})
    return [{"place": place, **each} for place, each in found.items()]


def scale_in_words(tallies: Sequence[Tally], scale: Scale) -> str:
    """`recipe fast, 1,080,000 samples seen a run, 1 to 3 runs a cell`."""
    counts = sorted({len(each.values) for each in tallies if each})
    seen = sorted({int(result["samples_seen"]) for each in tallies for result in each.results})
    words = [f"recipe {scale.recipe}{shortened(scale)}"]
    words += [f"{between(seen)} training samples seen a run"] if seen else []
    words += [f"{between(counts)} run{'s' if counts[-1] > 1 else ''} a cell"] if counts else ["no runs"]
    return ", ".join(words)


def shortened(scale: Scale) -> str:
    """` with 1 epoch a stage`, where that is asked for."""
    return f" with {plural(scale.epochs, 'epoch')} a stage" if scale.epochs else ""


def between(numbers: Sequence[int]) -> str:
    """`3`, or `1 to 3`."""
    low, high = f"{numbers[0]:,}", f"{numbers[-1]:,}"
    return low if low == high else f"{low} to {high}"


AVERAGES = {
    "unbiased": "accuracy in percent over all test rows",
    "group_average": "mean accuracy over the groups in percent",
    "worst_group": "accuracy in percent on the worst group",
    "seconds": "seconds of wall time",
    "samples": "number of training rows",
    "fisher_trace": "trace of the damped inverse",
    "norm": "gradient norm over the largest gradient norm, as a mean over training rows of a kind",
    "auroc": "AUROC: how often, of two training rows, the conflicting one has the larger norm (from 0 to 1)",
}


def protocol(study: Study, tallies: Sequence[Tally], scale: Scale) -> str:
    """Recipe, selection rule, what the numbers are, and what the study itself has to say."""
    metrics = list(dict.fromkeys(AVERAGES.get(each.cell.metric, each.cell.metric) for each in tallies))
    rule = "the model after the last epoch (D6)" if study.label != "selection" else "the epoch that each rule chooses"
    numbers = f"Numbers are {', '.join(metrics)}: mean ± sample standard deviation over seeds"
    data = "where we put the bias in, the data is drawn anew for each seed"
    return f"Recipe `{scale.recipe}`{shortened(scale)}; {rule}. {numbers}; {data}. {study.protocol}".strip()


ONE_STAGE = ("vanilla", "lff", "disen")
TWO_STAGES = {"pgd": ("biased", "debiased"), "jtt": ("identification", "final")}


def epochs_of(spec: Spec) -> int:
    """How often a run goes through the training rows, over all stages."""
    recipe = spec.recipe
    if spec.method in ONE_STAGE:
        return recipe.of_stage(spec.method, float(spec.fields.get("length", 1)) * recipe.single_stage).epochs
    first, second = TWO_STAGES.get(spec.method, ("reference", "debiased"))
    return recipe.of_stage(first).epochs + recipe.of_stage(second).epochs


def expected_seconds(spec: Spec, results: Sequence[Result]) -> float | None:
    """How long a run may take, by the median pace of past runs: of its method on its dataset, else of any there."""
    there = [each for each in results if each["dataset"] == spec.dataset and each["samples_seen"]]
    alike = [each for each in there if each["method"] == spec.method] or there
    if not alike:
        return None
    paces = sorted(sum(each["seconds"].values()) / each["samples_seen"] for each in alike)
    rows = alike[0]["rows"].get("train") or 0
    return float(paces[len(paces) // 2] * epochs_of(spec) * rows)
