"""What reading a log says beside its result: to standard error, unless somebody else listens."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Listener = Callable[[str], object]

_listener: ContextVar[Listener] = ContextVar("listener", default=lambda text: print(text, file=sys.stderr))


def say(text: str) -> None:
    """Say a line to whoever listens."""
    _listener.get()(text)


@contextmanager
def heard_by(listener: Listener) -> Iterator[None]:
    """Let `listener` have what is said inside, in place of who listens now.

    >>> kept: list[str] = []
    >>> with heard_by(kept.append):
    ...     say("two rows have no user id")
    >>> kept
    ['two rows have no user id']
    """
    before = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(before)


@contextmanager
def kept() -> Iterator[list[str]]:
    """Keep what is said inside; it is heard all the same."""
    said: list[str] = []
    before = _listener.get()

    def hear(text: str) -> None:
        said.append(text)
        before(text)

    with heard_by(hear):
        yield said
