"""The trace of the inverse empirical Fisher information at the model of a finished run, added to its result."""

from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import torch

from debiaser.bench.experiment import EVALUATION_BATCH, load
from debiaser.bench.results import Result
from debiaser.bench.settings import SETTINGS
from debiaser.bench.spec import Spec
from debiaser.bench.studies.evidence import DAMPINGS
from debiaser.errors import Problem
from debiaser.files import UNREADABLE, write_json
from debiaser.learn.checkpoint import read_tensors
from debiaser.learn.nets import new_net
from debiaser.learn.normalise import normalised
from debiaser.learn.outputs import look
from debiaser.learn.recipe import Recipe
from debiaser.theory.fisher import head_fisher, inverse_trace


def add_fisher(folder: Path, result: Result, data: Path | None = None, device: str = "cpu") -> Result:
    """The result with a part `fisher`, which is also written to the run's folder.

    Each training row counts as often as the method drew it: h(x) of PGD, all alike for Vanilla (the paper's figure
    `invq_compare`). The last layer's matrix is singular, so the inverse is damped, by the same numbers always (D37).
    """
    spec = spec_of(result["spec"])
    benchmark = load(spec, data)
    net = normalised(new_net(spec.net, len(benchmark.classes), 0), SETTINGS[spec.dataset].normalise)
    try:
        net.load_state_dict(read_tensors(folder / "model.safetensors").tensors)
        with np.load(folder / "vectors.npz", allow_pickle=False) as archive:
            weights = torch.from_numpy(archive["probability"])
    except (*UNREADABLE, safetensors.SafetensorError) as error:
        raise Problem(f"the files in {folder} are damaged ({error}); remove that folder and run it again") from error
    outputs = look(net.to(device), benchmark.train.batches(EVALUATION_BATCH), device=device)
    fisher = head_fisher(outputs, weights)
    traces = {damping: inverse_trace(fisher, float(damping)) for damping in DAMPINGS}
    result = {**result, "fisher": {**traces, "pseudo": inverse_trace(fisher), "mean": fisher.mean_eigenvalue}}
    write_json(folder / "result.json", result)
    return result


def spec_of(plain: dict[str, Any]) -> Spec:
    """The spec that was written as plain values."""
    names = {name: value for name, value in plain.items() if name != "protocol"}
    return Spec(**{**names, "recipe": Recipe(**plain["recipe"])})
