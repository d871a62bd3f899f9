"""Odd own data, found by trying: what changes while it is read, hostile bytes and names, arrays for all rows."""

import io
import json
import os
import struct
import subprocess
import sys
import warnings
import zlib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from typer.testing import CliRunner

from debiaser.auditing import prediction
from debiaser.auditing.advice import what_next
from debiaser.auditing.confirmed import match_marks
from debiaser.auditing.entry import Request, named_options, prepared
from debiaser.auditing.estimates import Estimate
from debiaser.auditing.exhibits import input_gradients
from debiaser.auditing.foreign import examine_model, usable
from debiaser.auditing.memory import letterboxed
from debiaser.auditing.price import pays
from debiaser.auditing.subject import Changed, prepare
from debiaser.auditing.swap import SwapTest, swap_test
from debiaser.cli import app, console
from debiaser.cli.own import told
from debiaser.data.decoding import GREY, DecodeError, decode
from debiaser.data.labels import as_labels
from debiaser.data.own import Columns, read_own
from debiaser.errors import Misuse, Problem, printable
from debiaser.learn.encoders import Encoder
from debiaser.learn.engine import Silence
from debiaser.report.audit_files import Scores
from debiaser.report.audit_samples import table_order

RNG = np.random.default_rng(0)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two classes of ten noisy pictures."""
    for name in ("cat", "dog"):
        (tmp_path / "data" / name).mkdir(parents=True)
        for number in range(10):
            pixels = RNG.integers(0, 256, (30, 30, 3), np.uint8)
            Image.fromarray(pixels).save(tmp_path / "data" / name / f"{number}.png")
    return tmp_path / "data"


class Meddling(Silence):
    """Writes to a file between the first look at the pictures and the making of their pixels."""

    def __init__(self, path: Path, content: bytes) -> None:
        self.path, self.content = path, content

    def begin(self, stage: str, steps: int, done: int) -> None:
        if stage == "pixels":
            self.path.write_bytes(self.content)


def noise() -> bytes:
    """Another picture of the same size."""
    stream = io.BytesIO()
    Image.fromarray(RNG.integers(0, 256, (30, 30, 3), np.uint8)).save(stream, "PNG")
    return stream.getvalue()


def test_a_picture_that_breaks_while_it_is_read_is_listed_and_the_rest_is_read(folder: Path, cache: Path) -> None:
    request = Request(listener=Meddling(folder / "cat" / "3.png", b"cut off"))
    subject = prepared(folder, request, need_test=False)
    assert len(subject.own) == 19 and [each.id for each in subject.own.excluded] == ["cat/3.png"]


def test_a_picture_that_becomes_another_while_it_is_read_is_taken_as_it_is_now(folder: Path, cache: Path) -> None:
    content = noise()
    subject = prepared(folder, Request(listener=Meddling(folder / "cat" / "3.png", content)), need_test=False)
    now = torch.from_numpy(np.array(Image.open(io.BytesIO(content)))).permute(2, 0, 1)
    assert (subject.read(torch.tensor([subject.own.ids.index("cat/3.png")]))[0] == now).all()


def test_pixels_of_a_picture_that_changed_are_not_kept_for_the_one_it_was(folder: Path, cache: Path) -> None:
    own = read_own(folder)
    before = (folder / "cat" / "3.png").read_bytes()
    (folder / "cat" / "3.png").write_bytes(noise())
    with pytest.raises(Changed, match=r"1 pictures changed.*cat/3.png, changed while it was read"):
        prepare(own, None, Silence())
    (folder / "cat" / "3.png").write_bytes(before)
    subject = prepare(read_own(folder), None, Silence())
    now = torch.from_numpy(np.array(Image.open(folder / "cat" / "3.png"))).permute(2, 0, 1)
    assert (subject.read(torch.tensor([subject.own.ids.index("cat/3.png")]))[0] == now).all()


def test_damaged_avif_files_give_a_reason_like_any_other() -> None:
    stream = io.BytesIO()
    try:
        Image.fromarray(RNG.integers(0, 256, (20, 24, 3), np.uint8)).save(stream, "AVIF")
    except (KeyError, OSError):
        pytest.skip("this Pillow writes no AVIF")
    content = stream.getvalue()
    refused = 0
    for place in range(0, len(content), 7):
        spoilt = bytearray(content)
        spoilt[place : place + 4] = b"\xff\x00\xff\x00"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                decode(bytes(spoilt), 16)
            except DecodeError:
                refused += 1
    assert refused


def test_postscript_is_no_picture_and_starts_no_program() -> None:
    stream = io.BytesIO()
    Image.new("RGB", (30, 30)).save(stream, "EPS")
    with pytest.raises(DecodeError, match="not a picture of a known format"):
        decode(stream.getvalue())


def test_pictures_in_memory_are_letterboxed_like_files() -> None:
    box = letterboxed(torch.zeros(1, 3, 10, 20, dtype=torch.uint8), 20)
    assert (box[0, :, :5] == GREY).all() and (box[0, :, 5:15] == 0).all()


def test_an_empty_source_is_not_the_folder_one_stands_in(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.chdir(folder)
    with pytest.raises(Misuse, match="the source is empty"):
        read_own("")


def test_nothing_that_is_printed_is_a_command_to_a_terminal() -> None:
    assert printable("a\x1b[2J\nb\u2028\udcff é😀") == r"a\x1b[2J\nb\u2028\udcff é😀"
    assert "\x1b" not in str(Problem("no file \x1b]0;x\x07"))


def test_rows_that_were_left_out_are_told_on_the_screen() -> None:
    class Found:
        verdict, reasons, page = "cannot tell", ("why",), None
        summary = {  # noqa: RUF012
            "examined": "x",
            "health": {"findings": []},
            "notes": [],
            "unreadable": [{"id": f"{number}.png", "reason": "is empty (0 bytes)"} for number in range(4)],
            "left_out": [{"id": "5.png", "reason": "has no label"}],
        }

    line = next(line for line in told(Found()) if "left out" in line)
    assert line.startswith("  5 rows were left out: 0.png is empty (0 bytes); 1.png") and "and 2 more" in line


def test_arrays_of_your_model_may_have_a_line_for_every_row(tmp_path: Path, folder: Path, cache: Path) -> None:
    (folder / "cat" / "0.png").write_bytes(b"")
    own = read_own(folder)
    assert usable(np.arange(20), own).tolist() == list(range(1, 20))
    assert usable(np.arange(19), own).tolist() == list(range(19))
    for odd in (np.arange(18), np.array(3.0)):
        with pytest.raises(Misuse, match=r"each of the 20 rows of the data, or of the 19 that can be used"):
            usable(odd, own)
    lines = [f"a text about number {row} that is long enough,{['yes', 'no', '-1', ''][row % 4]}" for row in range(40)]
    (tmp_path / "t.csv").write_text("\n".join(["text,label", "too,many,cells", *lines]))
    table = read_own(tmp_path / "t.csv")
    assert table.total == 41 and table.places[:4].tolist() == [1, 2, 5, 6]


def test_a_file_that_is_no_array_is_told_without_a_word_of_pickles(tmp_path: Path) -> None:
    (tmp_path / "p.npy").write_text("text,label\n")
    result = CliRunner().invoke(app, ["audit", str(tmp_path), "--probs", str(tmp_path / "p.npy")])
    assert isinstance(result.exception, Problem)
    assert "pickle" not in str(result.exception) and "numpy.save" in str(result.exception)


def test_predict_finds_the_columns_that_an_audit_finds(tmp_path: Path) -> None:
    lines = [f"{row},a review of number {row} that is long enough" for row in range(5)]
    (tmp_path / "t.csv").write_text("\n".join(["stars,opinion", *lines[:2], "ragged", *lines[2:]]))
    found = list(prediction.texts_of([str(tmp_path / "t.csv")], None))
    assert found[0] == (f"{tmp_path}/t.csv:1", "a review of number 0 that is long enough")
    assert found[2][0].endswith(":4"), "counted as the ids of an audit are"
    (tmp_path / "p.csv").write_text("img_path,label\nx/1.png,cat\n")
    assert list(prediction.picture_paths(str(tmp_path / "p.csv"), None)) == [str(tmp_path / "x" / "1.png")]
    with pytest.raises(Problem, match=r"no column 'b' \(--text\); known: stars, opinion"):
        list(prediction.texts_of([str(tmp_path / "t.csv")], "b"))


def test_what_is_left_out_of_an_audit_is_in_its_json(folder: Path, cache: Path, tmp_path: Path) -> None:
    (folder / "cat" / "0.png").write_bytes(b"")
    np.save(tmp_path / "p.npy", RNG.dirichlet(np.ones(2), 20))
    line = ["audit", str(folder), "--probs", str(tmp_path / "p.npy"), "--out", str(tmp_path / "out"), "--json"]
    found = json.loads(CliRunner().invoke(app, line).stdout.splitlines()[-1])
    assert [each["id"] for each in found["unreadable"]] == ["cat/0.png"] and found["n"] == 19


def test_a_folder_too_high_is_told_which_one_to_name(folder: Path, cache: Path) -> None:
    with pytest.raises(Problem, match=rf"'data'.*if cat, dog are the classes, name the folder {folder}$"):
        read_own(folder.parent)


def test_a_mistyped_path_is_one_line_at_once_where_there_is_no_network(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    code = "from debiaser.cli import main; main()"
    variables = {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path), "PATH": "", "OMP_NUM_THREADS": "1"}
    line = [sys.executable, "-c", code, "audit", "picturs", "--out", str(tmp_path / "out"), "--quiet"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=200, check=False, env=os.environ | variables)
    assert done.returncode == 1 and done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith("debiaser: 'picturs' is no file or folder here")


def test_a_table_does_not_make_us_read_what_is_no_file(tmp_path: Path, cache: Path) -> None:
    parquet, arrow = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
    cells = [{"bytes": None, "path": "/dev/zero"}, *({"bytes": noise(), "path": None} for _ in range(8))]
    parquet.write_table(arrow.table({"image": cells, "label": [row % 2 for row in range(9)]}), tmp_path / "t.parquet")
    own = read_own(tmp_path / "t.parquet")
    assert [(each.id, each.reason) for each in own.excluded] == [("1", "is not an ordinary file")]


def test_marks_by_row_number_are_refused_by_a_run_over_other_rows(folder: Path, cache: Path, tmp_path: Path) -> None:
    own = read_own(folder)
    (tmp_path / "marks.csv").write_text("row,mark,rows\n3,aligned,20\n")
    assert match_marks(own, np.arange(20), tmp_path / "marks.csv") == {3: "aligned"}
    with pytest.raises(Problem, match=r"a page of 20 rows, and this run examines 16"):
        match_marks(own, np.arange(16), tmp_path / "marks.csv")


def test_ids_in_any_script_leave_the_page_small() -> None:
    names = ["写真/" * 60 + f"{row}.png" for row in range(10_000)]
    numbers = {"rank": np.arange(1.0, 10_001.0)}
    _, listed = table_order(Scores({"id": names, "path": [""] * len(names)}, numbers))
    assert sum(len(name.encode()) for name in names[:listed]) < 1_300_000


def test_an_interval_from_end_to_end_is_told_as_not_knowing() -> None:
    told = pays(Estimate(25.3, 0.0, 100.0), 2.1, 6.2)
    assert told == (
        "These rows cannot tell from how many cases against the rule on it is better "
        "(+6.2 points on those, -2.1 on the others)."
    )
    assert pays(Estimate(25.3, 4.0, 60.0), 2.1, 6.2).startswith("Better if more than 25.3% [4.0, 60.0] of the cases")


@pytest.mark.parametrize(("verdict", "verb"), [("biased", "debias"), ("cannot tell", "audit")])
def test_the_lines_to_copy_are_filled_in_and_run(
    verdict: str, verb: str, tmp_path: Path, folder: Path, cache: Path
) -> None:
    lines = [f"a text about number {row} that is long enough,{row % 2},p{row}" for row in range(40)]
    (tmp_path / "it's.csv").write_text("\n".join(["text,Edema,patient", *lines]))
    request = Request(Columns(label="Edema", unit="patient"))
    examined = examine_model(read_own(tmp_path / "it's.csv", request.columns), np.full((40, 2), 0.5), None, tmp_path)
    told = what_next(replace(examined, verdict=verdict), named_options(request))
    called = []
    pretend = {verb: lambda *words, **names: called.append((words, names))}
    exec(told["snippet"].replace("import debiaser", ""), {"debiaser": SimpleNamespace(**pretend)})
    (words, names), options = called[0], {"label": "Edema", "unit": "patient", "out": f"debiaser-{verb}"}
    assert words == (str(tmp_path / "it's.csv"),) and options.items() <= names.items()
    assert len(told["snippet"].splitlines()) == 3


def test_where_a_model_looks_is_drawn_through_an_encoder_too(folder: Path, cache: Path) -> None:
    """A frozen encoder that sees only the upper left corner: nothing else can matter."""

    def flow(module: nn.Module, pictures: torch.Tensor) -> torch.Tensor:
        return module(pictures[:, :, :8, :8].flatten(1) / 255)

    body = nn.Linear(3 * 8 * 8, 4).requires_grad_(False)
    encoder = Encoder("corner", "image", 32, 4, "corner:1", body, lambda x: flow(body, x), flow=flow)
    subject = replace(prepare(read_own(folder), None, Silence()), encoder=encoder, size=32)
    pictures = torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8)
    heat = input_gradients(subject, nn.Linear(4, 2), pictures)
    assert heat.shape == (2, 32, 32) and (heat[:, 10:] == 0).all() and (heat[:, :, 10:] == 0).all()
    assert (heat.reshape(2, -1).max(1) == 255).all() and pictures.dtype == torch.uint8


def test_time_left_is_told_of_whole_batches(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(console.time, "monotonic", lambda: clock.now)
    lines = console.Lines()
    lines.begin("features", 300, 0)
    for seconds, steps in ((60, 256), (10, 44)):  # steps come when a batch is done
        clock.now += seconds
        for _ in range(steps):
            lines.step()
    assert capsys.readouterr().err.splitlines()[1:] == ["features: 85%, about 10 s left"]


def test_five_thousand_values_are_no_label_however_many_rows_there_are() -> None:
    with pytest.raises(Problem, match=r"'code' has 5,000 distinct values in 50,000 rows .*probably not a label"):
        as_labels([f"v{row % 5000}" for row in range(50_000)], "code")
    assert len(as_labels([f"v{row % 5000}" for row in range(50_000)], "the folders", plain=True).classes) == 5000


def test_swaps_that_were_asked_once_are_not_asked_again(tmp_path: Path) -> None:
    y = np.arange(40) % 2
    x = torch.randint(0, 256, (40, 3, 8, 8), dtype=torch.uint8)
    view = SimpleNamespace(name="all", title="all", nuisance=True, swap=lambda x, donors, rows: donors)
    cannot = SimpleNamespace(name="none", title="none", nuisance=True, swap=failing)
    read: list[int] = []

    def reading(rows: torch.Tensor) -> torch.Tensor:
        read.extend(rows.tolist())
        return x[rows]

    def run() -> SwapTest:
        answer = torch.from_numpy(y).__getitem__
        views = [view, cannot]
        return swap_test(views, reading, y, np.arange(40), y, lambda rows, _: answer(rows), kept=tmp_path / "kept.npz")

    first, seen = run(), len(read)
    again = run()
    assert seen and len(read) == seen and again.reliances == first.reliances and again.untested == first.untested
    (tmp_path / "kept.npz").write_bytes(b"PK torn")
    assert run().reliances == first.reliances and len(read) == 2 * seen


def failing(*_: object) -> torch.Tensor:
    raise Problem("cannot be swapped; use others")


def test_colour_of_sixteen_bits_is_windowed_too() -> None:
    """A PNG as microscopes write it: three channels of 16 bits, of which 12 are used."""

    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    levels = np.tile(np.linspace(0, 4095, 32).astype(">u2")[None, :, None], (32, 1, 3))
    lines = b"".join(b"\0" + line.tobytes() for line in levels)
    header = struct.pack(">IIBBBBB", 32, 32, 16, 2, 0, 0, 0)
    content = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b"")
    decoded = decode(content)
    assert decoded.windowed and decoded.pixels.min() == 0 and decoded.pixels.max() == 255
