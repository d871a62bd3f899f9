"""Malformed files and options: every reader refuses in one line, and nothing crashes, hangs or fills the memory."""

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image, features
from typer.main import get_command

from debiaser.auditing.export import FORMAT, read_exported
from debiaser.auditing.marks import read_lines
from debiaser.cli import app
from debiaser.cli.app import ClickError, one_line
from debiaser.cli.own import checked_verdicts, read_array
from debiaser.data.archives import FormatError, open_bundle
from debiaser.data.cache import load_arrays
from debiaser.data.images import RESIZED, DecodeError, decode
from debiaser.data.own.reading import Columns, read_csv, read_table
from debiaser.data.own.rows import as_labels
from debiaser.data.raw import read_npz
from debiaser.errors import Misuse, Problem
from debiaser.io import UNREADABLE
from debiaser.learn.checkpoint import Checkpoint, write_tensors
from debiaser.learn.nets import new_net
from debiaser.paper import results
from debiaser.paper.spec import new_spec
from debiaser.report.run_page import write_page
from debiaser.report.runs import find_runs, read_details, read_result
from layouts import write_tar, write_zip
from malformed import spoilt, survives
from test_report import new_result, write_run

SHORT, LONG = 120, 10_000
Readers = dict[str, tuple[list[bytes], Callable[[bytes], object], tuple[type[Exception], ...]]]


def pictures() -> list[bytes]:
    """A small picture in every format that people have."""
    rng, found = np.random.default_rng(0), []
    image = Image.fromarray(rng.integers(0, 256, (24, 40, 3), dtype=np.uint8))
    for kind in ("PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF", "PPM", *(["AVIF"] if features.check("avif") else [])):
        stream = io.BytesIO()
        image.save(stream, kind)
        found.append(stream.getvalue())
    return found


def archives(kind: str, folder: Path) -> list[bytes]:
    """A tar, plain and packed, or a zip, with three small files."""
    files = {"a/x.txt": b"one" * 90, "b/y.bin": bytes(256), "b/z": b""}
    if kind == "tar":
        return [write_tar(files, folder / "valid", mode).read_bytes() for mode in ("w", "w:gz")]
    return [write_zip(files, folder / "valid", packed).read_bytes() for packed in (False, True)]


def tables() -> list[bytes]:
    lines = [
        "text,label,patient",
        *(f'"a review, number {k}",{"good" if k % 2 else "bad"},p{k % 5}' for k in range(40)),
    ]
    text = "\n".join(lines)
    return [text.encode(), text.replace(",", ";").encode("utf-16"), text.replace("a review", "é").encode("latin-1")]


def arrays() -> list[bytes]:
    found = []
    for save in (np.savez, np.savez_compressed):
        stream = io.BytesIO()
        save(stream, x=np.arange(60, dtype=np.uint8).reshape(5, 3, 4), y=np.arange(5, dtype=np.uint8))
        found.append(stream.getvalue())
    return found


def exported(folder: Path) -> dict[str, bytes]:
    """A model folder as `debias` exports it, by file."""
    write_tensors(folder / "model.safetensors", dict(new_net("simconv1", 2, 0).state_dict()))
    how = {"size": 28, "resize": RESIZED, "encoder": None, "encoder_identity": None}
    config = {"format": FORMAT, "architecture": "simconv1", "inputs": [3, 28, 28], "classes": ["a", "b"]}
    (folder / "config.json").write_text(json.dumps({**config, "kind": "image", "preprocessing": how}))
    assert read_exported(folder).classes == ("a", "b"), "the untouched one is read"
    return {name: (folder / name).read_bytes() for name in ("config.json", "model.safetensors")}


