"""The algorithms, one file each; a method is a frozen dataclass with `fit(task)`."""

from debiaser.methods.pgd import PGD
from debiaser.methods.vanilla import Vanilla

METHODS: dict[str, type] = {"pgd": PGD, "vanilla": Vanilla}

__all__ = ["METHODS", "PGD", "Vanilla"]
