"""A method that is not in the package, from a file."""

from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import ROOT, Done
from debiaser.bench.spec import new_spec
from debiaser.errors import Misuse

EXAMPLE = ROOT / "examples" / "own_method.py"


def test_the_example_runs_as_a_command(command: Callable[..., Done]) -> None:
    words = ("--epochs", "1", "--set", "strength=0.5", "--json", "--quiet")
    done = command("train", "digits", "--method", f"{EXAMPLE}:Balanced", *words)
    assert done.returncode == 0, done.stderr
    assert done.last_json["method"] == "Balanced" and done.last_json["metrics"]["score_auroc"] > 0.5
    assert done.last_json["published"] is None


def test_a_changed_file_is_another_run(tmp_path: Path) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text(EXAMPLE.read_text())
    before = new_spec("digits", f"{mine}:Balanced").key
    assert new_spec("digits", f"{mine}:Balanced").key == before
    mine.write_text(EXAMPLE.read_text() + "# changed")
    assert new_spec("digits", f"{mine}:Balanced").key != before


def test_mistakes_are_told(tmp_path: Path) -> None:
    with pytest.raises(Misuse, match="no file"):
        new_spec("digits", f"{tmp_path}/absent.py:Mine")
    with pytest.raises(Misuse, match=r"no dataclass Mine.*it has: Balanced"):
        new_spec("digits", f"{EXAMPLE}:Mine")
    with pytest.raises(Misuse, match=r"known: .*file.py:Class"):
        new_spec("digits", "mine")
    with pytest.raises(Misuse, match="strength"):
        new_spec("digits", f"{EXAMPLE}:Balanced", changes=["power=2"])
