"""Tables that change one thing in PGD or LfF: `norm`, `ablation`, `gce_ablation`, `single_stage`, and so on."""

from debiaser.bench.studies.claims import Rule, above, among, beside, best, both, everywhere, falling, lowest
from debiaser.bench.studies.comparisons import CMNIST_RHOS, cell
from debiaser.bench.studies.study import Cell, Study

NORMS = {"L1": ("p=1",), "L2": (), "L2 squared": ("power=2",), "Linf": ("p=inf",), "L0.7": ("p=0.7",)}
MARGIN = 10.0  # points above Vanilla that count as debiasing


def all_above(names: list[str], other: str, by: float) -> Rule:
    """Every one of these cells is so many points above another."""
    return both(*(above(name, other, by) for name in names))


norm = Study(
    "norm",
    "Which norm of the gradient",
    "L1, L2 and Linf are each at least 10 points above Vanilla, and the squared L2 norm is the lowest of the four.",
    tuple(
        each
        for dataset, rho in (("cmnist", 0.005), ("mbmnist", 0.1), ("ccifar", 0.01))
        for each in (
            *(Cell(name, dataset, "pgd", rho, changes, printed=False) for name, changes in NORMS.items()),
            cell("vanilla", dataset, rho, printed=False),
        )
    ),
    everywhere(
        both(
            all_above(["L1", "L2", "Linf"], "Vanilla", MARGIN),
            among(["L1", "L2", "L2 squared", "Linf"], lowest("L2 squared")),
        )
    ),
    "The paper draws bars without numbers and names no rho; L0.7 is what the released code computes (D3).",
)

WITH = {False: "no", True: "yes"}
ablation = Study(
    "ablation",
    "GCE and augmentation",
    "PGD with both GCE and augmentation is the best of the four (a tie within one deviation counts).",
    tuple(
        Cell(
            f"GCE {WITH[gce]}, augmentation {WITH[augment]}",
            dataset,
            "pgd",
            rho,
            (*(() if gce else ("alpha=none",)), *(() if augment else ("augment=false",))),
            variant=f"gce={WITH[gce]} augmentation={WITH[augment]}",
        )
        for dataset, rho in (("cmnist", 0.005), ("mbmnist", 0.1))
        for augment in (False, True)
        for gce in (False, True)
    ),
    everywhere(best("GCE yes, augmentation yes", rivals_needed=3)),
    "Without GCE the biased model is trained by cross-entropy. Under `fast` the biased stage never augments "
    "(docs/recipes.md), so augmentation is that of the debiased stage.",
)

ALPHAS = (0.3, 0.5, 0.7, 0.9)


def alpha_cell(alpha: float, rho: float, biased: bool) -> Cell:
    """The accuracy of the debiased or of the biased model with this exponent."""
    changes = () if alpha == 0.7 else (f"alpha={alpha}",)
    if not biased:
        return Cell(f"alpha {alpha}", "cmnist", "pgd", rho, changes, variant=f"alpha={alpha}")
    name, variant = f"alpha {alpha}, biased model", f"alpha={alpha} biased"
    return Cell(name, "cmnist", "pgd", rho, changes, reads="stages.biased.unbiased", variant=variant)


gce_ablation = Study(
    "gce_ablation",
    "Study 1: the exponent alpha of GCE",
    "The larger alpha, the more biased the biased model: its unbiased accuracy falls from 0.3 to 0.9.",
    tuple(alpha_cell(alpha, rho, biased) for rho in CMNIST_RHOS for biased in (False, True) for alpha in ALPHAS),
    everywhere(falling([f"alpha {alpha}, biased model" for alpha in ALPHAS])),
    "The paper's own sentence (best at 0.9) fits one of its three rows, so this is judged instead (D30).",
)


STAGES = {"Multi-stage": ("multi-stage", ()), "Single-stage": ("single-stage", ("joint=true",))}
single_stage = Study(
    "single_stage",
    "Study 2: scores once, or renewed every epoch",
    "Scoring once gives the higher accuracy (a tie within one deviation counts).",
    tuple(
        Cell(f"{name}{words}", "cmnist", "pgd", rho, changes, reads=reads, variant=variant, metric=metric)
        for rho in CMNIST_RHOS
        for words, reads, metric in (("", "metrics.unbiased", "unbiased"), (", time", "seconds", "seconds"))
        for name, (variant, changes) in STAGES.items()
    ),
    everywhere(among(list(STAGES), best("Multi-stage"))),
    "Single-stage: two networks with starts of their own, side by side, scores renewed after every epoch. Times are "
    "those of each run's machine, which may have had other work, and are not judged.",
)

SAME_RATE = "Resampling, the rate of Reweighting"
reweighting = Study(
    "reweighting",
    "Study 3: draw rows by score, or weight them",
    "Resampling gives the higher accuracy (a tie within one deviation counts).",
    tuple(
        each
        for rho in CMNIST_RHOS
        for each in (
            Cell("Resampling", "cmnist", "pgd", rho, variant="resampling"),
            Cell(SAME_RATE, "cmnist", "pgd", rho, ("rate=0.05",), printed=False),
            Cell("Reweighting", "cmnist", "pgd", rho, ("use=reweight", "rate=0.05"), variant="reweighting"),
        )
    ),
    everywhere(
        beside(
            among(["Resampling", "Reweighting"], best("Resampling")),
            among([SAME_RATE, "Reweighting"], best(SAME_RATE)),
            "at the same rate",
        )
    ),
    "A row's weight is its score over the mean score, so that weights average 1 and some rows weigh hundreds of times "
    "that. With them the second stage does not bear the recipe's rate, nor a fifth of it, the paper's, at which it "
    "ends at chance (in results/): Reweighting takes a twentieth, of two rates that it bears the one with the higher "
    "accuracy on the validation rows of seed 0. Resampling at that rate stands beside it.",
)

BY_NORM, ALONE = "score=gradient", "relative=false"  # what LfF averages; the biased network's average alone
effect_grad_score = Study(
    "effect_grad_score",
    "Study 4: gradient norm against loss",
    "PGD drawn by loss is below PGD, and LfF with gradient norms is above LfF.",
    tuple(
        each
        for rho in CMNIST_RHOS
        for each in (
            cell("lff", "cmnist", rho),
            Cell("PGD + loss", "cmnist", "pgd", rho, ("score=loss",), variant="score=loss"),
            Cell("LfF + gradient", "cmnist", "lff", rho, (BY_NORM, ALONE), variant=BY_NORM),
            Cell("LfF + gradient of both networks", "cmnist", "lff", rho, (BY_NORM,), variant=BY_NORM),
            Cell("LfF + loss of the biased network", "cmnist", "lff", rho, (ALONE,), printed=False),
            cell("pgd", "cmnist", rho),
        )
    ),
    everywhere(
        both(
            above("PGD", "PGD + loss"),
            beside(
                above("LfF + gradient", "LfF"),
                above("LfF + gradient of both networks", "LfF"),
                "norms of both networks",
            ),
        )
    ),
    "PGD + loss: cross-entropy of the biased model after its last epoch; here it does not collapse as in the paper, "
    "and its distance from PGD is small. LfF + gradient: the paper says that the gradient norm replaces "
    "LfF's relative difficulty, so a row weighs its average norm in the biased network. Norms in place of the "
    "losses of both networks, the other reading of D38 and the one judged here first, weigh conflicting rows far less: "
    "the share of all weight on them is score_conflicting_mass in results/. LfF + loss of the biased network is there "
    "to tell the norm from the absence of the second network.",
)
