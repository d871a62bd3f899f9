"""From a person's samples to what models train on: the pixels themselves, or features of a frozen encoder."""

import json
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from debiaser.data.augment import PAPER, Augmentation
from debiaser.data.cache import Array, user_cache
from debiaser.data.images import Embedded, Files, Images
from debiaser.data.own import OwnData, Texts, gather
from debiaser.data.own.rows import Rows
from debiaser.data.split import Split
from debiaser.errors import Misuse, Problem
from debiaser.io import write_json
from debiaser.learn.encoders import Encoder, Stream, features, find_encoder, pixels
from debiaser.learn.nets import FeatureHead, new_net
from debiaser.learn.recipe import Recipe
from debiaser.methods.debias import as_split

SLACK = 1e-3  # by which rounding may leave the range of colours
LARGEST = 64  # pixels: up to here a small network learns from the pixels themselves
LINEAR = frozenset({"fc.weight", "fc.bias"})  # all that a linear head holds
SMALLEST = 28  # pixels of a side: SimConv-1 needs 25
IMAGES, TEXTS = 64, 256  # read at a time


# --- Samples that are in memory: a dataset of (x, y) pairs as a person's own data


def own_of(dataset: Any, seed: int = 0) -> OwnData:
    """A dataset of (image, class number) or (text, label) pairs as own data, read like a table that holds images."""
    if not hasattr(dataset, "__len__") or not len(dataset):
        raise Misuse("there are no samples here: give a path, a dataset of (x, y) pairs, or labels and probabilities")
    first = dataset.read(torch.arange(1))[0] if isinstance(dataset, Split) else dataset[0][0]
    ids = [str(row) for row in range(len(dataset))]
    rows = Rows(type(dataset).__name__, ids, [], "the dataset", places=np.arange(len(ids)))
    if isinstance(first, str):
        texts, labels = zip(*(dataset[row] for row in range(len(ids))), strict=True)
        return gather(replace(rows, texts=list(texts), labels=[str(label) for label in labels]), seed)
    if not isinstance(first, Tensor) or first.ndim != 3 or first.shape[0] not in (1, 3):
        raise Misuse(
            "audit takes a dataset of (image, label) with images (1 or 3, height, width), or of (text, label); "
            "for other inputs give the answers of a model: audit(labels, pred_probs, features)"
        )
    split, lock = as_split(dataset), Lock()
    names = dict(enumerate(split.classes or ()))

    def content(row: int) -> bytes:
        with lock:  # images are decoded in threads, which a person's dataset need not stand
            return as_file(split.read(torch.tensor([row]))[0])

    images = Embedded(content, rows.places)
    return gather(replace(rows, images=images, labels=[names.get(k, str(k)) for k in split.y.tolist()]), seed)


def as_file(image: Tensor) -> bytes:
    """An image (1 or 3, h, w) of bytes, or of numbers from 0 to 1, as the bytes of a PPM or PGM file."""
    if image.is_floating_point():
        low, high = (float(each) for each in image.aminmax())
        if low < -SLACK or high > 1 + SLACK:
            raise Misuse(
                f"images must be bytes, or numbers from 0 to 1; these reach from {low:.3g} to {high:.3g}: leave out "
                "the normalisation"
            )
        image = (image * 255).round().clamp(0, 255).byte()
    header = f"P{6 if len(image) == 3 else 5} {image.shape[2]} {image.shape[1]} 255\n"
    return header.encode() + image.permute(1, 2, 0).contiguous().numpy().tobytes()


# --- What models train on


