"""The evidence as figures, for people."""

from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from debiaser.paper.theory.evidence import THREE_SETS, Evidence, Sets, closed_form
from debiaser.report.figures import PRINT_STYLE, save_figure

BLUE, ORANGE, GREEN, GREY = "#0072b2", "#d55e00", "#009e73", "#666666"
STYLE: Any = PRINT_STYLE | {
    "text.parse_math": True,
    "font.size": 9.0,
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
    "legend.frameon": False,
    "legend.fontsize": 7.5,
    "lines.markersize": 5.0,
    "pdf.fonttype": 42,
}
FLOOR = 1e-7  # where a probability of nothing is drawn on a logarithmic axis


def write_figures(evidence: Evidence, folder: Path) -> list[Path]:
    """All figures in the folder, each as PDF and PNG."""
    return [path for name, figure in figures(evidence).items() for path in save_figure(figure, folder, name)]


@matplotlib.rc_context(STYLE)
def figures(evidence: Evidence) -> dict[str, Figure]:
    """All figures by the name of their file, each of two panels."""
    drawn = {}
    for draw in (theorem_1, theorem_2, practical_objective, inverse_trace):
        drawn[draw.__name__] = figure = Figure(figsize=(8.6, 3.5), layout="constrained")
        draw(evidence, *figure.subplots(1, 2))
    return drawn


def theorem_1(evidence: Evidence, left: Axes, right: Axes) -> None:
    """Losses and bound against n; the Fisher information as labels become certain."""
    world, rows, hard = evidence.world, evidence.rows, evidence.hardened
    n, scales = [row["n"] for row in rows], [each["scale"] for each in hard]
    span = np.geomspace(5, n[-1], 50)
    bound = world.inverse_information * world.fisher(world.q).trace() / 2 / span
    excess = [row["scaled_excess"] / row["n"] for row in rows]
    smallest = [each["smallest_eigenvalue"] or np.nan for each in hard]
    curves: tuple[tuple[Axes, Any, Any, str, str, str], ...] = (
        (left, n, [row["loss"] for row in rows], "s-", ORANGE, "test loss, as printed"),
        (left, span, np.full_like(span, world.entropy), ":", ORANGE, "entropy of the labels"),
        (left, span, bound, "--", GREY, "bound, Tr[$I_p^{-1}$] Tr[$I_q$] / 2n"),
        (left, n, [row["bound"] for row in rows], "^", GREY, "the same, at the fitted parameter"),
        (left, span, world.information_ratio / 2 / span, "-", BLUE, "Lemma 7's limit / n"),
        (left, n, excess, "o", BLUE, "excess test loss"),
        (right, scales, [each["trace"] for each in hard], "o-", BLUE, "trace of $I_p$"),
        (right, scales, smallest, "s-", GREEN, "smallest eigenvalue"),
        (right, scales, [each["entropy"] for each in hard], "^-", ORANGE, "entropy of the labels"),
    )
    for axes, x, y, style, colour, label in curves:
        axes.loglog(x, y, style, color=colour, label=label)
        axes.legend(loc="lower left")
    left.set(xlabel="training samples, n", ylabel="loss", title="Theorem 1 on a well-specified logistic model")
    left.set_ylim(excess[-1] / 4, 30)
    right.set(xlabel="scale of the true parameter", title="Towards certain labels (A3): is $I_p$ invertible (A8)?")


