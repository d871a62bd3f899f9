"""What a result depends on besides what was asked: versions, the commit, threads, the machine."""

import os
import platform
import re
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from debiaser import __version__


def environment(device: str, world_size: int = 1) -> dict[str, Any]:
    """What a result depends on besides its spec."""
    import numpy as np
    import torch

    return {
        "debiaser": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        **{name: installed(name) for name in ("pillow", "scikit-learn", "scipy")},
        "commit": commit(),
        "device": device,
        "threads": torch.get_num_threads(),
        "platform": platform.platform(),
        "processor": processor(),
        "cores": os.cpu_count(),
        "world_size": world_size,
    }


def installed(package: str) -> str | None:
    """The version of a package; None where it is here under another name."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


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
