"""What to do with the findings, and a few lines that are filled in for this very data."""

from typing import Any

from debiaser.auditing.audit import Examined
from debiaser.auditing.verdict import BIASED


def what_next(examined: Examined, options: dict[str, Any], model_dir: str | None = None) -> dict[str, Any]:
    """Sentences and a snippet; `options`: what the person named beside the source, `model_dir`: a model made of it."""
    kind = examined.kinds.kind[examined.pool]
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
        steps.append(
            "Collect rows from where the model failed in the field: they show what this data cannot. Labels are not "
            "needed; the lines below take their folder."
        )
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
    told = options if verb == "debias" else {**options, "field": "FOLDER_FROM_THE_FIELD"}
    named = "".join(f", {name}={value!r}" for name, value in {**told, "out": f"debiaser-{verb}"}.items())
    return f"import debiaser\nfindings = debiaser.{verb}({own.source!r}{named})\nprint(findings)"
