"""The store: one folder per finished run; `result.json` is written last, so its presence means done."""

import csv
import io
import json
import os
import platform
import re
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from debiaser import __version__
from debiaser.bench.spec import PROTOCOL, Spec
from debiaser.files import write_text

Result = dict[str, Any]
PARTS: dict[str, Any] = {
    **dict.fromkeys(("spec", "metrics", "seconds", "rows", "environment"), dict),
    **dict.fromkeys(("dataset", "method", "recipe"), str),
    **dict.fromkeys(("seed", "samples_seen"), int | float),
    "rho": int | float | None,
}
HISTORY = (
    *("stage", "epoch", "seen", "lr", "loss", "valid_loss", "valid_accuracy"),
    *("unbiased", "aligned", "conflicting", "worst_group", "seconds"),
)


def read_result(run_dir: Path) -> Result | None:
    """The result of a finished run; None where there is none, or none that is whole and this folder's."""
    try:
        return examine(run_dir / "result.json", run_dir.name)
    except (OSError, ValueError, RecursionError):
        return None


def examine(path: Path, key: str) -> Result:
    """The result in a file that should be that of the run `key`; a ValueError says what is wrong with it."""
    try:
        result: Result = json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)
    except json.JSONDecodeError as error:
        raise ValueError("it is no complete JSON") from error
    if not isinstance(result, dict) or "protocol" not in result:
        raise ValueError("it is no result of debiaser")
    if result["protocol"] != PROTOCOL:
        raise ValueError(f"it was made under protocol {result['protocol']}, this version has {PROTOCOL}")
    if result.get("key") != key:
        raise ValueError("its name is not that of the run in it")
    for name, kind in PARTS.items():
        if not isinstance(result.get(name), kind):
            raise ValueError(f"it has no usable '{name}'")  # noqa: TRY004 (one kind of error for the caller)
    if not all(value is None or is_number(value) for value in result["metrics"].values()):
        raise ValueError("its metrics are not all numbers")
    return result


def refuse(constant: str) -> float:
    """NaN and infinity have no place in a result."""
    raise ValueError(constant)


def is_number(value: object) -> bool:
    """Whether it is a number, truth values aside."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def write_history(path: Path, history: Iterable[dict[str, Any]]) -> None:
    """One line per epoch; `seen` counts the samples of all stages so far."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, HISTORY, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    seen = 0
    for row in history:
        seen += row["seen"]
        writer.writerow({**row, "seen": seen})
    write_text(path, stream.getvalue())


def environment(device: str, world_size: int = 1) -> dict[str, Any]:
    """What a result depends on besides its spec."""
    import numpy as np
    import torch

    return {
        "debiaser": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "commit": commit(),
        "device": device,
        "threads": torch.get_num_threads(),
        "platform": platform.platform(),
        "processor": processor(),
        "cores": os.cpu_count(),
        "world_size": world_size,
    }


def processor() -> str:
    """What the processor is called, where the system tells."""
    try:
        facts = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor()
    named = re.search(r"^model name\s*:\s*(.+)$", facts, re.MULTILINE)
    return named[1].strip() if named else platform.machine()


def commit() -> str | None:
    """The commit of the checkout this package runs from, with a plus sign if it was changed since; else None."""
    here = Path(__file__).parent

    def git(*words: str) -> str:
        done = subprocess.run(["git", "-C", str(here), *words], capture_output=True, text=True, timeout=10, check=True)  # noqa: S603, S607
        return done.stdout.strip()

    try:
        if not git("ls-files", "--error-unmatch", str(Path(__file__))):
            return None
        changed = git("status", "--porcelain", "--", str(here.parent))
        return git("rev-parse", "--short=12", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return None


def summary(result: Result, run_dir: Path, resumed: bool) -> dict[str, Any]:
    """What `train --json` prints."""
    names = ("dataset", "method", "rho", "seed", "recipe", "metrics", "seconds", "rows", "samples_seen", "published")
    return {**{name: result[name] for name in names}, "run_dir": str(run_dir), "resumed": resumed}


def new_result(spec: Spec, **found: Any) -> Result:
    """The result of a run: its identity and what was found."""
    return {
        "protocol": PROTOCOL,
        "key": spec.key,
        "spec": spec.plain(),
        "dataset": spec.dataset,
        "method": spec.label,
        "rho": spec.rho,
        "seed": spec.seed,
        "recipe": spec.recipe.name,
        **found,
    }
