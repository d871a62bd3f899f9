"""What the tests compare fast formulas with: the definition, by autograd."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812


def norms_by_autograd(model: nn.Module, x: Tensor, y: Tensor, chosen: Sequence[Tensor], p: float = 2) -> Tensor:
    """(n,) one backward pass per sample in eval mode: the p-norm over all entries of the gradients of `chosen`."""
    model.eval()
    values = []
    for one, label in zip(x, y, strict=True):
        out = model(one[None])
        loss = F.cross_entropy(getattr(out, "logits", out), label[None])
        parts = torch.autograd.grad(loss, list(chosen), allow_unused=True)
        entries = torch.cat([part.flatten() for part in parts if part is not None]).abs()
        values.append(entries.max() if math.isinf(p) else (entries**p).sum() ** (1 / p))
    return torch.stack(values)
