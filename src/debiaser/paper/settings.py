"""Per benchmark: network, augmentation, recipes and what differs from a method's defaults, each with its source.

Recipes say only what differs from the defaults of `Recipe`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from debiaser.errors import known
from debiaser.learn.recipe import Recipe

if TYPE_CHECKING:
    from debiaser.learn.nets import Colours

Stages = Mapping[str, Mapping[str, Any]]  # by stage: what differs there from the recipe
# As Disen's code has them, which the paper follows for CIFAR, BAR and BFFHQ; and those usual for ImageNet.
CIFAR_COLOURS: "Colours" = ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))
IMAGENET_COLOURS: "Colours" = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


@dataclass(frozen=True)
class Setting:
    """How a benchmark is run; `methods` and `stages` hold, per method, only what differs.

    `methods`: fields that differ from the defaults. `stages`, by recipe and method: what differs in its stages.
    `augment`: one of AUGMENTATIONS, or None. `rho`: None where the bias is natural. `normalise`: what the network's
    inputs are centred and scaled by.
    """

    net: str
    recipes: Mapping[str, Recipe]
    rho: float | None = None
    augment: str | None = None
    methods: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    stages: Mapping[tuple[str, str], Stages] = field(default_factory=dict)
    normalise: "Colours | None" = None

    def recipe(self, name: str, method: str, epochs: int | None = None) -> Recipe:
        """The recipe of this name for this method, with so many epochs in every stage where a number is given."""
        if name not in self.recipes:
            raise known("recipe", name, self.recipes)
        chosen = replace(self.recipes[name], stages=self.stages.get((name, method), {}))
        return chosen if epochs is None else chosen.with_epochs(epochs)

    def fields(self, method: str, rho: float | None) -> dict[str, Any]:
        """What differs from the method's defaults here, for this rho."""
        # JTT: the paper upweights the error set by 1 / rho in all experiments (D20); BAM likewise
        return {**self.methods.get(method, {}), **({"upweight": 1 / rho} if method in ("jtt", "bam") and rho else {})}


# The paper's hyperparameter table, column CMNIST (verified in the released code).
CMNIST_PAPER = Recipe(name="paper", epochs=100, lr=0.02, schedule="step", single_stage=1)

# Ten epochs to identify the errors, of a hundred (D20).
JTT_PAPER: Stages = {"identification": {"epochs": 10}}

# A tenth of the epochs, or one, for the reference of EIIL.
EIIL_FAST: Stages = {"reference": {"epochs": 1}}

# What PGD's biased stage was found to need holds for every first model that is to take the shortcut, and only that:
# short, slow, on clean images (docs/recipes.md). The rest of the epochs goes to the second model.
FIRST: Mapping[str, Any] = {"epochs": 4, "lr": 0.02, "augment": False}
SECOND: Mapping[str, Any] = {"epochs": 16}


def two_stages(
    first: Mapping[str, Any], second: Mapping[str, Any], recipe: str = "fast"
) -> dict[tuple[str, str], Stages]:
    """What differs in the first and the second stage of every method that has two, in this recipe.

    And what differs in `paper`: first models that are short.
    """
    return {
        ("paper", "jtt"): JTT_PAPER,
        # EIIL's too: a tenth, said here since `fast` says by its stages how long the first one is
        ("paper", "eiil"): {"reference": {"epochs": 10}},
        **{(recipe, each): {"biased": first, "debiased": second} for each in ("pgd", "guarded", "dpr", "ula")},
        (recipe, "cells"): {"biased": first, "amplified": first, "debiased": second},
        **{(recipe, each): {"identification": first, "final": second} for each in ("jtt", "bam")},
        (recipe, "xrm"): {"twins": first, "debiased": second},
        **{(recipe, each): {"reference": first, "debiased": second} for each in ("bpa", "cnc", "eiil", "george")},
    }


