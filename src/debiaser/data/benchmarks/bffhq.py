"""Biased FFHQ: faces whose age and gender go together in training, but for half a percent."""

import re
from pathlib import Path

import numpy as np

from debiaser.data.archives import Bundle, FormatError
from debiaser.data.benchmarks.gallery import Files, file_benchmark, tally
from debiaser.data.bias import check_share
from debiaser.data.sources import FolderSet, images_in
from debiaser.data.split import Benchmark
from debiaser.errors import known

NAME = re.compile(r"(?:.*/)?[^/]+_([01])_([01])\.\w+")  # <id>_<first>_<second>.png
TARGETS = ("first", "second")
ATTRIBUTES = ("age", "gender")  # what the two numbers are by the description of those who made the archive (D11)
USUAL = "0.5pct"


def index(bundle: Bundle, share: str = USUAL) -> tuple[tuple[Bundle, dict[str, Files]], dict[str, int]]:
    """The images of each part, with the first number of their names as class and the second as bias, checked."""
    bundle = bundle.based_on("valid", "test")
    shares = sorted({name.split("/")[0] for name in bundle.entries if name.split("/")[0].endswith("pct")})
    if share not in shares:
        raise FormatError(bundle.path, f"has no folder {share}; there: {', '.join(shares) or 'none'}")
    folders = {"train": (f"{share}/align", f"{share}/conflict"), "valid": ("valid",), "test": ("test",)}
    found = {}
    for part, each in folders.items():
        matches = [m for name in each for m in images_in(bundle, name, NAME, "<id>_<0 or 1>_<0 or 1>.png")]
        numbers = np.array([(int(m[1]), int(m[2])) for m in matches])
        found[part] = Files([m.string for m in matches], numbers[:, 0], numbers[:, 1])
    for name, first, second in zip(*found["train"], strict=True):
        if (first == second) != name.startswith(f"{share}/align/"):
            raise FormatError(bundle.path, f"holds {name!r}, whose numbers do not fit its folder")
    return (bundle, found), tally(found)


SET = FolderSet(
    name="bffhq",
    title="Biased FFHQ faces",
    contents="its 0.5pct/, valid/ and test/",
    page="the Google Drive folder linked from https://github.com/kakaoenterprise/Learning-Debiased-Disentangled",
    index=index,
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
    features: str | None = None,  # noqa: ARG001 (the bench trains on this encoder's features instead of images)
) -> Benchmark:
    """The benchmark; rho chooses the folder (0.005 is 0.5pct).

    target: which number of the file name is learnt, first or second; the other is the bias (D11). size: pixels of a
    side.
    """
    if target not in TARGETS:
        raise known("target of bffhq", target, TARGETS)
    share = f"{check_share('rho', rho) * 100:g}pct"
    with SET.opened(root) as opened:
        (bundle, found), _ = index(opened, share)
    learnt = TARGETS.index(target)
    if learnt:
        found = {part: Files(names, second, first) for part, (names, first, second) in found.items()}
    note = (
        f"the target is the {target} number of the file name ({ATTRIBUTES[learnt]} by the archive's authors), the bias "
        f"the other ({ATTRIBUTES[1 - learnt]}); the paper calls gender the target (D11)"
    )
    attribute = ATTRIBUTES[1 - learnt]
    return file_benchmark(SET, bundle, found, (size, size), ("0", "1"), attribute, noise, data_seed, (note,))
