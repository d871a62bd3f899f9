"""debiaser: find and fix shortcut learning.

Three pieces for your own loop (`GCELoss`, `gradient_norms`, `ScoreSampler`), the methods, and `debias` for a dataset.
Names are loaded when first used, so that importing the package costs nothing.
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES = {
    "GCELoss": "debiaser.learn.losses",
    "gradient_norms": "debiaser.learn.gradient_norms",
    "ScoreSampler": "debiaser.learn.sampler",
    "read_scores": "debiaser.learn.streams",
    "score_stream": "debiaser.learn.streams",
    "Recipe": "debiaser.learn.recipe",
    "BPA": "debiaser.methods",
    "CNC": "debiaser.methods",
    "Disen": "debiaser.methods",
    "EIIL": "debiaser.methods",
    "GEORGE": "debiaser.methods",
    "JTT": "debiaser.methods",
    "LfF": "debiaser.methods",
    "PGD": "debiaser.methods",
    "Vanilla": "debiaser.methods",
    "audit": "debiaser.auditing.api",
    "debias": "debiaser.auditing.api",
}

__all__ = [
    "BPA",
    "CNC",
    "EIIL",
    "GEORGE",
    "JTT",
    "PGD",
    "Disen",
    "GCELoss",
    "LfF",
    "Recipe",
    "ScoreSampler",
    "Vanilla",
    "__version__",
    "audit",
    "debias",
    "gradient_norms",
    "read_scores",
    "score_stream",
]

if TYPE_CHECKING:
    from debiaser.auditing.api import audit, debias
    from debiaser.learn.gradient_norms import gradient_norms
    from debiaser.learn.losses import GCELoss
    from debiaser.learn.recipe import Recipe
    from debiaser.learn.sampler import ScoreSampler
    from debiaser.learn.streams import read_scores, score_stream
    from debiaser.methods import BPA, CNC, EIIL, GEORGE, JTT, PGD, Disen, LfF, Vanilla


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'debiaser' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
