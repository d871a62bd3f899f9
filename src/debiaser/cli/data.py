"""data: what is here, and what it looks like."""

import typer

from debiaser.cli import app as options
from debiaser.cli.app import app

group = typer.Typer(no_args_is_help=True, help="What data is here.")
app.add_typer(group, name="data")


@group.command("list")
def list_data(as_json: options.Json = False) -> None:
    """The benchmarks that `train` knows."""
    from debiaser.cli.console import show_table
    from debiaser.cli.runs import print_json
    from debiaser.data import DATASETS

    if as_json:
        print_json({"datasets": [{"name": name, "about": source.about} for name, source in DATASETS.items()]})
    else:
        show_table("Benchmarks", ("name", "what"), [(name, each.about) for name, each in DATASETS.items()], False)
