"""Of all operations of torch, those that count as keeping the users' rows do so, by torch's own samples."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.nightly

ROOT, PARTS = Path(__file__).parents[2], 2


@pytest.mark.parametrize("part", range(PARTS))
def test_what_counts_as_the_users_rows_follows_from_each_users_own(part: int) -> None:
    command = [sys.executable, "-m", "tests.gradients.all_operations", str(part), str(PARTS)]
    count, *wrong = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()
    assert not wrong
    assert int(count) > 3000  # of the calls that it looked at
