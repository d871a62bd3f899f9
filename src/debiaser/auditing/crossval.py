"""Out-of-fold models: no row is judged by a model that was trained on it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from debiaser.auditing.inputs import Material
from debiaser.auditing.jobs import Job, Predictions, Rows, probabilities, read_model, run
from debiaser.data.augment import Augmentation
from debiaser.learn.groups import balancing_weights
from debiaser.learn.recipe import Recipe
from debiaser.learn.sampler import effective_sample_size

ALPHA = 0.7  # of the easy model's GCE, as in PGD
ENOUGH = 0.1  # share of the rows that draws by score should rest on
Vector = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Trainer:
    """Where models are trained: on what, split into which folds (-1: never asked), by how many processes."""

    material: Material
    y: Rows
    fold: Rows
    folder: Path
    workers: int = 1
    seed: int = 0
    epochs: int | None = None  # of every training, instead of what its recipe says
    recipe_number: int = 0  # which of the easy recipes, the longest first

    @property
    def rows(self) -> Rows:
        """The rows that are in a fold."""
        return np.flatnonzero(self.fold >= 0)

    @property
    def folds(self) -> range:
        return range(int(self.fold.max()) + 1)

    @property
    def trained_on(self) -> int:
        """About how many rows a model is trained on."""
        return len(self.rows) * (len(self.folds) - 1) // len(self.folds) if len(self.folds) > 1 else len(self.rows)

    def biased_recipe(self, rows: int) -> Recipe:
        """Short and slow, for this many rows."""
        return self.as_asked(self.material.biased_recipes(rows)[self.recipe_number])

    def long_recipe(self, rows: int) -> Recipe:
        """Long enough to learn what can be learnt from this many rows."""
        return self.as_asked(self.material.long_recipe(rows))

    def plain_recipe(self, rows: int) -> Recipe:
        """Long enough for each of several models that answer together."""
        return self.as_asked(self.material.plain_recipe(rows))

    def judge_recipe(self, rows: int) -> Recipe:
        """One of the trainings of a judging model."""
        return self.as_asked(self.material.judge_recipe(rows))

    def as_asked(self, recipe: Recipe) -> Recipe:
        """The recipe with the epochs that a person asked for."""
        return replace(recipe, epochs=self.epochs or recipe.epochs)

    def jobs(
        self,
        name: str,
        recipe: Recipe,
        seed: int,
        alpha: float | None = None,
        weight: Vector | None = None,
        augment: Augmentation | None = None,
        start: Sequence[str] | None = None,
    ) -> list[Job]:
        """One job per fold: train on the others, ask about it (a single fold: train on it).

        `weight`: (n,); `start`: the jobs, by fold, whose networks these go on from.
        """
        made = []
        for fold in self.folds:
            train = np.flatnonzero((self.fold >= 0) & ((self.fold != fold) | (len(self.folds) == 1)))
            made.append(
                Job(
                    name,
                    self.material,
                    self.y,
                    train,
                    np.flatnonzero(self.fold == fold),
                    recipe,
                    self.seed + seed,
                    alpha,
                    None if weight is None else weight[train],
                    augment,
                    None if start is None else start[fold],
                )
            )
        return made

    def out_of_fold(self, name: str, jobs: Sequence[Sequence[Job]]) -> "OutOfFold":
        """What the models of these jobs say, each about the rows it never saw; one sequence of jobs per seed."""
        flat = [job for each in jobs for job in each]
        answers = run(flat, self.folder, name, self.workers)
        n, classes = len(self.y), len(self.material.classes)
        probability = np.full((len(jobs), n, classes), np.nan)
        score = np.full((len(jobs), n), np.nan)
        for number, said in enumerate(answers):
            put(said, number // len(self.folds), probability, score, self.y)
        return OutOfFold(probability, score, tuple(tuple(job.key for job in each) for each in jobs))

    def balanced(self, within: NDArray[np.bool_] | None = None) -> Vector:
        """(n,) weights by which every class is drawn equally often; 0 outside the folds (and outside `within`)."""
        inside = self.fold >= 0 if within is None else (self.fold >= 0) & within
        weight = np.zeros(len(self.y))
        weight[inside] = balancing_weights(self.y[inside])
        return weight


def put(said: Predictions, seed: int, probability: NDArray[np.float64], score: NDArray[np.float64], y: Rows) -> None:
    """Write one model's answers where they belong; its scores in units of their mean, so that models agree."""
    probability[seed, said.rows] = said.probability
    norms = said.gradient_norm(y)
    score[seed, said.rows] = norms / max(norms.mean(), 1e-12) if len(norms) else norms


