"""What is wrong with samples: unreadable images, copies, missing labels, classes that cannot be split."""

import hashlib
import os
import re
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from PIL import ExifTags, Image
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from debiaser.data.cache import load_arrays, user_cache
from debiaser.data.images import ORIENTATION, Contents, DecodeError, Pixels, content_digest, decode, open_header
from debiaser.data.own.rows import MISSING, Ints, Rows, as_labels, deal, first, shown, units_per_class
from debiaser.errors import Problem
from debiaser.io import write_arrays
from debiaser.progress import task

Floats = npt.NDArray[np.float32]

THUMB = 12  # the side of the colour thumbnail that near duplicates must share
FLAT = 3  # grey levels that neighbours must differ by to count: noise in flat parts gives no bits
SIDE = 256  # images beyond twice this are decoded reduced, which moves their digests a little
CHUNK = 1024
SIDEWAYS = {5, 6, 7, 8}  # orientation flags that swap width and height
VERSION = 3  # of what is kept: raise it when the look changes
FACTS = ("image format", "image mode", "camera", "compression")
FACT_LENGTH, REASON_LENGTH = 40, 160
PENDING = "was not looked at"


Survey = Any  # (n,) a record array: the first look at n images
LOOK = np.dtype(
    [
        ("reason", f"<U{REASON_LENGTH}"),  # "" where the image can be read
        ("content", np.uint8, 16),  # digest of the bytes
        ("drawing", np.uint64),  # 64 bits: is a pixel brighter than its left neighbour
        ("thumb", np.uint8, (THUMB, THUMB, 3)),
        ("sides", np.int32, 2),  # width and height, upright
        ("windowed", np.bool_),
        ("facts", f"<U{FACT_LENGTH}", len(FACTS)),  # see FACTS
    ]
)


def survey(contents: Contents, name: str, folder: Path | None = None) -> Survey:
    """What there is to see of each image; what was seen before is remembered in `folder` under this name."""
    path = (folder or user_cache("reading")) / f"{hashlib.blake2b(name.encode(), digest_size=12).hexdigest()}.npz"
    found, stamps = np.zeros(len(contents), LOOK).view(np.recarray), np.zeros((len(contents), 16), np.uint8)
    kept = load_arrays(path) or {}
    known = {stamp.tobytes(): place for place, stamp in enumerate(kept.get("stamps", ()))}
    fresh, again = list[int](), dict[int, int]()
    for row in range(len(contents)):
        try:
            words = f"{VERSION}\0{contents.stamp(row)}".encode(errors="surrogateescape")
        except DecodeError as error:
            found.reason[row] = str(error)
            continue
        stamp = hashlib.blake2b(words, digest_size=16).digest()
        stamps[row] = np.frombuffer(stamp, np.uint8)
        if stamp in known:
            again[row] = known[stamp]
        else:
            fresh.append(row)
    if again:
        found[list(again)] = kept["looks"][list(again.values())]
    if fresh:
        try:
            _look_at(contents, fresh, found)
        finally:  # also when interrupted: what was seen need not be seen again
            seen = np.flatnonzero(stamps.any(1) & (found.reason != PENDING))
            with suppress(Problem):  # a cache that cannot be written costs time at the next run, nothing else
                write_arrays(path, stamps=stamps[seen], looks=np.asarray(found[seen]))
    return found


def _look_at(contents: Contents, rows: list[int], found: Survey) -> None:
    """Fills in what there is to see of images: sides, digests, and what software leaves behind in a file."""

    def look(row: int) -> None:
        try:
            content = contents.read(row)
            header, decoded = open_header(content), decode(content, SIDE)
        except DecodeError as error:
            found.reason[row] = str(error)
            return
        try:
            exif = dict(header.getexif())
        except Exception:  # EXIF blocks are broken in every imaginable way, and these facts are a courtesy
            exif = {}
        found.content[row] = np.frombuffer(content_digest(content), np.uint8)
        found.sides[row] = header.size[::-1] if exif.get(ORIENTATION, 1) in SIDEWAYS else header.size
        camera = [str(exif.get(tag, "")).strip("\0 ") for tag in (ExifTags.Base.Make, ExifTags.Base.Model)]
        tables = getattr(header, "quantization", None)
        compression = hashlib.blake2b(repr(tables).encode(), digest_size=4).hexdigest() if tables else ""
        facts = (header.format or "", header.mode, " ".join(filter(None, camera)), compression)
        found.facts[row] = [fact[:FACT_LENGTH] for fact in facts]
        found.windowed[row] = decoded.windowed
        found.drawing[row], found.thumb[row] = digests(decoded.pixels)
        found.reason[row] = ""

    found.reason[rows] = PENDING
    with warnings.catch_warnings(), ThreadPoolExecutor(min(os.cpu_count() or 1, 8), "survey") as pool:
        warnings.simplefilter("ignore")  # of Pillow, about odd files: they are told as reasons
        with task("looking at images", len(rows)) as advance:
            for start in range(0, len(rows), CHUNK):
                part = rows[start : start + CHUNK]
                list(pool.map(look, part, chunksize=16))
                advance(len(part))