def readers(folder: Path) -> Readers:
    """Every reader: valid files, what reads one, and what it may raise."""
    held, kept = folder / "held", folder / "kept"
    kept.mkdir()

    def through_file(read: Callable[[Path], object], name: str = "held") -> Callable[[bytes], object]:
        def run(content: bytes) -> object:
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            return read(path)

        return run

    def whole_bundle(path: Path) -> None:
        bundle = open_bundle(path, kept, limit=10**6)
        for name in bundle.entries:
            bundle.read(name)

    def checkpoint(path: Path) -> None:
        state = Checkpoint(path).load()
        assert state is not None or not path.exists(), "what cannot be read is removed"

    write_tensors(held, {"weight": torch.arange(12.0)}, history=[{"epoch": 1}])
    saved, model = held.read_bytes(), exported(folder / "model")
    plain = io.BytesIO()
    np.save(plain, np.random.default_rng(0).random((5, 3)))
    shapes = {"x": (5, 3, 4), "y": (5,)}
    marks = b"id,mark\na/1.png,aligned\nb/2.png,conflicting\nc/3.png,mislabelled\n"
    run = json.dumps(new_result("pgd", 75.0)).encode()
    baseline = json.dumps({"verdict": "biased", "n": 3}).encode()
    return {
        "image": (pictures(), decode, (DecodeError,)),
        "csv": (tables(), through_file(lambda path: read_table(read_csv(path), str(held), Columns())), (Problem,)),
        "marks": ([marks], through_file(read_lines), (Problem,)),
        "json, result": ([run], through_file(lambda path: results.finished(path.parent), "run/result.json"), ()),
        "json, report": ([run], through_file(lambda path: read_result(path.parent), "run/result.json"), UNREADABLE),
        "json, baseline": ([baseline], through_file(lambda path: checked_verdicts("biased", path)), (Problem,)),
        "npz": (arrays(), through_file(lambda path: read_npz(path, shapes)), (FormatError,)),
        "npz, report": (arrays(), through_file(lambda path: read_details(path.parent), "run/vectors.npz"), ()),
        "npz, kept": (arrays(), through_file(load_arrays), ()),
        "npy": ([plain.getvalue()], through_file(read_array), (Problem,)),
        "checkpoint": ([saved], through_file(checkpoint), ()),
        **{
            f"model, {name}": (
                [content],
                through_file(lambda path: read_exported(path.parent), f"model/{name}"),
                (Problem,),
            )
            for name, content in model.items()
        },
        "tar": (archives("tar", folder), through_file(whole_bundle), (FormatError,)),
        "zip": (archives("zip", folder), through_file(whole_bundle), (FormatError,)),
    }


NAMES = (
    *("image", "csv", "marks", "json, result", "json, report", "json, baseline"),
    *("npz", "npz, report", "npz, kept", "npy", "tar", "zip"),
    *("checkpoint", "model, config.json", "model, model.safetensors"),
)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "cases",
    [
        pytest.param(range(SHORT), id="short"),
        pytest.param(range(SHORT, SHORT + LONG), id="long", marks=[pytest.mark.long, pytest.mark.timeout(3600)]),
    ],
)
def test_malformed_files(cases: range, name: str, tmp_path: Path) -> None:
    """A reader that hangs, fills the memory or raises anything but its own error makes `survives` fail."""
    valid, read, allowed = readers(tmp_path)[name]
    refused = survives(valid, cases, read, allowed)
    assert refused > len(cases) / 20 or not allowed, "hardly any file was refused: they are not malformed enough"
    assert not [path for path in tmp_path.parent.iterdir() if path.name in {"a", "b"}], "written outside"


def test_a_page_of_runs_with_malformed_parts(tmp_path: Path) -> None:
    """The page is written whatever lies beside the results, and says what it left out."""
    folder = write_run(tmp_path / "run", new_result("pgd", 75.0))
    whole = {name: (folder / name).read_bytes() for name in ("vectors.npz", "samples.npz", "history.csv")}
    for number in range(12):
        for name, content in whole.items():
            (folder / name).write_bytes(spoilt([content], number))
        assert write_page(find_runs(folder), tmp_path / "page.html").stat().st_size > 1000


# --- options ----------------------------------------------------------------------------------------------------------

QUICKLY = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
ODD = st.one_of(
    st.text(max_size=30),
    st.sampled_from(["", "-1", "0", "1e999", "nan", "inf", "--", "=", "a=", "=b", "\x00", "9" * 400, "../..", "é"]),
    st.integers().map(str),
    st.floats().map(str),
)


@QUICKLY
@given(
    dataset=st.one_of(st.sampled_from(["digits", "cmnist", "bar"]), st.text(max_size=9)),
    method=st.one_of(st.sampled_from(["pgd", "vanilla", "lff", "jtt"]), st.text(max_size=9)),
    rho=st.one_of(st.none(), st.floats()),
    recipe=st.one_of(st.sampled_from(["fast", "paper"]), st.text(max_size=9)),
    numbers=st.tuples(st.none() | st.integers(), st.integers(), st.none() | st.integers()),
    noise=st.floats(),
    words=st.lists(ODD, max_size=3),
    names=st.fixed_dictionaries(
        {},
        optional={
            "net": st.sampled_from(["mlp", "simconv1", "bert"]) | ODD,
            "precision": st.sampled_from(["32", "bf16"]) | ODD,
            "weights": ODD,
            "augment": st.sampled_from(["paper"]) | ODD,
        },
    ),
)
def test_every_option_of_train_is_taken_or_refused(
    dataset: str, method: str, rho: float | None, recipe: str, numbers: Any, noise: float, words: list[str], names: Any
) -> None:
    try:
        spec = new_spec(dataset, method, rho, recipe, *numbers, noise, changes=words, options=words[:1], **names)
    except Problem as error:
        assert str(error) and "\n" not in str(error).strip()
    else:
        assert spec.key and json.dumps(spec.key)


