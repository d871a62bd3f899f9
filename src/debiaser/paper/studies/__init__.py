"""Every table and figure of the paper that runs, and studies of ours, by label."""

from debiaser.errors import known
from debiaser.paper.studies import definitions
from debiaser.paper.studies.study import Cell, Study, Tally, Verdict

STUDIES: dict[str, Study] = {
    study.label: study
    for study in (
        definitions.control,
        definitions.real_1,
        definitions.real_2,
        definitions.real_3,
        definitions.norm,
        definitions.ablation,
        definitions.invq_compare,
        definitions.gce_ablation,
        definitions.single_stage,
        definitions.reweighting,
        definitions.effect_grad_score,
        definitions.compute_time,
        definitions.natural,
        definitions.ab_hist,
        definitions.second_easiest,
        definitions.hist_trial,
        definitions.twice_the_length,
        definitions.residual,
        definitions.whole_network,
        definitions.scored_pictures,
        definitions.released_code,
        definitions.selection,
        definitions.label_noise,
        definitions.rho_sweep,
    )
}


def find_studies(name: str) -> list[Study]:
    """The study of this label, or all of them."""
    if name != "all" and name not in STUDIES:
        raise known("study", name, [*STUDIES, "all", "list"])
    return list(STUDIES.values()) if name == "all" else [STUDIES[name]]


__all__ = ["STUDIES", "Cell", "Study", "Tally", "Verdict", "find_studies"]
