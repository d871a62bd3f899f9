"""`audit` and `debias` for a person's own data, as functions: the commands do nothing else."""

import dataclasses
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from debiaser.auditing.candidates import MAX_COST, Evaluation
from debiaser.auditing.examine import Examined, Plan, examine
from debiaser.auditing.existing_model import examine_answers, examine_model
from debiaser.auditing.export import export_model, write_evaluation
from debiaser.auditing.findings import Findings, choose, rows_of, summarise
from debiaser.auditing.inputs import Changed, Subject, own_of, prepare
from debiaser.auditing.marks import apply_marks, match_marks
from debiaser.auditing.output import write_audit
from debiaser.auditing.selection import prove
from debiaser.auditing.verdict import BIASED
from debiaser.data.cache import user_cache
from debiaser.data.own import Columns, OwnData, read_own
from debiaser.errors import Misuse
from debiaser.learn.machine import environment

# --- What to do with the findings, and a few lines that are filled in for this very data


def what_next(examined: Examined, options: dict[str, Any], model_dir: str | None = None) -> dict[str, Any]:
    """Sentences and a snippet; `options`: what the person named beside the source, `model_dir`: a model made of it."""
    kind = examined.diagnosis.kind[examined.pool]
    against, wrong = int((kind != "aligned").sum()), int((kind == "mislabelled").sum())
    steps = [f"Look at the rows that stand out and mark them: {against:,} go against the easy rule."] if against else []
    if wrong:
        steps.append(f"Check labels first where they are likely wrong: {wrong:,} rows.")
    if model_dir:
        steps.append("Use the exported model with the line below; its folder holds a card with the evidence.")
    elif examined.verdict == BIASED:
        steps.append(
            "Train against the rule with the lines below: they train the controls too, prove the difference on "
            "held-out rows and export a model. For a loop of your own, draw batches by weights.csv (ScoreSampler)."
        )
    else:
        steps.append("Collect rows from where the model failed in the field: they show what this data cannot.")
    return {"sentences": steps, "snippet": snippet(examined, options, model_dir)}


def snippet(examined: Examined, options: dict[str, Any], model_dir: str | None) -> str:
    """Lines to copy: they run as they stand, but for what is written in capitals."""
    own = examined.subject.own
    if model_dir:
        return f"debiaser predict {model_dir} NEW_{'PICTURES' if own.kind == 'image' else 'TEXTS'}"
    if not own.total:  # the rows were in memory
        return (
            "from debiaser import ScoreSampler\n"
            "sampler = ScoreSampler(findings.rows['probability'], seed=0)\n"
            "loader = DataLoader(dataset, 128, sampler=sampler)"
        )
    verb = "debias" if examined.verdict == BIASED else "audit"
    named = "".join(f", {name}={value!r}" for name, value in {**options, "out": f"debiaser-{verb}"}.items())
    return f"import debiaser\nfindings = debiaser.{verb}({own.source!r}{named})\nprint(findings)"


@dataclass(frozen=True)
class Request:
    """What a person asked for: which columns, which network, how thoroughly, and where the results go."""

    columns: Columns = dataclasses.field(default_factory=Columns)
    backbone: str | None = None
    finetune: bool = False
    seeds: int = 0  # 0: two for an audit, three for debias
    workers: int = 0  # 0: as many as there are cores
    seed: int = 0
    epochs: int | None = None
    in_sample: bool = False
    matters: tuple[str, ...] = ()
    confirmed: Path | None = None
    max_cost: float = MAX_COST
    redact: frozenset[str] = frozenset()
    out: Path | None = None

    def __post_init__(self) -> None:
        """Refuse numbers that cannot be meant, before anything is read."""
        for name, value, least in (("seed", self.seed, 0), ("epochs", self.epochs, 1), ("max_cost", self.max_cost, 0)):
            if value is not None and not value >= least:  # no number at all is not either
                raise Misuse(f"{name} must be at least {least}, got {value}")

    def plan(self) -> Plan:
        """How the rows are examined."""
        return Plan(
            seeds=max(2, self.seeds),
            plain_seeds=1 if self.finetune else 3,  # a whole network is trained five times a seed
            judge_seeds=1 if self.finetune else 2,
            workers=self.workers or os.cpu_count() or 1,
            seed=self.seed,
            epochs=self.epochs,
            in_sample=self.in_sample,
            matters=self.matters,
        )


@contextmanager
def private() -> Iterator[None]:
    """What is written meanwhile can be read by its owner only."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def prepared(source: str | Path, request: Request, need_test: bool) -> Subject:
    """The rows with their inputs; where pictures changed meanwhile, what is there now counts, and is read once more."""

    def attempt() -> Subject:
        own = read_own(source, request.columns, request.seed, need_test=need_test)
        return prepare(own, request.backbone, finetune=request.finetune)

    try:
        return attempt()
    except Changed:
        return attempt()


def audit_source(source: str | Path, request: Request) -> Findings:
    """What is found in a person's data, and its page where `out` is given."""
    with private():
        subject = prepared(source, request, need_test=False)
        examined = look(subject, np.arange(len(subject.own)), request)
        return conclude(examined, request)


