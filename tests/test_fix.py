"""The fix, as commands: marks make groups, a candidate that makes them equal is chosen, exported and told."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from conftest import assert_refused, debiaser
from debiaser.data.benchmarks import digits

QUICK = ("--epochs", "4", "--seeds", "1", "--workers", "1", "--quiet")
TINTS = {"red": (255, 60, 60), "green": (60, 255, 60)}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of threes and fives, nine of ten in the colour of their class."""
    root, stream = tmp_path_factory.mktemp("digits"), np.random.default_rng(0)
    part, rows = digits.parts()["train"], []
    for number, digit in enumerate((3, 5)):
        for image, pixels in enumerate(part.images[part.target == digit][:60]):
            word = [*TINTS][number if stream.random() < 0.9 else 1 - number]
            tinted = pixels.squeeze()[..., None] / 255 * np.array(TINTS[word])
            path = root / f"{digit}-{image}.png"
            Image.fromarray(tinted.astype(np.uint8)).resize((32, 32)).save(path)
            rows.append({"image": str(path), "label": digit, "colour": word})
    pd.DataFrame(rows).to_csv(root / "table.csv", index=False)
    return root / "table.csv"


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where results go, with a cache of our own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield tmp_path_factory.mktemp("fix") / "out"


@pytest.fixture(scope="module")
def marked(source: Path, out: Path) -> tuple[Path, str]:
    """A file of sixty marks, answered by the truth, and what `debias` says with it."""
    done = debiaser("debias", str(source), "--group", "colour", "--out", str(out), *QUICK)
    assert done.returncode == 0, done.stderr
    asked = pd.read_csv(out / "to_mark.csv")
    assert len(asked) == 60 and asked.label.value_counts().eq(30).all() and asked.why.value_counts().eq(30).all()
    marks = out.parent / "marks.csv"
    truth = pd.read_csv(source).set_index("image").colour
    asked.assign(mark=asked.path.map(truth))[["id", "mark"]].to_csv(marks, index=False)
    done = debiaser("debias", str(source), "--group", "colour", "--out", str(out), "--marks", str(marks), *QUICK)
    assert done.returncode == 0, done.stderr
    return marks, done.stdout


def test_marks_choose_and_export_a_model_of_groups(marked: tuple[Path, str], out: Path) -> None:
    _, told = marked
    found = json.loads((out / "audit.json").read_text())
    assert found["propagation"]["marked"] == 60 and found["propagation"]["accuracy"]["value"] > 85, "colour is easy"
    assert [cell["value"] for cell in found["propagation"]["groups"]] == ["green", "red"] * 2
    rows = {row["name"]: row for row in found["selection"]["candidates"]}
    groups = [name for name, row in rows.items() if row["uses_groups"] == "uses marks"]
    assert groups == ["equal group weight", "GroupDRO", "balanced subsets (DFR)"]
    assert "worst of" in found["selection"]["by"] and found["selection"]["chosen"] in rows
    lines = told.splitlines()
    assert found["propagation"]["sentence"] in lines and any(line.startswith("Exported: ") for line in lines[-4:])
    names = {path.name for path in (out / "models").iterdir()}
    assert {"vanilla-class-balanced", "equal-group-weight", "groupdro", "balanced-subsets-dfr"} <= names
    config = json.loads((out / "model" / "config.json").read_text())
    assert config["method"] == found["exported"]
    card = (out / "models" / "groupdro" / "README.md").read_text()
    assert "This model uses marks." in card and "| GroupDRO (uses marks) |" in card and "| biased model |" in card
    assert ("This model uses marks." in lines) == (found["exported"] in groups)


def test_another_candidate_is_exported_on_demand(marked: tuple[Path, str], source: Path, out: Path) -> None:
    words = ("debias", str(source), "--group", "colour", "--out", str(out), "--marks", str(marked[0]), *QUICK)
    done = debiaser(*words, "--export", "groupdro")
    assert done.returncode == 0 and "Exported: GroupDRO. You asked for it" in done.stdout, done.stderr
    assert json.loads((out / "model" / "config.json").read_text())["method"] == "GroupDRO"
    done = debiaser(*words, "--export", "nonsense")
    assert done.returncode == 2 and "there is no candidate 'nonsense'" in done.stderr and "groupdro" in done.stderr
    alone = debiaser("debias", str(source), "--export", "groupdro", "--out", str(out), "--quiet")
    assert_refused(alone, 2, "GroupDRO balances groups: give --marks FILE, or --group COLUMN and --use-groups")


def test_known_groups_are_used_only_when_asked(marked: tuple[Path, str], source: Path, out: Path) -> None:
    done = debiaser("debias", str(source), "--group", "colour", "--use-groups", "--out", str(out), *QUICK)
    assert done.returncode == 0, done.stderr
    found = json.loads((out / "audit.json").read_text())
    assert {row["uses_groups"] for row in found["selection"]["candidates"]} == {"", "uses group labels"}
    assert len(found["groups"]["cells"]) == 4 and found["groups"]["association"]["cramers_v"] > 0.5
    done = debiaser("debias", str(source), "--use-groups", *QUICK)
    assert done.returncode == 2 and "--use-groups needs --group" in done.stderr
