"""The command line; the only package that prints."""

import errno
import io
import logging
import os
import platform
import signal
import sys
import tempfile
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import TextIO

import typer

from debiaser import __version__
from debiaser.cli import marking as _marking  # noqa: F401
from debiaser.cli import own as _own  # noqa: F401
from debiaser.cli import paper as _paper  # noqa: F401
from debiaser.cli import runs as _runs  # noqa: F401
from debiaser.cli.app import ClickError, app, one_line
from debiaser.errors import INTERRUPTED, TERMINATED, Misuse, Problem, lack_of_memory
from debiaser.io import explain

OUR_MISTAKE = 70
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EROFS}  # what only writing meets
# As `--help` lists them; a command that is not here comes last.
ORDER = ("audit", "mark", "debias", "predict", "score", "demo", "train", "report", "study", "theory", "bench", "clean")
app.registered_commands.sort(
    key=lambda command: [*ORDER, name := getattr(command.callback, "__name__", "")].index(name)
)
GRACE, USAGE_GRACE = 3.0, 60.0  # seconds; wrong usage is the same in all processes


def main() -> None:
    """Run the command; every way to end has its exit code and, if it is a mistake, its one line."""
    logging.basicConfig(format="debiaser: %(message)s", level=logging.WARNING, stream=sys.stderr)
    for stream in (sys.stdout, sys.stderr):  # a terminal that knows ASCII only gets question marks, not an error
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        handle_sigterm()
        code = app(standalone_mode=False)
        if sys.stdout is not None:
            sys.stdout.flush()  # what cannot be written is told, and not found out when Python ends
    except (Exception, KeyboardInterrupt) as error:
        code = exit_code(error)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C once more ends what is left to tidy, without a word
    if code == INTERRUPTED:  # typer turns Ctrl-C into this code itself
        complain("interrupted; what was done is kept: rerun the same command to resume")
        code = TERMINATED if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL and not torchrun_rank() else code
    drop_unwritten()
    code = code if isinstance(code, int) else 0
    if torchrun_rank():
        os._exit(code)  # without destructors, which may abort what went well
    sys.exit(code)


def exit_code(error: Exception | KeyboardInterrupt) -> int:
    """Tell what went wrong in one line; the exit code that goes with it."""
    if isinstance(error, KeyboardInterrupt | typer.Abort):
        return INTERRUPTED
    if isinstance(error, BrokenPipeError):  # nobody reads the last lines; or nobody is told of work that is not done
        return 0 if sys.stdout in drop_unwritten() else INTERRUPTED
    if isinstance(error, ClickError):
        complain(one_line(error), USAGE_GRACE)
        return int(error.exit_code)
    if isinstance(error, OSError) and error.errno in FULL:
        error = explain(error, Path(error.filename or "standard output"))
    problem = error if isinstance(error, Problem) else lack_of_memory(error)
    if problem:
        complain(str(problem), USAGE_GRACE if isinstance(problem, Misuse) else GRACE)
    else:
        complain(f"a bug in debiaser: {type(error).__name__}: {error}; please send us {crash_report(error)}")
    if "--debug" in sys.argv:
        traceback.print_exc()
    if wait := getattr(error, "wait", 0):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        time.sleep(wait)
    return problem.exit_code if problem else OUR_MISTAKE


def drop_unwritten() -> list[TextIO]:
    """Let go of output that cannot be written, which Python would complain about at its end; the streams it was for."""
    dropped = []
    for stream in filter(None, (sys.stdout, sys.stderr)):
        try:
            stream.flush()
        except (OSError, ValueError):
            dropped.append(stream)
            with suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    return dropped


def torchrun_rank() -> str:
    """Our number among the processes that torchrun started; nothing where we are alone."""
    return os.environ.get("RANK", "0") if "TORCHELASTIC_RUN_ID" in os.environ else ""


def handle_sigterm() -> None:
    """Alone, the signal to end is heeded like Ctrl-C, so that processes that we started end with us.

    Under torchrun, the first process says why it must end when torchrun ends it, and only it warns.
    """
    rank = torchrun_rank()

    def end(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # which tells `main` what it was; a second one ends at once
        if not rank:
            raise KeyboardInterrupt
        raise Problem(
            "torchrun ended this job, since one of its processes failed; "
            "what was done is kept: rerun the same command to resume"
        )

    if rank in ("", "0"):
        signal.signal(signal.SIGTERM, end)
    else:
        logging.getLogger("debiaser").setLevel(logging.CRITICAL)


def complain(line: str, grace: float = GRACE) -> None:
    """One line on standard error, if there is anything to say."""
    if not line or sys.stderr is None:
        return
    rank = torchrun_rank()
    if rank not in ("", "0"):
        time.sleep(grace)  # a mistake that all make is told by the first one, and torchrun ends us meanwhile
        line = f"process {rank}: {line}"
    with suppress(OSError):  # nobody reads it, or the disk that it goes to is full
        print(f"debiaser: {' '.join(line.split())}", file=sys.stderr)


def crash_report(error: Exception) -> str:
    """The name of a new file with the traceback, the command and the versions; else how to get them."""
    facts = f"debiaser {__version__}, Python {platform.python_version()}, {platform.platform()}\ncommand: {sys.argv}"
    try:
        handle, name = tempfile.mkstemp(prefix="debiaser-crash-", suffix=".txt")
        with os.fdopen(handle, "w") as stream:
            stream.write("\n".join([facts, "", *traceback.format_exception(error)]))
    except OSError:
        return "what the same command says with --debug (no file could be written)"
    return name


__all__ = ["app", "main"]
