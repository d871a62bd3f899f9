"""Studies at work: which results count, which runs are missing, making them, and what a study says in plain values."""

import json
import os
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from debiaser.errors import Problem
from debiaser.io import UNREADABLE, python, read_arrays, surroundings, write_json
from debiaser.learn.recipe import Recipe
from debiaser.paper.results import problem_with, table
from debiaser.paper.settings import SETTINGS
from debiaser.paper.spec import Spec
from debiaser.paper.studies.definitions import DAMPINGS
from debiaser.paper.studies.study import Cell, Study, Tally, at
from debiaser.report.runs import Found, Result, survey
from debiaser.report.tables import own_data_seed, plural

RECIPES = ("fast", "paper")  # those that every benchmark has


@dataclass(frozen=True)
class Store:
    """Results by signature (everything but the seed) and seed; `left_out` has a sentence for each that cannot count."""

    results: Mapping[str, Mapping[int, Result]] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()

    def of(self, spec: Spec) -> Mapping[int, Result]:
        """The results of this run with any seed."""
        return self.results.get(signature(spec.plain()), {})

    def all(self) -> Iterable[Result]:
        """Every result."""
        return [result for seeds in self.results.values() for result in seeds.values()]


def signature(plain: Mapping[str, Any]) -> str:
    """A spec without its seeds, as text: what runs must share to be averaged.

    A seed of the data stays where it is not the run's, for that is another protocol.
    """
    dropped = ("seed",) if own_data_seed(plain) else ("seed", "data_seed")
    return json.dumps({name: value for name, value in plain.items() if name not in dropped}, sort_keys=True)


def gather(*places: Path | Found | None) -> Store:
    """The results that count below folders of runs or of copies, or found before; each run once, from the first."""
    found = [survey(each) if isinstance(each, Path) else each for each in places if each is not None]
    results: dict[str, dict[int, Result]] = {}
    left_out = [sentence for each in found for sentence in each.left_out]
    for result in (result for each in found for result in each.results):
        name = result["folder"].name
        if wrong := problem_with(result):
            left_out.append(f"{name} was left out: {wrong}.")
            continue
        same = results.setdefault(signature(result["spec"]), {})
        first = same.setdefault(result["seed"], result)
        if first["metrics"] != result["metrics"]:
            left_out.append(f"{name} was left out: the same run is there with other numbers.")
        else:
            same[result["seed"]] = {**result, **first}  # a copy may have what was measured after the run
    return Store(results, tuple(left_out))


@dataclass(frozen=True)
class Scale:
    """How a study is run: recipe, number of seeds (None: all that are there), epochs per stage if not the recipe's."""

    recipe: str = "fast"
    seeds: int | None = None
    epochs: int | None = None

    def of(self, study: Study) -> range:
        """The seeds of a study: those asked for, but at least as many as it needs."""
        return range(max(self.seeds or 1, study.seeds))

    def spec(self, cell: Cell, seed: int) -> Spec:
        """The run of a cell with this seed."""
        return cell.spec(self.recipe, seed, self.epochs)

    @property
    def shortened(self) -> str:
        """` with 1 epoch a stage`, where that is asked for."""
        return f" with {plural(self.epochs, 'epoch')} a stage" if self.epochs else ""


@dataclass(frozen=True)
class Missing:
    """A run that a study lacks, and the words of the command that makes it, without folders."""

    cell: Cell
    spec: Spec
    words: tuple[str, ...]


def missing(studies: Sequence[Study], store: Store, scale: Scale) -> list[Missing]:
    """The runs that are not finished, each once, all cells of a seed before the next seed."""
    found: dict[str, Missing] = {}
    for study in studies:
        for seed in scale.of(study):
            for cell in study.cells:
                spec = scale.spec(cell, seed)
                result = store.of(spec).get(seed)
                if result is None or (lacks_fisher(cell, result) and not has_model(result)):
                    words = tuple(cell.command(scale.recipe, seed, scale.epochs))
                    found.setdefault(spec.key, Missing(cell, spec, words))
    return list(found.values())


def lacks_fisher(cell: Cell, result: Result) -> bool:
    """Whether the cell reads the Fisher information, which is measured after a run, and the result has none yet."""
    return cell.reads.startswith("fisher.") and "fisher" not in result


def has_model(result: Result) -> bool:
    """Whether the run's folder is here with its model, so that more can be measured."""
    return Path(result["folder"], "model.safetensors").is_file()


