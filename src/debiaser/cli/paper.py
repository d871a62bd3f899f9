"""study, theory, bench: the paper's tables, figures and theorems, and the speed of this package."""

import shlex
import textwrap
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from debiaser.cli import app as options
from debiaser.cli.app import app, print_json
from debiaser.cli.console import clock, duration, reporting, say, show_table, until
from debiaser.cli.runs import DEVICES
from debiaser.errors import Misuse, Problem, known
from debiaser.io import make_folder, write_json

Found = dict[str, Any]


@app.command()
def study(
    name: Annotated[str, typer.Argument(help="A label of the paper (control, norm, ...) or of ours; all; or list.")],
    recipe: options.RecipeName = "fast",
    seeds: Annotated[
        int | None,
        typer.Option(help="Number of seeds (hist_trial: at least 10). By default one; all existing runs are shown."),
    ] = None,
    epochs: options.Epochs = None,
    only: Annotated[str | None, typer.Option(help="Only cells with this dataset.")] = None,
    rho: Annotated[float | None, typer.Option(help="Only cells with this rho.")] = None,
    on: Annotated[str | None, typer.Option(help="Dataset to use instead of the study's, such as digits.")] = None,
    workers: Annotated[int, typer.Option(help="Runs at a time, one process each; they share the threads.")] = 1,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would run and how long; run nothing.")] = False,
    commands: Annotated[
        bool, typer.Option("--commands", help="Print one shell command per missing run; run nothing.")
    ] = False,
    only_show: Annotated[bool, typer.Option("--show", help="Show existing results; run nothing.")] = False,
    data: options.Data = None,
    out: Annotated[Path, typer.Option("--out", "--runs", help="Folder for runs.")] = Path("runs"),
    results: Annotated[
        Path | None, typer.Option(help="Folder of results that count as finished; by default ./results if present.")
    ] = None,
    figures: Annotated[Path | None, typer.Option(help="Folder for the figures, as PDF and PNG.")] = None,
    device: options.Device = "auto",
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> None:
    """Make the missing runs of a table or figure, compare our numbers with the published ones, and judge the claim."""
    if name == "list":
        list_studies(as_json)
        return
    from debiaser.paper.studies.findings import Scale, gather, missing

    check_usage(device, results, {"--seeds": seeds, "--workers": workers, "--epochs": epochs})
    chosen, scale = choose(name, on, only, rho), Scale(recipe, seeds, epochs)
    copies = results or (Path("results") if Path("results").is_dir() else None)
    store = gather(out, copies)
    lacking = missing(chosen, store, scale)
    where = [*(["--data", str(data)] if data else []), *(["--device", device] if device != "auto" else [])]
    where += ["--out", str(out)]
    if commands or dry_run:
        tell_left_out(store)
        if commands:
            show_commands(name, [shlex.join(["debiaser", *each.words, *where]) for each in lacking], as_json)
        else:
            show_plan(name, chosen, lacking, list(store.all()), workers, as_json)
        return
    if figures:
        make_folder(figures)  # a folder that cannot be is told before the work, not after
    failures = [] if only_show else make(lacking, chosen, store, scale, out, where, data, workers, quiet)
    show(name, chosen, gather(out, copies), scale, figures, as_json)
    if failures:
        listed = "; ".join(f"{each.key}: {each.reason}" for each in failures[:3])
        rest = f"; and {len(failures) - 3} more" if len(failures) > 3 else ""
        runs = "1 run" if len(failures) == 1 else f"{len(failures)} runs"
        raise Problem(f"{runs} failed: {listed}{rest}; the same command tries again")


def check_usage(device: str, results: Path | None, counts: dict[str, int | None]) -> None:
    """Refuse a device that is none of ours, a folder that is not there, and a count that is below 1."""
    if device not in DEVICES:
        raise known("device", device, DEVICES)
    if results and not results.is_dir():
        raise Misuse(f"there is no folder {results} with results; check the path given to --results")
    for option, value in counts.items():
        if value is not None and value < 1:
            raise Misuse(f"{option} must be at least 1, got {value}")


def tell_left_out(store: Any) -> None:
    """A line for each file that cannot count."""
    for sentence in store.left_out:
        typer.echo(sentence, err=True)


def choose(name: str, on: str | None, only: str | None, rho: float | None) -> list[Any]:
    """The studies that are asked for, on another dataset or only their cells of one; without a cell it is a mistake."""
    from debiaser.paper.settings import SETTINGS
    from debiaser.paper.studies import STUDIES

    if name != "all" and name not in STUDIES:
        raise known("study", name, [*STUDIES, "all", "list"])
    for dataset in filter(None, (on, only)):
        if dataset not in SETTINGS:
            raise known("dataset", dataset, SETTINGS)
    named = STUDIES.values() if name == "all" else [STUDIES[name]]
    placed = [(study.on(on) if on else study).only(only, rho) for study in named]
    if not any(study.cells for study in placed):
        raise Misuse(f"study {name} has no cells there; see `debiaser study {name} --dry-run`")
    return [study for study in placed if study.cells]


def list_studies(as_json: bool) -> None:
    """Every study by the paper's label, with its claim."""
    from debiaser.paper.studies import STUDIES

    if as_json:
        listed = [{"study": s.label, "title": s.title, "claim": s.claim, "ours": s.ours} for s in STUDIES.values()]
        print_json({"studies": listed})
        return
    for title, ours in (("The paper's tables and figures", False), ("Studies of ours", True)):
        rows = [(each.label, each.title, each.claim) for each in STUDIES.values() if each.ours is ours]
        show_table(title, ("label", "what", "claim"), rows, False, words=True)


def show_commands(name: str, lines: list[str], as_json: bool) -> None:
    """One shell line per run, for a cluster's job array."""
    if as_json:
        print_json({"study": name, "commands": lines})
    elif lines:
        typer.echo("\n".join(lines))


def show_plan(name: str, chosen: list[Any], lacking: list[Any], past: list[Found], workers: int, as_json: bool) -> None:
    """What would run, and how long from past runs."""
    from debiaser.paper.studies.findings import expected_seconds
    from debiaser.report.tables import plural

    runs: list[Found] = []
    for each in lacking:
        command, seconds = shlex.join(["debiaser", *each.words]), expected_seconds(each.spec, past)
        runs.append({"command": command, "key": each.spec.key, "seconds": seconds})
    measured = [each["seconds"] for each in runs if each["seconds"] is not None]
    listed, unknown = ", ".join(each.label for each in chosen), len(runs) - len(measured)
    if as_json:
        print_json({"study": name, "runs": runs, "seconds": sum(measured), "unknown": unknown})
        return
    for each in runs:
        told = "unknown" if each["seconds"] is None else duration(each["seconds"])
        typer.echo(f"{told:>12}  {each['command']}")
    total = f"; about {duration(sum(measured) / workers)} with {plural(workers, 'worker')}, by the pace of past runs"
    rest = f"; {plural(unknown, 'run')} of unknown length, for there are no past runs on the same data"
    told = (total if measured else "") + (rest if unknown else "")
    typer.echo(f"{listed}: {plural(len(lacking), 'run')} missing{told}")


def make(
    lacking: list[Any],
    chosen: list[Any],
    store: Any,
    scale: Any,
    out: Path,
    where: list[str],
    data: Path | None,
    workers: int,
    quiet: bool,
) -> list[Any]:
    """Make the missing runs with progress; what failed comes back."""
    from debiaser.paper.studies.findings import add_fishers, expected_seconds, gather, make_runs
    from debiaser.report.tables import plural

    def tell(line: str) -> None:
        if not quiet:
            say(line)

    past, done, started = list(store.all()), 0, time.monotonic()
    times = {each.spec.key: expected_seconds(each.spec, past) for each in lacking}
    whole = sum(each for each in times.values() if each) / workers
    if lacking:
        tell(plural(len(lacking), "run") + (f", about {duration(whole)}{until(0, whole)}" if whole else ""))

    def ended(run: Any, failure: Any) -> None:
        nonlocal done
        done += 1
        left = (time.monotonic() - started) / done * (len(lacking) - done)
        rest = f"; about {duration(left)} left, until about {clock(left)}" if done < len(lacking) else ""
        tell(f"{done} of {len(lacking)}: {run.spec.key} {f'failed: {failure.reason}' if failure else 'done'}{rest}")

    def told(run: Any, line: str) -> None:
        if workers == 1:
            tell(f"  {' '.join([f'seed {run.spec.seed}', *run.cell.changes])}, {line}")

    failures = make_runs(lacking, lambda run: [*run.words, *where], workers, told, ended)
    return failures + add_fishers(chosen, gather(out), scale, data, tell)


def show(name: str, chosen: list[Any], store: Any, scale: Any, figures: Path | None, as_json: bool) -> None:
    """The table of each study, its claim and its protocol; figures and JSON where asked for."""
    from debiaser.paper.studies.findings import findings
    from debiaser.report.figures import write_study_figures

    found = [findings(each, store, scale) for each in chosen]
    for each in found:
        show_study(each, as_json)
    tell_left_out(store)
    drawn = [path for each in found for path in (write_study_figures(each, figures) if figures else [])]
    if not as_json:
        for path in drawn:
            typer.echo(f"Drawn: {path}")
        return
    more = {"figures": [str(path) for path in drawn], "unusable": list(store.left_out)}
    if len(found) == 1:
        print_json({**found[0], **more})
    else:
        claims = {each["claim"] for each in found}
        whole = "not held" if "not held" in claims else "held" if claims == {"held"} else "not testable"
        cells = [{"study": each["study"], **cell} for each in found for cell in each["cells"]]
        print_json({"study": name, "claim": whole, "cells": cells, "studies": found, **more})


def show_study(found: Found, to_stderr: bool) -> None:
    """One study on the screen."""
    from debiaser.report.tables import plural, study_table

    show_table(f"{found['study']}: {found['title']}", *study_table(found), to_stderr)
    lines = [
        f"Claim: {found['statement']}",
        f"{found['claim'].capitalize()} here {found['tested']}".rstrip() + f" ({found['scale']}). {found['sentence']}",
        f"Protocol: {found['protocol']}",
        *([f"Also in the paper: {'; '.join(found['also_printed'])}."] if found["also_printed"] else []),
    ]
    if found["not_run"]:
        lines.append(f"Not run: {plural(len(found['not_run']), 'run')}; the same command with --commands lists them.")
    typer.echo("\n".join(lines) + "\n", err=to_stderr)


@app.command()
def theory(
    figures: Annotated[Path | None, typer.Option(help="Folder for the figures, as PDF and PNG.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 0,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> None:
    """Check the theorems and the trace of the inverse Fisher information numerically, with a verdict for each."""
    from debiaser.learn.recipe import environment
    from debiaser.paper.theory.evidence import gather
    from debiaser.paper.theory.figures import write_figures
    from debiaser.paper.theory.statements import statements

    if seed < 0:
        raise Misuse(f"seed must not be negative, got {seed}")
    if figures:
        make_folder(figures)  # a folder that cannot be is told before the work, not after
    started = time.monotonic()
    with reporting(quiet):
        evidence = gather(seed)
    found = statements(evidence)
    files = write_figures(evidence, figures) if figures else []
    if as_json:
        seconds = round(time.monotonic() - started, 1)
        kept = [asdict(each) for each in found]
        told = {"statements": kept, "figures": list(map(str, files)), "seconds": seconds}
        print_json({"seed": seed, **told, "environment": environment("cpu")})
        return
    for each in found:
        typer.echo(f"{each.verdict.upper():<12}  {each.name}")
        for label, text in (("", each.claim), ("Rule: ", each.rule), ("Found: ", each.found)):
            typer.echo(textwrap.fill(f"{label}{text}", 116, initial_indent=" " * 14, subsequent_indent=" " * 14))
    if files:
        typer.echo(f"Figures: {', '.join(map(str, files))}")
    else:
        say("With --figures DIR it draws them.")


@app.command()
def bench(
    only: Annotated[list[str] | None, typer.Option(help="Claim to measure; repeat for more. By default all.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Tiny inputs: shows that it runs, not how fast.")] = False,
    out: Annotated[Path, typer.Option(help="Page to write; the numbers go next to it as .json.")] = Path(
        "debiaser-bench.html"
    ),
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> None:
    """Compare speed and memory with alternatives, as ratios, on one page. Leave the machine otherwise idle."""
    from importlib.util import find_spec

    from debiaser.paper.speed import measure
    from debiaser.report.speed import table, write_speed_page

    if out.is_dir() or out.suffix == ".json":
        raise Misuse(f"--out must name a page, such as bench.html, and the numbers go beside it; got {out}")
    make_folder(out.parent)  # a folder that cannot be is told before the work, not after
    with reporting(quiet):
        found = measure(only or (), quick)
    if absent := [name for name in ("kornia", "opacus") if find_spec(name) is None]:
        typer.echo(f"Left out, not installed: {', '.join(absent)} (pip install 'debiaser[oracles]').", err=True)
    page, numbers = write_speed_page(found, out), out.with_suffix(".json")
    write_json(numbers, found)
    for claim in map(table, found["claims"]):
        rows = [(line["way"], *line["cells"]) for line in claim["lines"]]
        show_table(claim["title"], ("way", *claim["headings"]), rows, to_stderr=as_json)
    if as_json:
        print_json({**found, "page": str(page), "numbers": str(numbers)})
    else:
        typer.echo(f"The page: {page.resolve()}")
