"""A contact sheet of the batched augmentation beside the usual per-sample Pillow transforms, to look at.

python benchmarks/contact_sheet.py sheet.png
"""

import math
import sys

import numpy as np
import torch
from PIL import Image

from debiaser.data.augment import PAPER
from debiaser.data.benchmarks import digits

SCALE, COLUMNS, ROWS = 3, 14, 6


def pillow(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    """Random resized crop, hue and saturation, rotation: as torchvision does them on Pillow images."""
    width, height = image.size
    box = (0, 0, width, height)
    for _ in range(10):
        area = width * height * rng.uniform(0.9, 1.1)
        ratio = math.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if w <= width and h <= height:
            left, top = rng.integers(0, width - w + 1), rng.integers(0, height - h + 1)
            box = (left, top, left + w, top + h)
            break
    image = image.resize((width, height), Image.Resampling.BILINEAR, box=box)
    hsv = np.asarray(image.convert("HSV")).copy()
    hsv[..., 0] = (hsv[..., 0].astype(int) + round(rng.uniform(-0.05, 0.05) * 255)) % 256
    hsv[..., 1] = np.clip(hsv[..., 1] * rng.uniform(0.95, 1.05), 0, 255)
    return Image.fromarray(hsv, "HSV").convert("RGB").rotate(rng.uniform(-10, 10), Image.Resampling.NEAREST)


def main(path: str) -> None:
    train = digits.load(None, 0.05, 0).train
    x = train.batch(torch.arange(ROWS)).x
    originals = (x * 255).round().byte().permute(0, 2, 3, 1).numpy()
    rng, half = np.random.default_rng(0), COLUMNS // 2
    sheet = Image.new("RGB", ((COLUMNS + 2) * 30 * SCALE, ROWS * 30 * SCALE), "white")
    for row, pixels in enumerate(originals):
        image = Image.fromarray(pixels)
        ours = PAPER(x[row : row + 1].expand(half, -1, -1, -1), torch.Generator().manual_seed(row))
        ours_pixels = (ours * 255).round().byte().permute(0, 2, 3, 1).numpy()
        line = [image, *(Image.fromarray(each) for each in ours_pixels), None]
        line += [pillow(image, rng) for _ in range(half)]
        for column, each in enumerate(line):
            if each is not None:
                size = (28 * SCALE, 28 * SCALE)
                sheet.paste(each.resize(size, Image.Resampling.NEAREST), (column * 30 * SCALE, row * 30 * SCALE))
    sheet.save(path)


if __name__ == "__main__":
    main(sys.argv[1])
