"""demo, train, report: making runs and showing them; data: what they are made of."""

from pathlib import Path
from typing import Annotated, Any

import typer

from debiaser.cli import app as options
from debiaser.cli.app import app, print_json
from debiaser.cli.console import reporting, show_table
from debiaser.errors import Misuse, Problem, known
from debiaser.io import make_folder

DEVICES = ("auto", "cpu", "cuda", "mps")
AUDIT_EPOCHS, TO_SHOW = 4, 12  # of the demo: epochs of every model of its audit, samples to mark that its page shows


def pick_device(name: str) -> str:
    """The device to use; asking for one that is not there is a mistake."""
    import torch

    if name not in DEVICES:
        raise known("device", name, DEVICES)
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if name == "auto":
        return next(each for each in ("cuda", "mps", "cpu") if there[each])
    if not there[name]:
        raise Misuse(f"this machine has no {name} device; here: {', '.join(each for each in there if there[each])}")
    return name


@app.command()
def demo(
    rho: options.Rho = 0.05,
    seed: options.Seed = 0,
    seeds: Annotated[int, typer.Option(help="Number of seeds, starting with --seed.")] = 1,
    epochs: options.Epochs = None,
    out: options.Out = Path("debiaser-demo"),
    device: options.Device = "auto",
    fresh: options.Fresh = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> None:
    """Audit embedded data and compare PGD with vanilla, in a table and an HTML page. Needs no network."""
    from debiaser.learn.distributed import launched
    from debiaser.paper.spec import new_spec
    from debiaser.report.run_page import write_page
    from debiaser.report.runs import Found

    if seeds < 1:
        raise Misuse(f"seeds must be at least 1, got {seeds}")
    specs = [
        new_spec("digits", method, rho=rho, epochs=epochs, seed=each, world_size=launched().size)
        for each in range(seed, seed + seeds)
        for method in ("vanilla", "pgd")
    ]
    runs = make_runs(specs, out, None, device, quiet, fresh)
    if not launched().main:
        return
    audited = audit_digits(specs[0], out, epochs or AUDIT_EPOCHS, quiet)
    found = Found([{**run.result, "folder": run.folder} for run in runs])
    page = write_page(found, out / "report.html", title="debiaser demo: coloured digits", audit=audited)
    show_results([run.result for run in runs], to_stderr=as_json)
    if as_json:
        told = {"dataset": "digits", "rho": rho, "runs": [summarise(run) for run in runs], "page": str(page)}
        print_json(told | {"audit": {name: audited[name] for name in ("verdict", "reasons", "page")}})
        return
    typer.echo(f"Audit of the same images: {audited['verdict']}. {audited['reasons'][0]}")
    typer.echo(f"The page: {page.resolve()}")


def audit_digits(spec: Any, out: Path, epochs: int, quiet: bool) -> dict[str, Any]:
    """An audit of the training images of a run, which are written as files below `out`; what the page shows of it."""
    import numpy as np
    from PIL import Image

    from debiaser.auditing.api import audit
    from debiaser.paper.experiment import as_images, load

    train = load(spec, None).train
    for row, image in enumerate(as_images(train, np.arange(len(train)))):
        path = make_folder(out / "images" / str(int(train.y[row]))) / f"{row:04d}.png"
        Image.fromarray(image).save(path)
    with reporting(quiet):
        findings = audit(out / "images", epochs=epochs, seed=spec.seed, out=out / "audit")
    told = {name: findings.summary[name] for name in ("verdict", "reasons", "page")}
    asked = [np.asarray(Image.open(path)) for path in findings.to_mark(TO_SHOW)["path"]]
    followed = max(findings.summary["views"], key=lambda view: float(view["excess"]["value"]))
    return told | {"view": followed, "swaps": findings.swaps()[followed["name"]], "to_mark": asked}


@app.command()
def train(
    dataset: Annotated[str, typer.Argument(help="A benchmark; see `debiaser data list`.")],
    method: Annotated[str, typer.Option(help="The method: pgd, vanilla, ...")],
    rho: options.Rho = None,
    noise: options.Noise = 0.0,
    recipe: options.RecipeName = "fast",
    epochs: options.Epochs = None,
    seed: options.Seed = 0,
    data_seed: options.DataSeed = None,
    changes: Annotated[list[str] | None, typer.Option("--set", help="key=value: set a field of the method.")] = None,
    option: options.DatasetOptions = None,
    net: Annotated[str | None, typer.Option(help="Network to use instead of the benchmark's.")] = None,
    weights: Annotated[
        str, typer.Option(help="Pretrained weights to start from: resnet50, a folder or a hub name.")
    ] = "",
    augment: Annotated[str, typer.Option(help="Augmentation instead of the benchmark's: paper, ...")] = "",
    data: options.Data = None,
    out: options.Out = Path("runs"),
    device: options.Device = "auto",
    precision: options.Precision = "32",
    fresh: options.Fresh = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> None:
    """Make one run of a benchmark; a finished run is reused, an interrupted one is resumed."""
    from debiaser.learn.distributed import launched
    from debiaser.paper.spec import new_spec

    words: dict[str, Any] = {"changes": changes or (), "options": option or ()}
    words |= {"precision": precision, "world_size": launched().size, "weights": weights, "augment": augment}
    spec = new_spec(dataset, method, rho, recipe, epochs, seed, data_seed, noise, net, **words)
    (run,) = make_runs([spec], out, data, device, quiet, fresh)
    if not launched().main:
        return
    show_results([run.result], to_stderr=as_json)
    if as_json:
        print_json(summarise(run))
    else:
        typer.echo(f"{'Found' if run.resumed else 'Kept'} in {run.folder}")


@app.command()
def report(
    runs_dir: Annotated[Path, typer.Argument(help="A folder with finished runs, or with copies of their results.")],
    out: Annotated[Path | None, typer.Option(help="The page to write; by default report.html in that folder.")] = None,
    as_json: options.Json = False,
    debug: options.Debug = False,
) -> None:
    """Write one self-contained HTML page about finished runs."""
    from debiaser.paper.studies.findings import gather
    from debiaser.report.run_page import write_page
    from debiaser.report.runs import find_runs

    runs = find_runs(runs_dir)
    store = gather(runs)
    runs.left_out += [f"Studies: {each}" for each in store.left_out if each not in runs.left_out]
    page = write_page(runs, out or runs_dir / "report.html", studies=found_in(store))
    if as_json:
        print_json({"page": str(page), "runs": len(runs.results)})
    else:
        typer.echo(f"{len(runs.results)} runs; the page: {page.resolve()}")


def found_in(store: Any) -> list[dict[str, Any]]:
    """What every study says of these runs, at the recipe that most of them have; nothing where none says."""
    from collections import Counter

    from debiaser.paper.studies import STUDIES
    from debiaser.paper.studies.findings import RECIPES, Scale, findings
    from debiaser.report.run_page import study_part

    recipes = Counter(result["recipe"] for result in store.all() if result["recipe"] in RECIPES)
    if not recipes:
        return []
    scale = Scale(recipes.most_common(1)[0][0])
    parts = [study_part(findings(each, store, scale)) for each in STUDIES.values()]
    return parts if any(each["runs"] for each in parts) else []


def make_runs(specs: list[Any], out: Path, data: Path | None, device: str, quiet: bool, fresh: bool) -> list[Any]:
    """The finished runs of these specs, with progress; several processes make each of them together."""
    from debiaser.learn.distributed import joined
    from debiaser.paper.experiment import run

    device = pick_device(device)
    with joined(device) as processes, reporting(quiet or not processes.main) as reporter:
        done = []
        for spec in specs:
            reporter.run = f"{spec.method}, seed {spec.seed}" if len(specs) > 2 else spec.method
            done.append(run(spec, out, data, device, fresh, processes))
        return done


def summarise(run: Any) -> dict[str, Any]:
    """What `--json` shows of a run."""
    names = ("dataset", "method", "rho", "seed", "recipe", "metrics", "seconds", "rows", "samples_seen", "published")
    part = {"there": run.result["there"]} if "there" in run.result else {}
    return {**{name: run.result[name] for name in names}, **part, "run_dir": str(run.folder), "resumed": run.resumed}


def show_results(results: list[dict[str, Any]], to_stderr: bool) -> None:
    """The table of runs in the terminal."""
    from debiaser.report.tables import summary_rows, text_table

    first = results[0]
    conflicting = first["rows"]["conflicting"]
    rho = "" if first["rho"] is None else f", rho {first['rho']:g}"
    title = f"{first['dataset']}{rho}, recipe {first['recipe']}: accuracy in percent"
    if conflicting is not None:
        title += f"; {conflicting:,} of {first['rows']['train']:,} training samples go against the shortcut"
    columns, rows = text_table(summary_rows(results))
    show_table(title, columns, rows, to_stderr)


group = typer.Typer(no_args_is_help=True, help="List, download, check and show data.")
app.add_typer(group, name="data")
COUNTS = ("rows", "conflicting", "flipped")
SeedOfData = Annotated[int, typer.Option("--data-seed", help="Seed of the data.")]
Name = Annotated[str, typer.Argument(help="A benchmark, a raw dataset or weights; see `debiaser data list`.")]


@group.command("list")
def list_data(data: options.Data = None, as_json: options.Json = False) -> None:
    """List the benchmarks that `train` knows, and the raw datasets and weights that are present."""
    from debiaser.data.benchmarks import DATASETS, published
    from debiaser.data.sources import WEIGHTS

    known_sets = published()
    every = {name: each.status(data, thorough=False) for name, each in known_sets.items()}
    models = {name: every[name] for name in WEIGHTS}
    there = {name: status for name, status in every.items() if name not in models}
    ready = {name: all(there[each].path for each in source.raw) for name, source in DATASETS.items()}
    if as_json:
        benchmarks = [
            {"name": name, "about": source.about, "needs": list(source.raw), "ready": ready[name]}
            for name, source in DATASETS.items()
        ]
        sets, encoders = (
            [{"name": n, "about": known_sets[n].title, "path": s.path and str(s.path)} for n, s in found.items()]
            for found in (there, models)
        )
        print_json({"datasets": benchmarks, "raw": sets, "weights": encoders})
        return
    rows = [(n, s.about, "ready" if ready[n] else f"debiaser data get {n}") for n, s in DATASETS.items()]
    show_table("Benchmarks", ("name", "what", "here"), rows, False)
    for title, found in (("Raw sets", there), ("Weights", models)):
        cells = [(n, known_sets[n].title, str(s.path or "-")) for n, s in found.items()]
        show_table(title, ("name", "what", "where"), cells, False)


@group.command("get")
def get_data(
    name: Name, data: options.Data = None, quiet: options.Quiet = False, as_json: options.Json = False
) -> None:
    """Download what a benchmark needs, a raw dataset or weights, unless already present."""
    with reporting(quiet):
        found = {each: str(known_set.fetch(data)) for each, known_set in raw_sets(name).items()}
    if as_json:
        print_json({"name": name, "paths": found})
    else:
        typer.echo("\n".join(f"{each}: {path}" for each, path in found.items()) or f"{name} needs no download")


@group.command("check")
def check_data(
    name: Name,
    rho: options.Rho = None,
    noise: options.Noise = 0.0,
    data_seed: SeedOfData = 0,
    option: options.DatasetOptions = None,
    data: options.Data = None,
    as_json: options.Json = False,
) -> None:
    """Verify the raw files and print the composition of the benchmark; nothing is downloaded."""
    from debiaser.data.benchmarks import DATASETS
    from debiaser.paper.experiment import statistics

    checked = {each: known_set.status(data) for each, known_set in raw_sets(name).items()}
    for each, status in checked.items():
        if status.path is None:
            raise Problem(status.problem or f"{each} is not here; get it with `debiaser data get {each}`")
    found = statistics(loaded(name, rho, noise, data_seed, option, data)) if name in DATASETS else {}
    if as_json:
        print_json({"name": name, "raw": {each: str(s.path) for each, s in checked.items()}, "splits": found})
        return
    for each, status in checked.items():
        typer.echo(f"{each}: verified{f', but for {status.unknown}' if status.unknown else ''}, {status.path}")
    if found:
        columns = ("split", "samples", "against the shortcut", "flipped", "samples per class")
        cells = []
        for part, told in found.items():
            counts = ("unknown" if told[count] is None else f"{told[count]:,}" for count in COUNTS)
            cells.append((part, *counts, " ".join(map(str, told["per_class"]))))
        show_table(name, columns, cells, False)


@group.command("show")
def show_data(
    name: Name,
    rho: options.Rho = None,
    noise: options.Noise = 0.0,
    data_seed: SeedOfData = 0,
    option: options.DatasetOptions = None,
    data: options.Data = None,
    out: Annotated[Path | None, typer.Option(help="PNG file to write; by default NAME.png.")] = None,
    as_json: options.Json = False,
) -> None:
    """Draw sample images that follow the shortcut, and a row of images that go against it."""
    from debiaser.paper.experiment import draw

    image = draw(loaded(name, rho, noise, data_seed, option, data), out or Path(f"{name}.png"))
    if as_json:
        print_json({"name": name, "picture": str(image)})
    else:
        typer.echo(f"The images: {image.resolve()}")


def raw_sets(name: str) -> dict[str, Any]:
    """The raw sets, or the weights, behind a name."""
    from debiaser.data.benchmarks import DATASETS, published

    every = published()
    if name not in {*DATASETS, *every}:
        raise known("dataset or raw set", name, {*DATASETS, *every})
    return {each: every[each] for each in (DATASETS[name].raw if name in DATASETS else (name,))}


def loaded(
    name: str, rho: float | None, noise: float, data_seed: int, option: list[str] | None, data: Path | None
) -> Any:
    """The benchmark, with a bar for what is fetched, made or checked on the way."""
    from debiaser.paper.experiment import load
    from debiaser.paper.spec import new_spec

    spec = new_spec(name, "vanilla", rho, noise=noise, data_seed=data_seed, options=option or ())
    with reporting(quiet=False):
        return load(spec, data)
