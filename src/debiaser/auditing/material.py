"""What the models of an audit train on: every row in one array on disk, pixels up to 64 px, else frozen features."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from debiaser.data.augment import PAPER, Augmentation
from debiaser.data.split import Split
from debiaser.learn.nets import FeatureHead, new_net
from debiaser.learn.recipe import Recipe

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
        from debiaser.auditing.finetuned import WholeMaterial

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

    def easy_recipes(self, rows: int) -> tuple[Recipe, ...]:
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
