"""What an audit found: the same for the page, for scripts and for Python."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from debiaser.auditing.candidates import Evaluation, world_of
from debiaser.auditing.crossval import Vector
from debiaser.auditing.diagnosis import label_errors
from debiaser.auditing.estimates import Estimate, binomial_interval, share
from debiaser.auditing.groups import describe_groups
from debiaser.auditing.marks import CONFLICTING, FEW, MARKS, marked_at_random
from debiaser.auditing.page_content import WHOLE, find_slices, shown_samples, shown_swaps
from debiaser.auditing.swap_test import SwapTest
from debiaser.auditing.verdict import DEGENERATE, STRENGTH, TO_MARK, Examined
from debiaser.data.own.rows import first
from debiaser.io import guarded, make_folder, write_json, write_text
from debiaser.report.audit_page import write_audit_page

BINS = 40
COLUMNS = (
    *("id", "path", "label", "predicted", "score", "probability", "rank"),
    *("p_conflicting", "p_mislabelled", "kind"),
)
TO_MARK_COLUMNS = ("id", "path", "label", "why", "content")


@dataclass(frozen=True, eq=False)
class Findings:
    """What `audit` and `debias` found.

    Attributes:
        summary: everything that `audit --json` prints, and what the page shows beside it.
        rows: the columns of scores.csv, each (n,) in the order of the data; `score` is larger where a sample goes more
            against the biased model, `kind` is aligned, conflicting, mislabelled or unsure. And `content`, a digest.
        folder: where the page and the files are; None where no `out` was given.

    Example:
        >>> import numpy as np, debiaser
        >>> found = debiaser.audit(np.array([0, 1, 1]), np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]]))
        >>> found.verdict, int(found.scores.argmax())
        ('cannot tell', 2)
    """

    summary: dict[str, Any]
    rows: dict[str, NDArray[Any]] = field(repr=False)
    folder: Path | None
    examined: Examined = field(repr=False)

    def to_mark(self, n: int = TO_MARK) -> pd.DataFrame:
        """The next samples worth a mark, most useful first: id, path, label, why (score or random) and content.

        Give them back as a CSV with the columns id and mark: `audit(..., marks=path)`.
        """
        rows, why = self.examined.to_mark(n)
        place = self.examined.place[rows]
        return pd.DataFrame({name: why if name == "why" else self.rows[name][place] for name in TO_MARK_COLUMNS})

    def swaps(self) -> dict[str, list[dict[str, Any]]]:
        """By property some swaps: three `images` or `texts` (original, donor, swapped) and the `answers` to them."""
        return shown_swaps(self.examined)

    @property
    def verdict(self) -> str:
        """biased, no evidence, or cannot tell."""
        return str(self.summary["verdict"])

    @property
    def reasons(self) -> list[str]:
        """Sentences, the most telling first."""
        return list(self.summary["reasons"])

    @property
    def highlights(self) -> list[str]:
        """The three findings that matter most: why the verdict, what was proven or how much is at stake, what next."""
        stake, repair = self.summary["conflicting_share"], self.summary.get("repair")
        share = f"Between {stake['low']:.1%} and {stake['high']:.1%} of the samples" if stake["high"] else "No samples"
        second = f"{share} go against the shortcut."
        return [*self.reasons[:1], repair["sentence"] if repair else second, *self.summary["next"]["sentences"][:1]]

    @property
    def scores(self) -> Vector:
        """(n,) in the order of the data."""
        return np.asarray(self.rows["score"], np.float64)

    @property
    def page(self) -> Path | None:
        """The page, where one was written."""
        return None if self.folder is None else self.folder / "report.html"

    def of_kind(self, kind: str) -> list[str]:
        """The ids of samples of a kind, those that stand out most first."""
        chosen = np.flatnonzero(self.rows["kind"] == kind)
        order = chosen[np.argsort(-self.scores[chosen], kind="stable")]
        return [str(each) for each in self.rows["id"][order]]

    def __repr__(self) -> str:
        counts = {kind: int((self.rows["kind"] == kind).sum()) for kind in ("conflicting", "mislabelled", "unsure")}
        told = ", ".join(f"{count:,} {kind}" for kind, count in counts.items())
        lines = [f"Findings: {self.verdict} ({self.summary['n']:,} samples: {told})"]
        lines += [f"  {reason}" for reason in self.reasons]
        if self.summary.get("repair"):
            lines.append(f"  {self.summary['repair']['sentence']}")
        if self.page:
            lines.append(f"  page: {self.page}")
        return "\n".join(lines)


# --- As plain objects


def summarise(examined: Examined, column: str | None = None) -> dict[str, Any]:
    """Everything but the samples themselves; `column`: of the groups."""
    own, pool, diagnosis = examined.subject.own, examined.pool, examined.diagnosis
    y, unit = own.y.numpy(), own.unit
    right = examined.biased.answer[pool] == y[pool]
    effective, place, swaps = examined.effective_rows, examined.place, examined.swaps
    trained = bool(examined.biased.keys)  # here, not by the person
    lost = DEGENERATE if examined.degenerate else ""
    asked, why = examined.to_mark()
    untested, reliances = (swaps.untested, swaps.reliances) if isinstance(swaps, SwapTest) else ((), ())
    return {
        "source": own.source,
        "kind": own.kind,
        "examined": examined.model,
        "verdict": examined.verdict,
        "reasons": examined.reasons,
        "n": len(pool),
        "units": len(np.unique(unit[pool])),
        "classes": [
            {
                "name": name,
                "n": len(part := right[y[pool] == k]),
                "easy_accuracy": 100 * float(part.mean()) if len(part) else None,
            }
            for k, name in enumerate(own.classes)
        ],
        "notes": [*own.notes, *examined.marks.notes, *remarks(examined, untested)],
        "choices": {**examined.subject.choices, "folds": str(len(examined.trainer.folds))} if trained else {},
        "unreadable": [{"id": e.id, "reason": e.reason} for e in own.excluded if e.kind == "unreadable"],
        "left_out": [{"id": e.id, "reason": e.reason} for e in own.excluded if e.kind != "unreadable"],
        "duplicates": [{"ids": list(each.ids), "across": each.across} for each in own.duplicates],
        "health": {
            "ok": not examined.troubles,
            "findings": [asdict(each) for each in examined.troubles],
            "easy_accuracy": share(right, unit[pool]).plain,
            "plain_accuracy": share(examined.plain.answer[pool] == y[pool], unit[pool]).plain,
        },
        "conflicting_share": conflicting_share(examined).plain,
        "mislabelled_share": mislabelled_share(examined).plain,
        "degenerate": examined.degenerate,
        "label_errors": [int(each) for each in place[label_errors(diagnosis, y)]],
        "probe": probe_of(examined),
        "kinds": {"asserted": not diagnosis.abstains, "why": diagnosis.abstains},
        "planted": examined.controls.plain if examined.controls else None,
        "to_mark": [{"place": int(place[row]), "why": each} for row, each in zip(asked, why, strict=True)],
        "marks": {"counts": examined.marks.counts, "notes": examined.marks.notes, "why_none": lost},
        "effective_sample_size": effective.plain,
        "untested": list(untested),
        "views": [asdict(each) for each in reliances],
        "suspects": [asdict(each) for each in examined.leakage],
        "groups": describe_groups(examined, str(column)),
        **find_slices(examined),
        "histogram": histogram(examined.score[pool], ~right),
        "repair": None,
        "page": None,
        "scores": None,
    }


def probe_of(examined: Examined) -> dict[str, Any] | None:
    """What the small network on the pixels can do and follows; None where there was none."""
    probe, pool, own = examined.probe, examined.pool, examined.subject.own
    if probe is None:
        return None
    right = probe.plain.answer[pool] == own.y.numpy()[pool]
    views = [asdict(each) for each in probe.swaps.reliances] if isinstance(probe.swaps, SwapTest) else []
    return {"network": "SimConv-1 on 64 px", "accuracy": share(right, own.unit[pool]).plain, "views": views}


def remarks(examined: Examined, untested: Sequence[dict[str, Any]]) -> list[str]:
    """Properties that could not be swapped, what planted samples showed, and why no kind is asserted where none is."""
    things = {"image": "images", "text": "texts"}.get(examined.subject.own.kind, "samples")
    rests = f"{examined.effective_rows.value:,.0f} of {len(examined.pool):,} {things}"
    told = [f"Effective sample size of training by score: {rests}."]
    told += [f"Not tested: {each['title']} ({each['reason']})." for each in untested]
    told += [examined.controls.words] if examined.controls else []
    told += [DEGENERATE] if examined.degenerate else []
    if changed := getattr(examined.subject.own.inputs, "failed", {}):
        told.append(f"{len(changed):,} images changed during the run and were replaced by grey: {first([*changed])}")
    told += [WHOLE] if examined.subject.whole else []
    return told + ([examined.diagnosis.abstains] if examined.diagnosis.abstains else [])


def histogram(score: NDArray[np.float64], wrong: NDArray[np.bool_]) -> dict[str, list[float]]:
    """Samples by score, on a scale of powers: all, and those that the biased model misclassifies."""
    logs = np.log10(np.maximum(score, 1e-8))
    edges = np.linspace(logs.min(), max(logs.max(), logs.min() + 1e-6), BINS + 1)
    counts = {"all": np.histogram(logs, edges)[0], "easy_wrong": np.histogram(logs[wrong], edges)[0]}
    return {"edges": (10**edges).tolist(), **{name: values.tolist() for name, values in counts.items()}}


def rows_of(examined: Examined) -> dict[str, NDArray[Any]]:
    """The columns of scores.csv over the examined samples."""
    own, pool, diagnosis = examined.subject.own, examined.pool, examined.diagnosis
    classes = np.array(own.classes, dtype=object)
    score, misclassified, wrong = examined.score[pool], diagnosis.misclassified[pool], diagnosis.wrong[pool]
    return {
        "id": np.array(own.ids, dtype=object)[pool],
        "path": np.array(own.paths, dtype=object)[pool],
        "label": classes[own.y.numpy()[pool]],
        "predicted": classes[examined.biased.answer[pool]],
        "score": score,
        "probability": examined.probability[pool],
        "rank": np.argsort(np.argsort(-score, kind="stable")) + 1,
        "p_conflicting": np.where(misclassified, 1 - wrong, 0.0),
        "p_mislabelled": np.where(misclassified, wrong, 0.0),
        "kind": diagnosis.kind[pool].astype(object),
        "content": np.array(own.contents or [""] * len(own), dtype=object)[pool],
    }


# --- The share of samples that go against the shortcut: what a person saw in random ones; else planted ones bound it


def conflicting_share(examined: Examined) -> Estimate:
    """From 0 to 1. Bias-conflicting samples are misclassified, and not called mislabelled, as often as planted ones:
    that bounds them above. What a person marked bounds them below; marks of random samples, if enough, decide alone."""
    if (seen := seen_share(examined)) is not None:
        return seen
    n, pool = len(examined.pool), examined.pool
    misclassified = pool[examined.biased.answer[pool] != examined.trainer.y[pool]]  # whatever was confirmed about them
    diagnosis, controls = examined.diagnosis, examined.controls
    high, how = len(misclassified) / n, ["at most all samples that the biased model misclassifies"]
    if controls is not None and controls.found.low is not None:
        called = 0.0 if diagnosis.abstains else (controls.conflicts_called.high or 0.0) / 100
        kept = len(misclassified) if diagnosis.abstains else (diagnosis.kind[misclassified] != "mislabelled").sum()
        reached = controls.found.low / 100 * (1 - called)
        high = min(1.0, int(kept) / n / reached) if reached > 0 else 1.0
        how = [f"at most what planted samples allow, of which {controls.found.words()} are misclassified"]
    low = 0.0
    if CONFLICTING in examined.marks.counts:
        confirmed = examined.diagnosis.kind[examined.confirmed] == CONFLICTING
        low = int(confirmed.sum()) / n
        how.append("at least the samples marked so")
    expected = float(np.where(diagnosis.misclassified, 1 - diagnosis.wrong, 0.0)[examined.pool].mean())
    high = max(high, low)
    value = float("nan") if diagnosis.abstains else float(np.clip(expected, low, high))  # no kinds, no point in between
    return Estimate(value, low, high, "; ".join(how))


def seen_share(examined: Examined) -> Estimate | None:
    """The share of conflicting samples among those that were marked at random, classes weighted by their size; at
    least all that were marked so.

    With tags, a sample is conflicting if its tag is not the usual one of its class. None where too few are marked, or
    where one tag is the usual one of all classes.
    """
    y, pool, marks = examined.trainer.y, examined.pool, examined.marks.by_sample
    drawn = marked_at_random(y, pool, marks, examined.trainer.seed)
    drawn = {k: rows for k, rows in drawn.items() if len(rows)}
    count = sum(map(len, drawn.values()))
    if count < FEW:
        return None
    usual = {k: Counter(tag for row in rows.tolist() if (tag := marks[row]) not in MARKS) for k, rows in drawn.items()}
    tags = {k: each.most_common(1)[0][0] for k, each in usual.items() if each}
    if len(tags) > 1 and len(set(tags.values())) == 1:
        return None
    conflicts = {
        row: mark == CONFLICTING or mark not in (*MARKS, tags.get(y[row], mark)) for row, mark in marks.items()
    }
    against = {k: [conflicts[row] for row in rows.tolist()] for k, rows in drawn.items()}
    size = np.array([(y[pool] == k).sum() for k in drawn], np.float64)
    weight, numbers = size / size.sum(), np.array([len(each) for each in against.values()])
    value = float(weight @ [np.mean(each) for each in against.values()])
    units = len(np.unique(examined.subject.own.unit[np.concatenate(list(drawn.values()))]))  # ten of one unit are one
    low, high = binomial_interval(value, units / count / float((weight**2 / numbers).sum()))
    least = sum(conflicts[row] for row in examined.confirmed.tolist()) / len(pool)
    how = f"{sum(map(sum, against.values()))} of {count} samples that were marked at random, classes by their size"
    return Estimate(max(value, least), max(low, least), max(high, least), f"{how}; at least all that were marked so")


def mislabelled_share(examined: Examined) -> Estimate:
    """From 0 to 1: expected; from the samples called so, less those that planted conflicts lead one to expect, to all
    that the biased model misclassifies."""
    diagnosis, pool = examined.diagnosis, examined.pool
    misclassified: NDArray[np.bool_] = diagnosis.misclassified[pool]
    expected = float(np.where(misclassified, diagnosis.wrong[pool], 0.0).mean())
    low, high = 0.0, max(float(misclassified.mean()), expected)
    if not diagnosis.abstains:
        named = float((diagnosis.kind[pool] == "mislabelled").mean())
        amiss = (examined.controls.conflicts_called.high or 0.0) / 100 if examined.controls else 0.0
        low = max(0.0, named - amiss * float(misclassified.mean()))
    how = "no kind is asserted" if diagnosis.abstains else "from the samples called so, less those called so by mistake"
    value = float("nan") if diagnosis.abstains else expected
    return Estimate(value, min(low, expected), high, f"expected share; {how}, to all that the model misclassifies")


# --- The folder of an audit: scores.csv, weights.csv, to_mark.csv, audit.json, and the page with the samples shown


def write_audit(
    examined: Examined,
    findings: Findings,
    folder: Path,
    redact: frozenset[str],
    evaluation: Evaluation | None,
) -> None:
    """Write everything; the page last. Files and folders that we make are for their owner, a folder of theirs stays."""
    make_folder(folder)
    findings.summary["page"] = str(folder / "report.html")
    findings.summary["scores"] = str(folder / "scores.csv")
    lost = [{"id": each["id"], "path": "", "kind": "unreadable"} for each in findings.summary["unreadable"]]
    plain: dict[str, Any] = {"index": False, "lineterminator": "\n"}
    rows = pd.DataFrame({name: findings.rows[name] for name in COLUMNS}).map(guarded)
    scores = rows.to_csv(float_format="%.6g", **plain)
    lines = pd.DataFrame(lost, columns=COLUMNS).map(guarded).to_csv(header=False, **plain)
    write_text(folder / "scores.csv", scores + lines)
    drawn = world_of(examined).by_score(STRENGTH)  # for a loop of one's own, where nothing chooses the strength
    weights = pd.DataFrame({"id": findings.rows["id"], "probability": (drawn / drawn.sum())[examined.pool]})
    write_text(folder / "weights.csv", weights.map(guarded).to_csv(float_format="%.9g", **plain))
    write_text(folder / "to_mark.csv", findings.to_mark().map(guarded).to_csv(**plain))
    write_json(folder / "audit.json", findings.summary)
    slices = findings.summary["slices"]
    samples = {} if "images" in redact else shown_samples(examined, evaluation, slices)
    swaps = {} if "images" in redact else shown_swaps(examined)
    own, place = examined.subject.own, examined.place
    marked = [  # the lines of a marks file, and `place` in scores.csv (-1 for held-out samples)
        {"place": int(place[row]), "id": own.ids[row], "mark": mark, "label": own.classes[own.y[row]]}
        | {"content": own.contents[row] if own.contents else ""}
        for row, mark in examined.marks.by_sample.items()
    ]
    write_audit_page(folder / "report.html", findings.summary, findings.rows, samples, swaps, redact, marked)
