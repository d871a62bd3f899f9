"""Every table and figure of the paper that runs, and studies of ours, in the order in which they are told.

A new study is one more `Study` in this file, whose name is its label: a title, the claim in words, its cells, the rule
that judges it, and what a reader must know.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from debiaser.paper.results import BINS
from debiaser.paper.studies.study import (
    Cell,
    Finding,
    Study,
    Tally,
    above,
    alike,
    beside,
    best,
    compare,
    everywhere,
    falling,
    longer_with_more,
    lowest,
    pick,
    same_order,
    share_of,
    superior,
    within,
)
from debiaser.report.tables import method_name

CMNIST_RHOS = (0.005, 0.01, 0.05)
CMNIST, COLOUR = (tuple((name, rho) for rho in CMNIST_RHOS) for name in ("cmnist", "cmnist-colour"))
FIRST_PLACES = (("cmnist", 0.005), ("mbmnist", 0.1))
METHODS = ("vanilla", "lff", "jtt", "disen", "pgd")
TRIALS = 10


def cell(method: str, name: str = "", *changes: str, **more: Any) -> Cell:
    """A cell of a method, as it is or with fields changed, under this name or the one that its paper writes.

    On Colored MNIST at rho 0.5%, unless it is put elsewhere.
    """
    place = {"dataset": "cmnist", "rho": 0.005}
    return Cell(name or method_name(method), method=method, changes=changes, **{**place, **more})


def ours(method: str, name: str = "", *changes: str, **more: Any) -> Cell:
    """The same where the paper has no number."""
    return cell(method, name, *changes, printed=False, **more)


def at_each(places: Iterable[tuple[str, float | None]], cells: Iterable[Cell]) -> tuple[Cell, ...]:
    """The cells on each dataset with its rho."""
    listed = list(cells)
    return tuple(replace(each, dataset=dataset, rho=rho) for dataset, rho in places for each in listed)


def average_and_worst(methods: Sequence[str], dataset: str, average: str, **more: Any) -> tuple[Cell, ...]:
    """Two cells a method: an average and the worst group."""
    words = {"unbiased": "average", "group_average": "group mean", "worst_group": "worst group"}
    return tuple(
        Cell(f"{method_name(m)}, {words[metric]}", dataset, m, reads=f"metrics.{metric}", metric=metric, **more)
        for metric in (average, "worst_group")
        for m in methods
    )


control = Study(
    "Table 1: unbiased accuracy with injected bias",
    "PGD has the highest unbiased accuracy of the five methods in every column (ties within one standard deviation "
    "count; methods without runs are named).",
    at_each(
        (*CMNIST, *(("mbmnist", rho) for rho in (0.1, 0.2, 0.3)), *(("ccifar", rho) for rho in CMNIST_RHOS)),
        map(cell, METHODS),
    ),
    everywhere(best("PGD")),
    "Multi-bias MNIST: generator and network are ours (D12, D14), so only rankings are comparable.",
)

real_1 = Study(
    "BAR and BFFHQ",
    "PGD has the highest unbiased accuracy of the five methods (ties within one standard deviation count, D29).",
    at_each((("bar", None), ("bffhq", 0.005)), map(cell, METHODS)),
    everywhere(best("PGD")),
    "The network starts from random weights (D19), so numbers are not comparable. BFFHQ's target: see D11.",
)

REAL_2 = ("vanilla", "lff", "eiil", "jtt", "cnc", "pgd")
real_2 = Study(
    "CelebA and CivilComments, average and worst group",
    "PGD has the highest accuracy on the worst group (ties within one standard deviation count, D29).",
    tuple(each for dataset in ("celeba", "civilcomments") for each in average_and_worst(REAL_2, dataset, "unbiased")),
    everywhere(best("PGD, worst group", *(f"{method_name(m)}, worst group" for m in REAL_2))),
    "Averages are over test samples (D27); baselines are from the CNC paper (D28). Random initial weights (D15, D16).",
)

REAL_3 = ("vanilla", "lff", "george", "bpa", "pgd")
real_3 = Study(
    "CelebA with ResNet-18, group mean and worst group",
    "PGD has the highest accuracy on the worst group (ties within one standard deviation count, D29).",
    # the whole image, as BPA's code sees it (D15)
    average_and_worst(REAL_3, "celeba", "group_average", net="resnet18", options=("crop=whole",)),
    everywhere(best("PGD, worst group", *(f"{method_name(m)}, worst group" for m in REAL_3))),
    "The average is the mean over groups (D27); the paper's baselines are from the BPA paper (D28).",
)

FEATURES: dict[str, Any] = {"recipe": "features", "options": ("features=efficientnet_lite0",)}
UNPRINTED = ("george", "bpa", "guarded")
LATER = ("dpr", "cells", "xrm", "bam", "ula", "afr", "neurontune", "groupdro", "rwg", "dfr")  # three know groups
heads = Study(
    "CelebA and Waterbirds: heads on frozen features of EfficientNet-Lite0",
    "PGD's worst-group accuracy is at least 15 points above Vanilla's.",
    (
        *average_and_worst(REAL_2, "celeba", "unbiased", table="real_2", **FEATURES),
        *average_and_worst(UNPRINTED, "celeba", "unbiased", printed=False, **FEATURES),
        *average_and_worst((*REAL_2, *UNPRINTED, *LATER), "waterbirds", "unbiased", printed=False, **FEATURES),
    ),
    everywhere(above("PGD, worst group", "Vanilla, worst group", by=15.0)),
    "The published numbers are for a whole ResNet-50, so only the order of methods can be compared.",
    ours=True,
)

NORMS = (("L1", "p=1"), ("L2",), ("L2 squared", "power=2"), ("Linf", "p=inf"), ("L0.7", "p=0.7"))
norm = Study(
    "Which norm of the gradient",
    "L1, L2 and Linf are each at least 10 points above Vanilla, and the squared L2 norm is the lowest of the four.",
    at_each((*FIRST_PLACES, ("ccifar", 0.01)), (*(ours("pgd", *changed) for changed in NORMS), ours("vanilla"))),
    everywhere(
        *(above(name, "Vanilla", by=10.0) for name in ("L1", "L2", "Linf")), lowest("L2 squared", "L1", "L2", "Linf")
    ),
    "The paper shows bars without numbers and states no rho; L0.7 is what the released code computes (D3).",
)

ablation = Study(
    "GCE and augmentation",
    "PGD with both GCE and augmentation is the best of the four (ties within one standard deviation count).",
    at_each(
        FIRST_PLACES,
        (
            cell("pgd", f"GCE {gce}, augmentation {aug}", *without, variant=f"gce={gce} augmentation={aug}")
            for gce, aug, without in (
                ("no", "no", ("alpha=none", "augment=false")),
                ("yes", "no", ("augment=false",)),
                ("no", "yes", ("alpha=none",)),
                ("yes", "yes", ()),
            )
        ),
    ),
    everywhere(best("GCE yes, augmentation yes", needed=3)),
    "Without GCE, the biased model is trained with cross-entropy. Under `fast`, only the debiased stage augments.",
)

DAMPINGS = ("1e-6", "1e-4", "1e-2")
invq_compare = Study(
    "Trace of the inverse empirical Fisher information",
    "The trace is lower for PGD, with its sampling probabilities, than for Vanilla, with uniform sampling.",
    at_each(
        FIRST_PLACES,
        (
            ours(m, f"{method_name(m)}, damping {by}", reads=f"fisher.{by}", metric="fisher_trace")
            for by in DAMPINGS
            for m in ("vanilla", "pgd")
        ),
    ),
    everywhere(*(above(f"Vanilla, damping {by}", f"PGD, damping {by}") for by in DAMPINGS)),
    "Computed for the last layer of finished models, over training samples. The matrix is singular, so its inverse is "
    "damped, equally for both (D37). The paper prints no numbers; only the sign is judged.",
)

ALPHAS = {0.3: ("alpha=0.3",), 0.5: ("alpha=0.5",), 0.7: (), 0.9: ("alpha=0.9",)}
gce_ablation = Study(
    "Study 1: the exponent alpha of GCE",
    "A larger alpha makes the biased model more biased: its unbiased accuracy falls from alpha 0.3 to 0.9.",
    at_each(
        CMNIST,
        (
            cell("pgd", f"alpha {alpha}{words}", *changes, reads=reads, variant=f"alpha={alpha}{variant}")
            for words, reads, variant in (
                ("", "metrics.unbiased", ""),
                (", biased model", "stages.biased.unbiased", " biased"),
            )
            for alpha, changes in ALPHAS.items()
        ),
    ),
    everywhere(falling(*(f"alpha {alpha}, biased model" for alpha in ALPHAS))),
    "The paper's own claim (best at 0.9) fits only one of its three rows, so this one is judged instead (D30).",
)

single_stage = Study(
    "Study 2: scoring once, or after every epoch",
    "Scoring once gives the higher accuracy (ties within one standard deviation count).",
    at_each(
        CMNIST,
        (
            cell("pgd", f"{name}{words}", *changes, variant=name.lower(), reads=reads, metric=metric)
            for words, reads, metric in (("", "metrics.unbiased", "unbiased"), (", time", "seconds", "seconds"))
            for name, *changes in (("Multi-stage",), ("Single-stage", "joint=true"))
        ),
    ),
    everywhere(best("Multi-stage", "Single-stage")),
    "Single-stage: two networks are trained in parallel and scored after every epoch. Times are not judged.",
)

SAME_RATE = "Resampling at the rate of Reweighting"
reweighting = Study(
    "Study 3: draw samples by score, or weight them by it",
    "Resampling gives the higher accuracy (ties within one standard deviation count).",
    at_each(
        CMNIST,
        (
            cell("pgd", "Resampling", variant="resampling"),
            ours("pgd", SAME_RATE, "rate=0.05"),
            cell("pgd", "Reweighting", "use=reweight", "rate=0.05", variant="reweighting"),
        ),
    ),
    everywhere(beside(best("Resampling", "Reweighting"), best(SAME_RATE, "Reweighting"), "at the same rate")),
    "A sample's weight is its score divided by the mean score. With the recipe's learning rate, Reweighting ends at "
    "chance, so it uses a twentieth of that rate; Resampling at the same rate is shown for comparison.",
)

BY_NORM, ALONE = "score=gradient", "relative=false"  # what LfF averages; the biased network's average alone
BOTH_NETWORKS = "LfF + gradient of both networks"
effect_grad_score = Study(
    "Study 4: gradient norm against loss",
    "PGD with losses as scores is below PGD, and LfF with gradient norms is above LfF.",
    at_each(
        CMNIST,
        (
            cell("lff"),
            cell("pgd", "PGD + loss", "score=loss", variant="score=loss"),
            cell("lff", "LfF + gradient", BY_NORM, ALONE, variant=BY_NORM),
            cell("lff", BOTH_NETWORKS, BY_NORM, variant=BY_NORM),
            ours("lff", "LfF + loss of the biased network", ALONE),
            cell("pgd"),
        ),
    ),
    everywhere(
        above("PGD", "PGD + loss"),
        beside(above("LfF + gradient", "LfF"), above(BOTH_NETWORKS, "LfF"), "norms of both networks"),
    ),
    "PGD + loss: the score is the biased model's cross-entropy. LfF + gradient: a sample's weight is its average "
    "gradient norm in the biased network; the other reading replaces the losses of both networks by norms (D38).",
)

compute_time = Study(
    "Study 5: computation time, whole and per step",
    "Step 2 (scoring) takes at most a tenth of PGD's time; where PGD sees more samples than Vanilla, it takes longer.",
    (
        *(cell(m, reads="seconds", metric="seconds") for m in ("vanilla", "lff", "disen", "pgd")),
        *(
            cell("pgd", f"PGD, {step}", reads=f"seconds.{stage}", metric="seconds", variant=step)
            for stage, step in (("biased", "step 1"), ("score", "step 2"), ("debiased", "step 3"))
        ),
    ),
    everywhere(share_of("PGD, step 2", "PGD", 0.1), longer_with_more("PGD", "Vanilla")),
    "Seconds are for the machine of each run; the paper's are for one Titan Xp and 100 epochs. Under `fast`, all "
    "methods see the same number of samples, so Vanilla takes as long as PGD.",
    figure="times",
)

AUGMENTED, GUARDED = "PGD, scores of augmented images", method_name("guarded")
EFFECT = "metrics.score_effective_sample_size"  # to how many samples drawn alike the probabilities come


def harmless(here: Sequence[Tally]) -> Finding:
    """PGD is within a point of Vanilla on Colored MNIST; elsewhere it may be above it by more."""
    if here[0].cell.dataset != "cmnist":
        return above("PGD", "Vanilla", by=-1.0)(here)
    released = within(AUGMENTED, "Vanilla", 1.0)
    plain = beside(within("PGD", "Vanilla", 1.0), released, "scores of augmented images")
    return beside(plain, above(GUARDED, "Vanilla", by=-0.5), "guarded")(here)


natural = Study(
    "Study 6: data without a bias",
    "PGD is within 1 point of Vanilla on unbiased Colored MNIST, and no more than 1 point below it elsewhere (D31).",
    (
        *(cell(m, rho=0.9) for m in ("vanilla", "lff", "disen", "pgd")),
        cell("pgd", AUGMENTED, "score_on=augmented", rho=0.9),
        ours("guarded", rho=0.9),
        *(
            ours("pgd", f"{name}, effective sample size", *changes, rho=0.9, reads=EFFECT, metric="samples")
            for name, *changes in (("PGD",), (AUGMENTED, "score_on=augmented"))
        ),
        *(cell(m, dataset="cifar10", rho=None) for m in ("vanilla", "pgd")),
    ),
    everywhere(harmless),
    "At rho 90% colour says nothing about the digit. The paper calls its own drop of 0.6 points not significant; it is "
    "about five standard deviations (D31). Its released code scores augmented images (D8), which costs less here.",
)

KINDS, AUROC = ("aligned", "conflicting"), "AUROC of norms"
ab_hist = Study(
    "Histograms of gradient norms",
    "Samples that go against the shortcut have larger gradient norms than the others, on average and with an AUROC "
    "above 0.9.",
    at_each(
        CMNIST,
        (
            *(ours("pgd", f"mean norm, {k}", reads=f"histogram.mean.{k}", metric="norm") for k in KINDS),
            ours("pgd", AUROC, reads="metrics.score_auroc", metric="auroc"),
        ),
    ),
    everywhere(
        above("mean norm, conflicting", "mean norm, aligned"),
        compare((AUROC,), lambda auroc: auroc > 0.9, lambda found: found.named(4)),
    ),
    "Norms are the biased model's, divided by the largest, as in the paper, which prints no numbers here.",
    figure="histograms",
)

EDGES = [f"[{k / BINS:.1f},{(k + 1) / BINS:.1f}{']' if k == BINS - 1 else ')'}" for k in range(BINS)]


def colour_is_learnt(here: Sequence[Tally]) -> Finding:
    """With colour as the target: PGD above 90% and not more than a point below Vanilla.

    Where the table counts the norms: in the upper half, in bold in the paper, no more conflicting samples than
    aligned ones.
    """
    (treated, plain), words = alike(pick(here, "PGD (colour)", "Vanilla (colour)"))
    good, text = treated.mean > 90 and treated.mean >= plain.mean - 1, f"{treated.named()}, {plain.named()}{words}"
    if any(each.cell.metric == "samples" for each in here):
        aligned, conflicting = (
            sum(each.mean for each in pick(here, *(f"samples, {kind} {edges}" for edges in EDGES))[BINS // 2 :])
            for kind in KINDS
        )
        good = good and conflicting <= aligned
        text += f", norms above half of the largest: {aligned:.0f} aligned samples, {conflicting:.0f} conflicting"
    return good, text


COUNTED: dict[str, Any] = {"dataset": "cmnist-colour", "metric": "samples", "table": "stat_reverse"}
second_easiest = Study(
    "Appendix: colour as the target (table stat_reverse)",
    "With colour as the target, PGD is above 90% and at most a point below Vanilla, and at rho 0.5% no more "
    "conflicting than aligned samples have a norm above half of the largest: PGD does not simply learn the "
    "second-easiest feature.",
    (
        *at_each(COLOUR, (cell(m, f"{method_name(m)} (colour)") for m in ("vanilla", "lff", "pgd"))),
        ours("pgd", "PGD without augmentation (colour)", "augment=false", dataset="cmnist-colour"),
        *(
            cell("pgd", f"samples, {kind} {edges}", reads=f"histogram.{kind}.{k}", variant=f"{kind} {edges}", **COUNTED)
            for kind in KINDS
            for k, edges in enumerate(EDGES)
        ),
        *at_each(CMNIST, (cell(m, f"{method_name(m)} (digit)") for m in ("vanilla", "lff", "pgd"))),
    ),
    everywhere(colour_is_learnt, but="cmnist"),  # the digit cells stand beside
    "The same images with the roles swapped. The table counts training samples at rho 0.5% by their norm divided by "
    "the largest, averaged over runs. Augmentation rotates the hue, here the target, so LfF is trained without it.",
)

hist_trial = Study(
    "Many trials of PGD and Disen",
    "PGD's unbiased accuracy is above Disen's by Welch's one-sided test at 5%.",
    at_each(CMNIST, map(ours, ("disen", "pgd"))),
    everywhere(superior("PGD", "Disen", TRIALS)),
    f"The paper has 25 trials; we have at least {TRIALS} of each method, each with newly drawn data.",
    figure="trials",
    seeds=TRIALS,
)

twice_the_length = Study(
    "Is it only the longer training? (D39)",
    "PGD is at least 10 points above Vanilla trained twice as long, and so is resampling with a fresh network.",
    (
        cell("vanilla", table="control"),
        *(ours(m, f"{method_name(m)}, twice as long", "length=2") for m in ("vanilla", "lff", "disen")),
        ours("pgd", "Resampling only", "inherit=false"),
        cell("pgd", table="control"),
    ),
    everywhere(*(above(name, "Vanilla, twice as long", by=10.0) for name in ("PGD", "Resampling only"))),
    "Resampling only: the debiased model starts from fresh weights, so only the scores come from step 1.",
    ours=True,
)

residual = Study(
    "Is it the gradient, or the bounded residual? (D43)",
    "Scoring by the norm of softmax - onehot alone is within 0.5 points of scoring by the whole gradient norm.",
    tuple(
        ours("pgd", *each) for each in (("Gradient norm",), ("Residual norm", "score=residual"), ("Loss", "score=loss"))
    ),
    everywhere(within("Residual norm", "Gradient norm", 0.5)),
    "The gradient norm of the last layer is the residual norm times the feature norm; the loss is unbounded.",
    ours=True,
)

whole_network = Study(
    "Gradient of the head or of the whole network",
    "Scoring by the head's gradient is no more than 0.5 points below scoring by the whole network's.",
    (ours("pgd", "Head"), ours("pgd", "Whole network", "parameters=all")),
    everywhere(above("Head", "Whole network", by=-0.5)),
    "The head's gradient takes one forward pass; the whole network's also takes a backward pass.",
    ours=True,
)

scored_pictures = Study(
    "Scores of clean or of augmented images (D8)",
    "Scoring clean images is no more than 0.5 points below scoring one augmented version of each.",
    (ours("pgd", "Clean"), ours("pgd", "Augmented", "score_on=augmented")),
    everywhere(above("Clean", "Augmented", by=-0.5)),
    "The paper's formula scores the images themselves, its code one augmented version of each.",
    ours=True,
)

RELEASED = (("GCE with the factor q", "extra_q=true"), ("L0.7", "p=0.7"), ("Weight and bias", "bias=true"))
released_code = Study(
    "What the released code does differently (D3, D7, D9)",
    "Each choice of the released code is within 1 point of the paper's formula.",
    (ours("pgd", "Formula"), *(ours("pgd", *each) for each in RELEASED)),
    everywhere(*(within(name, "Formula", 1.0) for name, _ in RELEASED)),
    "Weight and bias is the other reading of 'the parameters of the last layer'.",
    ours=True,
)

RULES = {"last": "last epoch", "best_valid": "best biased validation", "oracle": "oracle"}
selection = Study(
    "Which epoch is reported (D6)",
    "The methods rank the same by their last epoch, by the epoch with the lowest loss on the biased validation "
    "samples, and by the best epoch on test data.",
    tuple(
        ours(m, f"{method_name(m)}, {words}", reads=f"selection.{rule}.unbiased")
        for rule, words in RULES.items()
        for m in METHODS
    ),
    same_order(*RULES.values()),
    "Only epochs of the last stage are considered. The oracle uses test data and is shown for this comparison only.",
    ours=True,
)

label_noise = Study(
    "Wrong labels",
    "PGD is above Vanilla with 0, 5, 10 and 20% of the training labels flipped.",
    tuple(ours(method, noise=noise) for noise in (0.0, 0.05, 0.1, 0.2) for method in ("vanilla", "pgd", "guarded")),
    everywhere(
        beside(above("PGD", "Vanilla"), above(GUARDED, "Vanilla", by=-0.5), "guarded, at most 0.5 points below")
    ),
    "A flipped sample counts as flipped, not as conflicting; test labels are never flipped.",
    figure="lines",
    ours=True,
)

rho_sweep = Study(
    "From almost no conflicting samples to no shortcut at all",
    "PGD is no more than 1 point below Vanilla at any rho from 0.1% to 90%.",
    tuple(
        ours(method, rho=rho)
        for rho in (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 0.9)
        for method in ("vanilla", "pgd", "guarded")
    ),
    everywhere(beside(above("PGD", "Vanilla", by=-1.0), above(GUARDED, "Vanilla", by=-0.5), "guarded")),
    "At rho 90% colour says nothing about the digit; `natural` shows what PGD costs there.",
    figure="lines",
    ours=True,
)

DRAWS = ("vanilla", "pgd", "dpr", "cells", "xrm", "bam", "groupdro", "rwg")  # by weights, or all alike
FRONTIER = (*DRAWS, "jtt", "ula", "afr", "neurontune", "dfr")
VARIANTS = (
    ("cells", "Cells, inverted", "power=2"),
    ("cells", "Cells, amplified", "amplify=1"),
    ("xrm", "XRM, balanced draws", "learner=balanced"),
)


READS = {"unbiased": ("", "metrics.unbiased"), "worst_group": (", worst group", "metrics.worst_group")}
READS |= {"drawn": (", draws", "drawn"), "samples": (", samples seen", "samples_seen")}


def frontier_cells(metrics: Sequence[str], *places: tuple[str, float | None]) -> tuple[Cell, ...]:
    """Cells of every method; the share of draws on conflicting samples only where it draws by weights."""
    listed = [(method, method_name(method)) for method in FRONTIER] + list(VARIANTS)
    cells = (
        ours(method, name + READS[metric][0], *changes, reads=READS[metric][1], metric=metric)
        for metric in metrics
        for method, name, *changes in listed
        if metric != "drawn" or method in DRAWS
    )
    return at_each(places, cells)


frontier = Study(
    "Methods since 2023 compared with PGD and with methods that use group labels",
    "DPR is within 0.5 points of PGD or above it.",
    (
        *frontier_cells(("unbiased", "worst_group", "drawn"), *CMNIST),
        *frontier_cells(("samples",), CMNIST[0]),  # at any rho as many
    ),
    everywhere(above("DPR", "PGD", by=-0.5)),
    "Methods marked (group labels) know the class and bias of every training sample, so they are reference points, not "
    "competitors. The figure plots accuracy against the share of draws that went to conflicting samples, to separate "
    "better scores from heavier oversampling; GroupDRO and XRM also weight groups in the loss. Methods with two "
    "networks or a retrained last layer count each sample as seen once.",
    figure="draws",
    ours=True,
)

STUDIES = {name: replace(each, label=name) for name, each in list(globals().items()) if isinstance(each, Study)}
