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
    "legend.fontsize": 8.0,
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
    world, n = evidence.world, np.array([row["n"] for row in evidence.rows])
    span = np.geomspace(5, n[-1], 50)
    constant = world.inverse_information * world.fisher(world.q).trace() / 2
    left.loglog(n, [row["loss"] for row in evidence.rows], "s-", color=ORANGE, label="test loss, as printed")
    left.axhline(world.entropy, color=ORANGE, linestyle=":", linewidth=1, label="entropy of the labels")
    left.loglog(span, constant / span, "--", color=GREY, label="bound, Tr[$I_p^{-1}$] Tr[$I_q$] / 2n")
    left.loglog(n, [row["bound"] for row in evidence.rows], "^", color=GREY, label="the same, at the fitted parameter")
    left.loglog(span, world.information_ratio / 2 / span, "-", color=BLUE, linewidth=1, label="Lemma 7's limit / n")
    excess = [row["scaled_excess"] / row["n"] for row in evidence.rows]
    left.loglog(n, excess, "o", color=BLUE, label="excess test loss")
    left.set(xlabel="training samples, n", ylabel="loss", title="Theorem 1 on a well-specified logistic model")
    left.set_ylim(excess[-1] / 4, 30)
    left.legend(loc="lower left", fontsize=7.5)
    hard = evidence.hardened
    scales = [each["scale"] for each in hard]
    right.loglog(scales, [each["trace"] for each in hard], "o-", color=BLUE, label="trace of $I_p$")
    right.loglog(
        scales, [each["smallest_eigenvalue"] or np.nan for each in hard], "s-", color=GREEN, label="smallest eigenvalue"
    )
    right.loglog(scales, [each["entropy"] for each in hard], "^-", color=ORANGE, label="entropy of the labels")
    right.set(xlabel="scale of the true parameter", title="Towards certain labels (A3): is $I_p$ invertible (A8)?")
    right.legend(loc="lower left")


def theorem_2(evidence: Evidence, left: Axes, right: Axes) -> None:
    """The objective against the mass of M, with the closed form on it; three sets."""
    masses = np.linspace(0.01, 0.99, 99)
    pair = Sets((-1, 1), (1, 1))
    left.semilogy(masses, [pair.trace(np.array([mass, 1 - mass])) for mass in masses], color=GREY)
    for (majority, minority), colour in zip(((9, 1), (95, 5), (2, 3)), (BLUE, ORANGE, GREEN), strict=True):
        sets = Sets((-1, 1), (majority, minority))
        for mass, marker, size in ((sets.uniform()[0], "o", 6), (closed_form(sets)[0] * majority, "x", 9)):
            left.plot(mass, sets.trace(np.array([mass, 1 - mass])), marker, color=colour, markersize=size)
        left.plot([], [], "o", color=colour, label=f"|M| = {majority}, |m| = {minority}: uniform")
    left.plot([], [], "x", color=GREY, label="by gradient norm, for all")
    apart = max(case["distance"] for case in evidence.cases)
    left.set(xlabel="mass of M", ylabel="Tr[$I_h^{-1}$] for a = 1")
    left.set_title(f"Two sets: at most {apart:.0e} from the minimiser, {len(evidence.cases)} cases")
    left.legend(loc="upper center")
    kinds = {"uniform": ("uniform", GREY), "by_norm": ("|g| / Z", BLUE), "found": ("minimum", ORANGE)}
    for place, (kind, (name, colour)) in enumerate(kinds.items()):
        shares, trace = evidence.beyond[kind]
        label = f"{name}: trace {trace:.2f}"
        right.bar(np.arange(len(shares)) + 0.27 * (place - 1), shares, 0.25, color=colour, label=label)
    right.set_xticks(range(len(THREE_SETS.sizes)), [f"at {centre:g}" for centre in THREE_SETS.centres])
    right.set(ylabel="mass of the set", title="A third set between the two")
    right.legend()


def practical_objective(evidence: Evidence, left: Axes, right: Axes) -> None:
    """Optimal h against gradient norms on the first data set; the objective on all of them."""
    first = evidence.solved[0]
    kinds = (
        ("optimal", "o", BLUE, f"free (rank correlation {first['optimal'].rank_correlation:.2f})"),
        ("even", "x", GREEN, f"kept near uniform ({first['even'].rank_correlation:.2f})"),
    )
    for kind, marker, colour, label in kinds:
        h = np.maximum(first[kind].h, FLOOR)
        left.loglog(first["by_norm"].h, h, marker, color=colour, markersize=4, fillstyle="none", label=label)
    against = first["even"].conflicting
    left.loglog(
        first["by_norm"].h[against],
        np.maximum(first["even"].h[against], FLOOR),
        "s",
        color=ORANGE,
        markersize=7,
        fillstyle="none",
        label="goes against the shortcut",
    )
    left.set(
        xlabel="h by gradient norm",
        ylabel=f"h that minimises the trace (at least {FLOOR:g})",
        title="One data set, a point per row",
    )
    left.set_ylim(FLOOR / 2, 40)
    left.legend(loc="upper left")
    names = ("uniform", "one value\nper set", "kept near\nuniform", "by gradient\nnorm", "free\nminimum")
    for place, kind in enumerate(("uniform", "sets", "even", "by_norm", "optimal")):
        traces = [each[kind].trace for each in evidence.solved]
        colour = ORANGE if kind == "by_norm" else BLUE
        right.plot([place] * len(traces), traces, "o", color=colour, markersize=5, fillstyle="none")
        right.hlines(np.mean(traces), place - 0.3, place + 0.3, color=colour, linewidth=2.5)
    right.set_yscale("log")
    right.set_xticks(range(len(names)), names, fontsize=8)
    right.set(ylabel="Tr[$I_h^{-1}$]", title=f"Mean and each of {len(evidence.solved)} data sets")


def inverse_trace(evidence: Evidence, left: Axes, right: Axes) -> None:
    """PGD's trace over vanilla's against the damping, with more and with fewer rows than parameters."""
    for axes, compared in zip((left, right), evidence.compared, strict=True):
        shares = [row.relative for row in compared.sweep]
        ratios = [row.traces[1] / row.traces[0] for row in compared.sweep]
        axes.semilogx(shares, ratios, "o-", color=BLUE)
        axes.axhline(1, color=GREY, linewidth=0.8)
        axes.set(xlabel="damping, in mean eigenvalues", ylabel="PGD's trace / vanilla's")
        axes.set_title(f"{compared.rows:,} rows, {compared.parameters:,} parameters")
        axes.set_ylim(min(0.4, min(ratios) - 0.1), max(1.2, max(ratios) + 0.1))
        corner: Any = {"transform": axes.transAxes, "color": GREY, "fontsize": 8, "ha": "right"}
        axes.text(0.99, 0.97, "above 1: PGD's is larger", va="top", **corner)
        axes.text(0.99, 0.03, "below 1: PGD's is smaller", **corner)
