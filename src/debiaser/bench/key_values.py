"""`key=value` texts of a command as values of the types that a method or a dataset's loader declares."""

import dataclasses
import types
import typing
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from debiaser.errors import Misuse, known

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


def parse_value(name: str, text: str, kind: Any) -> Any:
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
