"""Notices about work that goes on, such as reading a log: to standard error, or to the active handler."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

EVERY = 30.0  # seconds between two lines about work that takes long
Part = TypeVar("Part")
Listener = Callable[[str], object]

_listener: ContextVar[Listener] = ContextVar("listener", default=lambda text: print(text, file=sys.stderr))


def say(text: str) -> None:
    """Send a notice to the active listener: standard error, unless `heard_by` has set another."""
    _listener.get()(text)


def paced(parts: Iterable[Part], what: str, total: int | None = None) -> Iterator[Part]:
    """Yield the parts of some work, and report every half minute how far it is."""
    began = said = time.monotonic()
    for number, part in enumerate(parts, start=1):
        yield part
        now = time.monotonic()
        if now - said >= EVERY and number != total:
            rest = "" if total is None else f" of {total:,}, {left((now - began) / number * (total - number))}"
            say(f"{what} {number:,}{rest}")
            said = now


def left(seconds: float) -> str:
    """Return how long something will take, in words.

    >>> left(95.2)
    '1:35 left'
    """
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d} left"


@contextmanager
def heard_by(listener: Listener) -> Iterator[None]:
    """Send notices from inside the context to `listener`, and not to the one before.

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
    """Keep the notices from inside the context, and send them on too."""
    said: list[str] = []
    before = _listener.get()

    def hear(text: str) -> None:
        said.append(text)
        before(text)

    with heard_by(hear):
        yield said
