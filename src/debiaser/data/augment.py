"""Batched augmentation on tensors: one resample and one colour matrix per sample, whatever is asked."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

# Luma of ITU-R 601 (as Pillow's "L") and two chroma axes across it: hue turns and saturation stretches the chroma.
_TO_CHROMA = torch.tensor([[0.299, 0.587, 0.114], [0.595716, -0.274453, -0.321263], [0.211456, -0.522591, 0.311135]])
_FROM_CHROMA = torch.linalg.inv(_TO_CHROMA.double()).float()
_TRIES = 10  # a crop that does not fit is drawn again this often, then the whole image is taken


@dataclass(frozen=True)
class Augmentation:
    """Random resized crop, rotation, flip, hue and saturation; each part is off at its default.

    crop: range of the crop's area over the image's; ratio: range of width over height of the crop; rotate: degrees;
    hue: share of a full turn; saturation: factor in 1 +- saturation; flip: mirror left to right; shift: pixels.
    """

    crop: tuple[float, float] | None = None
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    rotate: float = 0.0
    flip: bool = False
    shift: int = 0
    hue: float = 0.0
    saturation: float = 0.0

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """(b, c, h, w) in [0, 1], each sample changed by its own draw."""
        if self.crop or self.rotate or self.flip or self.shift:
            maps = self.draw_maps(len(x), x.shape[-2:], generator).to(x)
            x = F.grid_sample(x, affine_grid(maps, *x.shape[-2:]), mode="bilinear", align_corners=False)
        if (self.hue or self.saturation) and x.shape[1] == 3:
            matrices = self.draw_colour_matrices(len(x), generator).to(x)
            x = torch.bmm(matrices, x.flatten(2)).view_as(x).clamp_(0, 1)
        return x

    def draw_maps(self, n: int, size: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """(n, 2, 3) maps from output to input coordinates in [-1, 1]: crop after rotation, as one affine map."""
        height, width = size
        scale, centre = self._draw_crops(n, height, width, generator)
        angle = uniform((n,), -math.radians(self.rotate), math.radians(self.rotate), generator)
        cosine, sine, aspect = angle.cos(), angle.sin(), width / height
        mirror = 1 - 2.0 * (torch.rand(n, generator=generator) < 0.5) if self.flip else torch.ones(n)
        rows = [
            torch.stack([scale[:, 0] * cosine * mirror, scale[:, 0] * sine / aspect, centre[:, 0]], 1),
            torch.stack([-scale[:, 1] * sine * aspect * mirror, scale[:, 1] * cosine, centre[:, 1]], 1),
        ]
        return torch.stack(rows, 1)

    def _draw_crops(self, n: int, height: int, width: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """(n, 2) size and (n, 2) centre, x before y, in units where the image reaches from -1 to 1."""
        scale, centre = torch.ones(n, 2), torch.zeros(n, 2)
        if self.crop:
            area = uniform((n, _TRIES), *self.crop, generator) * height * width
            ratio = uniform((n, _TRIES), math.log(self.ratio[0]), math.log(self.ratio[1]), generator).exp()
            sizes = torch.stack([(area * ratio).sqrt().round(), (area / ratio).sqrt().round()], 2)
            whole = torch.tensor([width, height], dtype=sizes.dtype)
            fits = ((sizes > 0) & (sizes <= whole)).all(2)
            first = fits.int().argmax(1)  # the first try that fits
            chosen = sizes[torch.arange(n), first]
            chosen = torch.where(fits.any(1, keepdim=True), chosen, whole)
            corner = (torch.rand(n, 2, generator=generator) * (whole - chosen + 1)).floor()
            scale = chosen / whole
            centre = (2 * corner + chosen) / whole - 1
        if self.shift:
            pixels = torch.randint(-self.shift, self.shift + 1, (n, 2), generator=generator)
            centre = centre + 2 * pixels / torch.tensor([width, height])
        return scale, centre

    def draw_colour_matrices(self, n: int, generator: torch.Generator) -> Tensor:
        """(n, 3, 3) matrices that keep the luma, turn the chroma by the hue and stretch it by the saturation."""
        turn = uniform((n,), -self.hue, self.hue, generator) * (2 * math.pi)
        stretch = uniform((n,), 1 - self.saturation, 1 + self.saturation, generator)
        inner = torch.zeros(n, 3, 3)
        inner[:, 0, 0] = 1
        inner[:, 1, 1] = inner[:, 2, 2] = stretch * turn.cos()
        inner[:, 1, 2] = stretch * turn.sin()
        inner[:, 2, 1] = -inner[:, 1, 2]
        matrices: Tensor = _FROM_CHROMA @ inner @ _TO_CHROMA
        return matrices


def affine_grid(maps: Tensor, height: int, width: int) -> Tensor:
    """(n, h, w, 2) where the maps (n, 2, 3) look for each pixel, as torch's with align_corners=False, in a tenth of its
    time: points x + iy are a column's part plus a row's part."""
    across, down, shift = torch.view_as_complex(maps.transpose(1, 2).contiguous())[:, None].unbind(2)  # (n, 1) each
    x, y = ((2 * torch.arange(side, device=maps.device) + 1) / side - 1 for side in (width, height))
    return torch.view_as_real((across * x)[:, None] + (down * y + shift)[:, :, None])


def uniform(shape: tuple[int, ...], low: float, high: float, generator: torch.Generator) -> Tensor:
    """Uniform numbers between low and high."""
    return torch.rand(shape, generator=generator) * (high - low) + low


# The paper's augmentation of Colored MNIST (its released code): RandomResizedCrop, ColorJitter, RandomRotation. Its
# authors use the same for Multi-bias MNIST at 56x56 (D18).
PAPER = Augmentation(crop=(0.9, 1.1), rotate=10, hue=0.05, saturation=0.05)
# Disen's, for Corrupted CIFAR-10 and BFFHQ, whose settings the paper says it takes over (D18): RandomCrop with four
# pixels of padding, and a flip.
SHIFT_AND_FLIP = Augmentation(shift=4, flip=True)
# BAR: the paper names crop, rotation and jitter but no numbers (D18); a crop usual for photographs, the rest as above.
PHOTOGRAPH = Augmentation(crop=(0.7, 1.0), rotate=10, hue=0.05, saturation=0.05)
AUGMENTATIONS = {"paper": PAPER, "shift and flip": SHIFT_AND_FLIP, "photograph": PHOTOGRAPH}
