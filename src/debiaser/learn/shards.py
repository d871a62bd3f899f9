"""Streams over files that are too large to load: WebDataset-style tar shards and Parquet; both can skip cheaply."""

import io
import json
import tarfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import IterableDataset, get_worker_info

from debiaser.errors import Problem
from debiaser.learn.streams import arrow

Item = Any  # (x, y), or a dictionary with labels
Files = dict[str, Any]  # the files of one sample by their endings, or a row by its columns
PICTURES = ("jpg", "jpeg", "png", "webp")


@dataclass(frozen=True)
class Shards(IterableDataset[Item]):
    """Samples of tar files: files of one name belong together (`a.jpg`, `a.cls`); `read` makes an item of them."""

    paths: Sequence[Path | str]
    read: Callable[[Files], Item] | None = None
    first: int = 0

    def skip(self, rows: int) -> "Shards":
        """The same stream without its first rows, whose files are passed over unread."""
        return replace(self, first=self.first + rows)

    def __iter__(self) -> Iterator[Item]:
        number, read = 0, self.read or decoded
        for path in own_share(self.paths):
            with opened(path) as archive:
                for name, members in samples_in(archive):
                    number += 1
                    if number > self.first:
                        with told(f"the sample '{name}' in {path}"):
                            item = read({ending: content(archive, member) for ending, member in members.items()})
                        yield item


@dataclass(frozen=True)
class ParquetRows(IterableDataset[Item]):
    """Rows of Parquet files as dictionaries; `read` makes an item of one, by default lists and numbers as tensors."""

    paths: Sequence[Path | str]
    read: Callable[[Files], Item] | None = None
    columns: Sequence[str] | None = None
    first: int = 0

    def skip(self, rows: int) -> "ParquetRows":
        """The same stream without its first rows; whole files before them are not opened beyond their footers."""
        return replace(self, first=self.first + rows)

    def __iter__(self) -> Iterator[Item]:
        left, read = self.first, self.read or tensors
        for path in own_share(self.paths):
            with told(path):
                file = arrow("pyarrow.parquet").ParquetFile(path)
            if left >= file.metadata.num_rows:
                left -= file.metadata.num_rows
                continue
            parts = iter(file.iter_batches(1024, columns=self.columns))
            while True:
                with told(path):
                    part = next(parts, None)
                if part is None:
                    break
                for row in part.slice(min(left, part.num_rows)).to_pylist():
                    with told(f"a row of {path}"):
                        item = read(row)
                    yield item
                left = max(0, left - part.num_rows)


def own_share(paths: Sequence[Path | str]) -> Sequence[Path | str]:
    """The files that are this worker's of a DataLoader; all of them outside of one."""
    worker = get_worker_info()
    return paths[worker.id :: worker.num_workers] if worker else paths


def opened(path: Path | str) -> tarfile.TarFile:
    """The archive."""
    with told(f"the shard {path}"):
        return tarfile.open(path)


@contextmanager
def told(what: object) -> Iterator[None]:
    """Turns what a damaged file leads to into the clear line."""
    try:
        yield
    except Problem:
        raise
    except Exception as error:  # whatever a decoder or a function given as read= makes of it
        why = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise Problem(f"cannot read {what}: {why}; mend it or leave it out") from error


def samples_in(archive: tarfile.TarFile) -> Iterator[tuple[str, dict[str, tarfile.TarInfo]]]:
    """Each sample's name and its files by their endings; neighbours of one name up to the first dot are a sample."""
    name, members = "", dict[str, tarfile.TarInfo]()
    while True:
        with told(f"the shard {archive.name!s}"):
            member = archive.next()
            if member is None:
                check_end(archive)
        if member is None:
            break
        if not member.isfile():
            continue
        folder, _, file = member.name.rpartition("/")
        stem, _, ending = file.partition(".")
        if f"{folder}/{stem}" != name and members:
            yield name, members
            members = {}
        name, members[ending.lower()] = f"{folder}/{stem}", member
    if members:
        yield name, members


def check_end(archive: tarfile.TarFile) -> None:
    """Refuse an archive that does not end in zeros: cut short between two files, it looks like a smaller one."""
    assert archive.fileobj is not None
    archive.fileobj.seek(archive.offset)
    if archive.fileobj.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
        raise tarfile.ReadError("unexpected end of data")


def content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    """What a file holds."""
    stream = archive.extractfile(member)
    return stream.read() if stream else b""


def decoded(files: Files) -> Item:
    """(x, y): the picture or array of a sample, and the class number in its `cls` file (or `label` of its `json`)."""
    endings = ", ".join(files)
    picture = next((files[ending] for ending in PICTURES if ending in files), None)
    if picture is not None:
        pixels = np.asarray(Image.open(io.BytesIO(picture)).convert("RGB"))
        x = torch.from_numpy(pixels.copy()).permute(2, 0, 1).float() / 255
    elif "npy" in files:
        x = torch.from_numpy(np.load(io.BytesIO(files["npy"]), allow_pickle=False))
    else:
        raise Problem(f"a sample has the files {endings}: no picture and no npy among them; pass read=")
    if "cls" in files:
        return x, int(files["cls"])
    if "json" in files and "label" in (facts := json.loads(files["json"])):
        return x, int(facts["label"])
    raise Problem(f"a sample has the files {endings}: no cls and no json with a label among them; pass read=")


def tensors(row: Files) -> dict[str, Any]:
    """The row with numbers and lists of them as tensors."""
    return {name: value if isinstance(value, str | bytes) else torch.as_tensor(value) for name, value in row.items()}
