"""Benchmarks of images in files (BAR, BFFHQ, FairFace, CelebA, Waterbirds): which images there are, of which class.

`index_<set>` finds the images of a copy and counts them; `ImageSet` makes the benchmark of them.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from debiaser.data.archives import Bundle, FormatError
from debiaser.data.benchmarks.gallery import Gallery
from debiaser.data.bias import Integers, Part, build_benchmark, check_share, draw_by_class
from debiaser.data.fetch import Web
from debiaser.data.sources import FolderSet, images_in, read_bundled_csv
from debiaser.data.split import Benchmark, There
from debiaser.errors import Misuse, known
from debiaser.io import log, numpy_stream

PARTS = ("train", "valid", "test")
HELD_OUT = 0.1  # of a part of a set that has no images of valid or test


class Listed(NamedTuple):
    """The images of a split: their names in the bundle, classes (n,) and bias values (n,), -1 where unknown."""

    names: Sequence[str]
    target: Integers
    bias: Integers

    def chosen(self, rows: npt.NDArray[Any]) -> "Listed":
        """Only these: their numbers (m,), or a mask (n,)."""
        numbers = np.arange(len(self.names))[rows]
        return Listed([self.names[row] for row in numbers], self.target[numbers], self.bias[numbers])


Parts = dict[str, Listed]
# The files of each part, by their names in the bundle, and how many there are, in the words of the set's counts.
Indexed = tuple[tuple[Bundle, Parts], dict[str, int]]


class Found(NamedTuple):
    """The images of a set that are here, and how much of the set they are."""

    bundle: Bundle
    parts: Parts
    there: There


def by_part(listed: Listed, split: Integers) -> Parts:
    """The images of train, valid and test: 0, 1 and 2 in `split` (n,)."""
    return {part: listed.chosen(split == number) for number, part in enumerate(PARTS)}


def indexed(bundle: Bundle, parts: Parts) -> Indexed:
    """What was found, and how many images each part holds."""
    return (bundle, parts), {part: len(files.names) for part, files in parts.items()}


def read_list(bundle: Bundle, file: str, allowed: Mapping[str, Collection[Any]], names: str) -> tuple[Any, list[str]]:
    """The rows of a comma-separated list whose images are there, and where these lie; `names` is their column.

    A column holds only what is `allowed` in it. Rows without their images are left out: the counts of the set tell.
    """
    path = bundle.find(file)
    if not path:
        raise FormatError(bundle.path, f"lacks {file}")
    table = read_bundled_csv(bundle, path, "is not a list of images", usecols=[names, *allowed])
    for column, values in allowed.items():
        check_values(bundle.path / path, table.set_index(names)[[column]], values)
    start = path.removesuffix(file)
    return present(bundle, table, [f"{start}{name}" for name in table[names]])


def check_values(source: Path, table: Any, allowed: Collection[Any]) -> None:
    """Refuses a table, by the names of its images, with a value that is not allowed or without rows."""
    wrong = table.index[~table.isin(list(allowed)).all(axis=1)]
    if table.empty or len(wrong):
        where = f" for {wrong[0]}" if len(wrong) else ""
        raise FormatError(source, f"holds something else than {', '.join(map(str, allowed))}{where}")


def present(bundle: Bundle, table: Any, names: Sequence[str]) -> tuple[Any, list[str]]:
    """The rows of a table whose files are there, and their names; a warning names the first that is not."""
    there = np.array([name in bundle.entries for name in names], dtype=bool)
    missing = [names[row] for row in np.flatnonzero(~there)[:1]]
    if not there.any():
        raise FormatError(bundle.path, f"lacks the image {missing[0]} and all others that its list names")
    if missing:
        count = int((~there).sum())
        warn_once(f"{bundle.path} lacks {count:,} of the images it lists, such as {missing[0]}: they are left out")
    return table[there], [name for name, here in zip(names, there, strict=True) if here]


@cache
def warn_once(told: str) -> None:
    """A warning, however often the same is found."""
    log.warning("%s", told)


@dataclass(frozen=True, kw_only=True)
class ImageSet(FolderSet):
    """A set of images in files, and the benchmark of them: its classes, its bias attribute, notes for every result.

    `divide`, where the index does not give train, valid and test, makes them of what it gives, a rho and a data seed.
    """

    index: Callable[..., Indexed] = field(repr=False)
    classes: tuple[str, ...] = ()
    attribute: str = ""
    notes: tuple[str, ...] = ()
    divide: Callable[[Parts, Any, int], Parts] | None = field(default=None, repr=False)

    def open(self, root: Path | None, *words: str) -> Found:
        """The images of the copy that is here, by the set's own parts, and how much of the set they are."""
        with self.opened(root) as bundle:
            (bundle, parts), counts = self.index(bundle, *words)
        names = (name for files in parts.values() for name in files.names)
        return Found(bundle, parts, self.there(counts, names))

    def load(
        self,
        root: Path | None,
        rho: float | None,
        data_seed: int,
        noise: float = 0.0,
        size: int = 224,
        features: str | None = None,  # noqa: ARG002 (the bench trains on this encoder's features instead of images)
    ) -> Benchmark:
        """`size`: width and height in pixels."""
        if rho is not None:
            check_share("rho", rho)
        found = self.open(root)
        if self.divide:
            found = found._replace(parts=self.divide(found.parts, rho, data_seed))
        return self.benchmark(found, (size, size), noise, data_seed)

    def benchmark(
        self, found: Found, size: tuple[int, int], noise: float, data_seed: int, shape: str = "squash"
    ) -> Benchmark:
        """The benchmark of these images; where only a part of the set is here, a note says how much.

        A part without images of valid or test, as the first thousand of a list are, gets a tenth of train for each.
        """
        (bundle, files, there), notes = found, self.notes
        for part in ("valid", "test"):
            if there.part and not len(files[part].names):
                stream = numpy_stream(data_seed, self.name, part, "held out")
                held = draw_by_class(files["train"].target, HELD_OUT, stream)
                files = {**files, part: files["train"].chosen(held), "train": files["train"].chosen(~held)}
                notes = (*notes, f"this part has no images of {part}: a tenth of its training images stands in")
        parts = {
            part: Part(each.target, each.bias[:, None], Gallery(bundle, each.names, size, shape))
            for part, each in files.items()
        }
        about = self.name, parts, self.classes, (self.attribute,)
        return build_benchmark(*about, noise, data_seed, notes, there=there)


