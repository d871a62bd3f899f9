"""Views: properties that an image or a text can take from another one while what it shows or says stays.

A change maps images (b, 3, s, s), as floats from 0 to 255, and as many donors to images; nothing is random.
"""

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from debiaser.errors import Problem, known


@dataclass(frozen=True, eq=False)
class View:
    """A property of inputs that can be swapped.

    nuisance: a model should not follow it; declared: a person said that it may; local: a small part of an image, of
    which there are many; words: those that a view of texts swaps; identity: what decides its swaps, for keys; swap:
    from inputs, donors and the numbers of the inputs the inputs with the property of the donors: images (b, 3, s, s),
    bytes as bytes and numbers in [0, 1] as such, or b texts; Problem where these inputs do not have it.
    """

    name: str
    title: str
    nuisance: bool
    swap: Callable[..., Any] = field(repr=False)
    identity: str
    local: bool = False
    declared: bool = False
    words: tuple[str, ...] = ()


def with_matters(views: Sequence[View], names: Iterable[str]) -> tuple[View, ...]:
    """The views, those of these names as ones that a model may follow."""
    chosen, there = set(names), {view.name for view in views}
    for name in sorted(chosen - there):
        raise known("property", name, there)
    return tuple(replace(view, nuisance=False, declared=True) if view.name in chosen else view for view in views)


# --- Images


def image_view(
    name: str,
    title: str,
    nuisance: bool,
    change: Callable[[Tensor, Tensor], Tensor],
    smallest: int = 1,
    side: int | None = None,
    local: bool = False,
) -> View:
    """A view of images of at least `smallest` pixels a side; `change(images, donors)` gives the changed ones.

    side: of the largest image before they were enlarged, where that is known: enlarging adds no frame or texture.
    """

    def swap(x: Tensor, donors: Tensor, _: Any = None) -> Tensor:
        if (shortest := min(*x.shape[-2:], side or x.shape[-1])) < smallest:
            raise Problem(f"needs images of at least {smallest} pixels a side, these have {shortest}")
        if x.is_floating_point():
            return (change(255 * x, 255 * donors) / 255).clamp(0, 1)
        return change(x.float(), donors.float()).round().clamp(0, 255).to(torch.uint8)

    return View(name, title, nuisance, swap, name, local)


# --- colour cast ----------------------------------------------------------------------------------------------------

_GAIN = 4.0  # brightness changes by at most this factor: a black donor leaves something to be seen
_SPREAD = 0.05  # tints that vary less than this count as one tint, so that rounding is never stretched into colour


def colour(x: Tensor, donors: Tensor) -> Tensor:
    """Tints (colours at full brightness) move to the donor's mean and covariance, brightness is scaled to its."""
    value, tint = x.amax(1, keepdim=True), tints(x)
    mean, covariance = tint_statistics(x)
    new_mean, new_covariance = tint_statistics(donors)
    # the smallest linear change that turns one covariance into the other (optimal transport)
    floor = _SPREAD**2 * torch.eye(3, device=x.device)
    root, inverse = root_and_inverse(covariance + floor)
    middle, _ = root_and_inverse(root @ (new_covariance + floor) @ root)
    moved = inverse @ middle @ inverse @ (tint.flatten(2) - mean) + new_mean
    moved = moved.clamp(0, 1).view_as(x)
    gain = (brightness(donors) / brightness(x)).clamp(1 / _GAIN, _GAIN)
    value = (value * gain).clamp_max(255)
    return value * moved / moved.amax(1, keepdim=True).clamp_min(1e-3)


def brightness(x: Tensor) -> Tensor:
    """(b, 1, 1, 1) the mean of the pixels' values, each weighted by itself: how bright what is bright is."""
    value = x.amax(1).flatten(1)
    return (value.square().sum(1) / value.sum(1).clamp_min(1)).clamp_min(1).view(-1, 1, 1, 1)


def tints(x: Tensor) -> Tensor:
    """(b, 3, h, w) each pixel over its largest channel; white where it is black."""
    value = x.amax(1, keepdim=True)
    return torch.where(value > 0, x / value.clamp_min(1), torch.ones_like(x))


