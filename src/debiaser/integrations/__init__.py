"""Thin adapters to people's own frameworks; each imports its framework only when it is itself imported."""

from debiaser.errors import Problem


class Absent(Problem, ImportError):
    """A framework that is not installed."""


def absent(package: str, extra: str) -> Absent:
    """The clear line for a framework that is not installed."""
    return Absent(f"{package} is not installed; get it with: pip install 'debiaser[{extra}]'")
