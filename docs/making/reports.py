"""Finished reports to open without installing: `python docs/making/reports.py NAME... --work DIR --data DIR`.

    coloured_digits    the audit that `debiaser demo` makes of its own digits, sixty marks, debias
    reviews            film reviews with a planted sentence: audit, sixty marks, debias
    waterbirds         the training images of Waterbirds: audit, sixty marks, debias

Each is a real run with default options (the digits with the demo's epochs), as the first lines of the README have it;
the known groups of `benchmarks/fix.py`, or the colours of the digits, answer the marks in place of a person. Runs are
kept below --work and resumed from there. The page becomes docs/reports/NAME.html: folders of the machine are replaced
by NAME, and images are made smaller until the page has less than 2 MB. Images of Waterbirds may not be passed on, so
its page leaves them out and says why. Offensive words of the reviews are masked (OFFENSIVE), and the page says so.
"""

import argparse
import base64
import io
import json
import os
import re
import subprocess
import sys
from importlib import util
from pathlib import Path
from types import ModuleType
from typing import Any

import pandas as pd
from PIL import Image

import debiaser
from debiaser.cli.runs import AUDIT_EPOCHS
from debiaser.paper.experiment import load
from debiaser.paper.spec import new_spec

ROOT = Path(__file__).resolve().parents[2]
REPORTS = ROOT / "docs" / "reports"
LARGEST, SIDES = 2_000_000, (256, 192, 144, 112, 80)
IMAGE = re.compile(r"data:image/webp;base64,([A-Za-z0-9+/=]+)")
LEFT_OUT = "(<code>--redact images</code>); everything else is here."
WHY = {"waterbirds": "Their sources, CUB and Places, state no licence that would let us pass them on."}
MASKED = "Offensive words of the reviews are masked in this published copy."
OFFENSIVE = re.compile(r"\b(?:bitch|cunt|dyke|fagg?ot|fuck|nigg(?:er|a)|retard|shit|slut|whore)\w*", re.IGNORECASE)
ABSOLUTE = re.compile(r"(?<![\w.~$}<>/-])/(?:[\w.-]+/){2,}[\w.-]+")


def coloured_digits(work: Path, _: Path | None) -> Path:
    """The audit in the demo, its sixty samples marked by their known colour, and debias."""
    subprocess.run([sys.executable, "-m", "debiaser", "demo", "--out", str(work)], check=True)
    digits, marks, out = load(new_spec("digits", "vanilla", rho=0.05), None), work / "marks.csv", work / "debiased"
    against = digits.truth["train"].conflicting(digits.train.y).tolist()  # a file is named by its row
    asked = pd.read_csv(work / "audit" / "to_mark.csv")
    asked["mark"] = ["conflicting" if against[int(Path(each).stem)] else "aligned" for each in asked.id]
    asked[["id", "mark"]].to_csv(marks, index=False)
    debiaser.debias(work / "images", marks=marks, epochs=AUDIT_EPOCHS, out=out)
    return out


def reviews(work: Path, data: Path | None) -> Path:
    """The second draw of the benchmark of that name."""
    return marked_and_fixed(work, data, "reviews_sentence", draw=1, text="text")


def waterbirds(work: Path, data: Path | None) -> Path:
    """All training images; places are the groups."""
    return marked_and_fixed(work, data, "waterbirds", draw=0, image="image", redact=frozenset({"images"}))


def marked_and_fixed(work: Path, data: Path | None, name: str, draw: int, **options: Any) -> Path:
    """Audit, answer the sixty samples to mark by their groups, debias: the folder of the last."""
    if data is None:
        raise SystemExit(f"{name} needs --data DIR, the folder that holds the published sets")
    chosen = benchmark().SETS[name]
    train, _ = chosen.draw(data, draw)
    source, marks, out = work / f"{name}.csv", work / "marks.csv", work / "debiased"
    work.mkdir(parents=True, exist_ok=True)
    train[[chosen.kind, "label", "group"]].to_csv(source, index=False)
    options |= {"label": "label", "group": "group", "seed": draw}
    if not marks.exists():
        asked = debiaser.audit(source, out=work / "audit", **options).to_mark(60)
        ids = train.image if chosen.kind == "image" else [str(number + 1) for number in range(len(train))]
        truth = pd.Series(train.group.to_numpy(), index=ids)
        pd.DataFrame({"id": asked.id, "mark": truth[asked.id].to_numpy()}).to_csv(marks, index=False)
    debiaser.debias(source, marks=marks, out=out, **options)
    return out


def benchmark() -> ModuleType:
    """`benchmarks/fix.py`, which knows how the sets are drawn."""
    spec = util.spec_from_file_location("fix", ROOT / "benchmarks" / "fix.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules["fix"] = util.module_from_spec(spec)  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def without_folders(page: str, folder: Path, name: str) -> str:
    """The page in which the source, and the folder that holds its files, are called `name`."""
    source = json.loads((folder / "audit.json").read_text())["source"]
    paths = pd.read_csv(folder / "scores.csv")["path"].dropna().astype(str).tolist()
    homes = [source, str(folder), str(folder.resolve())]
    if len(paths) > 1 and all(path.startswith("/") for path in paths):
        homes.append(os.path.commonpath(paths))
    for home in sorted({*homes, *(str(Path(home).parent) for home in homes if home.startswith("/"))}, key=len)[::-1]:
        page = page.replace(home, name)
    left = sorted({each for each in ABSOLUTE.findall(IMAGE.sub("", page)) if Path(each).exists()})
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

    return IMAGE.sub(drawn, page)


def publish(name: str, folder: Path) -> None:
    """Put the page of a finished run into docs/reports."""
    page = without_folders((folder / "report.html").read_text(), folder, name)
    if name in WHY:
        if LEFT_OUT not in page:
            raise SystemExit("the page does not say that images were left out")
        page = page.replace(LEFT_OUT, f"{LEFT_OUT} {WHY[name]}")
    if name == "reviews":
        page = OFFENSIVE.sub(lambda match: match[0][0] + "*" * (len(match[0]) - 1), page)
        page = page.replace("</header>", f'<p class="note">{MASKED}</p></header>')
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


MAKERS = {made.__name__: made for made in (coloured_digits, reviews, waterbirds)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", choices=MAKERS)
    parser.add_argument("--work", type=Path, required=True, help="where the runs are kept")
    parser.add_argument("--data", type=Path, help="the folder that holds the published sets")
    given = parser.parse_args()
    for name in given.names:
        publish(name, MAKERS[name](given.work / name, given.data))


if __name__ == "__main__":
    main()
