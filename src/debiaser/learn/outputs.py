"""The one look: what a network makes of every row, batch by batch, and the linear layer that it ends in."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from debiaser.data.split import Batch
from debiaser.errors import Misuse, Problem


@dataclass(frozen=True)
class Outputs:
    """Features (n, h) that enter the last layer, logits (n, k) that leave it, labels (n,)."""

    features: Tensor
    logits: Tensor
    labels: Tensor

    @property
    def residual(self) -> Tensor:
        """(n, k) softmax - onehot; the label's entry as minus the sum of the others, exact where softmax is near 1."""
        residual = self.logits.softmax(1)
        label = self.labels[:, None]
        residual = residual.scatter(1, label, 0)
        return residual.scatter(1, label, -residual.sum(1, keepdim=True))


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """The model in eval mode and without gradients; afterwards every module is in the mode it was in."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        for module, mode in modes:
            module.training = mode


def logits_of(output: Any) -> Tensor:
    """The logits in what a model returned: a tensor, an object with `.logits`, a dict, or a tuple's first tensor."""
    if isinstance(output, Tensor):
        return output
    if hasattr(output, "logits"):
        return output.logits  # type: ignore[no-any-return]
    if isinstance(output, dict) and "logits" in output:
        return output["logits"]  # type: ignore[no-any-return]
    if isinstance(output, tuple | list) and output and isinstance(output[0], Tensor):
        return output[0]
    raise Problem(f"the model returned {type(output).__name__}, which holds no logits: return a tensor (n, classes)")


def call(model: nn.Module, x: Any) -> Tensor:
    """The logits of a model for inputs of any kind: a dict is passed by name."""
    return logits_of(model(**x) if isinstance(x, dict) else model(x))


def is_linear(module: nn.Module) -> bool:
    """Whether a module is a linear map of its input's channels: `nn.Linear` or a convolution of size one."""
    return isinstance(module, nn.Linear) or (isinstance(module, nn.Conv2d) and set(module.kernel_size) == {1})


def find_head(model: nn.Module, x: Any) -> nn.Module:
    """The linear layer whose output is the model's logits, found by watching one batch pass through."""
    seen: list[tuple[nn.Module, Tensor]] = []
    candidates = [module for module in model.modules() if is_linear(module)]
    hooks = [module.register_forward_hook(lambda m, _, out: seen.append((m, out))) for module in candidates]
    try:
        logits = call(model, x)
    finally:
        for hook in hooks:
            hook.remove()
    found = [module for module, out in seen if out.numel() == logits.numel() and out.data_ptr() == logits.data_ptr()]
    if len(found) != 1:
        names = ", ".join(name for name, module in model.named_modules() if is_linear(module))
        raise Problem(
            f"cannot tell which layer gives the logits ({len(found)} fit): pass head=, one of: {names or '-'}"
        )
    return found[0]


def named_head(model: nn.Module, head: nn.Module | str | None, x: Any) -> nn.Module:
    """The head that was named, or the one that is found."""
    if head is None:
        return find_head(model, x)
    if isinstance(head, nn.Module):
        return head
    try:
        return model.get_submodule(head)
    except AttributeError:
        names = [name for name, module in model.named_modules() if is_linear(module)]
        raise Problem(f"the model has no layer '{head}'; its linear layers: {', '.join(names) or 'none'}") from None


def look(
    model: nn.Module,
    batches: Iterable[Batch],
    head: nn.Module | str | None = None,
    device: torch.device | str = "cpu",
) -> Iterator[Outputs]:
    """One forward pass in eval mode over the batches, which come out as outputs in the same order."""
    batches = iter(batches)
    layer: nn.Module | None = None
    while True:
        with evaluating(model):  # per batch: a consumer may train in between, and modes are never left changed
            batch = next(batches, None)
            if batch is None:
                return
            batch = batch.to(device)
            layer = layer or named_head(model, head, batch.x)
            inputs: list[Tensor] = []
            hook = layer.register_forward_pre_hook(lambda _, args, kept=inputs: kept.append(args[0]))
            try:
                logits = call(model, batch.x)
            finally:
                hook.remove()
            if len(inputs) != 1:
                raise Problem(f"the last layer ran {len(inputs)} times in one pass; it must run once per sample")
            yield Outputs(inputs[0].reshape(len(batch), -1), logits.reshape(len(batch), -1), batch.y)


def collect(outputs: Iterable[Outputs]) -> Outputs:
    """All outputs as one, on the CPU."""
    kept = [(each.features.cpu(), each.logits.cpu(), each.labels.cpu()) for each in outputs]
    features, logits, labels = (torch.cat(parts) for parts in zip(*kept, strict=True))
    return Outputs(features, logits, labels)


def reduce(outputs: Iterable[Outputs], score: Callable[[Outputs], Tensor]) -> Tensor:
    """(n,) one number per row, computed batch by batch: features are never held together."""
    parts = [score(each).cpu() for each in outputs]
    if not parts:
        raise Misuse("the dataset has no rows")
    return torch.cat(parts)


def predict(model: nn.Module, batches: Iterable[Batch], device: torch.device | str = "cpu") -> Tensor:
    """(n, k) logits in eval mode."""
    with evaluating(model):
        return torch.cat([call(model, batch.to(device).x).cpu() for batch in batches])
