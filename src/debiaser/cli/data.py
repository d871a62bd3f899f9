"""data: what is here, fetching it, checking it, looking at it."""

from pathlib import Path
from typing import Annotated, Any

import typer

from debiaser.cli import app as options
from debiaser.cli.app import app
from debiaser.errors import Problem, known

group = typer.Typer(no_args_is_help=True, help="What data is here: list, get, check, show.")
app.add_typer(group, name="data")
Name = Annotated[str, typer.Argument(help="A benchmark or a raw set; see `debiaser data list`.")]


@group.command("list")
def list_data(data: options.Data = None, as_json: options.Json = False) -> None:
    """The benchmarks that `train` knows, and which raw sets are here."""
    from debiaser.cli.console import show_table
    from debiaser.cli.runs import print_json
    from debiaser.data import DATASETS, raw

    there = {name: raw.status(name, data) for name in raw.SETS}
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
    if as_json:
        print_json({"datasets": benchmarks, "raw": sets})
        return
    rows = [
        (str(each["name"]), str(each["about"]), "ready" if each["ready"] else f"debiaser data get {each['name']}")
        for each in benchmarks
    ]
    show_table("Benchmarks", ("name", "what", "here"), rows, False)
    show_table(
        "Raw sets", ("name", "what", "where"), [(n, s.title, as_text(s.path) or "-") for n, s in there.items()], False
    )


@group.command("get")
def get_data(
    name: Name, data: options.Data = None, quiet: options.Quiet = False, as_json: options.Json = False
) -> None:
    """Fetch what a benchmark needs, or a raw set, unless it is here."""
    from debiaser.cli.console import Downloads
    from debiaser.cli.runs import print_json
    from debiaser.data import raw

    with Downloads(quiet) as progress:
        found = {each: str(raw.fetch(each, data, progress)) for each in raw_sets(name)}
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
    data: options.Data = None,
    as_json: options.Json = False,
) -> None:
    """Verify the raw files and print what the benchmark is made of; nothing is fetched."""
    from debiaser.bench.looks import statistics
    from debiaser.cli.console import show_table
    from debiaser.cli.runs import print_json
    from debiaser.data import DATASETS, raw

    checked = {each: raw.status(each, data) for each in raw_sets(name)}
    for each, status in checked.items():
        if not status.verified:
            raise Problem(status.problem or f"{each} is not here; get it with `debiaser data get {each}`")
    found = statistics(load(name, rho, noise, data_seed, data)) if name in DATASETS else {}
    if as_json:
        print_json({"name": name, "raw": {each: as_text(s.path) for each, s in checked.items()}, "splits": found})
        return
    for each, status in checked.items():
        typer.echo(f"{each}: verified, {status.path}")
    if found:
        columns = ("split", "rows", "against the shortcut", "flipped", "rows per class")
        cells = [
            (part, f"{s['rows']:,}", number(s["conflicting"]), number(s["flipped"]), " ".join(map(str, s["per_class"])))
            for part, s in found.items()
        ]
        show_table(name, columns, cells, False)


@group.command("show")
def show_data(
    name: Name,
    rho: options.Rho = None,
    noise: options.Noise = 0.0,
    data_seed: Annotated[int, typer.Option(help="Seed of the data.")] = 0,
    data: options.Data = None,
    out: Annotated[Path | None, typer.Option(help="The PNG to write; by default NAME.png here.")] = None,
    as_json: options.Json = False,
) -> None:
    """Draw sample pictures: rows that follow the shortcut, and a row that goes against it."""
    from debiaser.bench.looks import draw
    from debiaser.cli.runs import print_json
    from debiaser.data import DATASETS

    if name not in DATASETS:
        raise known("dataset", name, DATASETS)
    picture = draw(load(name, rho, noise, data_seed, data), out or Path(f"{name}.png"))
    if as_json:
        print_json({"name": name, "picture": str(picture)})
    else:
        typer.echo(f"The pictures: {picture.resolve()}")


def raw_sets(name: str) -> tuple[str, ...]:
    """The raw sets behind a name."""
    from debiaser.data import DATASETS, raw

    if name in DATASETS:
        return DATASETS[name].raw
    if name in raw.SETS:
        return (name,)
    raise known("dataset or raw set", name, {*DATASETS, *raw.SETS})


def load(name: str, rho: float | None, noise: float, data_seed: int, data: Path | None) -> Any:
    """The benchmark, with its usual rho unless another is asked."""
    from debiaser.bench.experiment import load as load_benchmark
    from debiaser.bench.spec import new_spec

    return load_benchmark(new_spec(name, "vanilla", rho, noise=noise, data_seed=data_seed), data)


def as_text(path: Path | None) -> str | None:
    """The path as text, None where there is none."""
    return None if path is None else str(path)


def number(value: int | None) -> str:
    """With commas; a word where unknown."""
    return "unknown" if value is None else f"{value:,}"
