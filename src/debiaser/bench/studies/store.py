"""Finished runs, found by what they are: in a folder of runs, in copies of their results, or in both."""

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from debiaser.bench.measures import PARTS, measured
from debiaser.bench.results import Result, examine
from debiaser.bench.settings import SETTINGS
from debiaser.bench.spec import UNSAID, UNSAID_FIELDS, Spec, digest_of
from debiaser.bench.studies.study import Cell
from debiaser.report.tables import own_data_seed

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
        if result is None or cell.part in result or (cell.part in PARTS and PARTS[0] in result):
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
        if path.name == "result.json" and PARTS[0] not in result:  # made before runs kept these parts
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