# --- Biased Action Recognition: six actions, each in one place in training and in other places in the test set

ACTIONS = ("climbing", "diving", "fishing", "racing", "throwing", "pole vaulting")
ACTION_NAME = re.compile(rf"(?:train|test)/({'|'.join(ACTIONS)})_(\d+)\.\w+")
VALID = 0.1  # of the training images, drawn by class
UNKNOWN, ELSEWHERE = -1, len(ACTIONS)  # a place that no class has in training; value k is the usual place of class k


def index_bar(bundle: Bundle) -> Indexed:
    """For train and test the images, by class and number, and how many each class has; a renamed one is refused."""
    bundle, parts = bundle.based_on("train", "test"), {}
    for part, place in (("train", UNKNOWN), ("test", ELSEWHERE)):
        matches = images_in(bundle, part, ACTION_NAME, "<class>_<number>.jpg")
        keys = sorted((ACTIONS.index(match[1]), int(match[2]), match.string) for match in matches)
        target = np.array([key[0] for key in keys])
        parts[part] = Listed([key[2] for key in keys], target, np.full(len(keys), place))
    return (bundle, parts), counted(*(np.bincount(each.target, minlength=len(ACTIONS)) for each in parts.values()))


def counted(train: Iterable[int], test: Iterable[int]) -> dict[str, int]:
    """The number of images of each class, in the order of `ACTIONS`, as `<part>/<class>`."""
    parts = {"train": train, "test": test}
    return {f"{part}/{each}": int(n) for part, all_n in parts.items() for each, n in zip(ACTIONS, all_n, strict=True)}


def divide_bar(parts: Parts, _rho: float | None, data_seed: int) -> Parts:
    """A tenth of the training images, drawn by class, validates. Every test image conflicts."""
    train = parts["train"]
    valid = draw_by_class(train.target, VALID, numpy_stream(data_seed, "bar", "valid"))
    return {"train": train.chosen(~valid), "valid": train.chosen(valid), "test": parts["test"]}


