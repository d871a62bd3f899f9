"""A shortcut that is there is named, checked on planted rows, counted in the field, and priced: whole commands."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from debiaser.data import bias as inject
from debiaser.data.benchmarks import digits

CLASSES, PER_CLASS = 6, 110
EPOCHS = "4"


def coloured(folder: Path, rows: np.ndarray, target: np.ndarray, rho: float, flat: bool = False) -> Path:
    """These digits in a folder per class (or in one), the colour going with the digit but for a share rho."""
    stream = np.random.default_rng(int(100 * rho))
    bias = inject.draw_bias(target, rho, CLASSES, stream)
    colours = torch.from_numpy(inject.draw_colours(bias, stream))
    pictures = inject.coloured(torch.from_numpy(rows), colours)(torch.arange(len(rows)))
    for row, picture in enumerate((pictures * 255).round().byte().permute(0, 2, 3, 1).numpy()):
        path = folder / ("" if flat else str(target[row])) / f"{row:04d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture).save(path)
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    parts = list(digits.parts().values())
    x, y = (np.concatenate([getattr(part, name) for part in parts]) for name in ("pictures", "target"))
    chosen = [np.flatnonzero(y == k) for k in range(CLASSES)]
    train = np.concatenate([rows[:PER_CLASS] for rows in chosen])
    rest = np.concatenate([rows[PER_CLASS:] for rows in chosen])
    home = tmp_path_factory.mktemp("shortcut")
    return {
        "data": coloured(home / "data", x[train], y[train], 0.03),
        "like": coloured(home / "like", x[rest], y[rest], 0.03, flat=True),
        "against": coloured(home / "against", x[rest], y[rest], 0.99, flat=True),
        "out": home / "out",
        "cache": home / "cache",
    }


def run(command: str, folders: dict[str, Path], field: str) -> Any:
    options = ("--field", str(folders[field]), "--out", str(folders["out"]), "--epochs", EPOCHS, "--json", "--quiet")
    line = [sys.executable, "-m", "debiaser", command, str(folders["data"]), *options]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(folders["cache"])}
    done = subprocess.run(line, capture_output=True, text=True, timeout=900, env=env)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_a_shortcut_is_named_and_its_share_in_the_field_is_counted(folders: dict[str, Path]) -> None:
    like, against = run("audit", folders, "like"), run("audit", folders, "against")
    assert like["views"][0]["name"] == "colour" and like["views"][0]["excess"]["value"] > 5
    assert 0 == like["conflicting_share"]["low"] < like["conflicting_share"]["high"] < 1
    if like["verdict"] != "biased":  # so few rows may leave it open; then nothing is counted either
        assert like["field"]["value"] is None and "cannot be counted" in like["field"]["sentence"]
        return
    assert like["planted"]["view"] == "colour" and like["planted"]["conflicts"] > 50
    assert like["field"]["low"] <= like["field"]["value"] <= like["field"]["high"]
    assert against["field"]["value"] > 40 > like["field"]["value"]


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_debias_chooses_proves_and_prices(folders: dict[str, Path]) -> None:
    found = run("debias", {**folders, "out": folders["out"].with_name("debias")}, "against")
    candidates = found["selection"]["candidates"]
    assert all(each["planted"] is not None for each in candidates) or found["verdict"] != "biased"
    assert found["price"]["before"]["follow"] > 50 and "your data" in found["price"]["sentence"]
    page = (folders["out"].with_name("debias") / "report.html").read_text()
    assert "When it pays" in page and "After: " in page
