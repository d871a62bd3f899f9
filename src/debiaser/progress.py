"""Progress of long-running work: `task` and `track` report it, and the current listener shows it."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")

# A listener is called when the work begins (step 0) and after each step, with: what it is, how much is done, of how
# much (None: unknown), how much of that is new, and the unit. The work is over when done == total.
Listener = Callable[[str, int, int | None, int, str], None]
current: ContextVar[Listener] = ContextVar("listener", default=lambda *_: None)
Advance = Callable[..., None]  # tells that so many more steps are done: one, where it is given no number


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Within, this listener hears of all work that begins, in place of the one before."""
    token = current.set(listener)
    try:
        yield
    finally:
        current.reset(token)


@contextmanager
def task(what: str, total: int | None = None, done: int = 0, unit: str = "steps") -> Iterator[Advance]:
    """A piece of work of `total` steps, of which some may be done; within, call what it gives after each step."""
    tell = current.get()
    if done != total:
        tell(what, done, total, 0, unit)

    def advance(step: int = 1) -> None:
        nonlocal done
        done += step
        if step:
            tell(what, done, total, step, unit)

    yield advance
    if done != total:  # it ended early, or nobody knew how long it is
        tell(what, done, done, 0, unit)


def track(items: Sequence[T], what: str) -> Iterator[T]:
    """The items, each of them a step of the work."""
    with task(what, len(items)) as advance:
        for item in items:
            yield item
            advance()
