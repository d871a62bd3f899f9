"""What a result depends on besides what was asked: versions, the commit, threads, the machine."""

import os
import platform
import re
import subprocess
from contextlib import suppress
from functools import cache
from importlib.metadata import version
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
        **{name: version(name) for name in ("pillow", "scikit-learn", "scipy")},
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
    facts = Path("/proc/cpuinfo")
    named = re.search(r"^model name\s*:\s*(.+)$", facts.read_text() if facts.is_file() else "", re.MULTILINE)
    return named[1].strip() if named else platform.processor() or platform.machine()


def commit() -> str | None:
    """The commit of the checkout this package runs from, with a plus sign if it was changed since; else None."""

    def git(*words: str) -> str:
        line = ["git", "-C", str(Path(__file__).parent), *words]
        return subprocess.run(line, capture_output=True, text=True, timeout=10, check=True).stdout.strip()  # noqa: S603

    try:
        git("ls-files", "--error-unmatch", __file__)  # else it is installed inside of somebody's checkout
        return git("describe", "--always", "--exclude=*", "--abbrev=12", "--dirty=+")
    except (OSError, subprocess.SubprocessError):
        return None


# Keeping the memory that a training step frees for the next step, which needs the same again

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of glibc's malloc.h
MOST, LARGEST = 512 * 2**20, 32 * 2**20  # bytes kept in all, and of one tensor


@cache
def keep_freed_memory() -> None:
    """Ask glibc to keep what this process frees; elsewhere nothing happens.

    By default it returns the top of the heap to the system again and again, and every step of a small network pays for
    some thousand page faults to get it back. For commands of our own: a library has no business with malloc.
    """
    import ctypes

    with suppress(AttributeError, OSError, TypeError):  # another C library, another system
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(TRIM_THRESHOLD, MOST)
        mallopt(MMAP_THRESHOLD, LARGEST)
