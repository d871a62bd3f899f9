"""Calling any network on any batch: wrappers off, dictionaries by name, logits out of whatever comes back."""

import inspect
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from debiaser.errors import Misuse, Problem

LABELS = ("labels", "label")  # where a dictionary keeps the class number


def bare(model: nn.Module) -> nn.Module:
    """The network inside DDP, DataParallel and torch.compile: DDP talks to other ranks, compiled code skips hooks."""
    while True:
        name = "module" if isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel) else "_orig_mod"
        inside = getattr(model, name, None)
        if not isinstance(inside, nn.Module):
            return model
        model = inside


@contextmanager
def eager(model: nn.Module) -> Iterator[None]:
    """Compiled parts of the network run as plain Python, where hooks are seen."""
    compiled = any(hasattr(m, "_orig_mod") or m._compiled_call_impl is not None for m in model.modules())
    stance = getattr(torch.compiler, "set_stance", None)  # since torch 2.6
    with stance("force_eager") if compiled and stance else nullcontext():
        yield


def device_of(model: nn.Module) -> torch.device:
    """Where the network's parameters are."""
    if not isinstance(model, nn.Module):
        raise Misuse(f"the model is a {type(model).__name__}; give a network (torch.nn.Module)")
    return next((parameter.device for parameter in model.parameters()), torch.device("cpu"))


@contextmanager
def random_state_kept(device: torch.device) -> Iterator[None]:
    """Random numbers may be drawn inside, by torch, numpy or Python; afterwards the generators are as they were."""
    devices = [device] if device.type == "cuda" else []
    python, legacy = random.getstate(), np.random.get_state()  # noqa: NPY002  # what datasets still draw from
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(legacy)  # noqa: NPY002


def logits_of(output: Any) -> Tensor:
    """The logits in what a model returned: a tensor, an object with `.logits`, a dict, or a tuple's first tensor."""
    if isinstance(output, Tensor):
        return output
    if hasattr(output, "logits"):
        return output.logits  # type: ignore[no-any-return]
    if isinstance(output, Mapping) and "logits" in output:
        return output["logits"]  # type: ignore[no-any-return]
    if isinstance(output, tuple | list) and output and isinstance(output[0], Tensor):
        return output[0]
    raise Problem(f"the model returned {type(output).__name__}, which holds no logits: return a tensor (n, classes)")


def call(model: nn.Module, x: Any, values: Mapping[str, Tensor] | None = None) -> Tensor:
    """The logits of a model for inputs of any kind, a dict passed by name; `values` stand in for parameters."""
    args, named = ((), accepted(model, x)) if isinstance(x, Mapping) else ((x,), {})
    return logits_of(functional_call(model, dict(values), args, dict(named)) if values else model(*args, **named))


def accepted(model: nn.Module, x: Mapping[str, Any]) -> Mapping[str, Any]:
    """The entries that the model's forward names; all of them where it names none (a wrapper's `**kwargs`)."""
    named = inspect.signature(bare(model).forward).parameters
    return {name: value for name, value in x.items() if name in named} or x


def at_least_single(x: Tensor) -> Tensor:
    """The tensor in 32 bits or more: squares and sums of 16-bit floats lose too much."""
    return x.float() if x.is_floating_point() and x.element_size() < 4 else x


def check_labels(labels: Tensor, classes: int, rows: Tensor) -> None:
    """Refuse labels that are not class numbers of this model."""
    if classes < 2:
        raise Problem("the model gives one logit per sample; the scores need one per class: give the head two outputs")
    wrong = (labels < 0) | (labels >= classes)
    if bool(wrong.any()):
        first = int(wrong.nonzero()[0, 0])
        raise Problem(
            f"the label of row {int(rows[first])} is {int(labels[first])}, but the model gives {classes} logits: "
            f"labels must be class numbers from 0 to {classes - 1}"
        )
