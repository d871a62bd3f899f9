"""From a person's rows to what models train on: the pixels themselves, or features of a frozen encoder."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from debiaser.auditing.finetuned import WholeMaterial, whole_material
from debiaser.auditing.material import LARGEST, Material, as_float
from debiaser.data.own import OwnData, Texts
from debiaser.data.pictures import Pictures
from debiaser.data.raw import cache
from debiaser.errors import Problem
from debiaser.learn.encoders import Encoder, find_encoder
from debiaser.learn.engine import Listener
from debiaser.learn.features import Array, Stream, features, pixels

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


def prepare(
    own: OwnData, backbone: str | None, listener: Listener, device: str = "cpu", finetune: bool = False
) -> Subject:
    """The rows with their inputs on disk: found there, finished, or made; to finetune, the list of what is read."""
    if finetune:
        encoder = find_encoder(own.kind, backbone, device)
        return Subject(own, whole_material(own, encoder, cache_folder()), encoder, encoder.size)
    if own.kind == "image" and backbone is None and pictures_of(own).largest_side <= LARGEST:
        size = max(SMALLEST, pictures_of(own).largest_side)
        stream = picture_stream(pictures_of(own), size)
        array = pixels(own.inputs.identity, len(own), stream, size, cache_folder(), listener)
        chosen: Encoder | None = None
    else:
        chosen = encoder = find_encoder(own.kind, backbone, device)
        size = encoder.size
        stream = picture_stream(pictures_of(own), size) if own.kind == "image" else text_stream(own)
        array = features(encoder, own.inputs.identity, len(own), stream, cache_folder(), listener)
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
    return cache().parent / "features"


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