BAR = ImageSet(
    name="bar",
    title="Biased Action Recognition",
    contents="its train/ and test/",
    page="https://github.com/alinlab/BAR",
    index=index_bar,
    counts=counted((326, 520, 163, 336, 317, 279), (105, 159, 42, 132, 85, 131)),
    also=("BAR", "bar_240px", "BAR-master"),
    mirrors=(Web(("https://github.com/alinlab/BAR/archive/refs/heads/master.zip",)),),
    classes=ACTIONS,
    attribute="place",
    notes=("which training images go against the shortcut is not known; every test image does",),
    divide=divide_bar,
)
load_bar = BAR.load


# --- Biased FFHQ: faces whose age and gender go together in training, but for half a percent

FACE_NAME = re.compile(r"(?:.*/)?[^/]+_([01])_([01])\.\w+")  # <id>_<first>_<second>.png
TARGETS = ("first", "second")
ATTRIBUTES = ("age", "gender")  # what the two numbers are by the description of those who made the archive (D11)


def index_bffhq(bundle: Bundle, share: str = "0.5pct") -> Indexed:
    """The images of each part, with the first number of their names as class and the second as bias, checked."""
    bundle, parts = bundle.based_on("valid", "test"), {}
    shares = sorted({top for name in bundle.entries if (top := name.split("/")[0]).endswith("pct")})
    if share not in shares:
        raise FormatError(bundle.path, f"has no folder {share}; there: {', '.join(shares) or 'none'}")
    folders = {"train": (f"{share}/align", f"{share}/conflict"), "valid": ("valid",), "test": ("test",)}
    for part, each in folders.items():
        form = "<id>_<0 or 1>_<0 or 1>.png"
        matches = [match for name in each for match in images_in(bundle, name, FACE_NAME, form)]
        numbers = np.array([(int(match[1]), int(match[2])) for match in matches])
        parts[part] = Listed([match.string for match in matches], numbers[:, 0], numbers[:, 1])
    for name, first, second in zip(*parts["train"], strict=True):
        if (first == second) != name.startswith(f"{share}/align/"):
            raise FormatError(bundle.path, f"holds {name!r}, whose numbers do not fit its folder")
    return indexed(bundle, parts)


BFFHQ = ImageSet(
    name="bffhq",
    title="Biased FFHQ faces",
    contents="its 0.5pct/, valid/ and test/",
    page="the Google Drive folder linked from https://github.com/kakaoenterprise/Learning-Debiased-Disentangled",
    index=index_bffhq,
    counts={"train": 19_200, "valid": 1_000, "test": 1_000},
    also=("BFFHQ", "bFFHQ"),
    classes=("0", "1"),
)


def load_bffhq(
    root: Path | None,
    rho: float,
    data_seed: int,
    noise: float = 0.0,
    size: int = 224,
    target: str = "first",
    features: str | None = None,  # noqa: ARG001 (see `ImageSet.load`)
) -> Benchmark:
    """`rho` selects the folder (0.005 is 0.5pct).

    `target`: which number in the file name is the target, first or second; the other is the bias (D11). `size`: width
    and height in pixels.
    """
    if target not in TARGETS:
        raise known("target of bffhq", target, TARGETS)
    found = BFFHQ.open(root, f"{check_share('rho', rho) * 100:g}pct")
    learnt, other = ATTRIBUTES[:: 1 if target == "first" else -1]
    if target == "second":
        turned = {part: Listed(names, two, one) for part, (names, one, two) in found.parts.items()}
        found = found._replace(parts=turned)
    note = (
        f"the target is the {target} number of the file name ({learnt} by the archive's authors), the bias "
        f"the other ({other}); the paper calls gender the target (D11)"
    )
    return replace(BFFHQ, attribute=other, notes=(note,)).benchmark(found, (size, size), noise, data_seed)


# --- FairFace under BFFHQ's protocol

AGES = {"10-19": 0, "20-29": 0, "40-49": 1, "50-59": 1}  # BFFHQ's cuts: 10 to 29 and 40 to 59
OTHERS = ("0-2", "3-9", "30-39", "60-69", "more than 70")
GENDERS = {"Female": 0, "Male": 1}  # in training, the young are female and the old are male
TRAIN, EACH = 9_600, 250  # images of an age in train, and of an age and a gender in valid and in test
CELLS = [(age, gender) for age in (0, 1) for gender in (0, 1)]


