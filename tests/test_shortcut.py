"""A shortcut that is there is named, checked on planted rows, trained against and priced: the whole command."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from conftest import debiaser
from debiaser.data import bias as inject
from debiaser.data.benchmarks import digits

CLASSES, PER_CLASS = 6, 110


def coloured(folder: Path, pictures: np.ndarray, target: np.ndarray, rho: float) -> Path:
    """These digits in a folder per class, the colour going with the digit but for a share rho."""
    stream = np.random.default_rng(int(100 * rho))
    bias = inject.draw_bias(target, rho, CLASSES, stream)
    colours = torch.from_numpy(inject.draw_colours(bias, stream))
    read = inject.coloured(torch.from_numpy(pictures), colours)(torch.arange(len(pictures)))
    for row, picture in enumerate((read * 255).round().byte().permute(0, 2, 3, 1).numpy()):
        path = folder / str(target[row]) / f"{row:04d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture).save(path)
    return folder


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_debias_names_the_shortcut_chooses_proves_and_prices(tmp_path: Path) -> None:
    parts = list(digits.parts().values())
    x, y = (np.concatenate([getattr(part, name) for part in parts]) for name in ("images", "target"))
    rows = np.concatenate([np.flatnonzero(y == k)[:PER_CLASS] for k in range(CLASSES)])
    data = coloured(tmp_path / "data", x[rows], y[rows], 0.03)
    words = ("debias", str(data), "--out", str(tmp_path / "out"), "--epochs", "4", "--json", "--quiet")
    done = debiaser(*words, env={"XDG_CACHE_HOME": str(tmp_path / "cache")}, timeout=900)
    assert done.returncode == 0, done.stderr
    found = done.last_json
    assert found["views"][0]["name"] == "colour" and found["views"][0]["excess"]["value"] > 5
    assert 0 == found["conflicting_share"]["low"] < found["conflicting_share"]["high"] < 1
    if found["verdict"] == "biased":  # so few rows may leave it open
        assert found["planted"]["view"] == "colour" and found["planted"]["conflicts"] > 50
        assert all(each["planted"] is not None for each in found["selection"]["candidates"])
    assert found["price"]["before"]["follow"] > 50 and "your data" in found["price"]["sentence"]
    page = (tmp_path / "out" / "report.html").read_text()
    assert "When it pays" in page and "After: " in page
