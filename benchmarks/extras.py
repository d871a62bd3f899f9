"""What the package and each extra take on disk, in an environment that has all: `python benchmarks/extras.py`.

Sizes are of the files that each distribution lists as its own, those of the package itself counted once.
"""

import json
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement

RESULT = Path(__file__).parent / "results" / "extras.json"
SHOWN = ("backbone", "models", "data", "images", "umap", "trainer", "lightning", "ray")


def closure(name: str, extra: str, found: set[str]) -> set[str]:
    """The distributions that installing this one brings, itself included."""
    found.add(name.lower())
    for text in distribution(name).requires or ():
        need = Requirement(text)
        if need.name.lower() in found or (need.marker and not need.marker.evaluate({"extra": extra})):
            continue
        try:
            for wanted in ("", *need.extras):
                closure(need.name, wanted, found)
        except PackageNotFoundError:
            found.discard(need.name.lower())  # an environment without it
    return found


def megabytes(names: set[str]) -> int:
    """What these take on disk."""
    files = (file for name in names for file in distribution(name).files or ())
    return round(sum(path.stat().st_size for path in (file.locate() for file in files) if path.is_file()) / 1e6)


def main() -> None:
    base = closure("debiaser", "", set())
    torch = {name for name in base if name == "torch" or name.startswith(("nvidia", "triton", "cuda"))}
    rows = [{"install": "debiaser, without torch", "MB": megabytes(base - torch)}]
    rows.append({"install": f"torch {distribution('torch').version}", "MB": megabytes(torch)})
    for extra in SHOWN:
        more = closure("debiaser", extra, set()) - base
        rows.append({"install": f"debiaser[{extra}], beside these", "MB": megabytes(more)})
    RESULT.write_text(json.dumps({"rows": rows}, indent=2) + "\n")
    print(RESULT.read_text())


if __name__ == "__main__":
    main()
