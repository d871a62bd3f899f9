"""The gradient norm of every sample: how strongly it goes against what the model has learnt (higher: more).

The gradient of cross-entropy in the last layer's weight is the outer product of softmax - onehot and the feature that
enters the layer. The p-norm of an outer product is the product of the p-norms, so one forward pass gives all of them.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.func import grad, vmap
from torch.nn import functional as F  # noqa: N812

from debiaser.data.split import Batch, each_tensor
from debiaser.errors import Misuse, Problem
from debiaser.io import log, numpy_stream
from debiaser.learn import forward
from debiaser.learn.distributed import ALONE, initialised, is_sharded
from debiaser.learn.forward import CONVOLUTIONS, Outputs, at_least_single, bare, call, check_labels, part_of, pieces
from debiaser.learn.losses import cross_entropy

Score: TypeAlias = Callable[[Outputs], Tensor]
See: TypeAlias = Callable[[Tensor, Tensor], None]
SMALLEST_P = 0.05  # below it even a short vector's norm leaves the range of floats


def grad_norm(p: float = 2, power: float = 1, bias: bool = False) -> Score:
    """The p-norm, to a power, of the gradient of cross-entropy in the last layer's weight (and bias).

    With `bias` the feature is extended by 1.
    """
    check_norm(p, power)

    def score(outputs: Outputs) -> Tensor:
        features = outputs.features
        if bias:
            features = torch.cat([features, features.new_ones(len(features), 1)], 1)
        return (norm(outputs.residual, p) * norm(features, p)) ** power

    return score


def residual_norm(p: float = 2, power: float = 1) -> Score:
    """The p-norm, to a power, of softmax - onehot alone: the gradient norm without the feature's length (D43)."""
    check_norm(p, power)
    return lambda outputs: norm(outputs.residual, p) ** power


def disagreement(temperature: float = 1) -> Score:
    """1 - softmax(logits / temperature)[y]: near 1 where the model answers another class (DPR).

    At temperature 1 half of `residual_norm(1)`, since softmax - onehot sums to 0.
    """
    return lambda seen: -replace(seen, logits=seen.logits / temperature).residual.gather(1, seen.labels[:, None])[:, 0]


def misclassified(outputs: Outputs) -> Tensor:
    """(n,) 1 where the model's answer is not the label, else 0."""
    return (outputs.logits.argmax(1) != outputs.labels).float()


def loss_score(outputs: Outputs) -> Tensor:
    """(n,) cross-entropy of each sample."""
    return cross_entropy(outputs.logits, outputs.labels)


def norm(x: Tensor, p: float) -> Tensor:
    """(n,) entrywise p-norm of each row, for every p in (0, inf]; scaled by the largest entry, so nothing overflows."""
    largest = x.abs().amax(1)
    if math.isinf(p):
        return largest
    safe = torch.where(largest > 0, largest, 1)
    return largest * ((x / safe[:, None]).abs() ** p).sum(1) ** (1 / p)


def check_norm(p: float, power: float) -> None:
    """Refuse a norm or power that ranks nothing."""
    if not p >= SMALLEST_P:
        raise Misuse(f"p must be at least {SMALLEST_P:g} (inf for the largest entry), got {p:g}")
    if not (power > 0 and math.isfinite(power)):
        raise Misuse(f"power must be above 0, got {power:g}")


def scale_slope(outputs: Outputs) -> Tensor:
    """(n,) how fast the cross-entropy grows with a scale of all logits, at 1; above 0 mostly where misclassified."""
    return (outputs.residual * outputs.logits).sum(1)


