"""A network and what it makes of data: calling it on any batch, its last linear layer, one pass over a dataset."""

import inspect
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F  # noqa: N812
from torch.utils import data as torch_data
from torch.utils.data import DataLoader, Dataset

from debiaser.data.split import Batch, Split, each_tensor
from debiaser.errors import Misuse, Problem

# Calling any network on any batch: wrappers off, dictionaries by name, logits out of whatever comes back

LABELS = ("labels", "label")  # where a dictionary keeps the class number


def bare(model: nn.Module) -> nn.Module:
    """The network inside DDP, DataParallel and torch.compile: DDP talks to other ranks, compiled code skips hooks."""
    while True:
        name = "module" if isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel) else "_orig_mod"
        inside = getattr(model, name, None)
        if not isinstance(inside, nn.Module):
            return model
        model = inside


def eager(model: nn.Module) -> AbstractContextManager[object]:
    """Inside, compiled parts of the network run as plain Python, where hooks are seen."""
    compiled = any("_orig_mod" in m._modules or m._compiled_call_impl is not None for m in model.modules())
    stance = getattr(torch.compiler, "set_stance", None)  # since torch 2.6
    return stance("force_eager") if compiled and stance else nullcontext()


def device_of(model: nn.Module) -> torch.device:
    """Where the network's parameters are."""
    if not isinstance(model, nn.Module):
        raise Misuse(f"the model is a {type(model).__name__}; give a network (torch.nn.Module)")
    return next((parameter.device for parameter in model.parameters()), torch.device("cpu"))


def dtype_of(model: nn.Module) -> torch.dtype:
    """The type of the network's weights."""
    floats = (parameter.dtype for parameter in model.parameters() if parameter.is_floating_point())
    return next(floats, torch.get_default_dtype())


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
    if isinstance(output, Mapping):
        output = output.get("logits")
    logits = getattr(output, "logits", output)
    if isinstance(logits, tuple | list) and logits:
        logits = logits[0]
    if not isinstance(logits, Tensor):
        raise Problem(
            f"the model returned {type(output).__name__}, which holds no logits: return a tensor (n, classes)"
        )
    return logits


def call(model: nn.Module, x: Any, values: Mapping[str, Tensor] | None = None) -> Tensor:
    """The logits of a model for inputs of any kind, a dict passed by name; `values` stand in for parameters."""
    args: tuple[Any, ...] = (x,)
    named: dict[str, Any] = {}
    if isinstance(x, Mapping):  # what the model's forward names; all where it names none (a wrapper's `**kwargs`)
        accepted = inspect.signature(bare(model).forward).parameters
        args, named = (), {name: value for name, value in x.items() if name in accepted}
        if not named and any(each.kind is each.VAR_KEYWORD for each in accepted.values()):
            named = dict(x)
        elif not named and len(x) > 1:
            raise Misuse(
                f"the model takes ({', '.join(accepted)}), none of which is among the inputs: {', '.join(map(str, x))};"
                " rename them, or leave one, which is then given as it is"
            )
        elif not named:
            args = tuple(x.values())
    return logits_of(functional_call(model, dict(values), args, named) if values else model(*args, **named))


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
            f"the label of sample {int(rows[first])} is {int(labels[first])}, but the model gives {classes} logits: "
            f"labels must be class numbers from 0 to {classes - 1}"
        )


# Batches in dataset order from whatever people have: a Split, a Dataset of pairs or dictionaries, a DataLoader


def as_batches(data: Any, batch_size: int, choose: Callable[[int], Tensor] | None = None) -> Iterator[Batch]:
    """Batches in dataset order from a Split, a Dataset of (x, y) or of dictionaries, or an unshuffled DataLoader.

    `choose` says which of so many samples are wanted.
    """
    source = readable(data, batch_size)
    rows = choose(samples_in(source)) if choose else torch.arange(samples_in(source))
    if isinstance(source, Split):
        yield from map(source.batch, torch.split(rows, batch_size) if len(rows) else ())
        return
    first = 0
    for item in part_of_loader(source, rows) if choose else source:
        x, y = split_item(item)
        yield Batch(x, y, rows[first : first + len(y)])
        first += len(y)
    if first != len(rows):
        raise Problem(
            f"the dataset has {len(rows)} samples and gave {first}: scores would belong to others; keep it unchanged "
            "(and its collate_fn from dropping samples) while it is read"
        )


