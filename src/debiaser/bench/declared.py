"""A method's fields as its source declares them: importing the method would load torch, which takes seconds.

Used to plan runs; a run itself asks the class. A test compares both for every method.
"""

import ast
from functools import cache
from importlib.resources import files
from types import UnionType
from typing import Any

from debiaser.errors import known
from debiaser.report.names import METHODS

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
