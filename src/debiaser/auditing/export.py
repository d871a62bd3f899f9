"""A model that leaves the house: weights, how to feed it, and a card with the evidence; and what it answers later."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from debiaser import __version__
from debiaser.auditing.candidates import VANILLA, Evaluation
from debiaser.auditing.examine import Examined
from debiaser.auditing.inputs import Subject, as_float, new_finetuned, new_network
from debiaser.auditing.jobs import probabilities, read_model
from debiaser.data.images import Files, Pictures
from debiaser.data.own import READERS
from debiaser.data.own.folder import is_image
from debiaser.data.own.table import find_input
from debiaser.errors import Problem
from debiaser.io import write_json, write_text
from debiaser.learn.checkpoint import read_tensors, write_tensors
from debiaser.learn.encoders import find_encoder
from debiaser.progress import task, track
from debiaser.report.tables import markdown_table, spread, with_interval

FORMAT = 1
LARGEST = 4096  # pixels of a side
NETWORK = ("network", "features")
PARTS = ("before", "controls", "after")


def export_model(
    folder: Path, subject: Subject, examined: Examined, evaluation: Evaluation, repair: dict[str, Any]
) -> None:
    """The debiased model, or the control where debiasing did not help: model.safetensors, config.json, README.md."""
    name = repair["chosen"] if repair["helped"] else VANILLA
    material, candidate = examined.trainer.material, evaluation.candidates[name]
    model = read_model(material, examined.trainer.folder / candidate.keys[0])
    write_tensors(folder / "model.safetensors", dict(model.state_dict()))
    config = {
        "format": FORMAT,
        "debiaser": __version__,
        "method": name,
        "architecture": material.architecture,
        "inputs": list(material.input_shape),
        "classes": list(material.classes),
        "kind": subject.own.kind,
        "preprocessing": {
            "size": subject.size,
            "resize": "letterbox",
            "encoder": subject.encoder.name if subject.encoder else None,
            "encoder_identity": subject.encoder.identity if subject.encoder else None,
        },
        "data": subject.own.identity,
    }
    write_json(folder / "config.json", config)
    write_text(folder / "README.md", card(config, examined, evaluation, repair))


def write_evaluation(path: Path, subject: Subject, evaluation: Evaluation, repair: dict[str, Any]) -> None:
    """What the exported model answered to every held-out row: the probabilities by id."""
    candidate = evaluation.candidates[repair["chosen"] if repair["helped"] else VANILLA]
    ids = [subject.own.ids[row] for row in evaluation.rows]
    write_json(path, dict(zip(ids, candidate.probability.round(8).tolist(), strict=True)))


def card(config: dict[str, Any], examined: Examined, evaluation: Evaluation, repair: dict[str, Any]) -> str:
    """The model card: what it is, how it was chosen, what was measured, what it is not."""
    candidate = evaluation.candidates[config["method"]]
    mine = 100 * float((candidate.answers[0] == evaluation.labels).mean())
    misclassified = (
        100 * float((candidate.answers[0] == evaluation.labels)[evaluation.misclassified].mean())
        if evaluation.misclassified.any()
        else None
    )
    lines = [
        f"# A classifier of {len(config['classes'])} classes, trained with {config['method']}",
        "",
        f"Classes: {', '.join(escaped(name) for name in config['classes'])}.",
        f"Input: {'pictures, ' + examined.subject.choices['pictures'] if config['kind'] == 'image' else 'texts'}.",
        f"Network: {'; '.join(text for name, text in examined.subject.choices.items() if name in NETWORK)}.",
        "",
        "## Evidence",
        "",
        repair["sentence"],
        "",
        f"This very model (seed 0) on the {len(evaluation.rows):,} held-out rows: {mine:.2f}% right"
        + (
            f"; {misclassified:.2f}% on the {int(evaluation.misclassified.sum()):,} rows the easy model misses."
            if misclassified is not None
            else "."
        ),
        "",
        markdown_table(
            ("trained with", "all held-out rows", "minus vanilla", "rows the easy model misses"),
            [card_row(name, told) for part in PARTS for name, told in repair[part].items()],
        ),
        "",
        f"Mean and standard deviation over {evaluation.seeds} seeds, differences with 95% intervals; every model but "
        f"the easy one saw {evaluation.samples_seen:,} samples of the training and validation rows.",
        *(escaped(repair[part]["sentence"]) for part in ("selection", "price") if repair.get(part)),
        "Nothing was chosen on the held-out rows but whether to export vanilla instead.",
        "",
        "## What the audit of the training data said",
        "",
        f"Verdict: {examined.verdict}.",
        *(f"- {escaped(reason)}" for reason in examined.reasons),
        "",
        "## Use",
        "",
        "    debiaser predict FOLDER_OF_THIS_FILE picture.jpg",
        "",
    ]
    return "\n".join(lines)


def escaped(text: str) -> str:
    """Data in a Markdown file: one line, nothing that a reader would take for markup."""
    plain = " ".join(text.split())
    return "".join(f"\\{c}" if c in "\\`*_{}[]<>#|" else c for c in plain)


def card_row(name: str, told: dict[str, Any]) -> list[str]:
    """One line of the card's table."""
    overall, misclassified = (spread(told[rows]["mean"], told[rows]["sd"]) for rows in ("overall", "easy_misses"))
    return [name, overall, with_interval(told["minus_vanilla"] or {}) or "–", misclassified]