def readable(data: Any, batch_size: int) -> Split | DataLoader[Any]:
    """What gives whole batches of this data in order."""
    if batch_size < 1:
        raise Misuse(f"batch_size must be at least 1, got {batch_size}")
    if type(data) is torch_data.TensorDataset and len(data.tensors) > 1:  # whole batches at once, not sample by sample
        return Split(class_numbers(data.tensors[1]), data.tensors[0].__getitem__)
    return data if isinstance(data, Split) else as_loader(data, batch_size)


def samples_in(data: Any) -> int:
    """How many samples a dataset, or that of a DataLoader, has."""
    dataset: Any = data.dataset if isinstance(data, DataLoader) else data
    return len(dataset)


def words(sample: Any) -> bytes:
    """What a sample holds, as bytes that are the same in another process."""
    if isinstance(sample, Mapping):
        return b"".join(str(name).encode() + words(sample[name]) for name in sample)
    if isinstance(sample, tuple | list):
        return b"".join(map(words, sample))
    if isinstance(sample, Tensor | np.ndarray):
        values = as_array(sample) if isinstance(sample, Tensor) else sample
        return str(values.shape).encode() + np.ascontiguousarray(values).tobytes()
    tell = isinstance(sample, str | bytes | int | float | np.generic)
    return (str(sample) if tell else type(sample).__name__).encode()


def as_array(tensor: Tensor) -> NDArray[Any]:
    """A tensor as numpy holds it, which has no bfloat16."""
    tensor = tensor.detach().cpu()
    return np.asarray(tensor.float() if tensor.dtype is torch.bfloat16 else tensor)


def part_of_loader(loader: DataLoader[Any], rows: Tensor) -> DataLoader[Any]:
    """A loader that gives these samples, in this order, as this one would."""
    return DataLoader(
        torch_data.Subset(loader.dataset, rows.tolist()),
        loader.batch_size,
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
    )


def part_of(batch: Batch, part: slice) -> Batch:
    """A part of a batch, whatever its inputs are."""
    return Batch(each_tensor(batch.x, lambda x: x[part] if x.ndim else x), batch.y[part], batch.rows[part])


def pieces(batch: Batch, size: int) -> Iterator[Batch]:
    """The batch in pieces of at most this many samples."""
    for first in range(0, len(batch), size):
        yield part_of(batch, slice(first, first + size))


def as_loader(data: Any, batch_size: int) -> DataLoader[Any]:
    """A loader that gives every sample once, in order."""
    if isinstance(getattr(data, "dataset", data), torch_data.IterableDataset):
        raise Misuse(
            "a stream has no numbered samples: score it with debiaser.learn.streams.score_stream(model, stream, folder)"
        )
    if isinstance(data, DataLoader):
        in_batches = type(data.batch_sampler) is torch_data.BatchSampler
        if not (in_batches and isinstance(data.sampler, torch_data.SequentialSampler)) or data.drop_last:
            raise Misuse(
                "the DataLoader shuffles, samples, drops or does not batch samples, so scores would lose them: "
                "pass the dataset itself, or a DataLoader without shuffle, sampler, drop_last and batch_size=None"
            )
        return data
    if isinstance(data, tuple) and all(isinstance(each, Tensor) for each in data):
        raise Misuse("a tuple of tensors is no dataset of samples; give torch.utils.data.TensorDataset(x, y)")
    if isinstance(data, Dataset) or (hasattr(data, "__getitem__") and hasattr(data, "__len__")):
        return DataLoader(data, batch_size=batch_size)
    raise Misuse(f"expected a Dataset, a DataLoader or a Split, got {type(data).__name__}")


