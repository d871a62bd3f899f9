"""audit, debias, predict, score, clean: a person's own data."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from debiaser.cli import app as options
from debiaser.cli.app import app, print_json
from debiaser.cli.console import reporting
from debiaser.errors import Misuse, Problem, known, printable

VERDICTS = ("biased", "cannot-tell", "no-evidence")
REDACTIONS = ("paths", "images")
ENGINES = ("local", "ray")
LISTED = 3  # samples that were left out, on the screen
CELLS, WIDE = 9, 24  # cells of classes and groups on the screen, and characters of a name
NAMED = 3  # exit code: the verdict is one that --fail-if names

Source = Annotated[
    str, typer.Argument(help="An image folder class/*.jpg, a CSV or Parquet file, or a Hugging Face dataset.")
]
Label = Annotated[str | None, typer.Option(help="Column with the labels.")]
Image = Annotated[str | None, typer.Option(help="Column with image paths.")]
Text = Annotated[str | None, typer.Option(help="Column with texts.")]
Group = Annotated[str | None, typer.Option(help="Column with a known bias; for evaluation only, unless --use-groups.")]
SplitColumn = Annotated[str | None, typer.Option("--split", help="Column with train, valid or test.")]
Unit = Annotated[str | None, typer.Option(help="Column whose samples stay in one split: patient, store, video.")]
Backbone = Annotated[str | None, typer.Option(help="A transformers model, by name or folder, for frozen features.")]
Finetune = Annotated[bool, typer.Option("--finetune", help="Train the whole network, not just a head.")]
Seeds = Annotated[int, typer.Option(help="Number of seeds; by default 2 for audit, 3 for debias.")]
Workers = Annotated[int, typer.Option(help="Number of processes; by default one per core.")]
Matters = Annotated[str, typer.Option(help="Properties that belong to the task, not shortcuts: colour,...")]
Marks = Annotated[
    Path | None, typer.Option("--marks", "--confirmed", help="CSV file of marks, as saved by the page or `mark`.")
]
Redact = Annotated[str, typer.Option(help="Leave out of the page: paths, images, or paths,images.")]
FailIf = Annotated[str, typer.Option(help="Exit with code 3 on these verdicts: biased,cannot-tell.")]
Baseline = Annotated[Path | None, typer.Option(help="Earlier audit.json: --fail-if counts only what is new.")]


@app.command()
def audit(
    source: Source,
    label: Label = None,
    image: Image = None,
    text: Text = None,
    group: Group = None,
    split: SplitColumn = None,
    unit: Unit = None,
    probs: Annotated[Path | None, typer.Option(help="Probabilities (n, classes) of your own model, .npy.")] = None,
    features: Annotated[Path | None, typer.Option(help="Inputs (n, h) of its last layer, .npy.")] = None,
    backbone: Backbone = None,
    finetune: Finetune = False,
    seeds: Seeds = 0,
    workers: Workers = 0,
    epochs: options.Epochs = None,
    matters: Matters = "",
    marks: Marks = None,
    redact: Redact = "",
    fail_if: FailIf = "",
    baseline: Baseline = None,
    seed: options.Seed = 0,
    out: Annotated[Path, typer.Option(help="Folder for the page and the scores.")] = Path("debiaser-audit"),
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> None:
    """Find out whether your data has a shortcut, which samples go against it, and which look mislabelled."""
    import debiaser.auditing.api as api

    failing = checked_verdicts(fail_if, baseline)
    if features is not None and probs is None:
        raise Misuse("--features needs --probs: the probabilities of the same model")
    answers, entering = (None if path is None else read_array(path) for path in (probs, features))
    with reporting(quiet):
        findings = api.audit(
            source, answers, entering, label=label, image=image, text=text,
            group=group, split=split, unit=unit, backbone=backbone, finetune=finetune, seeds=at_least(seeds),
            workers=at_least(workers), seed=seed, epochs=epochs, matters=names(matters), marks=marks,
            redact=frozenset(choices("redaction", redact, REDACTIONS)), out=out,
        )  # fmt: skip
    finish(findings, as_json, failing)


@app.command()
def debias(
    source: Source,
    label: Label = None,
    image: Image = None,
    text: Text = None,
    group: Group = None,
    split: SplitColumn = None,
    unit: Unit = None,
    backbone: Backbone = None,
    finetune: Finetune = False,
    seeds: Seeds = 0,
    workers: Workers = 0,
    epochs: options.Epochs = None,
    matters: Matters = "",
    marks: Marks = None,
    use_groups: Annotated[bool, typer.Option("--use-groups", help="Also train with the groups in --group.")] = False,
    export: Annotated[str | None, typer.Option(help="Candidate to export as model/; all are in models/.")] = None,
    max_cost: Annotated[float | None, typer.Option(help="Points of accuracy that the chosen model may lose.")] = None,
    redact: Redact = "",
    fail_if: FailIf = "",
    baseline: Baseline = None,
    seed: options.Seed = 0,
    out: Annotated[Path, typer.Option(help="Folder for the page, scores and model.")] = Path("debiaser-debias"),
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> None:
    """Audit, train a debiased model and controls, test the difference, and export the model."""
    import debiaser.auditing.api as api

    failing = checked_verdicts(fail_if, baseline)
    with reporting(quiet):
        findings = api.debias(
            source, label=label, image=image, text=text, group=group, split=split, unit=unit, backbone=backbone,
            finetune=finetune, seeds=at_least(seeds), workers=at_least(workers), seed=seed, epochs=epochs,
            matters=names(matters), marks=marks, use_groups=use_groups, export=export, max_cost=max_cost,
            redact=frozenset(choices("redaction", redact, REDACTIONS)), out=out,
        )  # fmt: skip
    finish(findings, as_json, failing)


@app.command()
def predict(
    model_dir: Annotated[Path, typer.Argument(help="The folder of an exported model.")],
    inputs: Annotated[list[str], typer.Argument(help="Files, a folder, or a CSV file.")],
    image: Image = None,
    text: Text = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> None:
    """Predict labels and probabilities with an exported model."""
    from debiaser.auditing.export import predict_inputs

    with reporting(quiet):
        answered, unreadable = predict_inputs(model_dir, inputs, image, text)
    tell_left_out(unreadable)
    if not answered:
        raise Problem(f"none of the {len(unreadable):,} inputs could be read; check their paths, and --image or --text")
    if as_json:
        print_json({"predictions": answered, "unreadable": [{"input": n, "reason": r} for n, r in unreadable]})
        return
    for each in answered:
        best = max(each["probabilities"].values())
        typer.echo("\t".join((printable(each["input"]), printable(each["label"]), f"{best:.4f}")))


@app.command()
def score(
    source: Source,
    model: Annotated[Path, typer.Option(help="The folder of an exported model.")],
    label: Label = None,
    image: Image = None,
    text: Text = None,
    engine: Annotated[str, typer.Option(help="local: in this process; ray: on a Ray cluster.")] = "local",
    address: Annotated[str | None, typer.Option(help="Address of the cluster; by default a local one.")] = None,
    workers: Annotated[int, typer.Option(help="Ray workers; by default all CPUs but one.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder for the scores.")] = Path("debiaser-scores"),
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> None:
    """Score how strongly each labelled sample goes against an exported model; resumable."""
    from debiaser.auditing.export import find_samples_to_score
    from debiaser.data.own import Columns

    choices("engine", engine, ENGINES)
    if engine == "local" and (address or workers):
        raise Misuse("--address and --workers are for --engine ray; leave them out, or add it")
    with reporting(quiet):
        samples = find_samples_to_score(model, source, Columns(label, image, text))
        scored = score_by_ray(samples, out, address, at_least(workers)) if engine == "ray" else samples.score_here(out)
        scores, left_out = samples.write_scores(out)
    tell_left_out(left_out)
    if as_json:
        print_json({"n": scored, "scores": str(scores), "unreadable": [{"id": n, "reason": r} for n, r in left_out]})
    else:
        typer.echo(f"Scored {scored:,} samples: {scores.resolve()}")


def score_by_ray(samples: Any, out: Path, address: str | None, workers: int) -> int:
    """Score on the workers of a cluster; how many samples have a score."""
    from debiaser.integrations import framework
    from debiaser.integrations.ray import connect, score_dataset

    if samples.reader.embedded is not None:
        raise Problem("images inside a table cannot be sent to workers; save them as files, or leave --engine out")
    cpus = connect(address)
    return score_dataset(
        framework("ray.data", "ray").from_pandas(samples.parts),
        samples.reader.model,
        out,
        prepare=samples.reader,
        workers=workers or max(1, int(cpus) - 1),
        cpus=min(1, cpus / 2),
        part_rows=len(samples.parts[0]),
    )


@app.command()
def clean(as_json: options.Json = False) -> None:
    """Remove caches: pixels, features and models of audits. Raw datasets and results are kept."""
    from debiaser.auditing.api import remove_caches

    freed = remove_caches()
    if as_json:
        print_json({"freed_bytes": freed})
    else:
        typer.echo(f"Removed {freed / 1e6:,.1f} MB of cached pixels, features and models.")


def tell_left_out(unreadable: list[tuple[str, str]]) -> None:
    """A line for each sample that could not be read."""
    for name, reason in unreadable:
        typer.echo(printable(f"debiaser: left out {name}: it {reason}"), err=True)


def at_least(number: int) -> int:
    """A count that was given, or 0 for the default."""
    if number < 0:
        raise Misuse(f"--seeds and --workers must be at least 1, got {number}")
    return number


def names(listed: str) -> tuple[str, ...]:
    """Names separated by commas."""
    return tuple(name.strip() for name in listed.split(",") if name.strip())


def choices(kind: str, listed: str, known_ones: tuple[str, ...]) -> tuple[str, ...]:
    """Names separated by commas, each of which must be known."""
    for name in names(listed):
        if name not in known_ones:
            raise known(kind, name, known_ones)
    return names(listed)


def checked_verdicts(listed: str, baseline: Path | None) -> tuple[str, ...]:
    """The verdicts that fail, less the one that the baseline already had."""
    failing = choices("verdict", listed, VERDICTS)
    if baseline is None:
        return failing
    try:
        before = json.loads(baseline.read_text())["verdict"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise Problem(f"cannot read a verdict from {baseline}: give the audit.json of an earlier audit") from error
    return tuple(name for name in failing if name != str(before).replace(" ", "-"))


def read_array(path: Path) -> Any:
    """The array in an `.npy` file."""
    import numpy as np

    from debiaser.io import UNREADABLE

    try:
        with path.open("rb") as stream:
            return np.lib.format.read_array(stream, allow_pickle=False)
    except UNREADABLE as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise Problem(f"cannot read {path} as an array: {reason}; save it with numpy.save") from error


def finish(findings: Any, as_json: bool, failing: tuple[str, ...]) -> None:
    """The findings in words, or as one JSON object; exit code 3 where the verdict is one that was named."""
    if as_json:
        hidden = ("histogram", "repair", "classes", "choices", "duplicates", "left_out", "to_mark", "map")
        print_json({name: value for name, value in findings.summary.items() if name not in hidden})
    else:
        for line in summary_lines(findings):
            typer.echo(printable(line))
    if findings.verdict.replace(" ", "-") in failing:
        typer.echo(f"debiaser: the verdict '{findings.verdict}' is one that --fail-if names", err=True)
        raise typer.Exit(NAMED)


def summary_lines(findings: Any) -> Iterator[str]:
    """The findings, line by line: what is said of single things first, what matters most last."""
    summary = findings.summary
    yield f"Examined: {summary['examined']}"
    for reason in findings.reasons[1:]:
        yield f"  {reason}"
    for trouble in summary["health"]["findings"]:
        yield f"  {trouble['what']} {trouble['why']} {trouble['do']}"
    if out := [*summary["unreadable"], *summary["left_out"]]:
        some = "; ".join(f"{each['id']} {each['reason']}" for each in out[:LISTED])
        more = f"; and {len(out) - LISTED:,} more, which the page lists" if len(out) > LISTED else ""
        yield f"  {len(out):,} samples were left out: {some}{more}"
    for note in summary["notes"]:
        yield f"  {note}"
    if summary["groups"]:
        yield from group_table_lines(summary["groups"])
    if repair := summary.get("repair"):
        if summary["propagation"]:
            yield from (summary["propagation"][part] for part in ("sentence", "more"))
        yield from (each["sentence"] for each in (repair["selection"], repair["price"]) if each)
    yield ""
    yield f"Verdict: {findings.verdict}"
    yield from (f"  {number}. {each}" for number, each in enumerate(findings.highlights, 1))
    if repair:
        yield repair["export"]["sentence"]
        flags = {each["name"]: each["uses_groups"] for each in repair["selection"]["candidates"]}
        yield from (f"This model {flag}." for name, flag in flags.items() if flag and name == repair["exported"])
        yield f"The model: {Path(summary['model_dir']).resolve()}"
    if findings.page is not None:
        yield f"The page: {findings.page.resolve()}"


def group_table_lines(groups: dict[str, Any]) -> Iterator[str]:
    """Class x group, one cell a line, the worst marked; of many cells those with the lowest accuracy."""
    cells = groups["cells"]
    if len(cells) > CELLS:
        cells = sorted((cell for cell in cells if cell["n"]), key=lambda cell: float(cell["plain"]["value"]))[:CELLS]
    from debiaser.auditing.groups import FEWEST

    worst = f"  <- worst of the cells with {FEWEST} samples or more"
    lines = [("class", "group", "samples", "plain model", "biased model")]
    for cell in cells:
        right = (f"{cell[model]['value']:.1f}%" if cell["n"] else "–" for model in ("plain", "biased"))
        lines.append((cell["class"][:WIDE], cell["group"][:WIDE], f"{cell['n']:,}", *right))
    yield f"Class x group ({groups['column']}): {groups['association']['sentence']}"
    columns = [
        [f"{each:{side}{max(map(len, column))}}" for each in column]
        for side, column in zip("<<>>>", zip(*lines, strict=True), strict=True)
    ]
    for cell, line in zip([None, *cells], zip(*columns, strict=True), strict=True):
        yield f"  {'  '.join(line)}{worst if cell and cell == groups['worst'] else ''}"
    if len(groups["cells"]) > len(cells):
        yield f"  and {len(groups['cells']) - len(cells):,} more cells, which the page shows"
