"""An audit sees a broken engine by itself: the run's own check, which would stop it first, is off."""

from __future__ import annotations

from collections.abc import Iterator
from unittest import mock

import pytest

from dprec.verify import self_check


@pytest.fixture(autouse=True, scope="module")
def unchecked() -> Iterator[None]:
    with mock.patch.object(self_check, "STEPS", 0):
        yield
