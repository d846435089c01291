"""How many threads torch has."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def of_threads(count: int) -> Iterator[None]:
    """Let torch use so many threads.

    >>> before = torch.get_num_threads()
    >>> with of_threads(1):
    ...     print(torch.get_num_threads())
    1
    >>> torch.get_num_threads() == before
    True
    """
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def one_thread() -> Iterator[None]:
    with of_threads(1):
        yield
