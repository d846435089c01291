"""The states of random generators, so that whoever draws in between can put them back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from dprec.checks.entropy import Streams


@dataclass(frozen=True)
class Generators:
    """The states of torch's global generators, and of other streams.

    >>> import numpy as np
    >>> streams = Streams()
    >>> then = Generators.now(streams)
    >>> first = torch.rand(3), np.random.rand()
    >>> then.moved()
    True
    >>> then.restore()
    >>> torch.equal(first[0], torch.rand(3)), first[1] == np.random.rand()
    (True, True)
    """

    streams: Streams
    torch: Any
    cuda: Any
    others: bytes

    @classmethod
    def now(cls, streams: Streams) -> Generators:
        cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
        return cls(streams, torch.get_rng_state(), cuda, streams.states())

    def moved(self) -> bool:
        """Whether anything was drawn since."""
        now = Generators.now(self.streams)
        cuda = [] if self.cuda is None or now.cuda is None else list(zip(self.cuda, now.cuda, strict=True))
        if (self.cuda is None) != (now.cuda is None) or self.others != now.others:
            return True
        return not all(torch.equal(then, later) for then, later in [(self.torch, now.torch), *cuda])

    def restore(self) -> None:
        torch.set_rng_state(self.torch)
        if self.cuda is not None:
            torch.cuda.set_rng_state_all(self.cuda)
        self.streams.restore(self.others)


@contextmanager
def kept(streams: Streams) -> Iterator[None]:
    """Leave all generators as they are found."""
    found = Generators.now(streams)
    try:
        yield
    finally:
        found.restore()
