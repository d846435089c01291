"""What several tests of the device share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext

import pytest

from tests.device.pretend import interpreted
from tests.kernels.interpreter import INTERPRETED


@pytest.fixture
def by_kernels() -> Iterator[None]:
    """In the interpreter's process the device takes the kernels."""
    with interpreted() if INTERPRETED else nullcontext():
        yield