def index_fairface(bundle: Bundle) -> Indexed:
    """The images of both lists, by the names these have there; those of other ages have the class -1."""
    parts = {}
    for part in ("train", "val"):
        columns = {"age": (*AGES, *OTHERS), "gender": tuple(GENDERS)}
        table, names = read_list(bundle, f"{part}_labels.csv", columns, "file")
        ages, genders = table["age"].map(AGES).fillna(-1), table["gender"].map(GENDERS)
        parts[part] = Listed(names, ages.to_numpy(np.int64), genders.to_numpy(np.int64))
    return indexed(bundle, parts)


def divide_fairface(listed: Parts, rho: float, data_seed: int) -> Parts:
    """BFFHQ's protocol: 9,600 images of an age to train on, rho of them against the shortcut; drawn by the seed.

    valid and test hold 250 images of each age and gender; test is drawn from FairFace's own validation list, the others
    from its training list. From a part of the set, all these numbers are less by one share.
    """
    against = round(rho * TRAIN)
    wanted = {
        "train": {(age, gender): TRAIN - against if age == gender else against for age, gender in CELLS},
        "valid": dict.fromkeys(CELLS, EACH),
        "test": dict.fromkeys(CELLS, EACH),
    }
    pools = {
        (source, cell): np.flatnonzero((files.target == cell[0]) & (files.bias == cell[1]))
        for source, files in listed.items()
        for cell in CELLS
    }
    taken = {"train": ("train", "valid"), "val": ("test",)}
    share = min(1, *(len(pool) / sum(wanted[part][cell] for part in taken[at]) for (at, cell), pool in pools.items()))
    rows: dict[str, list[Integers]] = {part: [] for part in wanted}
    for (source, cell), pool in pools.items():
        drawn = numpy_stream(data_seed, "fairface", source, *map(str, cell)).permutation(pool)
        for part in taken[source]:
            count = max(1, int(share * wanted[part][cell]))
            rows[part].append(drawn[:count])
            drawn = drawn[count:]
    return {
        part: listed[source].chosen(np.sort(np.concatenate(rows[part])))
        for source, parts in taken.items()
        for part in parts
    }


FAIRFACE = ImageSet(
    name="fairface",
    title="FairFace faces",
    contents="its train/, val/, train_labels.csv and val_labels.csv",
    page="https://github.com/joojs/fairface",
    index=index_fairface,
    counts={"train": 86_744, "val": 10_954},
    also=("FairFace",),
    classes=("young", "old"),
    attribute="gender",
    notes=("BFFHQ's protocol on the faces of FairFace: other images than BFFHQ's, not to be taken for it",),
    divide=divide_fairface,
)
load_fairface = FAIRFACE.load


# --- CelebA: hair colour as the target, gender as the shortcut, or any other two of its forty attributes

LISTED, PARTITION, FOLDER = "list_attr_celeba", "list_eval_partition", "img_align_celeba"
CROPS = ("square", "whole")
TALL = 218 / 178  # height over width of every image


def read_celeba(bundle: Bundle, stem: str, allowed: tuple[int, ...]) -> Any:
    """A list of CelebA as its authors wrote it (.txt) or as comma-separated values (.csv), by the names of images."""
    import pandas as pd  # slow to import, so only here

    path = bundle.find(f"{stem}.csv", f"{stem}.txt")
    if not path:
        raise FormatError(bundle.path, f"lacks {stem}.txt (or .csv)")
    form: dict[str, Any] = {"index_col": 0}
    if path.endswith(".txt"):  # a count and the columns above, or neither
        counted = bundle.read(path).partition(b"\n")[0].strip().isdigit()
        form = {"sep": r"\s+", "skiprows": 1} if counted else {"sep": r"\s+", "header": None}
    table = read_bundled_csv(bundle, path, "is not a list of numbers", **form)
    if "header" in form:
        table = table.set_index(0)
    check_values(bundle.path / path, table.apply(pd.to_numeric, errors="coerce"), allowed)
    return table