def audit_answers(source: str | Path, pred_probs: Any, features: Any, request: Request) -> Findings:
    """What is found in a person's data by the answers of a model that they already have."""
    with private():
        own = read_own(source, request.columns, request.seed)
        return conclude(examine_model(own, pred_probs, features, work_folder(own, request)), request)


def look(subject: Subject, pool: Any, request: Request) -> Examined:
    """The rows examined, with what a person has confirmed about them; bad files are told before any training."""
    if request.confirmed:
        match_marks(subject.own, pool, Path(request.confirmed))
    examined = examine(subject, pool, work_folder(subject.own, request), request.plan())
    return apply_marks(examined, Path(request.confirmed)) if request.confirmed else examined


def work_folder(own: OwnData, request: Request) -> Path:
    """Where models are kept, so that the same command goes on from there."""
    return request.out or user_cache("audits") / own.identity


def conclude(examined: Examined, request: Request, evaluation: Evaluation | None = None, **more: Any) -> Findings:
    """The findings, written to `out` where it is given."""
    chosen = choose(examined)
    told = {"next": what_next(examined, named_options(request), more.get("model_dir"))}
    made = {"seed": request.seed, "environment": environment("cpu")}
    summary = {**summarise(examined, chosen), **told, **more, **made}
    findings = Findings(summary, rows_of(examined), request.out)
    if request.out is not None:
        write_audit(examined, chosen, findings, request.out, request.redact, evaluation)
    return findings


def named_options(request: Request) -> dict[str, Any]:
    """What a person named beside the source that decides what is examined, as keywords of `audit` and `debias`."""
    named = {**dataclasses.asdict(request.columns), "backbone": request.backbone, "finetune": request.finetune}
    return {name: value for name, value in named.items() if value}


def debias_source(source: str | Path, request: Request) -> Findings:
    """The audit, then controls and the debiased model, the difference on held-out rows, and the exported model."""
    with private():
        subject = prepared(source, request, need_test=True)
        own = subject.own
        held_out = own.rows("test").numpy()
        pool = np.flatnonzero(own.split != "test")
        examined = look(subject, pool, request)
        train, valid = (own.rows(part).numpy() for part in ("train", "valid"))
        evaluation, more = prove(examined, train, valid, held_out, request.seeds or 3, request.max_cost)
        folder = work_folder(own, request) / "model"
        export_model(folder, subject, examined, evaluation, more["repair"])
        write_evaluation(folder.parent / "evaluation.json", subject, evaluation, more["repair"])
        return conclude(examined, request, evaluation, **more, model_dir=str(folder))


def audit(
    source: Any,
    pred_probs: Any = None,
    features: Any = None,
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
    """What is found in data of one's own: a path or a hub name, a dataset of (x, y), or the answers of a model.

    `audit("folder")` reads and trains; `audit(labels, pred_probs, features)` examines a model that exists, by its
    probabilities (n, k) for rows it was not trained on and the features (n, h) that enter its last layer. With `out` a
    page is written there. Further options are those of the command: backbone, seeds, workers, seed, epochs, ...
    """
    columns = Columns(label, image, text, group, split, unit)
    request = make_request(columns, out, options)
    if pred_probs is not None:
        if out is not None:
            raise Misuse("answers alone make no page; for one, name their data: debiaser audit SOURCE --probs FILE")
        return examine_answers(source, pred_probs, features, request.seed)
    if isinstance(source, str | Path):
        return audit_source(source, request)
    with private():
        subject = prepare(own_of(source), request.backbone)
        return conclude(look(subject, np.arange(len(subject.own)), request), request)


def make_request(columns: Columns, out: str | Path | None, options: dict[str, Any]) -> Request:
    """The request behind keyword arguments; an unknown one is named."""
    try:
        return Request(columns=columns, out=None if out is None else Path(out), **options)
    except TypeError as error:
        known = ", ".join(name for name in Request.__dataclass_fields__ if name not in {"columns", "out"})
        raise Misuse(f"{error.args[0].split('()')[-1].strip()}; known options: {known}") from None


def debias(model: Any, dataset: Any = None, *how: Any, **options: Any) -> Any:
    """Debias a network on a dataset, `debias(model, dataset, PGD())`, or data of one's own, `debias("folder")`.

    The first gives the network and the scores (see `debiaser.methods.debias`), the second the findings of the command
    of that name, with a folder `out` for the page and the exported model.
    """
    if isinstance(model, str | Path) and dataset is None:
        names = ("label", "image", "text", "group", "split", "unit")
        columns = Columns(**{name: options.pop(name, None) for name in names})
        return debias_source(model, make_request(columns, options.pop("out", None), options))
    from debiaser.methods.debias import debias as debias_network

    return debias_network(model, dataset, *how, **options)
