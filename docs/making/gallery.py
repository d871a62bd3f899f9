"""The gallery page from finished runs: `python docs/making/gallery.py RUNS_DIR...`.

For every benchmark among the runs: a mark for its table, which `make results` fills from `results/`, and per class the
training images with the highest and the lowest score of one run that has scores. Writes docs/gallery.md and
docs/pictures/gallery_*.png; benchmarks that are on the page and not among these runs stay on it.
"""

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from debiaser.io import write_text
from debiaser.report.figures import write_sheet
from debiaser.report.runs import Arrays, Details, Result, find_runs, read_details
from debiaser.report.tables import method_name, place

DOCS = Path(__file__).resolve().parents[1]
SHOWN, COLOURS, MOST_CLASSES = 3, 128, 10
PART = re.compile(r"<!-- gallery: (\S+) -->\n.*?<!-- end of gallery -->\n", re.DOTALL)
HEAD = """# Gallery

Training images with their scores, from real runs. A score is high where an image goes against what the biased network
has learnt, so the upper rows should show images that the shortcut does not explain. `docs/making/gallery.py` makes this
page from run folders; the tables average all runs in `results/` with the same settings. Finished reports:
[coloured digits](reports/coloured_digits.html), [Waterbirds](reports/waterbirds.html),
[film reviews](reports/reviews.html).
"""


def scored_rows(samples: Arrays, classes: int) -> list[tuple[str, list[np.ndarray | None]]]:
    """The highest- and lowest-scored images as rows of a sheet with one column per class."""
    columns = []
    for label in range(classes):
        members = np.flatnonzero(samples["train_labels"] == label)
        ranked = members[np.argsort(-samples["train_scores"][members], kind="stable")]
        high, low = ranked[:SHOWN], ranked[::-1][:SHOWN]
        columns.append([*high, *[None] * (SHOWN - len(high)), *low, *[None] * (SHOWN - len(low))])
    names = ["high score"] * SHOWN + ["low score"] * SHOWN
    return [
        (name, [None if column[k] is None else samples["train_images"][column[k]] for column in columns])
        for k, name in enumerate(names)
    ]


def small(path: Path) -> Path:
    """The image with few colours."""
    with Image.open(path) as image:
        reduced = image.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
    reduced.save(path, optimize=True)
    return path


def with_scores(results: Sequence[Result]) -> tuple[Result, Arrays] | None:
    """The first run, PGD before others, that kept scored images."""
    for result in sorted(results, key=lambda each: (each["method"] != "pgd", str(each["key"]))):
        details: Details = read_details(result["folder"])
        if details.samples is not None and len(details.samples["train_rows"]):
            return result, details.samples
    return None


def part(dataset: str, results: Sequence[Result]) -> str:
    """What the page says about one benchmark; its sheet is written."""
    _, rho, _, recipe = place(results[0])
    usual = "" if results[0]["spec"]["options"] else " usual"
    chosen = f"recipe={recipe}" + (f" rho={rho:g}" if rho is not None else "")
    table = f"<!-- results: {dataset}{usual} {chosen} -->\n<!-- end of results -->"
    lines = [f"## {dataset}", "", table, ""]
    found = with_scores(results)
    if found:
        lines += picture_lines(dataset, *found)
    return f"<!-- gallery: {dataset} -->\n" + "\n".join(lines) + "\n<!-- end of gallery -->\n"


def picture_lines(dataset: str, result: Result, samples: Arrays) -> list[str]:
    """The sheet of one run and its caption."""
    names = [str(name) for name in result["classes"]][:MOST_CLASSES]
    path = small(write_sheet(DOCS / "pictures" / f"gallery_{dataset}.png", names, scored_rows(samples, len(names))))
    top = np.concatenate(
        [
            members[np.argsort(-samples["train_scores"][members], kind="stable")][:SHOWN]
            for label in range(len(names))
            if len(members := np.flatnonzero(samples["train_labels"] == label))
        ]
    )
    known: Any = samples["train_conflicting"][top]
    caption = f"{method_name(result['method'])}, {setting_words(result)}, seed {result['seed']}."
    if (known >= 0).all():
        caption += f" Of the {len(top)} images with a high score, {int((known == 1).sum())} go against the shortcut."
    return [f"![Training images of {dataset} with high and with low scores](pictures/{path.name})", "", caption, ""]


def setting_words(result: Result) -> str:
    """`rho 0.05, recipe fast`."""
    _, rho, _, recipe = place(result)
    return f"recipe {recipe}" if rho is None else f"rho {rho:g}, recipe {recipe}"


def main(folders: Sequence[str]) -> None:
    results = [result for folder in folders for result in find_runs(Path(folder)).results]
    by_dataset: dict[str, list[Result]] = {}
    for result in results:
        by_dataset.setdefault(str(result["dataset"]), []).append(result)
    page = DOCS / "gallery.md"
    old = page.read_text() if page.exists() else ""
    kept = {match[1]: match[0] for match in PART.finditer(old)}
    kept |= {dataset: part(dataset, found) for dataset, found in by_dataset.items()}
    write_text(page, HEAD + "".join(f"\n{kept[name]}" for name in sorted(kept)))
    print(f"{page}: {', '.join(sorted(kept))}")


if __name__ == "__main__":
    main(sys.argv[1:])
