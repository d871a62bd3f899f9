"""`audit` and `debias` for a person's own data, as functions: the commands do nothing else.

An audit reads the source, trains biased, plain and judging models out of fold, diagnoses the samples that the biased
model misclassifies, swaps properties between samples, tests the other columns for leakage, and rules. `debias` goes on:
candidates are trained, one is selected on validation samples, proven on held-out ones, and exported.
"""

import dataclasses
import os
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn
from torch.utils.data import Dataset

from debiaser.auditing.candidates import EVERY_CANDIDATE, Evaluation
from debiaser.auditing.crossval import OutOfFold, Rows, Trainer, Vector, train_biased_models, train_plain_models
from debiaser.auditing.diagnosis import Diagnosis, check_health, check_planted, diagnose
from debiaser.auditing.export import export_models
from debiaser.auditing.findings import Findings, rows_of, summarise, write_audit
from debiaser.auditing.groups import Groups, column_groups, propagate_marks
from debiaser.auditing.inputs import LARGEST, Material, Subject, file_of, own_of, prepare, stream_of
from debiaser.auditing.leakage import find_leakage
from debiaser.auditing.marks import Marks, apply_marks, match_marks
from debiaser.auditing.selection import BALANCED, find_candidate, select_and_prove
from debiaser.auditing.swap_test import find_views, probe_pixels, swap_plain_models
from debiaser.auditing.verdict import BIASED, CANNOT_TELL, FLOOR, Examined, in_words, named_view, rule
from debiaser.data.cache import user_cache
from debiaser.data.own import Columns, OwnData, Texts, read_own
from debiaser.data.own.rows import folds
from debiaser.errors import Misuse, Problem
from debiaser.io import log, make_folder, private
from debiaser.learn.encoders import pixels
from debiaser.learn.forward import Outputs
from debiaser.learn.gradient_norms import grad_norm, residual_norm
from debiaser.learn.recipe import Recipe, environment

if TYPE_CHECKING:
    from debiaser.methods.debias import Debiased
    from debiaser.methods.task import Method

FOLDS, BIASED_SEEDS, PLAIN_SEEDS, JUDGE_SEEDS = 5, 2, 3, 2  # of an audit
SEEDS = 3  # of every candidate of debias
LAYOUT = "layout-2"  # a file that tells which version keeps its models here


Source = str | Path | pd.DataFrame


@dataclass(frozen=True)
class Request(Columns):
    """What a person asked for: which columns, which network, how thoroughly, and where the results go."""

    backbone: str | None = None
    finetune: bool = False
    seeds: int = 0  # 0: two for an audit, three for debias
    workers: int = 0  # 0: as many as there are cores
    seed: int = 0
    epochs: int | None = None
    matters: tuple[str, ...] = ()
    marks: Path | None = None
    use_groups: bool = False
    export: str | None = None
    max_cost: float | None = None
    redact: frozenset[str] = frozenset()
    out: Path | None = None

    def __post_init__(self) -> None:
        """Refuse invalid numbers before anything is read."""
        for name, value, least in (("seed", self.seed, 0), ("epochs", self.epochs, 1), ("max_cost", self.max_cost, 0)):
            if value is not None and not value >= least:  # no number at all is not either
                raise Misuse(f"{name} must be at least {least}, got {value}")
        if self.use_groups and not self.group:
            raise Misuse("--use-groups needs --group COLUMN: the column that holds the groups")

    @property
    def columns(self) -> Columns:
        """The columns alone."""
        return Columns(**{field.name: getattr(self, field.name) for field in dataclasses.fields(Columns)})

    def folder(self, own: OwnData) -> Path:
        """Where models are kept, so that the same command goes on from there."""
        return self.out or user_cache("audits") / own.identity

    @property
    def named(self) -> dict[str, Any]:
        """What was named beside the source that decides what is examined, as keywords of `audit` and `debias`."""
        named = {**dataclasses.asdict(self.columns), "backbone": self.backbone, "finetune": self.finetune}
        named |= {"matters": ",".join(self.matters), "epochs": self.epochs, "seed": self.seed}
        return {name: value for name, value in named.items() if value}


def make_request(options: dict[str, Any]) -> Request:
    """The request behind keyword arguments; an unknown one is named."""
    if "confirmed" in options:  # the old name
        options["marks"] = options.pop("confirmed")
    try:
        return Request(**{**options, "out": options.get("out") and Path(options["out"])})
    except TypeError as error:
        known = ", ".join(Request.__dataclass_fields__)
        raise Misuse(f"{error.args[0].split('()')[-1].strip()}; known options: {known}") from None