def split_item(item: Any) -> tuple[Any, Tensor]:
    """Inputs and labels of a collated batch: (x, y, ...), or a dictionary with "labels" or "label"."""
    x, y = input_and_label(item)
    if isinstance(x, Mapping):  # what a network can take; texts and lists beside it are left out
        kept = {name: value for name, value in x.items() if isinstance(value, Tensor)}
        if not kept:
            raise Misuse(
                f"no tensor among the entries {', '.join(map(str, x)) or '(none)'} of a batch: give tensors of one "
                "length (for a dataset of Hugging Face: with_format('torch')), or a DataLoader with a collate_fn"
            )
        x = kept
    return x, class_numbers(y)


def input_and_label(item: Any) -> tuple[Any, Any]:
    """What a sample or a batch holds: (x, y, ...), or the other entries of a dictionary and its "labels" or "label"."""
    if isinstance(item, tuple | list) and len(item) >= 2:
        return item[0], item[1]
    if not isinstance(item, Mapping):
        raise Misuse(f"a sample must be a pair (x, y) or a dictionary with labels, got {type(item).__name__}")
    name = next((name for name in LABELS if name in item), None)
    if name is None:
        raise Misuse(f"a sample or batch has no labels under 'labels' or 'label'; it has: {', '.join(map(str, item))}")
    return {key: value for key, value in item.items() if key not in LABELS}, item[name]


def class_numbers(y: Any) -> Tensor:
    """(b,) labels as whole numbers."""
    try:
        labels = torch.as_tensor(y)
    except (TypeError, ValueError, RuntimeError):
        raise Misuse(f"labels must be class numbers from 0 on, got {y!r:.80}; number the classes") from None
    if labels.ndim != 1 or labels.is_floating_point() or labels.is_complex():
        raise Misuse(
            f"labels must be a vector of class numbers from 0 on, got {labels.dtype} of shape {tuple(labels.shape)}; "
            "items must be pairs (x, y), or dictionaries with 'labels' or 'label'"
        )
    return labels.long()


# The linear layer that a network ends in: found by watching one pass, and checked in every pass

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
Passed: TypeAlias = tuple[list[tuple[Tensor, Tensor]], Tensor]  # what entered and left the last layer; the logits


def is_linear(module: nn.Module) -> bool:
    """Whether a module is a linear map of its input's channels: `nn.Linear` or a convolution of size one."""
    return isinstance(module, nn.Linear) or (isinstance(module, CONVOLUTIONS) and set(module.kernel_size) == {1})


def whole(weight: Any) -> Any:
    """The weight, gathered where FSDP2 keeps a part of it in every process."""
    return weight.full_tensor() if hasattr(weight, "full_tensor") else weight


def only_multiplies(layer: Any, entering: Tensor, out: Tensor) -> bool:
    """Whether a linear layer gave what it gives if it is nothing else: a subclass or a hook may normalise or scale.

    Up to rounding; outputs that are not finite are for others to judge.
    """
    weight, bias = whole(layer.weight), whole(layer.bias)
    alike = entering.to(weight.dtype)  # the network may hold an autocast of its own
    plain = F.linear(alike, weight, bias) if isinstance(layer, nn.Linear) else layer._conv_forward(alike, weight, bias)
    tolerance = 1e-4 + 16 * max(torch.finfo(out.dtype).eps, torch.finfo(plain.dtype).eps)
    apart, largest = (out.float() - plain.float()).abs(), plain.float().abs().amax()
    return not bool((apart > tolerance * largest).any())


def same(out: Tensor, logits: Tensor, shifted: bool = False) -> bool:
    """Whether logits are what a layer gave, in whatever shape and precision.

    With `shifted` also where softmax makes the same of both, as of logits and their log-softmax: one constant per
    sample between them.
    """
    if out.numel() != logits.numel():
        return False
    equal = torch.allclose(out.reshape(logits.shape).to(logits.dtype), logits, rtol=0, atol=0, equal_nan=True)
    if equal or not shifted or logits.ndim < 2:
        return equal
    tolerance = 16 * max(torch.finfo(out.dtype).eps, torch.finfo(logits.dtype).eps)
    flat = logits.flatten(1).float()
    apart = out.reshape(flat.shape).float() - flat
    apart = apart - apart.mean(1, keepdim=True)
    return bool((apart.abs() <= tolerance * (1 + flat.abs().amax(1, keepdim=True))).all())