def theorem_2(evidence: Evidence, left: Axes, right: Axes) -> None:
    """The objective against the mass of M, with the closed form on it; three sets."""
    masses = np.linspace(0.01, 0.99, 99)
    left.semilogy(masses, [Sets((-1, 1), (1, 1)).trace(np.array([mass, 1 - mass])) for mass in masses], color=GREY)
    for (majority, minority), colour in (((9, 1), BLUE), ((95, 5), ORANGE), ((2, 3), GREEN)):
        sets = Sets((-1, 1), (majority, minority))
        for mass, marker, words in ((sets.uniform()[0], "o", "uniform"), (closed_form(sets)[0] * majority, "x", "|g|")):
            label = f"|M| = {majority}, |m| = {minority}: {words}"
            left.plot(mass, sets.trace(np.array([mass, 1 - mass])), marker, color=colour, label=label)
    apart = max(case["distance"] for case in evidence.cases)
    left.set(xlabel="mass of M", ylabel="Tr[$I_h^{-1}$] for a = 1")
    left.set_title(f"Two sets: at most {apart:.0e} from the minimiser, {len(evidence.cases)} cases")
    left.legend(loc="upper center")
    kinds = {"uniform": ("uniform", GREY), "by_norm": ("|g| / Z", BLUE), "found": ("minimum", ORANGE)}
    for place, (kind, (name, colour)) in enumerate(kinds.items()):
        shares, trace = evidence.beyond[kind]
        at = np.arange(len(shares)) + 0.27 * (place - 1)
        right.bar(at, shares, 0.25, color=colour, label=f"{name}: trace {trace:.2f}")
    right.set_xticks(range(len(THREE_SETS.sizes)), [f"at {centre:g}" for centre in THREE_SETS.centres])
    right.set(ylabel="mass of the set", title="A third set between the two")
    right.legend()


def practical_objective(evidence: Evidence, left: Axes, right: Axes) -> None:
    """Optimal h against gradient norms on the first data set; the objective on all of them."""
    first = evidence.solved[0]
    against, everywhere = first["even"].conflicting, slice(None)
    kinds: tuple[tuple[str, Any, str, str, str], ...] = (
        ("optimal", everywhere, "o", BLUE, f"free (rank correlation {first['optimal'].rank_correlation:.2f})"),
        ("even", everywhere, "x", GREEN, f"kept near uniform ({first['even'].rank_correlation:.2f})"),
        ("even", against, "s", ORANGE, "goes against the shortcut"),
    )
    for kind, chosen, marker, colour, label in kinds:
        h = np.maximum(first[kind].h[chosen], FLOOR)
        left.loglog(first["by_norm"].h[chosen], h, marker, color=colour, fillstyle="none", label=label)
    left.set(xlabel="h by gradient norm", title="One data set, a point per sample")
    left.set(ylabel=f"h that minimises the trace (at least {FLOOR:g})", ylim=(FLOOR / 2, 40))
    left.legend(loc="upper left")
    names = ("uniform", "one value\nper set", "kept near\nuniform", "by gradient\nnorm", "free\nminimum")
    for place, kind in enumerate(("uniform", "sets", "even", "by_norm", "optimal")):
        traces = [each[kind].trace for each in evidence.solved]
        colour = ORANGE if kind == "by_norm" else BLUE
        right.plot([place] * len(traces), traces, "o", color=colour, fillstyle="none")
        right.hlines(np.mean(traces), place - 0.3, place + 0.3, color=colour, linewidth=2.5)
    right.set_xticks(range(len(names)), names, fontsize=8)
    right.set(ylabel="Tr[$I_h^{-1}$]", title=f"Mean and each of {len(evidence.solved)} data sets", yscale="log")


def inverse_trace(evidence: Evidence, left: Axes, right: Axes) -> None:
    """PGD's trace over vanilla's against the damping, with more and with fewer samples than parameters."""
    for axes, compared in zip((left, right), evidence.compared, strict=True):
        ratios = [pgd / vanilla for vanilla, pgd in compared.sweep.values()]
        axes.semilogx(list(compared.sweep), ratios, "o-", color=BLUE)
        axes.axhline(1, color=GREY, linewidth=0.8)
        axes.set(xlabel="damping, in mean eigenvalues", ylabel="PGD's trace / vanilla's (above 1: PGD's is larger)")
        axes.set_title(f"{compared.rows:,} samples, {compared.parameters:,} parameters")
        axes.set_ylim(min(0.4, min(ratios) - 0.1), max(1.2, max(ratios) + 0.1))
