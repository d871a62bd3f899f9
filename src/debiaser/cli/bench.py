"""bench: speed and memory beside the alternatives."""

from pathlib import Path
from typing import Annotated

import typer

from debiaser.cli import app as options
from debiaser.cli.app import app
from debiaser.errors import Misuse


@app.command()
def bench(
    only: Annotated[list[str] | None, typer.Option(help="One claim; give it again for more. By default all.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Tiny inputs: shows that it runs, not how fast.")] = False,
    out: Annotated[Path, typer.Option(help="The page to write; the numbers go beside it as .json.")] = Path(
        "debiaser-bench.html"
    ),
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> None:
    """Speed and memory side by side with the alternatives, as ratios; one page. Leave the machine alone meanwhile."""
    from contextlib import closing
    from importlib.util import find_spec

    from debiaser.bench.speed.claims import chosen, measure
    from debiaser.cli.console import reporter, show_table
    from debiaser.cli.runs import print_json
    from debiaser.files import make_folder, write_json
    from debiaser.report.speed_page import write_speed_page
    from debiaser.report.speed_tables import table

    if out.is_dir() or out.suffix == ".json":
        raise Misuse(f"--out must name a page, such as bench.html, and the numbers go beside it; got {out}")
    names = chosen(only or ())
    if absent := [name for name in ("kornia", "opacus") if find_spec(name) is None]:
        typer.echo(f"Left out, not installed: {', '.join(absent)} (pip install 'debiaser[oracles]').", err=True)
    make_folder(out.parent)  # a folder that cannot be is told before the work, not after
    with closing(reporter(quiet)) as listener:
        found = measure(names, quick, listener)
    page, numbers = write_speed_page(found, out), out.with_suffix(".json")
    write_json(numbers, found)
    for claim in map(table, found["claims"]):
        rows = [(line["way"], *line["cells"]) for line in claim["lines"]]
        show_table(claim["title"], ("way", *claim["headings"]), rows, to_stderr=as_json)
    things = found.get("growth", {"things": {}})["things"]
    if things:
        grown = [(name, f"{thing['exponent']:.2f}") for name, thing in things.items()]
        show_table("Growth with the number of rows: exponent, 1 is linear", ("thing", "exponent"), grown, as_json)
    if as_json:
        print_json({**found, "page": str(page), "numbers": str(numbers)})
    else:
        typer.echo(f"The page: {page.resolve()}")
