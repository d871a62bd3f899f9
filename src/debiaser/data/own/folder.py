"""A folder of pictures: one folder per class, with or without train/ valid/ test/ above them."""

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from debiaser.data.images import Files
from debiaser.data.own.rows import SPLIT_OF, Excluded, Rows, first, shown, told
from debiaser.errors import Problem

ENDINGS = "jpg jpeg jpe jfif png webp gif bmp tif tiff ppm pgm pbm pnm avif jp2"
IMAGES = frozenset(f".{ending}" for ending in ENDINGS.split())
TABLES = (".csv", ".tsv", ".parquet")
JUNK = frozenset({"__MACOSX", "Thumbs.db", "desktop.ini"})


def read_folder(root: Path) -> Rows:
    """The pictures below each class folder, however deep; what is no picture is counted in a note."""
    tops = _folders(root)
    parts, notes = _parts(root, tops)
    paths, labels, splits = [], [], []
    folders: list[str] = []
    passed: Counter[str] = Counter()
    loose: list[str] = []
    for split, top in parts:
        loose += [told(entry.name) for entry in _entries(top) if entry.is_file() and is_image(entry.name)]
        for group in _folders(top):
            for path, is_folder in _walk(group):
                if not is_image(path):
                    passed.update([] if is_folder else [Path(path).suffix.lower() or "no extension"])
                elif is_folder:
                    folders.append(path)
                else:
                    paths.append(path)
                    labels.append(told(group.name))
                    splits.append(split)
    if not paths:
        raise _nothing(root, loose)
    if len(set(labels)) == 1:
        raise _one_class(Path(paths[0]), Path(parts[0][1]))
    if loose:
        notes.append(f"{len(loose):,} pictures lie outside any class folder and were passed over: {first(loose)}")
    if passed:
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in passed.most_common(5))
        notes.append(f"files that are not pictures were passed over: {kinds}")
    odd = [Excluded(told(os.path.relpath(path, root)), "is a folder", "unreadable") for path in folders]
    return Rows(
        source=str(root),
        ids=[told(os.path.relpath(path, root)) for path in paths],
        labels=labels,
        images=Files(paths),
        paths=[told(path) for path in paths],
        split=splits if any(splits) else None,
        columns={"extension": [Path(path).suffix.lower() for path in paths]},
        excluded=odd,
        notes=notes,
        places=np.arange(len(paths)),
        total=len(paths),
    )


def is_image(name: str) -> bool:
    """Whether a file name ends like that of a picture."""
    return os.path.splitext(name)[1].lower() in IMAGES  # noqa: PTH122 - twenty times faster than Path


def _parts(root: Path, tops: list[Path]) -> tuple[list[tuple[str, Path]], list[str]]:
    """The folders that hold class folders, each with its split: the root itself with none, or train, valid, test."""
    named = [
        (SPLIT_OF[top.name.lower()], top) for top in tops if top.name.lower() in SPLIT_OF and not top.name.isdigit()
    ]
    splits = {split for split, _ in named}
    if "train" not in splits or (len(splits) == 1 and len(tops) > 1):
        return [("", root)], []
    others = [told(top.name) for top in tops if top not in [folder for _, folder in named]]
    return named, [f"folders beside train, valid and test were passed over: {first(others)}"] if others else []


def _nothing(root: Path, loose: list[str]) -> Problem:
    table = next((entry.name for entry in _entries(root) if entry.name.lower().endswith(TABLES)), None)
    hint = f", or name the table in it: {root / told(table)}" if table else ""
    if loose:
        what = f"{len(loose):,} pictures lie directly in {root}, in no class folder"
        return Problem(f"{what}; put each into a folder that is named by its class{hint}")
    return Problem(f"no pictures in {root}; expected a folder for each class with pictures in it{hint}")


def _one_class(image: Path, top: Path) -> Problem:
    """What to do where all pictures lie in one folder: it may be the one that holds the class folders."""
    only = top / image.relative_to(top).parts[0]
    deeper = [told(folder.name) for folder in _folders(only)]
    hint = f"; if {first(deeper)} are the classes, name the folder {told(str(only))}" if len(deeper) > 1 else ""
    return Problem(f"only one class, '{shown(told(only.name))}': a folder for each class is needed{hint}")


def _folders(root: Path) -> list[Path]:
    return [root / entry.name for entry in _entries(root) if _is_folder(entry)]


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """Whether it is a folder, or a link to one; where that may not be known, neither may what is in it."""
    try:
        return entry.is_dir()
    except OSError as error:
        raise _unread(entry.path, error) from error


def _unread(path: Path | str, error: OSError) -> Problem:
    return Problem(f"cannot read {path}: {error.strerror}; check its permissions")


def _entries(folder: Path | str) -> list[os.DirEntry[str]]:
    """What lies in a folder by name, hidden and system files aside."""
    try:
        with os.scandir(folder) as found:
            entries = [entry for entry in found if not entry.name.startswith(".") and entry.name not in JUNK]
    except OSError as error:
        raise _unread(folder, error) from error
    return sorted(entries, key=lambda entry: entry.name)


def _walk(top: Path) -> Iterator[tuple[str, bool]]:
    """Every path below a folder and whether it is a folder; links are followed, but nothing is visited twice."""
    waiting, seen = [str(top)], set()
    while waiting:
        folder = waiting.pop()
        try:
            facts = Path(folder).stat()
        except OSError as error:  # it was removed, or may not be looked at
            raise _unread(folder, error) from error
        if (facts.st_dev, facts.st_ino) in seen:
            continue
        seen.add((facts.st_dev, facts.st_ino))
        below = []
        for entry in _entries(folder):
            is_folder = _is_folder(entry)
            yield entry.path, is_folder
            if is_folder:
                below.append(entry.path)
        waiting += reversed(below)
