"""Progress with time left: bars in a terminal, plain lines elsewhere; tables."""

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from debiaser.progress import listening

if TYPE_CHECKING:  # rich is loaded when something is shown
    from rich.progress import Progress, TaskID

EVERY = 15.0  # seconds between plain progress lines
LONG = 600.0  # seconds from which on the expected end is told
EARLY = 0.01  # of the steps: before, the time left cannot be told


class Reporter:
    """A listener that shows nothing; others put the name of the present run, if there is one, before what they show."""

    run = ""

    def __call__(self, what: str, done: int, total: int | None, step: int, unit: str) -> None: ...


class Bars(Reporter):
    """One bar per piece of work, with elapsed time and time left."""

    def __init__(self, progress: "Progress") -> None:
        self.progress = progress
        self.open: dict[str, TaskID] = {}

    def __call__(self, what: str, done: int, total: int | None, step: int, unit: str) -> None:  # noqa: ARG002
        if what not in self.open or (not step and done != total):
            self.open[what] = self.progress.add_task(label(self.run, what), total=total)
        self.progress.update(self.open[what], completed=done, total=total)
        if done == total:
            del self.open[what]
            self.progress.refresh()


class Lines(Reporter):
    """A line when a piece of work begins, every few seconds, and when it ends."""

    def __init__(self) -> None:
        self.open: dict[str, tuple[float, int]] = {}  # when it began, with how much done
        self.said: dict[str, float] = {}  # when it was last told of

    def __call__(self, what: str, done: int, total: int | None, step: int, unit: str) -> None:
        now, name = time.monotonic(), label(self.run, what)
        if what not in self.open or (not step and done != total):
            self.open[what], self.said[what] = (now, done), now
            resumed = f", resumed after {amount(done, unit)}" if done else ""
            say(name + (f": {amount(total - done, unit)}{resumed}" if total else ""))
            return
        started, first = self.open[what]
        if done == total:
            del self.open[what]
            say(f"{name}: done in {duration(now - started)}")
        elif now - self.said[what] >= EVERY and (total is None or done >= EARLY * total):
            self.said[what] = now
            if total is None:
                say(f"{name}: {amount(done, unit)}")
                return
            left = (now - started) / (done - first) * (total - done)
            say(f"{name}: {done / total:.0%}, about {duration(left)} left{until(now - started, left)}")


def amount(number: int, unit: str) -> str:
    """1,200 steps, 3.4 MB."""
    return f"{number / 1e6:,.1f} MB" if unit == "bytes" else f"{number:,} {unit}"


@contextmanager
def reporting(quiet: bool) -> Iterator[Reporter]:
    """Within, progress is shown in the way that fits where standard error goes."""
    if quiet or not is_terminal(sys.stderr):
        reporter = Reporter() if quiet else Lines()
        with listening(reporter):
            yield reporter
        return
    from rich import progress as rich
    from rich.console import Console

    columns = (rich.TextColumn("{task.description:<28}"), rich.BarColumn(), rich.TaskProgressColumn())
    times = (rich.TimeElapsedColumn(), rich.TimeRemainingColumn())
    with rich.Progress(*columns, *times, console=Console(stderr=True)) as progress, listening(bars := Bars(progress)):
        yield bars


def label(run: str, what: str) -> str:
    """How a piece of work is called on the screen."""
    return f"{run} · {what}" if run and run != what else what


def is_terminal(stream: TextIO | None) -> bool:
    """Whether it is open and a terminal; a closed stream is None."""
    return stream is not None and stream.isatty()


def say(line: str) -> None:
    """A line for people, on standard error, if that is open."""
    if sys.stderr is not None:
        print(line, file=sys.stderr, flush=True)


def duration(seconds: float) -> str:
    """3 s, 2 min 5 s, 1 h 3 min."""
    seconds = round(seconds)
    if seconds < 60:
        return f"{seconds} s"
    minutes, rest = divmod(seconds, 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def until(elapsed: float, left: float) -> str:
    """`, until about 14:05` for what takes longer than ten minutes in all, else nothing."""
    return f", until about {clock(left)}" if elapsed + left > LONG else ""


def clock(seconds: float) -> str:
    """The time of day so many seconds from now, with the weekday where it is not today."""
    now, then = time.localtime(), time.localtime(time.time() + seconds)
    return time.strftime("%H:%M" if now.tm_yday == then.tm_yday else "%a %H:%M", then)


def show_table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], to_stderr: bool, words: bool = False
) -> None:
    """A table: the first column to the left, numbers to the right; with `words`, all to the left."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left", title_style="bold")
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if words or not number else "right", no_wrap=not number)
    for row in rows:
        table.add_row(*row)
    Console(stderr=to_stderr, width=None if is_terminal(sys.stdout) else 120).print(table)
