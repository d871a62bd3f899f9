"""The algorithms, one file each; a method is a frozen dataclass with `fit(task)`."""

import dataclasses
import importlib.util
import sys
from pathlib import Path
from typing import Any

from debiaser.errors import Misuse, Problem, known

# Each in the module of its name, which is imported when it is asked for.
METHODS = {name.lower(): name for name in ("BPA", "CNC", "Disen", "EIIL", "GEORGE", "JTT", "LfF", "PGD", "Vanilla")}
METHODS |= {name.lower(): name for name in ("AFR", "BAM", "Cells", "DFR", "DPR", "GroupDRO", "NeuronTune")}
METHODS |= {name.lower(): name for name in ("RWG", "ULA", "XRM")}
METHODS["guarded"] = "GuardedPGD"


def find_method(name: str) -> Any:
    """The class of a method: one of ours by name, or a person's own as `path/to/file.py:Class`."""
    if name in METHODS:
        return getattr(importlib.import_module(f"debiaser.methods.{name}"), METHODS[name])
    path, colon, wanted = name.rpartition(":")
    if not colon or not path.endswith(".py"):
        raise known("method", name, [*METHODS, "path/to/file.py:Class"])
    file = Path(path)
    if not file.is_file():
        raise Misuse(f"no file {file} to take the method {wanted} from; check the path")
    spec = importlib.util.spec_from_file_location(f"own_method_{file.stem}", file)
    assert spec and spec.loader  # it ends in .py
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up by name
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise Problem(f"{file} cannot be loaded: {type(error).__name__}: {error}") from error
    own = [kind for kind in vars(module).values() if isinstance(kind, type) and kind.__module__ == module.__name__]
    methods = {kind.__name__: kind for kind in own if dataclasses.is_dataclass(kind) and hasattr(kind, "fit")}
    if wanted not in methods:
        raise Misuse(f"{file} has no dataclass {wanted} with a fit method; it has: {', '.join(methods) or 'none'}")
    return methods[wanted]
