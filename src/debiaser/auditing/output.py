"""The folder of an audit: scores.csv, weights.csv, audit.json, and the page with the samples that it shows."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from debiaser.auditing.candidates import VANILLA, Evaluation
from debiaser.auditing.crossval import read_model
from debiaser.auditing.findings import (
    Chosen,
    Findings,
    input_gradients,
    word_weights,
    write_rows,
    write_weights,
)
from debiaser.auditing.swap_test import SwapTest
from debiaser.auditing.verdict import Examined
from debiaser.io import make_folder, write_json
from debiaser.report.audit_page import write_audit_page

SIDE = 160  # pixels of an image on the page, at most
AROUND = 180  # characters of a text that show a swap
STRIPS = 3  # swaps that are shown of each view


def write_audit(
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
    write_json(folder / "audit.json", findings.summary)
    samples = {} if "images" in redact else shown_samples(examined, chosen, evaluation)
    swaps = {} if "images" in redact else shown_swaps(examined)
    write_audit_page(folder / "report.html", findings.summary, findings.rows, samples, swaps, redact)


def shown_samples(examined: Examined, chosen: Chosen, evaluation: Evaluation | None) -> dict[int, dict[str, Any]]:
    """By their place in scores.csv the images or texts to show, what the easy model says, and where models look."""
    subject, trainer, rows = examined.subject, examined.trainer, chosen.shown
    kind = subject.own.kind
    contents = subject.read(torch.from_numpy(rows))
    samples = [
        {kind: content, "easy": examined.biased.probability[row]}
        for row, content in zip(rows, contents if kind == "text" else small(contents), strict=True)
    ]
    debiased = None
    if evaluation is not None and evaluation.chosen != VANILLA:
        debiased = read_model(trainer.material, trainer.folder / evaluation.candidates[evaluation.chosen].keys[0])
    at = {int(row): number for number, row in enumerate(rows)}
    for row in chosen.looked.tolist() if examined.biased.keys else ():
        fold = 0 if len(examined.biased.keys[0]) == 1 else int(trainer.fold[row])  # the model that never saw this row
        easy = read_model(trainer.material, trainer.folder / examined.biased.keys[0][fold])
        content = subject.read(torch.tensor([row]))  # one at a time: a network may be large
        for name, model in (("look_easy", easy), ("look_debiased", debiased)):
            if model is not None and kind == "image":
                samples[at[row]][name] = input_gradients(subject, model, content)[0]
            elif model is not None and (weights := word_weights(model, content[0], subject.enter)):
                samples[at[row]][name] = weights
    return dict(zip(examined.place[rows].tolist(), samples, strict=True))


def small(images: torch.Tensor) -> NDArray[np.uint8]:
    """(b, s, s, 3) at most SIDE pixels wide."""
    if images.shape[-1] > SIDE:
        resized = torch.nn.functional.interpolate(images.float(), SIDE, mode="bilinear", antialias=True)
        images = resized.round().clamp(0, 255).byte()
    return images.permute(0, 2, 3, 1).contiguous().numpy()


def shown_swaps(examined: Examined) -> dict[str, list[dict[str, Any]]]:
    """By view some swaps, those that the model followed first: original, donor and swapped sample, and the answers."""
    swaps, y, said = examined.swaps, examined.trainer.y, examined.plain.answer
    if not isinstance(swaps, SwapTest) or not swaps.reliances:
        return {}
    subject, classes = examined.subject, examined.subject.own.classes
    rows, donors = examined.pool[swaps.pairs.rows], examined.pool[swaps.pairs.donors]
    strips: dict[str, list[dict[str, Any]]] = {}
    for view in examined.views:
        if view.name not in swaps.answers:
            continue
        answers = swaps.answers[view.name]
        first = np.argsort(answers != y[donors], kind="stable")[:STRIPS]
        x, other = (subject.read(torch.from_numpy(each[first])) for each in (rows, donors))
        swapped = view.swap(x, other, torch.from_numpy(swaps.pairs.rows[first]))
        strips[view.name] = [
            {
                **shown_swap(x, other, swapped, number),
                "answers": [classes[each] for each in (said[rows[place]], said[donors[place]], answers[place])],
            }
            for number, place in enumerate(first)
        ]
    return strips


def shown_swap(x: Any, other: Any, swapped: Any, number: int) -> dict[str, Any]:
    """Three images, or three texts around what changed."""
    if isinstance(x, torch.Tensor):
        return {"images": list(small(torch.stack([each[number] for each in (x, other, swapped)])))}
    text, changed = x[number], swapped[number]
    return {"texts": [excerpt(text, changed), other[number][:AROUND], excerpt(changed, text)]}


def excerpt(text: str, changed: str) -> str:
    """The text around the first place where it differs from the changed one."""
    place = next((n for n, pair in enumerate(zip(text, changed, strict=False)) if pair[0] != pair[1]), len(text))
    start = max(0, place - AROUND // 3)
    cut = text[start : start + AROUND]
    return ("… " if start else "") + cut + (" …" if start + AROUND < len(text) else "")
