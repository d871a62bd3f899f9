"""Published networks through transformers: ResNet-18, ResNet-50 and BERT, with random or pretrained weights."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from debiaser.learn import hub
from debiaser.learn.small_maps import for_small_maps

HEAD = ("classifier",)  # the layer that may be new: its number of classes is ours


class Logits(nn.Module):
    """A classifier of transformers that takes a batch's inputs, a tensor or a mapping, and gives its logits alone."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor | Mapping[str, Tensor] | None = None, **named: Tensor) -> Tensor:
        inputs = {"pixel_values": x} if isinstance(x, Tensor) else (x or {})
        logits: Tensor = self.net(**inputs, **named).logits
        return logits


def resnet18(classes: int, weights: str | None = None) -> nn.Module:
    """ResNet-18 as torchvision has it, 11,689,512 parameters for 1,000 classes; `weights`: a folder or a hub name."""
    return _resnet(classes, weights, hidden_sizes=[64, 128, 256, 512], depths=[2, 2, 2, 2], layer_type="basic")


def resnet50(classes: int, weights: str | None = None) -> nn.Module:
    """ResNet-50 as torchvision has it (stride in the 3x3 convolution), 25,557,032 parameters for 1,000 classes."""
    return _resnet(classes, weights, hidden_sizes=[256, 512, 1024, 2048], depths=[3, 4, 6, 3], layer_type="bottleneck")


def bert(classes: int, weights: str | None = None) -> nn.Module:
    """BERT-base, uncased, for whole sequences; `weights`: a folder or a hub name such as bert-base-uncased."""
    library = hub.transformers()
    if weights is not None:
        return _pretrained("BertForSequenceClassification", weights, classes, new=("classifier", "pooler"))
    return Logits(library.BertForSequenceClassification(library.BertConfig(num_labels=classes)))


def _resnet(classes: int, weights: str | None, **shape: Any) -> nn.Module:
    library = hub.transformers()
    if weights is not None:
        return for_small_maps(_pretrained("ResNetForImageClassification", weights, classes, HEAD, **shape))
    net = library.ResNetForImageClassification(library.ResNetConfig(num_labels=classes, **shape))
    return for_small_maps(Logits(net))


def _pretrained(maker: str, weights: str, classes: int, new: tuple[str, ...], **shape: Any) -> nn.Module:
    """Weights for everything but the last layer, which is new; a folder of another shape is refused."""
    folder = hub.model_folder(weights)
    net = hub.load_model(maker, folder, new=new, num_labels=classes, ignore_mismatched_sizes=True, **shape)
    return Logits(net)
