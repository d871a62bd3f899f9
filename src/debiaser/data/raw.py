"""Raw data sets as their authors published them: found, fetched where absent, checked by the digest of their content.

A set is looked for in a given folder, else the one that DEBIASER_DATA names, and in the user's cache folder. What is
checked is the content (SHA-256 of each part's bytes), so idx files, gzipped idx files and npz files all qualify. MNIST
is hashed in 0.08 s, so nothing is remembered about earlier checks: a file that changed is always noticed.
"""

import hashlib
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from platformdirs import user_cache_path

from debiaser.data.catalogue import SETS, Found, Part, RawSet, lacking
from debiaser.data.download import Progress, SourceError, obtain
from debiaser.data.formats import Bytes, FormatError
from debiaser.errors import Problem, known
from debiaser.files import locked, make_folder, write_arrays

__all__ = ["SETS", "Arrays", "Part", "RawSet", "Status", "cache", "digest", "fetch", "load", "roots", "status"]


@dataclass(frozen=True, eq=False)
class Arrays:
    """Images `(n, ...)` and labels `(n,)` as unsigned bytes, in the file order of the original."""

    x_train: Bytes
    y_train: Bytes
    x_test: Bytes
    y_test: Bytes


@dataclass(frozen=True)
class Status:
    """What is here of a set: where, whether its content is right (else the problem), and its images per class."""

    name: str
    title: str
    licence: str
    path: Path | None = None
    verified: bool = False
    problem: str | None = None
    counts: Mapping[str, list[int]] = field(default_factory=dict)
    unknown: str = ""  # what of its content could not be checked


def cache() -> Path:
    """The user's own folder for raw data."""
    return user_cache_path("debiaser", appauthor=False) / "data"


def roots(root: Path | None) -> tuple[Path, ...]:
    """The folders to look in, in this order: the given one, else the one DEBIASER_DATA names; then the cache."""
    named = os.environ.get("DEBIASER_DATA")
    first = root if root is not None else Path(named) if named else None
    return (cache(),) if first is None else (first, cache())


def digest(array: Bytes) -> str:
    """SHA-256 of the bytes of an array in row order, 64 hex digits."""
    return hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()


def load(name: str, root: Path | None = None, progress: Progress | None = None, fetch: bool = True) -> Arrays:
    """The set, read from the first place that has it and checked; fetched first if it is nowhere, unless forbidden."""
    raw = _known(name)
    here = _find(raw, root)
    if here is not None:
        return here[2]
    if not fetch:
        raise Problem(
            f"{name} is not in {_places(root)}; get it with `debiaser data get {name}`, or {_by_hand(raw, root)}"
        )
    return _fetch(raw, root, progress)[1]


def fetch(name: str, root: Path | None = None, progress: Progress | None = None) -> Path:
    """Where the set now lies, checked: where it was found, or `<name>.npz` in the given folder or the cache."""
    raw = _known(name)
    here = _find(raw, root)
    found = here[1] if here else _fetch(raw, root, progress)[0]
    return found.path


def status(name: str, root: Path | None = None) -> Status:
    """What is here of a set; nothing is fetched, and bad content is told, not raised."""
    raw = _known(name)
    try:
        here = _find(raw, root)
    except Problem as problem:
        return Status(name, raw.title, raw.licence, problem=str(problem))
    if here is None:
        return Status(name, raw.title, raw.licence, problem=_incomplete(raw, root))
    form, found, arrays = here
    labels = {"train": arrays.y_train, "test": arrays.y_test}
    counts = {split: np.bincount(values).tolist() for split, values in labels.items()}
    return Status(name, form.title, form.licence, found.path, verified=True, counts=counts, unknown=form.unknown)


def _known(name: str) -> RawSet:
    if name not in SETS:
        raise known("raw data set", name, SETS)
    return SETS[name]


def _find(raw: RawSet, root: Path | None) -> tuple[RawSet, Found, Arrays] | None:
    """The set, or else what stands in for it, from the first place that has it."""
    for form in (raw, *raw.stands_in):
        here = _search(form, roots(root), raw.name)
        if here is not None:
            return form, *here
    return None


def _folders(raw: RawSet, root: Path) -> tuple[Path, ...]:
    """Where below a root the set may lie: as we name it, as torchvision does, or loose."""
    return root / raw.name, *((root / raw.also,) if raw.also else ()), root