def gradient_norms(
    model: nn.Module,
    dataset: Any,
    p: float = 2,
    power: float = 1,
    bias: bool = False,
    parameters: str | Callable[[str], bool] = "head",
    head: nn.Module | str | None = None,
    batch_size: int = 256,
    chunk: int | None = None,
    shared: bool = True,
    see: See | None = None,
) -> Tensor:
    """Compute the norm of each sample's cross-entropy gradient: large if the sample contradicts what the model has
    learnt.

    One forward pass in eval mode gives the norms of the last layer; the model is not changed.

    Args:
        model: a classifier, on any device.
        dataset: a map-style dataset of (x, y) pairs or dictionaries, or a DataLoader over one.
        p: order of the entrywise norm, above 0; `math.inf` takes the largest entry.
        power: power that the norm is raised to.
        bias: include the gradient of the last layer's bias.
        parameters: "head" for the last linear layer. "all", the name of a parameter or layer, a pattern such as
            "encoder.*" or a function of the name choose among all trainable parameters, which takes a backward pass.
        head: the last linear layer or its name, if it is not detected automatically.
        batch_size: samples per forward pass.
        chunk: samples per backward pass; by default as many as fit into a fixed amount of memory.
        shared: if torch.distributed is initialised, every process must make this call; each scores its part, with the
            buffers of process 0, and all get the same vector. If False, this process scores all samples by itself.
        see: called with the logits (b, k) and labels (b,) of every batch that this process scores, in order.

    Returns:
        A tensor (n,) on the CPU, in the order of the dataset.

    Raises:
        Misuse: the norm does not exist, or the dataset is empty.
        Problem: no last layer is found, a norm is not finite, the chosen parameters get no gradient, or the processes
            differ in weights or data.

    Example:
        >>> import torch
        >>> from torch.utils.data import TensorDataset
        >>> from debiaser import gradient_norms
        >>> model = torch.nn.Linear(1, 2, bias=False)
        >>> _ = torch.nn.init.zeros_(model.weight)
        >>> gradient_norms(model, TensorDataset(torch.tensor([[1.0], [2.0]]), torch.tensor([0, 1])))
        tensor([0.7071, 1.4142])
    """
    processes = initialised() if shared else ALONE
    with forward.random_state_kept(forward.device_of(model)), processes.failing_together():  # a DataLoader draws a seed
        samples = forward.samples_in(forward.readable(dataset, batch_size))
        if not samples:
            raise Misuse("the dataset has no samples; give it at least one")
        batches = forward.as_batches(dataset, batch_size, processes.share if processes.size > 1 else None)
        if is_sharded(model):
            if parameters != "head":
                raise Problem(
                    "of a model that FSDP shards only parameters='head' can be scored; score a copy that is whole"
                )
            batches = processes.in_step(batches)
        elif processes.size > 1:
            weights = [float(each.detach().double().sum()) for each in model.parameters()]
            processes.tell(common=repr((samples, batch_size, p, power, bias, weights)))
        with processes.same_buffers(model):
            parts = torch.cat(list(norms_of(model, batches, p, power, bias, parameters, head, chunk, see)))
    scores = checked(processes.gather(parts)[:samples], p)
    check_reached(float(scores.detach().max()), parameters)
    return scores


def norms_of(
    model: nn.Module,
    batches: Iterable[Batch],
    p: float = 2,
    power: float = 1,
    bias: bool = False,
    parameters: str | Callable[[str], bool] = "head",
    head: nn.Module | str | None = None,
    chunk: int | None = None,
    see: See | None = None,
) -> Iterator[Tensor]:
    """(b,) the gradient norms of each batch, on the CPU; see `gradient_norms`."""
    check_norm(p, power)
    device = forward.device_of(model)
    if isinstance(parameters, str) and parameters == "head":
        score = grad_norm(p, power, bias)
        for outputs in forward.look(model, batches, head, device):
            if see:
                see(outputs.logits, outputs.labels)
            yield score(outputs).cpu()
        return
    if head is not None:
        raise Misuse("head= names the layer of parameters='head'; leave it out when parameters= says what counts")
    if chunk is not None and chunk < 1:
        raise Misuse(f"chunk must be at least 1, got {chunk}")
    network = bare(model)
    backward = Backward(network, choose(network, parameters), p, chunk)
    for number, batch in enumerate(batches):
        if see:  # beside a backward pass, a forward pass more is little
            with forward.evaluating(model):
                see(call(network, batch.to(device).x).reshape(len(batch), -1), batch.y)
        with forward.modes_kept(model), forward.eager(model), torch.inference_mode(False), torch.enable_grad():
            batch = batch.to(device)  # of what was made in inference mode autograd keeps only a copy
            x = each_tensor(batch.x, lambda tensor: tensor.clone() if tensor.is_inference() else tensor)
            norms = backward.norms(Batch(x, batch.y.clone(), batch.rows.clone()), number)
        yield norms**power


