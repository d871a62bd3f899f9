"""debiaser: find and fix shortcut learning.

Three pieces for your own loop (`GCELoss`, `gradient_norms`, `ScoreSampler`), the methods, and `debias` for a dataset.
Names are loaded when first used, so that importing the package costs nothing.
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

_HOMES = {  # of the others, which are methods: the module of that name
    "debiaser.auditing.api": ("audit", "debias"),
    "debiaser.learn.gradient_norms": ("gradient_norms",),
    "debiaser.learn.losses": ("GCELoss",),
    "debiaser.learn.recipe": ("Recipe",),
    "debiaser.learn.sampler": ("ScoreSampler", "debiased_loader"),
    "debiaser.learn.streams": ("read_scores", "score_stream"),
    "debiaser.methods.guarded": ("GuardedPGD",),
}

__all__ = [
    "AFR",
    "BAM",
    "BPA",
    "CNC",
    "DFR",
    "DPR",
    "EIIL",
    "GEORGE",
    "JTT",
    "PGD",
    "RWG",
    "ULA",
    "XRM",
    "Cells",
    "Disen",
    "GCELoss",
    "GroupDRO",
    "GuardedPGD",
    "LfF",
    "NeuronTune",
    "Recipe",
    "ScoreSampler",
    "Vanilla",
    "__version__",
    "audit",
    "debias",
    "debiased_loader",
    "gradient_norms",
    "read_scores",
    "score_stream",
]

if TYPE_CHECKING:
    from debiaser.auditing.api import audit, debias
    from debiaser.learn.gradient_norms import gradient_norms
    from debiaser.learn.losses import GCELoss
    from debiaser.learn.recipe import Recipe
    from debiaser.learn.sampler import ScoreSampler, debiased_loader
    from debiaser.learn.streams import read_scores, score_stream
    from debiaser.methods.afr import AFR
    from debiaser.methods.bam import BAM
    from debiaser.methods.bpa import BPA
    from debiaser.methods.cells import Cells
    from debiaser.methods.cnc import CNC
    from debiaser.methods.dfr import DFR
    from debiaser.methods.disen import Disen
    from debiaser.methods.dpr import DPR
    from debiaser.methods.eiil import EIIL
    from debiaser.methods.george import GEORGE
    from debiaser.methods.groupdro import GroupDRO
    from debiaser.methods.guarded import GuardedPGD
    from debiaser.methods.jtt import JTT
    from debiaser.methods.lff import LfF
    from debiaser.methods.neurontune import NeuronTune
    from debiaser.methods.pgd import PGD
    from debiaser.methods.rwg import RWG
    from debiaser.methods.ula import ULA
    from debiaser.methods.vanilla import Vanilla
    from debiaser.methods.xrm import XRM


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'debiaser' has no attribute '{name}'")
    home = next((module for module, names in _HOMES.items() if name in names), f"debiaser.methods.{name.lower()}")
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return sorted(__all__)
