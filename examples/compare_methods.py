"""Methods side by side on one benchmark: `python examples/compare_methods.py`.

The same as commands: `debiaser train digits --method NAME` for each, then `debiaser report runs` for a page of all.
"""

import tempfile
from pathlib import Path

from debiaser.paper.experiment import run
from debiaser.paper.spec import new_spec

METHODS = ("vanilla", "pgd", "jtt", "dpr")


def main(folder: str, epochs: int | None = None) -> dict[str, float]:
    """Accuracy in percent on test images that go against the colour, by method; finished runs are reused."""
    found = {}
    for method in METHODS:
        result = run(new_spec("digits", method, rho=0.05, epochs=epochs), Path(folder)).result
        found[method] = result["metrics"]["conflicting"]
    return found


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as empty:
        print(main(empty))
