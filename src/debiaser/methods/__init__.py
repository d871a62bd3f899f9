"""The algorithms, one file each; a method is a frozen dataclass with `fit(task)`."""

from debiaser.methods.bpa import BPA
from debiaser.methods.cnc import CNC
from debiaser.methods.disen import Disen
from debiaser.methods.eiil import EIIL
from debiaser.methods.george import GEORGE
from debiaser.methods.jtt import JTT
from debiaser.methods.lff import LfF
from debiaser.methods.pgd import PGD
from debiaser.methods.vanilla import Vanilla

METHODS: dict[str, type] = {
    "bpa": BPA,
    "cnc": CNC,
    "disen": Disen,
    "eiil": EIIL,
    "george": GEORGE,
    "jtt": JTT,
    "lff": LfF,
    "pgd": PGD,
    "vanilla": Vanilla,
}

__all__ = ["BPA", "CNC", "EIIL", "GEORGE", "JTT", "METHODS", "PGD", "Disen", "LfF", "Vanilla"]
