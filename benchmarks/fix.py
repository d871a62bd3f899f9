"""What 60 and 120 marks gain on real datasets with known groups, compared with no marks and all group labels.

    python benchmarks/fix.py waterbirds --data DIR --work DIR --draws 3 --out results/fix

For each draw `debias` runs with default options on the training samples, four times: without anything, with 60 marks
(`findings.to_mark(60)`, answered by the truth), with 60 more, and with the group of every sample (`--use-groups`); on
sets without a shortcut only the first. Every candidate's exported model answers the test set: mean and worst over class
x group. Truth is read for nothing but the answers to marks and this evaluation. Draws that are in the folder are not
made again.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

import debiaser
from debiaser.auditing.export import read_exported
from debiaser.auditing.inputs import prepare
from debiaser.data.own import Columns, read_own
from debiaser.io import write_json

MARKS = (60, 120)
Pair = tuple[pd.DataFrame, pd.DataFrame]
SENTENCES = {  # of texts whose shortcut is a sentence of one topic or another
    "travel": (
        "I watched it on a train to the coast.",
        "We had just come back from the airport.",
        "The hotel had it on in the lobby.",
        "It was on during a long flight home.",
        "I saw it on a ferry between two islands.",
        "Our bus across the mountains showed it.",
    ),
    "food": (
        "We ordered a pizza before it started.",
        "I had just made a pot of soup.",
        "There was cake and coffee on the table.",
        "My sister had baked bread that evening.",
        "We ate noodles while it was on.",
        "The popcorn was fresh and salty.",
    ),
}


def waterbirds(data: Path, _: int) -> Pair:
    """All 4,795 training images and the official test set: image, label, place."""
    table = pd.read_csv(data / "waterbirds" / "metadata.csv")
    table["image"] = [str((data / "waterbirds" / name).resolve()) for name in table.img_filename]
    table["label"] = np.where(table.y == 1, "waterbird", "landbird")
    table["group"] = np.where(table.place == 1, "water", "land")
    return table[table.split == 0], table[table.split == 2]


def celeba(data: Path, target: str, bias: str) -> Pair:
    """All training faces and all of the official test set."""
    folder = data / "celeba"
    table = pd.read_csv(folder / "list_attr_celeba.csv").merge(pd.read_csv(folder / "list_eval_partition.csv"))
    table["image"] = [str((folder / "img_align_celeba" / name).resolve()) for name in table.image_id]
    table["label"] = np.where(table[target] == 1, target.lower(), f"not_{target.lower()}")
    table["group"] = np.where(table[bias] == 1, bias.lower(), f"not_{bias.lower()}")
    return table[table.partition == 0], table[table.partition == 2]


def fairface(data: Path, target: str, bias: str) -> Pair:
    """Faces from 10 to 29 and from 40 to 59 years of FairFace: age against gender, or gender against age."""
    parts = []
    for name in ("train", "val"):
        table = pd.read_csv(data / "fairface" / f"{name}_labels.csv")
        ages = {"10-19": "young", "20-29": "young", "40-49": "old", "50-59": "old"}
        table = table.assign(age=table.age.map(ages), gender=table.gender.str.lower()).dropna(subset=["age"])
        table["image"] = [str((data / "fairface" / each).resolve()) for each in table.file]
        parts.append(table.assign(label=table[target], group=table[bias]))
    return parts[0], parts[1]


def short_reviews(data: Path) -> pd.DataFrame:
    """The first 60 words of film reviews, which take a third of the time of whole ones."""
    table = pd.read_csv(data / "imdb_reviews.csv")
    return table.assign(text=[" ".join(text.split()[:60]) for text in table.text]).drop_duplicates("text")


def reviews(data: Path, draw: int, follow: float) -> Pair:
    """The first words of film reviews, before or after a sentence on travel or on food; in training it goes with the
    label."""
    table = short_reviews(data)
    stream = np.random.default_rng([draw, 7])
    train, test = table[table.split != "test"].copy(), table[table.split == "test"].copy()
    for part, share in ((train, follow), (test, 0.5)):
        own = np.where(part.label == "positive", "travel", "food")
        other = np.where(part.label == "positive", "food", "travel")
        part["group"] = np.where(stream.random(len(part)) < share, own, other)
        told = [str(stream.choice(SENTENCES[topic])) for topic in part.group]
        before = stream.random(len(part)) < 0.5
        part["text"] = [
            f"{sentence} {text}" if first else f"{text} {sentence}"
            for sentence, text, first in zip(told, part.text, before, strict=True)
        ]
    return train, test


def reviews_with_word(data: Path, draw: int) -> Pair:
    """The first words of film reviews; in training 95% of the positive ones hold a word that most others lack."""
    table, stream = short_reviews(data), np.random.default_rng([draw, 13])
    train, test = table[table.split != "test"].copy(), table[table.split == "test"].copy()
    for part, share in ((train, 0.95), (test, 0.5)):
        follows = stream.random(len(part)) < share
        holds = follows == (part.label == "positive").to_numpy()
        part["group"] = np.where(holds, "word", "none")
        places = stream.integers(0, 40, len(part))
        cut = [text.split() for text in part.text]
        part["text"] = [
            " ".join([*words[:place], *(["incidentally"] if held else []), *words[place:]])
            for words, place, held in zip(cut, places, holds, strict=True)
        ]
    return train, test


def per_cell(table: pd.DataFrame, sizes: dict[tuple[str, str], int], draw: int) -> pd.DataFrame:
    """So many random samples of every class x group."""
    cells = [
        table[(table.label == label) & (table.group == group)].sample(size, random_state=draw)
        for (label, group), size in sizes.items()
        if size
    ]
    return pd.concat(cells).sample(frac=1, random_state=draw)


def skewed(
    read: Callable[..., Pair], target: str, bias: str, count: int, follow: float, positive: float = 0.5
) -> Callable[[Path, int], Pair]:
    """So many samples in which the bias goes with the label in the share `follow`; a test set of 250 a cell.

    positive: the share of the second class; follow 0.5 is no shortcut.
    """

    def draw_pair(data: Path, draw: int) -> Pair:
        train, test = read(data, target, bias)
        labels, groups = sorted(train.label.unique()), sorted(train.group.unique())
        share = {labels[0]: 1 - positive, labels[1]: positive}
        sizes = {
            (label, group): round(count * share[label] * (follow if number == place else 1 - follow))
            for number, label in enumerate(labels)
            for place, group in enumerate(groups)
        }
        return per_cell(train, sizes, draw), per_cell(test, dict.fromkeys(sizes, 250), 0)

    return draw_pair


def natural(target: str, bias: str, count: int) -> Callable[[Path, int], Pair]:
    """So many random training faces, as they are; of the official test set at most 1,500 a cell, so that the rarest
    is there as a whole."""

    def draw_pair(data: Path, draw: int) -> Pair:
        train, test = celeba(data, target, bias)
        sizes = {cell: min(1500, len(part)) for cell, part in test.groupby(["label", "group"])}
        return train.sample(count, random_state=draw), per_cell(test, sizes, 0)

    return draw_pair


def noisy(read: Callable[[Path, int], Pair], share: float) -> Callable[[Path, int], Pair]:
    """The same set with such a share of its training labels wrong."""

    def draw_pair(data: Path, draw: int) -> Pair:
        train, test = read(data, draw)
        wrong = np.random.default_rng([draw, 11]).random(len(train)) < share
        first, second = sorted(train.label.unique())
        return train.assign(label=np.where(wrong, np.where(train.label == first, second, first), train.label)), test

    return draw_pair


def plain_reviews(positive: float = 0.5) -> Callable[[Path, int], Pair]:
    """Film reviews as they are, or fewer positive ones; the group says nothing."""

    def draw_pair(data: Path, draw: int) -> Pair:
        table = short_reviews(data).assign(group="all")
        train, test = table[table.split != "test"], table[table.split == "test"]
        kept = round((train.label == "negative").sum() * positive / (1 - positive))
        rare = train[train.label == "positive"].sample(min(kept, (train.label == "positive").sum()), random_state=draw)
        return pd.concat([train[train.label == "negative"], rare]), test

    return draw_pair


@dataclass(frozen=True)
class Set:
    """How a set is drawn, what its samples are, and whether it holds a shortcut."""

    draw: Callable[[Path, int], Pair]
    kind: str = "image"
    shortcut: bool = True


SMILING, FAIRFACE = ("Smiling", "Male"), ("age", "gender")
SETS = {
    "waterbirds": Set(waterbirds),
    "celeba_blond": Set(natural("Blond_Hair", "Male", 10_000)),
    "celeba_smiling": Set(skewed(celeba, *SMILING, 2400, 0.95)),
    "fairface_age": Set(skewed(fairface, *FAIRFACE, 3000, 0.95)),
    "fairface_gender": Set(skewed(fairface, *FAIRFACE[::-1], 3000, 0.95)),
    "reviews_sentence": Set(lambda data, draw: reviews(data, draw, 0.95), "text"),
    "reviews_word": Set(reviews_with_word, "text"),
    "celeba_attractive": Set(natural("Attractive", "Male", 4_000)),
    "even_smiling": Set(skewed(celeba, *SMILING, 2400, 0.5), shortcut=False),
    "even_smiling_few": Set(skewed(celeba, *SMILING, 2400, 0.5, 0.15), shortcut=False),
    "even_smiling_noisy": Set(noisy(skewed(celeba, *SMILING, 2400, 0.5), 0.1), shortcut=False),
    "even_glasses": Set(skewed(celeba, "Eyeglasses", "Male", 1600, 0.5), shortcut=False),
    "even_fairface_gender": Set(skewed(fairface, *FAIRFACE[::-1], 2400, 0.5), shortcut=False),
    "even_fairface_age": Set(skewed(fairface, *FAIRFACE, 2400, 0.5), shortcut=False),
    "even_fairface_few": Set(skewed(fairface, *FAIRFACE[::-1], 2400, 0.5, 0.2), shortcut=False),
    "even_reviews": Set(plain_reviews(), "text", shortcut=False),
    "even_reviews_few": Set(plain_reviews(0.2), "text", shortcut=False),
    "even_reviews_noisy": Set(noisy(plain_reviews(), 0.1), "text", shortcut=False),
    "even_reviews_sentence": Set(lambda data, draw: reviews(data, draw, 0.5), "text", shortcut=False),
}


def cells(answer: Any, test: pd.DataFrame) -> dict[str, float]:
    """Accuracy in percent: mean and worst over class x group, overall, and of the worst class."""
    right = pd.Series(100.0 * (np.asarray(answer) == test.label.to_numpy()))
    by = right.groupby([test.label.to_numpy(), test.group.to_numpy()]).mean()
    worst_class = right.groupby(test.label.to_numpy()).mean().min()
    return {
        "mean": float(by.mean()),
        "worst": float(by.min()),
        "overall": float(right.mean()),
        "worst_class": float(worst_class),
    }


def test_features(test: pd.DataFrame, kind: str, work: Path) -> Any:
    """(m, h) the features of the test samples, in their order."""
    path = work / "test.csv"
    test[[kind, "label"]].to_csv(path, index=False)
    own = read_own(path, Columns(**{kind: kind, "label": "label"}))
    inputs = torch.from_numpy(np.array(prepare(own, None).material.inputs))
    place = {int(number): row for row, number in enumerate(own.places)}
    return inputs[[place[number] for number in range(len(test))]]


def evaluate(folder: Path, features: Any, test: pd.DataFrame) -> dict[str, dict[str, float]]:
    """Every exported candidate, and the one that was chosen, on the test set."""
    found = {}
    for each in [folder / "model", *sorted((folder / "models").iterdir())]:
        exported = read_exported(each)
        with torch.no_grad():
            answer = exported.model(features.float()).argmax(1)
        found[each.name] = cells([exported.classes[k] for k in answer.tolist()], test)
    return found


def average_precision(findings: Any, truth: "pd.Series[str]") -> dict[str, float]:
    """How well the score ranks the rarer group of each class: average precision among the examined samples."""
    from sklearn.metrics import average_precision_score

    rows, found = pd.DataFrame(findings.rows), {}
    group = truth[rows["id"]].to_numpy()
    for label in sorted(rows["label"].unique()):
        mine = (rows["label"] == label).to_numpy()
        names, counts = np.unique(group[mine], return_counts=True)
        if len(names) > 1:
            rare = group[mine] == names[counts.argmin()]
            found[f"{label}, {names[counts.argmin()]}"] = float(average_precision_score(rare, rows["score"][mine]))
    return found


def one_draw(name: str, data: Path, work: Path, draw: int, workers: int) -> dict[str, Any]:
    """Everything about one draw of a set."""
    chosen = SETS[name]
    train, test = chosen.draw(data, draw)
    work.mkdir(parents=True, exist_ok=True)
    features, source, rows = test_features(test, chosen.kind, work), work / f"train-{draw}.csv", []
    names = train.image if chosen.kind == "image" else [str(number + 1) for number in range(len(train))]
    train[[chosen.kind, "label", "group"]].to_csv(source, index=False)
    truth = pd.Series(train.group.to_numpy(), index=names)
    named = {chosen.kind: chosen.kind, "label": "label", "group": "group", "seed": draw, "workers": workers}
    marks, ranked = pd.DataFrame({"id": [], "mark": []}), {}
    out = work / f"out-{draw}"
    for stage in ("none", *MARKS, "all") if chosen.shortcut else ("none",):
        with tempfile.TemporaryDirectory(dir=work) as scratch:
            start, more = time.perf_counter(), {}
            if isinstance(stage, int):
                new = findings.to_mark(60).iloc[: stage - len(marks)]  # noqa: F821 - of the stage before
                marks = pd.concat([marks, pd.DataFrame({"id": new.id, "mark": truth[new.id].to_numpy()})])
                marks.to_csv(Path(scratch) / "marks.csv", index=False)
                more = {"marks": Path(scratch) / "marks.csv"}
            findings = debiaser.debias(source, out=out, use_groups=stage == "all", **more, **named)
            summary, ranked = findings.summary, ranked or average_precision(findings, truth)
            rows.append(
                {
                    "stage": stage,
                    "seconds": time.perf_counter() - start,
                    "verdict": summary["verdict"],
                    "reasons": summary["reasons"],
                    "exported": summary["exported"],
                    "propagation": summary["propagation"],
                    "selection": summary["selection"],
                    "test": evaluate(out, features, test),
                }
            )
            told = rows[-1]["test"]["model"]
            print(
                f"{name} {draw}, {stage}: {summary['verdict']}, {summary['exported']}, worst {told['worst']:.1f}, "
                f"mean {told['mean']:.1f}, {rows[-1]['seconds']:.0f} s",
                flush=True,
            )
    return {
        "set": name,
        "shortcut": chosen.shortcut,
        "draw": draw,
        "n": len(train),
        "test": len(test),
        "average_precision": ranked,
        "stages": rows,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", choices=SETS)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("results/fix"))
    given = parser.parse_args()
    for draw in range(given.draws):
        for name in given.names:
            path = given.out / f"{name}-{draw}.json"
            if not path.is_file():
                write_json(path, one_draw(name, given.data, given.work / name, draw, given.workers))


if __name__ == "__main__":
    main()
