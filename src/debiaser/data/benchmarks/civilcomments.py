"""CivilComments-WILDS: is a comment toxic? Mentions of eight identities, which overlap, are the shortcut."""

import csv
import hashlib
import io
import threading
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from debiaser.data.archives import Bundle, FormatError
from debiaser.data.bias import Part, build_benchmark
from debiaser.data.cache import ArrayCache, user_cache
from debiaser.data.fetch import Web
from debiaser.data.sources import FolderSet, compare
from debiaser.data.split import Benchmark
from debiaser.errors import Misuse, Problem

FILE = "all_data_with_identities.csv"
PARTS = {"train": "train", "valid": "val", "test": "test"}  # ours, and the file's own words
IDENTITIES = ("male", "female", "LGBTQ", "christian", "muslim", "other_religions", "black", "white")
TEXT, SPLIT, TOXICITY = "comment_text", "split", "toxicity"
HALF = 0.5  # of the raters: from here on a comment is toxic, an identity mentioned
CLASSES = ("not toxic", "toxic")


@dataclass(frozen=True, eq=False)
class Comments:
    """Per comment: where its record begins in the file (n + 1,), its split, whether it is toxic, and the identities."""

    bundle: Bundle = field(repr=False)
    name: str
    starts: npt.NDArray[np.int64]
    split: npt.NDArray[np.int8]
    toxic: npt.NDArray[np.int64]
    identities: npt.NDArray[np.int64]
    column: int  # of the text

    def texts(self, rows: npt.NDArray[np.int64]) -> list[str]:
        """The comments of these rows, read from the file: the texts as a whole are never in memory."""
        with self._lock:
            return [self._text(int(row)) for row in rows]

    def _text(self, row: int) -> str:
        start, end = self.starts[row : row + 2].tolist()
        self._stream.seek(start)
        record = self._stream.read(end - start).decode()
        return next(csv.reader(io.StringIO(record, newline="")))[self.column]

    @cached_property
    def _stream(self) -> IO[bytes]:
        return self.bundle.open(self.name)

    @cached_property
    def _lock(self) -> threading.Lock:
        return threading.Lock()


def index(bundle: Bundle, counts: Mapping[str, int]) -> Comments:
    """What one pass over the file finds, checked."""
    names = sorted(name for name in bundle.entries if name.rpartition("/")[2] == FILE)
    if not names:
        raise FormatError(bundle.path, f"lacks {FILE}")
    source = bundle.path / names[0] if bundle.path.is_dir() else bundle.path
    with bundle.open(names[0]) as stream:
        lines = _Lines(stream)
        reader = csv.reader(lines)
        try:
            found = _records(source, lines, reader)
        except csv.Error as error:
            raise FormatError(source, f"is damaged in line {reader.line_num} ({error})") from error
        except UnicodeDecodeError as error:
            raise FormatError(source, f"is not UTF-8 in line {reader.line_num + 1}") from error
    column, starts, split, toxic, identities = found
    tally = {part: int((split == k).sum()) for k, part in enumerate(PARTS)}
    compare(source, counts, tally)
    return Comments(bundle, names[0], starts, split, toxic, identities, column)


class _Lines:
    """The decoded lines of a stream; `done` is how many bytes they took so far."""

    def __init__(self, stream: IO[bytes]) -> None:
        self.stream, self.done = stream, 0

    def __iter__(self) -> Iterator[str]:
        for line in self.stream:
            self.done += len(line)
            yield line.decode("utf-8-sig" if self.done == len(line) else "utf-8")


def _records(source: Path, lines: _Lines, reader: Any) -> tuple[int, Any, Any, Any, Any]:
    """Column of the text, starts (n + 1,), split (n,), toxic (n,), identities (n, 8)."""
    header: list[str] = next(reader, [])
    missing = [name for name in (TEXT, SPLIT, TOXICITY, *IDENTITIES) if name not in header]
    if missing:
        has = ", ".join(filter(None, header)) or "none"
        raise FormatError(source, f"lacks the columns {', '.join(missing)}; it has {has[:300]}")
    splits = {word: number for number, word in enumerate(PARTS.values())}
    split_at, columns = header.index(SPLIT), [header.index(name) for name in (TOXICITY, *IDENTITIES)]
    starts, split, shares = array("q", [lines.done]), bytearray(), array("d")  # a tenth of the room of lists
    for record in reader:
        if not record:  # an empty line
            starts[-1] = lines.done
            continue
        try:
            split.append(splits[record[split_at] if len(record) == len(header) else ""])
            shares.extend([float(record[column] or 0) for column in columns])
        except (KeyError, ValueError, IndexError):
            raise _odd(source, reader.line_num, header, record, splits, columns) from None
        starts.append(lines.done)
    values = np.frombuffer(shares, np.float64).reshape(len(split), len(columns))
    wrong = np.flatnonzero(~((values >= 0) & (values <= 1)).all(1))
    if len(wrong):
        raise FormatError(source, f"holds a share outside 0 to 1 in its comment number {wrong[0] + 1}")
    mentioned = (values >= HALF).astype(np.int64)
    return header.index(TEXT), np.array(starts), np.frombuffer(split, np.int8), mentioned[:, 0], mentioned[:, 1:]


