"""Where random generators are, so that whoever draws in between can put them back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from dprec.checks.entropy import Streams


def position(streams: Streams) -> Callable[[], None]:
    """Return what puts torch's global generators, and these streams, back to where they are now.

    >>> import numpy as np
    >>> put_back = position(Streams())
    >>> first = torch.rand(3), np.random.rand()
    >>> put_back()
    >>> torch.equal(first[0], torch.rand(3)), first[1] == np.random.rand()
    (True, True)
    """
    own, others = torch.get_rng_state(), streams.states()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None

    def put_back() -> None:
        torch.set_rng_state(own)
        streams.restore(others)
        if cuda is not None:
            torch.cuda.set_rng_state_all(cuda)

    return put_back


@contextmanager
def kept(streams: Streams) -> Iterator[None]:
    """Leave all generators as they are found."""
    put_back = position(streams)
    try:
        yield
    finally:
        put_back()