def _incomplete(raw: RawSet, root: Path | None) -> str | None:
    """What lacks of a set that is there in part, in a folder of its own; None where nothing of it is there."""
    for each in roots(root):
        for folder in _folders(raw, each)[:-1]:
            if missing := lacking(raw.parts, folder):
                cure = f"put it there, or get the whole with `debiaser data get {raw.name}`"
                return f"{folder} lacks {', '.join(missing)}; {cure}"
    return None


def _search(raw: RawSet, folders: Sequence[Path], name: str) -> tuple[Found, Arrays] | None:
    """The first complete copy below the folders, checked; a `Problem` if its content is wrong.

    `name` is what a person would fetch.
    """
    for root in folders:
        for folder in _folders(raw, root):
            try:
                found = next(filter(None, (layout(raw.name, raw.parts, folder) for layout in raw.layouts)), None)
                if found is None:
                    continue
                return found, _checked(raw, found)
            except OSError as error:
                raise Problem(f"cannot read {raw.name} in {folder}: {error.strerror}; check its permissions") from error
            except FormatError as error:
                # The MNIST family shares its file names: loose files in a folder may be another set's.
                if folder == root and isinstance(error, ForeignError) and error.path.suffix != ".npz":
                    continue
                told = f"{error.path} {error.reason}"
                raise Problem(f"{told}; delete it, and the next attempt fetches {name} again") from error
    return None


class ForeignError(FormatError):
    """A file whose content is that of another set."""


def _checked(raw: RawSet, found: Found) -> Arrays:
    arrays = found.read()
    owners = {
        part.digest: (other.name, key) for other in SETS.values() for key, part in other.parts.items() if part.digest
    }
    for key, part in raw.parts.items():
        actual = digest(arrays[key][: part.rows])
        if part.digest and actual != part.digest:
            owner = owners.get(actual)
            reason = f"has other content in {key}: SHA-256 {actual[:12]}, expected {part.digest[:12]}"
            reason += f" (it is {owner[1]} of {owner[0]})" if owner else ""
            raise (ForeignError if owner and owner[0] != raw.name else FormatError)(found.files[key], reason)
    return Arrays(**arrays)


def _fetch(raw: RawSet, root: Path | None, progress: Progress | None) -> tuple[Found, Arrays]:
    """The set, fetched from the first source that answers and kept as one npz file; one process at a time."""
    folder = _destination(root)
    said = f"waiting for another process that fetches {raw.name}"
    waiting = (lambda: progress(said, 0, None)) if progress else None
    with locked(folder / f".{raw.name}.lock", waiting, raw.patience.whole):
        here = _search(raw, (folder,), raw.name)  # another process may have been quicker
        if here is not None:
            return here
        staging = folder / f".{raw.name}.fetch"
        path = folder / f"{raw.name}.npz"
        try:
            arrays = obtain(raw.sources, staging, lambda at: _accept(raw, at), raw.limit, raw.patience, progress)
            write_arrays(path, **vars(arrays))
        except SourceError as error:
            if not any(file.is_file() and file.stat().st_size for file in staging.rglob("*")):
                shutil.rmtree(staging, ignore_errors=True)  # else there is a part worth keeping
            raise Problem(f"cannot fetch {raw.name}: {error}; try again later, or {_by_hand(raw, folder)}") from error
        except Problem:
            shutil.rmtree(staging, ignore_errors=True)
            raise
        shutil.rmtree(staging, ignore_errors=True)
        return Found(dict.fromkeys(raw.parts, path), lambda: vars(arrays)), arrays


def _accept(raw: RawSet, folder: Path) -> Arrays:
    for layout in raw.layouts:
        found = layout(raw.name, raw.parts, folder)
        if found is not None:
            return _checked(raw, found)
    raise FormatError(folder, "does not hold all parts")


def _destination(root: Path | None) -> Path:
    if root is not None and os.access(make_folder(root), os.W_OK | os.X_OK):
        return root
    return make_folder(cache())


def _places(root: Path | None) -> str:
    return " or ".join(str(folder) for folder in roots(root))


def _by_hand(raw: RawSet, root: Path | None) -> str:
    folder = root if root is not None else roots(root)[0]
    stems = [f"{part.stem}.gz" for part in raw.parts.values() if part.stem]
    files = f" or its files {', '.join(stems)}" if stems else ""
    return f"put {raw.name}.npz (arrays {', '.join(raw.parts)}){files} into {folder / raw.name}"
