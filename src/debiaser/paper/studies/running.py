"""Making the runs that studies lack: each a process of its own, several at once; where one fails the rest goes on."""

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import torch

from debiaser.errors import Problem
from debiaser.io import UNREADABLE, python, surroundings, write_json
from debiaser.learn.checkpoint import read_tensors
from debiaser.learn.forward import look
from debiaser.learn.nets import new_net, normalised
from debiaser.learn.recipe import Recipe
from debiaser.paper.experiment import EVALUATION_BATCH, load
from debiaser.paper.results import Result
from debiaser.paper.settings import SETTINGS
from debiaser.paper.spec import Spec
from debiaser.paper.studies.definitions import DAMPINGS
from debiaser.paper.studies.study import Study
from debiaser.paper.studies.tally import Missing, Scale
from debiaser.paper.theory.fisher import head_fisher, inverse_trace

# --- The trace of the inverse empirical Fisher information at the model of a finished run, added to its result


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


Tell = Callable[[Missing, str], None]


@dataclass(frozen=True)
class Failure:
    """A run that could not be made or measured, and why, in one line."""

    key: str
    reason: str


@dataclass
class Crew:
    """Processes that make runs; `told` hears every line that one of them says on standard error."""

    out: Path
    data: Path | None = None
    workers: int = 1
    device: str = "auto"
    told: Tell = lambda _run, _line: None

    def make(self, runs: Sequence[Missing], ended: Callable[[Missing, Failure | None], None]) -> list[Failure]:
        """Make them all; `ended` hears of each as it ends. What failed comes back."""
        failures = []
        live: set[subprocess.Popen[str]] = set()
        with ThreadPoolExecutor(max(1, self.workers)) as pool:
            work = {pool.submit(self.make_one, run, live): run for run in runs}
            try:
                for done in as_completed(work):
                    failure = done.result()
                    ended(work[done], failure)
                    failures += [failure] if failure else []
            except BaseException:  # we are interrupted: what the processes did so far is kept
                pool.shutdown(wait=False, cancel_futures=True)
                for process in list(live):
                    process.terminate()
                raise
        return failures

    def make_one(self, run: Missing, live: set[subprocess.Popen[str]]) -> Failure | None:
        """One run, as the command that a person would type."""
        line, variables = python("-m", "debiaser", *self.words(run)), surroundings(**threads(self.workers))
        said = ""
        with subprocess.Popen(  # noqa: S603 (our own command)
            line,
            env=variables,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            process_group=0,  # Ctrl-C in a terminal is for us alone; we end them
        ) as process:
            live.add(process)
            for each in process.stderr or ():
                if each.strip():
                    said = each.strip()
                    self.told(run, said)
        live.discard(process)
        return None if process.returncode == 0 else Failure(run.spec.key, why(process.returncode, said))

    def words(self, run: Missing) -> list[str]:
        """The whole command, without the program."""
        where = ["--data", str(self.data)] if self.data else []
        device = ["--device", self.device] if self.device != "auto" else []
        return [*run.words, *where, *device, "--out", str(self.out)]


def why(code: int, said: str) -> str:
    """Why a process failed: what it said last, unless it was killed and could say nothing of that."""
    return f"signal {-code} ended it" if code < 0 else said.removeprefix("debiaser: ") or "it said nothing"


def threads(workers: int) -> dict[str, str]:
    """The processors divided among workers, as environment variables; one worker keeps what is set."""
    if workers < 2:
        return {}
    share = str(max(1, cores() // workers))
    return {"OMP_NUM_THREADS": share, "MKL_NUM_THREADS": share}


def cores() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def add_parts(
    studies: Sequence[Study], folders: Mapping[str, Path], scale: Scale, data: Path | None, say: Callable[[str], None]
) -> list[Failure]:
    """Give finished runs the parts that are measured afterwards: the Fisher information, at the model they kept.

    `folders`: where each run is, by its key. What could not be measured comes back.
    """
    from debiaser.paper.results import read_result

    wanted = {
        cell.spec(scale.recipe, seed, scale.epochs).key
        for study in studies
        for cell in study.cells
        if cell.part == "fisher"
        for seed in scale.of(study)
    }
    failures = []
    for key in sorted(wanted & set(folders)):
        folder = folders[key]
        result = read_result(folder)
        if result is None or "fisher" in result or not (folder / "model.safetensors").is_file():
            continue

        say(f"the inverse Fisher information of {key}")
        try:
            add_fisher(folder, result, data)
        except Problem as problem:
            failures.append(Failure(key, str(problem)))
    return failures
