"""The benchmarks: one file per family, each with `load(...) -> Benchmark`, imported when it is asked for."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass

from debiaser.data.raw import SETS
from debiaser.data.sources import WEIGHTS, FolderSet, Published
from debiaser.data.split import Benchmark


@dataclass(frozen=True)
class Source:
    """How a benchmark is loaded, what it is, and which raw sets it needs (none: it is embedded).

    `loader`: the module here and the function.
    """

    loader: str
    about: str
    raw: tuple[str, ...] = ()

    @property
    def load(self) -> Callable[..., Benchmark]:
        """The loader itself."""
        module, _, name = self.loader.partition(".")
        loader: Callable[..., Benchmark] = getattr(importlib.import_module(f"debiaser.data.benchmarks.{module}"), name)
        return loader


DATASETS: dict[str, Source] = {
    "digits": Source("digits.load", "coloured handwritten digits, 1,167 / 130 / 500, ships inside scikit-learn"),
    "cmnist": Source("mnist.load_cmnist", "Colored MNIST, 54,000 / 6,000 / 10,000: colour is the shortcut", ("mnist",)),
    "cmnist-colour": Source(
        "mnist.load_cmnist_colour", "Colored MNIST with colour as the target, digit as shortcut", ("mnist",)
    ),
    "mbmnist": Source(
        "mnist.load_mbmnist",
        "Multi-bias MNIST, 54,000 / 6,000 / 10,000: seven shortcuts",
        ("mnist", "fashion_mnist", "kmnist", "emnist_letters"),
    ),
    "ccifar": Source(
        "cifar.load_ccifar", "Corrupted CIFAR-10, 45,000 / 5,000 / 10,000: the corruption is the shortcut", ("cifar10",)
    ),
    "cifar10": Source("cifar.load_cifar10", "CIFAR-10 as it is, 45,000 / 5,000 / 10,000", ("cifar10",)),
    "bar": Source(
        "image_sets.load_bar", "Biased Action Recognition, 1,746 / 195 / 654: the place is the shortcut", ("bar",)
    ),
    "bffhq": Source(
        "image_sets.load_bffhq", "Biased FFHQ, 19,200 / 1,000 / 1,000: age and gender go together", ("bffhq",)
    ),
    "celeba": Source(
        "image_sets.load_celeba",
        "CelebA, 162,770 / 19,867 / 19,962: gender is the shortcut to hair colour",
        ("celeba",),
    ),
    "waterbirds": Source(
        "image_sets.load_waterbirds",
        "Waterbirds, 4,795 / 1,199 / 5,794: the place is the shortcut to the bird",
        ("waterbirds",),
    ),
    "fairface": Source(
        "image_sets.load_fairface",
        "BFFHQ's protocol on FairFace, 19,200 / 1,000 / 1,000: gender is the shortcut to age",
        ("fairface",),
    ),
    "civilcomments": Source(
        "civilcomments.load",
        "CivilComments-WILDS, 269,038 / 45,180 / 133,782: mentions of identities are the shortcut",
        ("civilcomments",),
    ),
}


def folder_sets() -> dict[str, FolderSet]:
    """The benchmarks that others publish as a folder of images or texts."""
    from debiaser.data.benchmarks import civilcomments, image_sets

    return {**image_sets.SETS, "civilcomments": civilcomments.SET}


def published() -> dict[str, Published]:
    """All that is found, fetched and checked by name."""
    return {**SETS, **folder_sets(), **WEIGHTS}