def audit(
    source: str | Path | pd.DataFrame | Dataset[Any] | Sequence[Any] | NDArray[Any] | Tensor,
    pred_probs: ArrayLike | None = None,
    features: ArrayLike | None = None,
    *,
    label: str | None = None,
    image: str | None = None,
    text: str | None = None,
    group: str | None = None,
    split: str | None = None,
    unit: str | None = None,
    out: str | Path | None = None,
    **options: Any,
) -> Findings:
    """Find out whether the data has a shortcut, which samples go against it, and which look mislabelled.

    Args:
        source: a path (image folder `class/*.jpg`, CSV or Parquet file, saved Hugging Face dataset) or hub name; a
            DataFrame; a dataset of (image, label) or (text, label) pairs; or, with `pred_probs`, only the labels (n,).
        pred_probs: your own model's predicted probabilities (n, classes) for samples it was not trained on. That model
            is then audited, and none is trained.
        features: inputs (n, h) of that model's last layer.
        label: column with the labels, if it is not detected automatically.
        image: column with paths of images.
        text: column with texts.
        group: column with the known bias attribute; used for evaluation only.
        split: column that says train, valid or test.
        unit: column whose samples stay on one side of every split, such as a patient.
        out: folder for the page, scores.csv, and the files that let the same call resume.
        **options: as for the command: `backbone`, `finetune`, `seeds`, `workers`, `seed`, `epochs`, `matters`, `marks`
            (a CSV file of marks, as saved by the page), `redact`.

    Returns:
        The findings: verdict, reasons, one score per sample, and everything that `audit --json` prints.

    Raises:
        Problem: the data cannot be read or used; the message says what to do.
        Misuse: an option or array is invalid.

    Example:
        >>> import numpy as np, debiaser
        >>> labels, probabilities = np.array([0, 1, 1, 0]), np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.7, 0.3]])
        >>> debiaser.audit(labels, probabilities).verdict
        'cannot tell'
    """
    columns = {"label": label, "image": image, "text": text, "group": group, "split": split, "unit": unit}
    request = make_request({**columns, "out": out, **options})
    with private():
        if pred_probs is None:
            subject = read_subject(source, request)
            return conclude(examine(subject, np.arange(len(subject.own)), request), request)
        if isinstance(source, Source):
            own = read_own(source, request.columns, request.seed)
        elif request.out is None:
            own = own_answers(np.asarray(source), np.asarray(pred_probs))
        else:
            raise Misuse("predictions alone give no page; for one, give the data: debiaser audit SOURCE --probs FILE")
        examined = examine_model(own, pred_probs, features, request.folder(own))
        return conclude(apply_marks(examined, read_marks(own, request)), request)


@overload
def debias(
    model: nn.Module,
    dataset: Any,
    method: "Method | None" = None,
    recipe: Recipe | None = None,
    seed: int = 0,
    **options: Any,
) -> "Debiased": ...


@overload
def debias(model: str | Path | pd.DataFrame, dataset: None = None, **options: Any) -> Findings: ...


def debias(model: Any, dataset: Any = None, *how: Any, **options: Any) -> "Debiased | Findings":
    """Debias a network on a dataset, `debias(model, dataset, PGD())`, or train a model on your own data,
    `debias("folder")`.

    Args:
        model: a network; or a path, hub name or DataFrame as in `audit`.
        dataset: training data of the network: (x, y) pairs.
        *how: the method and any further arguments of `debiaser.methods.debias`.
        **options: for a network, those of `debiaser.methods.debias`; for data, those of `audit`, and `use_groups`,
            `export` and `max_cost`.

    Returns:
        For a network, the debiased network and the scores. For data, the findings of the audit and whether debiasing
        helped on held-out samples; the exported model is in `out`/model.

    Raises:
        Problem: the data cannot be read or used; the message says what to do.
        Misuse: an option is invalid.

    Example:
        >>> import debiaser
        >>> findings = debiaser.debias("scans", unit="patient", out="debiased")  # doctest: +SKIP
        >>> findings.summary["helped"], findings.summary["model_dir"]  # doctest: +SKIP
        (True, 'debiased/model')
    """
    if not isinstance(model, Source) or dataset is not None:
        from debiaser.methods.debias import debias as debias_network

        return debias_network(model, dataset, *how, **options)
    request = make_request(options)
    wanted = find_candidate(request.export, EVERY_CANDIDATE)  # a name that no candidate has is told at once
    if wanted and wanted.startswith(BALANCED) and not (request.marks or request.use_groups):
        raise Misuse(f"{wanted} balances groups: give --marks FILE, or --group COLUMN and --use-groups")
    with private():
        subject = read_subject(model, request, need_test=True)
        own = subject.own
        examined = examine(subject, np.flatnonzero(own.split != "test"), request)
        groups = find_groups(examined, request)
        seeds = request.seeds or SEEDS
        evaluation, more = select_and_prove(examined, groups, seeds, request.max_cost, request.export)
        folder = export_models(request.folder(own), examined, evaluation, more["repair"])
        propagation = groups.propagation if groups else None
        return conclude(examined, request, evaluation, **more, propagation=propagation, model_dir=str(folder))


