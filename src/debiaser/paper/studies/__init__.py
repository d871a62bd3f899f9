"""Every table and figure of the paper that runs, and studies of ours, by label."""

from debiaser.paper.studies.definitions import STUDIES
from debiaser.paper.studies.study import Study

__all__ = ["STUDIES", "Study"]
