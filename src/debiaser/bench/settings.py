"""Per benchmark: network, augmentation, recipes and what differs from a method's defaults, each with its source."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from debiaser.data.augment import PAPER, Augmentation
from debiaser.learn.recipe import Recipe

Stages = Mapping[str, Mapping[str, Any]]  # by stage: what differs there from the recipe


@dataclass(frozen=True)
class Setting:
    """How a benchmark is run; `methods` and `stages` hold, per method, only what differs.

    `methods`: fields that differ from the defaults. `stages`, by recipe and method: what differs in its stages.
    """

    net: str
    rho: float
    augment: Augmentation | None
    recipes: Mapping[str, Recipe]
    methods: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    stages: Mapping[tuple[str, str], Stages] = field(default_factory=dict)

    def recipe(self, name: str, method: str) -> Recipe:
        """The recipe of this name for this method."""
        return replace(self.recipes[name], stages=self.stages.get((name, method), {}))

    def fields(self, method: str, rho: float) -> dict[str, Any]:
        """What differs from the method's defaults here, for this rho."""
        return {**self.methods.get(method, {}), **(BY_RHO[method](rho) if method in BY_RHO else {})}


# Rules that need rho. JTT: the paper upweights the error set by 1 / rho in all experiments (D20).
BY_RHO: dict[str, Callable[[float], dict[str, Any]]] = {"jtt": lambda rho: {"upweight": 1 / rho}}


# The paper's hyperparameter table, column CMNIST (verified in the released code).
CMNIST_PAPER = Recipe(
    name="paper",
    epochs=100,
    batch_size=128,
    optimizer="sgd",
    lr=0.02,
    momentum=0.9,
    weight_decay=1e-3,
    schedule="step",
    decay=0.1,
    decay_every=40,
    single_stage=1,
)

# Ten epochs to identify the errors, of a hundred (D20).
JTT_PAPER: Stages = {"identification": {"epochs": 10}}

# What PGD's biased stage was found to need holds for every first model that is to take the shortcut, and only that:
# short, slow, on clean pictures (docs/recipes.md). The rest of the 20 epochs goes to the second model.
FIRST: Mapping[str, Any] = {"epochs": 4, "lr": 0.02, "augment": False}
SECOND: Mapping[str, Any] = {"epochs": 16}

CMNIST = Setting(
    net="simconv1",
    rho=0.005,
    augment=PAPER,
    recipes={"paper": CMNIST_PAPER, "fast": Recipe(name="fast", epochs=10, lr=0.1)},
    stages={
        # chosen on an unbiased copy of the validation pictures: docs/recipes.md
        ("fast", "pgd"): {"biased": FIRST, "debiased": SECOND},
        ("fast", "jtt"): {"identification": FIRST, "final": SECOND},
        **{("fast", each): {"reference": FIRST, "debiased": SECOND} for each in ("bpa", "cnc", "eiil", "george")},
        ("paper", "jtt"): JTT_PAPER,
    },
    methods={"eiil": {"reference": 1}},  # the stage itself is short
)

SETTINGS: dict[str, Setting] = {
    "digits": Setting(
        net="simconv1",
        rho=0.05,
        augment=PAPER,
        recipes={
            "paper": CMNIST_PAPER,  # the paper has no such set; its row for Colored MNIST
            "fast": Recipe(name="fast", epochs=30, batch_size=64, lr=0.05),
        },
        stages={
            ("fast", "pgd"): {"biased": {"epochs": 4}, "debiased": {"epochs": 56}},  # docs/recipes.md
            ("paper", "jtt"): JTT_PAPER,
        },
    ),
    "cmnist": CMNIST,
    "cmnist-colour": CMNIST,
}