def tint_statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    """(b, 3, 1) mean and (b, 3, 3) covariance of the tints, each pixel weighted by its value: black has no tint."""
    weight, tint = x.amax(1).flatten(1)[:, None], tints(x).flatten(2)
    total = weight.sum(2, keepdim=True)
    shares = torch.where(total > 0, weight / total.clamp_min(1e-6), 1 / weight.shape[2])
    mean = (shares * tint).sum(2, keepdim=True)
    centred = tint - mean
    return mean, (shares * centred) @ centred.mT


def root_and_inverse(matrices: Tensor) -> tuple[Tensor, Tensor]:
    """The symmetric square roots of positive matrices, and the inverses of these."""
    values, vectors = torch.linalg.eigh(matrices)
    roots = values.clamp_min(1e-12).sqrt()
    return (vectors * roots[:, None]) @ vectors.mT, (vectors / roots[:, None]) @ vectors.mT


# --- frame, light, detail -------------------------------------------------------------------------------------------


def frame(x: Tensor, donors: Tensor) -> Tensor:
    """The donor's border, a fourteenth of the side wide, around the image's inside."""
    wide = max(1, round(min(x.shape[-2:]) / 14))
    inside = (..., slice(wide, -wide), slice(wide, -wide))
    mixed = donors.clone()
    mixed[inside] = x[inside]
    return mixed


def light(x: Tensor, donors: Tensor) -> Tensor:
    """The lowest band: the slope of the luma becomes the donor's; more of the band would show the donor itself."""
    height, width = x.shape[-2:]
    down, across = torch.linspace(-1, 1, height, device=x.device), torch.linspace(-1, 1, width, device=x.device)
    slopes = torch.stack([down[:, None].expand(height, width), across.expand(height, width)]).flatten(1)
    slopes = slopes / slopes.norm(dim=1, keepdim=True)
    difference = (luma(donors) - luma(x)).flatten(1)
    tilt: Tensor = (difference @ slopes.T @ slopes).view(-1, 1, height, width)
    return x + tilt


def luma(x: Tensor) -> Tensor:
    """(b, 1, h, w) brightness as the eye weighs the channels (ITU-R 601)."""
    return (x * x.new_tensor([0.299, 0.587, 0.114]).view(3, 1, 1)).sum(1, keepdim=True)


def detail(x: Tensor, donors: Tensor) -> Tensor:
    """The highest band: all waves shorter than about three pixels are the donor's."""
    height, width = x.shape[-2:]
    down, across = torch.fft.fftfreq(height, device=x.device), torch.fft.rfftfreq(width, device=x.device)
    fine = torch.hypot(down[:, None], across) > HIGH
    mixed = torch.where(fine, torch.fft.rfft2(donors), torch.fft.rfft2(x))
    result: Tensor = torch.fft.irfft2(mixed, s=(height, width))
    return result


HIGH = 0.3  # waves per pixel; 0.5 is the finest that an image can hold


# --- statistics of blocks -------------------------------------------------------------------------------------------


