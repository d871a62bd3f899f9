"""Frozen pretrained encoders, found by name: images or texts in, features out, of whole datasets kept in a cache."""

import hashlib
import json
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.utils.fusion import fuse_conv_bn_weights

from debiaser.data.cache import Array, ArrayCache, Rows
from debiaser.data.sources import IMAGENET_MEAN, IMAGENET_STD, KEPT, digest
from debiaser.errors import Misuse, Problem, known
from debiaser.learn.nets import load_model, load_tokenizer, model_folder
from debiaser.progress import task

Stream = Callable[
    [Tensor], Iterable[tuple[Tensor, Any]]
]  # samples to read; parts of them come out, each with its inputs
DEFAULTS = {"image": "efficientnet_lite0", "text": "minilm"}
TOKENS = 256  # of a text, at most
ABSENT = -1  # where a text has no more tokens
# Per forward pass: the maps of four images are small enough for malloc to use the same memory again, while larger ones
# come from the system each time, page by page (64 images take 1.9x as long each).
IMAGES, TEXTS = 4, 32


@dataclass(frozen=True, eq=False)
class Encoder:
    """A frozen network: `encode` maps uint8 images (b, 3, size, size), or b texts, to float32 (b, width) on the CPU.

    `identity` changes with the weights and with anything else that changes the features. To train the network itself,
    `enter` makes one tensor of the inputs (bytes, or tokens), and `flow(module, entered)` the features with gradients.
    """

    name: str
    kind: str
    size: int
    width: int
    identity: str
    module: nn.Module
    encode: Callable[[Any], Tensor]
    enter: Callable[[Any], Tensor] = lambda x: x
    flow: Callable[[nn.Module, Tensor], Tensor] = lambda module, x: module(x)


def find_encoder(kind: str, name: str | None = None, data: Path | None = None) -> Encoder:
    """The encoder of a kind ("image" or "text"): one of WEIGHTS, or any transformers model by folder or hub name."""
    if kind not in DEFAULTS:
        raise known("kind of data", kind, DEFAULTS)
    name = name or DEFAULTS[kind]
    folder = model_folder(name, data)
    if kind == "text":
        return _text_model(name, folder)
    if name != DEFAULTS[kind]:
        return _image_model(name, folder)
    tensors = load_file(folder / KEPT)
    identity, scaling = _identity(name, tensors, "mean over space"), Scaling((127.0,) * 3, (128.0,) * 3)
    return _image_encoder(name, 224, identity, EfficientNetLite0(tensors), scaling, fused=True)


def _identity(name: str, tensors: Mapping[str, Tensor], *facts: object) -> str:
    """The name, and a digest of the weights and of what else decides the features."""
    words = f"{digest(tensors)} {facts}"
    return f"{name}:{hashlib.sha256(words.encode()).hexdigest()[:16]}"


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; empty where there is no file."""
    try:
        content: dict[str, Any] = json.loads(path.read_bytes()) if path.is_file() else {}
    except ValueError as error:
        raise Problem(f"cannot read {path}; it is no JSON file, fetch the model again") from error
    return content


def _in_threads(work: Callable[[Tensor], Tensor], parts: Sequence[Tensor]) -> list[Tensor]:
    """Floats that `work` makes of each part; every thread that torch may use has parts of its own.

    Threads that share a part meet at every layer: one that is kept waiting by another program keeps all waiting (6x).
    """
    threads = torch.get_num_threads()
    if min(threads, len(parts)) < 2:
        return [work(part).float() for part in parts]

    @torch.inference_mode()  # of the thread
    def alone(part: Tensor) -> Tensor:
        torch.set_num_threads(1)
        return work(part).float()

    try:
        with ThreadPoolExecutor(threads) as pool:
            return list(pool.map(alone, parts))
    finally:
        torch.set_num_threads(threads)


# Images


def _image_model(name: str, folder: Path) -> Encoder:
    """Any image model of transformers; the mean over space or tokens, since a pooler may come without weights."""
    size, scaling = preprocessing(folder)
    loaded = load_model("AutoModel", folder, new=("pooler",))
    module = getattr(loaded, "vision_model", loaded).eval().requires_grad_(False)
    identity = _identity(name, module.state_dict(), size, scaling)
    try:
        return _image_encoder(name, size, identity, module, scaling)
    except (TypeError, ValueError, RuntimeError, AttributeError) as error:
        raise Problem(f"{name} cannot turn images of {size} px into features; name an image model") from error


@dataclass(frozen=True)
class Scaling:
    """How pixels 0..255 enter a network: (x - mean) / std per channel."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __call__(self, images: Tensor) -> Tensor:
        mean, std = (torch.tensor(values, device=images.device).view(3, 1, 1) for values in (self.mean, self.std))
        return images.float().sub_(mean).div_(std)


