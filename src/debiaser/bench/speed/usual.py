"""What people write instead: a Dataset that treats one picture at a time with Pillow, stock layers, a plain loop."""

import math
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageEnhance
from torch import Tensor, nn
from torch.utils.data import Dataset

from debiaser.data.augment import PAPER

assert PAPER.crop is not None
LOW, HIGH = PAPER.crop


def stock_simconv1(classes: int = 10) -> nn.Sequential:
    """SimConv-1 of stock layers."""
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 4), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.5), nn.AvgPool2d(2)),
        *(nn.Conv2d(8, 32, 4), nn.BatchNorm2d(32), nn.ReLU(), nn.Dropout(0.5), nn.AvgPool2d(2)),
        *(nn.Conv2d(32, 64, 4), nn.ReLU(), nn.BatchNorm2d(64), nn.Dropout(0.5), nn.AdaptiveAvgPool2d(1)),
        *(nn.Flatten(), nn.Linear(64, classes)),
    )


class Augmented(Dataset[tuple[Tensor, int]]):
    """8-bit pictures, each augmented by Pillow when it is asked for."""

    def __init__(self, pixels: np.ndarray, labels: np.ndarray) -> None:
        self.pixels, self.labels = pixels, labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        rng = np.random.default_rng(int(torch.randint(2**62, ())))
        return as_tensor(augment(Image.fromarray(self.pixels[row]), rng)), int(self.labels[row])


class Opened(Dataset[Tensor]):
    """Picture files, each opened, resized and made a float tensor when it is asked for."""

    def __init__(self, paths: list[str], size: int) -> None:
        self.paths, self.size = paths, size

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, row: int) -> Tensor:
        with Image.open(self.paths[row]) as image:
            return as_tensor(image.convert("RGB").resize((self.size, self.size), Image.Resampling.BILINEAR))


def as_tensor(image: Image.Image) -> Tensor:
    """(3, h, w) floats in [0, 1]."""
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous().float() / 255


def augment(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    """Crop and rotation as one affine transform, then saturation and hue, as the paper's augmentation has them."""
    width, height = image.size
    w, h, left, top = draw_crop(width, height, rng)
    angle = math.radians(rng.uniform(-PAPER.rotate, PAPER.rotate))
    a, b = w / width * math.cos(angle), w / width * math.sin(angle)
    d, e = -h / height * math.sin(angle), h / height * math.cos(angle)
    c = left + w / 2 - (a * width + b * height) / 2
    f = top + h / 2 - (d * width + e * height) / 2
    image = image.transform((width, height), Image.Transform.AFFINE, (a, b, c, d, e, f), Image.Resampling.BILINEAR)
    image = ImageEnhance.Color(image).enhance(rng.uniform(1 - PAPER.saturation, 1 + PAPER.saturation))
    hue, saturation, value = image.convert("HSV").split()
    turned = np.asarray(hue, dtype=np.int16) + round(rng.uniform(-PAPER.hue, PAPER.hue) * 255)
    return Image.merge("HSV", (Image.fromarray(turned.astype(np.uint8)), saturation, value)).convert("RGB")


def draw_crop(width: int, height: int, rng: np.random.Generator) -> tuple[int, int, int, int]:
    """Width, height, left and top of a random crop; the whole picture after ten that do not fit."""
    for _ in range(10):
        ratio = math.exp(rng.uniform(math.log(PAPER.ratio[0]), math.log(PAPER.ratio[1])))
        area = width * height * rng.uniform(LOW, HIGH)
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if w <= width and h <= height:
            return w, h, int(rng.integers(width - w + 1)), int(rng.integers(height - h + 1))
    return width, height, 0, 0


def kornia_augmentation() -> Any | None:
    """The same with kornia's batched layers, if kornia is installed."""
    try:
        from kornia import augmentation
    except ImportError:
        return None
    return nn.Sequential(
        augmentation.RandomResizedCrop((28, 28), scale=(LOW, min(HIGH, 1.0)), ratio=PAPER.ratio),
        augmentation.RandomRotation(PAPER.rotate, p=1.0),
        augmentation.ColorJitter(0.0, 0.0, PAPER.saturation, PAPER.hue, p=1.0),
    )
