"""A run that is killed, terminated, starved of disk or given a damaged checkpoint goes on, or says why not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands.support import ROOT, environment

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks, and limits the size of files")
STEPS = 12


@pytest.mark.nightly
def test_at_a_hundred_moments_a_run_goes_on_or_says_in_one_line_why_not(recipe: Path, here: Path) -> None:
    moments = 100
    words = [sys.executable, str(ROOT / "tests/commands/moments.py"), str(recipe), str(moments), "0"]
    done = subprocess.run(words, cwd=here, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    told = json.loads(done.stdout)
    assert sum(one["fault"] is not None for one in told["seen"]) == moments
    for one in told["seen"]:
        assert one["code"] in (0, 2, 143, -9, -15), one
        assert "Traceback" not in one["said"], one
        assert one["code"] != 2 or one["said"].splitlines()[-1].startswith("error: "), one
        steps = [one[name] for name in ("last", "previous") if name in one]
        assert all(each["step"] == each["ledger"] for each in steps), one
        assert "last" not in one or one["told"] >= one["last"]["step"], one
    for run in here.glob("run*"):
        (event,) = json.loads((run / "privacy.json").read_text())["events"]
        assert event["count"] == STEPS
    assert told["same"]
    assert told["runs"] > 1