def test_a_name_with_a_line_break_stays_on_one_line() -> None:
    with pytest.raises(Misuse, match=r"unknown method '\\n'; known"):
        new_spec("digits", "\n")


# Arguments with which a command ends before it would do any work: what is refused is what comes with them.
WITHOUT_WORK = {
    "audit": ["/no/such/place.csv"],  # a bare name would be asked of the hub
    "debias": ["/no/such/place.csv"],
    "mark": ["no-such-folder"],
    "predict": ["no-such-model", "x"],
    "report": ["no-such-runs"],
    "score": ["/no/such/place.csv", "--model", "no-such-model"],
    "train": ["no-such-dataset", "--method", "pgd"],
    "bench": ["--only", "no-such-claim"],
    "data check": ["no-such-set"],
    "data get": ["no-such-set"],
    "data show": ["no-such-set"],
    "demo": ["--seeds", "0"],
    "study": ["no-such-study"],
}
ALWAYS_WORK = {"clean", "data list", "theory"}  # nothing that they are given can stop them before
COMMANDS = get_command(app)


def command_of(name: str) -> Any:
    command = COMMANDS
    for word in name.split():
        command = command.commands[word]
    return command


def options_of(name: str) -> list[str]:
    return sorted(option for each in command_of(name).params for option in each.opts if option.startswith("--"))


def drawn_options(name: str, data: st.DataObject) -> list[str]:
    """Some of a command's options, with odd words after them."""
    flags = data.draw(st.lists(st.tuples(st.sampled_from(options_of(name)), ODD), max_size=4))
    return [word for pair in flags for word in pair if pair[0] not in {"--help", "--debug"}]


def test_no_command_is_left_out() -> None:
    names = {each for each in COMMANDS.commands if each != "data"}
    names |= {f"data {each}" for each in COMMANDS.commands["data"].commands}
    assert names == WITHOUT_WORK.keys() | ALWAYS_WORK


@pytest.mark.parametrize("name", WITHOUT_WORK)
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_every_option_of_every_command_is_taken_or_refused(name: str, data: st.DataObject) -> None:
    words = drawn_options(name, data)
    try:
        code = app([*name.split(), *WITHOUT_WORK[name], *words], standalone_mode=False)
    except Problem as error:
        assert error.exit_code in (1, 2) and str(error)
    except ClickError as error:
        assert one_line(error) or type(error).__name__ == "NoArgsIsHelpError"
    except typer.Abort:
        pass
    else:
        assert code in (0, 2), f"{name} {words}: it did something"


@pytest.mark.parametrize("name", sorted(ALWAYS_WORK))
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_options_are_read_before_the_work(name: str, data: st.DataObject) -> None:
    try:
        assert command_of(name).make_context(name, drawn_options(name, data)).params
    except ClickError as error:
        assert one_line(error)


@QUICKLY
@given(values=st.lists(st.text(max_size=6) | st.sampled_from(["0", "1", "-1", "", "true", "nan"]), max_size=40))
def test_labels_of_any_words(values: list[str]) -> None:
    try:
        labels = as_labels(values, "label")
    except Problem as error:
        assert str(error)
        return
    assert len(labels.y) == len(values) and len(labels.classes) >= 2
    assert all(-2 <= number < len(labels.classes) for number in labels.y)


@QUICKLY
@given(rows=st.lists(st.lists(st.text(max_size=8), min_size=1, max_size=4), max_size=12))
def test_tables_of_any_cells(rows: list[list[str]], tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    with path.open("w", newline="", encoding="utf-8", errors="surrogatepass") as stream:
        csv.writer(stream).writerows(rows)
    try:
        table = read_csv(path)
    except Problem as error:
        assert "\n" not in str(error).strip()
    else:
        assert {len(column) for column in table.columns.values()} == {len(table)}
