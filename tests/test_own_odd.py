"""Odd own data, found by trying; what an audit tells and draws: on the screen, on the page, in lines to copy."""

import io
import struct
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

from conftest import assert_refused, debiaser
from debiaser import audit
from debiaser.auditing import export
from debiaser.auditing.api import Request, examine_model, usable, what_next
from debiaser.auditing.inputs import own_of, prepare
from debiaser.auditing.page_content import input_gradients
from debiaser.auditing.swap_test import SwapTest, swap_test
from debiaser.auditing.views import View
from debiaser.cli import app, console
from debiaser.cli.own import summary_lines
from debiaser.data.images import DecodeError, decode
from debiaser.data.own import read_own
from debiaser.errors import Misuse, Problem, printable
from debiaser.learn.encoders import Encoder

RNG = np.random.default_rng(0)


def noise() -> bytes:
    """Another image of the same size."""
    stream = io.BytesIO()
    Image.fromarray(RNG.integers(0, 256, (30, 30, 3), np.uint8)).save(stream, "PNG")
    return stream.getvalue()


def test_pixels_of_a_picture_that_changed_are_not_kept_for_the_one_it_was(folder: Path, cache: Path) -> None:
    own = read_own(folder)
    before = (folder / "cat" / "3.png").read_bytes()
    (folder / "cat" / "3.png").write_bytes(noise())
    with pytest.raises(Problem, match=r"1 images changed.*cat/3.png, changed while it was read"):
        prepare(own, None)
    (folder / "cat" / "3.png").write_bytes(before)
    subject = prepare(read_own(folder), None)
    now = torch.from_numpy(np.array(Image.open(folder / "cat" / "3.png"))).permute(2, 0, 1)
    assert (subject.read(torch.tensor([subject.own.ids.index("cat/3.png")]))[0] == now).all()


def test_postscript_is_no_picture_and_starts_no_program() -> None:
    stream = io.BytesIO()
    Image.new("RGB", (30, 30)).save(stream, "EPS")
    with pytest.raises(DecodeError, match="not an image of a known format"):
        decode(stream.getvalue())


def test_an_empty_source_is_not_the_folder_one_stands_in(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.chdir(folder)
    with pytest.raises(Misuse, match="the source is empty"):
        read_own("")


def test_arrays_of_your_model_may_have_a_line_for_every_row(tmp_path: Path, folder: Path, cache: Path) -> None:
    (folder / "cat" / "0.png").write_bytes(b"")
    own = read_own(folder)
    assert usable(np.arange(20), own).tolist() == list(range(1, 20))
    assert usable(np.arange(19), own).tolist() == list(range(19))
    for odd in (np.arange(18), np.array(3.0)):
        with pytest.raises(Misuse, match=r"each of the 20 samples of the data, or of the 19 that can be used"):
            usable(odd, own)
    lines = [f"a text about number {row} that is long enough,{['yes', 'no', '-1', ''][row % 4]}" for row in range(40)]
    (tmp_path / "t.csv").write_text("\n".join(["text,label", "too few", *lines]))
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
    found = list(export.find_inputs(str(tmp_path / "t.csv"), "text", None))
    assert found[0] == (f"{tmp_path}/t.csv:1", "a review of number 0 that is long enough")
    assert found[2] == (f"{tmp_path}/t.csv:3", "") and found[3][0].endswith(":4"), "counted as an audit counts"
    (tmp_path / "p.csv").write_text("img_path,label\nx/1.png,cat\n")
    assert [path for path, _ in export.find_inputs(str(tmp_path / "p.csv"), "image", None)] == [f"{tmp_path}/x/1.png"]
    with pytest.raises(Problem, match=r"no column 'b' \(--text\); known: stars, opinion"):
        list(export.find_inputs(str(tmp_path / "t.csv"), "text", "b"))


def test_a_folder_too_high_is_told_which_one_to_name(folder: Path, cache: Path) -> None:
    with pytest.raises(Problem, match=rf"'data'.*if cat, dog are the classes, name the folder {folder}$"):
        read_own(folder.parent)


@pytest.mark.parametrize("offline", [{"HF_HUB_OFFLINE": "1"}, {"HF_ENDPOINT": "http://127.0.0.1:9"}])
def test_a_mistyped_path_is_one_line_at_once_where_there_is_no_network(tmp_path: Path, offline: dict[str, str]) -> None:
    pytest.importorskip("datasets")
    words = ("audit", "picturs", "--out", str(tmp_path / "out"), "--quiet")
    assert_refused(
        debiaser(*words, env={"HF_HOME": str(tmp_path), **offline}), 1, "'picturs' is no file or folder here"
    )


def test_a_table_does_not_make_us_read_what_is_no_file(tmp_path: Path, cache: Path) -> None:
    parquet, arrow = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
    cells = [{"bytes": None, "path": "/dev/zero"}, *({"bytes": noise(), "path": None} for _ in range(8))]
    parquet.write_table(arrow.table({"image": cells, "label": [row % 2 for row in range(9)]}), tmp_path / "t.parquet")
    own = read_own(tmp_path / "t.parquet")
    assert [(each.id, each.reason) for each in own.excluded] == [("1", "is not an ordinary file")]


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


def test_datasets_in_memory(cache: Path) -> None:
    def pairs(*pictures: torch.Tensor) -> list[tuple[torch.Tensor, int]]:
        return [(picture, row % 2) for row, picture in enumerate(pictures)]

    ordinary = torch.rand(8, 3, 28, 28)
    own = own_of(pairs(*ordinary))
    assert own.classes == ("0", "1") and own.ids == [*"01234567"]
    assert (own.inputs.read(torch.arange(8), 28) == (ordinary * 255).round()).all()
    wide = own_of(pairs(*ordinary, torch.zeros(1, 10, 20), torch.zeros(3, 20, 20, dtype=torch.uint8)))
    box = wide.inputs.read(torch.tensor([8]), 20)[0]
    assert box.shape == (3, 20, 20) and (box == 0).all(), "of any size, stretched like files"
    assert own_of([(f"text {row}", ["no", "yes"][row % 2]) for row in range(8)]).classes == ("no", "yes")
    for odd, reason in (
        ([], "no samples"),
        (None, "no samples"),
        (pairs(*ordinary * 255), "numbers from 0 to 1; these reach from .* leave out the normalisation"),
        (pairs(*ordinary - 0.5), "numbers from 0 to 1"),
        ([(picture, 0) for picture in ordinary], "only one class"),
        ([("text", 0)] * 4, "only one class"),
    ):
        with pytest.raises(Problem, match=reason):
            own_of(odd)
    with pytest.raises(Misuse, match="predictions alone give no page"):
        audit([0, 1], np.eye(2), out="somewhere")


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--epochs", "0", "epochs must be at least 1, got 0"),
        ("--epochs", "-3", "epochs must be at least 1, got -3"),
        ("--seed", "-1", "seed must be at least 0, got -1"),
        ("--max-cost", "nan", "max_cost must be at least 0, got nan"),
        ("--max-cost", "-5", "max_cost must be at least 0, got -5"),
    ],
)
def test_numbers_that_cannot_be_meant_are_refused_before_anything_is_read(option: str, value: str, words: str) -> None:
    with pytest.raises(Misuse, match=words):
        app(["debias", "/no/such/table.csv", option, value], standalone_mode=False)


