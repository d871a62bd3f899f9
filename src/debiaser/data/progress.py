"""Telling whoever listens how far a long preparation of data is, without a callback through every loader."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from debiaser.data.download import Progress

_LISTENER: ContextVar[Progress | None] = ContextVar("listener", default=None)


@contextmanager
def listening(progress: Progress) -> Iterator[None]:
    """Within, what loaders report goes to this callback: what, bytes so far, bytes in all."""
    token = _LISTENER.set(progress)
    try:
        yield
    finally:
        _LISTENER.reset(token)


def report(what: str, done: int, total: int | None) -> None:
    """Tell the listener, if there is one."""
    listener = _LISTENER.get()
    if listener:
        listener(what, done, total)
