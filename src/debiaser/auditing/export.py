"""A model that leaves the house: weights, how to feed it, and a card with the evidence; and what it answers later."""

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import safetensors
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from debiaser import __version__
from debiaser.auditing.candidates import BIASED_MODEL, CONTROLS, Evaluation
from debiaser.auditing.crossval import probabilities, read_model
from debiaser.auditing.groups import group_cells, group_names
from debiaser.auditing.inputs import LINEAR, as_float, new_network
from debiaser.auditing.verdict import Examined
from debiaser.data.images import RESIZED, DecodeError, Embedded, Files, Images
from debiaser.data.own.checks import labelled, readable
from debiaser.data.own.reading import READERS, Columns, find_input, find_rows, is_image
from debiaser.data.own.rows import first
from debiaser.errors import Problem, brief
from debiaser.io import UNREADABLE, folder_name, guarded, private, write_json, write_text
from debiaser.learn.checkpoint import read_tensors, write_tensors
from debiaser.learn.encoders import find_encoder
from debiaser.learn.streams import KeyedScorer, column, made_by, parts_in, score_keyed
from debiaser.progress import task, track
from debiaser.report.tables import markdown_table, spread, with_interval

FORMAT = 1
LARGEST = 4096  # pixels of a side
MISCLASSIFIED = "samples that the biased model misclassifies"


def export_models(folder: Path, examined: Examined, evaluation: Evaluation, repair: dict[str, Any]) -> Path:
    """Every candidate below `models`, and the exported one as `model`; each model.safetensors, config.json, README.md.

    evaluation.json beside them holds what the exported one answered to every held-out sample: probabilities by id.
    """
    shutil.rmtree(folder / "models", ignore_errors=True)  # those of an earlier run may be of other marks
    for name in evaluation.candidates:
        if name not in CONTROLS:
            export_model(folder / "models" / folder_name(name), name, examined, evaluation, repair)
    chosen = repair["exported"]
    export_model(folder / "model", chosen, examined, evaluation, repair)
    ids = [examined.subject.own.ids[row] for row in evaluation.rows]
    answers = dict(zip(ids, evaluation.candidates[chosen].probability.round(8).tolist(), strict=True))
    write_json(folder / "evaluation.json", answers)
    return folder / "model"


def export_model(folder: Path, name: str, examined: Examined, evaluation: Evaluation, repair: dict[str, Any]) -> None:
    """One candidate, of the first seed: model.safetensors, config.json, README.md."""
    subject, material = examined.subject, examined.trainer.material
    model = read_model(material, examined.trainer.folder / evaluation.candidates[name].keys[0][0])
    state = dict(model.state_dict())
    config = {
        "format": FORMAT,
        "debiaser": __version__,
        "method": name,
        "architecture": "linear" if LINEAR.issuperset(state) else material.architecture,
        "inputs": list(material.input_shape),
        "classes": list(material.classes),
        "kind": subject.own.kind,
        "preprocessing": {
            "size": subject.size,
            "resize": RESIZED,
            "encoder": subject.encoder.name if subject.encoder else None,
            "encoder_identity": subject.encoder.identity if subject.encoder else None,
        },
        "data": subject.own.identity,
    }
    write_json(folder / "config.json", config)
    write_tensors(folder / "model.safetensors", state, config=digest_of(folder / "config.json"))
    write_text(folder / "README.md", card(config, examined, evaluation, repair))


def digest_of(path: Path) -> str:
    """A digest of a file's bytes."""
    return hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()


