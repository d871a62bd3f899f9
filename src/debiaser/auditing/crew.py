"""Several processes that work on jobs; each is told a folder per line and answers with its progress."""

import json
import os
import queue
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

import torch

from debiaser.auditing.jobs import Answers, Job, read_answers, work
from debiaser.children import python, surroundings
from debiaser.errors import INTERRUPTED, Problem, lack_of_memory
from debiaser.learn.engine import Listener, Row, Silence
from debiaser.learn.freed_memory import keep_freed_memory

EVERY = 0.3  # seconds between a worker's words
TALK = 1  # the pipe that they go through: our end of the worker's standard output


def run(jobs: Sequence[Job], folder: Path, stage: str, listener: Listener, workers: int = 1) -> list[Answers]:
    """The answers of these jobs, in their order; what was done before is not done again."""
    folders = [folder / job.key for job in jobs]
    known = [read_answers(own) for own in folders]
    missing = [job for job, answers in zip(jobs, known, strict=True) if answers is None]
    if missing:
        total = sum(job.steps for job in jobs)
        listener.begin(stage, total, total - sum(job.steps for job in missing))
        written = [job.write(folder) for job in missing]
        if min(workers, len(missing)) > 1:
            share_out(written, min(workers, len(missing)), listener)
        else:
            for own in written:
                work(own, OneBar(listener))
        listener.end(stage, None)
    return [answers or finished(own) for answers, own in zip(known, folders, strict=True)]


def finished(own: Path) -> Answers:
    """The answers of a job that was just done."""
    answers = read_answers(own)
    if answers is None:
        raise Problem(f"cannot read what was just written to {own}; another process may have removed it: try again")
    return answers


class OneBar(Silence):
    """The steps of many trainings as one bar."""

    def __init__(self, listener: Listener) -> None:
        self.step = listener.step  # type: ignore[method-assign]


def share_out(folders: Sequence[Path], workers: int, listener: Listener) -> None:
    """Give every worker the next job until none is left; the first problem ends it all."""
    waiting: queue.SimpleQueue[Path] = queue.SimpleQueue()
    for own in folders:
        waiting.put(own)
    problems: list[Exception] = []
    lock = threading.Lock()
    crew = [hire(max(1, torch.get_num_threads() // workers)) for _ in range(workers)]
    threads = [
        threading.Thread(target=attend, args=(each, waiting, listener, lock, problems), daemon=True) for each in crew
    ]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():  # a join without a time limit cannot be interrupted everywhere
                thread.join(0.5)
    finally:
        for each in crew:
            dismiss(each)
    if problems:
        raise problems[0]


def hire(threads: int) -> subprocess.Popen[str]:
    """A worker process; it ends when we do, since its standard input ends then. A terminal's Ctrl-C is for us alone."""
    return subprocess.Popen(  # noqa: S603 (our own words)
        python("-m", "debiaser.auditing.crew"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=surroundings(OMP_NUM_THREADS=str(threads)),
        process_group=0,
    )


def attend(
    worker: subprocess.Popen[str],
    waiting: "queue.SimpleQueue[Path]",
    listener: Listener,
    lock: threading.Lock,
    problems: list[Exception],
) -> None:
    """Hand jobs to one worker and pass on what it says."""
    assert worker.stdin is not None
    assert worker.stdout is not None
    while not problems:
        try:
            own = waiting.get_nowait()
        except queue.Empty:
            return
        try:
            worker.stdin.write(json.dumps(str(own)) + "\n")
            worker.stdin.flush()
        except (OSError, ValueError):  # it ended, or was dismissed meanwhile
            problems.append(died(worker))
            return
        for line in worker.stdout:
            word = json.loads(line)
            with lock:
                for _ in range(word.get("steps", 0)):
                    listener.step()
            if "problem" in word:
                problems.append(Problem(word["problem"]))
            if "mistake" in word:
                problems.append(Mistake(word["mistake"]))
            if word.keys() & {"done", "problem", "mistake"}:
                break
        else:
            problems.append(died(worker))


class Mistake(RuntimeError):
    """A mistake of ours in a worker: its last line as the message, the whole below it for the report."""

    def __init__(self, trace: str) -> None:
        super().__init__(f"in a worker: {trace.strip().splitlines()[-1]}")
        self.add_note(trace)


def died(worker: subprocess.Popen[str]) -> Problem:
    """What to say of a worker that is gone."""
    return Problem(
        f"a worker process ended unexpectedly (code {worker.wait()}), perhaps for lack of memory; the same command "
        "goes on from what is done, --workers 1 needs the least memory"
    )


def dismiss(worker: subprocess.Popen[str]) -> None:
    """End a worker, whatever it is doing."""
    worker.kill() if worker.stdin is None else worker.stdin.close()
    try:
        worker.wait(0.2)
    except subprocess.TimeoutExpired:
        worker.kill()
        worker.wait()


class Telling(Silence):
    """Counts steps and says how many there were, now and then."""

    def __init__(self) -> None:
        self.steps, self.said = 0, time.monotonic()

    def step(self) -> None:
        self.steps += 1
        if time.monotonic() - self.said > EVERY:
            self.tell()

    def tell(self, **more: object) -> None:
        os.write(TALK, (json.dumps({"steps": self.steps, **more}) + "\n").encode())
        self.steps, self.said = 0, time.monotonic()

    def end(self, stage: str, row: Row | None) -> None:  # noqa: ARG002
        self.tell()


def main() -> None:
    """A worker's life: a folder per line in, words of progress out, until standard input ends or nobody listens."""
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    keep_freed_memory()
    try:
        for line in sys.stdin:
            serve(Path(json.loads(line)))
    except BrokenPipeError:  # the one who hired us is gone
        os._exit(INTERRUPTED)


def serve(own: Path) -> None:
    """Do one job, and tell how it ended."""
    telling = Telling()
    try:
        work(own, telling)
    except BrokenPipeError:
        raise
    except Problem as problem:
        telling.tell(problem=str(problem))
    except Exception as error:
        short = lack_of_memory(error)
        telling.tell(**({"problem": str(short)} if short else {"mistake": traceback.format_exc()}))
    else:
        telling.tell(done=True)


if __name__ == "__main__":
    main()