@dataclass(frozen=True, eq=False)
class OutOfFold:
    """By seed: probabilities (s, n, k) and scores (s, n), NaN for rows outside; keys of the models by seed and fold."""

    probability_by_seed: NDArray[np.float64]
    score_by_seed: NDArray[np.float64]
    keys: tuple[tuple[str, ...], ...]

    @cached_property
    def probability(self) -> NDArray[np.float64]:
        """(n, k) over seeds."""
        return np.asarray(self.probability_by_seed.mean(0))

    @cached_property
    def score(self) -> Vector:
        """(n,) over seeds: how strongly a row goes against the models."""
        return np.asarray(self.score_by_seed.mean(0))

    @cached_property
    def answer(self) -> Rows:
        """(n,) the class that is most probable; -1 outside."""
        known = ~np.isnan(self.probability[:, 0])
        return np.where(known, np.nan_to_num(self.probability).argmax(1), -1)


Models = Sequence[Sequence[nn.Module]]  # networks by seed and fold


def read_models(trainer: Trainer, said: OutOfFold) -> Models:
    """The networks that gave these answers, by seed and fold."""
    return [[read_model(trainer.material, trainer.folder / key) for key in by_fold] for by_fold in said.keys]


def predict_changed(trainer: Trainer, panel: Models, rows: Rows, entered: Tensor) -> NDArray[np.float64]:
    """(s, b, k) by seed what networks say about changed inputs (b, ...) of these rows, which none of them ever saw."""
    probability = np.zeros((len(panel), len(rows), len(trainer.material.classes)))
    for number in np.unique(trainer.fold[rows]):
        mine = np.flatnonzero(trainer.fold[rows] == number)
        for seed, by_fold in enumerate(panel):
            model = by_fold[number if len(by_fold) > 1 else 0]  # a single one: scores in sample
            probability[seed, mine] = probabilities(model, entered[mine])
    return probability


def train_biased_models(trainer: Trainer, seeds: int, in_sample: bool = False) -> tuple[Trainer, OutOfFold]:
    """Models that learn what is easy: GCE, short, on clean inputs; `in_sample`: trained on the rows they judge.

    The longer they learn, the fewer rows their scores rest on. The desk that comes back is set to the longest of the
    recipes that leaves them a tenth of the rows, else to the shortest.
    """
    where = replace(trainer, fold=np.where(trainer.fold >= 0, 0, -1)) if in_sample else trainer
    for recipe_number, recipe in enumerate(map(trainer.as_asked, trainer.material.biased_recipes(where.trained_on))):
        trainer = replace(trainer, recipe_number=recipe_number)
        said = where.out_of_fold("easy", [where.jobs("easy", recipe, seed, ALPHA) for seed in range(seeds)])
        score = said.score[trainer.rows]
        if effective_sample_size(score / score.sum()) >= ENOUGH * len(score):
            break
    return trainer, said


def train_plain_models(trainer: Trainer, seeds: int) -> OutOfFold:
    """Models that learn what they can from class-balanced draws: V."""
    recipe, weight = trainer.plain_recipe(trainer.trained_on), trainer.balanced()
    return trainer.out_of_fold("plain", [trainer.jobs("plain", recipe, seed, weight=weight) for seed in range(seeds)])