def _image_encoder(
    name: str, size: int, identity: str, module: nn.Module, scaling: Scaling, fused: bool = False
) -> Encoder:
    """The encoder of a frozen network; its width is found by one black image.

    fused: convolutions take their activations in and keep oneDNN's own layout: 1.6x as many images a second.
    """

    @cache
    def network() -> Any:
        """The same network, for inference alone."""
        if not fused:
            return module
        example = torch.zeros(IMAGES, 3, size, size).contiguous(memory_format=torch.channels_last)
        script: Any = torch.jit
        with torch.inference_mode(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # TorchScript is to go one day; until then nothing here is as fast
            return script.optimize_for_inference(script.freeze(script.trace(module, example)))

    def flow(module: nn.Module, images: Tensor) -> Tensor:
        found = module(scaling(images))
        if isinstance(found, Tensor):
            return found
        last: Tensor = found.last_hidden_state  # maps (b, width, h, w) or tokens (b, t, width)
        return last.mean((2, 3)) if last.ndim == 4 else last.mean(1)

    def encode(images: Tensor) -> Tensor:
        if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] != 3:
            raise Misuse(f"images must be uint8 (b, 3, s, s), got {images.dtype} {tuple(images.shape)}")
        with torch.inference_mode():
            parts = [part.contiguous(memory_format=torch.channels_last) for part in torch.split(images, IMAGES)]
            found = torch.cat(_in_threads(partial(flow, network()), parts))
        return found.clone()  # outside: a tensor of inference mode could not enter training

    with torch.inference_mode():
        width = flow(module, torch.zeros(1, 3, size, size)).shape[1]
    return Encoder(name, "image", size, width, identity, module, encode, flow=flow)


def preprocessing(folder: Path) -> tuple[int, Scaling]:
    """Side in pixels and scaling from preprocessor_config.json, read by hand: image processors need torchvision."""
    plan = read_json(folder / "preprocessor_config.json")
    cropped = plan.get("crop_size") if plan.get("do_center_crop", True) else None
    size = cropped or plan.get("size") or read_json(folder / "config.json").get("image_size") or 224
    if isinstance(size, dict):
        size = min(size.values())
    mean, std = plan.get("image_mean") or IMAGENET_MEAN, plan.get("image_std") or IMAGENET_STD
    if plan.get("do_normalize") is False:
        mean, std = (0.0,) * 3, (1.0,) * 3
    scale = 1 / plan.get("rescale_factor", 1 / 255)
    return int(size), Scaling(tuple(value * scale for value in mean), tuple(value * scale for value in std))


# Texts


def _text_model(name: str, folder: Path) -> Encoder:
    """Any text model of transformers, pooled as sentence-transformers would where the folder says how.

    Tokens are padded with ABSENT, on the right: many tokenizers pad with a token that texts contain as well.
    """
    module = load_model("AutoModel", folder, new=("pooler",)).eval().requires_grad_(False)
    tokenizer = load_tokenizer(folder)
    first = bool(read_json(folder / "1_Pooling" / "config.json").get("pooling_mode_cls_token"))
    modules = folder / "modules.json"
    unit_length = modules.is_file() and "Normalize" in modules.read_text(encoding="utf-8")
    longest = min(TOKENS, tokenizer.model_max_length, getattr(module.config, "max_position_embeddings", TOKENS))

    def tokens_of(texts: Sequence[str]) -> list[Tensor]:
        ids = tokenizer(list(texts), truncation=True, max_length=longest, return_attention_mask=False)["input_ids"]
        return [torch.tensor(each or [tokenizer.pad_token_id]) for each in ids]  # an empty text has one token too

    def together(tokens: Sequence[Tensor]) -> Tensor:
        return nn.utils.rnn.pad_sequence(list(tokens), batch_first=True, padding_value=ABSENT)

    def flow(module: nn.Module, tokens: Tensor) -> Tensor:
        mask = (tokens != ABSENT).long()
        valid = tokens.masked_fill(tokens == ABSENT, tokenizer.pad_token_id or 0)
        states = module(input_ids=valid, attention_mask=mask).last_hidden_state
        weight = mask[:, :, None].to(states)
        pooled = states[:, 0] if first else (states * weight).sum(1) / weight.sum(1).clamp(min=1)
        return F.normalize(pooled) if unit_length else pooled

    def encode(texts: Sequence[str]) -> Tensor:
        if not texts:
            return torch.empty(0, 0)
        tokens = tokens_of(texts)
        order = torch.tensor([len(each) for each in tokens]).argsort(stable=True)  # alike in length: little padding
        with torch.inference_mode():
            parts = [together([tokens[row] for row in rows]) for rows in torch.split(order, TEXTS)]
            found = torch.cat(_in_threads(partial(flow, module), parts))
        return found[order.argsort()].clone()

    identity = _identity(name, module.state_dict(), first, unit_length, longest)
    try:
        width = encode([""]).shape[1]
    except (TypeError, ValueError, RuntimeError, AttributeError) as error:
        raise Problem(f"{name} cannot turn texts into features; name a text model") from error
    return Encoder(name, "text", 0, width, identity, module, encode, lambda texts: together(tokens_of(texts)), flow)


# Features and pixels of whole datasets, computed once and mapped from their files in the cache


def features(encoder: Encoder, identity: str, n: int, stream: Stream, folder: Path) -> Array:
    """(n, width) float32, read-only, mapped from its file in the folder; `stream` is asked only for missing samples.

    `identity` names the data: the same words must mean the same n inputs in the same order.
    """
    cache = ArrayCache(folder, (n, encoder.width), np.float32, "features", encoder.identity, identity)
    return fill(cache, stream, encoder.encode)