def checked(scores: Tensor, p: float, first: int = 0) -> Tensor:
    """The scores, if all are numbers; `first` is the number of their first sample."""
    wrong = ~scores.isfinite()
    if bool(wrong.any()):
        raise Problem(
            f"{int(wrong.sum()):,} of {len(scores):,} gradient norms are not finite, the first of sample "
            f"{first + int(wrong.nonzero()[0, 0])}: the input or the model's output there is not, or the norm with "
            f"p={p:g} overflows; look at that sample, or take a larger p"
        )
    return scores


def check_reached(largest: float, parameters: str | Callable[[str], bool]) -> None:
    """Refuse scores that say nothing, of parameters that do not take part."""
    if largest == 0 and parameters != "head":
        raise Problem(
            "every gradient norm is 0: the loss does not depend on the chosen parameters, or the model fits every "
            "sample perfectly; choose parameters that the forward pass uses"
        )


# Norms over any parameters, which take a backward pass: layer by layer, else by vmap, else one by one

Chosen: TypeAlias = dict[str, nn.Parameter]
Gradients: TypeAlias = dict[str, Tensor]  # by the parameter's name in its layer, each (b, ...)
Way: TypeAlias = Callable[[nn.Module, Chosen, Batch, float], Tensor]
BUDGET = 256 * 2**20  # bytes that a piece of a batch may take beside the network
PROBE = 8  # samples on which the formulas are first compared with autograd
RECHECKED = 3  # samples of every batch that are
TOLERANCE, COARSE = 1e-3, 0.1  # of what is compared, in 32 bits or more and in 16
NORMS = (nn.GroupNorm, nn.LayerNorm, nn.RMSNorm, nn.modules.batchnorm._BatchNorm)
FORMULAS = (nn.Embedding, nn.Linear, *CONVOLUTIONS, *NORMS)


def choose(model: nn.Module, parameters: str | Callable[[str], bool]) -> Chosen:
    """The trainable parameters that are meant, by name: "all", a parameter's or layer's name, a pattern, a function."""
    trainable = {name: each for name, each in model.named_parameters() if each.requires_grad}

    def is_meant(name: str) -> bool:
        if callable(parameters):
            return parameters(name)
        return parameters == "all" or name.startswith(f"{parameters}.") or fnmatchcase(name, str(parameters))

    chosen = {name: each for name, each in trainable.items() if is_meant(name)}
    if not chosen:
        names = list(trainable)
        listed = ", ".join(names if len(names) <= 6 else [*names[:3], "...", *names[-2:]])
        raise Misuse(
            f"no trainable parameter is meant by parameters={parameters!r}: 'head', 'all', the name of a layer or "
            f"parameter, a pattern or a function of the name; the trainable ones: {listed or 'none'}"
        )
    return chosen


