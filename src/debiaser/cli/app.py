"""The application that commands register with, and the options that they share."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from debiaser import __version__

# typer brings its own copy of click, or the shared one, depending on its version: take the one it raises.
ClickError: type[Any] = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")


def one_line(error: Any) -> str:
    """The message of a usage error, with the known options or commands."""
    if type(error).__name__ == "NoArgsIsHelpError":  # the help has been shown
        return ""
    message = error.format_message().rstrip(".")
    context = getattr(error, "ctx", None)
    if context is None:
        return str(message)
    if type(error).__name__ == "NoSuchOption":
        known = sorted(
            option for parameter in context.command.params for option in parameter.opts if option[:2] == "--"
        )
        return f"{message.split(' (')[0]}; known: {', '.join(known)}"
    if "No such command" in message:
        return f"{message}; known: {', '.join(sorted(context.command.commands))}"
    return f"{message}; see {context.command_path} --help"


app = typer.Typer(
    name="debiaser",
    help="Find and fix shortcut learning.",
    invoke_without_command=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def show_version(wanted: bool) -> None:
    """Print the version and stop."""
    if wanted:
        typer.echo(f"debiaser {__version__}")
        raise typer.Exit


Version = Annotated[bool, typer.Option("--version", callback=show_version, is_eager=True, help="Show the version.")]


BEGINNING = """Find and fix shortcut learning. What most people want:

  debiaser audit images/     is there a shortcut in your images or texts, and which samples go against it?
  debiaser debias images/    the same, then train against it, prove the difference and export the model
  debiaser demo              see it on embedded digits first: one to two minutes, no download

`debiaser --help` lists all commands."""


@app.callback()
def common(context: typer.Context, version: Version = False) -> None:
    """Find and fix shortcut learning: try `debiaser demo`."""
    if context.invoked_subcommand is None:
        typer.echo(BEGINNING)


def print_json(content: dict[str, Any]) -> None:
    """One JSON object as the last line of standard output."""
    print(json.dumps(content, allow_nan=False))


Rho = Annotated[float | None, typer.Option(help="Share of training samples that go against the shortcut, in (0, 1).")]
Noise = Annotated[float, typer.Option(help="Share of training labels flipped at random.")]
RecipeName = Annotated[str, typer.Option("--recipe", help="fast, paper, or another recipe of the dataset.")]
Epochs = Annotated[int | None, typer.Option(help="Epochs per stage, instead of the recipe's.")]
Seed = Annotated[int, typer.Option(help="Seed of the training.")]
DataSeed = Annotated[int | None, typer.Option(help="Seed of the data; by default that of the training.")]
Data = Annotated[Path | None, typer.Option(help="Folder of raw datasets; by default DEBIASER_DATA or the user cache.")]
Out = Annotated[Path, typer.Option(help="Folder for runs.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")]
Precision = Annotated[str, typer.Option(help="Precision of forward passes in training: 32 or bf16.")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Start over instead of reusing earlier runs.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line of standard output.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Show no progress.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks.")]
DatasetOptions = Annotated[list[str] | None, typer.Option("--option", help="key=value: set an option of the dataset.")]
