"""A method that is not in the package, from a file."""

from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import ROOT, Done
from debiaser.errors import Misuse, Problem
from debiaser.paper.experiment import run
from debiaser.paper.spec import new_spec

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


ODD = """
import enum
from dataclasses import dataclass
from typing import Literal
import torch
class Colour(enum.Enum):
    RED = 1
@dataclass(frozen=True)
class Base:
    def fit(self, task):
        return task.new_model()
@dataclass(frozen=True)
class Needs(Base):
    strength: float
@dataclass(frozen=True)
class Kinds(Base):
    kind: Literal["soft", "hard"] = "soft"
    start: float | str = "auto"
    sizes: tuple[int, ...] = (1, 2)
    def __post_init__(self):
        assert self.start != 0, "start must not be 0"
@dataclass(frozen=True)
class Coloured(Base):
    colour: Colour = Colour.RED
@dataclass(frozen=True)
class Fails:
    def fit(self, task):
        return 1 / 0
@dataclass(frozen=True)
class Forgets:
    def fit(self, task):
        task.new_model()
@dataclass(frozen=True)
class Notes:
    def fit(self, task):
        task.journal.note("score", torch.ones(3))
        return task.new_model()
"""


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    (tmp_path / "odd.py").write_text(ODD)
    return tmp_path / "odd.py"


def test_fields_of_many_kinds(odd: Path) -> None:
    spec = new_spec("digits", f"{odd}:Kinds", changes=["kind=hard", "start=0.5"])
    assert spec.fields == {"kind": "hard", "start": 0.5, "sizes": (1, 2)}
    assert new_spec("digits", f"{odd}:Kinds", changes=["start=auto"]).fields["start"] == "auto"
    assert new_spec("digits", f"{odd}:Needs", changes=["strength=2"]).fields == {"strength": 2.0}


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("Needs", [], "strength.*--set"),
        ("Kinds", ["kind=warm"], "kind must be soft or hard, got 'warm'"),
        ("Kinds", ["sizes=3,4"], "sizes must be left out"),
        ("Kinds", ["start=0"], "start must not be 0"),
        ("Coloured", [], "the field colour is a Colour"),
    ],
)
def test_fields_that_cannot_be_meant(odd: Path, name: str, changes: list[str], words: str) -> None:
    with pytest.raises(Misuse, match=words):
        new_spec("digits", f"{odd}:{name}", changes=changes)


@pytest.mark.parametrize("text", ["def (", "import absent_module", "raise SystemExit(3)"])
def test_a_file_that_cannot_be_loaded(tmp_path: Path, text: str) -> None:
    (tmp_path / "mine.py").write_text(text)
    with pytest.raises(Problem, match=r"mine\.py cannot be loaded"):
        new_spec("digits", f"{tmp_path / 'mine.py'}:Mine")


def test_what_a_method_does_wrong_is_told_as_its_own(odd: Path, tmp_path: Path) -> None:
    for name, words in (
        ("Fails", "Fails failed: ZeroDivisionError"),
        ("Forgets", "must return the network"),
        ("Notes", "one number for each"),
    ):
        with pytest.raises(Problem, match=words):
            run(new_spec("digits", f"{odd}:{name}"), tmp_path)


def test_a_method_may_train_without_the_loop(odd: Path, tmp_path: Path) -> None:
    assert run(new_spec("digits", f"{odd}:Base"), tmp_path).result["samples_seen"] == 0
