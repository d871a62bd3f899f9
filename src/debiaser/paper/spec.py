"""The identity of a run: everything that decides its outcome, checked, and a key made of it."""

import dataclasses
import hashlib
import json
import types
import typing
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from debiaser.errors import Misuse, Problem, known
from debiaser.learn.recipe import Recipe
from debiaser.paper.settings import SETTINGS

if TYPE_CHECKING:
    from debiaser.methods.task import Method

PROTOCOL = 1  # raised whenever the same spec would no longer give the same result
# As usual, these are no part of a run's identity; likewise fields that came after results had been kept.
UNSAID = {"augment": "", "code": "", "part": "", "precision": "32", "weights": "", "world_size": 1}
UNSAID_FIELDS = {"parameters": "head", "rate": 1, "relative": True}
VALUES = {bool: (True, False), type(None): (None,)}  # what a text may mean
COMMON_OPTIONS = ("root", "rho", "data_seed", "noise", "return")  # of a loader: not for `--option` to give


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
    part: str = ""  # which of a published set, where not all of it is here

    def plain(self) -> dict[str, Any]:
        """The spec as plain values, infinite numbers as words (JSON has none)."""
        values = {**dataclasses.asdict(self), "recipe": self.recipe.plain(), "protocol": PROTOCOL}
        values["fields"] = {
            name: "inf" if value == float("inf") else value
            for name, value in self.fields.items()
            if (name, value) not in UNSAID_FIELDS.items()
        }
        return {name: value for name, value in values.items() if (name, value) not in UNSAID.items()}

    @property
    def key(self) -> str:
        """A readable name that ends in a digest of the whole spec."""
        rho = "" if self.rho is None else f"-rho{self.rho:g}"
        return f"{self.dataset}-{self.label}{rho}-{self.recipe.name}-seed{self.seed}-{digest_of(self.plain())}"

    @property
    def label(self) -> str:
        """The method's name; of one's own, the class."""
        return self.method.rpartition(":")[2]

    @property
    def data_identity(self) -> str:
        """Everything that decides the training data and the network's shape, for the keys of shared stages."""
        parts = [PROTOCOL, self.dataset, self.rho, self.noise, self.data_seed, dict(self.options), self.net]
        parts += [self.weights, self.code] if self.weights else []
        return json.dumps([*parts, self.part] if self.part else parts, sort_keys=True)

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
    from debiaser.data.augment import AUGMENTATIONS
    from debiaser.data.benchmarks import DATASETS
    from debiaser.data.bias import check_share
    from debiaser.learn.engine import PRECISIONS
    from debiaser.learn.nets import NETS, check_options
    from debiaser.methods import METHODS, find_method

    if dataset not in DATASETS:
        raise known("dataset", dataset, DATASETS)
    kind, setting = find_method(method), SETTINGS[dataset]
    chosen = setting.recipe(recipe, method, epochs)
    named = (("network", net, NETS), ("precision", precision, PRECISIONS), ("augmentation", augment, AUGMENTATIONS))
    for what, name, choices in named:
        if name and name not in choices:
            raise known(what, name, choices)
    for name, number in (("seed", seed), ("data-seed", data_seed)):
        if number is not None and number < 0:
            raise Misuse(f"{name} must not be negative, got {number}")
    if setting.rho is None and rho is not None:
        raise Misuse(f"{dataset} has no rho to choose: its bias is natural; leave --rho out")
    if setting.rho is not None:
        rho = check_share("rho", setting.rho if rho is None else rho)
    asked = {}
    if options:  # only then is the loader imported
        taken = typing.get_type_hints(DATASETS[dataset].load)
        own = {name: each for name, each in taken.items() if name not in COMMON_OPTIONS}
        asked = parse_pairs(f"option of {dataset}", own, options)
    own_files = [] if method in METHODS else [Path(method.rpartition(":")[0])]
    own_files += sorted(Path(weights).expanduser().glob("*.safetensors")) if weights else []  # a name tells no content
    spec = Spec(
        dataset=dataset,
        method=method,
        rho=rho,
        recipe=chosen,
        net=net or ("mlp" if asked.get("features") else setting.net),
        seed=seed,
        data_seed=seed if data_seed is None else data_seed,
        noise=check_share("noise", noise, closed=True),
        fields=field_values(changed(kind, setting.fields(method, rho), changes)),
        options=asked,
        code="".join(hashlib.sha256(path.read_bytes()).hexdigest() for path in own_files),
        precision=precision,
        world_size=world_size,
        weights=weights,
        augment=augment,
    )
    check_options(spec.net, ["weights"] if spec.weights else [])
    if spec.augment and (spec.net == "bert" or spec.options.get("features")):
        raise Misuse("only images can be varied, neither texts nor features; leave --augment out")
    return spec


def changed(kind: type, fields: Mapping[str, Any], changes: Iterable[str]) -> "Method":
    """The method with these fields and changes; what it refuses is told in one line."""
    hints = typing.get_type_hints(kind)
    asked = parse_pairs("field", {each.name: hints[each.name] for each in dataclasses.fields(kind)}, changes)
    try:
        method: Method = kind(**{**fields, **asked})
    except Problem:
        raise
    except (AssertionError, TypeError, ValueError) as error:  # of a person's own method
        raise Misuse(f"{kind.__name__} does not take these fields: {error}; --set key=value gives one") from error
    return method


def field_values(method: "Method") -> dict[str, Any]:
    """The method's fields as plain values; 2 is 2.0 where a float is declared, so that both are the same run."""
    kinds, found = typing.get_type_hints(type(method)), {}
    for name, value in dataclasses.asdict(method).items():
        if not isinstance(value, int | float | str | tuple | list | dict | None):
            raise Misuse(f"the field {name} is a {type(value).__name__}; use numbers, texts, true or false")
        wants_float = kinds[name] is float or float in typing.get_args(kinds[name])
        found[name] = float(value) if wants_float and isinstance(value, int | float) else value
    return found


def parse_pairs(what: str, kinds: Mapping[str, Any], pairs: Iterable[str]) -> dict[str, Any]:
    """`key=value` texts as values of these types; an unknown key is an error that names the known ones."""
    values = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals:
            raise Misuse(f"'{pair}' is not key=value; known keys: {', '.join(kinds) or 'none'}")
        if name not in kinds:
            raise known(what, name, kinds or ["none"])
        values[name] = parse_value(name, text, kinds[name])
    return values


def parse_value(name: str, text: str, kind: Any) -> Any:
    """The text as a value of this type: a literal, none, true or false, a number, a text; the first that it fits."""
    wanted = []
    for each in typing.get_args(kind) if typing.get_origin(kind) in (types.UnionType, typing.Union) else (kind,):
        if each in (int, float, str):
            with suppress(ValueError):
                value = each(text)
                if value == value:
                    return value
            wanted.append(each.__name__)
            continue
        literal = typing.get_args(each) if typing.get_origin(each) is typing.Literal else ()
        choices = {str(value).lower(): value for value in VALUES.get(each, literal)}
        if text.lower() in choices:
            return choices[text.lower()]
        wanted += choices
    raise Misuse(f"{name} must be {' or '.join(wanted) or 'left out'}, got '{text}'")
