"""3x3 convolutions on maps of 1x1 or 2x2 pixels, where most of the kernel only ever meets the padding.

ResNet-18 on 32x32 pictures ends in such maps: as matrix products they make its training step more than twice as fast.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812


class SmallMapConv(nn.Conv2d):
    """A convolution that leaves out the taps that meet only padding; the same function, the same gradients."""

    def forward(self, x: Tensor) -> Tensor:
        size, weight = tuple(x.shape[-2:]), self.weight
        if size == (1, 1):
            return F.linear(x.flatten(1), weight[:, :, 1, 1], self.bias)[:, :, None, None]
        if size == (2, 2) and self.stride == (2, 2):
            return F.linear(x.flatten(1), weight[:, :, 1:, 1:].flatten(1), self.bias)[:, :, None, None]
        if size == (2, 2) and self.stride == (1, 1) and self.bias is None:
            corners = [weight[:, :, 1 - row : 3 - row, 1 - column : 3 - column] for row in (0, 1) for column in (0, 1)]
            dense = torch.stack(corners, 1).flatten(2).flatten(0, 1)  # each of the four pixels sees all four
            return F.linear(x.flatten(1), dense).view(len(x), -1, 2, 2)
        return super().forward(x)


def shape_of(conv: nn.Conv2d) -> tuple[object, ...]:
    """Kernel, padding, dilation, groups and kind of padding."""
    return conv.kernel_size, conv.padding, conv.dilation, conv.groups, conv.padding_mode


def for_small_maps(net: nn.Module) -> nn.Module:
    """The same network, whose 3x3 convolutions (padding 1, one group) know small maps; names and weights stay."""
    for module in net.modules():
        if type(module) is nn.Conv2d and shape_of(module) == ((3, 3), (1, 1), (1, 1), 1, "zeros"):
            module.__class__ = SmallMapConv
    return net
