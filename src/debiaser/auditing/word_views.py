"""Views of a text: words that go with a label, length and casing, each taken from another text.

Which words go with a label is learnt outside a row's fold, so that no row chooses the words it is tested by.
"""

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from debiaser.auditing.views import View
from debiaser.errors import Problem

WORD = re.compile(r"\w+(?:['’]\w+)*")
GIVEAWAY = 0.5  # correlation with one label from which a single word nearly tells it: no such word is what a text means
SMALLEST = 0.1  # correlation below which a word does not go with a label
FEWEST = 10  # texts that hold a word, below which nothing is learnt of it
MOST = 50  # words kept


@dataclass(frozen=True)
class TextView:
    """A view of texts that needs to know nothing of the data; `change(text, donor)` gives the changed text."""

    name: str
    title: str
    nuisance: bool
    change: Callable[[str, str], str] = field(repr=False)

    @property
    def identity(self) -> str:
        return self.name

    def swap(self, x: Sequence[str], donors: Sequence[str], rows: Tensor | None = None) -> list[str]:  # noqa: ARG002
        """The texts with the property of the donors."""
        return [self.change(text, donor) for text, donor in zip(x, donors, strict=True)]

    def matters(self) -> "TextView":
        """The same view as one that a model may follow."""
        return replace(self, nuisance=False)


@dataclass(frozen=True, eq=False)
class WordView:
    """Which of the listed words a text holds; `listed[f]`: words learnt outside fold f; `fold` (n,) of the rows."""

    name: str
    title: str
    nuisance: bool
    listed: tuple[frozenset[str], ...]
    fold: NDArray[np.int64]
    none: str = "no word goes with a label that closely"  # why nothing is listed, where that is so

    @property
    def identity(self) -> str:
        words = json.dumps([sorted(each) for each in self.listed]).encode()
        return f"{self.name}:{hashlib.blake2b(words + self.fold.tobytes(), digest_size=8).hexdigest()}"

    def swap(self, x: Sequence[str], donors: Sequence[str], rows: Tensor) -> list[str]:
        """The texts without their listed words, with those of the donors where these stand."""
        if not any(self.listed):
            raise Problem(self.none)
        folds = self.fold[rows.numpy()]
        return [swap_words(text, donor, self.listed[fold]) for text, donor, fold in zip(x, donors, folds, strict=True)]

    def matters(self) -> "WordView":
        """The same view as one that a model may follow."""
        return replace(self, nuisance=False)

    @property
    def words(self) -> list[str]:
        """All listed words, in order."""
        return sorted(frozenset().union(*self.listed))


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


def associations(texts: Sequence[str], y: NDArray[np.int64], fold: NDArray[np.int64]) -> list[dict[str, float]]:
    """For each fold, every word's largest correlation (phi, from -1 to 1) with one label against the rest, learnt on
    the rows of the other folds; words that hardly any text holds are left out."""
    from sklearn.feature_extraction.text import CountVectorizer

    reader = CountVectorizer(binary=True, lowercase=True, token_pattern=WORD.pattern, min_df=min(FEWEST, len(texts)))
    try:
        holds = reader.fit_transform(texts).tocsr()
    except ValueError:
        raise Problem(f"no word stands in {FEWEST} texts or more, so none can go with a label") from None
    words, labels = reader.get_feature_names_out(), np.eye(int(y.max()) + 1)[y]
    found = []
    for number in range(int(fold.max()) + 1):
        inside = fold != number
        found.append(dict(zip(words, largest_phi(holds[inside], labels[inside]).tolist(), strict=True)))
    return found


def largest_phi(holds: Any, labels: NDArray[np.float64]) -> NDArray[np.float64]:
    """(words,) the largest correlation of a word (n, words) with one label (n, k), 0 where either never varies."""
    n, both = len(labels), np.asarray(holds.T @ labels)
    word, label = np.asarray(holds.sum(0)).reshape(-1, 1), labels.sum(0)
    spread = np.sqrt(word * (n - word) * label * (n - label))
    phi: NDArray[np.float64] = np.where(spread > 0, (n * both - word * label) / np.maximum(spread, 1e-12), 0).max(1)
    return phi


def text_views(texts: Sequence[str], y: NDArray[np.int64], fold: NDArray[np.int64]) -> tuple[View, ...]:
    """Giveaway words, length and casing, which a model should not follow, and the words that go most with a label.

    Words that go with a label are usually what a text means (`boring` in a bad review), so only a word that nearly
    tells the label by itself counts as a giveaway; the others are shown, not ruled on.
    """
    try:
        phi, none = associations(texts, y, fold), WordView.none
    except Problem as problem:
        # texts without words still have a length; the views of words then say why there are none
        phi, none = [{} for _ in range(int(fold.max()) + 1)], str(problem)
    giveaway = tuple(strongest(each, GIVEAWAY) for each in phi)
    named = sorted(frozenset().union(*giveaway), key=lambda word: (-max(each.get(word, 0) for each in phi), word))[:3]
    title = "giveaway word" + (f" ({', '.join(named)})" if named else "")
    return (
        WordView("giveaway", title, True, giveaway, fold, none),
        WordView("words", "words that go with a label", False, tuple(strongest(p, SMALLEST) for p in phi), fold, none),
        TextView("length", "length", True, take_length),
        TextView("casing", "casing", True, take_casing),
    )


def strongest(phi: dict[str, float], least: float) -> frozenset[str]:
    """At most MOST words of at least this correlation, the strongest."""
    chosen = sorted((word for word, value in phi.items() if value >= least), key=lambda word: (-phi[word], word))
    return frozenset(chosen[:MOST])
