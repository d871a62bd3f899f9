"""The folder of an audit: scores.csv, weights.csv, audit.json, what the page draws, and the page itself."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from debiaser.auditing.candidates import VANILLA, Evaluation
from debiaser.auditing.examine import Examined
from debiaser.auditing.findings import (
    Chosen,
    Findings,
    input_gradients,
    word_weights,
    write_findings,
    write_rows,
    write_weights,
)
from debiaser.auditing.inputs import texts_of
from debiaser.auditing.jobs import read_model
from debiaser.auditing.swap_test import SwapTest
from debiaser.auditing.views import VIEWS
from debiaser.io import make_folder, write_arrays, write_text
from debiaser.report.audit_page import write_audit_page

SIDE = 160  # pixels of a picture on the page, at most
AROUND = 180  # characters of a text that show a swap
STRIPS = 4  # swaps that are shown of each view


def keep(
    examined: Examined,
    chosen: Chosen,
    findings: Findings,
    folder: Path,
    redact: frozenset[str],
    evaluation: Evaluation | None,
) -> None:
    """Write everything; the page last. Files and folders that we make are for their owner, a folder of theirs stays."""
    make_folder(folder)
    findings.summary["page"] = str(folder / "report.html")
    findings.summary["scores"] = str(folder / "scores.csv")
    write_rows(folder / "scores.csv", findings.rows, findings.summary["unreadable"])
    write_weights(folder / "weights.csv", findings.rows["id"], examined.weight()[examined.pool])
    if examined.subject.own.kind == "image":
        keep_pictures(examined, chosen, folder, evaluation)
    else:
        keep_texts(examined, chosen, folder, evaluation)
    write_findings(findings, folder)
    write_audit_page(folder, redact)


def show(examined: Examined, rows: NDArray[np.int64]) -> NDArray[np.uint8]:
    """(b, s, s, 3) what the model saw of these rows, no larger than the page needs."""
    return small(examined.subject.read(torch.from_numpy(rows)))


def small(pictures: torch.Tensor) -> NDArray[np.uint8]:
    """(b, s, s, 3) at most SIDE pixels wide."""
    if pictures.shape[-1] > SIDE:
        resized = torch.nn.functional.interpolate(pictures.float(), SIDE, mode="bilinear", antialias=True)
        pictures = resized.round().clamp(0, 255).byte()
    return pictures.permute(0, 2, 3, 1).contiguous().numpy()


def biased_model(examined: Examined, row: int) -> torch.nn.Module:
    """The easy model that never saw this row."""
    fold = 0 if len(examined.biased.keys[0]) == 1 else int(examined.trainer.fold[row])
    return read_model(examined.trainer.material, examined.trainer.folder / examined.biased.keys[0][fold])


def debiased_model(examined: Examined, evaluation: Evaluation | None) -> torch.nn.Module | None:
    """The first debiased model, where there is one."""
    if evaluation is None or evaluation.chosen == VANILLA:
        return None
    return read_model(
        examined.trainer.material, examined.trainer.folder / evaluation.candidates[evaluation.chosen].keys[0]
    )


def keep_pictures(examined: Examined, chosen: Chosen, folder: Path, evaluation: Evaluation | None) -> None:
    """pictures.npz and swaps.npz."""
    arrays: dict[str, NDArray[Any]] = {
        "rows": examined.place[chosen.shown],
        "picture": show(examined, chosen.shown),
        "probability_easy": examined.biased.probability[chosen.shown].astype(np.float32),
    }
    if examined.biased.keys and len(chosen.looked):
        subject, model = examined.subject, debiased_model(examined, evaluation)
        pictures = [subject.read(torch.tensor([row])) for row in chosen.looked]  # one at a time: a network may be large
        arrays["heat_rows"] = examined.place[chosen.looked]
        biased = (biased_model(examined, row) for row in chosen.looked)
        looks = [input_gradients(subject, *each) for each in zip(biased, pictures, strict=True)]
        arrays["heat_easy"] = np.concatenate(looks)
        if model is not None:
            arrays["heat_debiased"] = np.concatenate([input_gradients(subject, model, each) for each in pictures])
    write_arrays(folder / "pictures.npz", **arrays)
    if isinstance(examined.swaps, SwapTest) and examined.swaps.reliances:
        write_arrays(folder / "swaps.npz", **strips(examined, examined.swaps))


def strips(examined: Examined, swaps: SwapTest) -> dict[str, NDArray[Any]]:
    """Original, donor and swapped picture of some swaps of each view, with what the model answered to each.

    Swaps that the model followed come first.
    """
    pool, y = examined.pool, examined.trainer.y
    kept: dict[str, list[NDArray[Any]]] = {name: [] for name in ("view", "original", "donor", "swapped", "answers")}
    for view in VIEWS:
        if view.name not in swaps.answers:
            continue
        said = swaps.answers[view.name]
        rows, donors = pool[swaps.pairs.rows], pool[swaps.pairs.donors]
        first = np.argsort(said != y[donors], kind="stable")[:STRIPS]
        x, other = (examined.subject.read(torch.from_numpy(each[first])) for each in (rows, donors))
        answers = examined.plain.answer
        kept["view"].append(np.full(len(first), view.name))
        kept["original"].append(small(x))
        kept["donor"].append(small(other))
        kept["swapped"].append(small(view.swap(x, other, torch.from_numpy(first))))
        kept["answers"].append(np.stack([answers[rows[first]], answers[donors[first]], said[first]], 1))
    return {name: np.concatenate(parts) for name, parts in kept.items() if parts}


def keep_texts(examined: Examined, chosen: Chosen, folder: Path, evaluation: Evaluation | None) -> None:
    """texts.json: the texts that are shown, and which words the models go by."""
    subject, shown = examined.subject, chosen.shown
    texts = texts_of(subject.own, torch.from_numpy(shown))
    debiased = debiased_model(examined, evaluation)
    looked = set(chosen.looked.tolist())
    kept = {}
    for row, place, text in zip(shown.tolist(), examined.place[shown].tolist(), texts, strict=True):
        words = row in looked and bool(examined.biased.keys)
        kept[str(place)] = {
            "text": text,
            "easy": word_weights(biased_model(examined, row), text, subject.enter) if words else [],
            "debiased": word_weights(debiased, text, subject.enter) if words and debiased else None,
            "probability_easy": examined.biased.probability[row].tolist(),
            "probability_debiased": None,
        }
    write_text(folder / "texts.json", json.dumps(kept))
    if isinstance(examined.swaps, SwapTest) and examined.swaps.reliances:
        write_text(folder / "swaps.json", json.dumps(text_strips(examined, examined.swaps)))


def text_strips(examined: Examined, swaps: SwapTest) -> dict[str, list[dict[str, Any]]]:
    """By view some swaps, followed ones first: the text, its donor and the swapped text around what changed, and what
    the model answered to each."""
    pool, y, answers = examined.pool, examined.trainer.y, examined.plain.answer
    rows, donors = pool[swaps.pairs.rows], pool[swaps.pairs.donors]
    strips: dict[str, list[dict[str, Any]]] = {}
    for view in examined.views:
        if view.name not in swaps.answers:
            continue
        said = swaps.answers[view.name]
        first = np.argsort(said != y[donors], kind="stable")[:STRIPS]
        x, other = (texts_of(examined.subject.own, torch.from_numpy(each[first])) for each in (rows, donors))
        swapped = view.swap(x, other, torch.from_numpy(swaps.pairs.rows[first]))
        strips[view.name] = [
            {
                "texts": [excerpt(x[n], swapped[n]), other[n][:AROUND], excerpt(swapped[n], x[n])],
                "answers": [int(each) for each in (answers[rows[place]], answers[donors[place]], said[place])],
            }
            for n, place in enumerate(first)
        ]
    return strips


def excerpt(text: str, changed: str) -> str:
    """The text around the first place where it differs from the changed one."""
    place = next((n for n, pair in enumerate(zip(text, changed, strict=False)) if pair[0] != pair[1]), len(text))
    start = max(0, place - AROUND // 3)
    cut = text[start : start + AROUND]
    return ("… " if start else "") + cut + (" …" if start + AROUND < len(text) else "")
