"""Studies that the paper lacks: controls of length and of resampling, what is scored, which epoch, noise, rho."""

from debiaser.bench.studies.claims import above, both, everywhere, same_order, within
from debiaser.bench.studies.comparisons import METHODS, cell
from debiaser.bench.studies.study import Cell, Study
from debiaser.report.names import method_name

RHO = 0.005


def ours(name: str, method: str, *changes: str, rho: float = RHO, noise: float = 0.0) -> Cell:
    """A cell on Colored MNIST for which the paper has no number."""
    return Cell(name, "cmnist", method, rho, changes, noise, printed=False)


def no_worse(label: str, title: str, claim: str, first: Cell, second: Cell, protocol: str) -> Study:
    """Whether the first of two ways is not more than half a point below the second."""
    judge = everywhere(above(first.name, second.name, by=-0.5))
    return Study(label, title, claim, (first, second), judge, protocol, ours=True)


twice_the_length = Study(
    "twice_the_length",
    "Is it only the longer training? (D39)",
    "PGD is at least 10 points above Vanilla of twice the length, and resampling with a fresh network is as well.",
    (
        cell("vanilla", "cmnist", RHO, table="control"),
        ours("Vanilla, twice as long", "vanilla", "length=2"),
        ours("LfF, twice as long", "lff", "length=2"),
        ours("Disen, twice as long", "disen", "length=2"),
        ours("Resampling only", "pgd", "inherit=false"),
        cell("pgd", "cmnist", RHO, table="control"),
    ),
    everywhere(
        both(
            above("PGD", "Vanilla, twice as long", by=10.0),
            above("Resampling only", "Vanilla, twice as long", by=10.0),
        )
    ),
    "Resampling only: the debiased model starts afresh instead of from the biased one, so nothing but the draws is "
    "left of step 1. Under `fast` all methods see as many samples already; twice the length is twice that.",
    ours=True,
)

residual = Study(
    "residual",
    "Is it the gradient, or the bounded residual? (D43)",
    "The norm of softmax - onehot alone gives what the whole gradient norm gives, within 0.5 points.",
    (
        ours("Gradient norm", "pgd"),
        ours("Residual norm", "pgd", "score=residual"),
        ours("Loss", "pgd", "score=loss"),
    ),
    everywhere(within("Residual norm", "Gradient norm", 0.5)),
    "The gradient norm of the last layer is residual norm times feature norm; the loss is unbounded.",
    ours=True,
)

whole_network = no_worse(
    "whole_network",
    "Gradient of the head, or of the whole network",
    "The head's norm is not more than 0.5 points below the whole network's.",
    ours("Head", "pgd"),
    ours("Whole network", "pgd", "parameters=all"),
    "The head's takes one forward pass, the whole network's a backward pass for every row.",
)

scored_pictures = no_worse(
    "scored_pictures",
    "Scores of clean or of augmented pictures (D8)",
    "Scoring clean pictures is not more than 0.5 points below scoring one augmented draw of each.",
    ours("Clean", "pgd"),
    ours("Augmented", "pgd", "score_on=augmented"),
    "The paper's formula scores the pictures themselves, its code one augmented draw.",
)

released_code = Study(
    "released_code",
    "What the released code does otherwise (D3, D7, D9)",
    "Each choice of the released code is within 1 point of the paper's formula.",
    (
        ours("Formula", "pgd"),
        ours("GCE with the factor q", "pgd", "extra_q=true"),
        ours("L0.7", "pgd", "p=0.7"),
        ours("Weight and bias", "pgd", "bias=true"),
    ),
    everywhere(both(*(within(name, "Formula", 1.0) for name in ("GCE with the factor q", "L0.7", "Weight and bias")))),
    "Weight and bias is the other reading of 'the parameters of the last layer'.",
    ours=True,
)

RULES = {"last": "last epoch", "best_valid": "best biased validation", "oracle": "oracle"}
selection = Study(
    "selection",
    "Which epoch is reported (D6)",
    "The methods rank alike by their last epoch, by the epoch with the lowest loss on the biased validation rows, and "
    "by the best epoch on test data.",
    tuple(
        Cell(f"{method_name(m)}, {words}", "cmnist", m, RHO, reads=f"selection.{rule}.unbiased", printed=False)
        for rule, words in RULES.items()
        for m in METHODS
    ),
    same_order(tuple(RULES.values())),
    "Epochs of the last stage. The oracle looks at test data and is shown for this comparison only; every other table "
    "reports the last epoch. The loss on biased validation rows is lowest early in LfF and Disen, while they still "
    "follow the shortcut: choosing by it undoes them.",
    ours=True,
)

label_noise = Study(
    "label_noise",
    "Wrong labels",
    "PGD is above Vanilla with 0, 5, 10 and 20% of the training labels flipped.",
    tuple(
        ours(name, method, noise=noise)
        for noise in (0.0, 0.05, 0.1, 0.2)
        for method, name in (("vanilla", "Vanilla"), ("pgd", "PGD"))
    ),
    everywhere(above("PGD", "Vanilla")),
    "A flipped row counts as flipped, not as conflicting; test labels are never flipped. A flipped row goes against "
    "the biased model as a conflicting one does and is drawn as often or more: docs/verdict.md tells the two apart.",
    figure="lines",
    ours=True,
)

rho_sweep = Study(
    "rho_sweep",
    "From hardly any rows against the shortcut to no shortcut at all",
    "PGD is not more than 1 point below Vanilla at any rho from 0.1% to 90%.",
    tuple(
        ours(name, method, rho=rho)
        for rho in (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 0.9)
        for method, name in (("vanilla", "Vanilla"), ("pgd", "PGD"))
    ),
    everywhere(above("PGD", "Vanilla", by=-1.0)),
    "At rho 90% colour says nothing about the digit. The more rows go against the shortcut, the more the biased model "
    "learns the digits themselves; what then has large norms are digits written oddly, and drawing by them costs what "
    "`natural` shows, while there is less and less for Vanilla to lose.",
    figure="lines",
    ours=True,
)
