"""What we learn from: splits that hand out whole batches, benchmarks, augmentation, raw files."""

from collections.abc import Callable
from dataclasses import dataclass

from debiaser.data import cmnist, digits
from debiaser.data.split import Batch, Benchmark, Split, Truth


@dataclass(frozen=True)
class Source:
    """How a benchmark is loaded, what it is, and which raw sets it needs (none: it is embedded)."""

    load: Callable[..., Benchmark]
    about: str
    raw: tuple[str, ...] = ()


DATASETS: dict[str, Source] = {
    "digits": Source(digits.load, "coloured handwritten digits, 1,167 / 130 / 500, ships inside scikit-learn"),
    "cmnist": Source(cmnist.load, "Colored MNIST, 54,000 / 6,000 / 10,000: colour is the shortcut", ("mnist",)),
    "cmnist-colour": Source(
        cmnist.load_colour, "Colored MNIST with colour as the target, digit as shortcut", ("mnist",)
    ),
}

__all__ = ["DATASETS", "Batch", "Benchmark", "Source", "Split", "Truth"]
