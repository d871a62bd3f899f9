"""From a person's samples to what models train on: the pixels themselves, or features of a frozen encoder."""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from debiaser.data.augment import PAPER, Augmentation
from debiaser.data.cache import Array, user_cache
from debiaser.data.images import GREY, Files, Pictures
from debiaser.data.own import OwnData, Texts
from debiaser.data.own.rows import as_labels
from debiaser.data.own.splits import deal
from debiaser.data.split import Split
from debiaser.errors import Misuse, Problem
from debiaser.io import write_json
from debiaser.learn.encoders import Encoder, Stream, features, find_encoder, pixels
from debiaser.learn.nets import FeatureHead, new_net
from debiaser.learn.recipe import Recipe
from debiaser.methods.debias import as_split

SLACK = 1e-3  # by which rounding may leave the range of colours
LARGEST = 64  # pixels: up to here a small network learns from the pixels themselves
SMALLEST = 28  # pixels of a side: SimConv-1 needs 25
IMAGES, TEXTS = 64, 256  # read at a time
POINT = 16  # pixels of an image, or hashed words of a text, by which neighbours are found


# --- Samples that are in memory: a dataset of (x, y) pairs as a person's own data


class Tensors:
    """Images (n, c, h, w) behind the face of `Pictures`: letterboxed when read."""

    def __init__(self, split: Any, shape: tuple[int, ...], identity: str) -> None:
        self.split, self.shape, self.identity = split, shape, identity
        self.largest_side = self.median_side = max(shape[-2:])
        self.failed: dict[str, str] = {}  # what is in memory does not change meanwhile

    def read(self, rows: Tensor, size: int) -> Tensor:
        """(b, 3, size, size) uint8."""
        return letterboxed(self.split.read(rows), size)

    def stream(self, rows: Tensor, size: int, batch: int) -> Iterable[tuple[Tensor, Tensor]]:
        """The same, part by part."""
        return ((part, self.read(part, size)) for part in torch.split(rows, batch))


def letterboxed(x: Tensor, size: int) -> Tensor:
    """Images of any size and 1 or 3 channels, bytes or numbers in [0, 1], as (b, 3, size, size) uint8."""
    x = x.float() * (1 if x.dtype == torch.uint8 else 255)
    x = x.expand(-1, 3, -1, -1) if x.shape[1] == 1 else x
    height, width = x.shape[-2:]
    scale = size / max(height, width)
    shape = (max(1, round(height * scale)), max(1, round(width * scale)))
    if shape != (height, width):
        x = F.interpolate(x, shape, mode="bilinear", antialias=True)
    top, left = (size - shape[0]) // 2, (size - shape[1]) // 2
    x = F.pad(x, (left, size - shape[1] - left, top, size - shape[0] - top), value=GREY)
    return x.round().clamp(0, 255).byte()


def own_of(dataset: Any) -> OwnData:
    """A dataset of (image, class number) or (text, label) pairs as own data."""
    if not hasattr(dataset, "__len__") or not len(dataset):
        raise Misuse("there are no rows here: give a path, a dataset of (x, y) pairs, or labels and probabilities")
    first = dataset[0][0] if not hasattr(dataset, "read") else dataset.read(torch.arange(1))[0]
    inputs: Any
    if isinstance(first, str):
        texts = [dataset[row][0] for row in range(len(dataset))]
        labels = as_labels([str(dataset[row][1]) for row in range(len(dataset))], "the dataset")
        y, classes = torch.from_numpy(labels.y), labels.classes
        inputs, kind = Texts(texts, digest(text.encode() for text in texts)), "text"
    else:
        split = as_split(dataset)
        if not isinstance(first, Tensor) or first.ndim != 3 or first.shape[0] not in (1, 3):
            raise Misuse(
                "audit takes a dataset of (picture, label) with pictures (1 or 3, height, width), or of (text, label); "
                "for other inputs give the answers of a model: audit(labels, pred_probs, features)"
            )
        y, classes = split.y, split.classes
        identity = digest(checked(split.read, part) for part in torch.split(torch.arange(len(y)), 256))
        inputs, kind = Tensors(split, tuple(first.shape), identity), "image"
    if y.min() < 0 or (y == y[0]).all():
        raise Problem("the dataset needs rows of two classes, and a label for each; leave out those without one")
    unit = np.arange(len(y))
    return OwnData(
        source=type(dataset).__name__,
        kind=kind,
        ids=[str(row) for row in range(len(y))],
        paths=[""] * len(y),
        y=y,
        classes=classes or tuple(str(k) for k in range(int(y.max()) + 1)),
        split=np.array(["train", "valid"])[deal(y.numpy(), unit, [0.9, 0.1], 0)],
        unit=unit,
        units_named=False,
        group=None,
        columns={},
        inputs=inputs,
        excluded=[],
        duplicates=[],
        notes=[],
        identity=digest([inputs.identity.encode(), y.numpy().tobytes()]),
    )


