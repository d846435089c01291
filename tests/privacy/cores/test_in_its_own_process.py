"""Where another test has registered a device, this folder's tests run in a process that has none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dprec.privacy.cores import OneCore, cores_for
from tests.privacy.cores.support import OUTSIDE, model_of

pytestmark = pytest.mark.full


@pytest.mark.skipif(not OUTSIDE, reason="runs where others have registered a device")
def test_all_of_this_folder_in_a_process_of_its_own() -> None:
    assert type(cores_for(model_of())) is OneCore
    done = subprocess.run(
        [sys.executable, "-m", "pytest", Path(__file__).parent, "-p", "no:cacheprovider"],
        cwd=Path(__file__).parents[3],
        env={name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