def index_celeba(bundle: Bundle, target: str = "Blond_Hair", bias: str = "Male") -> Indexed:
    """The images of each part, with two of the attributes as class and bias; both lists checked against each other."""
    table, partition = read_celeba(bundle, LISTED, (-1, 1)), read_celeba(bundle, PARTITION, (0, 1, 2))
    if not partition.index.equals(table.index):
        both = f"{len(partition):,} images in {PARTITION} than in {LISTED}, which has {len(table):,}"
        raise FormatError(bundle.path, f"lists other {both}")
    images = (name for name in bundle.entries if f"/{name}".rpartition("/")[0].endswith(f"/{FOLDER}"))
    start = next(images, f"{FOLDER}/").rpartition("/")[0]
    table, paths = present(bundle, table, [f"{start}/{name}" for name in table.index])
    for name in (target, bias):
        if name not in table.columns:
            raise Misuse(f"{LISTED} has no attribute '{name}'; it has {', '.join(map(str, table.columns))}")
    y, other = ((table[name].to_numpy() > 0).astype(np.int64) for name in (target, bias))
    split = partition.loc[table.index].iloc[:, 0].to_numpy(np.int64)
    return indexed(bundle, by_part(Listed(paths, y, other), split))


CELEBA = ImageSet(
    name="celeba",
    title="CelebA aligned and cropped faces",
    contents=f"{FOLDER}/ (or {FOLDER}.zip), {LISTED}.txt and {PARTITION}.txt",
    page="https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html",
    index=index_celeba,
    counts={"train": 162_770, "valid": 19_867, "test": 19_962},
    also=("CelebA", "celebA"),
    limit=1 << 36,
)


def load_celeba(
    root: Path | None,
    rho: float | None,  # noqa: ARG001 (the share of conflicting samples is what it is)
    data_seed: int,
    noise: float = 0.0,
    target: str = "Blond_Hair",
    bias: str = "Male",
    size: int = 224,
    crop: str = "square",
    features: str | None = None,  # noqa: ARG001 (see `ImageSet.load`)
) -> Benchmark:
    """The official split.

    `target`, `bias`: two of the forty attributes. `crop`: `square` is the middle 178 of 218 lines (as in the setting
    with ResNet-50), `whole` the whole image, `size` pixels wide (as in the setting with ResNet-18).
    """
    if crop not in CROPS:
        raise known("crop", crop, CROPS)
    if target == bias:
        raise Misuse(f"target and bias are both {target}; name two attributes")
    found = CELEBA.open(root, target, bias)
    # A sample is aligned where target and bias agree: the bias counts as 1 where it goes with the target in training.
    _, one, two = found.parts["train"]
    against = bool(len(one) * (one * two).sum() < one.sum() * two.sum())
    turned = {part: each._replace(bias=each.bias ^ against) for part, each in found.parts.items()}
    shape, fit = ((size, size), "crop") if crop == "square" else ((int(size * TALL), size), "squash")
    made = replace(CELEBA, classes=(f"not {target}", target), attribute=f"not {bias}" if against else bias)
    return made.benchmark(found._replace(parts=turned), shape, noise, data_seed, fit)


# --- Waterbirds: birds cut out of photographs and put before land or water, which goes with the bird in training

BIRD_LIST = "metadata.csv"
BIRD_COLUMNS = {"y": (0, 1), "split": (0, 1, 2), "place": (0, 1)}  # of places, 0 is land, 1 is water


def index_waterbirds(bundle: Bundle) -> Indexed:
    """The images of each part, by the list of the set."""
    table, names = read_list(bundle, BIRD_LIST, BIRD_COLUMNS, "img_filename")
    bird, split, place = (table[name].to_numpy(np.int64) for name in BIRD_COLUMNS)
    return indexed(bundle, by_part(Listed(names, bird, place), split))


WATERBIRDS = ImageSet(
    name="waterbirds",
    title="Waterbirds",
    contents=f"{BIRD_LIST} and the folders of its 200 species",
    page="https://wilds.stanford.edu/get_started/",
    index=index_waterbirds,
    counts={"train": 4_795, "valid": 1_199, "test": 5_794},
    also=("waterbirds_v1.0", "waterbird_complete95_forest2water2"),
    classes=("landbird", "waterbird"),
    attribute="place",
)
load_waterbirds = WATERBIRDS.load


SETS = {each.name: each for each in (BAR, BFFHQ, CELEBA, WATERBIRDS, FAIRFACE)}
