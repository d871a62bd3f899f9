"""The command line; the only part that prints."""

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
from typing import NoReturn

import typer

from debiaser.cli import bench as _bench  # noqa: F401
from debiaser.cli import data as _data  # noqa: F401
from debiaser.cli import own as _own  # noqa: F401
from debiaser.cli import runs as _runs  # noqa: F401
from debiaser.cli import studies as _studies  # noqa: F401
from debiaser.cli import theory as _theory  # noqa: F401
from debiaser.cli.app import app
from debiaser.cli.usage import ClickError, one_line
from debiaser.errors import Misuse, Problem

INTERRUPTED = 130
OUR_MISTAKE = 70
GRACE, USAGE_GRACE = 3.0, 60.0  # seconds; wrong usage is the same in all processes


def main() -> None:
    """Run the command; every way to end has its exit code and, if it is a mistake, its one line."""
    logging.basicConfig(format="debiaser: %(message)s", level=logging.WARNING, stream=sys.stderr)
    debug = "--debug" in sys.argv
    for stream in (sys.stdout, sys.stderr):  # a terminal that knows ASCII only gets question marks, not an error
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        be_one_of_several()
        code = app(standalone_mode=False)
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except ClickError as error:
        complain(one_line(error), USAGE_GRACE)
        code = error.exit_code
    except Problem as error:
        complain(str(error), USAGE_GRACE if isinstance(error, Misuse) else GRACE)
        code = error.exit_code
        if debug:
            traceback.print_exc()
        if wait := getattr(error, "wait", 0):
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            time.sleep(wait)
    except BrokenPipeError:  # the reader of our output has gone: nothing to tell anyone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except Exception as error:
        code = OUR_MISTAKE
        complain(f"a mistake of ours: {type(error).__name__}: {error}; please send us {crash_report()}")
        if debug:
            traceback.print_exc()
    if code == INTERRUPTED:  # typer turns Ctrl-C into this code itself
        complain("interrupted; what was done is kept, and the same command goes on from there")
    leave(code if isinstance(code, int) else 0)


def leave(code: int) -> NoReturn:
    """End with this code; one of several processes without its destructors, which may abort what went well."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        for stream in filter(None, (sys.stdout, sys.stderr)):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)
    sys.exit(code)


def be_one_of_several() -> None:
    """Under torchrun: only the first process warns, and it says why it must end when torchrun ends it."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
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
    print(f"debiaser: {' '.join(line.split())}", file=sys.stderr)


def crash_report() -> Path:
    """A file with the traceback, the command and the versions."""
    import platform

    from debiaser import __version__

    handle, name = tempfile.mkstemp(prefix="debiaser-crash-", suffix=".txt")
    with os.fdopen(handle, "w") as stream:
        stream.write(f"debiaser {__version__}, Python {platform.python_version()}, {platform.platform()}\n")
        stream.write(f"command: {sys.argv}\n\n{traceback.format_exc()}")
    return Path(name)


__all__ = ["app", "main"]