def pixels(identity: str, n: int, stream: Stream, size: int, folder: Path) -> Array:
    """(n, 3, size, size) uint8, read-only, mapped from its file in the folder; as `features`."""
    return fill(ArrayCache(folder, (n, 3, size, size), np.uint8, "pixels", identity), stream, torch.as_tensor)


def fill(cache: ArrayCache, stream: Stream, encode: Callable[[Any], Tensor]) -> Array:
    """The whole array of a cache, made of what `encode` gives for the inputs of its missing samples."""
    n = cache.shape[0]

    def compute(absent: Rows) -> Iterator[tuple[Rows, Array]]:
        with task(cache.what, n, n - len(absent)) as advance:
            for rows, inputs in stream(torch.from_numpy(absent)):
                yield rows.numpy(), encode(inputs).numpy()
                advance(len(rows))

    return cache.fill(compute)


# EfficientNet-Lite0 (Tan and Le 2019; the Lite variant without squeeze-and-excite, ReLU6 instead of swish)

WIDTH, NORM = 1280, ("running_mean", "running_var", "weight", "bias")
# One row per stage: expansion, channels, blocks, kernel, stride of its first block.
STAGES = (
    (1, 16, 1, 3, 1),
    (6, 24, 2, 3, 2),
    (6, 40, 2, 5, 2),
    (6, 80, 3, 3, 2),
    (6, 112, 3, 5, 1),
    (6, 192, 4, 5, 2),
    (6, 320, 1, 3, 1),
)


class Unit(nn.Module):
    """A convolution, with the fixed scale of the BatchNorm after it taken in, and, where gated, ReLU6.

    TensorFlow pads sides of even length at stride 2 by one more to the right and below. A kernel with a row and a
    column of zeros before its first needs only the padding that convolutions have.
    """

    def __init__(
        self, before: int, after: int, kernel: int = 1, stride: int = 1, groups: int = 1, gate: bool = True
    ) -> None:
        super().__init__()
        kernel += stride - 1
        self.conv = nn.Conv2d(before, after, kernel, stride, (kernel - 1) // 2, groups=groups)
        self.gate = nn.ReLU6(inplace=True) if gate else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.gate(self.conv(x))
        return y

    def load(self, weight: Tensor, mean: Tensor, variance: Tensor, scale: Tensor, shift: Tensor) -> None:
        """Take the published weight (o, i, k, k) of the convolution and the state of its norm."""
        fused, bias = fuse_conv_bn_weights(weight, None, mean, variance, 1e-3, scale, shift)
        grown = self.conv.stride[0] - 1
        padded = F.pad(fused.detach(), (grown, 0, grown, 0)).contiguous(memory_format=torch.channels_last)
        self.conv.weight, self.conv.bias = nn.Parameter(padded), bias


class Block(nn.Module):
    """Expand, filter each channel by itself, project; with a shortcut where shapes allow."""

    def __init__(self, before: int, after: int, expansion: int, kernel: int, stride: int) -> None:
        super().__init__()
        inner = before * expansion
        first = [Unit(before, inner)] if expansion > 1 else []
        self.body = nn.Sequential(
            *first, Unit(inner, inner, kernel, stride, groups=inner), Unit(inner, after, gate=False)
        )
        self.shortcut = before == after and stride == 1

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.body(x)
        return y + x if self.shortcut else y


class EfficientNetLite0(nn.Module):
    """Images (b, 3, 224, 224), scaled to (x - 127) / 128, to features (b, 1280): the mean over space; frozen.

    `tensors` are those of the published file, by the names they have there.
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        super().__init__()
        layers: list[nn.Module] = [Unit(3, 32, kernel=3, stride=2)]
        before = 32
        for expansion, after, blocks, kernel, stride in STAGES:
            for number in range(blocks):
                layers.append(Block(before, after, expansion, kernel, stride if number == 0 else 1))
                before = after
        self.body = nn.Sequential(*layers, Unit(before, WIDTH))
        units = [part for part in self.modules() if isinstance(part, Unit)]
        for unit, (conv, norm) in zip(units, published_names(), strict=True):
            unit.load(tensors[f"{conv}.weight"], *(tensors[f"{norm}.{name}"] for name in NORM))
        self.eval().requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        maps: Tensor = self.body(x)
        return maps.mean((2, 3))


def published_names() -> Iterator[tuple[str, str]]:
    """How the published file calls each convolution and its norm, in the order of the layers."""
    yield "_conv_stem", "_bn0"
    expansions = [expansion for expansion, _, blocks, _, _ in STAGES for _ in range(blocks)]
    for number, expansion in enumerate(expansions):
        within = f"_blocks.{number}."
        if expansion > 1:
            yield f"{within}_expand_conv", f"{within}_bn0"
        yield f"{within}_depthwise_conv", f"{within}_bn1"
        yield f"{within}_project_conv", f"{within}_bn2"
    yield "_conv_head", "_bn1"
