"""Secret numbers, which follow from the name of the test that draws them: what passes once passes again.

Noise, draws of users and checks at random steps come from the operating system's entropy, which a test of numbers
would hang on. Processes that a test starts keep theirs. `TESTS_BY_LUCK=1` gives it to all.
"""

from __future__ import annotations

import os
import random
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_numbers, _process = random.Random(0), os.getpid()


@contextmanager
def of(name: str) -> Iterator[None]:
    """Let what is drawn in here follow from a name, and what is drawn afterwards from what was drawn before."""
    before = _numbers.getstate()
    _numbers.seed(name)
    try:
        yield
    finally:
        _numbers.setstate(before)


def make_secrets_follow() -> None:
    """Replace the functions by which this package asks for secret numbers."""
    if not os.environ.get("TESTS_BY_LUCK"):
        secrets.randbits = _unless_elsewhere(_numbers.getrandbits, secrets.randbits)
        secrets.randbelow = _unless_elsewhere(_numbers.randrange, secrets.randbelow)
        secrets.choice = _unless_elsewhere(_numbers.choice, secrets.choice)
        secrets.token_bytes = _unless_elsewhere(lambda size=None: _numbers.randbytes(size or 32), secrets.token_bytes)


def _unless_elsewhere(followed: Callable[..., Any], secret: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *given: (followed if os.getpid() == _process else secret)(*given)
