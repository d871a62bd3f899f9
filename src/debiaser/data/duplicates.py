"""The same thing twice: exact copies by digest, near copies by perceptual hash; nothing is compared with everything."""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from debiaser.data.survey import THUMB, Survey

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]

BANDS = 4  # of 16 bits: hashes that differ in fewer than 4 bits share at least one, most that differ in 6 do
BITS = 6
WINDOW = 32  # neighbours compared in a bucket, ordered by brightness: bounds the work on sets of flat pictures
GAP, FAINT = 0.08, 4.0  # by how much thumbnails may differ: root mean square over their own spread, and its least value
SHAPE = 0.03  # relative difference of width / height
CHUNK = 4096
ONES = np.array([bin(byte).count("1") for byte in range(256)], np.uint8)


@dataclass(frozen=True)
class Duplicates:
    """Rows that hold the same thing; `across` where they lay on both sides of the given splits."""

    ids: tuple[str, ...]
    across: bool


def joined(n: int, *pairs: Ints) -> Ints:
    """(n,) numbers of the sets that pairs (p, 2) of rows connect, counted from 0 in order of first appearance."""
    ends = np.concatenate([np.zeros((0, 2), np.int64), *pairs])
    graph = coo_array((np.ones(len(ends), np.int8), (ends[:, 0], ends[:, 1])), shape=(n, n))
    _, found = connected_components(graph, directed=False)
    return in_order(found)


def in_order(keys: npt.NDArray[np.generic] | Sequence[str]) -> Ints:
    """(n,) numbers of the distinct keys, counted from 0 in order of first appearance."""
    _, first, number = np.unique(np.asarray(keys), return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[number.reshape(-1)]


def same(keys: npt.NDArray[np.generic] | Sequence[str]) -> Ints:
    """Pairs (p, 2) that chain the rows of equal keys."""
    number = in_order(keys)
    order = np.argsort(number, kind="stable")
    equal = number[order][1:] == number[order][:-1]
    return np.stack([order[:-1][equal], order[1:][equal]], 1).astype(np.int64)


def same_text(texts: Sequence[str]) -> Ints:
    """Pairs of texts that are equal up to white space."""
    return same(np.array([text_digest(text) for text in texts], "S16"))


def text_digest(text: str) -> bytes:
    """16 hexadecimal digits of a text, its white space normalised."""
    words = re.sub(r"\s+", " ", text).strip()
    return hashlib.blake2b(words.encode(errors="replace"), digest_size=8).hexdigest().encode()


def near(seen: Survey) -> Ints:
    """Pairs (p, 2) of pictures that look the same: shape, drawing (hash) and colours (thumbnail) all agree.

    Both a hash and a thumbnail, since the hash of a drawing ignores its colour and that of a flat picture says nothing.
    """
    colour, spread = _colours(seen)
    brightness = colour.sum(1)
    bands = seen.drawing.view(np.uint16).reshape(-1, BANDS)
    found = [np.zeros((0, 2), np.int64)]
    for band in range(BANDS):
        order = np.lexsort((brightness, bands[:, band]))
        key = bands[order, band]
        for step in range(1, min(WINDOW, len(order) - 1) + 1):
            rows = np.flatnonzero(key[step:] == key[:-step])
            if not len(rows):
                break  # no bucket is that large
            pairs = np.stack([order[rows], order[rows + step]], 1)
            found.append(_alike(seen, _likely(seen, pairs, colour, spread), spread))
    return np.concatenate(found)


def _colours(seen: Survey) -> tuple[Floats, Floats]:
    """The mean colour (n, 3) of each picture, and its spread (n,) over the picture: 0 for a flat one."""
    colour, spread = np.zeros((len(seen), 3), np.float32), np.zeros(len(seen), np.float32)
    for start in range(0, len(seen), CHUNK):
        part = slice(start, start + CHUNK)
        thumbs = seen.thumb[part].reshape(-1, THUMB * THUMB, 3).astype(np.float32)
        colour[part], spread[part] = thumbs.mean(1), np.sqrt(thumbs.var(1).mean(1))
    return colour, spread


def _likely(seen: Survey, pairs: Ints, colour: Floats, spread: Floats) -> Ints:
    """The pairs whose hash, shape and mean colour agree: what is cheap to ask."""
    drawing = seen.drawing[pairs]
    pairs = pairs[ONES[(drawing[:, 0] ^ drawing[:, 1]).view(np.uint8)].reshape(-1, 8).sum(1) <= BITS]
    width, height = np.maximum(seen.sides[pairs], 1).astype(np.float64).transpose(2, 1, 0)
    pairs = pairs[np.abs(np.log(width[0] * height[1] / (height[0] * width[1]))) <= SHAPE]
    gap = np.sqrt(np.square(colour[pairs[:, 0]] - colour[pairs[:, 1]]).mean(1))  # never above that of the thumbnails
    likely: Ints = pairs[gap <= GAP * np.maximum(spread[pairs].min(1), FAINT)]
    return likely


def _alike(seen: Survey, pairs: Ints, spread: Floats) -> Ints:
    """The pairs whose thumbnails agree; thumbnails are gathered a few at a time."""
    kept = np.zeros(len(pairs), np.bool_)
    for start in range(0, len(pairs), CHUNK):
        part = pairs[start : start + CHUNK]
        left, right = seen.thumb[part[:, 0]].astype(np.float32), seen.thumb[part[:, 1]].astype(np.float32)
        gap = np.sqrt(np.square(left - right).mean((1, 2, 3)))
        kept[start : start + CHUNK] = gap <= GAP * np.maximum(spread[part].min(1), FAINT)
    return pairs[kept]


def groups(number: Ints) -> list[Ints]:
    """The rows of each set with more than one row."""
    order = np.argsort(number, kind="stable")
    cuts = np.flatnonzero(np.diff(number[order])) + 1
    return [rows for rows in np.split(order, cuts) if len(rows) > 1]