def card(config: dict[str, Any], examined: Examined, evaluation: Evaluation, repair: dict[str, Any]) -> str:
    """The model card: what it is, how it was chosen, what was measured, what it is not."""
    right, hard = evaluation.right(config["method"])[0], evaluation.misclassified
    choices, chosen_from = examined.subject.choices, repair["selection"]["candidates"]
    flags = {each["name"]: each["uses_groups"] for each in chosen_from if each["uses_groups"]}
    titles = {BIASED_MODEL: "biased model"} | {name: f"{name} ({flag})" for name, flag in flags.items()}
    table = [
        (
            titles.get(name, name),
            spread(told["overall"]["mean"], told["overall"]["sd"]),
            with_interval(told["minus_vanilla"] or {}) or "–",
            spread(told["easy_misses"]["mean"], told["easy_misses"]["sd"]),
        )
        for part in ("before", "controls", "after")
        for name, told in repair[part].items()
    ]
    mine = f"{100 * float(right.mean()):.2f}% right"
    if hard.any():
        mine += f"; {100 * float(right[hard].mean()):.2f}% on the {int(hard.sum()):,} {MISCLASSIFIED}"
    lines = [
        f"# A classifier of {len(config['classes'])} classes, trained with {config['method']}",
        "",
        f"Classes: {', '.join(escaped(name) for name in config['classes'])}.",
        f"Input: {'images, ' + choices['pictures'] if config['kind'] == 'image' else 'texts'}.",
        f"Network: {'; '.join(text for name, text in choices.items() if name in ('network', 'features'))}.",
        "",
        "## Evidence",
        "",
        repair["sentence"],
        *(f"This model {flag}." for name, flag in flags.items() if name == config["method"]),
        escaped(repair["export"]["sentence"]),
        "",
        f"This model (seed 0) on the {len(evaluation.rows):,} held-out samples: {mine}.",
        "",
        markdown_table(("trained with", "all held-out samples", "minus vanilla", MISCLASSIFIED), table),
        "",
        *group_lines(examined, evaluation, right),
        f"Mean and standard deviation over {evaluation.seeds} seeds, differences with 95% intervals; every model but "
        f"the biased one saw {evaluation.samples_seen:,} samples out of training and validation.",
        *(escaped(repair[part]["sentence"]) for part in ("selection", "price") if repair.get(part)),
        "The held-out samples decided only whether to export vanilla instead.",
        "",
        "## What the audit of the training data said",
        "",
        f"Verdict: {examined.verdict}.",
        *(f"- {escaped(reason)}" for reason in examined.reasons),
        "",
        "## Use",
        "",
        "    debiaser predict FOLDER_OF_THIS_FILE INPUT",
        "",
    ]
    return "\n".join(lines)


def group_lines(examined: Examined, evaluation: Evaluation, right: NDArray[np.bool_]) -> list[str]:
    """A table of what the model has right (m,) in every class and group of the held-out samples, where it is known."""
    own = examined.subject.own
    if own.group is None:
        return []
    cells = group_cells(group_names(own.group)[evaluation.rows], evaluation.labels, own.classes)
    table = [
        (
            *(escaped(each).replace("\\|", "|") for each in names),  # the table takes care of its own bars
            f"{len(rows):,}",
            f"{100 * right[rows].mean():.1f}" if len(rows) else "–",
        )
        for names, rows in cells.items()
    ]
    return [markdown_table(("class", "group", "held-out samples", "right by this model, %"), table), ""]


def escaped(text: str) -> str:
    """Data in a Markdown file: one line, nothing that a reader would take for markup."""
    plain = " ".join(text.split())
    return "".join(f"\\{c}" if c in "\\`*_{}[]<>#|" else c for c in plain)


@dataclass(frozen=True, eq=False)
class Exported:
    """A model read back: what it takes and what it answers."""

    model: nn.Module
    classes: tuple[str, ...]
    kind: str
    size: int
    enter: Callable[[Any], Tensor]

    def read(
        self, ids: list[str], given: list[Any], embedded: Callable[[int], bytes | None] | None = None
    ) -> tuple[Any, dict[str, str]]:
        """Texts as they are, or images (b, 3, size, size) of files; and, by id, why some cannot be read.

        embedded: gives the bytes of images that lie inside a table, by their place there.
        """
        if self.kind == "text":
            return given, {}
        contents = Files(given) if embedded is None else Embedded(embedded, np.array(given, np.int64))
        images = Images(ids, contents, np.zeros((len(ids), 2), np.int32))
        return images.read(torch.arange(len(ids)), self.size), images.failed

    def probability(self, inputs: Any) -> NDArray[np.float64]:
        """(b, k) for what `read` gives."""
        return probabilities(self.model, self.enter(inputs))


def read_exported(folder: Path) -> Exported:
    """The exported model of a folder."""
    try:
        return _exported(folder)
    except Problem:
        raise
    except (*UNREADABLE, AttributeError, IndexError, RecursionError, safetensors.SafetensorError) as error:
        raise Problem(
            f"{folder} holds no exported model that can be read ({brief(error)}); `debiaser debias` makes one"
        ) from error