def checked(read: Callable[[Tensor], Tensor], rows: Tensor) -> bytes:
    """The bytes of images that can be shown as they are: all of one size, in bytes or numbers from 0 to 1."""
    try:
        images = read(rows)
    except RuntimeError as error:
        raise Misuse("pictures of several sizes cannot be stacked; resize them, or give them as a folder") from error
    if images.is_floating_point():
        low, high = (float(each) for each in images.aminmax())
        if low < -SLACK or high > 1 + SLACK:
            raise Misuse(
                f"pictures must be bytes, or numbers from 0 to 1; these reach from {low:.3g} to {high:.3g}: leave out "
                "the normalisation"
            )
    return images.contiguous().numpy().tobytes()


def digest(parts: Iterable[bytes]) -> str:
    """A name for this content."""
    state = hashlib.blake2b(digest_size=16)
    for part in parts:
        state.update(len(part).to_bytes(8, "big") + part)
    return state.hexdigest()


# --- What models train on


STEPS: dict[str, dict[str, tuple[int, ...]]] = {  # updates of each stage; several: the longest first
    "simconv1": {"biased": (400,), "plain": (250,), "judge": (500,), "long": (1000,)},
    "mlp": {"biased": (200, 100, 50), "long": (600,)},
    "finetuned": {"biased": (100,), "long": (300,)},
}
RATES = {"simconv1": (0.02, 0.1), "mlp": (0.02, 0.05), "finetuned": (3e-5, 1e-4)}  # of biased models, of all others
REGULARISED: dict[str, dict[str, Any]] = {
    "simconv1": {},
    "mlp": {"weight_decay": 1e-3},
    "finetuned": {"optimizer": "adamw", "weight_decay": 0.01},
}


