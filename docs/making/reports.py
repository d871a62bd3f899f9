"""Finished reports to open without installing: `python docs/making/reports.py NAME FOLDER`.

FOLDER is what `debiaser audit` or `debiaser debias` wrote (--out); its page becomes docs/reports/NAME.html. Folders of
the machine are replaced by NAME, and images are made smaller until the page has less than 2 MB. Those in the
repository were made from:

    coloured_digits    debiaser demo                                                   debiaser-demo/audit
    reviews            debiaser debias train-1.csv --marks marks.csv --seed 1          debiaser-debias

where train-1.csv is what `benchmarks/fix.py reviews_sentence` draws, and the marks are its groups.
"""

import base64
import io
import json
import os
import re
import sys
from pathlib import Path

import pandas as pd
from PIL import Image

REPORTS = Path(__file__).resolve().parents[1] / "reports"
LARGEST, SIDES = 2_000_000, (256, 192, 144, 112, 80)
PICTURE = re.compile(r"data:image/webp;base64,([A-Za-z0-9+/=]+)")
ABSOLUTE = re.compile(r"(?<![\w.~$}<>/-])/(?:[\w.-]+/){2,}[\w.-]+")


def without_folders(page: str, folder: Path, name: str) -> str:
    """The page in which the source, and the folder that holds its files, are called `name`."""
    source = json.loads((folder / "audit.json").read_text())["source"]
    paths = pd.read_csv(folder / "scores.csv")["path"].dropna().astype(str).tolist()
    homes = [source, str(folder), str(folder.resolve())]
    if len(paths) > 1 and all(path.startswith("/") for path in paths):
        homes.append(os.path.commonpath(paths))
    for home in sorted({*homes, *(str(Path(home).parent) for home in homes if home.startswith("/"))}, key=len)[::-1]:
        page = page.replace(home, name)
    left = sorted({each for each in ABSOLUTE.findall(PICTURE.sub("", page)) if Path(each).exists()})
    if left:
        raise SystemExit(f"the page still names files of this machine: {', '.join(left[:5])}")
    return page


def smaller(page: str, side: int) -> str:
    """The page with every image at most `side` pixels wide and high."""

    def drawn(match: re.Match[str]) -> str:
        image = Image.open(io.BytesIO(base64.b64decode(match[1])))
        image.thumbnail((side, side), Image.Resampling.LANCZOS)
        stream = io.BytesIO()
        image.save(stream, "WEBP", quality=65, method=6)
        coded = base64.b64encode(stream.getvalue()).decode()
        return match[0] if len(coded) >= len(match[1]) else f"data:image/webp;base64,{coded}"

    return PICTURE.sub(drawn, page)


def main(name: str, folder: str) -> None:
    page = without_folders((Path(folder) / "report.html").read_text(), Path(folder), name)
    for side in SIDES:
        if len(page.encode()) < LARGEST:
            break
        page = smaller(page, side)
    else:
        if len(page.encode()) >= LARGEST:
            raise SystemExit(f"the page has {len(page.encode()):,} bytes however small its images are")
    REPORTS.mkdir(exist_ok=True)
    (REPORTS / f"{name}.html").write_text(page)
    print(f"docs/reports/{name}.html: {len(page.encode()) / 1e6:.2f} MB")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    main(*sys.argv[1:])