def find_groups(examined: Examined, request: Request) -> Groups | None:
    """The groups to train with: of the column of --group where --use-groups is given, or propagated from marks."""
    own = examined.subject.own
    try:
        if request.use_groups and own.group is not None:
            return column_groups(own.group, own.y.numpy())
        return propagate_marks(examined, examined.marks.by_sample) if examined.marks.by_sample else None
    except Problem as problem:  # the rest of the run needs no marks
        log.warning("%s", problem)
        examined.marks.notes.append(str(problem))
        return None


def read_subject(source: Any, request: Request, need_test: bool = False) -> Subject:
    """The samples with their inputs."""
    if not isinstance(source, Source):
        return prepare(own_of(source, request.seed), request.backbone, request.finetune)
    own = read_own(source, request.columns, request.seed, need_test)
    return prepare(own, request.backbone, request.finetune)


def read_marks(own: OwnData, request: Request) -> Marks:
    """The marks of the file that a person gave, if any."""
    return match_marks(own, Path(request.marks)) if request.marks else Marks()


def examine(subject: Subject, pool: Rows, request: Request) -> Examined:
    """Train the models, out of fold, and ask them everything; what is wrong with marks or views is told before that."""
    own, y, seed = subject.own, subject.own.y.numpy(), request.seed
    marks = read_marks(own, request)
    fold = np.full(len(y), -1)
    fold[pool] = folds(y[pool], own.unit[pool], FOLDS, seed)
    workers = request.workers or os.cpu_count() or 1
    work = request.folder(own) / "work"
    trainer = Trainer(subject.material, y, fold, work, workers, seed, request.epochs)
    views = find_views(subject, trainer, request.matters)
    if not (work / LAYOUT).is_file():
        if work.is_dir():
            log.warning("%s is of an older version of debiaser: its models that do not fit are trained again", work)
        (make_folder(work) / LAYOUT).touch()
    biased = train_biased_models(trainer, request.seeds or BIASED_SEEDS)
    plain = train_plain_models(trainer, 1 if request.finetune else PLAIN_SEEDS)  # each trains whole networks then
    diagnosis = diagnose(trainer, biased, 1 if request.finetune else JUDGE_SEEDS)
    swaps = swap_plain_models(subject, trainer, plain, views)
    probe = probe_pixels(subject, trainer, views)
    unused = {name: values[pool] for name, values in own.columns.items()}
    misclassified = biased.answer[pool] != y[pool]
    leakage = find_leakage(unused, y[pool], own.unit[pool], misclassified, own.classes, seed)
    verdict, reasons = rule(swaps, biased, plain, diagnosis, leakage, pool, y, probe)
    named = named_view(views, swaps, verdict)
    diagnosis, controls = check_planted(subject, trainer, biased, diagnosis, swaps, named)
    if subject.encoder is None:
        advice = "Check the labels, or use a pretrained network: --backbone NAME."
    else:
        advice = "Check the labels, try another --backbone, or train the whole network with --finetune."
    examined = Examined(
        subject=subject,
        trainer=trainer,
        pool=pool,
        biased=biased,
        plain=plain,
        diagnosis=diagnosis,
        swaps=swaps,
        leakage=leakage,
        troubles=check_health(y[pool], biased.answer[pool], plain.answer[pool], own.classes, advice),
        verdict=verdict,
        reasons=reasons,
        model=in_words(subject, len(trainer.folds), len(plain.keys)),
        views=views,
        named=named,
        controls=controls,
        probe=probe,
    )
    return apply_marks(examined, marks)


