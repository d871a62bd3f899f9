"""Sets that are published as a folder or an archive of files: where they may lie, what they must hold, who has them."""

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from debiaser.data.archives import ENDINGS, Bundle, open_bundle
from debiaser.data.cache import user_cache
from debiaser.data.fetch import PATIENCE, Patience, Source, SourceError, obtain
from debiaser.data.formats import FormatError
from debiaser.data.images import DecodeError, decode
from debiaser.data.sources import roots
from debiaser.errors import Problem
from debiaser.io import locked, make_folder
from debiaser.progress import track

PICTURES = (".jpg", ".jpeg", ".png")
LAST_BYTES = (b"\xff\xd9", b"IEND\xaeB`\x82")  # how a JPEG and a PNG end


@dataclass(frozen=True)
class FolderSet:
    """What we know of such a set: its names on disk, the files per part that it must hold, and where it is to be had.

    `check` gives rows per class and part, or raises what is wrong; `contents` says what to put there; `page` is for
    people; `sources` are for us, where no login is needed.
    """

    name: str
    title: str
    licence: str
    contents: str
    page: str
    check: Callable[[Bundle, Mapping[str, int]], dict[str, list[int]]] = field(repr=False)
    counts: Mapping[str, int] = field(default_factory=dict)
    also: tuple[str, ...] = ()
    sources: tuple[Source, ...] = ()
    limit: int = 1 << 33  # bytes that are received or unpacked at most
    patience: Patience = PATIENCE


def look(known: FolderSet, root: Path | None) -> Path | None:
    """The first of `<name>/`, `<name>.tar`, `<name>.zip`, ... in the folders that are looked in; nothing is opened."""
    for folder in roots(root):
        for name in (known.name, *known.also):
            if (folder / name).is_dir():
                return folder / name
            for end in ENDINGS:
                if (folder / f"{name}{end}").is_file():
                    return folder / f"{name}{end}"
    return None


def opened(known: FolderSet, root: Path | None) -> Bundle:
    """The copy that is here; a `Problem` that says where to get it if there is none."""
    path = look(known, root)
    if path is None:
        raise absent(known, root)
    with telling(known):
        return open_bundle(path, user_cache("plain"), known.limit)


@contextmanager
def telling(known: FolderSet) -> Iterator[None]:
    """What is wrong with a file, as one line that ends with what to do."""
    try:
        yield
    except FormatError as error:
        raise Problem(f"{error.path} {error.reason}; {known.name} is to be had from {known.page}") from error
    except OSError as error:
        raise Problem(f"cannot read {error.filename or known.name}: {error.strerror}; check its permissions") from error


def absent(known: FolderSet, root: Path | None) -> Problem:
    """The line for a set that is nowhere."""
    places = roots(root)
    where = " or ".join(str(place) for place in places)
    get = f"`debiaser data get {known.name}` fetches it, or " if known.sources else ""
    return Problem(
        f"{known.name} is not in {where}; {get}get it from {known.page} and put {known.contents} into "
        f"{places[0] / known.name}, or the archive beside it as {known.name}.zip or {known.name}.tar"
    )


def compare(path: Path, expected: Mapping[str, int], found: Mapping[str, int]) -> None:
    """Refuses a set with other counts than those expected of it."""
    for part, count in expected.items():
        if found.get(part, 0) != count:
            raise FormatError(path, f"holds {found.get(part, 0):,} rows of {part} where {count:,} are expected")


def pictures_in(bundle: Bundle, folder: str) -> list[str]:
    """The pictures below a folder, sorted; a `FormatError` if there are none."""
    start = f"{folder}/"
    names = sorted(name for name in bundle.entries if name.startswith(start) and name.lower().endswith(PICTURES))
    if not names:
        raise FormatError(bundle.path, f"has no pictures in {start}")
    return names


def check_set(known: FolderSet, bundle: Bundle) -> dict[str, list[int]]:
    """Rows per class and part, once names, counts and the ends of all pictures are found right.

    A picture that was cut off lacks the bytes that end its format; one without them is decoded before it is judged.
    """
    with telling(known):
        counts = known.check(bundle, known.counts)
        names = [name for name in bundle.entries if name.lower().endswith(PICTURES)]
        for name in track(names, f"checking {known.name}"):
            if not bundle.end(name, 8).endswith(LAST_BYTES):
                try:
                    decode(bundle.read(name))
                except DecodeError as error:
                    raise FormatError(bundle.path, f"holds {name!r}, which {error}") from error
    return counts


def fetch(known: FolderSet, root: Path | None) -> Path:
    """Where the set lies, checked; fetched as one archive if it is nowhere and no login is needed."""
    if look(known, root):
        bundle = opened(known, root)
        check_set(known, bundle)
        return bundle.path
    if not known.sources:
        raise absent(known, root)
    folder = (
        root
        if root is not None and os.access(make_folder(root), os.W_OK | os.X_OK)
        else make_folder(user_cache("data"))
    )
    waiting = f"waiting for another process that fetches {known.name}"
    with locked(folder / f".{known.name}.lock", waiting, known.patience.whole):
        here = look(known, folder)  # another process may have been quicker
        return here or _fetch(known, folder)


def _fetch(known: FolderSet, folder: Path) -> Path:
    staging = folder / f".{known.name}.fetch"
    try:
        archive = obtain(known.sources, staging, lambda at: _accept(known, at), known.limit, known.patience)
    except SourceError as error:
        if not any(file.is_file() and file.stat().st_size for file in staging.rglob("*")):
            shutil.rmtree(staging, ignore_errors=True)  # else there is a part worth keeping
        put = f"put {known.contents} into {folder / known.name}"
        raise Problem(
            f"cannot fetch {known.name}: {error}; try again later, or get it from {known.page} and {put}"
        ) from error
    with archive.open("rb") as stream:
        end = ".zip" if stream.read(2) == b"PK" else ".tar.gz"
    path = archive.replace(folder / f"{known.name}{end}")
    shutil.rmtree(staging, ignore_errors=True)
    return path


def _accept(known: FolderSet, folder: Path) -> Path:
    """The one archive that a source delivered, if it holds what it must."""
    (path,) = (each for each in folder.iterdir() if each.is_file())
    known.check(open_bundle(path, folder / "plain", known.limit), known.counts)
    return path