@contextmanager
def watching(layers: Iterable[nn.Module], see: Callable[[nn.Module, Tensor, Tensor], None]) -> Iterator[None]:
    """Inside, `see(layer, input, output)` is called after every run of one of these layers."""

    def hook(layer: nn.Module, args: tuple[Tensor, ...], named: dict[str, Tensor], out: Tensor) -> None:
        see(layer, args[0] if args else next(iter(named.values())), out)

    with ExitStack() as hooks:
        for layer in layers:
            hooks.enter_context(layer.register_forward_hook(hook, with_kwargs=True))
        yield


def features_and_logits(model: nn.Module, x: Any, head: nn.Module | str) -> tuple[Tensor, Tensor]:
    """(b, h) the features that enter the last layer and the logits, both with gradient, in the mode the model is in.

    `head` is that layer or its name; `last_layer(model, batch)` finds it once. For a training step: nothing is checked.
    """
    layer, features = model.get_submodule(head) if isinstance(head, str) else head, list[Tensor]()
    with watching([layer], lambda _, entering, __: features.append(entering)):
        logits = call(model, x)
    return features[-1].flatten(1), logits


def last_layer(model: nn.Module, batch: Batch) -> nn.Module:
    """The linear layer that gives the logits, found in eval mode; refused if they are no linear map of its input."""
    with evaluating(model):
        head = Head.of(model, None, batch)
        head.features_and_logits(model, batch)
    layer: nn.Module = head.layer
    return layer


def find_head(model: nn.Module, x: Any, shifted: bool = False) -> nn.Module:
    """The linear layer whose output is the model's logits, found by watching two samples pass through.

    With `shifted`, also one whose output a log-softmax follows, or that is pooled over positions as in decoders.
    """
    seen: list[tuple[nn.Module, Tensor]] = []
    wide: dict[nn.Module, int] = {}  # layers that give a vector per position, and the length of that vector
    few = each_tensor(x, lambda tensor: tensor[:2] if tensor.ndim else tensor)

    def see(layer: Any, _: Tensor, out: Tensor) -> None:
        if out.numel() <= max(2, len(out)) * len(layer.weight):  # one vector per sample
            seen.append((layer, out.detach().clone()))  # a copy, since what follows may be in place
        elif isinstance(layer, nn.Linear) and out.ndim > 2:
            wide[layer] = out.shape[-1]

    with watching(filter(is_linear, model.modules()), see):
        logits = call(model, few)
    found = [module for module, out in seen if same(out, logits)]
    if shifted:
        found = found or [module for module, out in seen if same(out, logits, shifted)]
    if shifted and not found:
        found = [each for each, length in wide.items() if length == logits.shape[-1] and pooled_at(model, few, each)]
    if len(found) != 1:
        raise Problem(
            f"cannot tell which layer gives the logits {tuple(logits.shape)} ({len(found)} fit): name it with head=, "
            f"or its weight with parameters=; the linear layers: {linear_names(model)}"
        )
    return found[0]


def find_in_batch(model: nn.Module, batch: Batch) -> tuple[nn.Module, Passed | None]:
    """The layer that gives the logits, and what one pass of this batch made of it, so that none is needed to find it.

    Where that pass does not tell, the layer is the one that `find_head` finds.
    """
    seen: list[tuple[nn.Module, Tensor, Tensor]] = []

    def see(layer: Any, entering: Tensor, out: Tensor) -> None:
        small = out.numel() == len(batch) * len(layer.weight)  # one vector per sample; a copy, as above
        seen.append((layer, entering, out.clone()) if small else (layer, entering.new_empty(0), out.new_empty(0)))

    with watching(filter(is_linear, model.modules()), see):
        logits = call(model, batch.x)
    found = [layer for layer, _, out in seen if same(out, logits)]
    if len(found) != 1:
        return find_head(model, batch.x, shifted=True), None
    return found[0], ([(entering, out) for layer, entering, out in seen if layer is found[0]], logits)


