"""The commands, run as commands: what they print, where, and how they end."""

import csv
import json
import os
import re
import stat
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from conftest import ROOT, Done, assert_refused

Command = Callable[..., Done]
QUICK = ("--epochs", "1", "--quiet", "--json")


def test_without_arguments_the_three_commands_that_most_people_want(command: Command) -> None:
    done = command()
    assert done.returncode == 0 and re.findall(r"^  debiaser (\w+)", done.stdout, re.M) == ["audit", "debias", "demo"]


def test_help_is_fast(command: Command) -> None:
    before = os.times()
    assert command("--help").returncode == 0
    after = os.times()
    seconds = after.children_user - before.children_user + after.children_system - before.children_system
    assert seconds < 1.5, "of the processor, not of the wall"
    code = "import sys, debiaser.cli; print({'torch', 'matplotlib'} & set(sys.modules))"
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert modules.stdout.strip() == "set()", "the help must not import what it does not need"


WRONG_TRAININGS = [
    ("--set nosuch=1", "unknown field 'nosuch'; known: alpha"),
    ("--set alpha", "not key=value"),
    ("--set alpha=x", "alpha must be float or none, got"),
    ("--set alpha=0", "alpha must be"),
    ("--set alpha=1.2", "alpha must be"),
    ("--set p=0", "p must be at least"),
    ("--set p=nan", "p must be float, got"),
    ("--set joint=maybe", "joint must be true or false, got"),
    ("--set use=other", "unknown use 'other'; known: resample, reweight"),
    ("--rho 1.5", "rho must lie"),
    ("--rho 0", "rho must lie"),
    ("--noise 1", "noise must lie"),
    ("--epochs 0", "epochs must be at least 1"),
    ("--seed -1", "seed must not be negative"),
    ("--recipe slow", "unknown recipe 'slow'; known: fast, paper"),
    ("--net big", "unknown network 'big'; known: .*simconv1"),
    ("--option a=1", "unknown option of digits 'a'"),
    ("--device tpu", "unknown device 'tpu'; known: auto, cpu"),
    ("--rhoo 1", "No such option: --rhoo; known: .*--rho"),
    ("--epochs many", "--epochs.*valid integer"),
    ("--method vanilla --set length=inf", "length must be a finite number"),
]
WRONG = [
    ("train nosuch --method pgd", "unknown dataset 'nosuch'; known: .*digits"),
    ("train digits", "--method"),
    ("demo --seeds 0", "seeds must be at least 1"),
    ("data show nosuch", "known: "),
    ("data get nosuch", "known: "),
    ("data check nosuch", "known: "),
    ("theory --seed -1", "seed must not be negative, got -1"),
    ("bench --quick --only x", "unknown claim 'x'; known: augmenting"),
    ("bench --quick --only sampling --out numbers.json", "--out must name a page"),
    ("bench --quick --only sampling --out .", "--out must name a page"),
    ("study norm --seeds 0", "--seeds must be at least 1"),
    ("study norm --recipe slow --dry-run", "unknown recipe 'slow'"),
    ("study norm --on nosuch", "unknown dataset 'nosuch'"),
    ("study norm --results nosuch --dry-run", "no folder nosuch with results; check the path"),
    ("study norm --device nosuch --commands", "unknown device 'nosuch'; known: auto, cpu"),
    ("study second_easiest --on digits", "study second_easiest has no cells there"),
    *((f"train digits --method pgd {options}", told) for options, told in WRONG_TRAININGS),
]


@pytest.mark.parametrize(("line", "told"), WRONG)
def test_wrong_usage_is_one_line_and_exit_2(command: Command, tmp_path: Path, line: str, told: str) -> None:
    assert_refused(command(*line.split()), 2, told)
    assert not list(tmp_path.iterdir())