def digests(pixels: Pixels) -> tuple[np.uint64, Pixels]:
    """The difference hash of 9 x 8 grey cells, and a 12 x 12 colour thumbnail."""
    image = Image.fromarray(pixels)
    grey = np.asarray(image.convert("L").resize((9, 8), Image.Resampling.BOX), np.int16)
    bits = np.packbits(grey[:, 1:] > grey[:, :-1] + FLAT)
    return bits.view(np.uint64)[0], np.asarray(image.resize((THUMB, THUMB), Image.Resampling.BOX))


# Duplicates: exact copies by digest, near copies by perceptual hash; nothing is compared with everything.

BANDS = 4  # of 16 bits: hashes that differ in fewer than 4 bits share at least one, most that differ in 6 do
BITS = 6
WINDOW = 32  # neighbours compared in a bucket, ordered by brightness: bounds the work on sets of flat images
GAP, FAINT = 0.08, 4.0  # by how much thumbnails may differ: root mean square over their own spread, and its least value
SHAPE = 0.03  # relative difference of width / height
COMPARED_AT_ONCE = 4096


@dataclass(frozen=True)
class Duplicates:
    """Samples that hold the same thing; `across` where they lay on both sides of the given splits."""

    ids: tuple[str, ...]
    across: bool


def joined(n: int, *pairs: Ints) -> Ints:
    """(n,) numbers of the sets that pairs (p, 2) of samples connect, counted from 0 in order of first appearance."""
    ends = np.concatenate([np.zeros((0, 2), np.int64), *pairs])
    graph = coo_array((np.ones(len(ends), np.int8), (ends[:, 0], ends[:, 1])), shape=(n, n))
    return numbered(connected_components(graph, directed=False)[1])


def numbered(keys: Any) -> Ints:
    """(n,) numbers of the distinct keys, counted from 0 in order of first appearance."""
    number: Ints = pd.factorize(np.asarray(keys))[0].astype(np.int64)
    return number


def same(keys: Any) -> Ints:
    """Pairs (p, 2) that chain the samples of equal keys."""
    number = numbered(keys)
    order = np.argsort(number, kind="stable")
    equal = number[order][1:] == number[order][:-1]
    return np.stack([order[:-1][equal], order[1:][equal]], 1).astype(np.int64)


def near(seen: Survey) -> Ints:
    """Pairs (p, 2) of images that look the same: shape, drawing (hash) and colours (thumbnail) all agree.

    Both a hash and a thumbnail, since the hash of a drawing ignores its colour and that of a flat image says nothing.
    """
    colour, spread = np.zeros((len(seen), 3), np.float32), np.zeros(len(seen), np.float32)  # spread is 0 if it is flat
    for start in range(0, len(seen), COMPARED_AT_ONCE):
        part = slice(start, start + COMPARED_AT_ONCE)
        thumbs = seen.thumb[part].reshape(-1, THUMB * THUMB, 3).astype(np.float32)
        colour[part], spread[part] = thumbs.mean(1), np.sqrt(thumbs.var(1).mean(1))
    brightness = colour.sum(1)
    bands = np.ascontiguousarray(seen.drawing).view(np.uint16).reshape(-1, BANDS)
    found = [np.zeros((0, 2), np.int64)]
    for band in range(BANDS):
        order = np.lexsort((brightness, bands[:, band]))
        key = bands[order, band]
        for step in range(1, min(WINDOW, len(order) - 1) + 1):
            rows = np.flatnonzero(key[step:] == key[:-step])
            if not len(rows):
                break  # no bucket is that large
            found.append(_alike(seen, np.stack([order[rows], order[rows + step]], 1), colour, spread))
    return np.concatenate(found)


