"""The paper's theoretical statements, each with a verdict, the rule it was judged by, and the numbers behind it."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from debiaser.paper.theory.evidence import Compared, Evidence
from debiaser.paper.theory.worlds import information_ratio, inverse_information

Verdict = Literal["held", "not held", "not testable"]
EXACT = 1e-6  # relative difference that a minimiser at rounding's limit may leave
ERRORS = 4  # standard errors
LARGE = 10_000  # "sufficiently large n"
HIGH = 0.95  # "with high probability"
PROPORTIONAL = 0.9  # rank correlation of h with the gradient norms


@dataclass(frozen=True)
class Statement:
    """One statement: what is claimed, whether it held, by which rule, and what was found, in words and numbers."""

    name: str
    claim: str
    verdict: Verdict
    rule: str
    found: str
    numbers: Mapping[str, float]


def judged(held: bool) -> Verdict:
    """The verdict of a test that was made."""
    return "held" if held else "not held"


def statements(evidence: Evidence) -> tuple[Statement, ...]:
    """All statements in the order of the paper, each right after what it rests on."""
    return (
        lemma_7(evidence),
        lemma_9(evidence),
        theorem_1_excess(evidence),
        theorem_1_printed(evidence),
        theorem_1_assumptions(evidence),
        trace_footnote(evidence),
        theorem_2(evidence),
        theorem_2_beyond(evidence),
        objective_lowered(evidence),
        objective_minimised(evidence),
        many_parameters(evidence.compared[0], "more rows than parameters"),
        many_parameters(evidence.compared[1], "fewer rows than parameters"),
    )


def lemma_7(evidence: Evidence) -> Statement:
    """n times the excess test loss against half the Fisher information ratio."""
    limit, rows = information_ratio(evidence.world) / 2, evidence.rows
    large = [row for row in rows if row.n >= LARGE]
    apart = max(abs(row.scaled_excess - limit) / row.standard_error for row in large)
    last = large[-1]
    return Statement(
        "Lemma 7, excess loss",
        "n times the test loss above that of the true parameter tends to half of Tr[I_p^-1 I_q].",
        judged(apart <= ERRORS),
        f"at every n from {LARGE:,} on, the mean lies within {ERRORS} standard errors of the limit",
        f"limit {limit:.4f}; at n = {last.n:,}: {last.scaled_excess:.4f} ± {last.standard_error:.4f} over "
        f"{last.sets:,} drawn training sets; at n = {rows[0].n:,}: {rows[0].scaled_excess:.4f}",
        {"limit": limit, "largest_distance_in_standard_errors": apart}
        | {f"scaled_excess_{row.n}": row.scaled_excess for row in rows}
        | {f"standard_error_{row.n}": row.standard_error for row in rows},
    )


def lemma_9(evidence: Evidence) -> Statement:
    """The trace at the fitted parameter against that at the true one."""
    rows = evidence.rows
    falls = all(one.trace_deviation > other.trace_deviation for one, other in pairwise(rows))
    return Statement(
        "Lemma 9",
        "Tr[I_p^-1] at the fitted parameter tends to that at the true parameter.",
        judged(falls and rows[-1].trace_deviation < 0.01),
        "the mean relative deviation falls with every n and ends below 1%",
        f"mean deviation {rows[0].trace_deviation:.2%} at n = {rows[0].n:,}, {rows[-1].trace_deviation:.2%} at n = "
        f"{rows[-1].n:,}",
        {f"deviation_{row.n}": row.trace_deviation for row in rows},
    )


def theorem_1_excess(evidence: Evidence) -> Statement:
    """The bound against the excess loss."""
    rows = evidence.rows
    share = min(row.bounded_excess for row in rows if row.n >= LARGE)
    slack = rows[-1].bound * rows[-1].n / rows[-1].scaled_excess
    return Statement(
        "Theorem 1, excess loss",
        "The test loss above that of the true parameter is at most Tr[I_p^-1] Tr[I_q] / 2n with high probability.",
        judged(share >= HIGH),
        f"in at least {HIGH:.0%} of the drawn training sets at every n from {LARGE:,} on",
        f"in {share:.1%} of the drawn training sets; the bound is {slack:.1f} times the excess loss at n = "
        f"{rows[-1].n:,}",
        {"smallest_share": share, "bound_over_excess": slack} | {f"bound_{row.n}": row.bound for row in rows},
    )


def theorem_1_printed(evidence: Evidence) -> Statement:
    """The bound against the loss itself, as the paper prints it."""
    rows, entropy = evidence.rows, evidence.world.entropy
    shares = [row.bounded_loss for row in rows if row.n >= LARGE]
    constant = inverse_information(evidence.world) * evidence.world.fisher(evidence.world.q).trace() / 2
    return Statement(
        "Theorem 1 as printed",
        "The test loss itself is at most Tr[I_p^-1] Tr[I_q] / 2n for sufficiently large n.",
        judged(min(shares) >= HIGH),
        f"in at least {HIGH:.0%} of the drawn training sets at every n from {LARGE:,} on",
        f"in {max(shares):.1%} of the drawn training sets. It cannot hold where labels are noisy: the left side tends "
        f"to the labels' entropy ({entropy:.4f}; at n = {rows[-1].n:,}: {rows[-1].loss:.4f}), the right side to 0 "
        f"({rows[-1].bound:.6f}); they cross at n = {constant / entropy:.0f}",
        {"largest_share": max(shares), "label_entropy": entropy, "crossing_n": constant / entropy}
        | {f"loss_{row.n}": row.loss for row in rows},
    )


def theorem_1_assumptions(evidence: Evidence) -> Statement:
    """The assumptions of Theorem 1 contradict each other (D41)."""
    first, last = evidence.hardened[0], evidence.hardened[-1]
    return Statement(
        "Theorem 1 under its own assumptions",
        "The printed form holds where the true model is certain of every label (A3) and the Fisher information is "
        "invertible (A8).",
        "not testable",
        "no model meets both: where f(y|x) = 1 all score vectors vanish (the paper's Lemma 5), and so does their "
        "outer product (D41)",
        f"with the true parameter scaled up {last.scale:,.0f} times, the least certain label has probability "
        f"{last.least_certain:.6f}, and the trace of the Fisher information falls from {first.trace:.3f} to "
        f"{last.trace:.1e}, its smallest eigenvalue to {last.smallest_eigenvalue:.1e}",
        {f"trace_at_scale_{each.scale:g}": each.trace for each in evidence.hardened}
        | {f"least_certain_at_scale_{each.scale:g}": each.least_certain for each in evidence.hardened}
        | {f"smallest_eigenvalue_at_scale_{each.scale:g}": each.smallest_eigenvalue for each in evidence.hardened},
    )


def trace_footnote(evidence: Evidence) -> Statement:
    """The sign in a footnote of the proof, and the two facts it is about."""
    matrices = evidence.matrices
    return Statement(
        "Footnote to Lemma 9",
        "If A is below B then Tr[B - A] <= 0.",
        judged(matrices.largest_ordered <= 0),
        "for every drawn pair; what the proof needs is the opposite sign, and that Tr[AB] <= Tr[A] Tr[B]",
        f"over {matrices.pairs:,} pairs, the smallest Tr[B - A] is {matrices.smallest_ordered:.2f}: a slip of the sign "
        f"(D41) that harms nothing; the smallest Tr[A] Tr[B] / Tr[AB] is {matrices.smallest_slack:.2f}, as needed",
        {"smallest_trace_of_difference": matrices.smallest_ordered, "smallest_slack": matrices.smallest_slack},
    )


def theorem_2(evidence: Evidence) -> Statement:
    """The closed form against the minimiser."""
    distance = max(case.distance for case in evidence.cases)
    mass = max(abs(case.majority_mass - 0.5) for case in evidence.cases)
    return Statement(
        "Theorem 2",
        "With two sets on a line, h in proportion to |g| at the uniformly trained parameter minimises the trace.",
        judged(distance <= EXACT),
        f"closed form and numeric minimiser differ by at most {EXACT:g}, relatively, in every case",
        f"in {len(evidence.cases)} cases of (a, |M|, |m|) they differ by at most {distance:.1e}; the mass of each set "
        f"is 1/2 to {mass:.1e}",
        {"cases": len(evidence.cases), "largest_relative_difference": distance, "largest_distance_from_half": mass},
    )


def theorem_2_beyond(evidence: Evidence) -> Statement:
    """A third set between the two."""
    beyond = evidence.beyond
    traces = [beyond.trace(each) for each in (beyond.uniform, beyond.by_norm, beyond.found)]
    apart = max(abs(one - other) for one, other in zip(beyond.by_norm, beyond.found, strict=True))
    masses = "{:.2f}, {:.2f}, {:.2f}"
    return Statement(
        "Theorem 2 with a third set",
        "The same with a third set between the two: gradient norms minimise the trace.",
        judged(apart <= EXACT),
        f"the masses of the three sets differ by at most {EXACT:g}",
        f"gradient norms give the masses {masses.format(*beyond.by_norm)}, the minimum is at "
        f"{masses.format(*beyond.found)}: all on the outermost sets. Trace: uniform {traces[0]:.2f}, gradient norms "
        f"{traces[1]:.2f}, minimum {traces[2]:.2f}",
        {"trace_uniform": traces[0], "trace_by_norm": traces[1], "trace_minimum": traces[2], "largest_distance": apart},
    )


def objective_lowered(evidence: Evidence) -> Statement:
    """Whether sampling by gradient norm lowers the objective of the small logistic model."""
    ratios = [each.by_norm.trace / each.uniform.trace for each in evidence.solved]
    optimal = [each.optimal.trace / each.uniform.trace for each in evidence.solved]
    return Statement(
        "Practical objective, lowered",
        "Sampling by gradient norm lowers Tr[I_h(theta_h)^-1] below that of uniform sampling (logistic model).",
        judged(max(ratios) < 1),
        "on every drawn data set",
        f"on {len(ratios)} data sets it is {min(ratios):.1%} to {max(ratios):.1%} of uniform's; the lowest found is "
        f"{min(optimal):.1%} to {max(optimal):.1%}",
        {"largest_ratio": max(ratios), "smallest_ratio": min(ratios), "largest_optimal_ratio": max(optimal)},
    )


def objective_minimised(evidence: Evidence) -> Statement:
    """Whether the h that minimises the objective goes with the gradient norms."""
    solved = evidence.solved
    free, even = ([getattr(each, kind).rank_correlation for each in solved] for kind in ("optimal", "even"))
    rows = [each.optimal.effective_rows for each in solved]
    masses = {
        kind: sum(getattr(each, kind).conflicting_mass for each in solved) / len(solved)
        for kind in ("uniform", "by_norm", "optimal", "even", "sets")
    }
    return Statement(
        "Practical objective, minimised",
        "The h that minimises Tr[I_h(theta_h)^-1] is in proportion to the gradient norms (logistic model).",
        judged(min(free) >= PROPORTIONAL),
        f"rank correlation of at least {PROPORTIONAL} on every drawn data set",
        f"rank correlations {min(free):.2f} to {max(free):.2f}: the minimum uses {min(rows):.0f} to {max(rows):.0f} "
        f"effective rows of {len(solved[0].conflicting)}. Held near the uniform h: "
        f"{min(even):.2f} to {max(even):.2f}. The mass of the conflicting rows: {masses['uniform']:.2f} "
        f"uniform, {masses['by_norm']:.2f} by gradient norm, {masses['optimal']:.2f} at the minimum, "
        f"{masses['sets']:.2f} with one value per set",
        {
            "smallest_rank_correlation": min(free),
            "largest_rank_correlation": max(free),
            "most_effective_rows": max(rows),
        }
        | {"smallest_rank_correlation_even": min(even), "largest_rank_correlation_even": max(even)}
        | {f"conflicting_mass_{kind}": mass for kind, mass in masses.items()},
    )


def many_parameters(compared: Compared, case: str) -> Statement:
    """The traces of PGD and vanilla for softmax regression on digits."""
    ratios = {row.relative: row.traces[1] / row.traces[0] for row in compared.sweep}
    pseudo = compared.pseudo[1] / compared.pseudo[0]
    same = compared.ranks[0] == compared.ranks[1]
    lower = max(ratios.values()) < 1 and (pseudo < 1 or not same)
    return Statement(
        f"Many parameters, {case}",
        "PGD's trace of the inverse is below vanilla's (softmax regression on coloured digits).",
        judged(lower),
        "at every damping of the sweep, and by the pseudo-inverse where the ranks agree",
        f"{compared.rows:,} rows, {compared.parameters:,} parameters, ranks {compared.ranks[0]:,} (vanilla) and "
        f"{compared.ranks[1]:,} (PGD): PGD's trace is {min(ratios.values()):.1%} to {max(ratios.values()):.1%} of "
        f"vanilla's over dampings of {min(ratios):g} to {max(ratios):g} mean eigenvalues; by the pseudo-inverse "
        f"{pseudo:.1%}{'' if same else ', not comparable, since the ranks differ'}",
        {"pseudo_inverse_ratio": pseudo, "rank_vanilla": compared.ranks[0], "rank_pgd": compared.ranks[1]}
        | {f"ratio_at_damping_{relative:g}": ratio for relative, ratio in ratios.items()}
        | {"accuracy_vanilla": compared.accuracy[0], "accuracy_pgd": compared.accuracy[1]},
    )
