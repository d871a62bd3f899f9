"""Networks, by name: each maker takes the number of classes and gives an `nn.Module` that ends in a linear layer."""

from collections.abc import Callable, Iterable
from functools import partial
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from debiaser.errors import Problem, known
from debiaser.learn import published

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


class SimConv2(nn.Module):
    """The paper's network for Multi-bias MNIST: four convolutions, 140,634 parameters for ten classes.

    As printed it pools 3x3 and cannot see the benchmark's 56x56 pictures; `pool=2` is the variant that can (D12).
    """

    def __init__(self, classes: int = 10, channels: int = 3, pool: int = 2) -> None:
        super().__init__()
        # Backwards from the 3x3 that the last convolution needs: 46 pixels when pooling 2x2, 87 when pooling 3x3.
        self.pool, self.smallest = pool, (7 * pool + 6) * pool + 6
        self.body = nn.Sequential(
            *(nn.Conv2d(channels, 8, 7), nn.BatchNorm2d(8), *dropout_pool(pool)),
            *(nn.Conv2d(8, 32, 7), nn.BatchNorm2d(32), *dropout_pool(pool)),
            *(nn.Conv2d(32, 64, 5), nn.ReLU(), nn.BatchNorm2d(64), HalfDropout()),
            *(nn.Conv2d(64, 128, 3), nn.ReLU(), nn.BatchNorm2d(128), HalfDropout()),
            *(nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        )
        self.fc = nn.Linear(128, classes)

    def forward(self, x: Tensor) -> Tensor:
        if min(x.shape[-2:]) < self.smallest:
            size, least = "x".join(str(side) for side in x.shape[-2:]), f"{self.smallest}x{self.smallest}"
            cure = "as printed it cannot run on Multi-bias MNIST, take simconv2" if self.pool > 2 else "take simconv1"
            pooling = f"{self.pool}x{self.pool} pooling"
            raise Problem(f"SimConv-2 with {pooling} needs pictures of at least {least} pixels, got {size}: {cure}")
        logits: Tensor = self.fc(self.body(x))
        return logits


def dropout_pool(size: int) -> tuple[nn.Module, ...]:
    """ReLU, dropout with p = 1/2 and average pooling; in one pass where the size allows."""
    return (HalfDropoutPool(),) if size == 2 else (nn.ReLU(), HalfDropout(), nn.AvgPool2d(size))


class FeatureHead(nn.Module):
    """A head for frozen features (b, width): standardised, then 256 hidden units with dropout.

    LayerNorm, because it needs no statistics of the data: no fold learns from another, a batch may have one row, and
    encoders of any scale train with the same recipe.
    """

    def __init__(self, width: int, classes: int, hidden: int = 256) -> None:
        super().__init__()
        norm = nn.LayerNorm(width, elementwise_affine=False)
        self.body = nn.Sequential(norm, nn.Linear(width, hidden), nn.ReLU(), HalfDropout())
        self.fc = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.fc(self.body(x))
        return logits


def mlp(classes: int, width: int = 1280) -> nn.Module:
    """The head for features of this width; 1280 is that of EfficientNet-Lite0."""
    return FeatureHead(width, classes)


NETS: dict[str, Callable[..., nn.Module]] = {
    "simconv1": SimConv1,
    "simconv2": SimConv2,
    "simconv2-printed": partial(SimConv2, pool=3),
    "mlp": mlp,
    "resnet18": published.resnet18,
    "resnet50": published.resnet50,
    "bert": published.bert,
}


def check_options(name: str, options: Iterable[str]) -> None:
    """Refuses an option that the maker of this network does not take."""
    allowed = set(signature(NETS[name]).parameters) - {"classes"}
    for option in options:
        if option not in allowed:
            raise known(f"option of {name}", option, allowed)


def new_net(name: str, classes: int, seed: int, **options: Any) -> nn.Module:
    """A freshly initialised network; the same weights for the same seed, whatever was drawn before.

    Options are those of its maker: `width` of mlp, `weights` of resnet18, resnet50 and bert.
    """
    if name not in NETS:
        raise known("network", name, NETS)
    check_options(name, options)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return NETS[name](classes, **options)