def conclude(examined: Examined, request: Request, evaluation: Evaluation | None = None, **more: Any) -> Findings:
    """The findings, written to `out` where it is given."""
    own, verb = examined.subject.own, "audit" if evaluation is None else "debias"
    chosen = {name: getattr(request, name) for name in ("use_groups", "export", "max_cost", "marks")}
    given = {name: value if isinstance(value, float | bool) else str(value) for name, value in chosen.items() if value}
    lines = {"again": command_line(own, {**request.named, **given}, verb)}
    lines["marks"] = command_line(own, {**request.named, "marks": "marks.csv"}, "debias")
    following = {"next": {**what_next(examined, request.named, more.get("model_dir")), **lines}}
    made = {"seed": request.seed, "environment": environment("cpu")}
    summary = {**summarise(examined, request.group), **following, **more, **made}
    findings = Findings(summary, rows_of(examined), request.out, examined)
    if request.out is not None:
        write_audit(examined, findings, request.out, request.redact, evaluation)
    return findings


def what_next(examined: Examined, options: dict[str, Any], model_dir: str | None = None) -> dict[str, Any]:
    """What to do with the findings, and lines to copy that run as they stand, but for what is written in capitals.

    `options`: what the person named beside the source, `model_dir`: a model made of it.
    """
    own, kind = examined.subject.own, examined.diagnosis.kind[examined.pool]
    asked, wrong = len(examined.to_mark()[0]), int((kind == "mislabelled").sum())
    count = f"{asked:,} more" if examined.marks.by_sample else f"{asked:,}"
    marking = f"Mark {count} samples, on the page or with debiaser mark: a few minutes that show what no score can."
    steps = [marking] if asked else []
    steps += [f"Check labels first where they are likely wrong: {wrong:,} samples."] if wrong else []
    verb = "debias" if examined.verdict == BIASED else "audit"
    snippet = f"import debiaser\n{python_line(own, {**options, 'out': f'debiaser-{verb}'}, verb)}\nprint(findings)"
    last = "Collect samples from where the model failed in the field: they show what this data cannot."
    if model_dir:
        last = "Use the exported model with the line below; its folder holds a card with the evidence."
        snippet = f"debiaser predict {model_dir} NEW_{'IMAGES' if own.kind == 'image' else 'TEXTS'}"
    elif examined.verdict == BIASED:
        last = (
            "Train against the shortcut with the lines below: they train the controls too, prove the difference on "
            "held-out samples and export a model. For a loop of your own, draw batches by weights.csv (ScoreSampler)."
        )
    if not own.total and not model_dir:  # the samples were in memory
        sampler = "from debiaser import ScoreSampler\nsampler = ScoreSampler(findings.rows['probability'], seed=0)"
        snippet = f"{sampler}\nloader = DataLoader(dataset, 128, sampler=sampler)"
    return {"sentences": [*steps, last], "snippet": snippet}


def python_line(own: OwnData, options: dict[str, Any], verb: str) -> str:
    """The line of Python that runs this; what lies in memory is written in capitals."""
    source = "DATAFRAME" if own.source == pd.DataFrame.__name__ else repr(own.source) if own.total else "DATASET"
    return f"findings = debiaser.{verb}({source}{''.join(f', {name}={value!r}' for name, value in options.items())})"


def command_line(own: OwnData, options: dict[str, Any], verb: str) -> str:
    """The line that runs this again; `options`: what the person named beside the source."""
    if own.source == pd.DataFrame.__name__ or not own.total:  # in memory
        return python_line(own, options, verb if own.total else "audit")
    pairs = ((f"--{name.replace('_', '-')}", value) for name, value in options.items())
    words = [word for pair in pairs for word in pair if word is not True]
    return shlex.join(["debiaser", verb, own.source, *map(str, words)])


def remove_caches() -> int:
    """Remove pixels, features and models of audits that no folder of a person's holds; how many bytes that freed.

    Raw data sets stay.
    """
    root, freed = user_cache("data").parent, 0
    for path in sorted(root.iterdir()) if root.is_dir() else []:
        if path.name == "data":
            continue
        freed += sum(each.stat().st_size for each in (path, *path.rglob("*")) if each.is_file())
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
    return freed


# --- A model that a person already has, examined by its labels, probabilities and, if known, features

ONLY_ANSWERS = (
    "Predictions alone cannot distinguish a shortcut from a hard task: that needs changing the model's inputs, and "
    "only its predictions were given. Audit the data without --probs for that."
)
ORDER = "Check the order of the samples."


