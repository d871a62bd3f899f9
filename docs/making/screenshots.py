"""Small screenshots of real pages for the docs: `python docs/making/screenshots.py DEMO_PAGE AUDIT_PAGE`.

The pages are those that `debiaser demo` wrote and docs/reports/coloured_digits.html; a headless chromium draws
them. They are reduced to a palette, so that the repository stays small.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

PICTURES = Path(__file__).resolve().parents[1] / "pictures"
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-background-networking")
WIDTH, HEIGHT, COLOURS = 1100, 1250, 256


def take(page: Path, picture: Path, height: int = HEIGHT) -> Path:
    """The top of the page as a PNG with few colours."""
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        raise SystemExit("no chromium on PATH: install one, then run this again")
    with tempfile.TemporaryDirectory() as folder:
        shot = Path(folder) / "shot.png"
        line = [program, *FLAGS, f"--user-data-dir={folder}/profile", f"--window-size={WIDTH},{height}"]
        subprocess.run([*line, f"--screenshot={shot}", page.resolve().as_uri()], check=True, capture_output=True)
        with Image.open(shot) as image:
            image.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(picture, optimize=True)
    return picture


def main(demo: str, audit: str) -> None:
    for page, name in ((demo, "demo_page"), (audit, "audit_page")):
        picture = take(Path(page), PICTURES / f"{name}.png")
        print(f"{picture.name}: {picture.stat().st_size / 1024:.0f} KB")


if __name__ == "__main__":
    main(*sys.argv[1:])