def test_a_folder_that_was_there_keeps_its_permissions(folder: Path, cache: Path, tmp_path: Path) -> None:
    """What is written into it is for its owner; whether others may enter their folder is not ours to say."""
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o755)
    out = audit(folder, epochs=1, workers=1, out=shared).page
    assert out is not None and out.stat().st_mode & 0o777 == 0o600
    assert shared.stat().st_mode & 0o777 == 0o755
    assert not [path for path in shared.rglob("*") if path.stat().st_mode & 0o077]


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

    line = next(line for line in summary_lines(Found()) if "left out" in line)
    assert line.startswith("  5 samples were left out: 0.png is empty (0 bytes); 1.png") and "and 2 more" in line


@pytest.mark.parametrize(("verdict", "verb"), [("biased", "debias"), ("cannot tell", "audit")])
def test_the_lines_to_copy_are_filled_in_and_run(
    verdict: str, verb: str, tmp_path: Path, folder: Path, cache: Path
) -> None:
    lines = [f"a text about number {row} that is long enough,{row % 2},p{row}" for row in range(40)]
    (tmp_path / "it's.csv").write_text("\n".join(["text,Edema,patient", *lines]))
    request = Request(label="Edema", unit="patient")
    examined = examine_model(read_own(tmp_path / "it's.csv", request.columns), np.full((40, 2), 0.5), None, tmp_path)
    told = what_next(replace(examined, verdict=verdict), request.named)
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
    subject = replace(prepare(read_own(folder), None), encoder=encoder, size=32)
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
    done = 0
    for seconds, steps in ((0, 0), (60, 256), (10, 44)):  # steps come when a batch is done
        clock.now, done = clock.now + seconds, done + steps
        lines("features", done, 300, steps, "steps")
    told = ["features: 300 steps", "features: 85%, about 10 s left", "features: done in 1 min 10 s"]
    assert capsys.readouterr().err.splitlines() == told


def test_swaps_that_were_asked_once_are_not_asked_again(tmp_path: Path) -> None:
    y = np.arange(40) % 2
    x = torch.randint(0, 256, (40, 3, 8, 8), dtype=torch.uint8)
    view = View("all", "all", True, lambda x, donors, rows: donors, "all")
    cannot = View("none", "none", True, failing, "none")
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
