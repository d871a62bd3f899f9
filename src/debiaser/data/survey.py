"""The first look at every picture: readable or not, its size, its digests; remembered, so that it happens once.

Each picture is decoded once, at reduced scale (a cut-off file shows at any scale), so that what cannot be read is known
before training begins. What was seen is kept in the user's cache by path, size and time of change of the file.
"""

import hashlib
import os
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import ExifTags, Image

from debiaser.data.decoding import ORIENTATION, DecodeError, Pixels, decode, open_header
from debiaser.data.formats import kept_arrays
from debiaser.data.pictures import Contents, content_digest
from debiaser.data.raw import cache
from debiaser.errors import Problem
from debiaser.files import write_arrays

Progress = Callable[[str, int, int | None], None]

THUMB = 12  # the side of the colour thumbnail that near duplicates must share
FLAT = 3  # grey levels that neighbours must differ by to count: noise in flat parts gives no bits
SIDE = 256  # pictures beyond twice this are decoded reduced, which moves their digests a little
CHUNK = 1024
SIDEWAYS = {5, 6, 7, 8}  # orientation flags that swap width and height
VERSION = 2  # of what is kept: raise it when the look changes


@dataclass(frozen=True, eq=False)
class Survey:
    """What was seen of n pictures, one entry each; `reason` is "" where the picture can be read."""

    reason: npt.NDArray[np.str_]
    content: npt.NDArray[np.uint8]  # (n, 16) digest of the bytes
    drawing: npt.NDArray[np.uint64]  # 64 bits: is a pixel brighter than its left neighbour
    thumb: npt.NDArray[np.uint8]  # (n, 12, 12, 3)
    sides: npt.NDArray[np.int32]  # (n, 2) width and height, upright
    windowed: npt.NDArray[np.bool_]
    facts: npt.NDArray[np.str_]  # (n, 4), see FACTS

    def __len__(self) -> int:
        return len(self.reason)

    def take(self, rows: npt.NDArray[np.int64]) -> "Survey":
        """What was seen of these rows."""
        return Survey(*(getattr(self, each.name)[rows] for each in fields(self)))


FACTS = ("picture format", "picture mode", "camera", "compression")
FACT_LENGTH, REASON_LENGTH = 40, 160
PENDING = "was not looked at"


def new_survey(n: int) -> Survey:
    """Room for n pictures, nothing seen yet."""
    return Survey(
        reason=np.zeros(n, f"<U{REASON_LENGTH}"),
        content=np.zeros((n, 16), np.uint8),
        drawing=np.zeros(n, np.uint64),
        thumb=np.zeros((n, THUMB, THUMB, 3), np.uint8),
        sides=np.zeros((n, 2), np.int32),
        windowed=np.zeros(n, np.bool_),
        facts=np.zeros((n, len(FACTS)), f"<U{FACT_LENGTH}"),
    )


def survey(contents: Contents, name: str, folder: Path | None = None, progress: Progress | None = None) -> Survey:
    """What there is to see of each picture; what was seen before is remembered in `folder` under this name."""
    path = (folder or cache().parent / "reading") / f"{hashlib.blake2b(name.encode(), digest_size=12).hexdigest()}.npz"
    found, stamps = new_survey(len(contents)), np.zeros((len(contents), 16), np.uint8)
    kept = kept_arrays(path) or {}
    known = {stamp.tobytes(): place for place, stamp in enumerate(kept.get("stamps", ()))}
    fresh: list[int] = []
    for row in range(len(contents)):
        try:
            stamp = hashlib.blake2b(
                f"{VERSION}\0{contents.stamp(row)}".encode(errors="surrogateescape"), digest_size=16
            )
        except DecodeError as error:
            found.reason[row] = str(error)
            continue
        stamps[row] = np.frombuffer(stamp.digest(), np.uint8)
        if stamp.digest() not in known:
            fresh.append(row)
    _recall(found, stamps, known, kept)
    if fresh:
        try:
            _look_at(contents, fresh, found, progress)
        finally:
            _remember(path, found, stamps)  # also when interrupted: what was seen need not be seen again
    return found


def look(content: bytes, found: Survey, row: int) -> None:
    """Fills in what there is to see of one picture."""
    found.content[row] = np.frombuffer(content_digest(content), np.uint8)
    header = open_header(content)
    exif = _exif(header)
    found.sides[row] = header.size[::-1] if exif.get(ORIENTATION, 1) in SIDEWAYS else header.size
    found.facts[row] = [fact[:FACT_LENGTH] for fact in _facts(header, exif)]
    decoded = decode(content, SIDE)
    found.windowed[row] = decoded.windowed
    found.drawing[row], found.thumb[row] = digests(decoded.pixels)


def digests(pixels: Pixels) -> tuple[np.uint64, Pixels]:
    """The difference hash of 9 x 8 grey cells, and a 12 x 12 colour thumbnail."""
    image = Image.fromarray(pixels)
    grey = np.asarray(image.convert("L").resize((9, 8), Image.Resampling.BOX), np.int16)
    bits = np.packbits(grey[:, 1:] > grey[:, :-1] + FLAT)
    return bits.view(np.uint64)[0], np.asarray(image.resize((THUMB, THUMB), Image.Resampling.BOX))


def _facts(image: Image.Image, exif: Mapping[int, Any]) -> tuple[str, str, str, str]:
    """Format, mode, camera and, for a JPEG, a name for its quantisation tables: what software leaves behind."""
    words = [str(exif.get(tag, "")).strip("\0 ") for tag in (ExifTags.Base.Make, ExifTags.Base.Model)]
    tables = getattr(image, "quantization", None)
    compression = hashlib.blake2b(repr(tables).encode(), digest_size=4).hexdigest() if tables else ""
    return image.format or "", image.mode, " ".join(filter(None, words)), compression


def _exif(image: Image.Image) -> Mapping[int, Any]:
    try:
        return dict(image.getexif())
    except Exception:  # EXIF blocks are broken in every imaginable way, and these facts are a courtesy
        return {}


def _look_at(contents: Contents, rows: list[int], found: Survey, progress: Progress | None) -> None:
    def one(row: int) -> None:
        try:
            look(contents.read(row), found, row)
            found.reason[row] = ""
        except DecodeError as error:
            found.reason[row] = str(error)

    found.reason[rows] = PENDING
    with warnings.catch_warnings(), ThreadPoolExecutor(min(os.cpu_count() or 1, 8), "survey") as pool:
        warnings.simplefilter("ignore")  # of Pillow, about odd files: they are told as reasons
        for start in range(0, len(rows), CHUNK):
            part = rows[start : start + CHUNK]
            list(pool.map(one, part, chunksize=16))
            if progress:
                progress("looking at pictures", start + len(part), len(rows))


def _recall(
    found: Survey, stamps: npt.NDArray[np.uint8], known: dict[bytes, int], kept: Mapping[str, npt.NDArray[Any]]
) -> None:
    pairs = [(row, known[stamp.tobytes()]) for row, stamp in enumerate(stamps) if stamp.tobytes() in known]
    if not pairs:
        return
    rows, places = np.array(pairs).T
    for each in fields(found):
        getattr(found, each.name)[rows] = kept[each.name][places]


def _remember(path: Path, found: Survey, stamps: npt.NDArray[np.uint8]) -> None:
    seen = np.flatnonzero(stamps.any(1) & (found.reason != PENDING))
    kept = found.take(seen)
    with suppress(Problem):  # a cache that cannot be written costs time at the next run, nothing else
        write_arrays(path, stamps=stamps[seen], **{each.name: getattr(kept, each.name) for each in fields(kept)})
