"""Python started once more: it finds this package, and nothing that lies in the current folder."""

import re
import subprocess
from pathlib import Path

import pytest

from debiaser.io import python, surroundings

SOURCE = Path(__file__).resolve().parents[1] / "src" / "debiaser"
# pip is started in a folder that we have just made.
MAY_START_IT_OTHERWISE = {"io.py", "data/fetch.py"}


POOL = """
from pathlib import Path
from debiaser.auditing import jobs
try:
    jobs.run_in_pool([Path("no-job"), Path("none-either")], 2, lambda step: None)
except FileNotFoundError:
    print("a worker looked for its job")
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
    assert set(found) == MAY_START_IT_OTHERWISE