def pooled_at(model: nn.Module, x: Any, layer: nn.Module) -> tuple[Tensor, ...] | None:
    """What a layer's positions come to where the logits are their weighted mean (of decoders: the last position's):

    features (b, h) and logits (b, k), and what entered and left the layer. The weight of a position is the gradient of
    the logits in what the layer gave there, the same for every class.
    """
    seen: list[tuple[Tensor, Tensor]] = []

    def hook(_: nn.Module, args: tuple[Tensor, ...], out: Tensor) -> Tensor:
        torch.set_grad_enabled(True)  # until the caller's no_grad ends: only what follows the layer is recorded
        leaf = out.detach().requires_grad_()
        seen.append((args[0].detach(), leaf))
        return leaf.clone()  # a copy, since what follows may be in place

    with layer.register_forward_hook(hook), torch.inference_mode(False), torch.no_grad():
        logits = call(model, x)
    entering, out = seen[-1] if seen else (logits, logits)
    rows, k = len(logits), logits.shape[-1]
    fits = len(out) == rows and out.shape[-1] == k and logits.numel() == rows * k
    if len(seen) != 1 or not fits or not logits.requires_grad:
        return None
    (slopes,) = torch.autograd.grad(logits, out, torch.ones_like(logits), allow_unused=True)
    if slopes is None:
        return None
    weights, logits = slopes.reshape(rows, -1, k).float(), logits.detach().reshape(rows, -1)
    mean = torch.einsum("btk,btk->bk", weights, out.detach().reshape(rows, -1, k).float())
    tolerance = 1e-4 + 16 * torch.finfo(out.dtype).eps
    fits = torch.allclose(mean, logits.float(), rtol=tolerance, atol=tolerance * float(logits.abs().max()))
    even = bool((weights == weights[..., :1]).all()) and torch.allclose(
        weights[..., 0].sum(1), weights.new_ones(rows), rtol=0, atol=tolerance
    )
    if not (fits and even):
        return None
    features = torch.einsum(
        "bt,bth->bh", weights[..., 0].to(entering.dtype), entering.reshape(rows, weights.shape[1], -1)
    )
    return features, logits, entering, out.detach()


def without_head(model: nn.Module, x: Any) -> tuple[nn.Module, Tensor]:
    """The network, changed to give the features that enter its last layer, and the weight of that layer."""
    with evaluating(model):
        head = find_head(model, x)
        weight: Tensor = head.weight  # type: ignore[assignment]
        path = next(name for name, module in model.named_modules() if module is head)
        if path:
            above, _, name = path.rpartition(".")
            setattr(model.get_submodule(above), name, nn.Identity())
        else:  # the network is nothing but its head
            model = nn.Identity()
        if call(model, x).flatten(1).shape[1] != weight.shape[1]:
            raise Problem(
                f"without its head '{path}' the network does not give the {weight.shape[1]} features that enter it; "
                "take a network that ends in its head"
            )
    return model, weight


def linear_names(model: nn.Module) -> str:
    """The names of the layers that can be a head; of many, the last ones."""
    names = [name or "(the model itself)" for name, module in model.named_modules() if is_linear(module)]
    return ", ".join(names if len(names) <= 6 else ["...", *names[-5:]]) or "-"