@dataclass(frozen=True)
class Backward:
    """The fastest way to the norms over the chosen parameters: by layer; else by vmap; else one pass per sample."""

    model: nn.Module
    chosen: Chosen
    p: float
    chunk: int | None
    sizes: dict[str, int] = field(default_factory=dict)  # samples a way takes at once; 0: it cannot do it at all

    def norms(self, batch: Batch, number: int) -> Tensor:
        """(b,) by the first way that gives what autograd gives on some samples, drawn anew for every batch.

        What holds for one batch need not for the next: a network may sort its samples, or use a weight only at times.
        By layer, both are looked for in all samples (`check_apart`, `uses`); only a layer that computes something else
        than its class does, and only for few samples, can hide from those that are drawn.
        """
        drawn = sorted(numpy_stream(0, "checked", number).permutation(len(batch))[:RECHECKED].tolist())
        ways: dict[str, Way] = {"by layer": by_layer, "by vmap": by_vmap}
        for name, way in ways.items():
            if self.sizes.get(name) == 0:
                continue
            try:
                size = self.sizes[name] if name in self.sizes else self.first_size(name, way, batch)
                norms = torch.cat([way(self.model, self.chosen, piece, self.p) for piece in pieces(batch, size)])
                self.check(norms, batch, drawn)
                return norms.cpu()
            except (Uncovered, RuntimeError, ValueError, TypeError, IndexError, KeyError) as error:
                reason = str(error).partition("\n")[0] or type(error).__name__
                log.warning("gradient norms %s are not possible here, a slower way is taken: %s", name, reason)
        return one_by_one(self.model, self.chosen, batch, self.p).cpu()

    def first_size(self, name: str, way: Way, batch: Batch) -> int:
        """How many samples a way takes at once, if it can do the ends of a few samples."""
        self.sizes[name] = 0
        few = part_of(batch, slice(0, self.chunk or PROBE))
        self.check(way(self.model, self.chosen, few, self.p), few, [0, len(few) - 1])
        if way is by_layer:
            needed = bytes_by_layer(self.model, self.chosen, batch, self.p)
        else:  # explicit gradients and their norms, and a guess at what the layers keep
            inputs = list[int]()
            each_tensor(batch.x, lambda x: inputs.append(x.nbytes // len(batch)) or x)  # type: ignore[func-returns-value]
            needed = 4 * 4 * sum(each.numel() for each in self.chosen.values()) + 100 * sum(inputs)
        self.sizes[name] = self.chunk or max(1, BUDGET // needed)
        return self.sizes[name]

    def check(self, norms: Tensor, batch: Batch, rows: list[int]) -> None:
        """Refuse norms that are not autograd's for these samples."""
        ones = [part_of(batch, slice(row, row + 1)) for row in rows]
        alone = torch.cat([one_by_one(self.model, self.chosen, one, self.p) for one in ones])
        tolerance = TOLERANCE if all(each.element_size() >= 4 for each in self.chosen.values()) else COARSE
        if not torch.allclose(norms[rows], alone, rtol=tolerance, atol=1e-3 * tolerance * float(norms.detach().max())):
            raise Uncovered("other norms than autograd's on some samples")


def logit_losses(logits: Tensor, batch: Batch) -> Tensor:
    """(b,) whose gradients in the logits are softmax - onehot, exact where softmax is near 1 (autograd's are not)."""
    rows = len(batch)
    if logits.numel() % rows or (logits.ndim > 2 and logits.shape[1:].numel() not in logits.shape[1:]):
        raise Problem(
            f"the model gives logits of shape {tuple(logits.shape)} for {rows} samples; the scores need one vector "
            "per sample, (n, classes)"
        )
    logits = at_least_single(logits.reshape(rows, -1))
    check_labels(batch.y, logits.shape[1], batch.rows)
    return (logits * Outputs(logits, logits.detach(), batch.y).residual).sum(1)


def one_by_one(model: nn.Module, chosen: Chosen, batch: Batch, p: float) -> Tensor:
    """(b,) by definition: one backward pass per sample."""
    found = []
    for one in pieces(batch, 1):
        loss = logit_losses(call(model, one.x), one).sum()
        parts = torch.autograd.grad(loss, list(chosen.values()), allow_unused=True)
        norms = [norm(at_least_single(part).reshape(1, -1), p) for part in parts if part is not None]
        found.append(norm(torch.stack(norms, 1), p) if norms else loss.new_zeros(1))
    return torch.cat(found)


def by_vmap(model: nn.Module, chosen: Chosen, batch: Batch, p: float) -> Tensor:
    """(b,) from the explicit gradients of all samples at once."""

    def loss(values: dict[str, Tensor], x: Any, y: Tensor) -> Tensor:
        logits = call(model, each_tensor(x, lambda tensor: tensor[None]), values)
        logits = at_least_single(logits.reshape(1, -1))
        return (logits * Outputs(logits, logits.detach(), y[None]).residual).sum()

    values = {name: each.detach() for name, each in chosen.items()}
    parts: dict[str, Tensor] = vmap(grad(loss), in_dims=(None, 0, 0))(values, batch.x, batch.y)
    return norm(torch.stack([norm(at_least_single(part).flatten(1), p) for part in parts.values()], 1), p)


# By layer: one backward pass that reaches the outputs of the layers, not their weights, and a formula for each layer


class Uncovered(Exception):
    """A parameter that the formulas by layer do not hold for."""


@dataclass
class Run:
    """One run of a layer: what entered it, where in the graph the gradient of what left it is found, and that one.

    `names` gives the chosen parameters of the layer, by their names in it, the names they have in the network.
    """

    layer: nn.Module
    names: dict[str, str]
    entering: Tensor
    edge: GradientEdge
    leaving: int
    gradient: Tensor | None = None


def by_layer(model: nn.Module, chosen: Chosen, batch: Batch, p: float) -> Tensor:
    """(b,) norms over the chosen parameters; those used several times, or tied, add up before the norm."""
    (runs, shared), rows = record(model, chosen, batch), len(batch)
    times = Counter(name for run in runs for name in run.names.values())
    entries = [at_least_single(part).flatten(1) for part in shared]
    sums: dict[str, Tensor] = {}
    for run in runs:
        if run.gradient is None:
            continue
        once = all(times[name] == 1 for name in run.names.values())
        if not once and isinstance(run.layer, nn.Embedding):
            raise Uncovered(f"the embedding '{run.names['weight']}' is used more than once")
        entering, gradient = at_least_single(run.entering), at_least_single(run.gradient)
        found = gradients(run.layer, entering, gradient, rows, p if once else None)
        for own, name in run.names.items():
            if once:
                entries.append(found[own].flatten(1))
            else:
                sums[name] = sums[name] + found[own] if name in sums else found[own]
    entries += [norm(each.flatten(1), p)[:, None] for each in sums.values()]
    return norm(torch.cat(entries, 1), p) if entries else torch.zeros(rows)  # one norm of all: few steps, little time


def record(model: nn.Module, chosen: Chosen, batch: Batch) -> tuple[list[Run], list[Tensor]]:
    """The runs of the layers that hold chosen parameters, and the gradients (b, ...) of those that samples share."""
    (layers, bare_ones), rows, runs = layers_of(model, chosen), len(batch), list[Run]()

    def see(layer: nn.Module, entering: Tensor, out: Tensor) -> None:
        if out.requires_grad:
            # the edge, not the tensor: what follows may change the tensor in place
            runs.append(Run(layer, layers[layer], entering.detach(), get_gradient_edge(out), out.numel()))

    def widen(_: nn.Module, ids: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        shared = bool(ids) and len(ids[0]) == 1 < rows  # positions that all samples share, as in BERT
        return (ids[0].expand(rows, *ids[0].shape[1:]),) if shared else None

    copies = {
        name: each.detach().expand(rows, *each.shape[1:]).clone().requires_grad_() for name, each in bare_ones.items()
    }
    with ExitStack() as hooks, forward.watching(layers, see):
        for layer in layers:
            if isinstance(layer, nn.Embedding):
                hooks.enter_context(layer.register_forward_pre_hook(widen))
        losses = logit_losses(call(model, batch.x, copies), batch)
    places: list[Any] = [run.edge for run in runs] + list(copies.values())
    if not places:
        raise Uncovered("no layer that holds a chosen parameter was called")
    in_layers, used = Counter(name for run in runs for name in run.names.values()), uses(losses)
    if apart := [name for name, each in chosen.items() if name not in copies and used[id(each)] > in_layers[name]]:
        raise Uncovered(f"'{apart[0]}' is also used outside its layer")
    found = torch.autograd.grad(losses.sum(), places, allow_unused=True, retain_graph=True)
    weights = torch.from_numpy(numpy_stream(0, "apart").uniform(1, 2, rows)).to(losses)
    check_apart(found, torch.autograd.grad(losses @ weights, places, allow_unused=True), weights)
    for run, gradient in zip(runs, found, strict=False):
        run.gradient = gradient
    return runs, [each for each in found[len(runs) :] if each is not None]


def check_apart(found: Sequence[Tensor | None], weighted: Sequence[Tensor | None], weights: Tensor) -> None:
    """Refuse gradients (b, ...) whose rows are not those of the samples: where each loss is weighted, each row is."""
    for plain, other in zip(found, weighted, strict=True):
        if plain is not None and other is not None:
            tolerance = TOLERANCE if plain.element_size() >= 4 else COARSE
            rows, of_weighted = (at_least_single(each).reshape(len(weights), -1) for each in (plain, other))
            meant = rows * weights[:, None]
            if bool(((of_weighted - meant).norm(dim=1) > tolerance * meant.norm(dim=1)).any()):
                raise Uncovered("a layer does not have the samples in their own rows")


def uses(loss: Tensor) -> Counter[int]:
    """How often each parameter, by its identity, enters the graph behind a loss."""
    waiting, seen, found = [loss.grad_fn], set[Any](), Counter[int]()
    while waiting:
        node = waiting.pop()
        for before, _ in node.next_functions if node is not None else ():
            if (parameter := getattr(before, "variable", None)) is not None:
                found[id(parameter)] += 1
            elif before is not None and before not in seen:
                seen.add(before)
                waiting.append(before)
    return found


def layers_of(model: nn.Module, chosen: Chosen) -> tuple[dict[nn.Module, dict[str, str]], Chosen]:
    """The layers with formulas that hold chosen parameters, and bare parameters that every sample is given."""
    layers: dict[nn.Module, dict[str, str]] = defaultdict(dict)
    shared: Chosen = {}
    names = {id(each): name for name, each in chosen.items()}
    for path, layer in model.named_modules():
        for own, each in layer.named_parameters(recurse=False):
            name = names.get(id(each))
            if name is None:
                continue
            if isinstance(layer, FORMULAS) and not getattr(layer, "scale_grad_by_freq", False):
                layers[layer][own] = name
            elif each.ndim > 1 and len(each) == 1:  # as the class token and positions of a vision transformer
                shared[name] = each
            else:
                raise Uncovered(f"no formula for '{own}' of the {type(layer).__name__} '{path}'")
    return layers, shared


def bytes_by_layer(model: nn.Module, chosen: Chosen, batch: Batch, p: float) -> int:
    """Bytes per sample: what the layers keep and its gradients, and the largest step of a single layer."""
    kept = largest = 0
    for run in record(model, chosen, part_of(batch, slice(0, 1)))[0]:
        window = torch.Size(getattr(run.layer, "kernel_size", ())).numel()
        explicit = 0 if p == 2 or isinstance(run.layer, nn.Embedding) else run.layer.weight.numel()  # type: ignore[operator]
        kept += run.entering.numel() + 3 * run.leaving
        largest = max(largest, window * run.entering.numel() + run.leaving + 4 * explicit)
    return 4 * 2 * (kept + largest) + 1


# The formulas: gradients of one layer's parameters from what entered it (b, ...) and the gradient of what left it


def gradients(layer: nn.Module, entering: Tensor, gradient: Tensor, rows: int, p: float | None = None) -> Gradients:
    """(b, ...) the gradient of every parameter of the layer, for each sample.

    With `p`, a weight that multiplies is not made explicit where its p-norm (b, 1) is cheaper.
    """
    if isinstance(layer, nn.Embedding):
        return of_embedding(layer, entering, gradient, rows)
    if not isinstance(layer, (nn.Linear, *CONVOLUTIONS)):
        return of_normalisation(layer, entering, gradient, rows)
    a, g = positions(layer, entering, gradient, rows)
    weight = (g @ a.transpose(2, 3)).flatten(1) if p is None else weight_norm(a, g, p)[:, None]
    return {"weight": weight, "bias": g.sum(3).flatten(1)}


def weight_norm(a: Tensor, g: Tensor, p: float) -> Tensor:
    """(b,) the p-norm of the sum over positions of g a', from (b, groups, h, t) and (b, groups, k, t)."""
    (groups, h, t), k = a.shape[1:], g.shape[2]
    if t == 1 and groups == 1:  # rank one
        return norm(a.flatten(1), p) * norm(g.flatten(1), p)
    if p == 2 and t * (h + k) < h * k:
        products = (a.transpose(2, 3) @ a) * (g.transpose(2, 3) @ g)
        return products.sum((1, 2, 3)).clamp(min=0).sqrt()
    return norm((g @ a.transpose(2, 3)).flatten(1), p)


def positions(layer: Any, entering: Tensor, gradient: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """(b, groups, h, t) what is multiplied, for a convolution the patches, and (b, groups, k, t) what it gives."""
    if isinstance(layer, nn.Linear):
        a, g = entering.reshape(rows, -1, layer.in_features), gradient.reshape(rows, -1, layer.out_features)
        return a.transpose(1, 2)[:, None], g.transpose(1, 2)[:, None]
    if any(layer._reversed_padding_repeated_twice):
        mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
        entering = F.pad(entering, layer._reversed_padding_repeated_twice, mode)
    shape, strides = entering.shape[:2], entering.stride()
    steps = [dilation * each for dilation, each in zip(layer.dilation, strides[2:], strict=True)]
    jumps = [stride * each for stride, each in zip(layer.stride, strides[2:], strict=True)]
    # A view, which the reshape below copies in one go, which F.unfold does not.
    patches = entering.as_strided((*shape, *layer.kernel_size, *gradient.shape[2:]), (*strides[:2], *steps, *jumps))
    split = (rows, layer.groups, -1, gradient.shape[2:].numel())
    return patches.reshape(split), gradient.reshape(split)


def of_normalisation(layer: Any, entering: Tensor, gradient: Tensor, rows: int) -> Gradients:
    """(b, ...) of a LayerNorm or an RMSNorm, (b, c) of a GroupNorm or a BatchNorm in eval mode."""
    if isinstance(layer, nn.LayerNorm | nn.RMSNorm):
        shape = layer.normalized_shape
        normalise: Any = F.layer_norm if isinstance(layer, nn.LayerNorm) else F.rms_norm
        a = normalise(entering, shape, eps=layer.eps).reshape(rows, -1, *shape)
        g = gradient.reshape(rows, -1, *shape)
        return {"weight": (g * a).sum(1), "bias": g.sum(1)}
    if isinstance(layer, nn.GroupNorm):
        a = F.group_norm(entering, layer.num_groups, eps=layer.eps)
    else:
        a = F.batch_norm(entering, layer.running_mean, layer.running_var, eps=layer.eps)
    a, g = (each.reshape(rows, each.shape[1], -1) for each in (a, gradient))
    return {"weight": torch.einsum("bct,bct->bc", g, a), "bias": g.sum(2)}


def of_embedding(layer: nn.Embedding, entering: Tensor, gradient: Tensor, rows: int) -> Gradients:
    """(b, t, h) the rows of the weight's gradient that are not 0: at the first of equal ids, their sum."""
    ids, g = entering.reshape(rows, -1), gradient.reshape(rows, -1, layer.embedding_dim)
    if layer.padding_idx is not None:
        g = g * (ids != layer.padding_idx)[:, :, None]
    places = torch.arange(ids.shape[1], device=ids.device)
    first = torch.where(ids[:, :, None] == ids[:, None, :], places, len(places)).amin(2)
    return {"weight": torch.zeros_like(g).scatter_add(1, first[:, :, None].expand_as(g), g)}