CMNIST = Setting(
    net="simconv1",
    rho=0.005,
    augment="paper",
    recipes={"paper": CMNIST_PAPER, "fast": Recipe(name="fast", epochs=10, lr=0.1)},
    stages={
        # chosen on an unbiased copy of the validation images: docs/recipes.md
        **two_stages(FIRST, SECOND),
        ("fast", "lff"): {"lff": {"lr": 0.2, "augment": False}},
        ("fast", "disen"): {"disen": {"lr": 0.02}},  # its lambdas multiply the steps: less fits aligned samples too
    },
    methods={
        # the stages above are short themselves; Adam's usual epsilon swamps the gradient of one sample among 54,000
        "eiil": {"reference": 1, "epsilon": 1e-20},
        "cnc": {"temperature": 0.5},  # the authors' 0.05 is for pretrained networks: docs/methods/cnc.md
        # the PGD paper's reading of the average; the released code's, and 8 clusters, fit worse: docs/methods/bpa.md
        "bpa": {"average": "avg", "history": True, "clusters": 64},
    },
)

# SimConv-2 as printed cannot run on 56x56 pixels, so SimConv-1 (D12); decay every 40 epochs, as the text says, where
# the table has a dash (D13).
MBMNIST = Setting(
    net="simconv1",
    rho=0.1,
    augment="paper",
    recipes={
        "paper": replace(CMNIST_PAPER, batch_size=32, lr=0.01, weight_decay=1e-4),
        "fast": Recipe(name="fast", epochs=8, lr=0.1, weight_decay=1e-4),
    },
    stages=two_stages({"epochs": 3, "lr": 0.02, "augment": False}, {"epochs": 13}),  # the shares of CMNIST
    methods={"eiil": {"reference": 1}},
)

# The table's row for all methods, not Disen's own settings as the text says (D17); crop and flip are Disen's (D18).
CCIFAR = Setting(
    net="resnet18",
    rho=0.01,
    augment="shift and flip",
    recipes={
        "paper": replace(CMNIST_PAPER, epochs=200, batch_size=256, optimizer="adam", lr=1e-3, decay=0.5),
        # at most 40 minutes on one thread, half of that with --precision bf16 where the processor has it; not searched
        "fast": Recipe(name="fast", epochs=6, batch_size=256, optimizer="adam", lr=1e-3, weight_decay=1e-4),
    },
    stages=two_stages({"epochs": 4, "augment": False}, {"epochs": 8}),  # corruptions take longer to learn than colours
    methods={"eiil": {"reference": 1}},
    normalise=CIFAR_COLOURS,
)

# The paper's study of data without a bias names everything but batch and epochs; these two are the usual ones.
CIFAR10 = replace(
    CCIFAR,
    rho=None,
    recipes={
        **CCIFAR.recipes,
        "paper": replace(CMNIST_PAPER, epochs=200, lr=0.1, weight_decay=5e-4, schedule="cosine"),
    },
)

BAR = Setting(
    net="resnet18",
    augment="photograph",
    recipes={
        "paper": replace(CMNIST_PAPER, batch_size=16, lr=5e-4, weight_decay=1e-5, decay_every=20),
        "fast": Recipe(name="fast", epochs=10, batch_size=16, lr=5e-3, weight_decay=1e-5),  # not searched
        "features": Recipe(name="features", epochs=10, batch_size=64, lr=0.02),  # a head on frozen features
    },
    # the first of those with the highest biased validation accuracy of PGD: results/search/bar.jsonl
    stages={**two_stages({"epochs": 2}, {"epochs": 18}, "features"), ("fast", "eiil"): EIIL_FAST},
    methods={"jtt": {"upweight": 50}, "eiil": {"reference": 1}},  # there is no rho to take JTT's from (D20)
    normalise=CIFAR_COLOURS,
)

BFFHQ = Setting(
    net="resnet18",
    rho=0.005,
    augment="shift and flip",
    recipes={
        "paper": replace(
            CCIFAR.recipes["paper"], epochs=160, batch_size=64, lr=1e-4, weight_decay=0.0, decay=0.1, decay_every=32
        ),
        "fast": Recipe(name="fast", epochs=10, batch_size=64, optimizer="adam", lr=1e-4, weight_decay=0.0),
    },
    stages={("paper", "jtt"): JTT_PAPER},
    normalise=CIFAR_COLOURS,
)

