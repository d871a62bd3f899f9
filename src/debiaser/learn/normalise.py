"""Pictures in [0, 1] centred and scaled per channel on their way into a network."""

import torch
from torch import Tensor, nn

Colours = tuple[tuple[float, float, float], tuple[float, float, float]]  # mean and deviation of each channel


class Normalised(nn.Module):
    """A network whose pictures (b, 3, h, w) are normalised first; other inputs, such as features, pass as they are.

    It is part of the network, so that data, augmentation and the page all have pictures in [0, 1].
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self, net: nn.Module, colours: Colours) -> None:
        super().__init__()
        self.net = net
        for name, values in zip(("mean", "deviation"), colours, strict=True):
            self.register_buffer(name, torch.tensor(values)[:, None, None])

    def forward(self, x: Tensor) -> Tensor:
        if isinstance(x, Tensor) and x.ndim == 4:
            x = (x - self.mean) / self.deviation
        logits: Tensor = self.net(x)
        return logits


def normalised(net: nn.Module, colours: Colours | None) -> nn.Module:
    """The network behind a normalisation by these colours, or as it is where there are none."""
    return net if colours is None else Normalised(net, colours)