@dataclass
class Head:
    """The last layer of a network, and whether its output is known to be a plain product of input and weight."""

    layer: Any
    name: str
    is_proven: bool = False
    is_pooled: bool = False  # it runs at every position, and the logits are pooled from what it gives
    passed: Passed | None = None  # of the batch in which it was found, until that is asked for

    @classmethod
    def of(cls, model: nn.Module, head: nn.Module | str | None, batch: Batch) -> "Head":
        """The head that was given or named (as the network or its wrapper calls it), or the one that is found.

        If it had to be found, this batch must be the first that its features are asked of.
        """
        network, passed = bare(model), None
        if head is None:
            head, passed = find_in_batch(network, batch)
        names = {**dict(model.named_modules()), **dict(network.named_modules())}
        layer = names.get(head) if isinstance(head, str) else head
        linear = ((name, module) for name, module in network.named_modules() if is_linear(module))
        name = next((name for name, module in linear if module is layer), None)
        if name is None:
            raise Problem(f"head={head!r:.60} is no linear layer of this model; it has: {linear_names(network)}")
        return cls(layer, name, passed=passed)

    def features_and_logits(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        """(b, h) and (b, k) of one pass, checked: the logits are a linear map of one feature per sample."""
        seen: list[tuple[Tensor, Tensor]] = []

        def see(_: nn.Module, entering: Tensor, out: Tensor) -> None:
            small = out.numel() == len(out) * len(self.layer.weight)
            seen.append((entering, out.clone() if small else out))  # a copy, since what follows may be in place

        if self.is_pooled:
            return self.pooled(model, batch)
        if self.passed:
            (seen, logits), self.passed = self.passed, None
        else:
            with watching([self.layer], see):
                logits = call(model, batch.x)
        rows, (k, h) = len(batch), self.layer.weight.shape[:2]
        entering, out = seen[-1] if seen else (logits, logits)
        fits = len(seen) == 1 and entering.numel() == rows * h and out.numel() == rows * k  # h is less of a grouped one
        if seen and len(seen) == 1 and not fits and out.numel() > rows * k:
            self.is_pooled = True
            return self.pooled(model, batch)
        if not fits or not same(out, logits, shifted=True) or not self.multiplies(*seen[0]):
            raise self.unfit()
        return at_least_single(entering.reshape(rows, -1)), at_least_single(logits.reshape(rows, -1))

    def pooled(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        """As `features_and_logits`, of a layer that runs at every position and is pooled afterwards."""
        features, logits, *through = pooled_at(model, batch.x, self.layer) or [batch.y[:0]] * 4
        if len(logits) != len(batch) or not self.multiplies(*through):
            raise self.unfit()
        return at_least_single(features), at_least_single(logits)

    def multiplies(self, entering: Tensor, out: Tensor) -> bool:
        """Whether the layer only multiplies; found out once."""
        self.is_proven = self.is_proven or only_multiplies(self.layer, entering, out)
        return self.is_proven

    def unfit(self) -> Problem:
        """The clear line for a layer that is not the last one, or is not linear."""
        weight = f"{self.name}.weight".lstrip(".")
        return Problem(
            f"the layer '{self.name}' does not give the model's logits as the plain product of its weight and one "
            f"feature per sample; name another with head=, or pass parameters='{weight}', "
            "which takes a backward pass and asks nothing of the layer"
        )


# The one look: what a network makes of every sample, batch by batch


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
def modes_kept(model: nn.Module) -> Iterator[None]:
    """The model in eval mode; afterwards every module is in the mode it was in."""
    modes = [(module, module.training) for module in model.modules()]
    if any(mode for _, mode in modes):  # setting a mode takes as long as a small layer
        model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            if module.training != mode:
                module.training = mode


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """The model in eval mode and without gradients; afterwards every module is in the mode it was in."""
    try:
        with modes_kept(model), torch.no_grad():  # not inference mode: what a network caches must stay trainable
            yield
    finally:
        torch.clear_autocast_cache()  # else a training under the same autocast would meet weights without gradients


def look(
    model: nn.Module, batches: Iterable[Batch], head: nn.Module | str | None = None, device: torch.device | str = "cpu"
) -> Iterator[Outputs]:
    """One forward pass in eval mode over the batches, which come out as outputs in the same order."""
    batches, network = iter(batches), bare(model)
    last: Head | None = None
    while True:
        with evaluating(model), eager(model):  # per batch: a consumer may train in between, and modes are never left
            batch = next(batches, None)
            if batch is None:
                return
            batch = batch.to(device)
            last = last or Head.of(model, head, batch)
            features, logits = last.features_and_logits(network, batch)
            check_labels(batch.y, logits.shape[1], batch.rows)
        yield Outputs(features, logits, batch.y)


def predict(model: nn.Module, batches: Iterable[Batch], device: torch.device | str = "cpu") -> Tensor:
    """(n, k) logits in eval mode."""
    with evaluating(model):
        return torch.cat([call(model, batch.to(device).x).cpu() for batch in batches])
