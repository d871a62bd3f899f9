"""Training the whole pretrained network: pictures are decoded, texts cut into tokens, whenever they are read."""

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from debiaser.auditing.material import Material, of_steps
from debiaser.data.augment import Augmentation
from debiaser.data.own import OwnData, Texts
from debiaser.data.pictures import Files, Pictures
from debiaser.errors import Misuse
from debiaser.files import write_json
from debiaser.learn.encoders import Encoder, find_encoder
from debiaser.learn.recipe import Recipe

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

    def easy_recipes(self, rows: int) -> tuple[Recipe, ...]:
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