def test_train_keeps_what_it_promises(command: Command, tmp_path: Path) -> None:
    words = ("train", "digits", "--method", "pgd", "--rho", "0.05", "--out", "r", *QUICK)
    done = command(*words)
    assert done.returncode == 0, done.stderr
    found = done.last_json
    assert 0 < found["metrics"]["unbiased"] <= 100 and found["resumed"] is False
    folder = tmp_path / found["run_dir"]
    with np.load(folder / "vectors.npz", allow_pickle=False) as vectors:
        assert vectors["probability"].sum() == pytest.approx(1) and len(vectors["score"]) == 1167
        assert set(np.unique(vectors["conflicting"])) == {0, 1} and (vectors["label"] < 10).all()
    rows = list(csv.DictReader((folder / "history.csv").open()))
    assert [row["stage"] for row in rows] == ["biased", "debiased"] and rows[1]["seen"] == "2334"
    facts = json.loads((folder / "result.json").read_text())["environment"]
    assert facts["threads"] == 1 and all(value for name, value in facts.items() if name != "commit")
    assert not list(tmp_path.rglob("*.part"))
    assert command(*words).last_json == {**found, "resumed": True}
    fresh = command(*words, "--fresh").last_json
    assert fresh["resumed"] is False and fresh["metrics"] == found["metrics"]


def test_demo_shows_both_and_writes_a_page(command: Command, tmp_path: Path) -> None:
    done = command("demo", "--epochs", "1")
    assert done.returncode == 0 and "Vanilla" in done.stdout and "PGD" in done.stdout, done.stderr
    page = tmp_path / "debiaser-demo" / "report.html"
    assert str(page) in done.stdout and page.stat().st_size > 20_000
    assert re.search(r"pgd · debiased: done in", done.stderr)
    shown = page.read_text()
    assert "Worst group</th>" not in shown and 'href="audit/report.html"' in shown, "no column of zeros; an audit"
    to_mark = (page.parent / "audit" / "to_mark.csv").read_text().splitlines()[1:]
    assert shown.count("taken from") >= 3 and shown.count("An image to mark") == min(12, len(to_mark))
    found = command("demo", "--epochs", "1", "--json", "--quiet").last_json
    assert found["audit"]["verdict"] in done.stdout and Path(found["audit"]["page"]).name == "report.html"
    vanilla, pgd = found["runs"]
    assert vanilla["samples_seen"] == pgd["samples_seen"], "the same number of samples seen"
    report = command("report", "debiaser-demo", "--out", "other.html", "--json")
    assert report.last_json["runs"] == 2 and (tmp_path / "other.html").exists()


def test_report_on_nothing_is_told(command: Command, tmp_path: Path) -> None:
    for folder in ("absent", "."):
        assert_refused(command("report", folder), 1, "")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("line", ["train digits --method vanilla --out", "theory --figures"])
def test_out_that_cannot_be_written(command: Command, tmp_path: Path, line: str) -> None:
    (tmp_path / "file").write_text("in the way")
    assert_refused(command(*line.split(), "file/below"), 1, "cannot write .*file.*choose another folder$")
    assert (tmp_path / "file").read_text() == "in the way"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere: this test did not run")
def test_read_only_out(command: Command, tmp_path: Path) -> None:
    folder = tmp_path / "locked"
    folder.mkdir()
    folder.chmod(stat.S_IRUSR | stat.S_IXUSR)
    done = command("train", "digits", "--method", "vanilla", "--out", "locked/runs", *QUICK)
    assert done.returncode == 1 and "no permission" in done.stderr


def ended(tmp_path: Path, code: str) -> Done:
    """Python that runs this and then the command."""
    line = [sys.executable, "-c", f"{code}\nfrom debiaser.__main__ import main\nmain()\n"]
    done = subprocess.run(line, capture_output=True, text=True, cwd=tmp_path, timeout=60)
    return Done(done.args, done.returncode, done.stdout, done.stderr)


def meeting(what_happens: str) -> str:
    """Code after which this happens in the middle of any command."""
    return f"import os, signal, tempfile, time, debiaser.cli as cli\ndef app(**_): {what_happens}\ncli.app = app"


