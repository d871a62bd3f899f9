"""How a run was made: the command that makes it again, its settings and the versions behind it."""

import json
import shlex
from typing import Any

from debiaser.report.runs import Result, number
from debiaser.report.tables import count, duration

ENVIRONMENT = {
    "debiaser": "debiaser",
    "commit": "commit",
    "python": "Python",
    "torch": "torch",
    "numpy": "numpy",
    "pillow": "Pillow",
    "scikit-learn": "scikit-learn",
    "scipy": "scipy",
    "device": "device",
    "threads": "threads",
    "cores": "cores",
    "world_size": "processes",
    "processor": "processor",
    "platform": "platform",
}


def command(result: Result) -> str:
    """The command line that makes the run again."""
    spec = result["spec"]
    words = [
        "debiaser",
        "train",
        str(result["dataset"]),
        "--method",
        str(result["spec"].get("method") or result["method"]),
    ]
    for option, value in (
        ("--rho", result.get("rho")),
        ("--noise", spec.get("noise") or None),
        ("--recipe", result.get("recipe")),
        ("--epochs", _epochs(spec)),
        ("--net", spec.get("net")),
        ("--weights", spec.get("weights")),
        ("--augment", spec.get("augment")),
        ("--seed", result.get("seed")),
        ("--data-seed", spec.get("data_seed")),
    ):
        if value is not None:
            words += [option, str(value)]
    for option, name in (("--set", "fields"), ("--option", "options")):
        chosen = spec.get(name)
        if isinstance(chosen, dict):
            for key, value in sorted(chosen.items()):
                words += [option, f"{key}={_value(value)}"]
    return " ".join(shlex.quote(word) for word in words)


def _epochs(spec: dict[str, Any]) -> int | None:
    recipe = spec.get("recipe")
    if not isinstance(recipe, dict):
        return None
    stages = recipe.get("stages")
    if isinstance(stages, dict) and any(isinstance(own, dict) and "epochs" in own for own in stages.values()):
        return None  # --epochs would set them all alike
    epochs = number(recipe.get("epochs"))
    return None if epochs is None else int(epochs)


def _value(value: Any) -> str:
    if value is None:
        return "none"
    return value if isinstance(value, str) else json.dumps(value)


def making(label: str, result: Result) -> dict[str, Any]:
    """Command, settings, sizes, times and versions of one run."""
    environment, rows = result["environment"], result["rows"]
    return {
        "label": label,
        "seed": result.get("seed"),
        "folder": result["folder"].name,
        "command": command(result),
        "spec": json.dumps(result["spec"], indent=2, sort_keys=True, default=str),
        "rows": [
            (str(name), "unknown" if number(value) is None else count(number(value))) for name, value in rows.items()
        ],
        "seconds": [(str(stage), duration(number(value))) for stage, value in result["seconds"].items()],
        "notes": [str(note) for note in result["notes"]],
        "versions": [(words, str(environment[name])) for name, words in ENVIRONMENT.items() if environment.get(name)],
    }
