"""Making the runs that studies lack: each a process of its own, several at once; where one fails the rest goes on."""

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from debiaser.bench.studies.study import Study
from debiaser.bench.studies.tally import Missing, Scale
from debiaser.children import python, surroundings
from debiaser.errors import Problem

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
    from debiaser.bench.results import read_result

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
        from debiaser.bench.fisher import add_fisher

        say(f"the inverse Fisher information of {key}")
        try:
            add_fisher(folder, result, data)
        except Problem as problem:
            failures.append(Failure(key, str(problem)))
    return failures
