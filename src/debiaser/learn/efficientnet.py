"""EfficientNet-Lite0 (Tan and Le 2019; the Lite variant without squeeze-and-excite, ReLU6 instead of swish)."""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.utils.fusion import fuse_conv_bn_weights

WIDTH = 1280
# One row per stage: expansion, channels, blocks, kernel, stride of its first block.
STAGES = (
    (1, 16, 1, 3, 1),
    (6, 24, 2, 3, 2),
    (6, 40, 2, 5, 2),
    (6, 80, 3, 3, 2),
    (6, 112, 3, 5, 1),
    (6, 192, 4, 5, 2),
    (6, 320, 1, 3, 1),
)


class SameConv(nn.Conv2d):
    """A convolution padded as TensorFlow does for sides of even length: at stride 2 one more to the right and below."""

    def __init__(self, before: int, after: int, kernel: int, stride: int, groups: int) -> None:
        padding = kernel // 2 if stride == 1 else 0
        super().__init__(before, after, kernel, stride, padding, groups=groups, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.stride[0] == 2:
            first = (self.kernel_size[0] - 2) // 2
            x = F.pad(x, (first, first + 1, first, first + 1))
        return super().forward(x)


class Unit(nn.Module):
    """Convolution, BatchNorm and, where gated, ReLU6."""

    def __init__(
        self, before: int, after: int, kernel: int = 1, stride: int = 1, groups: int = 1, gate: bool = True
    ) -> None:
        super().__init__()
        self.conv: nn.Conv2d = SameConv(before, after, kernel, stride, groups)
        self.norm: nn.Module = nn.BatchNorm2d(after, eps=1e-3, momentum=0.01)
        self.gate = nn.ReLU6(inplace=True) if gate else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.gate(self.norm(self.conv(x)))
        return y

    def fuse(self) -> None:
        """Take the norm's fixed scale into the convolution, and the padding of stride 2 into its kernel.

        A kernel with a row and a column of zeros before its first needs only the padding that convolutions have.
        """
        old, norm = self.conv, self.norm
        if not isinstance(norm, nn.BatchNorm2d) or norm.running_mean is None or norm.running_var is None:
            return
        mean, variance = norm.running_mean, norm.running_var
        weight, bias = fuse_conv_bn_weights(old.weight, None, mean, variance, norm.eps, norm.weight, norm.bias)
        grown = int(old.stride[0] == 2)
        kernel = old.kernel_size[0] + grown
        new = nn.Conv2d(old.in_channels, old.out_channels, kernel, old.stride[0], (kernel - 1) // 2, groups=old.groups)
        weight = nn.Parameter(
            F.pad(weight.detach(), (grown, 0, grown, 0)).contiguous(memory_format=torch.channels_last)
        )
        new.weight, new.bias = weight, bias
        self.conv, self.norm = new, nn.Identity()


class Block(nn.Module):
    """Expand, filter each channel by itself, project; with a shortcut where shapes allow."""

    def __init__(self, before: int, after: int, expansion: int, kernel: int, stride: int) -> None:
        super().__init__()
        inner = before * expansion
        first = [Unit(before, inner)] if expansion > 1 else []
        self.body = nn.Sequential(
            *first, Unit(inner, inner, kernel, stride, groups=inner), Unit(inner, after, gate=False)
        )
        self.shortcut = before == after and stride == 1

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.body(x)
        return y + x if self.shortcut else y


class EfficientNetLite0(nn.Module):
    """Pictures (b, 3, 224, 224), scaled to (x - 127) / 128, to features (b, 1280): the mean over space."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [Unit(3, 32, kernel=3, stride=2)]
        before = 32
        for expansion, after, blocks, kernel, stride in STAGES:
            for number in range(blocks):
                layers.append(Block(before, after, expansion, kernel, stride if number == 0 else 1))
                before = after
        self.body = nn.Sequential(*layers, Unit(before, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        maps: Tensor = self.body(x)
        return maps.mean((2, 3))

    def load_published(self, tensors: Mapping[str, Tensor]) -> None:
        """Take the weights of the published file, by the names they have there."""
        for unit, (conv, norm) in zip(units(self), published_names(), strict=True):
            unit.conv.load_state_dict({"weight": tensors[f"{conv}.weight"]})
            unit.norm.load_state_dict({name: tensors[f"{norm}.{name}"] for name in unit.norm.state_dict()})

    def fused(self) -> "EfficientNetLite0":
        """The same function in eval mode, several times faster; it cannot be trained any more."""
        for unit in units(self.eval()):
            unit.fuse()
        return self.requires_grad_(False)


def units(net: nn.Module) -> list[Unit]:
    """The convolutions with their norms, in the order of the layers."""
    return [part for part in net.modules() if isinstance(part, Unit)]


def published_names() -> Iterator[tuple[str, str]]:
    """How the published file calls each convolution and its norm, in the order of the layers."""
    yield "_conv_stem", "_bn0"
    expansions = [expansion for expansion, _, blocks, _, _ in STAGES for _ in range(blocks)]
    for number, expansion in enumerate(expansions):
        within = f"_blocks.{number}."
        if expansion > 1:
            yield f"{within}_expand_conv", f"{within}_bn0"
        yield f"{within}_depthwise_conv", f"{within}_bn1"
        yield f"{within}_project_conv", f"{within}_bn2"
    yield "_conv_head", "_bn1"