def block_energies(size: int, lowest: int) -> Callable[[Tensor, Tensor], Tensor]:
    """A change that gives every frequency (u, v) of size x size blocks, u + v >= lowest, the donor's energy.

    Energies are means over all blocks, so the layout stays. Where the donor has less, the image's coefficients
    shrink; where it has more, the donor's own, from half an image away, are added: a pattern arrives, no shape does.
    """

    def change(x: Tensor, donors: Tensor) -> Tensor:
        own, other = to_blocks(x, size), to_blocks(donors, size)
        has, wants = (each.square().mean((2, 3), keepdim=True) for each in (own, other))
        shrink = (wants / has.clamp_min(1e-6)).sqrt().clamp_max(1)
        fill = ((wants - has).clamp_min(0) / wants.clamp_min(1e-6)).sqrt()
        far = other.roll((own.shape[2] // 2, own.shape[3] // 2), (2, 3))
        order = torch.arange(size, device=x.device)
        mixed = torch.where(order[:, None] + order >= lowest, own * shrink + far * fill, own)
        return from_blocks(mixed, x.shape[-2], x.shape[-1])

    return change


@cache
def cosines(size: int) -> Tensor:
    """(size, size) the orthonormal cosine transform, one frequency per row."""
    order = torch.arange(size, dtype=torch.float64)
    waves = torch.cos(math.pi * (2 * order + 1) * order[:, None] / (2 * size)) * math.sqrt(2 / size)
    waves[0] /= math.sqrt(2)
    return waves.float()


def to_blocks(x: Tensor, size: int) -> Tensor:
    """(b, c, rows, columns, size, size) cosine coefficients of the blocks; the last row and column are repeated."""
    below, right = -x.shape[-2] % size, -x.shape[-1] % size
    x = F.pad(x, (0, right, 0, below), mode="replicate")
    x = x.unfold(2, size, size).unfold(3, size, size)
    waves = cosines(size).to(x)
    return waves @ x @ waves.T


def from_blocks(coefficients: Tensor, height: int, width: int) -> Tensor:
    """The images (b, c, height, width) that have these coefficients."""
    waves = cosines(coefficients.shape[-1]).to(coefficients)
    x = (waves.T @ coefficients @ waves).transpose(3, 4)
    return x.flatten(4, 5).flatten(2, 3)[..., :height, :width]


# --- parts of the image ---------------------------------------------------------------------------------------------

CORNER, STRIP = 1 / 3, 1 / 8  # of the side: room for a logo, a tag, a line of writing
PARTS = {  # top, left, bottom and right end as shares of the side
    "top-left": ("top left corner", (0.0, 0.0, CORNER, CORNER)),
    "top-right": ("top right corner", (0.0, 1 - CORNER, CORNER, 1.0)),
    "bottom-left": ("bottom left corner", (1 - CORNER, 0.0, 1.0, CORNER)),
    "bottom-right": ("bottom right corner", (1 - CORNER, 1 - CORNER, 1.0, 1.0)),
    "top": ("upper border", (0.0, 0.0, STRIP, 1.0)),
    "bottom": ("lower border", (1 - STRIP, 0.0, 1.0, 1.0)),
    "left": ("left border", (0.0, 0.0, 1.0, STRIP)),
    "right": ("right border", (0.0, 1 - STRIP, 1.0, 1.0)),
}
CENTRE = (0.15, 0.15, 0.85, 0.85)  # half of the image
PHOTOGRAPH = 65  # pixels of a side: in smaller images what is shown fills the image


def part(top: float, left: float, bottom: float, right: float) -> Callable[[Tensor, Tensor], Tensor]:
    """A change that takes this part of the donor, with hard edges."""

    def change(x: Tensor, donors: Tensor) -> Tensor:
        height, width = x.shape[-2:]
        down = slice(round(top * height), round(bottom * height))
        across = slice(round(left * width), round(right * width))
        mixed = x.clone()
        mixed[..., down, across] = donors[..., down, across]
        return mixed

    return change


def image_views(side: int | None = None) -> tuple[View, ...]:
    """What can be swapped between two images; `side` as of `image_view`.

    What surrounds the centre is often part of what is shown, so a model may follow it: that is asked, not ruled on.
    """
    centre = part(*CENTRE)
    return (
        image_view("colour", "colour cast", True, colour),
        image_view("frame", "frame", True, frame, 8, side),
        image_view("low-band", "slope of light (lowest band)", True, light, 8, side),
        image_view("high-band", "fine detail (highest band)", True, detail, 8, side),
        image_view("compression", "compression", True, block_energies(8, 7), 8, side),
        image_view("texture", "patch texture", True, block_energies(8, 3), 8, side),
        *(image_view(name, title, True, part(*ends), 8, side, True) for name, (title, ends) in PARTS.items()),
        image_view(
            "surroundings", "surroundings of the centre", False, lambda x, y: centre(y, x), PHOTOGRAPH, side, True
        ),
    )


# --- Texts: words that go with a label, sentences, length and casing, each taken from another text

WORD = re.compile(r"\w+(?:['’]\w+)*")
GIVEAWAY = 0.5  # correlation with one label from which a single word nearly tells it: no such word is what a text means
SMALLEST = 0.1  # correlation below which a word does not go with a label
FEWEST = 10  # texts that hold a word, below which nothing is learnt of it
MOST = 50  # words kept
TOGETHER = 0.5  # correlation from which two words occur together: words of one sentence, hardly words of one topic
GROUPED = 300  # words, the strongest, that are searched for groups
NO_WORD = "no word goes with a label that closely"
NO_GROUP = "no words that occur together go with a label that closely"
ENDED = re.compile(r"""[.!?]+["'”’)\]]*\s+(?=\S)""")  # a sentence, and another one follows


def word_view(
    name: str,
    title: str,
    nuisance: bool,
    listed: Sequence[frozenset[str]],
    fold: NDArray[np.int64],
    none: str = NO_WORD,
    phi: Sequence[dict[str, float]] = (),
) -> View:
    """Which of the listed words a text holds: `listed[f]` were learnt outside fold f, `fold` (n,) is of the samples.

    none: why nothing is listed, where that is so; phi: by fold, how closely words go with a label: those that do most
    are named first.
    """

    def swap(x: Sequence[str], donors: Sequence[str], rows: Tensor) -> list[str]:
        if not any(listed):
            raise Problem(none)
        folds = fold[rows.numpy()]
        return [swap_words(text, donor, listed[each]) for text, donor, each in zip(x, donors, folds, strict=True)]

    content = json.dumps([sorted(each) for each in listed]).encode()
    key = hashlib.blake2b(content + fold.tobytes(), digest_size=8).hexdigest()
    strength = {word: max((each.get(word, 0) for each in phi), default=0) for word in frozenset().union(*listed)}
    words = sorted(strength, key=lambda word: (-strength[word], word))
    title += f" ({', '.join(words[:3])})" if nuisance and words else ""
    return View(name, title, nuisance, swap, f"{name}:{key}", words=tuple(words))


def swap_words(text: str, donor: str, listed: frozenset[str]) -> str:
    """The text without its listed words, and the donor's at the same share of the way through."""
    found = list(WORD.finditer(donor))
    arriving = [(place / len(found), word[0]) for place, word in enumerate(found) if word[0].lower() in listed]
    pieces = re.split(r"(\s+)", WORD.sub(lambda word: "" if word[0].lower() in listed else word[0], text))
    kept = [piece for piece in pieces if piece.strip()]
    if len(kept) == sum(bool(piece.strip()) for piece in text.split()) and not arriving:
        return text  # nothing leaves, nothing arrives: not even the spaces change
    for share, word in reversed(arriving):
        kept.insert(round(share * len(kept)), word)
    return " ".join(kept)


def take_sentence(text: str, donor: str, last: bool = False) -> str:
    """The text with the donor's first (or last) sentence in place of its own; as it is where either has only one."""
    ends = [[found.end() for found in ENDED.finditer(each)] for each in (text, donor)]
    if not all(ends):
        return text
    mine, other = (each[-1 if last else 0] for each in ends)
    return text[:mine] + donor[other:] if last else donor[:other] + text[mine:]


def take_length(text: str, donor: str) -> str:
    """The text cut, or repeated, to the donor's number of words."""
    words, wanted = text.split(), len(donor.split())
    if not words or len(words) == wanted:
        return text
    return " ".join((words * -(-wanted // len(words)))[:wanted])


def take_casing(text: str, donor: str) -> str:
    """The text in capitals, in small letters, or with a capital after each full stop, as the donor is."""
    style = casing(donor)
    if style == casing(text):
        return text
    if style == "capitals":
        return text.upper()
    small = text.lower()
    return small if style == "small" else re.sub(r"(^|[.!?]\s+)(\w)", lambda start: start[1] + start[2].upper(), small)


def casing(text: str) -> str:
    """`capitals` where most letters are, `small` where none is, else `mixed`."""
    letters = [letter for letter in text if letter.lower() != letter.upper()]
    capitals = sum(letter != letter.lower() for letter in letters)
    return "small" if not capitals else "capitals" if capitals > len(letters) / 2 else "mixed"


# --- words that go with a label -------------------------------------------------------------------------------------


def read_words(texts: Sequence[str]) -> tuple[NDArray[np.str_], Any]:
    """The words that enough texts hold, and a sparse (n, words) table of which text holds which."""
    from sklearn.feature_extraction.text import CountVectorizer

    reader = CountVectorizer(binary=True, lowercase=True, token_pattern=WORD.pattern, min_df=min(FEWEST, len(texts)))
    try:
        holds = reader.fit_transform(texts).tocsr()
    except ValueError:
        raise Problem(f"no word occurs in at least {FEWEST} texts, so none can go with a label") from None
    return reader.get_feature_names_out(), holds


def correlations(holds: Any, others: NDArray[np.float64]) -> NDArray[np.float64]:
    """(words, k) the correlation (phi, from -1 to 1) of words (n, words) with columns (n, k) of 0 and 1; 0 where either
    never varies."""
    n, both = len(others), np.asarray(holds.T @ others)
    word, other = np.asarray(holds.sum(0)).reshape(-1, 1), others.sum(0)
    spread = np.sqrt(word * (n - word) * other * (n - other))
    return np.where(spread > 0, (n * both - word * other) / np.maximum(spread, 1e-12), 0)


def word_groups(words: NDArray[np.str_], holds: Any, labels: NDArray[np.float64]) -> frozenset[str]:
    """Words that occur together and, as groups, nearly tell a label: those of a sentence that was added to texts.

    Words that go with the same label and with each other form a group; a text holds it if it holds half of it, and two
    words. One sentence of many may be rare: what must tell the label is whether a text holds any group that goes with
    it, which of words that occur together in language (`waste`, `money`) they never do.
    """
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import connected_components

    phi, found = correlations(holds, labels), set()
    best = phi.max(1)
    chosen = np.argsort(-best, kind="stable")[:GROUPED]
    chosen = chosen[best[chosen] >= SMALLEST]
    for label in range(labels.shape[1]):
        mine = chosen[phi[chosen].argmax(1) == label] if len(chosen) else chosen
        held = np.asarray(holds[:, mine].todense(), np.float64)
        _, group = connected_components(correlations(holds[:, mine], held) >= TOGETHER, directed=False)
        sizes = np.bincount(group, minlength=1)
        several = np.flatnonzero(sizes > 1)
        counts = held @ np.eye(len(sizes))[group][:, several]
        present = csr_matrix((counts >= np.maximum(2, sizes[several] / 2)).any(1)[:, None].astype(np.float64))
        if correlations(present, labels[:, [label]])[0, 0] >= GIVEAWAY:
            found |= set(words[mine[np.isin(group, several)]].tolist())
    return frozenset(found)


def text_views(texts: Sequence[str], y: NDArray[np.int64], fold: NDArray[np.int64]) -> tuple[View, ...]:
    """Giveaway words and groups of words, length and casing, which a model should not follow; words and sentences.

    Words that go with a label are usually what a text means (`boring` in a bad review), so only a word, or words that
    occur together, that nearly tell the label count as a giveaway; about the others, and sentences, a person is asked.
    """
    folds, labels = range(int(fold.max()) + 1), np.eye(int(y.max()) + 1)[y]
    phi: list[dict[str, float]] = [{} for _ in folds]  # of each fold, learnt on the others
    groups, none = [frozenset[str]() for _ in folds], ""
    try:
        words, holds = read_words(texts)
    except Problem as problem:
        none = str(problem)  # texts without words still have a length; the views of words then say why there are none
    else:
        for number in folds:
            inside = fold != number
            best = correlations(holds[inside], labels[inside]).max(1)
            phi[number] = dict(zip(words.tolist(), best.tolist(), strict=True))
            groups[number] = word_groups(words, holds[inside], labels[inside])

    giveaway, going = ([strongest(each, least) for each in phi] for least in (GIVEAWAY, SMALLEST))
    return (
        word_view("giveaway", "giveaway word", True, giveaway, fold, none or NO_WORD, phi),
        word_view("together", "words that occur together", True, groups, fold, none or NO_GROUP, phi),
        word_view("words", "words that go with a label", False, going, fold, none or NO_WORD, phi),
        *(
            View(name, title, nuisance, lambda x, donors, _, change=change: list(map(change, x, donors)), name)
            for name, title, nuisance, change in (
                ("first-sentence", "first sentence", False, take_sentence),
                ("last-sentence", "last sentence", False, partial(take_sentence, last=True)),
                ("length", "length", True, take_length),
                ("casing", "casing", True, take_casing),
            )
        ),
    )


def strongest(phi: dict[str, float], least: float) -> frozenset[str]:
    """At most MOST words of at least this correlation, the strongest."""
    chosen = sorted((word for word, value in phi.items() if value >= least), key=lambda word: (-phi[word], word))
    return frozenset(chosen[:MOST])