def test_a_mistake_of_ours_says_so_and_leaves_a_file(tmp_path: Path) -> None:
    words = "import sys, debiaser.paper.spec as spec\nsys.argv = ['debiaser', 'train', 'digits', '--method', 'pgd']"
    done = ended(tmp_path, f"{words}\ndef broken(*a, **k): raise RuntimeError('boom')\nspec.new_spec = broken")
    assert done.returncode == 70 and "Traceback" not in done.stderr
    crash = Path(re.search(r"please send us (\S+)", done.stderr).group(1))
    assert "boom" in crash.read_text() and "Traceback" in crash.read_text()
    crash.unlink()
    done = ended(tmp_path, meeting("tempfile.tempdir = '/no/such/folder'; raise ZeroDivisionError"))
    assert done.returncode == 70 and "--debug" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("what_happens", "code", "told"),
    [
        ("raise MemoryError", 1, "memory ran out.*; end others"),
        ('raise RuntimeError("DefaultCPUAllocator: can\'t allocate memory")', 1, "memory ran out"),
        ("raise OSError(28, 'No space left on device', 'x.npy')", 1, "cannot write x.npy: the disk is full; free"),
        ("os.kill(os.getpid(), signal.SIGTERM); time.sleep(9)", 143, "interrupted; what was done is kept"),
        ("raise KeyboardInterrupt", 130, "interrupted"),
        ("raise BrokenPipeError", 130, "interrupted"),  # standard output is whole: it was the progress
    ],
)
def test_what_the_machine_does_is_told_in_one_line(tmp_path: Path, what_happens: str, code: int, told: str) -> None:
    assert_refused(ended(tmp_path, meeting(what_happens)), code, f"^debiaser: {told}")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here: this test did not run")
@pytest.mark.parametrize("words", [("--version",), ("study", "list", "--json")])
def test_output_that_does_not_fit_on_the_disk(words: tuple[str, ...], tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        line = [sys.executable, "-m", "debiaser", *words]
        done = subprocess.run(line, stdout=full, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    told = Done(line, done.returncode, "", done.stderr)
    assert_refused(told, 1, "^debiaser: cannot write standard output: the disk is full")


def test_ctrl_c_while_the_command_is_loaded(tmp_path: Path) -> None:
    impatient = """
import sys
class Impatient:
    def find_spec(self, name, *_):
        if name == 'debiaser.cli':
            raise KeyboardInterrupt
sys.meta_path.insert(0, Impatient())"""
    done = ended(tmp_path, impatient)
    assert done.returncode == 130 and done.stderr == ""
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts == {"debiaser": "debiaser.__main__:main"}


def test_data_list_get_check_show(command: Command, real_data: Path, tmp_path: Path) -> None:
    where = ("--data", str(real_data))
    assert "digits" in command("data", "list").stdout
    listed = {each["name"]: each for each in command("data", "list", *where, "--json").last_json["datasets"]}
    assert listed["digits"]["ready"] and listed["cmnist"]["ready"] and listed["cmnist"]["needs"] == ["mnist"]
    assert command("data", "get", "cmnist", *where, "--json").last_json["paths"]["mnist"].endswith("mnist.npz")
    found = command("data", "check", "cmnist", "--rho", "0.05", *where, "--json").last_json["splits"]
    assert found["train"]["rows"] == 54_000 and 2_500 < found["train"]["conflicting"] < 2_900
    assert found["test"]["per_class"][0] == 980
    assert command("data", "show", "digits").returncode == 0 and (tmp_path / "digits.png").stat().st_size > 5_000


def test_absent_data_is_told_in_one_line(command: Command, tmp_path: Path) -> None:
    """No network (an unreachable proxy), no client, no cache: what to put where, exit 1, nothing left behind."""
    empty = tmp_path / "empty"
    empty.mkdir()
    alone = {"HOME": str(empty), "XDG_CACHE_HOME": str(empty), "DEBIASER_DATA": "", "PATH": ""}
    alone |= {"https_proxy": "http://127.0.0.1:9"}
    done = command("train", "cmnist", "--method", "pgd", "--quiet", env=alone)
    assert done.returncode == 1 and done.stdout == ""
    lines = [line for line in done.stderr.strip().splitlines() if "retry" not in line]
    assert len(lines) == 1 and "mnist.npz" in lines[0], done.stderr
    assert not [path for path in empty.rglob("*") if path.is_file() and path.suffix != ".lock"]


def test_output_that_nobody_reads(tmp_path: Path) -> None:
    line = f"{sys.executable} -m debiaser data list | head -c 1"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, cwd=tmp_path)
    assert "Traceback" not in done.stderr