def _alike(seen: Survey, pairs: Ints, colour: Floats, spread: Floats) -> Ints:
    """The pairs whose hash, shape and mean colour agree (cheap to ask), and then their thumbnails, a few at a time."""
    drawing = seen.drawing[pairs]
    pairs = pairs[np.bitwise_count(drawing[:, 0] ^ drawing[:, 1]) <= BITS]
    width, height = np.maximum(seen.sides[pairs], 1).astype(np.float64).transpose(2, 1, 0)
    pairs = pairs[np.abs(np.log(width[0] * height[1] / (height[0] * width[1]))) <= SHAPE]
    gap = np.sqrt(np.square(colour[pairs[:, 0]] - colour[pairs[:, 1]]).mean(1))  # never above that of the thumbnails
    pairs = pairs[gap <= GAP * np.maximum(spread[pairs].min(1), FAINT)]
    kept = np.zeros(len(pairs), np.bool_)
    for start in range(0, len(pairs), COMPARED_AT_ONCE):
        part = pairs[start : start + COMPARED_AT_ONCE]
        left, right = seen.thumb[part[:, 0]].astype(np.float32), seen.thumb[part[:, 1]].astype(np.float32)
        gap = np.sqrt(np.square(left - right).mean((1, 2, 3)))
        kept[start : start + COMPARED_AT_ONCE] = gap <= GAP * np.maximum(spread[part].min(1), FAINT)
    return pairs[kept]


# The steps between samples as they were found and samples that can be learnt from: each leaves out, and says so.

SIDES = ("train", "valid", "test")  # of copies on several sides, those further right stay
TOKENS = 4  # words of a file name that are looked at
VALID, TEST = 0.1, 0.2  # shares that a split takes where none is given: of the training samples, of all
FEW = 20  # training samples of a class from which on its scores mean something


def labelled(rows: Rows) -> Rows:
    """The samples that have a label, with their class numbers."""
    name = rows.label_name
    labels = as_labels(rows.labels, name or "the folders", plain=not name)
    missing = (f"has no label in '{name}'", "missing label")
    uncertain = (f"has an uncertain label (-1) in '{name}'", "uncertain label")
    out = {int(row): missing if labels.y[row] == -1 else uncertain for row in np.flatnonzero(labels.y < 0)}
    return replace(rows, y=labels.y, classes=labels.classes).without(out).noting(*labels.notes)


def readable(rows: Rows, cache: Path | None) -> Rows:
    """The samples whose image can be read, or whose text is not empty; with what was seen of the images."""
    if rows.images is None:
        return rows.without({n: ("has no text", "unreadable") for n, t in enumerate(rows.texts or []) if not t.strip()})
    seen = survey(rows.images, rows.source if rows.paths is None else str(Path(rows.source).resolve()), cache)
    bad = np.flatnonzero(seen.reason != "")
    absent = [rows.ids[row] for row in np.flatnonzero(seen.reason == "is not there")]
    if absent and rows.label_name:
        told = f"{len(absent):,} of {len(rows):,} paths do not exist: {first(absent)}"
        if len(absent) == len(rows):
            raise Problem(f"{told}; paths are relative to the folder of the table, or absolute")
        rows = rows.noting(told)
    if len(bad) == len(rows):
        raise Problem(f"none of {len(rows):,} images can be read; the first, {first(rows.ids[:1])}, {seen.reason[0]}")
    return replace(rows, seen=seen).without({int(row): (str(seen.reason[row]), "unreadable") for row in bad})


def apart(rows: Rows) -> tuple[Rows, Ints, list[Duplicates]]:
    """Copies found and kept on one side of given splits; with the units (n,) that must stay together from here on."""
    if rows.seen is None:
        pairs = [same([" ".join(text.split()) for text in rows.texts or []])]  # texts are the same up to white space
    else:  # of exact copies, only the first is compared with others
        contents = np.array([digest.tobytes() for digest in rows.seen.content], object)
        firsts = np.unique(numbered(contents), return_index=True)[1]
        pairs = [same(contents), firsts[near(rows.seen[firsts])]]
    number = pd.Series(joined(len(rows), *pairs))
    copies = [np.asarray(members) for members in number.groupby(number).indices.values() if len(members) > 1]
    side = np.array([SIDES.index(split) for split in rows.split]) if rows.split else np.zeros(len(rows), np.int64)
    found, out = [], {}
    for members in copies:
        best = side[members].max()
        across = bool((side[members] != best).any())
        found.append(Duplicates(tuple(rows.ids[row] for row in members), across))
        kept = rows.ids[members[side[members] == best][0]]
        for row in members[side[members] < best].tolist():
            out[row] = (f"is a copy of {kept} in {SIDES[best]}", "duplicate across splits")
    if rows.unit is not None:  # a sample without a name is a unit of its own
        named = np.array([row for row, name in enumerate(rows.unit) if name.strip() not in MISSING], np.int64)
        pairs.append(named[same([rows.unit[row].strip() for row in named.tolist()])])
    if copies:
        torn = sum(len(np.unique(rows.y[members])) > 1 for members in copies)
        many = f"{sum(map(len, copies)):,} samples are copies of one another, {len(copies):,} different things"
        rows = rows.noting(
            f"{many}; they stay on one side",
            *([f"{len(out):,} copies on another side of the given splits were left out"] if out else []),
            *([f"{torn:,} of these things carry different labels: at least one is wrong"] if torn else []),
        )
    unit = np.delete(joined(len(rows), *pairs), list(out))
    return rows.without(out), numbered(unit), found