# The table's row, which is BPA's, with ResNet-50 for the table `real_2` and `--net resnet18` for `real_3` (D15).
CELEBA = Setting(
    net="resnet50",
    recipes={
        "paper": replace(CCIFAR.recipes["paper"], epochs=100, lr=1e-4, weight_decay=1e-2, schedule="cosine"),
        "fast": Recipe(name="fast", epochs=5, batch_size=128, optimizer="adam", lr=1e-4, weight_decay=1e-2),
        "features": replace(BAR.recipes["features"], epochs=5, batch_size=256),  # BAR's; not searched
    },
    stages={
        **two_stages({"epochs": 1}, {"epochs": 9}, "features"),
        ("fast", "eiil"): EIIL_FAST,
        ("paper", "jtt"): {"identification": {"epochs": 1}},
    },
    methods={
        "jtt": {"upweight": 50},  # JTT's own (its README)
        "eiil": CMNIST.methods["eiil"],  # its epsilon: even more samples
    },
    normalise=IMAGENET_COLOURS,
)

# Not in the paper. `paper` is what JTT's authors took for plain training and for the final model (their README), the
# first model sixty epochs long and upweighted a hundred times.
WATERBIRDS = Setting(
    net="resnet50",
    recipes={
        "paper": replace(CMNIST_PAPER, epochs=300, batch_size=64, lr=1e-3, weight_decay=1e-4, schedule="constant"),
        "fast": Recipe(name="fast", epochs=2, batch_size=32, lr=1e-3, weight_decay=1e-4),  # fine-tuned; not searched
        "features": BAR.recipes["features"],  # and its stages: chosen on BAR's validation images, nothing on these
    },
    stages={
        **BAR.stages,
        ("paper", "jtt"): {"identification": {"epochs": 60}},
        ("paper", "eiil"): {"reference": {"epochs": 30}},
    },
    methods={"jtt": {"upweight": 100}, "eiil": {"reference": 1}},
    normalise=IMAGENET_COLOURS,
)

# As JTT and WILDS train BERT: SGD at 1e-5, as the table has it, would hardly train it in five epochs (D16).
CIVILCOMMENTS_PAPER = replace(
    CMNIST_PAPER, epochs=5, batch_size=16, optimizer="adamw", lr=1e-5, weight_decay=1e-2, schedule="linear", clip=1.0
)
CIVILCOMMENTS = Setting(
    net="bert",
    recipes={"paper": CIVILCOMMENTS_PAPER, "fast": replace(CIVILCOMMENTS_PAPER, name="fast", epochs=1, single_stage=2)},
    stages={("paper", "jtt"): {"identification": {"epochs": 2}}},
    methods={"jtt": {"upweight": 6}},  # JTT's own (its README)
)

DIGITS = Setting(
    net="simconv1",
    rho=0.05,
    augment="paper",
    # the paper has no such set; its row for Colored MNIST
    recipes={"paper": CMNIST_PAPER, "fast": Recipe(name="fast", epochs=30, batch_size=64, lr=0.05)},
    stages={
        ("fast", "pgd"): {"biased": {"epochs": 4}, "debiased": {"epochs": 56}},  # docs/recipes.md
        ("fast", "guarded"): {"biased": {"epochs": 4}, "debiased": {"epochs": 56}},
        ("paper", "jtt"): JTT_PAPER,
    },
)

SETTINGS: dict[str, Setting] = {
    "digits": DIGITS,
    "cmnist": CMNIST,
    "cmnist-colour": CMNIST,
    "mbmnist": MBMNIST,
    "ccifar": CCIFAR,
    "cifar10": CIFAR10,
    "bar": BAR,
    "bffhq": BFFHQ,
    "celeba": CELEBA,
    "waterbirds": WATERBIRDS,
    "fairface": BFFHQ,  # its protocol, on other faces
    "civilcomments": CIVILCOMMENTS,
}
