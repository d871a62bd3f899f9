"""The paper's theoretical statements, each with a verdict, the rule it was judged by, and the numbers behind it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from debiaser.paper.theory.evidence import Choice, Compared, Evidence

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
        *lemmas(evidence),
        *theorem_1(evidence),
        *theorem_2(evidence),
        *objective(evidence.solved),
        many_parameters(evidence.compared[0], "more samples than parameters"),
        many_parameters(evidence.compared[1], "fewer samples than parameters"),
    )


def lemmas(evidence: Evidence) -> Iterator[Statement]:
    """n times the excess test loss against half the Fisher information ratio; the trace at the fitted parameter."""
    limit, rows = evidence.world.information_ratio / 2, evidence.rows
    first, last = rows[0], rows[-1]
    apart = max(abs(row["scaled_excess"] - limit) / row["standard_error"] for row in rows if row["n"] >= LARGE)
    yield Statement(
        "Lemma 7, excess loss",
        "n times the test loss above that of the true parameter tends to half of Tr[I_p^-1 I_q].",
        judged(apart <= ERRORS),
        f"at every n from {LARGE:,} on, the mean lies within {ERRORS} standard errors of the limit",
        f"limit {limit:.4f}; at n = {last['n']:,}: {last['scaled_excess']:.4f} ± {last['standard_error']:.4f} over "
        f"{last['sets']:,} drawn training sets; at n = {first['n']:,}: {first['scaled_excess']:.4f}",
        {"limit": limit, "largest_distance_in_standard_errors": apart}
        | {f"{name}_{row['n']}": row[name] for name in ("scaled_excess", "standard_error") for row in rows},
    )
    falls = all(one["trace_deviation"] > other["trace_deviation"] for one, other in pairwise(rows))
    yield Statement(
        "Lemma 9",
        "Tr[I_p^-1] at the fitted parameter tends to that at the true parameter.",
        judged(falls and last["trace_deviation"] < 0.01),
        "the mean relative deviation falls with every n and ends below 1%",
        f"mean deviation {first['trace_deviation']:.2%} at n = {first['n']:,}, {last['trace_deviation']:.2%} at "
        f"n = {last['n']:,}",
        {f"deviation_{row['n']}": row["trace_deviation"] for row in rows},
    )


def theorem_1(evidence: Evidence) -> Iterator[Statement]:
    """The bound against the excess loss and against the loss as printed; its assumptions (D41); a sign in its proof."""
    rows, last, world = evidence.rows, evidence.rows[-1], evidence.world
    often = f"in at least {HIGH:.0%} of the drawn training sets at every n from {LARGE:,} on"
    share = min(row["bounded_excess"] for row in rows if row["n"] >= LARGE)
    slack = last["bound"] * last["n"] / last["scaled_excess"]
    yield Statement(
        "Theorem 1, excess loss",
        "The test loss above that of the true parameter is at most Tr[I_p^-1] Tr[I_q] / 2n with high probability.",
        judged(share >= HIGH),
        often,
        f"in {share:.1%} of the drawn training sets; the bound is {slack:.1f} times the excess loss at "
        f"n = {last['n']:,}",
        {"smallest_share": share, "bound_over_excess": slack} | {f"bound_{row['n']}": row["bound"] for row in rows},
    )
    shares = [row["bounded_loss"] for row in rows if row["n"] >= LARGE]
    crossing = world.inverse_information * world.fisher(world.q).trace() / 2 / world.entropy
    yield Statement(
        "Theorem 1 as printed",
        "The test loss itself is at most Tr[I_p^-1] Tr[I_q] / 2n for sufficiently large n.",
        judged(min(shares) >= HIGH),
        often,
        f"in {max(shares):.1%} of the drawn training sets. It cannot hold where labels are noisy: the left side tends "
        f"to the labels' entropy ({world.entropy:.4f}; at n = {last['n']:,}: {last['loss']:.4f}), the right side to 0 "
        f"({last['bound']:.6f}); they cross at n = {crossing:.0f}",
        {"largest_share": max(shares), "label_entropy": world.entropy, "crossing_n": crossing}
        | {f"loss_{row['n']}": row["loss"] for row in rows},
    )
    soft, hard = evidence.hardened[0], evidence.hardened[-1]
    yield Statement(
        "Theorem 1 under its own assumptions",
        "The printed form holds where the true model is certain of every label (A3) and the Fisher information is "
        "invertible (A8).",
        "not testable",
        "no model meets both: where f(y|x) = 1 all score vectors vanish (the paper's Lemma 5), and so does their "
        "outer product (D41)",
        f"with the true parameter scaled up {hard['scale']:,.0f} times, the least certain label has probability "
        f"{hard['least_certain']:.6f}, and the trace of the Fisher information falls from {soft['trace']:.3f} to "
        f"{hard['trace']:.1e}, its smallest eigenvalue to {hard['smallest_eigenvalue']:.1e}",
        {
            f"{name}_at_scale_{each['scale']:g}": each[name]
            for name in ("trace", "least_certain", "smallest_eigenvalue")
            for each in evidence.hardened
        },
    )
    ordered, ratios = evidence.matrices
    smallest, least = float(ordered.min()), float(ratios.min())
    yield Statement(
        "Footnote to Lemma 9",
        "If A is below B then Tr[B - A] <= 0.",
        judged(float(ordered.max()) <= 0),
        "for every drawn pair; what the proof needs is the opposite sign, and that Tr[AB] <= Tr[A] Tr[B]",
        f"over {len(ordered):,} pairs, the smallest Tr[B - A] is {smallest:.2f}: a sign error (D41), but a "
        f"harmless one; the smallest Tr[A] Tr[B] / Tr[AB] is {least:.2f}, as needed",
        {"smallest_trace_of_difference": smallest, "smallest_slack": least},
    )


def theorem_2(evidence: Evidence) -> Iterator[Statement]:
    """The closed form against the minimiser, with two sets and with a third between them."""
    cases, beyond = evidence.cases, evidence.beyond
    distance, mass = max(case["distance"] for case in cases), max(abs(case["majority_mass"] - 0.5) for case in cases)
    yield Statement(
        "Theorem 2",
        "With two sets on a line, h in proportion to |g| at the uniformly trained parameter minimises the trace.",
        judged(distance <= EXACT),
        f"closed form and numeric minimiser differ by at most {EXACT:g}, relatively, in every case",
        f"in {len(cases)} cases of (a, |M|, |m|) they differ by at most {distance:.1e}; the mass of each set is within "
        f"{mass:.1e} of 1/2",
        {"cases": len(cases), "largest_relative_difference": distance, "largest_distance_from_half": mass},
    )
    (_, uniform), (by_norm, trace), (found, lowest) = (beyond[kind] for kind in ("uniform", "by_norm", "found"))
    apart = float(abs(by_norm - found).max())
    masses = "{:.2f}, {:.2f}, {:.2f}"
    yield Statement(
        "Theorem 2 with a third set",
        "The same with a third set between the two: gradient norms minimise the trace.",
        judged(apart <= EXACT),
        f"the masses of the three sets differ by at most {EXACT:g}",
        f"gradient norms give the masses {masses.format(*by_norm)}, the minimum is at "
        f"{masses.format(*found)}: all on the outermost sets. Trace: uniform {uniform:.2f}, gradient norms "
        f"{trace:.2f}, minimum {lowest:.2f}",
        {"trace_uniform": uniform, "trace_by_norm": trace, "trace_minimum": lowest, "largest_distance": apart},
    )


def objective(solved: tuple[dict[str, Choice], ...]) -> Iterator[Statement]:
    """Whether gradient norms lower the objective of the small logistic model, and whether they minimise it."""
    ratios, lowest = ([each[kind].trace / each["uniform"].trace for each in solved] for kind in ("by_norm", "optimal"))
    yield Statement(
        "Practical objective, lowered",
        "Sampling by gradient norm lowers Tr[I_h(theta_h)^-1] below that of uniform sampling (logistic model).",
        judged(max(ratios) < 1),
        "on every drawn data set",
        f"on {len(ratios)} datasets it is {min(ratios):.1%} to {max(ratios):.1%} of that value; the lowest found is "
        f"{min(lowest):.1%} to {max(lowest):.1%}",
        {"largest_ratio": max(ratios), "smallest_ratio": min(ratios), "largest_optimal_ratio": max(lowest)},
    )
    free, even = ([each[kind].rank_correlation for each in solved] for kind in ("optimal", "even"))
    samples = [each["optimal"].effective_rows for each in solved]
    masses = {kind: sum(each[kind].conflicting_mass for each in solved) / len(solved) for kind in solved[0]}
    yield Statement(
        "Practical objective, minimised",
        "The h that minimises Tr[I_h(theta_h)^-1] is in proportion to the gradient norms (logistic model).",
        judged(min(free) >= PROPORTIONAL),
        f"rank correlation of at least {PROPORTIONAL} on every drawn data set",
        f"rank correlations {min(free):.2f} to {max(free):.2f}: the minimum uses {min(samples):.0f} to "
        f"{max(samples):.0f} effective samples of {len(solved[0]['even'].h)}. With h kept near uniform: "
        f"{min(even):.2f} to {max(even):.2f}. The mass of the conflicting samples: {masses['uniform']:.2f} "
        f"uniform, {masses['by_norm']:.2f} by gradient norm, {masses['optimal']:.2f} at the minimum, "
        f"{masses['sets']:.2f} with one value per set",
        {
            "smallest_rank_correlation": min(free),
            "largest_rank_correlation": max(free),
            "most_effective_rows": max(samples),
            "smallest_rank_correlation_even": min(even),
            "largest_rank_correlation_even": max(even),
        }
        | {f"conflicting_mass_{kind}": mass for kind, mass in masses.items()},
    )


def many_parameters(compared: Compared, case: str) -> Statement:
    """The traces of PGD and vanilla for softmax regression on digits."""
    ratios = {damping: pgd / vanilla for damping, (vanilla, pgd) in compared.sweep.items()}
    pseudo = compared.pseudo[1] / compared.pseudo[0]
    same = compared.ranks[0] == compared.ranks[1]
    return Statement(
        f"Many parameters, {case}",
        "PGD's trace of the inverse is below vanilla's (softmax regression on coloured digits).",
        judged(max(ratios.values()) < 1 and (pseudo < 1 or not same)),
        "at every damping of the sweep, and by the pseudo-inverse where the ranks agree",
        f"{compared.rows:,} samples, {compared.parameters:,} parameters, ranks {compared.ranks[0]:,} (vanilla) and "
        f"{compared.ranks[1]:,} (PGD): PGD's trace is {min(ratios.values()):.1%} to {max(ratios.values()):.1%} of "
        f"vanilla's over dampings of {min(ratios):g} to {max(ratios):g} mean eigenvalues; by the pseudo-inverse "
        f"{pseudo:.1%}{'' if same else ', not comparable, since the ranks differ'}",
        {"pseudo_inverse_ratio": pseudo, "rank_vanilla": compared.ranks[0], "rank_pgd": compared.ranks[1]}
        | {f"ratio_at_damping_{relative:g}": ratio for relative, ratio in ratios.items()}
        | {"accuracy_vanilla": compared.accuracy[0], "accuracy_pgd": compared.accuracy[1]},
    )