def own_answers(labels: NDArray[Any], probability: NDArray[Any]) -> OwnData:
    """Labels (n,) of samples that are not here, as own data."""
    if probability.ndim != 2 or probability.shape[1] < 2 or not len(probability):
        raise Misuse(f"probabilities must be (n, classes) with two classes or more, got {probability.shape}")
    n, k = probability.shape
    if labels.shape != (n,) or labels.dtype.kind not in "iub" or labels.min() < 0 or labels.max() >= k:
        given = f"{labels.dtype} {labels.shape}" + (f" from {labels.min()} to {labels.max()}" if labels.size else "")
        raise Misuse(f"labels must be {n:,} class numbers from 0 to {k - 1}, got {given}")
    ids, classes, y = map(str, range(n)), tuple(map(str, range(k))), torch.from_numpy(labels.astype(np.int64))
    nothing, split = [""] * n, np.full(n, "train")
    return OwnData("arrays", "answers", [*ids], nothing, y, classes, split, np.arange(n), Texts(nothing), "answers")


def examine_model(own: OwnData, pred_probs: ArrayLike, features: ArrayLike | None, folder: Path) -> Examined:
    """A person's data with the answers of a model of theirs, one line of probabilities per sample or usable sample."""
    y, probability = own.y.numpy(), usable(np.asarray(pred_probs, np.float64), own)
    entering = None if features is None else usable(np.asarray(features, np.float64), own)
    probability, score = checked_answers(own, probability, entering)
    said = OutOfFold(probability[None], score[None], ())
    misclassified = said.answer != y
    kind, wrong = np.where(misclassified, "unsure", "aligned"), np.where(misclassified, 0.5, 0.0)[None]
    array = folder / "nothing.npy"  # only images are shown as a network would get them
    if own.kind == "image":
        stream = stream_of(own, LARGEST)
        array = file_of(pixels(own.inputs.identity, len(own), stream, LARGEST, user_cache("features")))
    material = Material(array, own.classes, own.identity)
    return Examined(
        subject=Subject(own, material, None, LARGEST),
        trainer=Trainer(material, y, np.zeros(len(y), np.int64), folder / "work"),
        pool=np.arange(len(y)),
        biased=said,
        plain=said,
        diagnosis=Diagnosis(misclassified, wrong, kind, abstains=ONLY_ANSWERS),
        swaps=Problem(ONLY_ANSWERS),
        leakage=find_leakage(own.columns, y, own.unit, misclassified, own.classes),
        troubles=check_health(y, said.answer, said.answer, own.classes, ORDER),
        verdict=CANNOT_TELL,
        reasons=[ONLY_ANSWERS],
        model=f"your model, by its probabilities{'' if features is None else ' and features'}.",
    )


def usable(array: NDArray[Any], own: OwnData) -> NDArray[Any]:
    """The lines of an array for the samples that can be used: it has one for each of those, or for all there are."""
    count = len(array) if array.ndim else 0
    if count == len(own):
        return array
    if count == own.total:
        return np.asarray(array[own.places])
    raise Misuse(
        f"the arrays must have one line for each of the {own.total or len(own):,} samples of the data, or of the "
        f"{len(own):,} that can be used, in their order; got {count:,}"
    )


def checked_answers(own: OwnData, probability: Vector, features: Vector | None) -> tuple[Vector, Vector]:
    """Probabilities (n, k) that fit the labels (n,), and (n,) the gradient norm of the last layer; without features
    (n, h), the part of it that probabilities give."""
    if probability.shape != (len(own), len(own.classes)):
        raise Misuse(
            f"the probabilities are {probability.shape}, the data has {len(own.classes)} classes; give one column for "
            "each class, in their order"
        )
    if not np.isfinite(probability).all() or (probability < 0).any() or (abs(probability.sum(1) - 1) > 1e-3).any():
        raise Misuse("probabilities must be from 0 to 1 and sum to 1 in every sample; apply a softmax to logits first")
    probability = probability / probability.sum(1, keepdims=True)
    entering = np.ones((len(own), 1)) if features is None else features
    if entering.ndim != 2 or not np.isfinite(entering).all():
        raise Misuse(f"features must be finite numbers ({len(own):,}, h), got {entering.shape}")
    logits = torch.from_numpy(np.log(np.maximum(probability, 1e-300)))
    norm = residual_norm() if features is None else grad_norm()
    score = norm(Outputs(torch.from_numpy(entering), logits, own.y))
    return probability, np.maximum(np.asarray(score.double()), FLOOR)
