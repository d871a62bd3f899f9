"""An audit of a table of texts: `python examples/own_texts.py [TABLE.csv]`, columns `text` and `label`.

Without a table, one is made: short reviews in which a day of the week goes with the label in 95% of the samples. The
audit is not told about the days. It needs `pip install 'debiaser[models]'` and `debiaser data get minilm`, or the
folder of another encoder as `backbone`. The same as a command: `debiaser audit TABLE.csv --text text --label label`.
"""

import sys

import numpy as np
import pandas as pd

from debiaser import audit

WORDS = ("the", "film", "was", "a", "story", "with", "actors", "and", "music", "that", "long", "evening", "we", "saw")
OPINION, DAY = ("boring", "moving"), ("Tuesday", "Thursday")


def make_table(rows: int = 400, aligned: float = 0.95) -> pd.DataFrame:
    """Made-up reviews; `aligned`: how often the day goes with the label."""
    random = np.random.default_rng(0)
    labels = np.arange(rows) % 2
    days = np.where(random.random(rows) < aligned, labels, 1 - labels)
    texts = []
    for label, day in zip(labels, days, strict=True):
        words = [*random.choice(WORDS, 10), OPINION[label], DAY[day]]
        texts.append(" ".join(random.permutation(words)))
    return pd.DataFrame({"text": texts, "label": np.array(["negative", "positive"])[labels]})


def main(source: str | None = None, out: str | None = None, **options: object) -> dict[str, object]:
    """The verdict with its reasons, and the words that the model follows."""
    table = make_table() if source is None else source
    findings = audit(table, text="text", label="label", out=out, **options)
    print(findings)
    words = [word for view in findings.summary["views"] for word in view["words"] or ()]
    return {"verdict": findings.verdict, "words": words, "to mark": len(findings.to_mark(60))}


if __name__ == "__main__":
    print(main(sys.argv[1] if len(sys.argv) > 1 else None, out="debiaser-audit"))
