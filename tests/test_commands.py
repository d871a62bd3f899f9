"""The commands, run as commands: what they print, where, and how they end."""

import csv
import json
import os
import re
import resource
import stat
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from conftest import ROOT, Done
from debiaser import __version__

Command = Callable[..., Done]
# What every result records of the program and the machine.
FACTS = (
    *("debiaser", "python", "torch", "numpy", "pillow", "scikit-learn", "scipy", "commit"),
    *("device", "threads", "platform", "processor", "cores", "world_size"),
)
QUICK = ("--epochs", "1", "--quiet", "--json")


def test_help_is_fast_and_names_the_commands(command: Command) -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = command("--help")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert (
        after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 1.5
    )  # of the processor, not of the wall
    assert done.returncode == 0 and {"demo", "train", "report", "data"} <= set(re.findall(r"\w+", done.stdout))
    modules = subprocess.run(
        [sys.executable, "-c", "import sys, debiaser.cli; print('torch' in sys.modules, 'matplotlib' in sys.modules)"],
        capture_output=True,
        text=True,
    )
    assert modules.stdout.strip() == "False False", "the help must not import what it does not need"
    assert command("--version").stdout.strip() == f"debiaser {__version__}"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("train", "nosuch", "--method", "pgd"), "unknown dataset 'nosuch'; known: .*digits"),
        (("train", "digits", "--method", "nosuch"), "unknown method 'nosuch'; known: .*pgd"),
        (("train", "digits", "--method", "pgd", "--set", "nosuch=1"), "unknown field 'nosuch'; known: alpha"),
        (("train", "digits", "--method", "pgd", "--set", "alpha"), "not key=value"),
        (("train", "digits", "--method", "pgd", "--set", "alpha=x"), "alpha must be a float"),
        (("train", "digits", "--method", "pgd", "--set", "alpha=0"), "alpha must be"),
        (("train", "digits", "--method", "pgd", "--set", "alpha=1.2"), "alpha must be"),
        (("train", "digits", "--method", "pgd", "--set", "p=0"), "p must be above 0"),
        (("train", "digits", "--method", "pgd", "--set", "p=nan"), "p must be a number"),
        (("train", "digits", "--method", "pgd", "--set", "joint=maybe"), "true or false"),
        (
            ("train", "digits", "--method", "pgd", "--set", "use=other"),
            "unknown use 'other'; known: resample, reweight",
        ),
        (("train", "digits", "--method", "pgd", "--rho", "1.5"), "rho must lie"),
        (("train", "digits", "--method", "pgd", "--rho", "0"), "rho must lie"),
        (("train", "digits", "--method", "pgd", "--noise", "1"), "noise must lie"),
        (("train", "digits", "--method", "pgd", "--epochs", "0"), "epochs must be at least 1"),
        (("train", "digits", "--method", "pgd", "--seed", "-1"), "seed must not be negative"),
        (("train", "digits", "--method", "pgd", "--recipe", "slow"), "unknown recipe 'slow'; known: fast, paper"),
        (("train", "digits", "--method", "pgd", "--net", "big"), "unknown network 'big'; known: .*simconv1"),
        (("train", "digits", "--method", "pgd", "--option", "a=1"), "unknown option of digits 'a'"),
        (("train", "digits", "--method", "pgd", "--device", "tpu"), "unknown device 'tpu'; known: auto, cpu"),
        (("train", "digits", "--method", "pgd", "--rhoo", "1"), "No such option: --rhoo; known: .*--rho"),
        (("train", "digits", "--method", "pgd", "--epochs", "many"), "--epochs.*valid integer"),
        (("train", "digits"), "--method"),
        (("train", "digits", "--method", "vanilla", "--set", "length=inf"), "length must be a finite number"),
        (("nosuch",), "No such command 'nosuch'; known: .*train"),
        (("demo", "--seeds", "0"), "seeds must be at least 1"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_2(command: Command, words: tuple[str, ...], message: str) -> None:
    done = command(*words)
    assert done.returncode == 2
    assert done.stdout == ""
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("debiaser: "), done.stderr
    assert re.search(message, lines[0])


def test_train_keeps_what_it_promises(command: Command, tmp_path: Path) -> None:
    done = command("train", "digits", "--method", "pgd", "--rho", "0.05", "--out", "r", *QUICK)
    assert done.returncode == 0, done.stderr
    found = done.last_json
    assert {"dataset", "method", "rho", "seed", "recipe", "metrics", "seconds", "run_dir", "resumed"} <= set(found)
    assert {"unbiased", "aligned", "conflicting", "worst_group"} <= set(found["metrics"])
    assert 0 < found["metrics"]["unbiased"] <= 100 and found["resumed"] is False
    assert set(found["seconds"]) == {"biased", "score", "debiased"}
    folder = tmp_path / found["run_dir"]
    assert {"result.json", "history.csv", "vectors.npz", "samples.npz", "model.safetensors"} <= {
        path.name for path in folder.iterdir()
    }
    assert not (folder / "checkpoint").exists()
    with np.load(folder / "vectors.npz", allow_pickle=False) as vectors:
        assert vectors["probability"].sum() == pytest.approx(1) and len(vectors["score"]) == 1167
        assert set(np.unique(vectors["conflicting"])) == {0, 1} and (vectors["label"] < 10).all()
    rows = list(csv.DictReader((folder / "history.csv").open()))
    assert [row["stage"] for row in rows] == ["biased", "debiased"] and rows[1]["seen"] == "2334"
    result = json.loads((folder / "result.json").read_text())
    assert result["spec"]["fields"]["alpha"] == 0.7 and result["environment"]["threads"] == 1
    assert set(FACTS) == {name for name, value in result["environment"].items() if value or name == "commit"}
    assert not list(tmp_path.rglob("*.part"))
    again = command("train", "digits", "--method", "pgd", "--rho", "0.05", "--out", "r", *QUICK)
    assert again.last_json == {**found, "resumed": True}
    fresh = command("train", "digits", "--method", "pgd", "--rho", "0.05", "--out", "r", "--fresh", *QUICK)
    assert fresh.last_json["resumed"] is False and fresh.last_json["metrics"] == found["metrics"]


def test_demo_shows_both_and_writes_a_page(command: Command, tmp_path: Path) -> None:
    done = command("demo", "--epochs", "1")
    assert done.returncode == 0, done.stderr
    assert "Vanilla" in done.stdout and "PGD" in done.stdout
    page = tmp_path / "debiaser-demo" / "report.html"
    assert str(page) in done.stdout and page.stat().st_size > 20_000
    assert re.search(r"pgd · debiased: done in", done.stderr)
    as_json = command("demo", "--epochs", "1", "--json", "--quiet").last_json
    assert [run["method"] for run in as_json["runs"]] == ["vanilla", "pgd"]
    assert as_json["runs"][0]["samples_seen"] == as_json["runs"][1]["samples_seen"], "the same number of samples seen"
    report = command("report", "debiaser-demo", "--out", "other.html", "--json")
    assert report.last_json["runs"] == 2 and (tmp_path / "other.html").exists()


def test_report_on_nothing_is_told(command: Command, tmp_path: Path) -> None:
    for words in (("report", "absent"), ("report", ".")):
        done = command(*words)
        assert done.returncode == 1 and len(done.stderr.strip().splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_out_that_cannot_be_written(command: Command, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    done = command("train", "digits", "--method", "vanilla", "--out", "file/runs", *QUICK)
    assert done.returncode == 1
    assert re.fullmatch(r"debiaser: cannot write .*file.*choose another folder", done.stderr.strip())
    assert (tmp_path / "file").read_text() == "in the way"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere: this test did not run")
def test_read_only_out(command: Command, tmp_path: Path) -> None:
    folder = tmp_path / "locked"
    folder.mkdir()
    folder.chmod(stat.S_IRUSR | stat.S_IXUSR)
    done = command("train", "digits", "--method", "vanilla", "--out", "locked/runs", *QUICK)
    assert done.returncode == 1 and "no permission" in done.stderr


def test_a_mistake_of_ours_says_so_and_leaves_a_file(tmp_path: Path) -> None:
    code = (
        "import sys, debiaser.cli as cli, debiaser.paper.spec as spec\n"
        "def broken(*a, **k): raise RuntimeError('boom')\n"
        "spec.new_spec = broken\n"
        "sys.argv = ['debiaser', 'train', 'digits', '--method', 'pgd']\n"
        "cli.main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 70 and "Traceback" not in done.stderr
    crash = Path(re.search(r"please send us (\S+)", done.stderr).group(1))
    assert "boom" in crash.read_text() and "Traceback" in crash.read_text()
    crash.unlink()


def ended(tmp_path: Path, what_happens: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """The command, when this happens in the middle of it."""
    code = (
        "import os, signal, sys, tempfile, time, debiaser.cli as cli\n"
        f"def app(**_):\n    {what_happens}\n"
        "cli.app = app\n"
        "cli.main()\n"
    )
    line, environment = [sys.executable, "-c", code], {**os.environ, **variables}
    return subprocess.run(line, capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=60)


@pytest.mark.parametrize(
    ("what_happens", "code", "told"),
    [
        ("raise MemoryError", 1, "memory ran out.*; end others"),
        ('raise RuntimeError("DefaultCPUAllocator: can\'t allocate memory")', 1, "memory ran out"),
        ("raise OSError(28, 'No space left on device', 'x.npy')", 1, "cannot write x.npy: the disk is full; free"),
        ("os.kill(os.getpid(), signal.SIGTERM); time.sleep(9)", 130, "interrupted; what was done is kept"),
        ("raise KeyboardInterrupt", 130, "interrupted"),
        ("raise BrokenPipeError", 130, "interrupted"),  # standard output is whole: it was the progress
    ],
)
def test_what_the_machine_does_is_told_in_one_line(tmp_path: Path, what_happens: str, code: int, told: str) -> None:
    done = ended(tmp_path, what_happens)
    assert done.returncode == code and done.stdout == "", done.stderr
    assert re.fullmatch(f"debiaser: {told}.*", done.stderr.strip()), done.stderr


def test_a_mistake_of_ours_where_no_file_can_be_written(tmp_path: Path) -> None:
    done = ended(tmp_path, "tempfile.tempdir = '/no/such/folder'; raise ZeroDivisionError")
    assert done.returncode == 70 and "--debug" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here: this test did not run")
@pytest.mark.parametrize("words", [("--version",), ("study", "list", "--json")])
def test_output_that_does_not_fit_on_the_disk(words: tuple[str, ...], tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        line = [sys.executable, "-m", "debiaser", *words]
        done = subprocess.run(line, stdout=full, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.strip().startswith("debiaser: cannot write standard output: the disk is full")
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr


def test_ctrl_c_while_the_command_is_loaded(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "class Impatient:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'debiaser.cli':\n            raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Impatient())\n"
        "from debiaser.__main__ import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
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
    for words in (("data", "show", "nosuch"), ("data", "get", "nosuch"), ("data", "check", "nosuch")):
        done = command(*words)
        assert done.returncode == 2 and "known: " in done.stderr and len(done.stderr.strip().splitlines()) == 1


def test_absent_data_is_told_in_one_line(command: Command, tmp_path: Path) -> None:
    """No network (an unreachable proxy), no client, no cache: what to put where, exit 1, nothing left behind."""
    empty = tmp_path / "empty"
    empty.mkdir()
    alone = {
        "HOME": str(empty),
        "XDG_CACHE_HOME": str(empty),
        "DEBIASER_DATA": "",
        "https_proxy": "http://127.0.0.1:9",
        "PATH": "",
    }
    done = command("train", "cmnist", "--method", "pgd", "--quiet", env=alone)
    assert done.returncode == 1 and done.stdout == ""
    lines = [line for line in done.stderr.strip().splitlines() if "retry" not in line]
    assert len(lines) == 1 and "mnist.npz" in lines[0], done.stderr
    assert not [path for path in empty.rglob("*") if path.is_file() and path.suffix != ".lock"]


def test_output_that_nobody_reads(tmp_path: Path) -> None:
    line = f"{sys.executable} -m debiaser data list | head -c 1"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, cwd=tmp_path)
    assert "Traceback" not in done.stderr
