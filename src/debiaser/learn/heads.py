"""The linear layer that a network ends in: found by watching one pass, and checked in every pass."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from debiaser.data.split import each_tensor
from debiaser.errors import Problem
from debiaser.learn.calls import at_least_single, bare, call

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def is_linear(module: nn.Module) -> bool:
    """Whether a module is a linear map of its input's channels: `nn.Linear` or a convolution of size one."""
    return isinstance(module, nn.Linear) or (isinstance(module, CONVOLUTIONS) and set(module.kernel_size) == {1})


def width(layer: nn.Module) -> int:
    """How many numbers a linear layer gives per sample."""
    return int(layer.weight.shape[0])  # type: ignore[index]


def plain_output(layer: nn.Module, entering: Tensor) -> Tensor:
    """What a linear layer gives if it is nothing else: a subclass or a hook may normalise or scale."""
    kind = next(each for each in (nn.Linear, *CONVOLUTIONS) if isinstance(layer, each))
    return kind.forward(layer, entering)  # type: ignore[arg-type]


def close(one: Tensor, two: Tensor) -> bool:
    """Whether two outputs of a layer differ by rounding at most; those that are not finite are for others to judge."""
    tolerance = 1e-4 + 16 * max(torch.finfo(one.dtype).eps, torch.finfo(two.dtype).eps)
    apart, largest = (one.float() - two.float()).abs(), two.float().abs().amax()
    return not bool((apart > tolerance * largest).any())


def same(out: Tensor, logits: Tensor) -> bool:
    """Whether logits are what a layer gave, in whatever shape and precision."""
    if out.numel() != logits.numel():
        return False
    out = out.reshape(logits.shape).to(logits.dtype)
    return torch.equal(out, logits) or torch.allclose(out, logits, rtol=0, atol=0, equal_nan=True)


def same_but_for_shifts(out: Tensor, logits: Tensor) -> bool:
    """Whether softmax makes the same of both, as of logits and their log-softmax: one constant per row between them."""
    if out.numel() != logits.numel() or logits.ndim < 2:
        return False
    tolerance = 16 * max(torch.finfo(out.dtype).eps, torch.finfo(logits.dtype).eps)
    flat = logits.flatten(1).float()
    apart = out.reshape(flat.shape).float() - flat
    apart = apart - apart.mean(1, keepdim=True)
    return bool((apart.abs() <= tolerance * (1 + flat.abs().amax(1, keepdim=True))).all())


def find_head(model: nn.Module, x: Any, shifted: bool = False) -> nn.Module:
    """The linear layer whose output is the model's logits, found by watching two samples pass through.

    With `shifted`, also one whose output a log-softmax follows.
    """
    seen: list[tuple[nn.Module, Tensor]] = []

    def see(module: nn.Module, _: Any, out: Tensor) -> None:
        if out.numel() <= max(2, len(out)) * width(module):  # one vector per sample
            seen.append((module, out.detach().clone()))  # a copy, since what follows may be in place

    hooks = [module.register_forward_hook(see) for module in model.modules() if is_linear(module)]
    try:
        logits = call(model, each_tensor(x, lambda tensor: tensor[:2] if tensor.ndim else tensor))
    finally:
        for hook in hooks:
            hook.remove()
    found = [module for module, out in seen if same(out, logits)]
    if shifted and not found:
        found = [module for module, out in seen if same_but_for_shifts(out, logits)]
    if len(found) != 1:
        raise Problem(
            f"cannot tell which layer gives the logits {tuple(logits.shape)} ({len(found)} fit): name it with head=, "
            f"or its weight with parameters=; the linear layers: {', '.join(linear_names(model)) or '-'}"
        )
    return found[0]


def linear_names(model: nn.Module) -> list[str]:
    """The names of the layers that can be a head; of many, the last ones."""
    names = [name or "(the model itself)" for name, module in model.named_modules() if is_linear(module)]
    return names if len(names) <= 6 else ["...", *names[-5:]]


