"""Networks, by name: each maker takes the number of classes and gives an `nn.Module` that ends in a linear layer."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from debiaser.errors import Problem, known

# Row v holds, for each of the eight bits of the byte v, 2 where it is set and 0 where not.
_BIT_MASKS = 2.0 * ((torch.arange(256)[:, None] >> torch.arange(8)) & 1)


def half_mask(x: Tensor) -> Tensor:
    """A tensor like x of zeros and twos, each with probability 1/2, from one random bit per element, not one float."""
    n = x.numel()
    words = torch.empty((n + 63) // 64, dtype=torch.int64, device=x.device).random_(-(2**63), None)
    return _BIT_MASKS.to(x).index_select(0, words.view(torch.uint8).int()).view(-1)[:n].view(x.shape)


class HalfDropout(nn.Module):
    """Dropout with p = 1/2 from torch's global generator; drawing floats for it took a quarter of a step."""

    def forward(self, x: Tensor) -> Tensor:
        return x * half_mask(x) if self.training else x


class _GatedPool(torch.autograd.Function):
    """2x2 average pooling of x * gate, where gate is the dropout mask where x is positive and 0 elsewhere."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, mask: Tensor) -> Tensor:
        gate = torch.ops.aten.threshold_backward(mask, x, 0)
        ctx.save_for_backward(gate)
        passed = x * gate
        height, width = x.shape[-2] // 2 * 2, x.shape[-1] // 2 * 2
        rows = passed[..., 0:height:2, :] + passed[..., 1:height:2, :]
        pooled: Tensor = rows[..., 0:width:2] + rows[..., 1:width:2]
        return pooled.mul_(0.25)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (gate,), quarter = ctx.saved_tensors, gradients[0] * 0.25
        height, width = quarter.shape[-2] * 2, quarter.shape[-1] * 2
        gradient = torch.zeros_like(gate)
        wide = quarter[..., None].expand(*quarter.shape, 2).flatten(-2)
        for row in (0, 1):
            part = (..., slice(row, height, 2), slice(width))
            torch.mul(gate[part], wide, out=gradient[part])
        return gradient, None


class HalfDropoutPool(nn.Module):
    """ReLU, dropout with p = 1/2 and 2x2 average pooling in one pass over the picture instead of three."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return F.avg_pool2d(F.relu(x), 2)
        pooled: Tensor = _GatedPool.apply(x, half_mask(x))  # type: ignore[no-untyped-call]
        return pooled


class SimConv1(nn.Module):
    """The paper's small network for Colored MNIST: three convolutions, 38,210 parameters for ten classes."""

    smallest = 25  # pixels: below, the third convolution has nothing left to see

    def __init__(self, classes: int = 10, channels: int = 3) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv2d(channels, 8, 4), nn.BatchNorm2d(8), HalfDropoutPool()),
            *(nn.Conv2d(8, 32, 4), nn.BatchNorm2d(32), HalfDropoutPool()),
            *(nn.Conv2d(32, 64, 4), nn.ReLU(), nn.BatchNorm2d(64), HalfDropout(), nn.AdaptiveAvgPool2d(1)),
            nn.Flatten(),
        )
        self.fc = nn.Linear(64, classes)

    def forward(self, x: Tensor) -> Tensor:
        if min(x.shape[-2:]) < self.smallest:
            size = "x".join(str(side) for side in x.shape[-2:])
            raise Problem(f"SimConv-1 needs pictures of at least 25x25 pixels, got {size}: enlarge them to 28x28")
        logits: Tensor = self.fc(self.body(x))
        return logits


NETS: dict[str, Callable[[int], nn.Module]] = {"simconv1": SimConv1}


def new_net(name: str, classes: int, seed: int) -> nn.Module:
    """A freshly initialised network; the same weights for the same seed, whatever was drawn before."""
    if name not in NETS:
        raise known("network", name, NETS)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return NETS[name](classes)
