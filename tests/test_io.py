"""Files are whole or absent, a lock that cannot be had is told, and Python started once more imports no stranger."""

import json
import os
import re
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from debiaser.errors import Problem
from debiaser.io import locked, python, replacing, surroundings, write_arrays, write_json, write_text

SOURCE = Path(__file__).resolve().parents[1] / "src" / "debiaser"
MAY_START_PYTHON = {"io.py", "data/fetch.py"}  # pip is started in a folder that we have just made


def test_a_failure_leaves_the_former_content_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    write_text(path, "old")
    with pytest.raises(RuntimeError), replacing(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert path.read_text() == "old" and [each.name for each in tmp_path.iterdir()] == ["a.txt"]
    (tmp_path / "theirs").write_text("x")
    assert path.stat().st_mode == (tmp_path / "theirs").stat().st_mode, "permissions of an ordinary file"


def test_readers_never_see_half(tmp_path: Path) -> None:
    path, stop = tmp_path / "a.json", threading.Event()
    write_json(path, {"rows": [0] * 20_000})

    def write() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            write_json(path, {"rows": [number] * 20_000})

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(200):
            assert len(set(json.loads(path.read_text())["rows"])) == 1
    finally:
        stop.set()
        writer.join()


WRITER = """
import sys
from pathlib import Path
from debiaser.io import replacing
with replacing(Path(sys.argv[1]) / "theirs") as temporary:
    temporary.write_text("half")
    print("writing", flush=True)
    sys.stdin.readline()
    temporary.write_text("whole")
"""


def test_what_a_kill_left_is_swept_and_what_is_being_written_is_not(tmp_path: Path) -> None:
    line = [sys.executable, "-c", WRITER, str(tmp_path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    killed, alive = (subprocess.Popen(line, **pipes) for _ in range(2))
    for writer in (killed, alive):
        assert writer.stdout.readline() == "writing\n"
    killed.kill()
    killed.communicate()
    (tmp_path / ".notes.part").write_text("a person's own")
    assert len(list(tmp_path.glob(".*.part"))) == 3
    write_text(tmp_path / "ours", "x")
    assert len(list(tmp_path.glob(".*.part"))) == 2, "of the one that was killed nothing is left"
    alive.communicate("go on\n")
    assert alive.returncode == 0 and (tmp_path / "theirs").read_text() == "whole"
    assert {path.name for path in tmp_path.iterdir()} == {"ours", "theirs", ".notes.part"}


def test_arrays_come_back_without_pickle(tmp_path: Path) -> None:
    write_arrays(tmp_path / "a.npz", x=np.arange(3), y=np.array(["é", "b"]))
    with np.load(tmp_path / "a.npz", allow_pickle=False) as found:
        assert found["x"].tolist() == [0, 1, 2] and found["y"].tolist() == ["é", "b"]
    with pytest.raises(ValueError, match="pickle"):
        write_arrays(tmp_path / "b.npz", x=np.array([object()]))
    assert not (tmp_path / "b.npz").exists() and not list(tmp_path.glob("*.part"))


def test_what_stands_in_the_way_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(Problem, match="cannot write"):
        write_text(tmp_path / "file" / "below", "x")
    with pytest.raises(Problem, match="cannot write"), locked(tmp_path / "file" / "lock"):
        pass
    (tmp_path / "folder").mkdir()
    with pytest.raises(Problem, match="cannot write"), locked(tmp_path / "folder"):
        pass


def test_only_ordinary_files_are_replaced_and_links_are_followed(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(Problem, match="not an ordinary file"):
        write_text(tmp_path / "pipe", "x")
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    (tmp_path / "link").symlink_to(tmp_path / "target")
    write_text(tmp_path / "link", "x")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "target").read_text() == "x"


def test_a_second_one_waits(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    order: list[str] = []

    def second() -> None:
        with locked(tmp_path / "lock", "waits"):
            order.append("second")

    with locked(tmp_path / "lock"):
        thread = threading.Thread(target=second)
        thread.start()
        until = time.monotonic() + 10
        while caplog.messages != ["waits"] and time.monotonic() < until:
            time.sleep(0.01)
        order.append("first")
    thread.join(10)
    assert caplog.messages == ["waits"] and order == ["first", "second"]


POOL = """
from pathlib import Path
from debiaser.auditing.crossval import run_in_pool
try:
    run_in_pool([None, None], Path("nowhere"), 2, lambda step: None)
except AttributeError:
    print("a worker was given its job")
"""  # no guard of __name__: workers do not run the script that started them
COMMANDS = [("-m", "debiaser", "data", "list", "--json"), ("script.py",)]


@pytest.mark.parametrize("words", COMMANDS)
def test_a_file_among_the_data_is_never_imported(words: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(POOL)
    for name in ("random", "grp", "torch", "numpy", "debiaser"):
        (tmp_path / f"{name}.py").write_text("open('hacked', 'w')\nraise SystemExit('code of a stranger')\n")
    variables = surroundings(XDG_CACHE_HOME=str(tmp_path / "cache"))
    done = subprocess.run(python(*words), cwd=tmp_path, env=variables, input="", capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout and not (tmp_path / "hacked").exists(), done.stderr


def test_no_python_is_started_otherwise() -> None:
    found = [
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*.py")
        if re.search(r"\bsys\.executable\b", path.read_text(encoding="utf-8"))
    ]
    assert set(found) == MAY_START_PYTHON
