"""The command line; the only part that prints."""

import errno
import io
import logging
import os
import signal
import sys
import tempfile
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import NoReturn, TextIO

import typer

from debiaser.cli import data as _data  # noqa: F401
from debiaser.cli import own as _own  # noqa: F401
from debiaser.cli import paper as _bench  # noqa: F401
from debiaser.cli import paper as _studies  # noqa: F401
from debiaser.cli import paper as _theory  # noqa: F401
from debiaser.cli import runs as _runs  # noqa: F401
from debiaser.cli.app import ClickError, app, one_line
from debiaser.errors import INTERRUPTED, Misuse, Problem, lack_of_memory
from debiaser.io import explain

OUR_MISTAKE = 70
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EROFS}  # what only writing meets
GRACE, USAGE_GRACE = 3.0, 60.0  # seconds; wrong usage is the same in all processes


def main() -> None:  # noqa: C901
    """Run the command; every way to end has its exit code and, if it is a mistake, its one line."""
    logging.basicConfig(format="debiaser: %(message)s", level=logging.WARNING, stream=sys.stderr)
    debug = "--debug" in sys.argv
    for stream in (sys.stdout, sys.stderr):  # a terminal that knows ASCII only gets question marks, not an error
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        be_one_of_several()
        code = app(standalone_mode=False)
        if sys.stdout is not None:
            sys.stdout.flush()  # what cannot be written is told, and not found out when Python ends
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except ClickError as error:
        complain(one_line(error), USAGE_GRACE)
        code = error.exit_code
    except Problem as error:
        code = refuse(error, debug)
        if wait := getattr(error, "wait", 0):
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            time.sleep(wait)
    except BrokenPipeError:  # nobody reads what is printed last; or nobody is told of work that is not done yet
        code = 0 if sys.stdout in drop_unwritten() else INTERRUPTED
    except Exception as error:
        mendable = explained(error)
        code = refuse(mendable, debug) if mendable else OUR_MISTAKE
        if not mendable:
            complain(f"a mistake of ours: {type(error).__name__}: {error}; please send us {crash_report()}")
            if debug:
                traceback.print_exc()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C once more ends what is left to tidy, without a word
    if code == INTERRUPTED:  # typer turns Ctrl-C into this code itself
        complain("interrupted; what was done is kept, and the same command goes on from there")
    drop_unwritten()
    leave(code if isinstance(code, int) else 0)


def refuse(problem: Problem, debug: bool) -> int:
    """Tell a problem in its line; the exit code that goes with it."""
    complain(str(problem), USAGE_GRACE if isinstance(problem, Misuse) else GRACE)
    if debug:
        traceback.print_exc()
    return problem.exit_code


def explained(error: Exception) -> Problem | None:
    """What a person can do about an error of the machine, no memory or no room; None for a mistake of ours."""
    if isinstance(error, OSError) and error.errno in FULL:
        return explain(error, Path(error.filename or "standard output"))
    return lack_of_memory(error)


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


def leave(code: int) -> NoReturn:
    """End with this code; one of several processes without its destructors, which may abort what went well."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        os._exit(code)
    sys.exit(code)


def be_one_of_several() -> None:
    """Under torchrun: only the first process warns, and it says why it must end when torchrun ends it.

    Alone, the signal to end is heeded like Ctrl-C, so that processes that we started end with us.
    """
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        return
    if other_process():
        logging.getLogger("debiaser").setLevel(logging.CRITICAL)
        return

    def end(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        raise Problem(
            "torchrun ended this job, since one of its processes failed; "
            "what was done is kept: start the same command again, and it goes on from there"
        )

    signal.signal(signal.SIGTERM, end)


def other_process() -> str:
    """The number of a process that is not the first of several, else nothing."""
    rank = os.environ.get("RANK", "0") if "TORCHELASTIC_RUN_ID" in os.environ else "0"
    return "" if rank == "0" else rank


def complain(line: str, grace: float = GRACE) -> None:
    """One line on standard error, if there is anything to say."""
    if not line or sys.stderr is None:
        return
    if rank := other_process():
        time.sleep(grace)  # a mistake that all make is told by the first one, and torchrun ends us meanwhile
        line = f"process {rank}: {line}"
    with suppress(OSError):  # nobody reads it, or the disk that it goes to is full
        print(f"debiaser: {' '.join(line.split())}", file=sys.stderr)


def crash_report() -> str:
    """The name of a file with the traceback, the command and the versions; else how to get them."""
    try:
        return str(write_crash_report())
    except OSError:
        return "what the same command says with --debug (no file could be written)"


def write_crash_report() -> Path:
    """A file of its own in the folder for temporary files."""
    import platform

    from debiaser import __version__

    handle, name = tempfile.mkstemp(prefix="debiaser-crash-", suffix=".txt")
    with os.fdopen(handle, "w") as stream:
        stream.write(f"debiaser {__version__}, Python {platform.python_version()}, {platform.platform()}\n")
        stream.write(f"command: {sys.argv}\n\n{traceback.format_exc()}")
    return Path(name)


__all__ = ["app", "main"]