def _exported(folder: Path) -> Exported:
    config = json.loads((folder / "config.json").read_text())
    state, plain = read_tensors(folder / "model.safetensors")
    digest = digest_of(folder / "config.json")
    if plain.get("config", digest) != digest:
        raise Problem(
            f"{folder / 'config.json'} is damaged or was changed: it is not the one that was exported with the "
            "weights; export the model again"
        )
    how, size = config["preprocessing"], config["preprocessing"]["size"]
    if config["format"] != FORMAT or (config["kind"] == "image" and how["resize"] != RESIZED):
        raise Problem(f"{folder} was exported by another version of debiaser; export the model again")
    if not (isinstance(size, int) and 0 <= size <= LARGEST):
        raise ValueError(size)
    encoder = find_encoder(config["kind"], how["encoder"]) if how["encoder"] else None
    if encoder is not None and encoder.identity != how["encoder_identity"]:
        raise Problem(
            f"the encoder {encoder.name} here has other weights than the one this model was trained on; its answers "
            "would mean nothing: get the same one"
        )
    whole = config["architecture"] == "finetuned"
    shape, classes = tuple(config["inputs"]), tuple(map(str, config["classes"]))
    model = new_network(config["architecture"], shape, len(classes), 0, encoder if whole else None)
    model.load_state_dict(state)
    enter = as_float if encoder is None else encoder.enter if whole else encoder.encode
    return Exported(model.eval(), classes, str(config["kind"]), size, enter)


# --- `debiaser predict`: labels for files, a folder, or a table, from an exported model

BATCH = 256
TABLES = READERS.keys() - {".txt"}  # a text file is a text


def predict_inputs(
    model_dir: Path, inputs: Sequence[str], image: str | None, text: str | None
) -> tuple[list[dict[str, Any]], list[tuple[str, str]]]:
    """For each input in order its name, label and probabilities; and the inputs that could not be read, with why."""
    exported = read_exported(model_dir)
    column = text if exported.kind == "text" else image
    found = [pair for given in inputs for pair in find_inputs(given, exported.kind, column)]
    if not found:
        many = "texts" if exported.kind == "text" else "images"
        raise Problem(f"there are no {many} in {', '.join(inputs)}; give files, a folder or a CSV")
    left_out = {name: "has no text" for name, content in found if exported.kind == "text" and not content.strip()}
    found = [pair for pair in found if pair[0] not in left_out]
    predicted = list[dict[str, Any]]()
    with task("predictions", len(found)) as advance:
        for start in range(0, len(found), BATCH):
            names, given = (list(each) for each in zip(*found[start : start + BATCH], strict=True))
            read, failed = exported.read(names, given)
            left_out |= failed
            predicted += [
                {
                    "input": name,
                    "label": exported.classes[int(each.argmax())],
                    "probabilities": dict(zip(exported.classes, each.tolist(), strict=True)),
                }
                for name, each in zip(names, exported.probability(read), strict=True)
                if name not in failed
            ]
            advance(len(names))
    return predicted, list(left_out.items())


def find_inputs(given: str, kind: str, column: str | None) -> Iterator[tuple[str, str]]:
    """A name and the text, or the file and the file again, of each sample behind one input."""
    path = Path(given)
    if path.suffix.lower() in TABLES:
        table = READERS[path.suffix.lower()](path)
        for number, value in enumerate(find_input(table, kind, column), 1):
            file = value if Path(value).is_absolute() else str(path.parent / value)
            yield (f"{given}:{number}", value) if kind == "text" else (file, file)
    elif path.is_dir() and kind == "image":
        yield from ((str(each), str(each)) for each in sorted(path.rglob("*")) if is_image(each.name))
    elif not path.exists() or path.is_dir():
        raise Problem(f"no file {given}; check the path, or give a CSV with a column of {kind}s")
    else:
        yield given, path.read_text(encoding="utf-8", errors="replace") if kind == "text" else given


# --- `debiaser score`: the gradient norms of labelled samples under an exported model, by id

PART = 1024  # samples that are read at once, and of a file


cached_model = lru_cache(1)(read_exported)  # read once in a process