STEPS = {  # updates of each stage
    "simconv1": {"biased": 400, "plain": 250, "judge": 500, "long": 1000},
    "mlp": {"long": 600},
    "finetuned": {"biased": 100, "long": 300},
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
        return type(self), (self.array, self.classes, self.identity)

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

    def linear_head(self) -> nn.Module:
        """A linear layer on the features."""
        return new_network("linear", self.input_shape, len(self.classes), 0)

    @property
    def augment(self) -> Augmentation | None:
        """What pixels are varied by in training; features and what a whole network reads cannot be."""
        return PAPER if self.architecture == "simconv1" else None

    def recipe(self, stage: str, rows: int) -> Recipe:
        """The recipe of a stage for so many samples.

        biased: short and slow, so that what is easy is learnt and little else; long: to learn what can be learnt;
        plain: for each of several models that answer together; judge: for one of the trainings of a judging model.
        """
        kind = self.architecture
        steps, rate = STEPS[kind].get(stage, STEPS[kind]["long"]), RATES[kind][stage != "biased"]
        return of_steps(rows, steps, lr=rate, **REGULARISED[kind])


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
    if architecture == "linear":
        return nn.Sequential(OrderedDict(fc=nn.Linear(inputs[0], classes)))
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
    def samples(self) -> Any:
        inputs = self.listed["inputs"]
        if self.listed["kind"] == "text":
            return Texts(inputs)
        return Images(inputs, Files(inputs), np.zeros((len(inputs), 2), np.int32))

    @property
    def input_shape(self) -> tuple[int, ...]:
        return ()

    def read(self, rows: Tensor) -> Tensor:
        """(b, 3, s, s) bytes, or (b, t) tokens."""
        return self.encoder.enter(self.samples.read(rows, self.encoder.size))

    @property
    def architecture(self) -> str:
        return "finetuned"

    @property
    def network(self) -> str:
        return f"{self.listed['encoder']}, all of it trained"

    def new_net(self, seed: int) -> nn.Module:
        encoder = find_encoder(self.listed["kind"], self.listed["encoder"])
        return new_network("finetuned", (), len(self.classes), seed, encoder)


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
        if self.own.kind == "image" and self.encoder is None:
            return torch.from_numpy(self.material.inputs[rows.numpy()])
        return self.own.inputs.read(rows, self.size)

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
            told["features"] = f"{self.encoder.name}, {self.encoder.width:,} numbers a sample, computed once"
        if self.own.kind == "image":
            told["pictures"] = f"whole, stretched to {self.size} x {self.size} pixels"
        return told


def prepare(own: OwnData, backbone: str | None, finetune: bool = False) -> Subject:
    """The samples with their inputs on disk: found there, finished, or made; to finetune, the list of what is read."""
    name, kept = own.inputs.identity, user_cache("features")
    if own.kind == "image" and backbone is None and not finetune and own.inputs.largest_side <= LARGEST:
        size = max(SMALLEST, own.inputs.largest_side)
        array = pixels(name, len(own), stream_of(own, size), size, kept)
        return Subject(own, Material(file_of(array), own.classes, f"{name}:{size}"), None, size)
    encoder = find_encoder(own.kind, backbone)
    if finetune:
        if own.kind == "image" and not all(own.paths):
            raise Misuse("--finetune needs images that are files: these lie inside a table; save them as files first")
        inputs = list(own.inputs.texts) if own.kind == "text" else [str(Path(each).resolve()) for each in own.paths]
        write_json(kept / f"{name}.json", {"kind": own.kind, "encoder": encoder.name, "inputs": inputs})
        whole = WholeMaterial(kept / f"{name}.json", own.classes, f"{name}:{encoder.identity}:whole")
        return Subject(own, whole, encoder, encoder.size)
    array = features(encoder, name, len(own), stream_of(own, encoder.size), kept)
    return Subject(own, Material(file_of(array), own.classes, f"{name}:{encoder.identity}"), encoder, encoder.size)


def file_of(array: Array) -> Path:
    """The file that an array is mapped from."""
    return Path(str(cast(np.memmap, array).filename))


def stream_of(own: OwnData, size: int) -> Stream:
    """What the cache asks for missing samples: texts, or images, decoded ahead; none that is not what it was."""

    def stream(rows: Tensor) -> Iterator[tuple[Tensor, Any]]:
        if own.kind == "text":
            yield from ((part, own.inputs.read(part)) for part in torch.split(rows, TEXTS))
            return
        for part, images in own.inputs.stream(rows, size, IMAGES):
            for name, reason in own.inputs.failed.items():
                raise Problem(
                    f"{len(own.inputs.failed):,} images changed while they were read; the first, {name}, {reason}: "
                    "run the same command again when nothing writes to them"
                )
            yield part, images

    return stream