@dataclass(frozen=True, eq=False)
class Material:
    """An `.npy` file with one input per sample, and the network for it.

    Images are (n, 3, s, s), bytes or numbers in [0, 1]; features are (n, h). identity: of the data, for keys.
    """

    array: Path
    classes: tuple[str, ...]
    identity: str

    def __reduce__(self) -> tuple[Any, ...]:
        """For a worker: without what was read."""
        whole = isinstance(self, WholeMaterial)
        return WholeMaterial if whole else Material, (self.array, self.classes, self.identity)

    @cached_property
    def inputs(self) -> NDArray[Any]:
        """(n, ...) mapped, not read."""
        mapped: NDArray[Any] = np.load(self.array, mmap_mode="r", allow_pickle=False)
        return mapped

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        return tuple(self.inputs.shape[1:])

    def read(self, rows: Tensor) -> Tensor:
        """(b, ...) float inputs of these samples."""
        return as_float(torch.from_numpy(self.inputs[rows.numpy()]))

    def points(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """(b, d) the inputs of these samples as points, to find neighbours by."""
        return np.asarray(self.read(torch.from_numpy(rows)).flatten(1), np.float32)

    def split(self, y: NDArray[np.int64]) -> Split:
        """All samples with these labels."""
        return Split(torch.from_numpy(y), self.read, self.classes)

    @property
    def architecture(self) -> str:
        """The network's name."""
        return "simconv1" if self.inputs.ndim == 4 else "mlp"

    @property
    def network(self) -> str:
        """The network in words."""
        pixels = self.architecture == "simconv1"
        return "SimConv-1 from scratch" if pixels else "a head of 256 units on frozen features"

    def new_net(self, seed: int) -> nn.Module:
        """A fresh network for these inputs."""
        return new_network(self.architecture, self.input_shape, len(self.classes), seed)

    @property
    def augment(self) -> Augmentation | None:
        """What pixels are varied by in training; features and what a whole network reads cannot be."""
        return PAPER if self.architecture == "simconv1" else None

    def recipes(self, stage: str, rows: int) -> list[Recipe]:
        """The recipes of a stage for so many samples, the longest first; usually one.

        biased: short and slow, so that what is easy is learnt and little else; long: to learn what can be learnt;
        plain: for each of several models that answer together; judge: for one of the trainings of a judging model.
        """
        kind = self.architecture
        steps, rate = STEPS[kind].get(stage, STEPS[kind]["long"]), RATES[kind][stage != "biased"]
        return [of_steps(rows, each, lr=rate, **REGULARISED[kind]) for each in steps]


def of_steps(rows: int, steps: int, **changes: Any) -> Recipe:
    """A one-cycle recipe of about so many updates on so many samples."""
    size = 64 if rows >= 640 else 32 if rows >= 128 else 16
    return Recipe(epochs=min(60, max(2, round(steps * size / rows))), batch_size=size, name="audit", **changes)


def as_float(inputs: Tensor) -> Tensor:
    """Bytes as numbers in [0, 1]; numbers as they are."""
    return inputs.float() / 255 if inputs.dtype == torch.uint8 else inputs.float()


class Finetuned(nn.Module):
    """A pretrained network whose weights are free, and a linear layer on its features."""

    def __init__(self, encoder: Encoder, classes: int) -> None:
        super().__init__()
        self.body, self.flow = encoder.module.requires_grad_(True), encoder.flow
        self.fc = nn.Linear(encoder.width, classes)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.fc(self.flow(self.body, x))
        return logits


def new_network(
    architecture: str, inputs: tuple[int, ...], classes: int, seed: int, encoder: Encoder | None = None
) -> nn.Module:
    """A fresh network of this name for inputs of this shape; "finetuned" is the encoder with a fresh last layer."""
    if architecture not in ("mlp", "finetuned"):
        return new_net(architecture, classes, seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return FeatureHead(classes, inputs[0]) if encoder is None else Finetuned(encoder, classes)


@dataclass(frozen=True, eq=False)
class WholeMaterial(Material):
    """To train a whole pretrained network: `array` is a JSON file that lists image files or texts, and the encoder.

    Images are decoded, texts cut into tokens, whenever they are read.
    """

    @cached_property
    def listed(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads(self.array.read_text())
        return content

    @cached_property
    def encoder(self) -> Encoder:
        return find_encoder(self.listed["kind"], self.listed["encoder"])

    @cached_property
    def samples(self) -> Pictures | Texts:
        inputs = self.listed["inputs"]
        if self.listed["kind"] == "text":
            return Texts(inputs)
        return Pictures(inputs, Files(inputs), np.zeros((len(inputs), 2), np.int32))

    @property
    def input_shape(self) -> tuple[int, ...]:
        return ()

    def read(self, rows: Tensor) -> Tensor:
        """(b, 3, s, s) bytes, or (b, t) tokens."""
        samples = self.samples
        found = samples.read(rows, self.encoder.size) if isinstance(samples, Pictures) else samples.read(rows)
        return self.encoder.enter(found)

    def points(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        chosen = torch.from_numpy(rows)
        if isinstance(self.samples, Pictures):
            return np.asarray(self.samples.read(chosen, POINT).flatten(1) / 255, np.float32)
        return word_points(self.samples.read(chosen))

    @property
    def architecture(self) -> str:
        return "finetuned"

    @property
    def network(self) -> str:
        return f"{self.listed['encoder']}, all of it trained"

    def new_net(self, seed: int) -> nn.Module:
        encoder = find_encoder(self.listed["kind"], self.listed["encoder"])
        return new_network("finetuned", (), len(self.classes), seed, encoder)


def word_points(texts: list[str]) -> NDArray[np.float32]:
    """(b, d) which words texts have, hashed: points to find neighbours by."""
    from sklearn.feature_extraction.text import HashingVectorizer

    return np.asarray(HashingVectorizer(n_features=POINT**2).transform(texts).toarray(), np.float32)


def whole_material(own: OwnData, encoder: Encoder, folder: Path) -> WholeMaterial:
    """The list of what is trained on, written for the processes that train."""
    if own.kind == "image" and not all(own.paths):
        raise Misuse("--finetune needs pictures that are files: these lie inside a table; save them as files first")
    texts = isinstance(own.inputs, Texts)
    inputs = list(cast(Texts, own.inputs).texts) if texts else [str(Path(each).resolve()) for each in own.paths]
    path = folder / f"{own.inputs.identity}.json"
    write_json(path, {"kind": own.kind, "encoder": encoder.name, "inputs": inputs})
    return WholeMaterial(path, own.classes, f"{own.inputs.identity}:{encoder.identity}:whole")


def with_texts(material: WholeMaterial, texts: list[str], identity: str) -> WholeMaterial:
    """The same list with more texts after its own."""
    path = material.array.with_name(f"{hashlib.blake2b(identity.encode(), digest_size=16).hexdigest()}.json")
    write_json(path, {**material.listed, "inputs": [*material.listed["inputs"], *texts]})
    return WholeMaterial(path, material.classes, identity)


# --- The samples of an audit with their material


@dataclass(frozen=True, eq=False)
class Subject:
    """Samples, and the inputs that models get from them; `encoder` is None where they get the pixels."""

    own: OwnData
    material: Material
    encoder: Encoder | None
    size: int

    @property
    def whole(self) -> bool:
        """Whether all of the encoder is trained."""
        return isinstance(self.material, WholeMaterial)

    def read(self, rows: Tensor) -> Any:
        """Images (b, 3, size, size) uint8 exactly as the model gets them, or b texts."""
        if self.own.kind == "text":
            return texts_of(self.own, rows)
        if self.encoder is None:
            return torch.from_numpy(self.material.inputs[rows.numpy()])
        return pictures_of(self.own).read(rows, self.size)

    def enter(self, inputs: Any) -> Tensor:
        """Inputs of the kind that `read` gives, as the network's."""
        if self.encoder is None:
            return as_float(inputs)
        return self.encoder.enter(inputs) if self.whole else self.encoder.encode(inputs)

    def flow(self, images: Tensor) -> Tensor:
        """What the network gets from images of floats 0..255, such that gradients reach them."""
        if self.encoder is None:
            return images / 255
        return images.clone() if self.whole else self.encoder.flow(self.encoder.module, images.clone())

    @property
    def choices(self) -> dict[str, str]:
        """What was chosen for this data, in words."""
        told = {"network": self.material.network}
        if self.encoder is not None and not self.whole:
            told["features"] = f"{self.encoder.name}, {self.encoder.width:,} numbers a row, computed once"
        if self.own.kind == "image":
            told["pictures"] = f"whole, letterboxed to {self.size} x {self.size} pixels"
        return told


def prepare(own: OwnData, backbone: str | None, finetune: bool = False) -> Subject:
    """The samples with their inputs on disk: found there, finished, or made; to finetune, the list of what is read."""
    name = own.inputs.identity
    if own.kind == "image" and backbone is None and not finetune and pictures_of(own).largest_side <= LARGEST:
        size = max(SMALLEST, pictures_of(own).largest_side)
        array = pixels(name, len(own), stream_of(own, size), size, cache_folder())
        return Subject(own, Material(file_of(array), own.classes, f"{name}:{size}"), None, size)
    encoder = find_encoder(own.kind, backbone)
    if finetune:
        return Subject(own, whole_material(own, encoder, cache_folder()), encoder, encoder.size)
    array = features(encoder, name, len(own), stream_of(own, encoder.size), cache_folder())
    return Subject(own, Material(file_of(array), own.classes, f"{name}:{encoder.identity}"), encoder, encoder.size)


def pictures_of(own: OwnData) -> Pictures:
    """The images of samples that are images."""
    return cast(Pictures, own.inputs)


def texts_of(own: OwnData, rows: Tensor) -> list[str]:
    """The texts of samples that are texts."""
    return cast(Texts, own.inputs).read(rows)


def file_of(array: Array) -> Path:
    """The file that an array is mapped from."""
    return Path(str(cast(np.memmap, array).filename))


def cache_folder() -> Path:
    """Where pixels and features are kept."""
    return user_cache("features")


class Changed(Problem):
    """Images are no longer what they were when they were first looked at: what is made of them must not be kept."""


def stream_of(own: OwnData, size: int) -> Stream:
    """What the cache asks for missing rows: texts, or images, decoded ahead; Changed where one is not what it was."""

    def stream(rows: Tensor) -> Iterator[tuple[Tensor, Any]]:
        if own.kind == "text":
            yield from ((part, texts_of(own, part)) for part in torch.split(rows, TEXTS))
            return
        inputs = pictures_of(own)
        for part, images in inputs.stream(rows, size, IMAGES):
            for name, reason in inputs.failed.items():
                raise Changed(
                    f"{len(inputs.failed):,} pictures changed while they were read; the first, {name}, {reason}: "
                    "run the same command again when nothing writes to them"
                )
            yield part, images

    return stream
