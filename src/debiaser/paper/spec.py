"""The identity of a run: everything that decides its outcome, checked, and a key made of it.

Loads no torch before a spec is checked against the methods themselves: a plan needs names and numbers only.
"""

import ast
import dataclasses
import hashlib
import json
import types
import typing
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any

from debiaser.errors import Misuse, Problem, known
from debiaser.learn.recipe import Recipe
from debiaser.paper.settings import SETTINGS
from debiaser.report.tables import METHODS

# --- A method's fields as its source declares them: importing the method would load torch, which takes seconds

HOME = files("debiaser") / "methods"  # asking for the package `debiaser.methods` would import it
KINDS: dict[str, Any] = {"bool": bool, "int": int, "float": float, "str": str, "float | None": float | None}


@cache
def declared(method: str) -> dict[str, tuple[type | UnionType, Any]]:
    """Type and default of every field of one of our methods, by name, in order."""
    if method not in METHODS:
        raise known("method", method, METHODS)
    body = ast.parse((HOME / f"{method}.py").read_text(encoding="utf-8")).body
    return next(fields for fields in map(fields_of, body) if fields)


def fields_of(node: ast.stmt) -> dict[str, tuple[type | UnionType, Any]]:
    """The fields of a dataclass that has a `fit(self, task)`; none for anything else."""
    if not isinstance(node, ast.ClassDef) or not any("dataclass" in ast.unparse(each) for each in node.decorator_list):
        return {}
    if not any(isinstance(each, ast.FunctionDef) and each.name == "fit" for each in node.body):
        return {}
    return {
        each.target.id: (KINDS[ast.unparse(each.annotation)], ast.literal_eval(each.value))
        for each in node.body
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name) and each.value is not None
    }


# --- `key=value` texts of a command as values of the types that a method or a dataset's loader declares

COMMON_OPTIONS = ("root", "rho", "data_seed", "noise", "return")  # of a loader: not for `--option` to give


def parse_fields(cls: type, changes: Iterable[str]) -> dict[str, Any]:
    """`key=value` texts as values of the dataclass's fields, checked against names and types."""
    hints = typing.get_type_hints(cls)
    return parse_pairs("field", {each.name: hints[each.name] for each in dataclasses.fields(cls)}, changes)


def parse_options(dataset: str, options: Iterable[str]) -> dict[str, Any]:
    """`key=value` texts as keyword arguments of the dataset's loader."""
    from debiaser.data import DATASETS

    hints = typing.get_type_hints(DATASETS[dataset].load)
    own = {name: kind for name, kind in hints.items() if name not in COMMON_OPTIONS}
    return parse_pairs(f"option of {dataset}", own, options)


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


def parse_value(name: str, text: str, kind: Any) -> Any:  # noqa: C901
    """The text as a value of this type; of several types, the first that it fits."""
    if typing.get_origin(kind) in (types.UnionType, typing.Union):
        if text.lower() == "none":
            return None
        *others, kind = (each for each in typing.get_args(kind) if each is not type(None))
        for each in others:
            with suppress(Misuse):
                return parse_value(name, text, each)
    if typing.get_origin(kind) is typing.Literal:
        values = {str(each): each for each in typing.get_args(kind)}
        if text not in values:
            raise known(name, text, values)
        return values[text]
    if kind not in (bool, int, float, str):
        raise Misuse(f"{name} cannot be given as a text: it is neither a number nor a text, true or false")
    if kind is bool:
        if text.lower() not in ("true", "false"):
            raise Misuse(f"{name} is true or false, got '{text}'")
        return text.lower() == "true"
    try:
        value = kind(text)
    except ValueError:
        raise Misuse(f"{name} must be a{'n' if kind is int else ''} {kind.__name__}, got '{text}'") from None
    if value != value:
        raise Misuse(f"{name} must be a number, got '{text}'")
    return value


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
    from debiaser.data.bias import check_share
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
    from debiaser.data.bias import check_share

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
