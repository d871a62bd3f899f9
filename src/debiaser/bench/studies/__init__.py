"""Every table and figure of the paper that runs, and studies of ours, by label."""

from debiaser.bench.studies import ablations, comparisons, evidence, ours
from debiaser.bench.studies.study import Cell, Study, Tally, Verdict
from debiaser.errors import known

STUDIES: dict[str, Study] = {
    study.label: study
    for study in (
        comparisons.control,
        comparisons.real_1,
        comparisons.real_2,
        comparisons.real_3,
        ablations.norm,
        ablations.ablation,
        evidence.invq_compare,
        ablations.gce_ablation,
        ablations.single_stage,
        ablations.reweighting,
        ablations.effect_grad_score,
        comparisons.compute_time,
        comparisons.natural,
        evidence.ab_hist,
        evidence.second_easiest,
        comparisons.hist_trial,
        ours.twice_the_length,
        ours.residual,
        ours.whole_network,
        ours.scored_pictures,
        ours.released_code,
        ours.selection,
        ours.label_noise,
        ours.rho_sweep,
    )
}


def find_studies(name: str) -> list[Study]:
    """The study of this label, or all of them."""
    if name != "all" and name not in STUDIES:
        raise known("study", name, [*STUDIES, "all", "list"])
    return list(STUDIES.values()) if name == "all" else [STUDIES[name]]


__all__ = ["STUDIES", "Cell", "Study", "Tally", "Verdict", "find_studies"]
