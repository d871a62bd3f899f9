"""data: what is here, fetching it, checking it, looking at it."""

from pathlib import Path
from typing import Annotated, Any

import typer

from debiaser.cli import app as options
from debiaser.cli.app import app
from debiaser.errors import Problem, known

group = typer.Typer(no_args_is_help=True, help="What data is here: list, get, check, show.")
app.add_typer(group, name="data")
Option = Annotated[list[str] | None, typer.Option(help="key=value: an option of the dataset.")]
Name = Annotated[str, typer.Argument(help="A benchmark, a raw set or weights; see `debiaser data list`.")]


@group.command("list")
def list_data(data: options.Data = None, as_json: options.Json = False) -> None:
    """The benchmarks that `train` knows, and which raw sets and weights are here."""
    from debiaser.cli.console import show_table
    from debiaser.cli.runs import print_json
    from debiaser.data import DATASETS, holdings, sources, weights

    there = {name: sources.status(name, data) for name in sources.SETS}
    there |= {name: holdings.status(name, data, thorough=False) for name in holdings.HOLDINGS}
    models = {name: weights.status(name, data) for name in weights.WEIGHTS}
    benchmarks = [
        {
            "name": name,
            "about": source.about,
            "needs": list(source.raw),
            "ready": all(there[each].verified for each in source.raw),
        }
        for name, source in DATASETS.items()
    ]
    sets = [{"name": name, "about": each.title, "path": as_text(each.path)} for name, each in there.items()]
    encoders = [{"name": name, "about": each.title, "path": as_text(each.path)} for name, each in models.items()]
    if as_json:
        print_json({"datasets": benchmarks, "raw": sets, "weights": encoders})
        return
    rows = [
        (str(each["name"]), str(each["about"]), "ready" if each["ready"] else f"debiaser data get {each['name']}")
        for each in benchmarks
    ]
    show_table("Benchmarks", ("name", "what", "here"), rows, False)
    for title, found in (("Raw sets", there), ("Weights", models)):
        cells = [(n, s.title, as_text(s.path) or "-") for n, s in found.items()]
        show_table(title, ("name", "what", "where"), cells, False)


@group.command("get")
def get_data(
    name: Name, data: options.Data = None, quiet: options.Quiet = False, as_json: options.Json = False
) -> None:
    """Fetch what a benchmark needs, a raw set or weights, unless it is here."""
    from debiaser.cli.console import reporting
    from debiaser.cli.runs import print_json

    with reporting(quiet):
        found = {each: str(keeper(each).fetch(each, data)) for each in raw_sets(name)}
    if as_json:
        print_json({"name": name, "paths": found})
    else:
        typer.echo("\n".join(f"{each}: {path}" for each, path in found.items()) or f"{name} needs no download")


@group.command("check")
def check_data(
    name: Name,
    rho: options.Rho = None,
    noise: options.Noise = 0.0,
    data_seed: Annotated[int, typer.Option(help="Seed of the data.")] = 0,
    option: Option = None,
    data: options.Data = None,
    as_json: options.Json = False,
) -> None:
    """Verify the raw files and print what the benchmark is made of; nothing is fetched."""
    from debiaser.cli.console import show_table
    from debiaser.cli.runs import print_json
    from debiaser.data import DATASETS
    from debiaser.paper.samples import portions, statistics

    spec = specify(name, rho, noise, data_seed, option) if name in DATASETS else None
    partial = {"partial": True} if spec and spec.options.get("partial") else {}
    checked = {each: keeper(each).status(each, data, **partial) for each in raw_sets(name)}
    for each, status in checked.items():
        if not status.verified:
            raise Problem(status.problem or f"{each} is not here; get it with `debiaser data get {each}`")
    benchmark = loaded(spec, data) if spec else None
    found, traits = (statistics(benchmark), portions(benchmark)) if benchmark else ({}, [])
    if as_json:
        where = {each: as_text(s.path) for each, s in checked.items()}
        print_json({"name": name, "raw": where, "splits": found, **({"portions": traits} if traits else {})})
        return
    for each, status in checked.items():
        typer.echo(f"{each}: verified{f', but for {status.unknown}' if status.unknown else ''}, {status.path}")
    if found:
        columns = ("split", "rows", "against the shortcut", "flipped", "rows per class")
        cells = [
            (part, f"{s['rows']:,}", number(s["conflicting"]), number(s["flipped"]), " ".join(map(str, s["per_class"])))
            for part, s in found.items()
        ]
        show_table(name, columns, cells, False)
    if benchmark and traits:
        kind = benchmark.classes[1]
        shares = [(t["name"], f"{t['rows']:,}", percent(t["percent"]), percent(t["published"])) for t in traits]
        show_table(
            f"{name}: share of rows that are {kind}", ("identity", "rows", "percent", "published"), shares, False
        )


@group.command("show")
def show_data(
    name: Name,
    rho: options.Rho = None,
    noise: options.Noise = 0.0,
    data_seed: Annotated[int, typer.Option(help="Seed of the data.")] = 0,
    option: Option = None,
    data: options.Data = None,
    out: Annotated[Path | None, typer.Option(help="The PNG to write; by default NAME.png here.")] = None,
    as_json: options.Json = False,
) -> None:
    """Draw sample pictures: rows that follow the shortcut, and a row that goes against it."""
    from debiaser.cli.runs import print_json
    from debiaser.data import DATASETS
    from debiaser.paper.samples import draw

    if name not in DATASETS:
        raise known("dataset", name, DATASETS)
    spec = specify(name, rho, noise, data_seed, option)
    picture = draw(loaded(spec, data), out or Path(f"{name}.png"))
    if as_json:
        print_json({"name": name, "picture": str(picture)})
    else:
        typer.echo(f"The pictures: {picture.resolve()}")


def raw_sets(name: str) -> tuple[str, ...]:
    """The raw sets, or the weights, behind a name."""
    from debiaser.data import DATASETS, sources, weights

    if name in DATASETS:
        return DATASETS[name].raw
    if name in sources.SETS or name in weights.WEIGHTS:
        return (name,)
    raise known("dataset or raw set", name, {*DATASETS, *sources.SETS, *weights.WEIGHTS})


def keeper(name: str) -> Any:
    """Who fetches and checks what has this name: raw sets, folders of files or weights."""
    from debiaser.data import holdings, sources, weights

    return weights if name in weights.WEIGHTS else holdings if name in holdings.HOLDINGS else sources


def specify(name: str, rho: float | None, noise: float, data_seed: int, option: list[str] | None) -> Any:
    """The spec of the benchmark, with its usual rho unless another is asked."""
    from debiaser.paper.spec import new_spec

    return new_spec(name, "vanilla", rho, noise=noise, data_seed=data_seed, options=option or ())


def loaded(spec: Any, data: Path | None) -> Any:
    """The benchmark, with a bar for what is fetched, made or checked on the way."""
    from debiaser.cli.console import reporting
    from debiaser.paper.experiment import load

    with reporting(quiet=False):
        return load(spec, data)


def as_text(path: Path | None) -> str | None:
    """The path as text, None where there is none."""
    return None if path is None else str(path)


def percent(value: float | None) -> str:
    """With one decimal; a dash where there is none."""
    return "-" if value is None else f"{value:.1f}"


def number(value: int | None) -> str:
    """With commas; a word where unknown."""
    return "unknown" if value is None else f"{value:,}"