@dataclass(frozen=True)
class SampleReader:
    """Reads samples of a table of id, label and input for an exported model; those that cannot be read are left out.

    It is sent to workers, so it holds no model. embedded: as of `Exported.read`.
    """

    folder: Path
    embedded: Callable[[int], bytes | None] | None = None

    def model(self) -> nn.Module:
        """The network that is scored: all of it, or the head on an encoder's features."""
        return cached_model(self.folder).model

    def __call__(self, columns: Any) -> tuple[Tensor, Tensor, NDArray[Any]]:
        """What enters the network, labels and ids."""
        inputs, failed = self.read(columns)
        good = np.array([name not in failed for name in columns["id"]], bool)
        if not good.all():
            inputs = inputs[torch.from_numpy(good)]
        entered = cached_model(self.folder).enter(inputs) if good.any() else torch.zeros(0)
        return entered, torch.from_numpy(columns["label"][good]), columns["id"][good]

    def read(self, columns: Any) -> tuple[Any, dict[str, str]]:
        """As `Exported.read`."""
        return cached_model(self.folder).read(columns["id"].tolist(), columns["input"].tolist(), self.embedded)


@dataclass(frozen=True, eq=False)
class ScoringInput:
    """Samples to score by an exported model, as parts of a table; `excluded` tells why some are not among them."""

    reader: SampleReader
    parts: list[pd.DataFrame]
    excluded: list[tuple[str, str]]

    def score_here(self, folder: Path) -> int:
        """Score in this process, into a folder; how many samples have a score."""
        model = self.reader.model()

        def score() -> int:
            scorer = KeyedScorer(model, folder, "id", self.reader, BATCH)
            tables = ({name: part[name].to_numpy() for name in part} for part in track(self.parts, "scores"))
            return sum(map(scorer.score, tables))

        return score_keyed(folder, "id", made_by(model, {}), score)

    def write_scores(self, folder: Path) -> tuple[Path, list[tuple[str, str]]]:
        """Write scores.csv in the order of the data; and what was left out, with why."""
        scored = pd.Series(column(parts_in(folder), "score"), column(parts_in(folder), "id"))
        left_out = list(self.excluded)
        for part in self.parts:  # workers or an earlier process read them: once more, for the reasons
            left_out += self.reader.read(part[~part["id"].isin(scored.index)])[1].items()
        table = pd.concat([part[part["id"].isin(scored.index)] for part in self.parts])
        table["label"] = np.array(cached_model(self.reader.folder).classes, object)[table["label"]]
        table["score"] = scored[table["id"]].to_numpy()
        with private():
            lines = table[["id", "label", "score"]].map(guarded).to_csv(index=False, float_format="%.9g")
            write_text(folder / "scores.csv", lines)
        return folder / "scores.csv", left_out


def find_samples_to_score(model_dir: Path, source: str, columns: Columns) -> ScoringInput:
    """The labelled samples of a source, if they are such as the exported model knows."""
    exported, rows = cached_model(model_dir.resolve()), labelled(find_rows(source, columns))
    kind = "text" if rows.images is None else "image"
    if kind != exported.kind:
        raise Problem(
            f"{model_dir} takes {exported.kind}s, {source} has {kind}s; name another model or --{exported.kind}"
        )
    if unknown := sorted(set(rows.classes) - set(exported.classes)):
        known = first(exported.classes, 9)
        raise Problem(f"{source} has labels that {model_dir} does not know: {first(unknown)}; it knows: {known}")
    rows = readable(rows, None) if rows.images is None else rows
    given: Any = rows.texts
    if isinstance(rows.images, Files):
        given = [str(Path(path).absolute()) for path in rows.images.paths]  # a worker may stand elsewhere
    elif rows.images is not None:
        given = rows.images.rows
    label = np.array([exported.classes.index(name) for name in rows.classes], np.int64)[rows.y]
    stamps = "" if rows.images is None else [stamp(rows.images, row) for row in range(len(rows))]
    table = pd.DataFrame({"id": rows.ids, "label": label, "input": given, "stamp": stamps})
    reader = SampleReader(model_dir.resolve(), rows.images.get if isinstance(rows.images, Embedded) else None)
    return ScoringInput(
        reader,
        [table[start : start + PART] for start in range(0, len(table), PART)],
        [(each.id, each.reason) for each in rows.excluded],
    )


def stamp(images: Any, row: int) -> str:
    """What changes when an image does; nothing where there is none."""
    try:
        return str(images.stamp(row))
    except DecodeError:
        return ""
