"""Progress with time left: bars in a terminal, plain lines elsewhere; tables."""

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, TextIO

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:  # a plan of runs is shown without loading torch
    from debiaser.learn.engine import Row

EVERY = 15.0  # seconds between plain progress lines
LONG = 600.0  # seconds from which on the expected end is told
EARLY = 0.01  # of the steps: before, the time left cannot be told


class Reporter(Protocol):
    """A training listener that can be told which run is next, and closed."""

    def announce(self, what: str) -> None:
        """What the next stages belong to."""
        ...

    def close(self) -> None:
        """No more is to come."""
        ...

    def begin(self, stage: str, steps: int, done: int) -> None: ...
    def step(self) -> None: ...
    def end(self, stage: str, row: "Row | None") -> None: ...


class Quietly:
    """Says nothing."""

    def announce(self, what: str) -> None:
        pass

    def close(self) -> None:
        pass

    def begin(self, stage: str, steps: int, done: int) -> None:
        pass

    def step(self) -> None:
        pass

    def end(self, stage: str, row: "Row | None") -> None:
        pass


class EndColumn(ProgressColumn):
    """When a long stage is expected to end."""

    def render(self, task: Task) -> Text:
        """`until 14:05`, or nothing for what takes minutes only."""
        left = task.time_remaining
        return Text(until(task.elapsed or 0.0, left) if left else "")


class Bars:
    """One bar per stage, with elapsed time and time left."""

    def __init__(self) -> None:
        columns = (TextColumn("{task.description:<28}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"))
        self.progress = Progress(
            *columns, TimeElapsedColumn(), TimeRemainingColumn(), EndColumn(), console=Console(stderr=True)
        )
        self.progress.start()
        self.what, self.current = "", TaskID(0)

    def announce(self, what: str) -> None:
        self.what = what

    def begin(self, stage: str, steps: int, done: int) -> None:
        self.current = self.progress.add_task(label(self.what, stage), total=steps, completed=done)

    def step(self) -> None:
        self.progress.advance(self.current)

    def end(self, stage: str, row: "Row | None") -> None:  # noqa: ARG002
        self.progress.refresh()

    def close(self) -> None:
        self.progress.stop()


class Lines:
    """A line when a stage begins, every few seconds, and when it ends."""

    def __init__(self) -> None:
        self.what, self.stage, self.steps, self.done, self.first = "", "", 0, 0, 0
        self.started = self.said = self.last = 0.0

    def announce(self, what: str) -> None:
        self.what = what

    def begin(self, stage: str, steps: int, done: int) -> None:
        self.stage, self.steps, self.done, self.first = stage, steps, done, done
        self.started = self.said = self.last = time.monotonic()
        resumed = f", resumed at {done:,} of {steps:,}" if done else ""
        say(f"{label(self.what, stage)}: {steps - done:,} steps{resumed}")

    def step(self) -> None:
        now, made = time.monotonic(), self.done - self.first
        each = (self.last - self.started) / made if made else 0.0
        # Steps may come many at once, when a batch is done: what was done before this one is told, and only if it took
        # about as long as others do.
        due = now - self.said >= EVERY and now - self.last >= each / 2
        if due and made and EARLY * self.steps <= self.done < self.steps:
            self.said = now
            left = each * (self.steps - self.done)
            end = until(now - self.started, left)
            told = f"about {duration(left)} left{f', {end}' if end else ''}"
            say(f"{label(self.what, self.stage)}: {self.done / self.steps:.0%}, {told}")
        self.done, self.last = self.done + 1, now

    def end(self, stage: str, row: "Row | None") -> None:  # noqa: ARG002
        say(f"{label(self.what, stage)}: done in {duration(time.monotonic() - self.started)}")

    def close(self) -> None:
        pass


class Downloads:
    """A progress callback (what, bytes done, bytes in all or None) for as long as it is open."""

    def __init__(self, quiet: bool, beside: Progress | None = None) -> None:
        """`beside`: bars that are open already, to show this among them."""
        self.quiet, self.said = quiet, 0.0
        self.bars = beside
        if self.bars is None and not quiet and is_terminal(sys.stderr):
            columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
            self.bars = Progress(*columns, console=Console(stderr=True))
        self.tasks: dict[str, TaskID] = {}

    def __enter__(self) -> "Downloads":
        if self.bars:
            self.bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.bars:
            self.bars.stop()

    def __call__(self, what: str, done: int, total: int | None) -> None:
        if self.bars:
            if what not in self.tasks:
                self.tasks[what] = self.bars.add_task(what, total=total)
            self.bars.update(self.tasks[what], completed=done, total=total)
        elif not self.quiet and (what not in self.tasks or time.monotonic() - self.said > EVERY):
            self.tasks[what], self.said = TaskID(0), time.monotonic()
            say(f"{what}: {done / 1e6:.1f} MB" + (f" of {total / 1e6:.1f} MB" if total else ""))


def label(what: str, stage: str) -> str:
    """How a stage is called on the screen."""
    return f"{what} · {stage}" if what and what != stage else stage


def reporter(quiet: bool) -> Reporter:
    """The listener that fits where standard error goes."""
    return Quietly() if quiet else Bars() if is_terminal(sys.stderr) else Lines()


def is_terminal(stream: TextIO | None) -> bool:
    """Whether it is open and a terminal; a closed stream is None."""
    return stream is not None and stream.isatty()


def say(line: str) -> None:
    """A line for people, on standard error, if that is open."""
    if sys.stderr is None:
        return
    print(line, file=sys.stderr, flush=True)


def duration(seconds: float) -> str:
    """3 s, 2 min 5 s, 1 h 3 min."""
    seconds = round(seconds)
    if seconds < 60:
        return f"{seconds} s"
    minutes, rest = divmod(seconds, 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def until(elapsed: float, left: float) -> str:
    """`until about 14:05` for what takes longer than ten minutes in all, else nothing."""
    return f"until about {clock(left)}" if elapsed + left > LONG else ""


def clock(seconds: float) -> str:
    """The time of day so many seconds from now, with the weekday where it is not today."""
    now, then = time.localtime(), time.localtime(time.time() + seconds)
    return time.strftime("%H:%M" if now.tm_yday == then.tm_yday else "%a %H:%M", then)


def show_table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], to_stderr: bool, words: bool = False
) -> None:
    """A table: the first column to the left, numbers to the right; with `words`, all to the left."""
    table = Table(title=title, title_justify="left", title_style="bold")
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if words or not number else "right", no_wrap=not number)
    for row in rows:
        table.add_row(*row)
    Console(stderr=to_stderr, width=None if is_terminal(sys.stdout) else 120).print(table)
