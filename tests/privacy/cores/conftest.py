"""Three processes take steps however small they are, and none is left after a test."""

from __future__ import annotations

from collections.abc import Iterator
from multiprocessing import active_children

import pytest

from dprec.privacy import cores as package
from dprec.privacy.cores import shares
from tests.privacy.cores.support import OPENED


@pytest.fixture(autouse=True)
def _three_cores(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(package, "cores", lambda: 3)
    monkeypatch.setattr(package, "SMALLEST_STEP", 0)
    for name in ("OF_A_BATCH", "OF_THE_REST"):  # so that small batches are shared, too
        monkeypatch.setattr(shares, name, 0)
    yield
    while OPENED:
        OPENED.pop().close()
    left = active_children()
    for process in left:  # so that one failing test does not fail the next
        process.kill()
        process.join()
    assert not left
