"""The identity of a run: everything that decides its outcome, checked, and a key made of it.

Loads no torch before a spec is checked against the methods themselves: a plan needs names and numbers only.
"""

import dataclasses
import hashlib
import json
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from debiaser.bench.declared import declared
from debiaser.bench.key_values import parse_fields, parse_options, parse_pairs
from debiaser.bench.settings import SETTINGS
from debiaser.errors import Misuse, Problem, known
from debiaser.learn.recipe import Recipe

if TYPE_CHECKING:
    from debiaser.methods.task import Method

PROTOCOL = 1  # raised whenever the same spec would no longer give the same result
# As usual, these are no part of a run's identity; likewise fields that came after results had been kept.
UNSAID = {"augment": "", "code": "", "precision": "32", "weights": "", "world_size": 1}
UNSAID_FIELDS = {"parameters": "head", "rate": 1, "relative": True}


@dataclass(frozen=True)
class Spec:
    """One run: dataset, method with all its fields, recipe, seeds."""

    dataset: str
    method: str
    rho: float | None  # None: the bias is natural
    recipe: Recipe
    net: str
    seed: int = 0
    data_seed: int = 0
    noise: float = 0.0
    fields: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    code: str = ""  # digest of files of one's own: that a method comes from, that hold weights
    precision: str = "32"
    world_size: int = 1  # several processes draw and normalise otherwise than one
    weights: str = ""  # what the network starts from, a folder or a hub name; empty: random numbers
    augment: str = ""  # the augmentation by name; empty: the benchmark's

    def plain(self) -> dict[str, Any]:
        """The spec as plain values, infinite numbers as words (JSON has none)."""
        values = {**dataclasses.asdict(self), "recipe": self.recipe.plain(), "protocol": PROTOCOL}
        for name, usual in UNSAID.items():
            if values[name] == usual:
                del values[name]
        return {
            **values,
            "fields": {
                name: "inf" if value == float("inf") else value
                for name, value in self.fields.items()
                if (name, value) not in UNSAID_FIELDS.items()
            },
        }

    @property
    def key(self) -> str:
        """A readable name that ends in a digest of the whole spec."""
        digest = digest_of(self.plain())
        rho = "" if self.rho is None else f"-rho{self.rho:g}"
        return f"{self.dataset}-{self.label}{rho}-{self.recipe.name}-seed{self.seed}-{digest}"

    @property
    def label(self) -> str:
        """The method's name; of one's own, the class."""
        return self.method.rpartition(":")[2]

    @property
    def data_identity(self) -> str:
        """Everything that decides the training data and the network's shape, for the keys of shared stages."""
        parts = [PROTOCOL, self.dataset, self.rho, self.noise, self.data_seed, dict(self.options), self.net]
        return json.dumps([*parts, self.weights, self.code] if self.weights else parts, sort_keys=True)

    @property
    def net_options(self) -> dict[str, Any]:
        """What the network's maker is told beside the number of classes."""
        return {"weights": self.weights} if self.weights else {}

    def new_method(self) -> "Method":
        """The method with these fields."""
        from debiaser.methods import find_method

        method: Method = find_method(self.method)(**self.fields)
        return method


def digest_of(plain: Mapping[str, Any]) -> str:
    """What a run's key ends in: a digest of its spec as plain values."""
    return hashlib.blake2b(json.dumps(plain, sort_keys=True).encode(), digest_size=5).hexdigest()


def new_spec(
    dataset: str,
    method: str,
    rho: float | None = None,
    recipe: str = "fast",
    epochs: int | None = None,
    seed: int = 0,
    data_seed: int | None = None,
    noise: float = 0.0,
    net: str | None = None,
    changes: Iterable[str] = (),
    options: Iterable[str] = (),
    precision: str = "32",
    world_size: int = 1,
    weights: str = "",
    augment: str = "",
) -> Spec:
    """The checked spec of a run; `changes` are `key=value` texts for the method's fields."""
    from debiaser.data import DATASETS
    from debiaser.data.inject import check_share
    from debiaser.methods import find_method

    if dataset not in DATASETS:
        raise known("dataset", dataset, DATASETS)
    kind, setting = find_method(method), SETTINGS[dataset]
    chosen = setting.recipe(recipe, method, epochs)
    check_choices(net, precision, augment)
    check_seeds(seed, data_seed)
    rho = checked_rho(dataset, rho)
    fields = {**setting.fields(method, rho), **parse_fields(kind, changes)}
    asked = parse_options(dataset, options)
    spec = Spec(
        dataset=dataset,
        method=method,
        rho=rho,
        recipe=chosen,
        net=net or ("mlp" if asked.get("features") else setting.net),
        seed=seed,
        data_seed=seed if data_seed is None else data_seed,
        noise=check_share("noise", noise, closed=True),
        fields=as_declared(with_fields(kind, fields)),
        options=asked,
        code=digest_of_code(method) + digest_of_folder(weights),
        precision=precision,
        world_size=world_size,
        weights=weights,
        augment=augment,
    )
    check_network(spec)
    return spec


