"""theory: the paper's theorems and the trace of the inverse Fisher information, checked numerically."""

import textwrap
import time
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from debiaser.cli import app as options
from debiaser.cli.app import app
from debiaser.errors import Misuse

if TYPE_CHECKING:
    from debiaser.theory.evidence import Evidence

FORMATS: dict[str, dict[str, Any]] = {"pdf": {"metadata": {"CreationDate": None}}, "png": {"dpi": 130}}


@app.command()
def theory(
    figures: Annotated[Path | None, typer.Option(help="Folder to draw the figures into, as PDF and PNG.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of everything that is drawn.")] = 0,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> None:
    """The theorems, and the trace of the inverse Fisher information, checked numerically: a verdict per statement."""
    from debiaser.cli.console import reporter, say
    from debiaser.cli.runs import print_json
    from debiaser.files import make_folder
    from debiaser.learn.facts import environment
    from debiaser.theory.evidence import gather
    from debiaser.theory.statements import statements

    if seed < 0:
        raise Misuse(f"seed must not be negative, got {seed}")
    if figures:
        make_folder(figures)  # a folder that cannot be is told before the work, not after
    started = time.monotonic()
    with closing(reporter(quiet)) as listener:
        evidence = gather(seed, listener)
    found = statements(evidence)
    files = draw(evidence, figures) if figures else []
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


def draw(evidence: "Evidence", folder: Path) -> list[Path]:
    """The files of all figures, in every format."""
    from debiaser.files import replacing
    from debiaser.theory.figures import figures

    files = []
    for name, figure in figures(evidence).items():
        for kind, chosen in FORMATS.items():
            path = folder / f"{name}.{kind}"
            with replacing(path) as temporary:
                figure.savefig(temporary, format=kind, **chosen)
            files.append(path)
    return files
