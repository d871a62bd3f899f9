"""CivilComments-WILDS: is a comment toxic? Mentions of eight identities, which overlap, are the shortcut."""

import hashlib
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from debiaser.data.archives import Bundle, FormatError
from debiaser.data.bias import Part, build_benchmark
from debiaser.data.cache import ArrayCache, user_cache
from debiaser.data.fetch import Web
from debiaser.data.sources import FolderSet, read_bundled_csv
from debiaser.data.split import Benchmark
from debiaser.errors import Misuse, Problem
from debiaser.io import optional

FILE = "all_data_with_identities.csv"
PARTS = {"train": "train", "valid": "val", "test": "test"}  # ours, and the file's own words
IDENTITIES = ("male", "female", "LGBTQ", "christian", "muslim", "other_religions", "black", "white")
TEXT, SPLIT, TOXICITY = "comment_text", "split", "toxicity"
HALF = 0.5  # of the raters: from here on a comment is toxic, an identity mentioned
CLASSES = ("not toxic", "toxic")


@dataclass(frozen=True, eq=False)
class Comments:
    """Per comment: its split (n,), whether it is toxic (n,), and the identities that it mentions (n, 8)."""

    bundle: Bundle = field(repr=False)
    name: str
    split: npt.NDArray[np.int64]
    toxic: npt.NDArray[np.int64]
    identities: npt.NDArray[np.int64]

    @cached_property
    def texts(self) -> list[str]:
        """The comments themselves, read when first asked for."""
        found: list[str] = read_columns(self.bundle, self.name, [TEXT])[TEXT].tolist()
        return found


def read_columns(bundle: Bundle, name: str, columns: list[str]) -> Any:
    """These columns of the file as text."""
    form = {"usecols": columns, "dtype": str, "na_filter": False, "encoding": "utf-8-sig"}
    return read_bundled_csv(bundle, name, "cannot be read", **form)


def index(bundle: Bundle) -> tuple[Comments, dict[str, int]]:
    """The labels and identities of all comments, checked, and how many each part has."""
    name = bundle.find(FILE)
    if not name:
        raise FormatError(bundle.path, f"lacks {FILE}")
    source = bundle.path / name
    table = read_columns(bundle, name, [SPLIT, TOXICITY, *IDENTITIES])
    words = table[SPLIT].to_numpy()
    split = np.select([words == word for word in PARTS.values()], range(len(PARTS)), -1)
    try:
        shares = table[[TOXICITY, *IDENTITIES]].replace("", "0").to_numpy(np.float64)
    except ValueError as error:
        raise FormatError(source, f"holds something else than shares of raters ({error})") from error
    wrong = np.flatnonzero((split < 0) | ~((shares >= 0) & (shares <= 1)).all(1))
    if len(wrong):
        told = f"a split other than {', '.join(PARTS.values())}, or a share outside 0 to 1"
        raise FormatError(source, f"holds {told} in its comment number {wrong[0] + 1}")
    mentioned = (shares >= HALF).astype(np.int64)
    counts = dict(zip(PARTS, np.bincount(split, minlength=len(PARTS)).tolist(), strict=True))
    return Comments(bundle, name, split, mentioned[:, 0], mentioned[:, 1:]), counts


@dataclass(frozen=True, eq=False)
class Tokens:
    """A reader for a split: sample numbers (b,) to `input_ids` and `attention_mask`, as long as the longest of them."""

    comments: Comments = field(repr=False)
    rows: npt.NDArray[np.int64] = field(repr=False)
    tokenizer: str
    length: int

    def __call__(self, rows: Tensor) -> dict[str, Tensor]:
        found = torch.from_numpy(self._cache.read(self.rows[rows.numpy()], self._tokenise))
        lengths, numbers = found[:, 0], found[:, 1:]
        longest = int(lengths.max()) if len(lengths) else 0
        mask = torch.arange(longest)[None] < lengths[:, None]
        return {"input_ids": numbers[:, :longest].long(), "attention_mask": mask.long()}

    @cached_property
    def _cache(self) -> ArrayCache:
        vocabulary = repr(sorted(find_tokenizer(self.tokenizer).get_vocab().items()))
        words = hashlib.blake2b(vocabulary.encode(), digest_size=16).hexdigest()
        shape, identity = (len(self.comments.toxic), 1 + self.length), self.comments.bundle.identity
        return ArrayCache(user_cache("kept"), shape, np.int32, "tokens", identity, self.tokenizer, words)

    def _tokenise(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
        """(b, 1 + length): how many tokens, then their numbers, zeros behind."""
        texts = [self.comments.texts[row] for row in rows]
        lists = find_tokenizer(self.tokenizer)(texts, truncation=True, max_length=self.length)["input_ids"]
        out = np.zeros((len(rows), 1 + self.length), np.int32)
        for place, numbers in enumerate(lists):
            out[place, 0], out[place, 1 : 1 + len(numbers)] = len(numbers), numbers
        return out


@cache
def find_tokenizer(name: str) -> Any:
    """The tokenizer in this folder or of this name, from the hub's cache on this machine or else from the hub."""
    absent = "texts need transformers; install it with: pip install 'debiaser[models]'"
    hub, library = optional("huggingface_hub", absent), optional("transformers", absent)
    folder = Path(name).expanduser()
    try:
        if not folder.is_dir():
            folder = Path(hub.snapshot_download(name, allow_patterns=["*.json", "*.txt"]))
        return library.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError) as error:  # no network, no such model, or no tokenizer in it
        raise Problem(
            f"the tokenizer {name} is neither a folder of its files, nor in the cache, nor to be had from the hub; "
            "download it where there is a network and name its folder: --option tokenizer=FOLDER"
        ) from error


SET = FolderSet(
    name="civilcomments",
    title="CivilComments-WILDS",
    contents=FILE,
    page="https://wilds.stanford.edu/get_started/",
    index=index,
    counts={"train": 269_038, "valid": 45_180, "test": 133_782},
    also=("civilcomments_v1.0",),
    mirrors=(Web(("https://worksheets.codalab.org/rest/bundles/0x8cd3de0634154aeaad2ee6eb96723c6e/contents/blob/",)),),
    limit=1 << 31,
)


def load(
    root: Path | None,
    rho: float | None,  # noqa: ARG001 (the share of conflicting samples is what it is)
    data_seed: int,
    noise: float = 0.0,
    tokenizer: str = "bert-base-uncased",
    length: int = 300,
) -> Benchmark:
    """The official split.

    `tokenizer`: a name or a folder. `length`: largest number of tokens.
    """
    if not 3 <= length <= 512:
        raise Misuse(f"length must lie between 3 and 512 tokens, got {length}")
    with SET.opened(root) as bundle:
        found, counts = index(bundle)
    parts = {}
    for number, part in enumerate(PARTS):
        rows = np.flatnonzero(found.split == number)
        read: Any = Tokens(found, rows, tokenizer, length)
        parts[part] = Part(found.toxic[rows], found.identities[rows], read)
    there = SET.there(counts, map(str, found.split * 2 + found.toxic))
    return build_benchmark("civilcomments", parts, CLASSES, IDENTITIES, noise, data_seed, overlapping=True, there=there)
