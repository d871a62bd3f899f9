"""All that is found, fetched and checked by name."""

from debiaser.data.benchmarks import bar, bffhq, celeba, civilcomments
from debiaser.data.raw import SETS
from debiaser.data.sources import WEIGHTS, FolderSet, Published

FOLDER_SETS: dict[str, FolderSet] = {each.name: each for each in (bar.SET, bffhq.SET, celeba.SET, civilcomments.SET)}
PUBLISHED: dict[str, Published] = {**SETS, **FOLDER_SETS, **WEIGHTS}
