"""Builds the sdist, from it the wheel, installs that into an empty environment and tries it; without a network.

`python tests/package.py`, part of `make check`. Dependencies are borrowed from the environment that runs this.
"""

import io
import os
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import venv
import zipfile
from contextlib import redirect_stdout
from pathlib import Path

from setuptools import build_meta

ROOT = Path(__file__).resolve().parents[1]
INSIDE = {"debiaser/py.typed", "debiaser/report/audit.html", "debiaser/report/page.css", "debiaser/paper/paper.csv"}
LARGEST = 1_000_000  # bytes of either file


def build(folder: Path) -> Path:
    """The wheel, made from the sdist alone."""
    os.chdir(ROOT)
    with tarfile.open(folder / build_meta.build_sdist(str(folder))) as archive:
        archive.extractall(folder, filter="data")
    os.chdir(next(path for path in folder.iterdir() if path.is_dir()))
    wheel = folder / build_meta.build_wheel(str(folder))
    absent = INSIDE - set(zipfile.ZipFile(wheel).namelist())
    assert not absent, f"not in the wheel: {absent}"
    for path in folder.glob("*.*"):
        assert path.is_dir() or path.stat().st_size < LARGEST, f"{path.name} has {path.stat().st_size:,} bytes"
    return wheel


def attempt(wheel: Path, folder: Path) -> str:
    """What the installed command says of its version, after a training and its page."""
    venv.create(folder)
    python = folder / "bin" / "python"
    line = [sys.executable, "-m", "pip", "--python", str(python), "-q", "--disable-pip-version-check", "install"]
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run([*line, "--no-index", "--no-deps", str(wheel)], check=True, env=clean)
    own = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
    (own / "borrowed.pth").write_text(f"{sysconfig.get_path('purelib')}\n")

    def run(*words: str) -> str:
        done = subprocess.run([str(folder / "bin" / "debiaser"), *words], cwd=folder, env=clean, capture_output=True)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode()

    assert (own / "debiaser" / "__init__.py").exists()
    run("train", "digits", "--method", "pgd", "--epochs", "1", "--quiet")
    run("report", "runs")
    return run("--version").strip()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        made = Path(temporary).resolve() / "dist"
        made.mkdir()
        with redirect_stdout(sys.stderr if "-v" in sys.argv else io.StringIO()):
            wheel = build(made)
        os.chdir(ROOT)
        print(f"{wheel.name}: {attempt(wheel, made.parent / 'environment')}, installed and tried")
