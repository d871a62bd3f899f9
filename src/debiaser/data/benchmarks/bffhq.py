"""Biased FFHQ: faces whose age and gender go together in training, but for half a percent."""

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from debiaser.data.archives import Bundle, FormatError
from debiaser.data.benchmarks.gallery import Gallery
from debiaser.data.bias import Integers, Part, build_benchmark, check_share
from debiaser.data.sources import FolderSet, compare, images_in
from debiaser.data.split import Benchmark
from debiaser.errors import known

NAME = re.compile(r"(?:.*/)?[^/]+_([01])_([01])\.\w+")  # <id>_<first>_<second>.png
TARGETS = ("first", "second")
ATTRIBUTES = ("age", "gender")  # what the two numbers are by the description of those who made the archive (D11)
USUAL = "0.5pct"


def labels(bundle: Bundle, names: list[str]) -> Integers:
    """(n, 2) the two numbers in each file name."""
    found = np.empty((len(names), 2), np.int64)
    for row, name in enumerate(names):
        match = NAME.fullmatch(name)
        if match is None:
            raise FormatError(bundle.path, f"holds {name!r}, which is not named <id>_<0 or 1>_<0 or 1>.png")
        found[row] = int(match[1]), int(match[2])
    return found


def index(bundle: Bundle, share: str, counts: Mapping[str, int]) -> dict[str, tuple[list[str], Integers]]:
    """For train, valid and test the names of the images and their two numbers (n, 2), checked."""
    shares = sorted({name.split("/")[0] for name in bundle.entries if name.split("/")[0].endswith("pct")})
    if share not in shares:
        raise FormatError(bundle.path, f"has no folder {share}; there: {', '.join(shares) or 'none'}")
    aligned, conflicting = (images_in(bundle, f"{share}/{kind}") for kind in ("align", "conflict"))
    names = {
        "train": aligned + conflicting,
        "valid": images_in(bundle, "valid"),
        "test": images_in(bundle, "test"),
    }
    found = {part: (each, labels(bundle, each)) for part, each in names.items()}
    first, second = found["train"][1].T
    wrong = np.flatnonzero((first == second) != (np.arange(len(first)) < len(aligned)))
    if len(wrong):
        raise FormatError(bundle.path, f"holds {names['train'][wrong[0]]!r}, whose numbers do not fit its folder")
    compare(bundle.path, counts, {part: len(each) for part, each in names.items()})
    return found


def check(bundle: Bundle, counts: Mapping[str, int]) -> dict[str, list[int]]:
    """Images per value of the first number in each part."""
    found = index(bundle.based_on("valid", "test"), USUAL, counts)
    return {part: np.bincount(numbers[:, 0], minlength=2).tolist() for part, (_, numbers) in found.items()}


SET = FolderSet(
    name="bffhq",
    title="Biased FFHQ faces",
    licence="CC BY-NC-SA 4.0 (FFHQ)",
    contents="its 0.5pct/, valid/ and test/",
    page="the Google Drive folder linked from https://github.com/kakaoenterprise/Learning-Debiased-Disentangled",
    check=check,
    counts={"train": 19_200, "valid": 1_000, "test": 1_000},
    also=("BFFHQ", "bFFHQ"),
)


def load(
    root: Path | None,
    rho: float,
    data_seed: int,
    noise: float = 0.0,
    size: int = 224,
    target: str = "first",
    partial: bool = False,
) -> Benchmark:
    """The benchmark; rho chooses the folder (0.005 is 0.5pct).

    target: which number of the file name is learnt, first or second; the other is the bias (D11). size: pixels of a
    side; partial: take what is there, whatever the counts.
    """
    if target not in TARGETS:
        raise known("target of bffhq", target, TARGETS)
    share = f"{check_share('rho', rho) * 100:g}pct"
    with SET.opened(root) as bundle:
        bundle = bundle.based_on("valid", "test")
        found = index(bundle, share, {} if partial or share != USUAL else SET.counts)
    learnt = TARGETS.index(target)
    parts = {
        part: Part(numbers[:, learnt], numbers[:, [1 - learnt]], Gallery(bundle, names, (size, size)))
        for part, (names, numbers) in found.items()
    }
    note = (
        f"the target is the {target} number of the file name ({ATTRIBUTES[learnt]} by the archive's authors), the bias "
        f"the other ({ATTRIBUTES[1 - learnt]}); the paper calls gender the target (D11)"
    )
    return build_benchmark("bffhq", parts, ("0", "1"), (ATTRIBUTES[1 - learnt],), noise, data_seed, (note,))