@dataclass(frozen=True, eq=False)
class Exported:
    """A model read back: what it takes and what it answers."""

    model: nn.Module
    classes: tuple[str, ...]
    kind: str
    size: int
    enter: Callable[[Any], Tensor]

    def probability(self, inputs: Any) -> NDArray[np.float64]:
        """(b, k) for pictures (b, 3, size, size) uint8, or b texts."""
        return probabilities(self.model, self.enter(inputs))


def read_exported(folder: Path, device: str = "cpu") -> Exported:
    """The exported model of a folder."""
    try:
        config = json.loads((folder / "config.json").read_text())
        state = read_tensors(folder / "model.safetensors").tensors
    except (OSError, ValueError, RecursionError, safetensors.SafetensorError) as error:
        raise Problem(
            f"{folder} holds no exported model that can be read ({error}); `debiaser debias` makes one"
        ) from error
    if not isinstance(config, dict) or config.get("format") != FORMAT:
        raise Problem(f"{folder} was exported by another version of debiaser; export the model again")
    try:
        return _exported(folder, config, state, device)
    except Problem:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError, MemoryError) as error:
        raise Problem(f"the config.json in {folder} is not whole; export the model again") from error


def _exported(folder: Path, config: dict[str, Any], state: dict[str, Tensor], device: str) -> Exported:
    """The model that a config describes, with these weights."""
    how, size = config["preprocessing"], config["preprocessing"]["size"]
    if not (isinstance(size, int) and 0 <= size <= LARGEST):
        raise ValueError(size)
    encoder = find_encoder(config["kind"], how["encoder"], device) if how["encoder"] else None
    if encoder is not None and encoder.identity != how["encoder_identity"]:
        raise Problem(
            f"the encoder {encoder.name} here has other weights than the one this model was trained on; its answers "
            "would mean nothing: get the same one"
        )
    whole = config["architecture"] == "finetuned"
    if whole and encoder is not None:
        model = new_finetuned(encoder, len(config["classes"]), 0)
    else:
        model = new_network(config["architecture"], tuple(config["inputs"]), len(config["classes"]), 0)
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        raise Problem(f"the weights in {folder} do not fit its config.json; export the model again") from error
    enter = as_float if encoder is None else encoder.enter if whole else encoder.encode
    return Exported(model.eval(), tuple(map(str, config["classes"])), str(config["kind"]), size, enter)


def predictions(exported: Exported, names: Sequence[str], probability: NDArray[np.float64]) -> list[dict[str, Any]]:
    """Per input: its name, the label and the probability of every class."""
    return [
        {
            "input": name,
            "label": exported.classes[int(each.argmax())],
            "probabilities": dict(zip(exported.classes, each.tolist(), strict=True)),
        }
        for name, each in zip(names, probability, strict=True)
    ]


# --- `debiaser predict`: labels for files, a folder, or a table, from an exported model

BATCH = 256
TABLES = READERS.keys() - {".txt"}  # a text file is a text
Answered = list[dict[str, Any]]
Unreadable = list[tuple[str, str]]


def predict_inputs(
    model_dir: Path, inputs: Sequence[str], image: str | None, text: str | None
) -> tuple[Answered, Unreadable]:
    """The prediction for each input in order, and the inputs that could not be read, with the reason."""
    exported = read_exported(model_dir)
    column = image if exported.kind == "image" else text
    if exported.kind == "text":
        return predict_texts(exported, list(texts_of(inputs, column)))
    paths = [path for given in inputs for path in picture_paths(given, column)]
    if not paths:
        raise Problem(f"no pictures in {', '.join(inputs)}; give files, a folder of pictures or a CSV of paths")
    return predict_pictures(exported, paths)


def picture_paths(given: str, column: str | None) -> Iterator[str]:
    """The files behind one input."""
    path = Path(given)
    if path.is_dir():
        yield from (str(each) for each in sorted(path.rglob("*")) if is_image(each.name))
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


def predict_pictures(exported: Exported, paths: list[str]) -> tuple[Answered, Unreadable]:
    """Predictions for picture files; those that cannot be decoded are left out and told."""
    pictures = Pictures(paths, Files(paths), np.zeros((len(paths), 2), np.int64), "")
    parts = []
    with task("predictions", len(paths)) as advance:
        for rows, read in pictures.stream(torch.arange(len(paths)), exported.size, BATCH):
            parts.append(exported.probability(read))
            advance(len(rows))
    good = [row for row, path in enumerate(paths) if path not in pictures.failed]
    probability = np.concatenate(parts)[good]
    answered = predictions(exported, [paths[row] for row in good], probability)
    return answered, list(pictures.failed.items())


def predict_texts(exported: Exported, named: list[tuple[str, str]]) -> tuple[Answered, Unreadable]:
    """Predictions for texts; empty ones are left out and told."""
    empty = [(name, "has no text") for name, text in named if not text.strip()]
    named = [(name, text) for name, text in named if text.strip()]
    if not named:
        raise Problem("there are no texts to predict; give texts, or a CSV with their column as --text")
    parts = [
        exported.probability([text for _, text in named[start : start + BATCH]])
        for start in track(range(0, len(named), BATCH), "predictions")
    ]
    return predictions(exported, [name for name, _ in named], np.concatenate(parts)), empty
