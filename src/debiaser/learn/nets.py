"""Networks, by name: each maker takes the number of classes and gives an `nn.Module` that ends in a linear layer."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from debiaser.errors import Problem, known

# Row v holds, for each of the eight bits of the byte v, 2 where it is set and 0 where not.
_BIT_MASKS = 2.0 * ((torch.arange(256)[:, None] >> torch.arange(8)) & 1)


class HalfDropout(nn.Module):
    """Dropout with p = 1/2 that spends one random bit per element instead of one random float.

    The same distribution as `nn.Dropout(0.5)`, from torch's global generator; drawing floats took a quarter of a step.
    """

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        n = x.numel()
        words = torch.empty((n + 63) // 64, dtype=torch.int64, device=x.device).random_(-(2**63), None)
        mask = _BIT_MASKS.to(x).index_select(0, words.view(torch.uint8).int()).view(-1)[:n]
        return x * mask.view(x.shape)


class SimConv1(nn.Module):
    """The paper's small network for Colored MNIST: three convolutions, 38,210 parameters for ten classes."""

    smallest = 25  # pixels: below, the third convolution has nothing left to see

    def __init__(self, classes: int = 10, channels: int = 3) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv2d(channels, 8, 4), nn.BatchNorm2d(8), nn.ReLU(), HalfDropout(), nn.AvgPool2d(2)),
            *(nn.Conv2d(8, 32, 4), nn.BatchNorm2d(32), nn.ReLU(), HalfDropout(), nn.AvgPool2d(2)),
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