def _odd(
    source: Path, line: int, header: list[str], record: list[str], splits: Mapping[str, int], columns: list[int]
) -> FormatError:
    """What is wrong with a record."""
    if len(record) != len(header):
        return FormatError(source, f"has {len(record)} cells in line {line} where {len(header)} are expected")
    word = record[header.index(SPLIT)]
    if word not in splits:
        return FormatError(source, f"has the split {word!r} in line {line}, which is none of {', '.join(splits)}")
    cells = {header[column]: record[column] for column in columns}
    name = next(name for name, text in cells.items() if not _is_number(text))
    return FormatError(source, f"holds {cells[name][:30]!r} as {name} in line {line}, which is not a number")


def _is_number(text: str) -> bool:
    try:
        float(text or 0)
    except ValueError:
        return False
    return True


@dataclass(frozen=True, eq=False)
class Tokens:
    """A reader for a split: row numbers (b,) to `input_ids` and `attention_mask`, as long as the longest of them."""

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
        words = hashlib.blake2b(repr(sorted(self._maker.get_vocab().items())).encode(), digest_size=16).hexdigest()
        shape, identity = (len(self.comments.toxic), 1 + self.length), self.comments.bundle.identity
        return ArrayCache(user_cache("kept"), shape, np.int32, "tokens", identity, self.tokenizer, words)

    @cached_property
    def _maker(self) -> Any:
        return find_tokenizer(self.tokenizer)

    def _tokenise(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
        """(b, 1 + length): how many tokens, then their numbers, zeros behind."""
        lists = self._maker(self.comments.texts(rows), truncation=True, max_length=self.length)["input_ids"]
        out = np.zeros((len(rows), 1 + self.length), np.int32)
        for place, numbers in enumerate(lists):
            out[place, 0], out[place, 1 : 1 + len(numbers)] = len(numbers), numbers
        return out


def find_tokenizer(name: str) -> Any:
    """The tokenizer in this folder or of this name, from the hub's cache on this machine or else from the hub."""
    try:
        from huggingface_hub import snapshot_download
        from transformers import AutoTokenizer
    except ImportError as error:
        raise Problem("texts need transformers; install it with: pip install 'debiaser[models]'") from error
    folder = Path(name).expanduser()
    try:
        if not folder.is_dir():
            folder = Path(snapshot_download(name, allow_patterns=["*.json", "*.txt"]))
        return AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError) as error:  # no network, no such model, or no tokenizer in it
        raise Problem(
            f"the tokenizer {name} is neither a folder of its files, nor in the cache, nor to be had from the hub; "
            "download it where there is a network and name its folder: --option tokenizer=FOLDER"
        ) from error


def check(bundle: Bundle, counts: Mapping[str, int]) -> dict[str, list[int]]:
    """Comments that are not toxic, and that are, in each part."""
    found = index(bundle, counts)
    return {part: np.bincount(found.toxic[found.split == k], minlength=2).tolist() for k, part in enumerate(PARTS)}


SET = FolderSet(
    name="civilcomments",
    title="CivilComments-WILDS",
    licence="CC0",
    contents=FILE,
    page="https://wilds.stanford.edu/get_started/",
    check=check,
    counts={"train": 269_038, "valid": 45_180, "test": 133_782},
    also=("civilcomments_v1.0",),
    mirrors=(Web(("https://worksheets.codalab.org/rest/bundles/0x8cd3de0634154aeaad2ee6eb96723c6e/contents/blob/",)),),
    limit=1 << 31,
)


def load(
    root: Path | None,
    rho: float | None,  # noqa: ARG001 (the share of conflicting rows is what it is)
    data_seed: int,
    noise: float = 0.0,
    tokenizer: str = "bert-base-uncased",
    length: int = 300,
    partial: bool = False,
) -> Benchmark:
    """The benchmark in its official split.

    tokenizer: a name or a folder; length: tokens at most; partial: take what is there, whatever the counts.
    """
    if not 3 <= length <= 512:
        raise Misuse(f"length must lie between 3 and 512 tokens, got {length}")
    with SET.opened(root) as bundle:
        found = index(bundle, {} if partial else SET.counts)
    parts = {}
    for number, part in enumerate(PARTS):
        rows = np.flatnonzero(found.split == number)
        read: Any = Tokens(found, rows, tokenizer, length)
        parts[part] = Part(found.toxic[rows], found.identities[rows], read)
    return build_benchmark("civilcomments", parts, CLASSES, IDENTITIES, noise, data_seed, overlapping=True)
