"""What an audit of own data tells and draws: on the screen, on the page, in lines to copy."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from debiaser.auditing.api import Request, examine_model, what_next
from debiaser.auditing.estimates import Estimate
from debiaser.auditing.findings import input_gradients
from debiaser.auditing.inputs import prepare
from debiaser.auditing.marks import match_marks
from debiaser.auditing.selection import pays
from debiaser.auditing.swap_test import SwapTest, swap_test
from debiaser.cli import console
from debiaser.cli.own import told
from debiaser.data.own import Columns, read_own
from debiaser.errors import Problem, printable
from debiaser.learn.encoders import Encoder

RNG = np.random.default_rng(0)


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


def test_marks_by_row_number_are_refused_by_a_run_over_other_rows(folder: Path, cache: Path, tmp_path: Path) -> None:
    own = read_own(folder)
    (tmp_path / "marks.csv").write_text("row,mark,rows\n3,aligned,20\n")
    assert match_marks(own, np.arange(20), tmp_path / "marks.csv") == {3: "aligned"}
    with pytest.raises(Problem, match=r"a page of 20 rows, and this run examines 16"):
        match_marks(own, np.arange(16), tmp_path / "marks.csv")


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


def test_marks_of_other_data_with_the_same_names_are_refused(tmp_path: Path) -> None:
    """Row numbers and 0001.png are names in many datasets; the label that a row had in the page tells them apart."""
    own = SimpleNamespace(ids=["1", "2", "3"], classes=("cat", "dog"), y=torch.tensor([0, 1, 0]))
    path = tmp_path / "confirmed.csv"

    def marked(content: str) -> dict[int, str]:
        path.write_text(content)
        return match_marks(own, np.arange(3), path)  # type: ignore[arg-type]

    assert marked("id,mark,label\n1,aligned,cat\n2,mislabelled,dog\n") == {0: "aligned", 1: "mislabelled"}
    assert marked("id,mark\n1,aligned\n") == {0: "aligned"}
    with pytest.raises(Problem, match=r"1 of 2 rows in .* another label here .the first: '2', 'dog'.*another dataset"):
        marked("id,mark,label\n1,aligned,cat\n2,aligned,cat\n")
    with pytest.raises(Problem, match="marks '1' in two ways"):
        marked("id,mark\n1,aligned\n1,mislabelled\n")
