"""From a person's rows to what models train on: the pixels themselves, or features of a frozen encoder."""

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
from debiaser.learn.encoders import Encoder, find_encoder
from debiaser.learn.features import Stream, features, pixels
from debiaser.learn.nets import FeatureHead, new_net
from debiaser.learn.recipe import Recipe
from debiaser.methods.debias import as_split

# --- Rows that are in memory already: a dataset of (x, y) pairs as a person's own data

SLACK = 1e-3  # by which rounding may leave the range of colours


class Tensors:
    """Pictures (n, c, h, w) behind the face of `Pictures`: letterboxed when read."""

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
    """Pictures of any size and 1 or 3 channels, bytes or numbers in [0, 1], as (b, 3, size, size) uint8."""
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
    """A dataset of (picture, class number) or (text, class number) pairs as own data."""
    if not hasattr(dataset, "__len__") or not len(dataset):
        raise Misuse("there are no rows here: give a path, a dataset of (x, y) pairs, or labels and probabilities")
    first = dataset[0][0] if not hasattr(dataset, "read") else dataset.read(torch.arange(1))[0]
    inputs: Any
    classes: tuple[str, ...] = ()
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
    names = classes or tuple(str(k) for k in range(int(y.max()) + 1))
    unit = np.arange(len(y))
    return OwnData(
        source=type(dataset).__name__,
        kind=kind,
        ids=[str(row) for row in range(len(y))],
        paths=[""] * len(y),
        y=y,
        classes=names,
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
    """The bytes of pictures that can be shown as they are: all of one size, in bytes or numbers from 0 to 1."""
    try:
        pictures = read(rows)
    except RuntimeError as error:
        raise Misuse("pictures of several sizes cannot be stacked; resize them, or give them as a folder") from error
    if pictures.is_floating_point():
        low, high = (float(each) for each in pictures.aminmax())
        if low < -SLACK or high > 1 + SLACK:
            raise Misuse(
                f"pictures must be bytes, or numbers from 0 to 1; these reach from {low:.3g} to {high:.3g}: leave out "
                "the normalisation"
            )
    return pictures.contiguous().numpy().tobytes()


def digest(parts: Iterable[bytes] | Iterator[bytes]) -> str:
    """A name for this content."""
    state = hashlib.blake2b(digest_size=16)
    for part in parts:
        state.update(len(part).to_bytes(8, "big") + part)
    return state.hexdigest()


# --- What the models of an audit train on: every row in one array on disk, pixels up to 64 px, else frozen features

LARGEST = 64  # pixels: up to here a small network learns from the pixels themselves


@dataclass(frozen=True, eq=False)
class Material:
    """An `.npy` file with one input per row, and the network for it.

    Pictures are (n, 3, s, s), bytes or numbers in [0, 1]; features are (n, h). identity: of the data, for keys.
    """

    array: Path
    classes: tuple[str, ...]
    identity: str

    @property
    def plain(self) -> dict[str, Any]:
        return {"array": str(self.array), "classes": list(self.classes), "identity": self.identity}

    @staticmethod
    def of(plain: dict[str, Any]) -> "Material":
        """What `plain` described."""

        path = Path(plain["array"])
        kind = WholeMaterial if path.suffix == ".json" else Material
        return kind(path, tuple(plain["classes"]), plain["identity"])

    @cached_property
    def inputs(self) -> NDArray[Any]:
        """(n, ...) mapped, not read."""
        mapped: NDArray[Any] = np.load(self.array, mmap_mode="r", allow_pickle=False)
        return mapped

    @property
    def pictures(self) -> bool:
        """Whether it holds pictures, not features."""
        return self.inputs.ndim == 4

    def read(self, rows: Tensor) -> Tensor:
        """(b, ...) float inputs of these rows."""
        return as_float(torch.from_numpy(self.inputs[rows.numpy()]))

    def points(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """(b, d) the inputs of these rows as points, to find neighbours by."""
        return np.asarray(self.read(torch.from_numpy(rows)).flatten(1), np.float32)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        return tuple(self.inputs.shape[1:])

    def split(self, y: NDArray[np.int64]) -> Split:
        """All rows with these labels."""
        return Split(torch.from_numpy(y), self.read, self.classes)

    @property
    def architecture(self) -> str:
        """The network's name."""
        return "simconv1" if self.pictures else "mlp"

    def new_net(self, seed: int) -> nn.Module:
        """A fresh network for these inputs."""
        return new_network(self.architecture, self.input_shape, len(self.classes), seed)

    @property
    def augment(self) -> Augmentation | None:
        """What pictures are varied by in training; frozen features cannot be."""
        return PAPER if self.pictures else None

    @property
    def network(self) -> str:
        """The network in words."""
        return "SimConv-1 from scratch" if self.pictures else "a head of 256 units on frozen features"

    def biased_recipes(self, rows: int) -> tuple[Recipe, ...]:
        """Short and slow, so that what is easy is learnt and little else; the longest first."""
        if self.pictures:
            return (of_steps(rows, 400, lr=0.02),)
        return tuple(of_steps(rows, steps, lr=0.02, weight_decay=1e-3) for steps in (200, 100, 50))

    def long_recipe(self, rows: int) -> Recipe:
        """Long enough to learn what can be learnt."""
        return of_steps(rows, 1000, lr=0.1) if self.pictures else of_steps(rows, 600, lr=0.05, weight_decay=1e-3)

    def plain_recipe(self, rows: int) -> Recipe:
        """Long enough for each of several models that answer together."""
        return of_steps(rows, 250, lr=0.1) if self.pictures else self.long_recipe(rows)

    def judge_recipe(self, rows: int) -> Recipe:
        """One of the trainings of a judging model; the next goes on from it."""
        return of_steps(rows, 500, lr=0.1) if self.pictures else self.long_recipe(rows)


def new_network(architecture: str, inputs: tuple[int, ...], classes: int, seed: int) -> nn.Module:
    """A fresh network of this name for inputs of this shape."""
    if architecture != "mlp":
        return new_net(architecture, classes, seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return FeatureHead(inputs[0], classes)


def of_steps(rows: int, steps: int, **changes: Any) -> Recipe:
    """A one-cycle recipe of about so many updates on so many rows."""
    size = 64 if rows >= 640 else 32 if rows >= 128 else 16
    return Recipe(epochs=min(60, max(2, round(steps * size / rows))), batch_size=size, name="audit", **changes)


def as_float(inputs: Tensor) -> Tensor:
    """Bytes as numbers in [0, 1]; numbers as they are."""
    return inputs.float() / 255 if inputs.dtype == torch.uint8 else inputs.float()


# --- Training the whole pretrained network: pictures are decoded, texts cut into tokens, whenever they are read

POINT = 16  # pixels of a picture, or hashed words of a text, by which neighbours are found


class Finetuned(nn.Module):
    """A pretrained network whose weights are free, and a linear layer on its features."""

    def __init__(self, encoder: Encoder, classes: int) -> None:
        super().__init__()
        self.body, self.flow = encoder.module.requires_grad_(True), encoder.flow
        self.fc = nn.Linear(encoder.width, classes)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.fc(self.flow(self.body, x))
        return logits


def new_finetuned(encoder: Encoder, classes: int, seed: int) -> nn.Module:
    """The pretrained network with a fresh last layer."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Finetuned(encoder, classes)


@dataclass(frozen=True, eq=False)
class WholeMaterial(Material):
    """Material whose `array` is a JSON file that lists picture files or texts, and the encoder to train."""

    @cached_property
    def listed(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads(self.array.read_text())
        return content

    @cached_property
    def encoder(self) -> Encoder:
        return find_encoder(self.listed["kind"], self.listed["encoder"])

    @cached_property
    def rows(self) -> Pictures | Texts:
        if self.listed["kind"] == "text":
            return Texts(self.listed["inputs"])
        paths = self.listed["inputs"]
        return Pictures(paths, Files(paths), np.zeros((len(paths), 2), np.int32))

    @property
    def pictures(self) -> bool:
        return False

    @property
    def input_shape(self) -> tuple[int, ...]:
        return ()

    def read(self, rows: Tensor) -> Tensor:
        """(b, 3, s, s) bytes, or (b, t) tokens."""
        size = self.encoder.size
        return self.encoder.enter(
            self.rows.read(rows, size) if isinstance(self.rows, Pictures) else self.rows.read(rows)
        )

    def points(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        chosen = torch.from_numpy(rows)
        if isinstance(self.rows, Pictures):
            return np.asarray(self.rows.read(chosen, POINT).flatten(1) / 255, np.float32)
        from sklearn.feature_extraction.text import HashingVectorizer

        words = HashingVectorizer(n_features=POINT**2).transform(self.rows.read(chosen))
        return np.asarray(words.toarray(), np.float32)

    @property
    def architecture(self) -> str:
        return "finetuned"

    def new_net(self, seed: int) -> nn.Module:
        return new_finetuned(find_encoder(self.listed["kind"], self.listed["encoder"]), len(self.classes), seed)

    @property
    def augment(self) -> Augmentation | None:
        return None

    @property
    def network(self) -> str:
        return f"{self.listed['encoder']}, all of it trained"

    def biased_recipes(self, rows: int) -> tuple[Recipe, ...]:
        return (of_steps(rows, 100, lr=3e-5, optimizer="adamw", weight_decay=0.01),)

    def long_recipe(self, rows: int) -> Recipe:
        return of_steps(rows, 300, lr=1e-4, optimizer="adamw", weight_decay=0.01)


def whole_material(own: OwnData, encoder: Encoder, folder: Path) -> WholeMaterial:
    """The list of what is trained on, written for the processes that train."""
    inputs = (
        list(own.inputs.texts) if isinstance(own.inputs, Texts) else [str(Path(each).resolve()) for each in own.paths]
    )
    if own.kind == "image" and not all(own.paths):
        raise Misuse("--finetune needs pictures that are files: these lie inside a table; save them as files first")
    path = folder / f"{own.inputs.identity}.json"
    write_json(path, {"kind": own.kind, "encoder": encoder.name, "inputs": inputs})
    return WholeMaterial(path, own.classes, f"{own.inputs.identity}:{encoder.identity}:whole")


def with_texts(material: WholeMaterial, texts: list[str], identity: str) -> WholeMaterial:
    """The same list with more texts after its own."""
    path = material.array.with_name(f"{hashlib.blake2b(identity.encode(), digest_size=16).hexdigest()}.json")
    write_json(path, {**material.listed, "inputs": [*material.listed["inputs"], *texts]})
    return WholeMaterial(path, material.classes, identity)


SMALLEST = 28  # pixels of a side: SimConv-1 needs 25
PICTURES, TEXTS = 64, 256  # read at a time


@dataclass(frozen=True, eq=False)
class Subject:
    """Rows, and the inputs that models get from them; `encoder` is None where they get the pixels."""

    own: OwnData
    material: Material
    encoder: Encoder | None
    size: int

    def read(self, rows: Tensor) -> Any:
        """Pictures (b, 3, size, size) uint8 exactly as the model gets them, or b texts."""
        if self.own.kind == "text":
            return texts_of(self.own, rows)
        if self.encoder is None:
            return torch.from_numpy(self.material.inputs[rows.numpy()])
        return pictures_of(self.own).read(rows, self.size)

    def enter(self, inputs: Any) -> Tensor:
        """Inputs of the kind that `read` gives, as the network's."""
        if self.encoder is None:
            return as_float(inputs)
        return self.encoder.enter(inputs) if isinstance(self.material, WholeMaterial) else self.encoder.encode(inputs)

    def flow(self, pictures: Tensor) -> Tensor:
        """What the network gets from pictures of floats 0..255, such that gradients reach them."""
        if self.encoder is None:
            return pictures / 255
        whole = isinstance(self.material, WholeMaterial)
        return pictures.clone() if whole else self.encoder.flow(self.encoder.module, pictures.clone())

    @property
    def choices(self) -> dict[str, str]:
        """What was chosen for this data, in words."""
        told = {"network": self.material.network}
        if self.encoder is not None and not isinstance(self.material, WholeMaterial):
            told["features"] = f"{self.encoder.name}, {self.encoder.width:,} numbers a row, computed once"
        if self.own.kind == "image":
            told["pictures"] = f"whole, letterboxed to {self.size} x {self.size} pixels"
        return told

    @property
    def better_inputs(self) -> str:
        """What to try when the inputs cannot carry the task."""
        if self.encoder is None:
            return "Check the labels, or use a pretrained network: --backbone NAME."
        return "Check the labels, try another --backbone, or train the whole network with --finetune."


def prepare(own: OwnData, backbone: str | None, device: str = "cpu", finetune: bool = False) -> Subject:
    """The rows with their inputs on disk: found there, finished, or made; to finetune, the list of what is read."""
    if finetune:
        encoder = find_encoder(own.kind, backbone, device)
        return Subject(own, whole_material(own, encoder, cache_folder()), encoder, encoder.size)
    if own.kind == "image" and backbone is None and pictures_of(own).largest_side <= LARGEST:
        size = max(SMALLEST, pictures_of(own).largest_side)
        stream = picture_stream(pictures_of(own), size)
        array = pixels(own.inputs.identity, len(own), stream, size, cache_folder())
        chosen: Encoder | None = None
    else:
        chosen = encoder = find_encoder(own.kind, backbone, device)
        size = encoder.size
        stream = picture_stream(pictures_of(own), size) if own.kind == "image" else text_stream(own)
        array = features(encoder, own.inputs.identity, len(own), stream, cache_folder())
    identity = f"{own.inputs.identity}:{chosen.identity if chosen else size}"
    return Subject(own, Material(file_of(array), own.classes, identity), chosen, size)


def pictures_of(own: OwnData) -> Pictures:
    """The pictures of rows that are pictures."""
    return cast(Pictures, own.inputs)


def texts_of(own: OwnData, rows: Tensor) -> list[str]:
    """The texts of rows that are texts."""
    return cast(Texts, own.inputs).read(rows)


def file_of(array: Array) -> Path:
    """The file that an array is mapped from."""
    return Path(str(cast(np.memmap, array).filename))


def cache_folder() -> Path:
    """Where pixels and features are kept."""
    return user_cache("features")


class Changed(Problem):
    """Pictures are no longer what they were when they were first looked at: what is made of them must not be kept."""

    def __init__(self, failed: dict[str, str]) -> None:
        name, reason = next(iter(failed.items()))
        super().__init__(
            f"{len(failed):,} pictures changed while they were read; the first, {name}, {reason}: "
            "run the same command again when nothing writes to them"
        )


def picture_stream(inputs: Pictures, size: int) -> Stream:
    """What the cache asks for missing rows: pictures, decoded ahead; Changed where one is no longer what it was."""

    def stream(rows: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        for part, pictures in inputs.stream(rows, size, PICTURES):
            if inputs.failed:
                raise Changed(inputs.failed)
            yield part, pictures

    return stream


def text_stream(own: OwnData) -> Stream:
    """What the cache asks for missing rows: texts."""

    def stream(rows: Tensor) -> Iterator[tuple[Tensor, list[str]]]:
        for part in torch.split(rows, TEXTS):
            yield part, texts_of(own, part)

    return stream
