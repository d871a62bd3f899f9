"""Every table and figure of the paper that runs, and studies of ours, by label."""

from debiaser.errors import known
from debiaser.paper.studies.definitions import STUDIES
from debiaser.paper.studies.study import Study


def find_studies(name: str) -> list[Study]:
    """The study of this label, or all of them."""
    if name != "all" and name not in STUDIES:
        raise known("study", name, [*STUDIES, "all", "list"])
    return list(STUDIES.values()) if name == "all" else [STUDIES[name]]


__all__ = ["STUDIES", "Study", "find_studies"]