def digest_of_code(method: str) -> str:
    """A digest of the file that a method of one's own, `file.py:Class`, comes from; empty for one of ours."""
    from debiaser.methods import METHODS

    return "" if method in METHODS else digest_of_file(Path(method.rpartition(":")[0]))


def digest_of_file(path: Path) -> str:
    """The SHA-256 of a file's content."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def digest_of_folder(weights: str) -> str:
    """A digest of the weights in a local folder, whose content its name does not tell; empty for a name on the hub."""
    files = sorted(Path(weights).expanduser().glob("*.safetensors")) if weights else []
    return "".join(digest_of_file(path) for path in files)


def check_choices(net: str | None, precision: str, augment: str) -> None:
    """Refuse a network, precision or augmentation that is not there."""
    from debiaser.data.augment import AUGMENTATIONS
    from debiaser.learn.engine import PRECISIONS
    from debiaser.learn.nets import NETS

    if net is not None and net not in NETS:
        raise known("network", net, NETS)
    if precision not in PRECISIONS:
        raise known("precision", precision, PRECISIONS)
    if augment and augment not in AUGMENTATIONS:
        raise known("augmentation", augment, AUGMENTATIONS)


def check_network(spec: Spec) -> None:
    """Refuse weights that the network does not take, and an augmentation of inputs that are no pictures."""
    from debiaser.learn.nets import check_options

    check_options(spec.net, spec.net_options)
    if spec.augment and (spec.net == "bert" or spec.options.get("features")):
        raise Misuse("only pictures can be varied, neither texts nor features; leave --augment out")


def checked_rho(dataset: str, rho: float | None) -> float | None:
    """The rho that was asked for or, without one, the dataset's usual one; None where the bias is natural."""
    from debiaser.data.inject import check_share

    usual = SETTINGS[dataset].rho
    if usual is None and rho is not None:
        raise Misuse(f"{dataset} has no rho to choose: its bias is natural; leave --rho out")
    return None if usual is None else check_share("rho", usual if rho is None else rho)


def check_seeds(seed: int, data_seed: int | None) -> None:
    """Refuse seeds below 0."""
    for name, number in (("seed", seed), ("data-seed", data_seed)):
        if number is not None and number < 0:
            raise Misuse(f"{name} must not be negative, got {number}")


def planned_spec(
    dataset: str,
    method: str,
    rho: float | None = None,
    recipe: str = "fast",
    epochs: int | None = None,
    seed: int = 0,
    noise: float = 0.0,
    net: str | None = None,
    changes: Iterable[str] = (),
    options: Iterable[str] = (),
) -> Spec:
    """What `new_spec` gives for one of our own methods, without loading torch and therefore less thoroughly checked."""
    setting, kinds = SETTINGS[dataset], {name: kind for name, (kind, _) in declared(method).items()}
    chosen, rho = setting.recipe(recipe, method, epochs), setting.rho if rho is None else rho
    fields = {name: usual for name, (_, usual) in declared(method).items()}
    fields |= {**setting.fields(method, rho), **parse_pairs("field", kinds, changes)}
    return Spec(
        dataset=dataset,
        method=method,
        rho=rho,
        recipe=chosen,
        net=net or setting.net,
        seed=seed,
        data_seed=seed,
        noise=noise,
        fields=of_types(fields, kinds),
        options={name: text for name, _, text in (option.partition("=") for option in options)},
    )


def with_fields(kind: type, fields: Mapping[str, Any]) -> "Method":
    """The method with these fields; what it refuses is told in one line."""
    try:
        method: Method = kind(**fields)
    except Problem:
        raise
    except (AssertionError, TypeError, ValueError) as error:
        raise Misuse(f"{kind.__name__} does not take these fields: {error}; --set key=value gives one") from error
    return method


def as_declared(method: "Method") -> dict[str, Any]:
    """The method's fields as plain values of their declared types."""
    return of_types(dataclasses.asdict(method), typing.get_type_hints(type(method)))  # type: ignore[call-overload]


def of_types(values: Mapping[str, Any], kinds: Mapping[str, Any]) -> dict[str, Any]:
    """The values, whole numbers as floats where a float is declared: 2 and 2.0 are the same."""

    def plain(name: str, value: Any) -> Any:
        wants_float = kinds[name] is float or float in typing.get_args(kinds[name])
        try:
            json.dumps(value)
        except TypeError:
            raise Misuse(f"the field {name} is a {type(value).__name__}; use numbers, texts, true or false") from None
        return float(value) if wants_float and isinstance(value, int | float) else value

    return {name: plain(name, value) for name, value in values.items()}
