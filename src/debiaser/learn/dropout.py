"""Dropout with p = 1/2 from single random bits, and BatchNorm, ReLU, such dropout and 2x2 pooling as one layer.

Between the convolutions of a small network these passes over the pictures cost more than the arithmetic: together they
read and write each picture less than half as often as stock layers do, and channels-last, where all of it is in reach
of vector instructions. `benchmarks/cmnist_step.py` measures what that is worth.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

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


class HalfDropoutPool(nn.Module):
    """ReLU, dropout with p = 1/2 and 2x2 average pooling; `Layers` runs it together with the BatchNorm before it."""

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(x)
        return F.avg_pool2d(x * half_mask(x) if self.training else x, 2)


class Layers(nn.Sequential):
    """A sequence of layers in which, while training on a CPU, a BatchNorm and the dropout and pooling after it are one.

    The modules stay two, with their names and their eval mode.
    """

    def forward(self, x: Tensor) -> Tensor:
        if self.training and x.device.type == "cpu":
            x = x.contiguous(memory_format=torch.channels_last)
        layers = list(self)
        while layers:
            layer = layers.pop(0)
            if layers and are_one(layer, layers[0], x):
                x = norm_dropout_pool(layer, x)
                layers.pop(0)
            else:
                x = layer(x)
        return x


def are_one(norm: Any, pool: nn.Module, x: Tensor) -> bool:
    """Whether a BatchNorm2d and the dropout and pooling after it can run as one layer here."""
    if not (isinstance(norm, nn.BatchNorm2d) and isinstance(pool, HalfDropoutPool) and norm.training and pool.training):
        return False
    return x.device.type == "cpu" and x.dtype == norm.weight.dtype


def norm_dropout_pool(norm: Any, x: Tensor) -> Tensor:
    """(b, c, h // 2, w // 2) what both layers give in training; the running statistics move as BatchNorm moves them."""
    mask = half_mask(x.permute(0, 2, 3, 1))
    pooled, mean, variance = _NormDropoutPool.apply(x, norm.weight, norm.bias, mask, norm.eps)  # type: ignore[no-untyped-call]
    count = mask.numel() // len(norm.weight)
    with torch.no_grad():
        norm.running_mean.lerp_(mean, norm.momentum)
        norm.running_var.lerp_(variance * (count / (count - 1)), norm.momentum)
        norm.num_batches_tracked += 1
    return pooled  # type: ignore[no-any-return]


class _NormDropoutPool(torch.autograd.Function):
    """Pooled, and the mean and variance of each channel; x (b, c, h, w), the mask (b, h, w, c) of zeros and twos.

    Pictures are handled channels-last, as a matrix whose columns are the channels several times over, so that a row is
    long enough for vector instructions: what is per channel is repeated, and sums over rows end in sums over copies.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, mask: Tensor, eps: float) -> tuple[Tensor, ...]:
        b, c, h, w = x.shape
        count = b * h * w
        copies = math.gcd(count, 64)
        flat = x.permute(0, 2, 3, 1).reshape(-1, copies * c)
        mean = per_channel(flat, c).div_(count)
        centred = flat - mean.repeat(copies)
        out = centred * centred
        variance = per_channel(out, c).div_(count)
        inverse = (variance + eps).rsqrt_()
        scale = weight * inverse
        torch.addcmul(bias.repeat(copies), centred, scale.repeat(copies), out=out)
        out.mul_(mask.view_as(out)).relu_()  # dropout before ReLU is the same, and what passed both is what is positive
        pictures = out.view(b, h, w, c)[:, : h // 2 * 2, : w // 2 * 2]
        rows = pictures[:, 0::2] + pictures[:, 1::2]
        pooled = (rows[:, :, 0::2] + rows[:, :, 1::2]).mul_(0.25)
        ctx.save_for_backward(centred, out, scale, inverse)
        ctx.shape = x.shape
        ctx.mark_non_differentiable(mean, variance)
        return pooled.permute(0, 3, 1, 2), mean, variance

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        centred, out, scale, inverse = ctx.saved_tensors
        b, c, h, w = ctx.shape
        count, copies = b * h * w, centred.shape[1] // c
        half = gradients[0].permute(0, 2, 3, 1) * 0.5  # of a quarter of the sum, twice what dropout let pass
        wide = half[:, :, :, None].expand(-1, -1, -1, 2, -1).reshape(b, h // 2, 1, -1)

        def pooled_part(of: Tensor) -> Tensor:
            return of.view(b, h, w * c)[:, : h // 2 * 2, : w // 2 * 2 * c].unflatten(1, (-1, 2))

        passed = torch.zeros_like(out)  # the gradient of what BatchNorm gives; 0 where an odd side leaves a line over
        line_pairs = wide.expand(-1, -1, 2, -1)
        torch.ops.aten.threshold_backward.grad_input(line_pairs, pooled_part(out), 0, grad_input=pooled_part(passed))
        of_bias, product = per_channel(passed, c), passed * centred
        of_weight = per_channel(product, c).mul_(inverse)
        # scale * (gradient - its mean - normalised * mean of gradient * normalised)
        constant, slope = -scale * of_bias / count, -scale * inverse * of_weight / count
        of_x = torch.addcmul(constant.repeat(copies), centred, slope.repeat(copies), out=product)
        of_x.addcmul_(passed, scale.repeat(copies))
        return of_x.view(b, h, w, c).permute(0, 3, 1, 2), of_weight, of_bias, None, None


def per_channel(flat: Tensor, channels: int) -> Tensor:
    """(c,) the sums of a matrix whose columns are the channels several times over."""
    return flat.sum(0).view(-1, channels).sum(0)