def check_classes(rows: Rows, unit: Ints) -> None:
    """Every class can be on two sides: it still has samples, and they are not all one thing."""
    counts = np.bincount(rows.y, minlength=len(rows.classes))
    gone = [shown(rows.classes[one]) for one in np.flatnonzero(counts == 0)]
    if gone:
        raise Problem(f"no sample that can be read is left of class {first(gone)}; fix its files, or remove it")
    if rows.unit is not None and len(np.unique(unit)) == 1:
        raise Problem("all samples are of one unit, so none can be held apart; name another column as --unit, or none")
    for one in np.flatnonzero(units_per_class(rows.y, unit) < 2):
        what = f"all {counts[one]:,} samples are copies or of one unit" if counts[one] > 1 else "a single sample"
        raise Problem(
            f"class '{shown(rows.classes[one])}' cannot be split: {what}; add different ones, or remove the class"
        )


def divided(rows: Rows, unit: Ints, seed: int, need_test: bool) -> tuple[npt.NDArray[np.str_], list[str]]:
    """(n,) train, valid or test: as given, the missing ones taken from train by whole units; and what to say.

    Something can be learnt then: every class is in train; where a test is needed, no split is empty.
    """
    split = np.array(rows.split or ["train"] * len(rows), "<U5")
    train, shares, notes = np.flatnonzero(split == "train"), {}, []
    if "valid" not in split:
        shares["valid"] = VALID
    if need_test and "test" not in split:
        shares["test"] = min(0.5, TEST * len(rows) / len(train))
    if shares:
        dealt = deal(rows.y[train], unit[train], [1 - sum(shares.values()), *shares.values()], seed)
        split[train] = np.array(["train", *shares], "<U5")[dealt]
        made = " and ".join(f"{np.sum(split == name):,} samples for {name}" for name in shares)
        notes = [f"no split was given: {made} were taken from train at random, stratified by class"]
    lost = [shown(rows.classes[one]) for one in np.setdiff1d(np.arange(len(rows.classes)), rows.y[split == "train"])]
    empty = [side for side in SIDES if not (split == side).any()] if need_test else []
    if empty or lost:
        what = f"samples for {first(empty)}" if empty else f"samples of class {first(lost)} in train"
        raise Problem(f"there are no {what}: add separate units, or fix the splits (--split)")
    return split, notes


def found_columns(rows: Rows) -> dict[str, list[str]]:
    """What a model could tell samples apart by that is no content, where it varies.

    Of images size, shape, format, mode, camera, compression, and the words of the file names by their place: who made
    an image often stands there. Running numbers are left out, and words of the classes' names, which repeat the label.
    """
    if rows.seen is None:
        found = {"text length": [str(len(text.split())) for text in rows.texts or []]}
    else:
        width, height = rows.seen.sides.T
        known = {word for name in rows.classes for word in _words(name)}
        names = [[word for word in _words(PurePath(path).stem) if word not in known] for path in rows.paths or []]
        found = {
            "image size": [f"{w} x {h}" for w, h in rows.seen.sides.tolist()],
            "image shape": [f"{ratio:.1f}" for ratio in width / np.maximum(height, 1)],
            **{name: rows.seen.facts[:, place].tolist() for place, name in enumerate(FACTS)},
        }
        for place in range(min(TOKENS, max(map(len, names), default=0))):
            found[f"file name token {place + 1}"] = [words[place] if place < len(words) else "" for words in names]
    return {name: values for name, values in found.items() if len(set(values)) > 1}


def _words(name: str) -> list[str]:
    """The words of a name in small letters, without long numbers and without words that are numbers."""
    words = (re.sub(r"\d{3,}", "", word) for word in re.split(r"[\W_]+", name.lower()))
    return [word for word in words if word and not word.isdigit()]


def remarks(rows: Rows, unit: Ints, split: npt.NDArray[np.str_]) -> list[str]:
    """What else a person should know of this data."""
    found = []
    if rows.seen is not None and (count := int(rows.seen.windowed.sum())):
        found.append(f"{count:,} images of more than 8 bits were windowed to 8, 1st to 99th percentile of each")
    if rows.unit is not None and (leaking := int((pd.Series(split).groupby(unit).nunique() > 1).sum())):
        found.append(f"{leaking:,} units are on several sides of the given splits: the test knows them already")
    counts = np.bincount(rows.y[split == "train"], minlength=len(rows.classes))
    small = [f"{shown(rows.classes[one])} ({counts[one]})" for one in np.flatnonzero(counts < FEW)]
    if small:
        found.append(f"classes with fewer than {FEW} training samples, of which little can be said: {first(small)}")
    return found