def expected_seconds(spec: Spec, results: Iterable[Result]) -> float | None:
    """How long a run may take, by the median pace of past runs: of its method on its dataset, else of any there."""

    def length(plain: Mapping[str, Any]) -> float:
        return float(plain["recipe"]["epochs"] * plain["fields"].get("length", 1))

    there = [each for each in results if each["dataset"] == spec.dataset]
    alike = [each for each in there if each["method"] == spec.method] or there
    if not alike:
        return None
    pace: float = median(sum(each["seconds"].values()) / length(each["spec"]) for each in alike)
    return pace * length(spec.plain())


@dataclass(frozen=True)
class Failure:
    """A run that could not be made or measured, and why, in one line."""

    key: str
    reason: str


def make_runs(
    runs: Sequence[Missing],
    command: Callable[[Missing], list[str]],
    workers: int = 1,
    told: Callable[[Missing, str], None] = lambda _run, _line: None,
    ended: Callable[[Missing, Failure | None], None] = lambda _run, _failure: None,
) -> list[Failure]:
    """Make runs, each a process of its own, so many at once; where one fails the rest goes on. What failed comes back.

    `told` hears every line that a process says on standard error, `ended` of each run as it ends.
    """
    live: set[subprocess.Popen[str]] = set()
    share = str(max(1, cores() // workers))  # the processors are divided among workers; one keeps what is set
    threads = {"OMP_NUM_THREADS": share, "MKL_NUM_THREADS": share} if workers > 1 else {}

    def make(run: Missing) -> Failure | None:
        said = ""
        with subprocess.Popen(  # noqa: S603 (our own command)
            python("-m", "debiaser", *command(run)),
            env=surroundings(**threads),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            process_group=0,  # Ctrl-C in a terminal is for us alone; we end them
        ) as process:
            live.add(process)
            for line in process.stderr or ():
                if line.strip():
                    said = line.strip()
                    told(run, said)
        live.discard(process)
        if process.returncode == 0:
            return None
        reason = said.removeprefix("debiaser: ") or "it said nothing"
        killed = process.returncode < 0  # then it could say nothing of that
        return Failure(run.spec.key, f"signal {-process.returncode} ended it" if killed else reason)

    failures = []
    with ThreadPoolExecutor(workers) as pool:
        work = {pool.submit(make, run): run for run in runs}
        try:
            for done in as_completed(work):
                failure = done.result()
                ended(work[done], failure)
                failures += [failure] if failure else []
        except BaseException:  # we are interrupted: what the processes did so far is kept
            pool.shutdown(wait=False, cancel_futures=True)
            for process in list(live):
                process.terminate()
            raise
    return failures


def cores() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def add_fishers(
    studies: Sequence[Study], store: Store, scale: Scale, data: Path | None, say: Callable[[str], None]
) -> list[Failure]:
    """Give finished runs the Fisher information that studies read, at the model they kept; failures come back."""
    wanted = {
        result["key"]: result
        for study in studies
        for cell in study.cells
        for seed in scale.of(study)
        if (result := store.of(scale.spec(cell, seed)).get(seed)) and lacks_fisher(cell, result) and has_model(result)
    }
    failures = []
    for key, result in wanted.items():
        say(f"the inverse Fisher information of {key}")
        try:
            add_fisher(result["folder"], result, data)
        except Problem as problem:
            failures.append(Failure(key, str(problem)))
    return failures


def add_fisher(folder: Path, result: Result, data: Path | None = None) -> Result:
    """The result with a part `fisher`, which is also written to the run's folder.

    Each training sample counts as often as the method drew it: h(x) of PGD, all alike for Vanilla (the paper's figure
    `invq_compare`). The last layer's matrix is singular, so the inverse is damped, by the same numbers always (D37).
    """
    import safetensors
    import torch

    from debiaser.learn.checkpoint import read_tensors
    from debiaser.learn.forward import look
    from debiaser.learn.nets import new_net, normalised
    from debiaser.paper.experiment import EVALUATION_BATCH, load
    from debiaser.paper.theory.fisher import head_fisher, inverse_trace

    plain = {name: value for name, value in result["spec"].items() if name != "protocol"}
    spec = Spec(**{**plain, "recipe": Recipe(**plain["recipe"])})
    benchmark = load(spec, data)
    net = normalised(new_net(spec.net, len(benchmark.classes), 0), SETTINGS[spec.dataset].normalise)
    try:
        net.load_state_dict(read_tensors(folder / "model.safetensors").tensors)
        weights = torch.from_numpy(read_arrays(folder / "vectors.npz")["probability"])
    except (*UNREADABLE, safetensors.SafetensorError) as error:
        raise Problem(f"the files in {folder} are damaged ({error}); remove that folder and run it again") from error
    fisher = head_fisher(look(net, benchmark.train.batches(EVALUATION_BATCH)), weights)
    traces = {damping: inverse_trace(fisher, float(damping)) for damping in DAMPINGS}
    result = {**result, "fisher": {**traces, "pseudo": inverse_trace(fisher), "mean": fisher.mean_eigenvalue}}
    write_json(folder / "result.json", {name: value for name, value in result.items() if name != "folder"})
    return result


def tally(study: Study, store: Store, scale: Scale) -> list[Tally]:
    """The cells of a study with what their runs gave."""
    found = []
    for cell in study.cells:
        results = store.of(scale.spec(cell, 0))
        seeds = sorted(seed for seed in results if scale.seeds is None or seed in scale.of(study))
        values = {seed: value for seed in seeds if (value := cell.read(results[seed])) is not None}
        found.append(Tally(cell, tuple(values.values()), tuple(values), tuple(results[seed] for seed in values)))
    return found


def findings(study: Study, store: Store, scale: Scale, wanted: Scale | None = None) -> dict[str, Any]:
    """What a study says, as plain values; `wanted`: at which scale runs that lack are named, if not at its own."""
    tallies = tally(study, store, scale)
    verdict = study.judge(tallies)
    return {
        **{name: getattr(study, name) for name in ("title", "ours", "figure")},
        "study": study.label,
        "claim": verdict.claim,
        "statement": study.claim,
        "sentence": verdict.sentence,
        "tested": verdict.tested,
        "scale": scale_in_words(tallies, scale),
        "protocol": protocol(study, scale),
        "also_printed": also_printed(study),
        "cells": [plain_cell(study, each) for each in tallies],
        "histograms": histograms(tallies) if study.figure == "histograms" else [],
        "not_run": [" ".join(each.words) for each in missing([study], store, wanted or scale)],
    }


def plain_cell(study: Study, tally: Tally) -> dict[str, Any]:
    """A cell as plain values: ours beside published."""
    cell, printed = tally.cell, tally.cell.published(study.label)
    mean = tally.mean if tally else None
    return {
        **{name: getattr(cell, name) for name in ("name", "dataset", "method", "rho", "noise", "metric", "reads")},
        "place": at(cell.place),
        "settings": list(cell.changes),
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
    here = {(cell.dataset, cell.rho) for cell in study.cells}
    return [
        f"{f'{each.method} {each.variant}'.rstrip()}, {each.metric.replace('_', ' ')}"
        + ("" if each.rho is None else f" at rho {each.rho * 100:.3g}%")
        + f": {each.mean:g}"
        for each in table(study.label)
        if each.mean is not None and each not in beside and (each.dataset, each.rho) in here
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
    """`recipe fast, 1,080,000 training samples seen per run, 1 to 3 runs per cell`."""

    def between(numbers: Sequence[int]) -> str:
        low, high = f"{numbers[0]:,}", f"{numbers[-1]:,}"
        return low if low == high else f"{low} to {high}"

    counts = sorted({len(each.values) for each in tallies if each})
    seen = sorted({int(result["samples_seen"]) for each in tallies for result in each.results})
    words = [f"recipe {scale.recipe}{scale.shortened}"]
    words += [f"{between(seen)} training samples seen per run"] if seen else []
    words += [f"{between(counts)} run{'s' if counts[-1] > 1 else ''} per cell"] if counts else ["no runs"]
    return ", ".join(words)


AVERAGES = {
    "unbiased": "accuracy in percent over all test samples",
    "group_average": "mean accuracy over the groups in percent",
    "worst_group": "accuracy in percent on the worst group",
    "seconds": "seconds of wall time",
    "samples": "number of training samples",
    "fisher_trace": "trace of the damped inverse",
    "drawn": "share of draws that went to conflicting training samples (from 0 to 1)",
    "norm": "gradient norm divided by the largest, averaged over the training samples of a kind",
    "auroc": "AUROC: the probability that a conflicting training sample has a larger norm than an aligned one",
}


def protocol(study: Study, scale: Scale) -> str:
    """Recipe, selection rule, what the numbers are, and what the study itself has to say."""
    metrics = list(dict.fromkeys(AVERAGES.get(cell.metric, cell.metric) for cell in study.cells))
    rule = "the model after the last epoch (D6)" if study.label != "selection" else "the epoch that each rule chooses"
    numbers = f"Numbers ({'; '.join(metrics)}) are means ± sample standard deviations over seeds"
    data = "where we inject the bias, the data is redrawn for each seed"
    return f"Recipe `{scale.recipe}`{scale.shortened}; {rule}. {numbers}; {data}. {study.protocol}".strip()
