"""Caches of audits: pixels, features, the first look at pictures, models that no folder of a person's holds."""

import shutil
from pathlib import Path

from debiaser.data.cache import user_cache

KEPT = {"data"}  # raw data sets are not a cache of audits


def remove_caches() -> int:
    """How many bytes were freed; raw data sets stay."""
    root, freed = user_cache("data").parent, 0
    for folder in sorted(root.iterdir()) if root.is_dir() else []:
        if folder.name in KEPT:
            continue
        freed += size_of(folder)
        shutil.rmtree(folder, ignore_errors=True) if folder.is_dir() else folder.unlink(missing_ok=True)
    return freed


def size_of(path: Path) -> int:
    """Bytes in a file, or in all files below a folder."""
    files = [path] if path.is_file() else [each for each in path.rglob("*") if each.is_file()]
    return sum(each.stat().st_size for each in files)