def named_head(model: nn.Module, head: nn.Module | str | None, x: Any) -> nn.Module:
    """The head that was named, or the one that is found."""
    if head is None:
        return find_head(bare(model), x, shifted=True)
    layer = by_name(model, head) if isinstance(head, str) else head
    if not any(module is layer for module in model.modules()):
        raise Problem("the layer given as head= is not a part of this model; pass one of its layers, or a name")
    if not is_linear(layer):
        raise Problem(
            f"head= is a {type(layer).__name__}, not a linear layer; the linear ones: {', '.join(linear_names(model))}"
        )
    return layer


def by_name(model: nn.Module, name: str) -> nn.Module:
    """The layer of this name, as the network itself or its wrapper calls it."""
    for root in (bare(model), model):
        try:
            return root.get_submodule(name)
        except AttributeError:
            continue
    raise Problem(f"the model has no layer '{name}'; its linear layers: {', '.join(linear_names(bare(model))) or '-'}")


@dataclass
class Head:
    """The last layer, and what entered and left it in the pass that is being watched."""

    layer: nn.Module
    name: str
    inputs: list[Tensor] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)
    is_proven: bool = False

    @classmethod
    def of(cls, model: nn.Module, head: nn.Module | str | None, x: Any) -> "Head":
        """The head that was named, or the one that is found."""
        layer = named_head(model, head, x)
        return cls(layer, next(name for name, module in bare(model).named_modules() if module is layer))

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Inside, what enters and leaves the layer is kept."""
        self.inputs.clear()
        self.outputs.clear()

        def see(_: nn.Module, args: tuple[Tensor, ...], named: dict[str, Tensor], out: Tensor) -> None:
            self.inputs.append(args[0] if args else next(iter(named.values())))
            small = out.numel() == len(out) * width(self.layer)
            self.outputs.append(out.clone() if small else out)  # a copy, since what follows may be in place

        hook = self.layer.register_forward_hook(see, with_kwargs=True)
        try:
            yield
        finally:
            hook.remove()

    def features_and_logits(self, logits: Tensor, rows: int) -> tuple[Tensor, Tensor]:
        """(b, h) and (b, k) of the pass that was watched, if the logits are a linear map of one feature per sample."""
        if len(self.inputs) != 1:
            raise self.unfit(f"ran {len(self.inputs)} times in one pass; it must run once per sample")
        entering, out, k = self.inputs.pop(), self.outputs.pop(), width(self.layer)
        if getattr(self.layer, "groups", 1) != 1:
            raise self.unfit("is a grouped convolution, whose gradient is no outer product")
        if entering.numel() != rows * int(self.layer.weight.shape[1]) or out.numel() != rows * k:  # type: ignore[index]
            raise self.unfit(
                f"maps {tuple(entering.shape)} to {tuple(out.shape)}: one feature per position, not per sample, so "
                "its gradient is no outer product"
            )
        if not (same(out, logits) or same_but_for_shifts(out, logits)):
            raise self.unfit(f"gives {tuple(out.shape)}, which is not what the model returns: {tuple(logits.shape)}")
        alike = entering.to(self.layer.weight.dtype)  # type: ignore[arg-type]  # the network may hold an autocast of its own
        if not self.is_proven and not close(out, plain_output(self.layer, alike)):
            raise self.unfit("changes its input, its weight or its output beside the product of the two")
        self.is_proven = True
        return at_least_single(entering.reshape(rows, -1)), at_least_single(logits.reshape(rows, -1))

    def unfit(self, reason: str) -> Problem:
        """What to say of a layer that the closed form does not hold for."""
        weight = f"{self.name}.weight" if self.name else "weight"
        return Problem(
            f"the layer '{self.name}' {reason}; name another with head=, or pass parameters='{weight}', which takes a "
            "backward pass and asks nothing of the layer"
        )
