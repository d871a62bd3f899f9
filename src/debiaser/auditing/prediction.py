"""`debiaser predict`: labels for files, a folder, or a table, from an exported model."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from debiaser.auditing.export import Exported, predictions, read_exported
from debiaser.data.columns import find_input
from debiaser.data.folders import is_picture
from debiaser.data.own import READERS
from debiaser.data.pictures import Files, Pictures
from debiaser.errors import Problem
from debiaser.learn.engine import Listener

BATCH = 256
TABLES = READERS.keys() - {".txt"}  # a text file is a text
Answered = list[dict[str, Any]]
Unreadable = list[tuple[str, str]]


def predict_inputs(
    model_dir: Path, inputs: Sequence[str], image: str | None, text: str | None, listener: Listener
) -> tuple[Answered, Unreadable]:
    """The prediction for each input in order, and the inputs that could not be read, with the reason."""
    exported = read_exported(model_dir)
    column = image if exported.kind == "image" else text
    if exported.kind == "text":
        return predict_texts(exported, list(texts_of(inputs, column)), listener)
    paths = [path for given in inputs for path in picture_paths(given, column)]
    if not paths:
        raise Problem(f"no pictures in {', '.join(inputs)}; give files, a folder of pictures or a CSV of paths")
    return predict_pictures(exported, paths, listener)


def picture_paths(given: str, column: str | None) -> Iterator[str]:
    """The files behind one input."""
    path = Path(given)
    if path.is_dir():
        yield from (str(each) for each in sorted(path.rglob("*")) if is_picture(each.name))
    elif path.suffix.lower() in TABLES:
        cells = find_input(READERS[path.suffix.lower()](path), "image", column)
        yield from (value if Path(value).is_absolute() else str(path.parent / value) for value in cells)
    elif path.exists():
        yield given
    else:
        raise Problem(f"no file or folder {given}; check the path")


def texts_of(inputs: Sequence[str], column: str | None) -> Iterator[tuple[str, str]]:
    """A name and the text of each row of the tables, or of each plain text file."""
    for given in inputs:
        path = Path(given)
        if path.suffix.lower() in TABLES:
            table = READERS[path.suffix.lower()](path)
            cells = find_input(table, "text", column)
            yield from ((f"{given}:{number}", value) for number, value in zip(table.numbers, cells, strict=True))
        elif path.is_file():
            yield given, path.read_text(encoding="utf-8", errors="replace")
        else:
            raise Problem(f"no file {given}; give a CSV with a column of texts, or text files")


def predict_pictures(exported: Exported, paths: list[str], listener: Listener) -> tuple[Answered, Unreadable]:
    """Predictions for picture files; those that cannot be decoded are left out and told."""
    pictures = Pictures(paths, Files(paths), np.zeros((len(paths), 2), np.int64), "")
    listener.begin("predictions", len(paths), 0)
    parts = []
    for rows, read in pictures.stream(torch.arange(len(paths)), exported.size, BATCH):
        parts.append(exported.probability(read))
        for _ in rows:
            listener.step()
    listener.end("predictions", None)
    good = [row for row, path in enumerate(paths) if path not in pictures.failed]
    probability = np.concatenate(parts)[good]
    answered = predictions(exported, [paths[row] for row in good], probability)
    return answered, list(pictures.failed.items())


def predict_texts(exported: Exported, named: list[tuple[str, str]], listener: Listener) -> tuple[Answered, Unreadable]:
    """Predictions for texts; empty ones are left out and told."""
    empty = [(name, "has no text") for name, text in named if not text.strip()]
    named = [(name, text) for name, text in named if text.strip()]
    if not named:
        raise Problem("there are no texts to predict; give texts, or a CSV with their column as --text")
    listener.begin("predictions", len(named), 0)
    parts = []
    for start in range(0, len(named), BATCH):
        parts.append(exported.probability([text for _, text in named[start : start + BATCH]]))
        for _ in named[start : start + BATCH]:
            listener.step()
    listener.end("predictions", None)
    return predictions(exported, [name for name, _ in named], np.concatenate(parts)), empty
